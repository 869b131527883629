"""Helpers for tests of trace handlers and of code that records: a contract suite, a sample recording and a fake clock.

Only `TraceHandlerContract` needs pytest.
"""

from __future__ import annotations

import pickle
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tracekit.clock import Clock
from tracekit.errors import HandlerError
from tracekit.handlers.base import Recording, TraceHandler
from tracekit.handlers.memory import MemoryTraceHandler
from tracekit.recording.event_order import GRACE_NS
from tracekit.recording.profiler import Profiler
from tracekit.recording.schedule import cyclic_schedule
from tracekit.timestamp import Timestamp

if TYPE_CHECKING:
    from pathlib import Path


class FakeClock:
    """A clock that a test sets: pass ``FakeClock().clock`` to a `Profiler`. Every reading advances it by ``tick_ns``.

    Attributes:
        monotonic_ns: The monotonic clock.
        wall_ns: The wall clock; set it back or forth to simulate a step of the clock.
        tick_ns: Time that each reading of the monotonic clock adds to both clocks.
        asleep_ns: Time that the machine was suspended; see `suspend`.
    """

    def __init__(
        self, *, wall_ns: int = 1_800_000_000_000_000_000, monotonic_ns: int = 5_000_000_000, tick_ns: int = 0
    ) -> None:
        self.wall_ns = wall_ns
        self.monotonic_ns = monotonic_ns
        self.tick_ns = tick_ns
        self.asleep_ns = 0
        self._lock = threading.RLock()

    @property
    def clock(self) -> Clock:
        """This clock as a `Clock`, for the profiler."""
        return Clock(
            wall_ns=lambda: self.wall_ns,
            monotonic_ns=self._read,
            boottime_ns=lambda: self.monotonic_ns + self.tick_ns + self.asleep_ns,
        )

    def _read(self) -> int:
        with self._lock:  # so that no two threads read the same time
            self.advance(self.tick_ns)
            return self.monotonic_ns

    def advance(self, ns: int) -> None:
        """Advance both clocks."""
        with self._lock:  # otherwise, a reading at the same moment could undo this
            self.monotonic_ns += ns
            self.wall_ns += ns

    def suspend(self, ns: int) -> None:
        """Simulate a suspend: the wall clock goes on, the monotonic clock stops."""
        self.wall_ns += ns
        self.asleep_ns += ns


def record_sample(*handlers: TraceHandler, folder: Path | None = None) -> None:
    """Record a short run with every kind of event that a handler can get.

    It has nested and recursive slices, instants, counters, two epochs, two recording windows, an exception, a trace file,
    and a slice that is open across a flush.

    Args:
        *handlers: The handlers of the recording.
        folder: Folder for the trace file; None records no trace file.
    """
    time = FakeClock(tick_ns=1000)
    schedule = cyclic_schedule(warmup=1, active=1, repeat=1)
    with Profiler(handlers, schedule, clock=time.clock, rank=0, run_id="sample", flush_interval=3600) as profiler:
        for _ in range(2):
            with profiler.marker("epoch", categories=("loop",)):
                for batch in profiler.iterate(range(3), "dataloader"):
                    with profiler.marker("forward", categories=("model", "compute"), record_instant_on_start=True):
                        with profiler.marker("layer"), profiler.marker("layer"):
                            time.advance(10_000)
                        profiler.flush()
                    try:
                        with profiler.marker("loss"):
                            raise ArithmeticError
                    except ArithmeticError:
                        pass
                    profiler.marker("saw a batch").instant()
                    profiler.marker("loss").counter({"train": 1.5 / (batch + 1), "nothing": float("nan")})
                    profiler.step(samples=4, tokens=128)
            profiler.next_epoch()
        if folder is not None:
            trace = folder / "torch-rank0.json"
            trace.write_text('{"traceEvents": []}')
            profiler.record_chrome_json_trace_file(str(trace))


_CALLS_OF_A_BATCH = ("batch_start", "batch_end", "batch starts", "batch ends", "forward starts", "backward ends")


def _takes_one_by_one(handler: TraceHandler) -> bool:
    return type(handler).process_events is TraceHandler.process_events and not handler.inline


