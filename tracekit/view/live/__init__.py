"""Watch runs while they record: their ranks, progress, slow ranks and losses."""

from __future__ import annotations

from tracekit.view.live.states import Look, RankState, RunState, Slowest, StageTime, State, Step
from tracekit.view.live.watch import MAX_BYTES, Watch

__all__ = ["MAX_BYTES", "Look", "RankState", "RunState", "Slowest", "StageTime", "State", "Step", "Watch"]
