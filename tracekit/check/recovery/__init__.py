"""Recovery of cut and damaged traces: `recover_trace` writes the readable events into a clean file, and reports losses."""

from __future__ import annotations

from tracekit.check.recovery.engine import SUFFIXES, recover_trace
from tracekit.check.recovery.report import OpenSlice, RecoveryReport

__all__ = ["SUFFIXES", "OpenSlice", "RecoveryReport", "recover_trace"]
