"""Check trace files: what Perfetto would hang on, refuse, drop or show wrongly, and tracekit's own format.

``report`` lists the rules and their reasons, ``events`` checks events, ``trace`` reads a file, and ``archive`` an archive.
"""

from __future__ import annotations

from tracekit.check.validation.archive import validate_file
from tracekit.check.validation.report import RULES, Kind, Problem, Rule, Severity, ValidationReport
from tracekit.check.validation.trace import validate_trace

__all__ = ["RULES", "Kind", "Problem", "Rule", "Severity", "ValidationReport", "validate_file", "validate_trace"]
