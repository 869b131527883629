"""What holds recording with the compiled core and in pure Python side by side: odd records, and programs that use markers."""

from __future__ import annotations

import contextlib
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from unittest import mock

from tracekit import Profiler, ProfilerAction, TraceHandler, core
from tracekit.clock import Clock
from tracekit.events import BEGIN, COUNTER, END, INSTANT, EventBatch, Label, Timestamps, Track
from tracekit.formats.chrome_writer import ChromeEncoder
from tracekit.recording.buffer import NEVER_NS
from tracekit.timestamp import Timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from tracekit.recording.marker import Marker

NAMES = ["a", 'q"uote', "back\\slash\\", "%d %b", "é", "\ud800", "", "x" * 300, "line\n"]
VALUES: list[Any] = [{"x": 1}, {"x": 0.5, "y": -3}, {}, {"é": 1e300}, {"a\\": 2**62}, {"n": float("nan")}]
SINGLE_VALUES: list[Any] = [
    {"x": 0.5},
    {"é": -1e300},
    {"a\\": 0.0},
    {"": float("inf")},
]  # the core keeps these without a dictionary
TIMES = [0, 1, 999, 1000, 1001, 10**9, 10**12 + 7, 2**42 * 1000, 2**52 + 1, 2**62]


def counted(values: list[Any]) -> Any:
    """Return the records that a marker makes of the values of a counter."""
    with Profiler(record_batches=False, rank=0, flush_interval=3600) as profiler:
        marker = profiler.marker("x")
        for each in values:
            marker.counter(each)
        return profiler._buffer.records[:]  # type: ignore[index]


def odd_batches(source: Random) -> list[EventBatch]:
    """Return batches of odd records that have their tables, which grow, in common."""
    labels: list[Label] = []
    tracks = [Track(0, "")]
    batches = []
    changes = Timestamps(Timestamp())
    offset_ns = source.choice([0, 5, 1_700_000_000 * 10**9])
    now = source.choice(TIMES[:7])
    for _ in range(source.randrange(1, 4)):
        for _ in range(source.randrange(1, 4)):
            args = source.choice([{}, {}, {"exception": "Error%"}, {"epoch": "e", "b": 'c"'}])
            labels.append(Label(source.choice(NAMES), ("c", "d\\")[: source.randrange(3)], args))
            async_id = source.choice([0, 0, 2**30 + len(tracks)])
            tracks.append(Track(source.choice([5, 4711, 2**31, 2**32 - 1]), source.choice(NAMES), async_id=async_id))
        records: list[Any] = []
        for _ in range(source.randrange(1, 40)):
            now += source.randrange(2000)
            if source.random() < 0.1:
                changes.append(now, changes.at(now).to_next_batch())
            at = now if source.random() < 0.9 else source.choice(TIMES)
            track = source.randrange(1, len(tracks))
            kind = source.choice([at + source.randrange(5000)] * 4 + [at, INSTANT, BEGIN, END, COUNTER])
            if tracks[track].async_id and kind != COUNTER:
                kind = source.choice([BEGIN, END])  # nothing else is on such a track
            what = source.choice(VALUES + SINGLE_VALUES) if kind == COUNTER else track
            records += (source.randrange(len(labels)), at, kind, what)
        cut_ns = source.choice([0, max(*records[1::4], *records[2::4])])
        batches.append(EventBatch(records, labels.copy(), tracks.copy(), changes.copy(), offset_ns, cut_ns))
    return batches


