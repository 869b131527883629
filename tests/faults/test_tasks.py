"""T5: asyncio tasks, generators and whatever else interleaves. One slice each, nothing overlaps, every track is readable."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from tests.faults import bites, opens, read_trace, writers
from tests.faults.bad_writers import make_writer
from tracekit import Profiler, validate_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.perfetto import Engine

TASKS = 1000

TRACKS = """
select thread.name, slice.name, count(*) from slice join thread_track on thread_track.id = track_id
join thread using (utid) group by 1, 2
"""


async def many_ends(profiler: Profiler) -> Counter[str]:
    """Run tasks that end in every way there is, and say how many slices each way must leave."""
    slices: Counter[str] = Counter()

    async def works(name: str, steps: int) -> None:
        slices[name] += 1
        async with profiler.marker(name):
            for _ in range(steps):
                slices["step"] += 1
                async with profiler.marker("step"):
                    await asyncio.sleep(0)

    async def raises() -> None:
        slices["raises"] += 1
        async with profiler.marker("raises"):
            await asyncio.sleep(0)
            raise LookupError

    async def waits_too_long() -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(hangs("hangs in wait_for"), 0.01)

    async def hangs(name: str) -> None:
        slices[name] += 1
        async with profiler.marker(name):
            await asyncio.sleep(3600)

    async def decorated() -> None:
        slices["decorated"] += 1
        await function()

    @profiler.marker("decorated")
    async def function() -> None:
        await asyncio.sleep(0)

    kinds = (
        lambda number: works("works", number % 5),
        lambda _: raises(),
        lambda _: waits_too_long(),
        lambda _: hangs("cancelled"),
        lambda _: decorated(),
    )
    tasks = [asyncio.create_task(kinds[number % len(kinds)](number)) for number in range(TASKS)]
    await asyncio.sleep(0.05)
    for task in tasks[3 :: len(kinds)]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert Counter(type(result) for result in results if result is not None) == {
        LookupError: len(tasks[1 :: len(kinds)]),
        asyncio.CancelledError: len(tasks[3 :: len(kinds)]),
    }
    return slices


@writers("loses silently", "one track")
def test_a_thousand_tasks_leave_a_slice_each_however_they_end(tmp_path: Path, engine: Engine, writer: str) -> None:
    path = tmp_path / "t.json"
    with Profiler(make_writer(writer, path), rank=0, record_batches=False, flush_interval=0.02) as profiler:
        expected = asyncio.run(many_ends(profiler))
    with bites(writer):
        remains = read_trace(path)
        opens(engine, remains)
        assert validate_trace(str(path)).counts == {}
        found = Counter(event["name"] for event in remains.of("XB"))
        assert found == expected
        assert remains.open_slices() == []
        exceptions = Counter(
            (event["name"], exception) for event in remains.of("XE") if (exception := event["args"].get("exception"))
        )
        assert exceptions["raises", "LookupError"] == expected["raises"]
        assert exceptions["cancelled", "CancelledError"] == expected["cancelled"]
        assert exceptions["hangs in wait_for", "CancelledError"] == expected["hangs in wait_for"]
        with engine.load(path) as trace:
            tracks = {name for name, _, _ in trace.rows(TRACKS)}
            assert {name.split(" · task ")[0] for name in tracks} == {"MainThread"}
            # As many lanes as tasks that were alive at once, not one for each task that ever was.
            assert len(tracks) <= TASKS + 1
            assert trace.scalar("select max(depth) from slice") <= 1


def test_tasks_one_after_the_other_share_a_track(tmp_path: Path, engine: Engine) -> None:
    path = tmp_path / "t.json"

    async def main() -> None:
        for _ in range(50):
            await asyncio.create_task(once())

    async def once() -> None:
        async with profiler.marker("once"):
            await asyncio.sleep(0)

    with Profiler(make_writer("tracekit", path), rank=0, record_batches=False) as profiler:
        asyncio.run(main())
    remains = read_trace(path)
    opens(engine, remains)
    assert remains.count("XB", "once") == 50
    assert len({event["tid"] for event in remains.of("XB")}) == 1


@writers("loses silently", "one track")
def test_generators_that_interleave_nest_on_every_track(tmp_path: Path, engine: Engine, writer: str) -> None:
    path = tmp_path / "t.json"
    with Profiler(make_writer(writer, path), rank=0, record_batches=False, flush_interval=0.005) as profiler:

        @profiler.marker("pull")
        def pulled(count: int) -> Iterator[int]:
            yield from range(count)

        def holds(number: int) -> Iterator[int]:
            with profiler.marker(f"holds {number % 3}"):
                yield from range(number % 7)

        pulls = 0
        for _ in range(100):
            # Each is closed at another time than the others, some never: those are closed when they are collected.
            generators = [holds(number) for number in range(10)]
            alive = list(generators)
            while alive:
                alive = [generator for generator in alive if next(generator, None) is not None]
                if len(alive) < 3:
                    break
            for value in pulled(5):
                assert value < 5
            pulls += 6
            del generators, alive
    with bites(writer):
        remains = read_trace(path)
        opens(engine, remains)
        assert validate_trace(str(path)).counts == {}
        assert remains.count("XB", "pull") == pulls  # B: it was open when the events before were written
        # A slice that cannot stay on its track to its end goes on beside it, as a second slice.
        assert sum(remains.count("XB", f"holds {number}") for number in range(3)) >= 1000
        assert remains.open_slices() == []
