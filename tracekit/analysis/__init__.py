"""From traces to answers: where the time goes, which rank holds the others up, what has become slower."""

from __future__ import annotations

from tracekit.analysis.diff import diff_traces
from tracekit.analysis.diff_report import TraceDiff
from tracekit.analysis.stragglers import find_stragglers
from tracekit.analysis.stragglers_report import StragglerReport
from tracekit.analysis.summary import summarize_traces
from tracekit.analysis.summary_report import TraceSummary

__all__ = ["StragglerReport", "TraceDiff", "TraceSummary", "diff_traces", "find_stragglers", "summarize_traces"]
