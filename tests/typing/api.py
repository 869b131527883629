"""What type checkers see of the public names. Read by mypy in test_typing.py, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from tracekit import (
    JSONTraceHandler,
    MemoryTraceHandler,
    Profiler,
    Time,
    Timestamp,
    cyclic_schedule,
    diff_traces,
    find_stragglers,
    marker,
    merge_traces,
    on_demand,
    summarize_traces,
    validate_trace,
)

memory = MemoryTraceHandler()
with Profiler([JSONTraceHandler(), memory], cyclic_schedule(active=2)) as profiler:
    reveal_type(profiler)  # expect: Profiler
    for batch in profiler.iterate([[1, 2], [3]], "loader"):
        reveal_type(batch)  # expect: list[int]
        with profiler.marker("a", categories=["x"]) as entered:
            reveal_type(entered)  # expect: Marker
        profiler.step(samples=len(batch))
    reveal_type(profiler.timestamp)  # expect: Timestamp
    reveal_type(profiler.counts)  # expect: str
    reveal_type(profiler.stats.dropped)  # expect: Mapping[str, int]

capture = on_demand("control")
with Profiler(schedule=capture) as captured:
    reveal_type(capture)  # expect: OnDemand
    reveal_type(captured.capture(steps=5))  # expect: bool
    reveal_type(capture.files)  # expect: list[str]


@marker("f")
def function(a: int, *, b: str = "") -> float:
    return 1.0


@marker("g")()
def with_brackets(a: int) -> str:
    return ""


@profiler.marker("c")
async def coroutine(a: int) -> bytes:
    return b""


@profiler.marker("i")
def generator() -> Iterator[int]:
    yield 1


@profiler.marker("ai")
async def async_generator() -> AsyncIterator[int]:
    yield 1


reveal_type(function(1, b="x"))  # expect: float
reveal_type(with_brackets(1))  # expect: str
reveal_type(generator())  # expect: Iterator[int]
reveal_type(async_generator())  # expect: AsyncIterator[int]
reveal_type(Time.from_timestring("5ep"))  # expect: Time[float]
reveal_type(Timestamp().to_next_batch(samples=1))  # expect: Timestamp
reveal_type(memory.slices[0][1].wall_clock_time_ns)  # expect: int
reveal_type(merge_traces("out.json", ["in.json"]).output)  # expect: str
reveal_type(validate_trace("in.json").errors)  # expect: int


async def use() -> None:
    async with profiler.marker("x") as entered:
        reveal_type(entered)  # expect: Marker
    reveal_type(await coroutine(1))  # expect: bytes


reveal_type(summarize_traces(["run"], inside=["train_step"]).ranks[0].steps.mean_ns)  # expect: float
reveal_type(find_stragglers(["run"]).stragglers[0].rank)  # expect: int
reveal_type(diff_traces(["before"], ["after"]).slower_by(0.05)[0].name)  # expect: str


def in_epochs(time: Time[int], at_most: Time) -> Time[int]:
    reveal_type(at_most.value)  # expect: float
    return time + 1 if time < at_most else time


reveal_type(in_epochs(Timestamp().epoch, Time(5, "ep")).value)  # expect: int
reveal_type(Time(5, "ep"))  # expect: Time[int]
reveal_type(Time.from_duration(0.5))  # expect: Time[float]