def encoded(batches: list[EventBatch]) -> list[bytes]:
    """Return what one encoder makes of batches."""
    encoder = ChromeEncoder(4711, batches[0].offset_ns // 10**9 * 10**9)
    return [encoder.encode(batch) for batch in batches]


Step = tuple[Any, ...]


def program(source: Random, length: int) -> list[Step]:
    """Return steps to be done by some threads with some markers, among them such as nobody should write."""
    steps: list[Step] = []
    for _ in range(length):
        thread, marker = source.randrange(3), source.randrange(3)
        kind = source.random()
        if kind < 0.35:
            steps.append((thread, "enter", marker))
        elif kind < 0.65:
            steps.append((thread, "exit", marker, source.random() < 0.1))
        elif kind < 0.75:
            steps.append((thread, source.choice(["start", "finish"]), marker))
        elif kind < 0.83:
            steps.append((thread, "instant", marker))
        elif kind < 0.91:
            steps.append((thread, "counter", marker, source.randrange(5)))
        elif kind < 0.95:
            steps.append((0, "action", source.choice(list(ProfilerAction))))
        elif kind < 0.97:
            steps.append((0, "late"))
        else:
            steps.append((0, "flush"))
    return steps


class _Events(TraceHandler):
    def __init__(self) -> None:
        self.found: list[Any] = []

    def process_events(self, batch: EventBatch) -> None:
        for event in batch:
            kind, label = type(event).__name__, event.label
            track = None if kind == "Counter" else event.track.name  # type: ignore[union-attr]
            values = dict(event.values) if kind == "Counter" else None  # type: ignore[union-attr]
            self.found.append((event.wall_clock_time_ns, kind, label.name, dict(label.args), track, values))


class Worker:
    """Does what it is given on a thread of its own, one step after the other."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._done: SimpleQueue[str] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:
                self._done.put(repr(error))
            else:
                self._done.put("")

    def do(self, job: Callable[[], object]) -> str:
        self._jobs.put(job)
        return self._done.get()

    def end(self) -> None:
        self._jobs.put(None)
        self._thread.join()


def played(steps: list[Step], clock: Clock) -> tuple[Any, ...]:
    """Do the steps; return the events in their order, what the steps raised, and how the markers stand in the end."""
    handler, said = _Events(), []
    action = [ProfilerAction.ACTIVE]
    profiler = Profiler(
        handler, schedule=lambda _: action[0], record_batches=False, flush_interval=3600, clock=clock, rank=0
    )
    workers = [Worker(f"thread {number}") for number in range(3)]
    late: list[str] = []

    def look_after(_now_ns: int) -> None:
        late.append(threading.current_thread().name)
        profiler._buffer.due_ns = NEVER_NS

    with profiler:
        profiler._buffer.look_after = look_after  # the writer's own waits, for as long as it takes or not
        profiler._buffer.due_ns = NEVER_NS
        markers = [profiler.marker(f"m{number}", record_instant_on_finish=number == 2) for number in range(3)]
        values: list[Any] = [{"x": 1}, {"x": 0.5, "y": 2}, None, {1: 2}, {"x": "text"}]
        for thread, what, *rest in steps:
            said.append(workers[thread].do(lambda: _do(profiler, markers, action, values, what, rest)))  # noqa: B023
        states = [_state(marker) for marker in markers]
    for worker in workers:
        worker.end()
    stats = profiler.stats
    counts = (stats.slices, stats.instants, stats.counters, stats.dropped)
    events = [event[1:] for event in sorted(handler.found, key=lambda event: event[0])]
    return events, said, late, states, [_state(marker) for marker in markers], counts


def _do(
    profiler: Profiler, markers: list[Marker], action: list[Any], values: list[Any], what: str, rest: list[Any]
) -> None:
    if what == "action":
        action[0] = rest[0]
        profiler.ask_schedule()
    elif what == "late":
        profiler._buffer.due_ns = 0  # the next event looks after the writer
    elif what == "flush":
        due_ns = profiler._buffer.due_ns
        assert profiler.flush(60)
        profiler._buffer.due_ns = due_ns  # the writer has set its own
    elif what == "enter":
        assert markers[rest[0]].__enter__() is markers[rest[0]]
    elif what == "exit":
        error = ValueError() if rest[1] else None
        assert markers[rest[0]].__exit__(error and type(error), error, None) is None
    elif what == "counter":
        markers[rest[0]].counter(values[rest[1]])
    else:
        getattr(markers[rest[0]], what)()


def _state(marker: Marker) -> tuple[Any, ...]:
    clones = [_state(clone)[1:] for clone in marker._clones.values()]
    return type(marker).__name__, min(marker._start, 3), marker._contended, marker._skipped, clones


def other_clock() -> Clock:
    """Return clocks that tell the time of the system, and are not those that the core reads by itself."""
    return Clock(monotonic_ns=lambda: time.perf_counter_ns())  # noqa: PLW0108 - another function is what is wanted


@contextlib.contextmanager
def pure() -> Iterator[None]:
    """Have Python do what is started in here."""
    with mock.patch.object(core, "record", None):
        yield
