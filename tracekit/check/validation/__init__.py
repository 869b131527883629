"""Check trace files: what Perfetto would hang on, refuse, drop or show wrongly, and tracekit's own format.

``rules`` lists the rules and their reasons; ``events`` holds those that one event can break, ``tracks`` those that need several,
``schema_check`` applies the schemas, ``trace`` reads a file and returns a `ValidationReport`; ``archive`` does so for archives.
"""

from __future__ import annotations

from tracekit.check.validation.archive import validate_file
from tracekit.check.validation.report import Problem, ValidationReport
from tracekit.check.validation.rules import RULES, Kind, Rule, Severity
from tracekit.check.validation.trace import validate_trace

__all__ = ["RULES", "Kind", "Problem", "Rule", "Severity", "ValidationReport", "validate_file", "validate_trace"]
