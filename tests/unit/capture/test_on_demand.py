"""The schedule that is asked to record: by a call, a file, a signal; in one process."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import (
    ConfigError,
    JSONTraceHandler,
    MemoryTraceHandler,
    Profiler,
    ProfilerAction,
    Source,
    StorageError,
    Timestamp,
    cyclic_schedule,
    on_demand,
)
from tracekit.capture.control_folder import CaptureState, CaptureStatus, ControlFolder, RankStatus, Request
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RARELY = 3600.0
"""A thread that looks once; then the test looks, when it wants to."""


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline, f"in vain: {what}"
        threading.Event().wait(0.005)
    return found


class Job:
    """A profiler with a schedule that is asked, and the one who asks."""

    def __init__(self, folder: Path, *, rank: int = 0, world_size: int = 1, **options: Any) -> None:
        self.handler = MemoryTraceHandler()
        self.trace = JSONTraceHandler(folder / "rank{rank}-{batch}.json")
        self.schedule = on_demand(folder / "control", look_interval=RARELY, **options)
        self.profiler = Profiler([self.handler, self.trace], self.schedule, rank=rank, world_size=world_size)
        self.control = ControlFolder(folder / "control")
        self.rank = rank

    def __enter__(self) -> Job:
        self.profiler.start()
        wait_for(lambda: (self.control.path / "ranks").is_dir() and self.control.statuses(), "the first status")
        return self

    def __exit__(self, *_: object) -> None:
        self.profiler.stop()

    def ask(self, **fields: Any) -> str:
        request = Request(**fields)
        self.control.write(request)
        self.look()
        return request.id

    def look(self) -> None:
        self.schedule._poll()

    def step(self, batches: int = 1) -> list[str]:
        """Run some batches; return their actions."""
        actions = []
        for _ in range(batches):
            actions.append(self.profiler.action.value)
            with self.profiler.marker("forward"):
                pass
            self.profiler.step()
        return actions

    @property
    def status(self) -> RankStatus:
        self.profiler.flush()
        self.look()
        return self.control.statuses()[self.rank]

    @property
    def capture(self) -> CaptureStatus:
        found = self.status.capture
        assert found is not None
        return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path) as started:
        yield started


def test_a_request_records_its_batches_and_the_files_are_named(job: Job, tmp_path: Path) -> None:
    assert job.step(3) == ["skip"] * 3
    asked = job.ask(steps=2)
    assert job.capture.state == CaptureState.WAITING
    assert job.step(4) == ["skip", "active", "active_and_save", "skip"]
    done = job.capture
    assert (done.id, done.state, done.first_batch, done.last_batch) == (asked, CaptureState.DONE, 4, 5)
    assert done.files == (str(tmp_path / "rank0-4.json"),) == tuple(job.schedule.files)
    assert [int(begin.timestamp.batch) for begin, _ in job.handler.slices if begin.label.name == "forward"] == [4, 5]


def test_a_capture_from_inside(job: Job) -> None:
    assert job.profiler.capture(steps=2)
    assert job.schedule.capturing
    assert not job.profiler.capture(steps=2), "one is in force"
    assert job.step(4) == ["skip", "active", "active_and_save", "skip"]
    assert job.capture.state == CaptureState.DONE
    assert not job.schedule.capturing


def test_no_capture_begins_while_the_run_ends() -> None:
    class Late(MemoryTraceHandler):
        def close(self) -> None:
            wait_for(lambda: schedule._is_stopping, "the end of the run is known")
            accepted.append(schedule.capture())

    accepted: list[bool] = []
    schedule = on_demand(None)
    with Profiler(Late(), schedule):
        pass
    assert (accepted, schedule.capturing) == ([False], False)


def test_wrong_arguments_are_named(job: Job, tmp_path: Path) -> None:
    for wrong in ({"steps": -1}, {"steps": True}, {"seconds": 0}, {"seconds": float("nan")}, {"warmup": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            job.profiler.capture(**wrong)  # type: ignore[arg-type]
    for wrong in ({"steps": 0}, {"warmup": -1}, {"max_seconds": 0}, {"look_interval": "1"}, {"base": 3}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            on_demand(tmp_path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="all ranks see"):
        on_demand("s3://bucket/control")
    with pytest.raises(ConfigError, match="needs on_signal"):
        on_demand(tmp_path, signal_all_ranks=True)
    with pytest.raises(ConfigError, match="in use by another Profiler"):
        Profiler(schedule=job.schedule)
    with pytest.raises(ConfigError, match="can be asked"):
        Profiler().capture()


def test_a_folder_that_cannot_be_made_stops_the_profiler_from_starting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="control folder"):
        Profiler(schedule=on_demand(tmp_path / "file" / "control")).start()


def test_a_start_that_nobody_tells_is_given_up(tmp_path: Path) -> None:
    clock = FakeClock()
    with Job(tmp_path, clock=clock.clock) as job:
        job.ask(together=True, expires=clock.wall_ns / 1e9 + 5)
        assert job.capture.state == CaptureState.ACKNOWLEDGED
        clock.advance(6_000_000_000)
        job.look()
        job.step(1)
        assert job.capture.state == CaptureState.CANCELLED
        assert job.capture.note == "nobody has said when to start"
        job.ask(steps=1)
        assert job.step(2) == ["skip", "active_and_save"]


def test_requests_that_come_too_late_or_while_one_is_in_force_are_refused(tmp_path: Path) -> None:
    clock = FakeClock()
    with Job(tmp_path, clock=clock.clock, steps=3) as job:
        late = job.ask(steps=1, expires=clock.wall_ns / 1e9 - 60)
        assert job.step(3) == ["skip"] * 3
        refused = job.status.refused
        assert refused is not None
        assert refused[0] == late
        assert "older" in refused[1]
        first = job.ask()
        assert job.step(2) == ["skip", "active"]
        second = job.ask(steps=1)
        assert job.status.refused == (second, "another capture is in force on this rank")
        assert job.step(4) == ["active", "active_and_save", "skip", "skip"], "as long as the schedule says"
        assert (job.capture.id, job.capture.state) == (first, CaptureState.DONE)


def test_a_capture_ends_at_a_request_or_after_a_longest_time(tmp_path: Path) -> None:
    clock = FakeClock()
    with Job(tmp_path, clock=clock.clock, max_seconds=10) as job:
        job.ask(steps=0)
        assert job.step(3) == ["skip", "active", "active"]
        job.ask(stop=True)
        assert job.step(2) == ["active", "skip"]
        assert (job.capture.state, job.capture.first_batch, job.capture.last_batch) == (CaptureState.DONE, 1, 3)
        for length in ({"steps": 0}, {"seconds": 1000.0}):
            job.ask(**length)
            assert job.step(5)[1:] == ["active"] * 4
            clock.advance(11_000_000_000)
            assert job.step(2) == ["active", "skip"]
            assert job.capture.state == CaptureState.DONE


@pytest.mark.parametrize("asks_who_is_there", [False, True])
def test_a_request_that_was_there_before_the_run_is_served_only_if_it_just_asks_who_is_there(
    tmp_path: Path, asks_who_is_there: bool
) -> None:
    control = ControlFolder(tmp_path / "control")
    control.make()
    options = {"together": True, "expires": time.time() + 60} if asks_who_is_there else {}
    control.write(Request(id="old", steps=1, **options))  # type: ignore[arg-type]
    with Job(tmp_path) as job:
        job.look()
        assert (job.status.capture is not None) is asks_who_is_there
        assert job.step(3) == ["skip"] * 3


def test_the_end_of_the_run_saves_what_is_there(tmp_path: Path) -> None:
    with Job(tmp_path) as job:
        job.ask(steps=100)
        job.step(4)
    status = job.control.statuses()[0]
    assert status.capture is not None
    assert (status.capture.state, status.capture.first_batch, status.capture.last_batch) == (CaptureState.DONE, 1, 4)
    assert status.capture.note == "the run ended"
    assert status.capture.files == (str(tmp_path / "rank0-1.json"),)
    assert not status.listening


def test_a_capture_goes_on_over_the_end_of_an_epoch(job: Job) -> None:
    job.ask(steps=4)
    actions = []
    for _ in range(3):
        for _ in job.profiler.iterate([1, 2]):
            actions += job.step()
        job.profiler.next_epoch()
    assert actions == ["skip", "active", "active", "active", "active_and_save", "skip"]
    assert (job.capture.first_batch, job.capture.last_batch) == (1, 4)
    assert len(job.trace.paths) == 1


@pytest.mark.parametrize(
    ("base", "before", "after", "captured", "files"),
    [
        ({"wait": 2, "active": 2, "repeat": 2}, "--as", "-sas-", [5, 5], [2, 5, 6]),
        ({"active": 8, "repeat": 1}, "aa", "asasas", [4, 5], [0, 4, 6]),
    ],
    ids=["goes on beside it", "is saved before it"],
)
def test_a_window_of_the_base_schedule(
    base: dict[str, int], before: str, after: str, captured: list[int], files: list[int], tmp_path: Path
) -> None:
    letters = {"skip": "-", "active": "a", "active_and_save": "s"}
    with Job(tmp_path, base=cyclic_schedule(warmup=0, per="run", **base)) as job:
        assert "".join(letters[action] for action in job.step(len(before))) == before
        assert job.profiler.capture(steps=captured[1] - captured[0] + 1)
        assert "".join(letters[action] for action in job.step(len(after))) == after
        assert job.capture.files == (str(tmp_path / f"rank0-{captured[0]}.json"),)
    assert [Path(path).name for path in job.trace.paths] == [f"rank0-{batch}.json" for batch in files]


def test_a_base_schedule_learns_the_length_of_an_epoch() -> None:
    schedule = on_demand(None, base=cyclic_schedule(warmup=0, active=5))
    with Profiler(schedule=schedule) as profiler:
        actions = []
        for _ in profiler.iterate([1, 2, 3]):
            actions.append(profiler.action.value)
            profiler.step()
        assert profiler.schedule is schedule
    assert actions == ["active", "active", "active_and_save"]


def test_a_base_schedule_may_return_actions_of_torch_profiler(tmp_path: Path) -> None:
    torch_profiler = pytest.importorskip("torch.profiler")
    with Job(tmp_path, base=lambda _: torch_profiler.ProfilerAction.RECORD) as job:
        job.step(2)
        assert job.profiler.capture(steps=1)
        assert job.step(3) == ["active", "active_and_save", "active_and_save"]


def test_a_base_schedule_counts_from_where_a_run_was_resumed() -> None:
    def resumed(**options: Any) -> Profiler:
        return Profiler(schedule=on_demand(None, base=cyclic_schedule(warmup=0, active=1)), **options)

    second_epoch = Timestamp(epoch=1, batch=2, batch_in_epoch=2)
    with resumed(timestamp=second_epoch) as profiler:
        assert profiler.action is ProfilerAction.ACTIVE_AND_SAVE
    with resumed() as profiler:
        profiler.step()
        assert profiler.action is ProfilerAction.SKIP
        profiler.resume_at(second_epoch)
        assert profiler.action is ProfilerAction.ACTIVE_AND_SAVE


def test_an_epoch_ends_a_window_of_the_base_schedule_but_not_a_capture(tmp_path: Path) -> None:
    with Job(tmp_path, base=cyclic_schedule(warmup=0, active=10, repeat=0)) as job:
        job.step(2)
        job.profiler.next_epoch()
        job.step(2)
        job.profiler.next_epoch()
    assert [Path(path).name for path in job.trace.paths] == ["rank0-0.json", "rank0-2.json"]


@pytest.mark.parametrize(
    ("name", "flush_interval", "files"),
    [("all.json.gz", 1.0, ["all.json"] * 2), ("{batch}.json.gz", 0.01, ["1.json.gz", "4.json.gz"])],
    ids=["one of the run, plain as long as it is written to", "packed"],
)
def test_a_capture_is_done_when_its_files_are(
    tmp_path: Path, name: str, flush_interval: float, files: list[str]
) -> None:
    schedule = on_demand(None, steps=1, look_interval=0.01)
    with Profiler(JSONTraceHandler(tmp_path / name), schedule, flush_interval=flush_interval) as profiler:
        for file in files:
            profiler.capture()
            for _ in range(3):
                profiler.step()
            wait_for(lambda: not schedule.capturing, "the capture is done")
            assert schedule.files == [str(tmp_path / file)]
            assert (tmp_path / file).is_file()


def test_a_capture_after_a_week_does_not_begin_with_a_week_of_clock_readings(job: Job) -> None:
    anchor = FakeClock().clock.anchor()
    for _ in range(10_000):
        job.trace.clock_anchor(anchor, None)
    job.ask(steps=1)
    job.step(3)
    (file,) = job.capture.files
    assert Path(file).read_text().count("tracekit_clock_anchor") <= 100


def test_sources_get_a_batch_to_warm_up_by_default(tmp_path: Path) -> None:
    seen = []

    class Sees(Source):
        def open(self, recorder: Any, action: ProfilerAction) -> None: ...
        def close(self) -> None: ...
        def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
            seen.append(action.value)

    schedule = on_demand(None, look_interval=0.01)
    with Profiler(schedule=schedule, sources=Sees()) as profiler:
        for options in ({"steps": 1}, {"steps": 1, "warmup": 0}):
            profiler.capture(**options)
            for _ in range(3):
                profiler.step()
            wait_for(lambda: not schedule.capturing, "the capture is done")
    assert seen == ["warmup", "active_and_save", "skip", "active_and_save", "skip", "skip"]


def test_wrong_requests_are_logged_a_few_times_and_do_no_harm(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="tracekit"):
        for number in range(30):
            (job.control.path / "request.json").write_text("{" * (number + 1))
            (job.control.path / "request.json").chmod(0o600)
            job.look()
            job.look()
    assert 1 <= len(caplog.records) <= 5
    assert "refused" in caplog.text
    job.ask(steps=1)
    assert job.step(2) == ["skip", "active_and_save"]


def test_a_folder_that_is_removed_comes_back(job: Job) -> None:
    for path in sorted(job.control.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    job.control.path.rmdir()
    assert job.status.listening
    job.ask(steps=1)
    assert job.step(2) == ["skip", "active_and_save"]


def test_a_file_system_that_hangs_holds_up_neither_a_step_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, go_on = threading.Event(), threading.Event()

    def hang(_: ControlFolder) -> None:
        hangs.set()
        go_on.wait(60)

    monkeypatch.setattr(ControlFolder, "read_request", hang)
    monkeypatch.setattr("tracekit.capture.on_demand._JOIN_S", 0.2)
    profiler = Profiler(MemoryTraceHandler(), on_demand(tmp_path / "control", look_interval=0.01, steps=1))
    profiler.start()
    try:
        assert hangs.wait(60)
        assert profiler.capture()
        profiler.step()
        assert profiler.action is ProfilerAction.ACTIVE_AND_SAVE
        profiler.step()
        assert profiler.flush()
        profiler.stop()
        thread = next(thread for thread in threading.enumerate() if thread.name == "tracekit-capture")
        assert thread.daemon
        assert thread.is_alive()
    finally:
        go_on.set()
        profiler.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_a_fault_of_the_listener_is_reported_once_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(_: ControlFolder) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ControlFolder, "read_request", explode)
    with Profiler(schedule=on_demand(tmp_path / "control", look_interval=0.001), flush_interval=0.001) as profiler:
        wait_for(lambda: profiler.stats.failures, "a failure that is counted")
        for _ in range(20):
            profiler.flush()
    assert profiler.stats.failures == {"OnDemand.flush": 1}
    assert caplog.text.count("ZeroDivisionError") <= 2


@pytest.fixture
def usr2() -> Iterator[list[int]]:
    """A handler that was there before, and the signals that it got."""
    got: list[int] = []
    previous = signal.signal(signal.SIGUSR2, lambda number, _: got.append(number))
    yield got
    signal.signal(signal.SIGUSR2, previous)


def test_a_signal_starts_and_stops_a_capture(tmp_path: Path, usr2: list[int]) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with Job(tmp_path, on_signal=signal.SIGUSR2, steps=1000) as job:
        with job.profiler.marker("interrupted"):
            signal.raise_signal(signal.SIGUSR2)
        job.look()
        assert job.step(3) == ["skip", "active", "active"]
        signal.raise_signal(signal.SIGUSR2)
        job.look()
        assert job.step(2) == ["active", "skip"]
        assert (job.capture.first_batch, job.capture.last_batch) == (1, 3)
    assert usr2 == [signal.SIGUSR2] * 2, "who wanted the signal before still gets it"
    assert signal.getsignal(signal.SIGUSR2) is before


def test_a_profiler_that_cannot_start_takes_no_signal(tmp_path: Path, usr2: list[int]) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with pytest.raises(ConfigError, match="SIGTERM"):
        Profiler(schedule=on_demand(tmp_path / "control", on_signal=signal.SIGTERM)).start()
    with pytest.raises(ConfigError, match="caught"):
        on_demand(tmp_path / "control", on_signal=signal.SIGKILL)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        Profiler(
            [MemoryTraceHandler(), JSONTraceHandler(tmp_path / "file" / "a.json")],
            on_demand(tmp_path / "control", on_signal=signal.SIGUSR2),
        ).start()
    assert (signal.getsignal(signal.SIGUSR2), usr2) == (before, [])
    assert not [thread for thread in threading.enumerate() if thread.name == "tracekit-capture"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_neither_listens_nor_answers(job: Job) -> None:
    child = os.fork()
    if child == 0:
        wrong = bool(job.profiler.capture()) + 2 * any(
            thread.name == "tracekit-capture" for thread in threading.enumerate()
        )
        os._exit(wrong)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert job.step(2) == ["skip", "skip"]
