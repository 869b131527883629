"""Recordings for the tests of looks at them: made by the real profiler and handler, on a clock that the test sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit import JSONTraceHandler, Profiler
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.view.live import Look, RankState, RunState, Watch

__all__ = ["STEP_NS", "only_rank", "only_run", "record", "train"]

MS = 1_000_000
STAGES = {"dataloader": 2 * MS, "forward": 10 * MS, "backward": 20 * MS, "all_reduce": 8 * MS}
STEP_NS = sum(STAGES.values())


def record(
    folder: Path | str,
    *,
    rank: int = 0,
    world_size: int = 1,
    run_id: str = "run",
    name: str = "{run_id}/rank{rank}.json",
    clock: FakeClock | None = None,
    handler: dict[str, Any] | None = None,
    **options: Any,
) -> Profiler:
    """Return a profiler that records to a folder; it writes when it is flushed, and not before."""
    clock = clock or FakeClock()
    return Profiler(
        JSONTraceHandler(f"{folder}/{name}", **(handler or {})),
        clock=clock.clock,
        rank=rank,
        world_size=world_size,
        run_id=run_id,
        flush_interval=3600,
        **options,
    )


def train(
    profiler: Profiler, clock: FakeClock, steps: int, *, slow: float = 1.0, after: Callable[[], object] | None = None
) -> None:
    """Make steps, in which the forward pass takes ``slow`` times as long as usual."""
    for _ in range(steps):
        for stage in ("dataloader", "forward"):
            with profiler.marker(stage):
                with profiler.marker("layer"):
                    clock.advance(int(STAGES[stage] * (slow if stage == "forward" else 1)))
                clock.advance(0)
        with profiler.marker("backward"):
            clock.advance(STAGES["backward"])
            with profiler.marker("all_reduce"):
                clock.advance(STAGES["all_reduce"])
        profiler.step(samples=4)
        if after is not None:
            after()
    profiler.flush()


def only_run(look: Look) -> RunState:
    """Return the only run of a look."""
    (run,) = look.runs
    return run


def only_rank(watch: Watch) -> RankState:
    """Look, and return the only rank of the only run."""
    (rank,) = only_run(watch.look()).ranks
    return rank
