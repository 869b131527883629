"""Recovery of cut and damaged traces: `recover_trace` writes what can be read into a clean file, and says what was lost."""

from __future__ import annotations

from tracekit.recovery.engine import SUFFIXES, is_other_json, recover_trace
from tracekit.recovery.report import OpenSlice, RecoveryReport

__all__ = ["SUFFIXES", "OpenSlice", "RecoveryReport", "is_other_json", "recover_trace"]
