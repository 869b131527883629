"""T5: asyncio tasks, generators and whatever else interleaves. One slice each, nothing overlaps, every track is readable."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from typing import TYPE_CHECKING

from tests.faults import in_process_writer, opened
from tracekit import Profiler, validate_trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
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


def test_a_thousand_tasks_leave_a_slice_each_however_they_end(tmp_path: Path, engine: Engine) -> None:
    path = tmp_path / "t.json"
    with Profiler(in_process_writer(path), rank=0, record_batches=False, flush_interval=0.02) as profiler:
        expected = asyncio.run(many_ends(profiler))
    remains = opened(engine, path)
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


def test_generators_that_interleave_nest_on_every_track(tmp_path: Path, engine: Engine) -> None:
    path = tmp_path / "t.json"
    with Profiler(in_process_writer(path), rank=0, record_batches=False, flush_interval=0.005) as profiler:

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
    remains = opened(engine, path)
    assert validate_trace(str(path)).counts == {}
    assert remains.count("XB", "pull") == pulls  # B: it was open when the events before were written
    # A slice that cannot stay on its track to its end goes on beside it, as a second slice.
    assert sum(remains.count("XB", f"holds {number}") for number in range(3)) >= 1000
    assert remains.open_slices() == []


def test_the_slice_of_an_async_generator_ends_when_the_loop_closes_it(tmp_path: Path, engine: Engine) -> None:
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

    with Profiler(in_process_writer(path), rank=0, record_batches=False, flush_interval=0.005) as profiler:
        asyncio.run(main())
    remains = opened(engine, path)
    assert remains.count("XB", "generator") == 20
    # All of them are open at once: one below the other on one track they would nest by chance, or not.
    assert len({event["tid"] for event in remains.of("XB", "generator")}) == 20
    assert remains.open_slices() == []
    (after, *_) = remains.of("XB", "after")  # a flush may come in the midst of it
    ends = [event["ts"] + event.get("dur", 0) for event in remains.of("XE", "generator")]
    assert max(ends) <= after["ts"]
