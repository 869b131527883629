"""FlightRecorder: what it keeps, when it dumps, what it names its dumps, and which hooks it sets and takes back."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import ConfigError, FlightRecorder, JSONTraceHandler, Profiler
from tracekit.handlers.event_ring import EventRing
from tracekit.handlers.triggers import ExceptionTrigger, SignalTrigger, SlowSteps
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.events import EventBatch


def events(path: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads(Path(path).read_text("utf-8"))
    return loaded


def reasons(recorder: FlightRecorder) -> list[str]:
    return [
        reason
        for path in recorder.paths
        for event in events(path)
        if event["name"] == "tracekit_dump"
        for reason in event["args"]["reasons"]
    ]


def started(recorder: FlightRecorder, clock: FakeClock | None = None, **options: Any) -> Profiler:
    clock = clock or FakeClock(tick_ns=1)
    return Profiler(recorder, rank=0, run_id="run", clock=clock.clock, flush_interval=3600, **options)


def flush(profiler: Profiler) -> None:
    assert profiler.flush()
    assert profiler.flush()


def test_a_dump_has_the_form_of_a_rank_trace_and_says_why(tmp_path: Path) -> None:
    recorder, whole = FlightRecorder(tmp_path / "d{dump}.json"), JSONTraceHandler(tmp_path / "whole.json")
    clock = FakeClock(tick_ns=1)
    with Profiler([recorder, whole], rank=0, run_id="run", clock=clock.clock, flush_interval=3600) as profiler:
        with profiler.marker("a"):
            profiler.marker("b").instant()
            profiler.marker("c").counter({"x": 1, "y": 2.5})
        profiler.flush()
        profiler.step(samples=4)
        recorder.dump("because")
        flush(profiler)
        profiler.record_chrome_json_trace_file("torch.json")
        profiler.flush()
        recorder.dump()
    first, second = (events(path) for path in recorder.paths)
    live = events(whole.paths[0])
    assert first[0] == live[0]
    dump = {event["name"]: event for event in first}["tracekit_dump"]["args"]
    assert dump == {"reasons": ["because"], "events": dump["events"], "dropped": 0}
    recorded = [event for event in live if event["ph"] != "M"]
    assert [event for event in second if event["ph"] != "M"] == recorded
    assert dump["events"] == sum(event["ph"] != "M" for event in first)
    told = {event["name"] for event in second if event["ph"] == "M"}
    assert told == {event["name"] for event in live if event["ph"] == "M"} - {"tracekit_summary"} | {"tracekit_dump"}


def test_only_the_last_seconds_are_kept(tmp_path: Path) -> None:
    clock, recorder = FakeClock(), FlightRecorder(tmp_path / "d{dump}.json", seconds=2, on_close=True)
    with started(recorder, clock, record_batches=False) as profiler:
        for _ in range(100):
            profiler.marker("i").instant()
            clock.advance(100_000_000)
            profiler.step()
            profiler.flush()
    kept = [event for event in events(recorder.paths[0]) if event["ph"] == "i"]
    assert [event["args"]["batch"] for event in kept] == list(range(79, 100))
    assert reasons(recorder) == ["the recording ends"]
    (dump,) = [event["args"] for event in events(recorder.paths[0]) if event["name"] == "tracekit_dump"]
    assert (dump["events"], dump["dropped"]) == (21, 79)


@pytest.mark.slow
def test_memory_is_bounded_and_flat_and_an_event_takes_what_it_says(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "d{dump}.json", seconds=1e6, max_bytes=4 << 20)
    with started(recorder, record_batches=False) as profiler:
        marker, counter = profiler.marker("a"), profiler.marker("c")
        with profiler.marker("around"):

            def record(count: int) -> int:
                for number in range(count):
                    with marker:
                        pass
                    if not number % 100:
                        counter.counter({"x": number + 0.5})
                        profiler.step()
                    if not number % 5000:
                        profiler.flush()
                profiler.flush()
                gc.collect()
                return tracemalloc.get_traced_memory()[0]

            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                filled = record(120_000)
                later = record(60_000)
            finally:
                tracemalloc.stop()
        ring = recorder._ring
        assert ring.dropped > 50_000
        assert ring.size_bytes <= 4 << 20
        assert ring.size_bytes < 50 * ring.events
        # The rest is the profiler's: its labels, its log of training times.
        assert filled - before < (4 << 20) + 1_000_000
        assert abs(later - filled) < 700_000
        recorder.dump("full")
        flush(profiler)
        found = events(recorder.paths[0])
        begun, ended = (Counter(event["name"] for event in found if event["ph"] == phase) for phase in "BE")
        assert begun["around"] == 1
        assert begun["a"] == ended["a"]  # those that were open when the writer looked
        assert sum(event["ph"] != "M" for event in found) == pytest.approx(ring.events, abs=2)


def test_a_slice_that_began_before_what_is_kept_has_its_true_start_and_training_time(tmp_path: Path) -> None:
    clock, recorder = FakeClock(), FlightRecorder(tmp_path / "d{dump}.json", seconds=1)
    with started(recorder, clock, record_batches=False) as profiler:
        first_ns = clock.wall_ns
        with profiler.marker("runs on"):
            with profiler.marker("ends inside"):
                for _ in range(5):
                    profiler.flush()
                    clock.advance(1_000_000_000)
                    profiler.marker("i").instant()
                    profiler.step()
            profiler.flush()
            recorder.dump()
            flush(profiler)
    found = events(recorder.paths[0])
    base_ns = found[0]["args"]["baseTimeNanoseconds"]
    begins = {event["name"]: event for event in found if event["ph"] == "B"}
    assert {name: base_ns + round(event["ts"] * 1000) for name, event in begins.items()} == {
        "runs on": first_ns,
        "ends inside": first_ns,
    }
    assert {event["args"]["batch"] for event in begins.values()} == {0}
    (end,) = [event for event in found if event["ph"] == "E"]
    assert (end["name"], base_ns + round(end["ts"] * 1000)) == ("ends inside", first_ns + 5_000_000_000)


def test_a_flush_that_is_larger_than_the_memory_keeps_its_newest_events(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "d{dump}.json", seconds=1e6, max_bytes=4 << 20, on_close=True)
    with started(recorder, record_batches=False) as profiler:
        marker = profiler.marker("a")
        for number in range(140_000):
            if number == 139_999:
                profiler.marker("last").instant()
            with marker:
                pass
        assert profiler.flush(300)
        assert 90_000 < recorder._ring.events < 139_000
        assert recorder._ring.size_bytes <= 4 << 20
    assert [event["name"] for event in events(recorder.paths[0]) if event["ph"] == "i"] == ["last"]


def test_a_dump_waits_for_the_delivery_after_it_and_causes_of_one_moment_share_it(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "d{dump}.json")
    with started(recorder) as profiler:
        recorder.flush()  # as if the writer were between a delivery and its flush
        profiler.marker("cause").instant()
        for reason in ("a", "b", "a"):
            recorder.dump(reason)
        recorder.flush()
        assert recorder.paths == []
        flush(profiler)
        (path,) = recorder.paths
        assert [event["name"] for event in events(path) if event["ph"] == "i"] == ["cause"]
    assert reasons(recorder) == ["a", "b"]


def test_an_exception_that_leaves_the_block_is_dumped_and_an_exit_is_not(tmp_path: Path) -> None:
    for error, wanted in ((ValueError("nan loss"), ["exception: ValueError: nan loss"]), (SystemExit(0), [])):
        recorder = FlightRecorder(tmp_path / "d{dump}.json")
        with pytest.raises(type(error)), started(recorder) as profiler, profiler.marker("step"):
            raise error
        assert reasons(recorder) == wanted
    quiet = FlightRecorder(tmp_path / "d{dump}.json", on_exception=False)
    with pytest.raises(ValueError, match="x"), started(quiet):
        raise ValueError("x")
    assert quiet.paths == []


def test_a_slow_step_is_dumped_with_its_events_and_then_not_again_for_a_while(tmp_path: Path) -> None:
    clock, recorder = FakeClock(), FlightRecorder(tmp_path / "d{dump}.json", slow_step=3)
    with started(recorder, clock) as profiler:

        def step(ms: int) -> None:
            with profiler.marker("work"):
                clock.advance(ms * 1_000_000)
            profiler.step()
            profiler.flush()

        step(5000)  # the first is slow by nature
        for _ in range(20):
            step(100)
        assert recorder.paths == []
        step(301)
        assert reasons(recorder) == ["slow step: batch 21 took 0.301 s, usual are 0.100 s"]
        works = [event for event in events(recorder.paths[0]) if event["name"] == "work"]
        assert works[-1]["args"]["batch"] == 21
        step(5000)
        assert len(recorder.paths) == 1
        for _ in range(600):
            step(100)
        assert len(recorder.paths) == 1
        step(301)
        assert len(recorder.paths) == 2


def test_the_median_needs_enough_steps_and_is_not_moved_by_a_slow_one() -> None:
    slow = SlowSteps(2, window=8, least=4)
    assert [slow.usual_s(duration) for duration in (1, 9, 1, 1, 1.9, 2.1, 2.1)] == [None] * 5 + [1, None]


def test_dumps_never_overwrite(tmp_path: Path) -> None:
    for name in ("d1.json", "e0.json"):
        (tmp_path / name).write_text("precious")
    for template, names in (("d{dump}.json", ["d0.json", "d2.json"]), ("e{batch}.json", ["e0-2.json", "e0-3.json"])):
        recorder = FlightRecorder(tmp_path / template)
        with started(recorder) as profiler:
            for _ in range(2):
                recorder.dump()
                flush(profiler)
        assert [Path(path).name for path in recorder.paths] == names
    assert (tmp_path / "d1.json").read_text() == (tmp_path / "e0.json").read_text() == "precious"


def test_only_so_many_dumps_are_kept(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "d{dump}.json", num_traces_to_keep=2)
    with started(recorder) as profiler:
        for _ in range(5):
            recorder.dump()
            flush(profiler)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d3.json", "d4.json"]
    assert [Path(path).name for path in recorder.paths] == ["d3.json", "d4.json"]


def test_a_dump_that_cannot_be_written_is_no_failure_of_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = FlightRecorder(tmp_path / "sub" / "d{dump}.json")
    with started(recorder) as profiler:
        (tmp_path / "sub").rmdir()
        (tmp_path / "sub").write_text("")
        recorder.dump()
        flush(profiler)
        assert "dump cannot be written" in caplog.text
        (tmp_path / "sub").unlink()
        recorder.dump("again")
        flush(profiler)
        assert not profiler.stats.failures
    assert reasons(recorder) == ["again"]


@pytest.mark.parametrize("name", ["d{dump}.json", "d{batch}.json"])
def test_a_dump_that_is_removed_while_it_is_written_is_said_to_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    recorder = FlightRecorder(tmp_path / name)
    ring = recorder._ring
    with started(recorder) as profiler:
        profiler.marker("a").instant()

        def batches() -> Iterator[EventBatch]:
            yield from EventRing.batches(ring)
            for path in tmp_path.iterdir():
                path.unlink()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ring, "batches", batches)
            recorder.dump()
            flush(profiler)
        assert "was removed, replaced or truncated while it was written" in caplog.text
        recorder.dump("again")
        flush(profiler)
        assert not profiler.stats.failures
    assert reasons(recorder) == ["again"]


def test_dumps_go_to_remote_storage() -> None:
    import fsspec

    recorder = FlightRecorder("memory://flight/d{batch}.json", on_close=True)
    with started(recorder) as profiler:
        recorder.dump()
        flush(profiler)
    memory = fsspec.filesystem("memory")
    assert sorted(memory.ls("/flight", detail=False)) == [
        "/flight/d.index.json", "/flight/d0-2.json", "/flight/d0.json",
    ]  # fmt: skip
    memory.rm("/flight", recursive=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"filename": "d.json"}, r"put \{dump\} into it"),
        ({"filename": "d{dump}.txt"}, "must end with"),
        ({"filename": "d{part}.json"}, r"no field \{part\}"),
        ({"seconds": 0}, "seconds must be a number of seconds above 0, not 0"),
        ({"max_bytes": 1000}, "at least 4194304"),
        ({"max_bytes": 1e9}, "max_bytes must be a whole number"),
        ({"slow_step": 1}, "slow_step must be a number above 1"),
        ({"on_signal": signal.SIGKILL}, "on_signal must be a signal that can be caught"),
        ({"on_signal": "USR1"}, "on_signal must be"),
        ({"num_traces_to_keep": 0}, "num_traces_to_keep must be a whole number from 1 on, not 0"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FlightRecorder(**arguments)


def hooks() -> tuple[Any, ...]:
    fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(fd)
    return sys.excepthook, threading.excepthook, signal.getsignal(signal.SIGUSR1), fd


def test_no_hook_is_set_unless_asked_for_and_nothing_is_written_while_nothing_has_happened(tmp_path: Path) -> None:
    before = hooks()
    with started(FlightRecorder(tmp_path / "d{dump}.json", slow_step=2)) as profiler:
        assert hooks() == before
        with profiler.marker("a"):
            pass
        flush(profiler)
    assert list(tmp_path.iterdir()) == []


def test_hooks_are_set_back_when_the_profiler_stops_or_does_not_start(tmp_path: Path) -> None:
    before = hooks()
    recorder, second = (
        FlightRecorder(tmp_path / name, on_signal=signal.SIGUSR1, excepthooks=True)
        for name in ("d{dump}.json", "e{dump}.json")
    )
    with Profiler([recorder, second]):
        pass
    assert hooks() == before
    with started(recorder):
        assert all(one is not other for one, other in zip(hooks(), before, strict=True))
    assert hooks() == before
    recorder = FlightRecorder(tmp_path / "d{dump}.json", on_signal=signal.SIGUSR1, excepthooks=True)
    other = JSONTraceHandler(tmp_path / "d.json")
    (tmp_path / "d.json").write_text("")
    with pytest.raises(ConfigError):
        Profiler([recorder, other], rank=0).start()
    assert hooks() == before


Signals = list[str]


@pytest.fixture
def signals() -> Iterator[Signals]:
    """Calls of a handler of SIGUSR1 that somebody has set before."""
    calls: Signals = []
    previous = signal.signal(signal.SIGUSR1, lambda *_: calls.append("first"))
    yield calls
    signal.signal(signal.SIGUSR1, previous)


def test_a_signal_dumps_once_and_the_handler_before_is_called(tmp_path: Path, signals: Signals) -> None:
    recorder = FlightRecorder(tmp_path / "d{dump}.json", on_signal=signal.SIGUSR1)
    with started(recorder) as profiler:
        for count in (1, 2):
            signal.raise_signal(signal.SIGUSR1)
            for _ in range(3):
                flush(profiler)
            assert len(recorder.paths) == count
            assert len(signals) == count
    assert reasons(recorder) == ["signal SIGUSR1"] * 2
    signal.raise_signal(signal.SIGUSR1)
    assert len(signals) == 3


def test_a_handler_set_later_stays_and_may_call_the_one_before(tmp_path: Path, signals: Signals) -> None:
    recorder = FlightRecorder(tmp_path / "d{dump}.json", on_signal=signal.SIGUSR1)
    with started(recorder):
        ours: Any = signal.getsignal(signal.SIGUSR1)

        def later(number: int, frame: Any) -> None:
            signals.append("later")
            ours(number, frame)

        signal.signal(signal.SIGUSR1, later)
    assert signal.getsignal(signal.SIGUSR1) is later
    signal.raise_signal(signal.SIGUSR1)
    assert signals == ["later", "first"]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe for numbers of signals. Afterwards no wakeup descriptor is set."""
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    yield ends
    signal.set_wakeup_fd(-1)
    for end in ends:
        os.close(end)


