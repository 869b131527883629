"""T5: async generators that are closed late, by another task than the one that opened their slice."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

from tests.faults import bites, opens, read_trace, writers
from tests.faults.bad_writers import make_writer
from tracekit import Profiler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.perfetto import Engine


@writers("one track")
def test_the_slice_of_an_async_generator_ends_when_the_loop_closes_it(
    tmp_path: Path, engine: Engine, writer: str
) -> None:
    path = tmp_path / "t.json"

    async def numbers() -> AsyncIterator[int]:
        async with profiler.marker("generator"):
            for number in range(10):
                yield number
                await asyncio.sleep(0)

    async def leaves_early() -> None:
        async for number in numbers():
            if number == 2:
                return  # the generator is closed when it is collected, by a task of the loop's own

    async def main() -> None:
        await asyncio.gather(*(leaves_early() for _ in range(20)))
        gc.collect()
        profiler.flush()
        for _ in range(3):  # the loop makes the tasks that close them
            await asyncio.sleep(0)
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
        with profiler.marker("after"):
            pass

    with Profiler(make_writer(writer, path), rank=0, record_batches=False, flush_interval=0.005) as profiler:
        asyncio.run(main())
    with bites(writer):
        remains = read_trace(path)
        opens(engine, remains)
        assert remains.count("XB", "generator") == 20
        # All of them are open at once: one below the other on one track they would nest by chance, or not.
        assert len({event["tid"] for event in remains.of("XB", "generator")}) == 20
        assert remains.open_slices() == []
        (after, *_) = remains.of("XB", "after")  # a flush may come in the midst of it
        ends = [event["ts"] + event.get("dur", 0) for event in remains.of("XE", "generator")]
        assert max(ends) <= after["ts"]
