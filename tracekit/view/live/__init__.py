"""Watch runs while they record: their ranks, progress, slow ranks and losses.

A slice here is a row of the event table (`ProgressTracker` is a sink of its `RowWriter`), but nothing is cached: of 8 ranks that
have written 0.9 MB, a look takes 0.06 s of CPU time, and the new parts of the table would take 1.1 s.
"""

from __future__ import annotations

from tracekit.view.live.states import Look, RankState, RunState, Slowest, StageTime, State, Step
from tracekit.view.live.watch import MAX_BYTES, Watch

__all__ = ["MAX_BYTES", "Look", "RankState", "RunState", "Slowest", "StageTime", "State", "Step", "Watch"]
