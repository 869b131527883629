"""Cheap looks at runs while they record, and after: which ranks there are, how far they are, who is slow, what is lost."""

from __future__ import annotations

from tracekit.watching.states import Look, RankState, RunState, Slowest, StageTime, State, Step
from tracekit.watching.watch import MAX_BYTES, Watch

__all__ = ["MAX_BYTES", "Look", "RankState", "RunState", "Slowest", "StageTime", "State", "Step", "Watch"]
