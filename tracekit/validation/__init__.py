"""Checks of trace files: what Perfetto would hang on, refuse, drop or show wrongly, and tracekit's own format.

``rules`` lists what is checked and why; ``events`` holds the rules that one event can break, ``tracks`` and ``flows``
those that need several, ``shapes`` makes the schemas fast, ``trace`` reads a file and brings all together in a
`ValidationReport`; ``archive`` does so for archives of traces.
"""

from __future__ import annotations

from tracekit.validation.archive import validate_file
from tracekit.validation.report import Problem, ValidationReport
from tracekit.validation.rules import RULES, Kind, Rule, Severity
from tracekit.validation.trace import validate_trace

__all__ = ["RULES", "Kind", "Problem", "Rule", "Severity", "ValidationReport", "validate_file", "validate_trace"]
