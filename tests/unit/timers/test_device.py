"""Timers of a GPU: nothing waits for it unless asked, and its own time is read later.

`Cuda` stands in for ``torch.cuda``: a stream that runs what was put on it when the test lets it, and events as CUDA's are.
"""

from __future__ import annotations

import struct
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tracekit import Timers
from tracekit.testing import FakeClock
from tracekit.timers import Timer
from tracekit.timers import timer as timer_module
from tracekit.timers.device import _LOOK_EVERY, _MAX_PENDING

MS = 1_000_000


class Cuda:
    """A device with one stream."""

    def __init__(self) -> None:
        self.queue: list[tuple[str, Any]] = []
        self.now_ms = 1000.0
        self.synchronized = 0
        self.events = self.queries = 0
        self.available = self.initialized = True
        self.capturing = False
        self.Event = lambda *, enable_timing: Event(self, enable_timing)

    def is_available(self) -> bool:
        return self.available

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def launch(self, milliseconds: float) -> None:
        self.queue.append(("kernel", milliseconds))

    def run(self, count: int | None = None) -> None:
        """Let the device do the next things, or all."""
        count = len(self.queue) if count is None else count
        for kind, what in self.queue[:count]:
            if kind == "kernel":
                self.now_ms += what
            else:
                what.passed_at_ms = self.now_ms
        del self.queue[:count]

    def synchronize(self) -> None:
        self.synchronized += 1
        self.run()


class Event:
    def __init__(self, cuda: Cuda, enable_timing: bool) -> None:
        assert enable_timing, "without it CUDA refuses elapsed_time"
        cuda.events += 1
        self._cuda = cuda
        self.passed_at_ms: float | None = None

    def record(self) -> None:
        self.passed_at_ms = None
        self._cuda.queue.append(("event", self))

    def query(self) -> bool:
        self._cuda.queries += 1
        return self.passed_at_ms is not None

    def elapsed_time(self, other: Event) -> float:
        if self.passed_at_ms is None or other.passed_at_ms is None:
            raise RuntimeError("CUDA error: device not ready")
        single: float = struct.unpack("f", struct.pack("f", other.passed_at_ms - self.passed_at_ms))[0]
        return single


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    found = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=found))
    return found


def make(device: str | None = None) -> tuple[Timers, FakeClock]:
    clock = FakeClock()
    return Timers(2, "max", device=device, clock=clock.clock), clock


def test_nothing_waits_for_the_device_unless_asked(cuda: Cuda, caplog: pytest.LogCaptureFixture) -> None:
    """T2: there every start and every stop do."""
    make("host")[0]("x")
    timers, clock = make()
    timers("chosen", device="host")
    cuda.initialized = False
    timers("not in use")
    assert caplog.messages == [], "no hint for who chooses the host, or has no device in use"
    cuda.initialized = True
    for _ in range(2):
        with timers("x"), timers("y"):
            cuda.launch(5)
            clock.advance(MS)
    assert (cuda.synchronized, cuda.events) == (0, 0)
    assert timers("x").elapsed() == 0.002
    assert len(caplog.messages) == 1
    assert 'device="events"' in caplog.messages[0]


def test_timers_without_a_timers_measure_the_device_and_hint_at_it_once(
    cuda: Cuda, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_module.warn_once, "_warned", set())
    clock = FakeClock()
    for _ in range(2):
        with Timer("x", clock=clock.clock.monotonic_ns) as timer:
            clock.advance(MS)
        assert timer.elapsed() == 0.001
    assert len(caplog.messages) == 1
    assert 'device="synchronize"' in caplog.messages[0]
    with Timer("x", device="synchronize"), Timer("y", device="events") as timer:
        cuda.launch(5)
    assert cuda.synchronized == 2
    cuda.run()
    assert timer.elapsed() == pytest.approx(0.005)
    assert len(caplog.messages) == 1


def test_the_matrix_of_elapsed_times_is_on_the_current_device_as_there(cuda: Cuda) -> None:
    torch: Any = sys.modules["torch"]
    torch.float64 = "float64"
    torch.tensor = lambda rows, *, dtype, device: (rows, dtype, device)
    cuda.current_device = lambda: 3  # type: ignore[attr-defined]
    timers, _ = make("host")
    timers("x").set_elapsed(2)
    assert timers._get_elapsed_time_all_ranks(["x"], False, False) == ([[2.0]], "float64", 3)
    cuda.initialized = False
    assert timers._get_elapsed_time_all_ranks(["x"], False, False)[2] == "cpu"