def _watched(handler: TraceHandler) -> list[tuple[int, int, str]]:
    """Return a list that collects the calls of a handler: (wall_clock_time_ns, batch, call); hooks repeat the last time."""
    seen: list[tuple[int, int, str]] = []

    def watch(name: str) -> None:
        method = getattr(handler, name)

        def watched(*args: Any) -> None:
            call, wall_ns = name, seen[-1][0] if seen else 0
            if name.startswith("process_"):
                call = str(args[0])
                if name == "process_duration_event":
                    call += " starts" if args[2] else " ends"
                wall_ns = next(arg for arg in args if type(arg) is int)
            seen.append((wall_ns, int(next(arg for arg in args if isinstance(arg, Timestamp)).batch), call))
            method(*args)

        setattr(handler, name, watched)

    for name in ("batch_start", "batch_end", *(f"process_{kind}_event" for kind in ("instant", "counter", "duration"))):
        watch(name)
    return seen


class TraceHandlerContract:
    """Tests for the contract of trace handlers. Subclass it in a test module, and override `make_handler`.

    Example::

        class TestMyHandler(TraceHandlerContract):
            def make_handler(self, tmp_path):
                return MyHandler(tmp_path / "trace.txt")
    """

    def make_handler(self, tmp_path: Path) -> TraceHandler:
        """Return a new handler that may use the folder ``tmp_path``."""
        raise NotImplementedError("TraceHandlerContract: define make_handler(self, tmp_path) in your test class")

    def test_takes_a_whole_recording_without_failing(self, tmp_path: Path) -> None:
        """No method raises; the profiler would only count the failure, so the test checks the count."""
        handler = self.make_handler(tmp_path)
        reference = MemoryTraceHandler()
        record_sample(handler, reference, folder=tmp_path)
        assert reference.stats is not None
        assert not reference.stats.failures, reference.stats.failures

    def test_does_not_disturb_the_handlers_beside_it(self, tmp_path: Path) -> None:
        """The events that another handler gets are the same with and without this one."""
        alone, beside = MemoryTraceHandler(), MemoryTraceHandler()
        record_sample(alone)
        record_sample(self.make_handler(tmp_path), beside)
        assert [event.label.name for event in alone.events] == [event.label.name for event in beside.events]

    def test_gets_events_and_hooks_in_the_order_of_time(self, tmp_path: Path) -> None:
        """No event or hook comes after one with a later time, even in steps that are longer than the hold time of events.

        The test watches the handler, if it takes events one by one, and a second handler that does.
        """
        handler, beside = self.make_handler(tmp_path), TraceHandler()
        watched = [_watched(one) for one in (handler, beside) if _takes_one_by_one(one)]
        time = FakeClock(tick_ns=1000)
        with Profiler([handler, beside], clock=time.clock, rank=0, run_id="order", flush_interval=0.004) as profiler:
            for number in range(4):
                for part in ("forward", "backward"):
                    with profiler.marker(part):
                        time.advance(2 * GRACE_NS)
                        profiler.marker("inside").instant()
                    if number % 2:
                        profiler.flush()
                    else:
                        time.advance(2 * GRACE_NS)
                profiler.step()
        for seen in watched:
            times = [(wall_ns, batch) for wall_ns, batch, _ in seen]
            assert times == sorted(times), seen
            calls = [call for *_, call in seen]
            assert [calls.count(call) for call in _CALLS_OF_A_BATCH] == [4] * len(_CALLS_OF_A_BATCH), seen

    def test_what_it_gives_children_can_be_sent_to_them(self, tmp_path: Path) -> None:
        """A child process of any start method can make its handler, and record with it."""
        handler = self.make_handler(tmp_path)
        with Profiler([handler], rank=0, run_id="children"):
            make = pickle.loads(pickle.dumps(handler.for_children()))  # noqa: S301 - of this process
        if make is not None:
            child = make("worker 0")
            assert child is not handler
            record_sample(child)

    def test_closes_without_an_event(self, tmp_path: Path) -> None:
        """A run that ends without an event does not count as a failure."""
        handler, reference = self.make_handler(tmp_path), MemoryTraceHandler()
        with Profiler([handler, reference], rank=0, run_id="empty"):
            pass
        assert reference.stats is not None
        assert not reference.stats.failures

    def test_closes_after_it_was_opened_only(self, tmp_path: Path) -> None:
        """Close follows open when another handler refuses to start."""

        class Refuses(TraceHandler):
            def open(self, recording: Recording) -> None:
                raise OSError("not today")

        handler = self.make_handler(tmp_path)
        with suppress(HandlerError):
            Profiler([handler, Refuses()], rank=0, run_id="refused").start()
            raise AssertionError("the profiler started although a handler could not be opened")
