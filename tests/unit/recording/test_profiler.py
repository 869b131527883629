"""Profiler: the training loop, the schedule, windows, sources, handlers, failures."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import tracekit
from tracekit import (
    ConfigError,
    HandlerError,
    MemoryTraceHandler,
    Profiler,
    ProfilerAction,
    Source,
    Summary,
    Timestamp,
    TraceHandler,
    active_profiler,
    cyclic_schedule,
)
from tracekit.events import INSTANT, WIDTH, EventBatch, Instant, Label, SliceEnd, Timestamps, Track
from tracekit.recording.batches import Batches
from tracekit.recording.event_order import EventOrder
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tracekit.recording.source import Recorder

S, W, A, V = (
    ProfilerAction.SKIP,
    ProfilerAction.WARMUP,
    ProfilerAction.ACTIVE,
    ProfilerAction.ACTIVE_AND_SAVE,
)


class RecordingSource(Source):
    """Notes what the profiler tells it."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        self.recorder = recorder
        self.told.append(("open", action))

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        self.told.append((finished, action))

    def close(self) -> None:
        self.told.append("close")


class Calls(TraceHandler):
    """Notes every call, and the thread it comes from."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.threads: set[str] = set()

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)

    def process_duration_event(
        self, name: str, categories: Sequence[str], is_start: bool, timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        self._note("B" if is_start else "E", name)

    def process_chrome_json_trace_file(self, filepath: str) -> None:
        self._note("file", filepath)

    def batch_start(self, timestamp: Timestamp) -> None:
        self._note("batch start", int(timestamp.batch))

    def batch_end(self, timestamp: Timestamp) -> None:
        self._note("batch end", int(timestamp.batch))

    def epoch_start(self, timestamp: Timestamp) -> None:
        self._note("epoch start", int(timestamp.epoch))

    def epoch_end(self, timestamp: Timestamp) -> None:
        self._note("epoch end", int(timestamp.epoch))

    def window_end(self, timestamp: Timestamp, wall_clock_time_ns: int) -> None:
        self._note("window end", int(timestamp.batch))


def profiler(*handlers: TraceHandler, **options: Any) -> Profiler:
    options.setdefault("record_batches", False)
    options.setdefault("flush_interval", 3600)
    return Profiler(list(handlers), rank=0, run_id="test", **options)


def test_it_is_active_between_start_and_stop_and_cannot_be_started_again() -> None:
    one = profiler()
    assert active_profiler() is None
    one.start()
    assert active_profiler() is one
    with pytest.raises(ConfigError, match="started before"):
        one.start()
    one.stop()
    one.stop()
    assert active_profiler() is None
    with pytest.raises(ConfigError, match="stopped before"):
        one.start()


def test_step_epoch_and_iteration_advance_the_training_time() -> None:
    clock = FakeClock()
    with profiler(clock=clock.clock) as one:
        clock.monotonic_ns += 2_000_000_000
        one.step(samples=4, tokens=100)
        one.step(samples=2)
        one.next_epoch()
        one.next_iteration()
        now = one.timestamp
    assert (int(now.batch), int(now.sample), int(now.token), int(now.epoch), int(now.iteration)) == (2, 6, 100, 1, 1)
    assert int(now.batch_in_epoch) == 0
    assert now.total_wct.total_seconds() == 2.0


@pytest.mark.parametrize("count", [-1, 2.5, None, "x"])
def test_a_wrong_count_is_reported_and_the_batch_counted_all_the_same(count: Any) -> None:
    with profiler() as one:
        one.step(samples=count)
        assert (int(one.timestamp.batch), int(one.timestamp.sample)) == (1, 0)
        assert one.stats.failures == {"step": 1}


def hooks_of(calls: Calls) -> list[str]:
    return [f"{name} {number}" for name, number in calls.calls if name not in ("B", "E", "window end")]


@pytest.mark.parametrize("batches", [2, 0])
def test_hooks_of_batches_and_epochs_that_do_not_happen_are_not_called(batches: int) -> None:
    calls = Calls()
    with profiler(calls) as one:
        for _ in range(2):
            for _ in one.iterate(range(batches), "loader"):
                one.marker("loss").counter({"loss": 1.0})
                one.step()
            one.next_epoch()
        one.marker("loss").counter({"loss": 1.0})
        one.next_epoch()  # without a batch in it
        one.next_iteration()
        one.flush()
    found = [f"{name} {number}" for name, number in calls.calls if name not in "BE"]
    # Without a schedule, an epoch is a window.
    assert (found if batches else hooks_of(calls)) == [
        *(
            "epoch start 0",
            "batch start 0",
            "batch end 1",
            "batch start 1",
            "batch end 2",
            "epoch end 1",
            "window end 2",
        ),
        *(
            "epoch start 1",
            "batch start 2",
            "batch end 3",
            "batch start 3",
            "batch end 4",
            "epoch end 2",
            "window end 4",
        ),
    ][: 7 * batches]
    assert calls.threads == {"tracekit-writer Calls"}


def test_a_slice_of_a_source_between_batches_begins_no_batch() -> None:
    class Exports(RecordingSource):
        def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
            with self.recorder.marker("export"):
                pass

    calls = Calls()
    with profiler(calls, sources=Exports()) as one:
        for _ in range(2):
            with one.marker("work"):
                pass
            one.step()
        one.next_epoch()
    assert hooks_of(calls) == [
        *("epoch start 0", "batch start 0", "batch end 1", "batch start 1", "batch end 2", "epoch end 1"),
    ]


@pytest.mark.parametrize("how", ["slice", "open slice", "instant", "fetch", "begin_batch", "step"])
def test_a_batch_starts_at_the_first_event_of_the_training_thread_or_with_its_value(how: str) -> None:
    calls = Calls()
    with profiler(calls) as one:
        marker = one.marker("m")
        one.step()
        marker.counter({"x": 1})
        thread = threading.Thread(target=marker.instant)
        thread.start()
        thread.join()
        one.flush()
        assert hooks_of(calls) == ["epoch start 0", "batch start 0", "batch end 1"]
        if how == "slice":
            with marker:
                pass
        elif how == "open slice":
            marker.start()
        elif how == "instant":
            marker.instant()
        elif how == "fetch":
            next(iter(one.iterate([1])))
        elif how == "begin_batch":
            one.begin_batch()
            one.begin_batch()
        else:
            one.step()
        one.flush()
        assert hooks_of(calls)[3:] == ["batch start 1"] + ["batch end 2"] * (how == "step")
        assert how in ("begin_batch", "step") or ("B", "m") not in calls.calls[: calls.calls.index(("batch start", 1))]
    assert hooks_of(calls).count("batch start 1") == 1


def test_a_loader_that_fails_raises_and_starts_no_batch_but_the_next_event_does() -> None:
    def broken() -> Any:
        yield 1
        raise OSError("gone")

    calls = Calls()
    with profiler(calls) as one:
        batches = one.iterate(broken())
        next(batches)
        one.step()
        with pytest.raises(OSError, match="gone"):
            next(batches)
        one.flush()
        assert hooks_of(calls) == ["epoch start 0", "batch start 0", "batch end 1"]
        one.marker("m").instant()
    assert hooks_of(calls)[3:] == ["batch start 1"]


def test_no_window_opens_for_a_batch_that_does_not_come() -> None:
    source = RecordingSource()
    schedule = cyclic_schedule(wait=0, warmup=0, active=2, repeat=0, per="run")
    with profiler(schedule=schedule, sources=source) as one:
        for _ in one.iterate(range(4), "loader"):
            one.step()
    assert source.told == [("open", A), (A, V), (V, A), (A, V), (V, A), (S, S), "close"]
    for how in ("no step", "an event", "an error"):
        source = RecordingSource()
        one = profiler(schedule=schedule, sources=source)
        try:
            with one:
                if how != "no step":
                    one.step()
                    one.step()
                if how == "an event":
                    one.marker("m").instant()
                if how == "an error":
                    raise KeyError  # the batch that failed is worth keeping
        except KeyError:
            pass
        assert source.told[-2:] == [("open", A) if how == "no step" else (V, A), "close"], how


def test_iterate_yields_everything_and_records_the_waiting() -> None:
    memory = MemoryTraceHandler()
    with profiler(memory) as one:
        assert list(one.iterate(iter([1, 2, 3]), "loader", categories=["data"])) == [1, 2, 3]
    assert [start.label.name for start, _ in memory.slices] == ["loader"] * 4, "the end is asked for as well"
    assert memory.slices[0][0].label.categories == ("data",)


def run_loop(one: Profiler, epochs: int, batches: int, *, sized: bool) -> None:
    with one:
        for _ in range(epochs):
            loader = range(batches)
            for _ in one.iterate(loader if sized else iter(loader)):
                with one.marker("work"):
                    pass
                one.step()
            one.next_epoch()


def test_one_schedule_drives_markers_and_sources_and_every_window_is_saved() -> None:
    source, calls = RecordingSource(), Calls()
    one = profiler(calls, schedule=cyclic_schedule(wait=1, warmup=1, active=2, repeat=2), sources=source)
    run_loop(one, epochs=2, batches=10, sized=True)
    one_epoch = [(S, W), (W, A), (A, V), (V, S), (S, W), (W, A), (A, V), (V, S), (S, S), (S, S)]
    assert source.told == [("open", S), *one_epoch, *one_epoch, "close"]
    assert [call[1] for call in calls.calls if call[0] == "window end"] == [4, 8, 14, 18]
    assert len([call for call in calls.calls if call == ("B", "work")]) == 12, "warm-up and active batches"


@pytest.mark.parametrize(
    ("schedule", "epochs", "sized", "told", "ends"),
    [
        (cyclic_schedule(warmup=1, active=4, repeat=0), 1, True, [W, (W, A), (A, V), (V, S), (S, W)], [3]),
        (cyclic_schedule(warmup=1, active=4, repeat=0), 1, False, [W, (W, A), (A, A), (A, A), (V, W)], [3]),
        (
            cyclic_schedule(warmup=0, active=4, repeat=1, per="run"),
            2,
            True,
            [A, (A, A), (A, A), (A, V), (V, S), (S, S), (S, S)],
            [4],
        ),
        # The window of the batch that does not come is ended without one.
        (None, 2, True, [A, (A, A), (A, A), (A, A), (V, A), (A, A), (A, A), (A, A), (V, A), (S, S)], [3, 6]),
        (lambda at: A if int(at.batch) in (0, 1) else S, 1, True, [A, (A, A), (V, S), (S, S)], [2]),
    ],
    ids=["epoch of known length", "epoch of unknown length", "per run", "no schedule", "the user's own drops it"],
)
def test_a_window_that_is_cut_short_is_saved(
    schedule: Any, epochs: int, sized: bool, told: list[Any], ends: list[int]
) -> None:
    source, calls = RecordingSource(), Calls()
    run_loop(profiler(calls, schedule=schedule, sources=source), epochs=epochs, batches=3, sized=sized)
    assert source.told == [("open", told[0]), *told[1:], "close"]
    assert [call[1] for call in calls.calls if call[0] == "window end"] == ends


@pytest.mark.parametrize(("duration", "expected_s"), [(timedelta(seconds=5), 5), (timedelta(seconds=-1), 2), (None, 2)])
def test_the_loop_may_say_how_long_a_batch_took(duration: timedelta | None, expected_s: int) -> None:
    clock = FakeClock()
    with profiler(clock=clock.clock) as one:
        clock.monotonic_ns += 2_000_000_000
        one.step(duration=duration)
        assert one.timestamp.batch_wct == timedelta(seconds=expected_s)
        assert bool(one.stats.failures) is (duration is not None and duration < timedelta(0))


@pytest.mark.parametrize("how", ["restart_batch", "resume_at"])
def test_what_was_no_training_is_left_out_of_a_batch_that_begins_again(how: str) -> None:
    clock, memory = FakeClock(), MemoryTraceHandler()
    with profiler(memory, clock=clock.clock, record_batches=True) as one:
        clock.advance(5_000_000_000)  # the framework sets itself up
        if how == "restart_batch":
            one.restart_batch()
        else:
            one.resume_at(one.timestamp)
        clock.advance(2_000_000_000)
        one.step()
        assert one.timestamp.batch_wct == one.timestamp.total_wct == timedelta(seconds=2)
    ((start, end),) = memory.slices
    assert (start.label.name, start.track.name) == ("batch", "training loop")
    assert end.wall_clock_time_ns - start.wall_clock_time_ns == 2_000_000_000


@pytest.mark.parametrize("when", ["made", "before the start", "while it runs"])
def test_a_resumed_run_counts_on_and_its_schedule_from_where_it_was_resumed_in_that_epoch_only(when: str) -> None:
    source, calls, memory = RecordingSource(), Calls(), MemoryTraceHandler()
    resumed = Timestamp(epoch=1, batch=13, batch_in_epoch=3, sample=130)
    one = profiler(
        *(calls, memory),
        schedule=cyclic_schedule(skip_first=1, warmup=1, active=1),
        sources=source,
        timestamp=resumed if when == "made" else None,
    )
    if when == "before the start":
        one.resume_at(resumed)
    assert not one.started
    with one:
        if when == "while it runs":
            one.resume_at(resumed)
        one.begin_batch()
        for _ in range(4):
            one.step(samples=10)
            one.marker("m").instant()
        one.next_epoch()
        for _ in range(3):
            one.step()
    assert source.told == [
        ("open", S), (S, W), (W, V), (V, S), (S, S), (S, W), (W, V), (V, S), "close",
    ]  # fmt: skip
    assert calls.calls[1] == ("batch start", 13)
    now = memory.events[0].timestamp
    assert (int(now.epoch), int(now.batch), int(now.batch_in_epoch), int(now.sample)) == (1, 14, 4, 140)


@pytest.mark.parametrize("returned", [None, "active", 3])
def test_a_schedule_that_fails_or_returns_nonsense_later_skips_and_is_reported(
    returned: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one = profiler(schedule=lambda timestamp: returned if timestamp.batch > 0 else A)
    with one:
        one.step()
        assert one.action is S
        one.step()
        assert one.stats.failures == {"schedule": 2}
    assert "not a ProfilerAction" in caplog.text


def of_a_composer_state(state: Any) -> ProfilerAction:
    return A if state.timestamp.batch < 5 else S


def of_nothing() -> ProfilerAction:
    return A


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (of_a_composer_state, "raised AttributeError: 'Timestamp' object has no attribute 'timestamp'"),
        (of_nothing, "raised TypeError: "),
        (lambda timestamp: "active", "returned 'active', which is not a ProfilerAction"),
        (lambda timestamp: None, "returned None, which is not a ProfilerAction"),
        (tracekit.on_demand(base=of_a_composer_state), "raised AttributeError: "),
    ],
)
def test_a_schedule_that_cannot_be_asked_stops_the_start_and_the_fix_is_named(
    schedule: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    one = profiler(calls, schedule=schedule)
    with pytest.raises(ConfigError) as failed:
        one.start()
    assert words in str(failed.value)
    for fix in ("a function of the Timestamp", "tracekit.cyclic_schedule(", "tracekit.integrations.composer.Profiler"):
        assert fix in str(failed.value)
    assert (calls.calls, active_profiler(), caplog.records) == ([], None, [])


def test_a_schedule_is_asked_once_for_each_batch() -> None:
    asked: list[int] = []

    def schedule(timestamp: Timestamp) -> ProfilerAction:
        asked.append(int(timestamp.batch))
        return A

    with profiler(schedule=schedule) as one:
        one.step()
        one.step()
    assert asked == [0, 1, 2]


@pytest.mark.parametrize("wrap", [lambda schedule: schedule, lambda schedule: tracekit.on_demand(base=schedule)])
def test_a_schedule_of_torch_profiler_counts_the_steps_since_the_start(wrap: Callable[[Any], Any]) -> None:
    torch_profiler = pytest.importorskip("torch.profiler")
    schedule = torch_profiler.schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=1)
    calls, source = Calls(), RecordingSource()
    start = Timestamp(batch=10, batch_in_epoch=10)
    with profiler(calls, schedule=wrap(schedule), sources=source, timestamp=start) as one:
        for batch in range(6):
            if batch == 4:
                one.next_epoch()  # as with torch.profiler, a window goes on over the end of an epoch
            one.step()
    assert source.told == [("open", S), (S, S), (S, W), (W, A), (A, V), (V, S), (S, S), "close"]
    assert [call for call in calls.calls if call[0] == "window end"] == [("window end", 15)]


def test_a_schedule_of_the_timestamp_may_return_actions_of_torch_profiler() -> None:
    torch_profiler = pytest.importorskip("torch.profiler")
    inner = torch_profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with profiler(schedule=lambda timestamp: inner(int(timestamp.batch))) as one:
        actions = [one.action]
        for _ in range(2):
            one.step()
            actions.append(one.action)
    assert actions == [W, V, S]


def test_an_evaluation_in_the_first_batch_does_not_change_the_length_of_the_epoch() -> None:
    schedule = cyclic_schedule(warmup=0, active=1, repeat=0)
    actions: list[ProfilerAction] = []
    with profiler(schedule=schedule) as one:
        for _ in range(2):
            for _ in one.iterate(range(4)):
                assert list(one.iterate(range(2), "evaluation")) == [0, 1]
                actions.append(one.action)
                one.step()
            one.next_epoch()
    assert actions == [V] * 8


@pytest.mark.parametrize("error", [NotImplementedError, TypeError])
def test_iterate_survives_a_length_that_raises(error: type[Exception]) -> None:
    class Loader(list[int]):
        def __len__(self) -> int:
            raise error

    with profiler() as one:
        assert list(one.iterate(Loader([1, 2]))) == [1, 2]


@pytest.mark.parametrize("waits", ["source", "handler"])
def test_ctrl_c_during_stop_leaves_the_other_steps_to_be_done(waits: str) -> None:
    class Interrupted(RecordingSource):
        def close(self) -> None:
            raise KeyboardInterrupt

    class Waits(TraceHandler):
        def close(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)  # the system interrupts the main thread
            release.wait(60)

    release, memory = threading.Event(), MemoryTraceHandler()
    others = [Waits()] if waits == "handler" else []
    sources = [Interrupted()] if waits == "source" else []
    one = profiler(
        memory, *others, schedule=tracekit.on_demand(None, base=lambda _: A), sources=sources, sigterm_grace=1
    )
    one.start()
    one.marker("a").instant()
    with pytest.raises(KeyboardInterrupt):
        one.stop()
    release.set()
    assert active_profiler() is None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert wait_for(lambda: "tracekit-capture" not in [thread.name for thread in threading.enumerate()])
    assert wait_for(lambda: memory.stats is not None)
    assert len(memory.instants) == 1


def test_a_stop_on_another_thread_lets_no_signal_be_written_into_a_file(tmp_path: Path) -> None:
    previous = signal.signal(signal.SIGUSR1, lambda *_: None)
    one = profiler(sigterm_grace=5)
    one.start()
    assert one._termination is not None
    with ThreadPoolExecutor(1) as pool:
        pool.submit(one.stop).result()
    with ExitStack() as files:
        for number in range(8):  # of which one would get the number of the closed descriptor
            files.enter_context((tmp_path / str(number)).open("wb"))
        signal.raise_signal(signal.SIGUSR1)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b""] * 8
    one._termination._pipe.release()
    one._termination._pipe.close()
    for number, handler in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGUSR1, previous)):
        signal.signal(number, handler)


def test_two_running_profilers_cannot_share_a_handler_and_later_ones_can() -> None:
    memory = MemoryTraceHandler()
    with profiler(memory) as one:
        with pytest.raises(ConfigError, match="MemoryTraceHandler is in use by another Profiler"):
            profiler(memory).start()
        one.marker("a").instant()
    with profiler(memory) as two:
        two.marker("b").instant()
    assert [event.label.name for event in memory.instants] == ["a", "b"]


def test_resume_at_refuses_anything_but_a_timestamp() -> None:
    with profiler() as one, pytest.raises(ConfigError, match="resume_at: timestamp must be a Timestamp, not 5"):
        one.resume_at(5)  # type: ignore[arg-type]


def test_flush_may_wait_for_ever() -> None:
    with profiler(MemoryTraceHandler()) as one:
        assert one.flush(float("inf"))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_was_forked_while_the_writer_began_a_batch_can_iterate() -> None:
    with profiler() as one:
        held, release = threading.Event(), threading.Event()

        def hold() -> None:
            with one._batches.posting():
                held.set()
                release.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(60)
        child = os.fork()
        if not child:  # pragma: no cover - in the child
            signal.alarm(60)  # a hang guard
            os._exit(list(one.iterate([1, 2])) != [1, 2])
        assert os.waitpid(child, 0)[1] == 0
        release.set()
        thread.join()


def test_a_source_that_fails_is_left_alone_but_closed_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(RecordingSource):
        def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
            super().step(finished, action)
            raise RuntimeError("driver gone")

    broken, good = Broken(), RecordingSource()
    with profiler(sources=[broken, good]) as one:
        one.step()
        one.step()
        assert one.stats.failures == {"Broken": 1}
    assert broken.told == [("open", A), (A, A), "close"]
    assert good.told == [("open", A), (A, A), (A, A), "close"]
    assert "driver gone" in caplog.text


def test_a_source_that_cannot_work_stops_the_start_before_anything_runs() -> None:
    class Wrong(RecordingSource):
        def check(self, recorder: Recorder) -> None:
            raise ConfigError("no such device")

    wrong = Wrong()
    with pytest.raises(ConfigError, match="no such device"):
        profiler(sources=wrong).start()
    assert wrong.told == []


def test_a_window_that_ends_while_the_writer_cuts_comes_before_the_events_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class TakesBatches(TraceHandler):
        def process_events(self, batch: EventBatch) -> None:
            order.extend(event.label.name for event in batch if isinstance(event, Instant))

        def window_end(self, timestamp: Timestamp, wall_clock_time_ns: int) -> None:
            order.append(f"end {int(timestamp.batch)}")

    order: list[str] = []
    one = profiler(TakesBatches(), schedule=cyclic_schedule(warmup=0, active=1, repeat=0))
    cutting, recorded = threading.Event(), threading.Event()
    with one:
        writer = one._writer
        assert writer is not None

        def held(batches: Batches) -> Any:
            monkeypatch.undo()
            cutting.set()
            assert recorded.wait(100)
            return batches.running()

        monkeypatch.setattr(Batches, "running", held)  # the writer asks when it has looked at what was posted
        writer._wake.set()
        assert cutting.wait(100)
        for number in range(3):
            one.marker(f"batch {number}").instant()
            one.step()
        recorded.set()
    assert order == ["batch 0", "end 1", "batch 1", "end 2", "batch 2", "end 3"]


def test_a_cut_that_comes_too_late_ends_no_open_slice() -> None:
    early_ns = time.perf_counter_ns()
    memory = MemoryTraceHandler()
    with profiler(memory) as one:
        with one.marker("work"):
            assert one.flush(60)  # its start is delivered
            assert one._writer is not None
            one._writer.post("flush", cut_ns=early_ns)
            assert one.flush(60)
        assert one.flush(60)
    ((start, end),) = memory.slices
    assert start.wall_clock_time_ns <= end.wall_clock_time_ns
    assert (len(memory.events), one.stats.recorded) == (2, 1)


def test_under_strict_the_failure_of_a_handler_reaches_the_training_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(TraceHandler):
        def process_events(self, batch: EventBatch) -> None:
            raise RuntimeError("my disk")

    monkeypatch.setenv("TRACEKIT_STRICT", "1")
    one = profiler(Broken())
    with one:
        one.marker("a").instant()
        with pytest.raises(HandlerError, match="my disk"):
            one.flush()
    with pytest.raises(KeyError) as raised, profiler(Broken()) as one, one.marker("a"):
        raise KeyError
    if sys.version_info >= (3, 11):
        assert raised.value.__notes__ == ["tracekit: Broken.process_events: RuntimeError: my disk"]


def wait_for(condition: Callable[[], object], seconds: float = 100) -> bool:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def test_a_flush_while_the_handlers_are_closed_does_not_wait_for_what_comes_no_more() -> None:
    closing, release = threading.Event(), threading.Event()

    class ClosesLate(TraceHandler):
        def close(self) -> None:
            closing.set()
            release.wait()

    one = profiler(ClosesLate())
    one.start()
    assert one._writer is not None
    stopping = threading.Thread(target=one.stop)
    stopping.start()
    assert closing.wait(60)
    assert wait_for(lambda: one._writer is not None and one._writer._ended)
    flushing = threading.Thread(target=one._writer.flush, args=(120,))
    flushing.start()
    flushing.join(60)
    assert not flushing.is_alive()
    release.set()
    stopping.join()


class Hangs(TraceHandler):
    """Blocks in its first batch until it is released, and keeps what it was given."""

    def __init__(self) -> None:
        self.inside, self.release = threading.Event(), threading.Event()
        self.events: list[Any] = []
        self.summaries: list[Summary] = []

    def process_events(self, batch: EventBatch) -> None:
        self.inside.set()
        self.release.wait()
        self.events += batch

    def summary(self, summary: Summary) -> None:
        self.summaries.append(summary)


def waiting_events(one: Profiler) -> int:
    """Count the events that wait anywhere."""
    assert one._writer is not None
    held = getattr(one._buffer.records, "held_rows", one._buffer._held_events)
    queued = sum(thread.waiting_events for thread in one._writer._handler_threads)
    return len(one._buffer.records) // WIDTH + int(held) + queued


@pytest.mark.parametrize("limit", [{"max_buffered_events": 100}, {"max_buffered_bytes": 100 * 400}])
@pytest.mark.parametrize("on_full", ["drop_newest", "drop_oldest"])
def test_memory_is_bounded_while_a_handler_hangs_and_what_is_dropped_is_counted(
    on_full: str, limit: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    hangs, memory = Hangs(), MemoryTraceHandler()
    one = profiler(hangs, memory, flush_interval=0.4, on_full=on_full, **limit)
    most = 0
    with one:
        one.marker("first").instant()
        assert hangs.inside.wait(100)
        with one.marker("long"):
            for number in range(2000):
                one.marker(str(number)).instant()
                one.marker("n").counter({"a": number, "b": 1})
                most = max(most, waiting_events(one))
                if number % 10 == 9:
                    one._buffer.look_after(time.perf_counter_ns())  # as every event after a flush interval does
        # A writer that is kept from the processor for 50 ms is not waited for any longer.
        assert wait_for(lambda: one._writer is not None and len(one._buffer.records) // WIDTH <= 1)
        assert one._writer is not None
        assert len(one._writer._handler_threads[0]._calls) < 100  # of 200 cuts and requests
        hangs.release.set()
    # Another thread may move events from one queue to the next while they are summed up.
    assert 20 < most <= 2 * limit.get("max_buffered_events", 100 * 400 // 32)
    (summary,) = hangs.summaries
    assert memory.stats is not None
    for counts, events in ((summary, hangs.events), (memory.stats, memory.events)):
        assert counts.recorded == 1 + 1 + 4000
        handled = sum(not isinstance(event, SliceEnd) for event in events)
        assert handled + sum(counts.dropped.values()) == counts.recorded
    assert set(summary.dropped) == {"events beyond " + next(iter(limit))}
    numbers = [int(event.label.name) for event in hangs.events if event.label.name.isdigit()]
    assert min(numbers) == 0 if on_full == "drop_newest" else max(numbers) == 1999
    edges = [type(event).__name__ for event in hangs.events if event.label.name == "long"]
    assert edges == ["SliceBegin", "SliceEnd"], "a slice that was announced has its end"
    assert caplog.text.count("Hangs does not keep up") == 1


def test_of_a_batch_that_does_not_fit_only_what_does_not_fit_is_dropped() -> None:
    hangs = Hangs()
    one = profiler(hangs, flush_interval=60, max_buffered_events=100)
    with one:
        one.marker("first").instant()
        one.flush(timeout=0.01)
        assert hangs.inside.wait(100)
        for number in range(40):
            one.marker(str(number)).instant()
        one.flush(timeout=0.01)
        assert wait_for(lambda: one._writer is not None and one._writer._handler_threads[0].waiting_events == 41)
        for number in range(40, 80):
            one.marker(str(number)).instant()
        one.flush(timeout=0.01)
        assert wait_for(lambda: one._writer is not None and one._writer._handler_threads[0].dropped.total() == 31)
        hangs.release.set()
    # The buffer and the handler have half of the limit each.
    assert [event.label.name for event in hangs.events] == ["first", *map(str, range(49))]
    assert one.stats.dropped == {"events beyond max_buffered_events": 31}


def test_with_on_full_block_and_a_handler_that_never_returns_the_writer_ends_with_the_profiler() -> None:
    hangs = Hangs()
    one = profiler(hangs, flush_interval=0.01, max_buffered_events=10, on_full="block", shutdown_timeout=0.2)
    one.start()
    one.marker("first").instant()
    assert hangs.inside.wait(100)
    for _ in range(5):  # so many that the writer waits for room, and so few that this thread never does
        one.marker("more").instant()
    assert one._writer is not None
    one.stop()
    one._writer._thread.join(100)
    assert not one._writer._thread.is_alive(), "it looks for room no more"
    hangs.release.set()
    assert one._writer._handler_threads[0].join(100)


def test_what_there_was_no_memory_to_take_is_taken_the_next_time_and_not_counted_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = MemoryTraceHandler()
    with profiler(memory) as one:
        take = type(one._buffer).take

        def fails_once(buffer: Any, count: int) -> Any:
            monkeypatch.setattr(type(one._buffer), "take", take)
            raise MemoryError

        monkeypatch.setattr(type(one._buffer), "take", fails_once)
        one.marker("a").instant()
        one.flush()
        one.flush()
        assert [event.label.name for event in memory.instants] == ["a"]
    assert one.stats.dropped == {}
    assert one.stats.failures == {"the writer thread": 1}


def test_a_recording_thread_writes_when_the_writer_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.recording.writer._WAIT_S", 60.0)
    memory = MemoryTraceHandler()
    with profiler(memory, flush_interval=3600) as one:  # the writer sleeps
        one.marker("a").instant()
        assert memory.instants == []
        one._buffer.due_ns = 0
        one.marker("b").instant()
        assert [event.label.name for event in memory.instants] == ["a", "b"]
        one._buffer.due_ns = 0
        with one.marker("c"):
            assert memory.events[-1].label.name == "c", "its start is out before the body runs"
            one._buffer.due_ns = 0
        assert len(memory.slices) == 1


def test_all_methods_of_a_handler_are_called_on_its_own_thread() -> None:
    """Or one that keeps events in SQLite, whose connections are tied to a thread, would fail."""
    called: dict[str, set[int]] = {}

    class Notes(TraceHandler):
        pass

    def note(method: str, result: Any) -> Any:
        def noted(*_: Any) -> Any:
            called.setdefault(method, set()).add(threading.get_ident())
            return result

        return noted

    methods = ("open", "process_instant_event", "stopping", "ending", "losses", "close")
    for method in methods:
        setattr(Notes, method, note(method, {} if method == "losses" else None))
    with profiler(Notes()) as one:
        one.marker("a").instant()
        assert one.stats.dropped == {}
    assert one.stats.failures == {}
    assert set(called) == set(methods)
    (thread,) = set.union(*called.values())
    assert thread != threading.get_ident()


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ConfigError("no"), ConfigError), (OSError("no"), HandlerError), (SystemExit("no"), SystemExit)],
)
def test_an_error_of_open_is_raised_by_start_and_the_other_handlers_are_closed(
    error: BaseException, raised: type[BaseException]
) -> None:
    class Refuses(TraceHandler):
        def open(self, recording: Any) -> None:
            raise error

    class Closes(TraceHandler):
        closed = False

        def close(self) -> None:
            self.closed = True

    other = Closes()
    with pytest.raises(raised, match=r"^(Refuses cannot be opened: )?no"):
        profiler(other, Refuses()).start()
    assert other.closed
    assert active_profiler() is None


def test_an_inline_handler_that_fails_ten_times_in_a_row_is_called_no_more(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Calls):
        inline = True
        fails = True

        def process_counter_event(self, name: str, *args: Any) -> None:
            self._note(name)
            if self.fails:
                raise RuntimeError("no")

    handler = Fails()
    with profiler(handler) as one:
        for number in range(2000):
            handler.fails = number != 9  # the failures before are forgiven
            one.marker("a").counter({"n": 1})
    assert handler.calls == [("a",)] * 20
    assert one.stats.failures == {"Fails.process_counter_event": 19}
    assert caplog.text.count("is left out") == 1
    assert caplog.text.count("Traceback") == 1


def test_what_stop_leaves_behind_is_counted_as_dropped() -> None:
    hangs = Hangs()
    one = profiler(hangs, shutdown_timeout=0.2, record_batches=False, max_buffered_events=1000, flush_interval=0.01)
    with one:
        one.marker("first").instant()
        assert hangs.inside.wait(100)
        for _ in range(100):
            one.marker("n").counter({"n": 1.0})
    stats = one.stats
    assert stats.recorded == 101
    assert stats.dropped == {"events left behind when the profiler stopped": 101}
    hangs.release.set()
    assert one._writer is not None
    assert one._writer._handler_threads[0].join(100)
    # The batch in which it hung was taken after all; the others were not given to it any more.
    assert len(hangs.events) + one.stats.dropped["events left behind when the profiler stopped"] == 101
    assert hangs.summaries[0].dropped == one.stats.dropped


@pytest.mark.parametrize("failures", [9, 10])
def test_a_handler_is_left_out_after_ten_failures_and_its_events_are_counted_for_it_alone(
    failures: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(TraceHandler):
        calls = 0

        def process_events(self, batch: EventBatch) -> None:
            self.calls += 1
            if self.calls <= failures:
                raise OSError("my disk")

    memory = MemoryTraceHandler()
    with profiler(Fails(), memory) as one:
        for _ in range(12):
            one.marker("a").instant()
            one.flush()
        assert one.stats.failures == {"Fails.process_events": failures}
    dropped = {"events on which the trace handler failed": failures}
    if failures == 10:
        dropped["events after the trace handler was left out"] = 2
    assert one.stats.dropped == dropped
    assert len(memory.instants) == 12
    assert memory.stats is not None
    assert memory.stats.dropped == {}
    assert caplog.text.count("OSError: my disk") == 1
    assert caplog.text.count("left out") == failures // 10


def test_an_event_that_comes_late_is_put_into_its_place_within_the_grace_period_and_counted_after_it() -> None:
    batch = EventBatch([], [Label("a"), Label("b"), Label("c")], [Track(1, "t")], Timestamps(Timestamp()), offset_ns=0)
    given: list[str] = []
    order = EventOrder()

    def add(label: int, time_ns: int) -> None:
        order.add_batch(replace(batch, records=(label, time_ns, INSTANT, 0)))

    def deliver(until_ns: int | None) -> None:
        order.deliver(
            until_ns,
            lambda _batch, event, _counts: given.append(event.label.name),
            lambda method, _: given.append(method),
        )

    add(0, 300)
    order.add_hook(200, "batch_end", ())
    deliver(100)
    assert given == []
    add(1, 150)
    deliver(250)
    assert given == ["b", "batch_end"]
    assert order.late == 0
    add(2, 10)
    deliver(None)
    assert given == ["b", "batch_end", "c", "a"]
    assert order.late == 1


def test_a_batch_that_runs_when_recording_ends_is_finished_for_a_handler_of_single_events_and_in_no_file() -> None:
    handler, memory = Calls(), MemoryTraceHandler()

    def edges() -> list[Any]:
        assert one.flush()
        return [call[0] for call in handler.calls if call[1] == "batch"]

    with profiler(handler, memory, record_batches=True) as one:
        one.marker("work").instant()
        one.step()
        assert edges() == ["B", "E"], "no batch has begun"
        one.marker("work").instant()
        assert edges() == ["B", "E", "B"]
    assert [call[0] for call in handler.calls if call[1] == "batch"] == ["B", "E", "B", "E"]
    assert [begin.label.name for begin, _ in memory.slices] == ["batch"]
    assert one.stats.slices == 1


def test_the_slice_of_a_batch_that_waits_for_its_data_starts_after_what_was_delivered_meanwhile() -> None:
    handler = Calls()
    clock = FakeClock(tick_ns=10)

    def values(one: Profiler) -> Any:
        yield 0
        clock.advance(1_000_000_000)
        assert one.flush()  # the slice of the fetch is told, and nobody knows whether the batch comes
        yield 1

    with profiler(handler, clock=clock.clock, record_batches=True) as one:
        for _ in one.iterate(values(one), "fetch"):
            one.step()
    assert [f"{call[0]} {call[1]}" for call in handler.calls if call[0] in "BE"] == [
        *("B batch", "B fetch", "E fetch", "E batch"),
        *("B fetch", "B batch", "E fetch", "E batch"),
        *("B fetch", "E fetch"),
    ]
    assert not one.stats.failures


def test_hooks_for_a_handler_that_blocks_for_ever_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.recording.handler_thread._MOST_CALLS", 50)
    entered, go_on = threading.Event(), threading.Event()

    class Blocks(Calls):
        def batch_end(self, timestamp: Timestamp) -> None:
            entered.set()
            go_on.wait(60)  # a hang guard
            self._note("batch_end", int(timestamp.batch))

    handler = Blocks()
    with profiler(handler, record_batches=False, flush_interval=0.004) as one:
        one.step()
        one.flush(0.0)
        assert entered.wait(60)
        for _ in range(500):
            one.step()
        assert one._writer is not None
        one._writer._await_delivery(60.0, ())  # what there is has been handed on
        assert len(one._writer._handler_threads[0]._calls) < 100
        go_on.set()
    assert 0 < one.stats.failures["Blocks: hooks left out"] < 1002


def test_the_writer_never_waits_for_a_thread_that_was_interrupted_while_it_began_a_batch() -> None:
    handler = Calls()
    with profiler(handler) as one:
        assert one._writer is not None
        with one._batches._lock:  # as a signal handler finds it, or Ctrl-C leaves it
            one.marker("work").instant()
            assert one.flush(60.0)  # a hang guard
            one.step()
    assert hooks_of(handler) == ["epoch start 0", "batch start 0", "batch end 1"]