def test_synchronize_waits_at_both_ends_as_there(cuda: Cuda) -> None:
    timers, clock = make("synchronize")
    cuda.launch(7)
    with timers("x"):
        assert cuda.queue == []
        cuda.launch(5)
        clock.advance(MS)
    assert cuda.queue == []
    timers("x").start()
    timers("x").stop()
    assert cuda.synchronized == 4
    timers("x").elapsed()
    assert cuda.synchronized == 4, "reading waits for nothing"


def test_events_measure_the_device_and_nobody_waits(cuda: Cuda) -> None:
    timers, clock = make()
    cuda.launch(100)  # what was put on the stream before is not counted
    for milliseconds in (5, 7):
        with timers("x", device="events"), timers("host", device="host"):
            cuda.launch(milliseconds)
            clock.advance(MS)
    assert timers("x").elapsed(reset=False) == 0.0, "the device has not even begun"
    assert timers.snapshot(["x"]).of("x") == {}
    cuda.run(4)
    assert timers("x").elapsed(reset=False) == pytest.approx(0.005)
    cuda.run()
    assert timers.snapshot(reset=True).of("x")[0].count == 2, "each call once, whichever read comes first"
    assert timers.snapshot().of("x") == {}
    assert (timers("x").elapsed(), timers("host").elapsed()) == (pytest.approx(0.012), 0.002)
    assert cuda.synchronized == 0


def test_without_a_device_nothing_waits_and_events_measure_the_host(
    cuda: Cuda, caplog: pytest.LogCaptureFixture
) -> None:
    with make("synchronize")[0]("x"):
        cuda.initialized = False
    cuda.available = False
    with make("synchronize")[0]("x"):
        pass
    assert cuda.synchronized == 1
    timers, clock = make("events")
    for name in ("x", "y"):
        with timers(name):
            clock.advance(MS)
    assert timers("x").elapsed() == 0.001
    assert caplog.messages == ["tracekit: timers: there is no CUDA device, so the timers measure the time of the host"]


@pytest.mark.parametrize("broken", ["record", "elapsed_time", "query", None])
def test_a_call_that_the_driver_refuses_or_captures_into_a_graph_is_not_measured(
    cuda: Cuda, broken: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: misaligned address\nCUDA kernel errors might be reported later")

    timers, _ = make("events")
    with monkeypatch.context() as patch:
        if broken is None:
            patch.setattr(cuda, "capturing", True)
        else:
            patch.setattr(Event, broken, fail)
        for _ in range(2):
            with timers("x"):
                cuda.launch(5)
        cuda.run()
        assert timers("x").elapsed() == 0.0
    with timers("x"):
        cuda.launch(3)
    cuda.run()
    assert timers("x").elapsed() == pytest.approx(0.003)
    reason = "a CUDA graph is being captured" if broken is None else "CUDA error: misaligned address"
    assert caplog.messages == [f"tracekit: timer 'x' does not measure some calls on the device: {reason}"]


def test_events_are_used_again_and_few_wait_for_a_device_that_hangs(
    cuda: Cuda, caplog: pytest.LogCaptureFixture
) -> None:
    timers, _ = make("events")
    for _ in range(2 * _LOOK_EVERY):
        with timers("x"):
            cuda.launch(1)
        cuda.run()
    assert cuda.queries <= 2 * 2 * _LOOK_EVERY, (
        "each event once: a stop does not look at the device, but for every 64th"
    )
    assert timers("x").elapsed() == pytest.approx(2 * _LOOK_EVERY / 1000)
    assert cuda.events <= 2 * _LOOK_EVERY + 2
    for _ in range(_MAX_PENDING + 10):
        with timers("x"):
            pass
    assert cuda.events <= 2 * _MAX_PENDING + 2
    assert "calls wait for the device" in caplog.text
    cuda.run()
    assert timers.snapshot().of("x")[0].count == 2 * _LOOK_EVERY + _MAX_PENDING
