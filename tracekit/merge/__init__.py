"""Merge the traces of many ranks into one, with markers, operators, kernels and counters on one clock."""

from __future__ import annotations

from tracekit.merge.engine import merge_traces
from tracekit.merge.report import MergeReport
from tracekit.merge.selection.selection import Selection

__all__ = ["MergeReport", "Selection", "merge_traces"]
