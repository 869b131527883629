"""Count the garbage collections that recording causes. Each stops the training thread, longer if more objects are alive."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tracekit
from tests.benchmarks import peers
from tests.benchmarks.measure import Spread
from tests.benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.measure import Effort, Loop

NAME = "garbage-collector"


def rows(effort: Effort) -> Iterator[Row]:
    """Count collections while slices are recorded, with and without writing them to a file."""
    count, per = effort.watched_slices, f"{effort.watched_slices:,}"
    with peers.recording() as profiler:
        marker = profiler.marker("x")
        yield _row(f"collections while recording {per} slices", peers.entering(marker), count)
        instants = _row(
            f"collections while recording {per} instants", peers.loop_of("marker.instant()", marker=marker), count
        )
        profiler.flush()
        yield instants
    with tempfile.TemporaryDirectory() as folder:
        handler = tracekit.JSONTraceHandler(Path(folder) / "rank{rank}.json")
        with tracekit.Profiler(handler, rank=0) as profiler:
            loop = peers.entering(profiler.marker("x"))

            def recorded_and_written(slices: int) -> None:
                loop(slices)
                profiler.flush(60)

            yield _row(f"collections while recording and writing {per} slices", recorded_and_written, count)


def _row(what: str, loop: Loop, count: int) -> Row:
    """Count the collections of every generation, on every thread."""
    collections: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            collections.append(info["generation"])

    loop(1)  # makes the objects that every later run shares
    gc.collect()
    gc.callbacks.append(note)
    try:
        loop(count)
    finally:
        gc.callbacks.remove(note)
    by_generation = (f"{collections.count(generation)} of generation {generation}" for generation in range(3))
    remarks = ", ".join(by_generation) if collections else ""
    return Row(NAME, what, Spread.of([float(len(collections))]), "", at_most=0, remarks=remarks)