def test_a_wakeup_descriptor_of_somebody_else_is_left_alone(tmp_path: Path, pipe: tuple[int, int]) -> None:
    assert signal.set_wakeup_fd(pipe[1]) == -1
    recorder = FlightRecorder(tmp_path / "d{dump}.json", on_signal=signal.SIGUSR1)
    with started(recorder) as profiler:
        signal.raise_signal(signal.SIGUSR1)
        flush(profiler)
        assert reasons(recorder) == ["signal SIGUSR1"]
    assert os.read(pipe[0], 10) == bytes([signal.SIGUSR1])
    assert signal.set_wakeup_fd(-1) == pipe[1]


def test_a_wakeup_descriptor_set_later_is_kept_and_the_python_handler_takes_over(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    recorder = FlightRecorder(tmp_path / "d{dump}.json", on_signal=signal.SIGUSR1)
    with started(recorder) as profiler:
        ours = signal.set_wakeup_fd(pipe[1])
        signal.raise_signal(signal.SIGUSR1)
        flush(profiler)
        assert reasons(recorder) == ["signal SIGUSR1"]
    assert signal.set_wakeup_fd(-1) == pipe[1]
    os.fstat(ours)  # still open: who took it may put it back
    os.close(ours)


def test_a_signal_that_ends_the_process_or_a_start_on_another_thread_is_refused(tmp_path: Path) -> None:
    before = hooks()
    recorder = FlightRecorder(tmp_path / "d{dump}.json", on_signal=signal.SIGTERM)
    with pytest.raises(ConfigError, match="what SIGTERM does by itself would change"):
        started(recorder).start()
    with ThreadPoolExecutor(1) as pool, pytest.raises(ConfigError, match="main thread"):
        pool.submit(SignalTrigger(signal.SIGUSR1).install).result()
    assert hooks() == before


def test_a_signal_that_was_noticed_while_the_main_thread_hung_is_not_noticed_again_when_it_comes_to_it() -> None:
    trigger = SignalTrigger(signal.SIGUSR1)
    trigger.install()
    try:
        assert trigger._pipe is not None
        for number in (signal.SIGUSR1, signal.SIGCHLD, signal.SIGUSR1):
            trigger._pipe.write(number)  # what the C handler does
        assert trigger.arrived()
        assert not trigger.arrived()
        trigger._handler(signal.SIGUSR1, None)
        assert not trigger.arrived()
        signal.raise_signal(signal.SIGUSR1)
        assert trigger.arrived()
        assert not trigger.arrived()
        trigger._pipe.write(signal.SIGCHLD)
        assert not trigger.arrived()
    finally:
        trigger.remove()


def test_a_trigger_removed_on_another_thread_gives_the_signal_its_meaning_back(signals: Signals) -> None:
    trigger = SignalTrigger(signal.SIGUSR1)
    trigger.install()
    thread = threading.Thread(target=trigger.remove)
    thread.start()
    thread.join()
    signal.raise_signal(signal.SIGUSR1)
    assert signals == ["first"]

    trigger._release_pipe()


def test_an_uncaught_exception_in_a_thread_is_dumped_and_the_hook_before_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    recorder = FlightRecorder(tmp_path / "d{dump}.json", excepthooks=True)
    with started(recorder) as profiler:
        for _ in range(3):
            thread = threading.Thread(target=lambda: 1 / 0, name="loader")
            thread.start()
            thread.join()
            flush(profiler)
    # Further ones within a minute are not dumped.
    assert reasons(recorder) == ["exception in thread loader: ZeroDivisionError: division by zero"]
    assert len(seen) == 3


def test_an_exception_in_a_forked_child_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = FlightRecorder(tmp_path / "d{dump}.json", excepthooks=True)
    with started(recorder):
        pid = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: pid + 1)
        recorder._uncaught(ValueError("x"), True)
        recorder._uncaught(ValueError("x"), False)
        assert not recorder._requests
        monkeypatch.undo()


def test_exception_hooks_set_later_are_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(sys, "excepthook", lambda *_: calls.append("first"))
    monkeypatch.setattr(threading, "excepthook", lambda _: calls.append("first of threads"))
    trigger = ExceptionTrigger(lambda error, _: calls.append(f"noticed {error}"))
    trigger.install()
    ours = sys.excepthook

    def later(*args: Any) -> None:
        calls.append("later")
        ours(*args)

    sys.excepthook = later
    error = ValueError("x")
    sys.excepthook(ValueError, error, None)
    assert calls == ["later", "noticed x", "first"]
    trigger.remove()
    assert sys.excepthook is later
    calls.clear()
    sys.excepthook(ValueError, error, None)
    assert calls == ["later", "first"]
