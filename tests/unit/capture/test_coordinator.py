"""The button: the common start, and who is waited for; with fake clocks and statuses written by hand."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.capture.control_folder import (
    CaptureState,
    CaptureStatus,
    ControlFolder,
    RankStatus,
    Request,
    listens,
    machine,
)
from tracekit.capture.coordinator import CaptureCoordinator, RankView, common_start
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 1_000_000_000


def status(rank: int, *, state: str | None = None, request: str = "x", **fields: Any) -> RankStatus:
    capture = None if state is None else CaptureStatus(id=request, state=state, warmup=fields.pop("warmup", 0))
    given = {"world_size": 2, "run_id": "r", "host": "h", "pid": 1000 + rank, "step_seconds": 0.1, **fields}
    return RankStatus(rank=rank, capture=capture, **given)


class Run:
    """A control folder, the ranks that write there, and the coordinator."""

    def __init__(self, path: Path, request: Request, timeout_s: float = 30) -> None:
        self.folder = ControlFolder(path)
        self.folder.make()
        self.reader = ControlFolder(path)
        self.time = FakeClock()
        self.coordinator = CaptureCoordinator(ControlFolder(path), request, timeout_s=timeout_s, clock=self.time.clock)
        self.updates = 0

    def say(self, *statuses: RankStatus) -> None:
        for each in statuses:
            self.updates += 1
            self.folder.write(dataclasses.replace(each, updates=self.updates))

    def look(self, seconds: float = 0.1) -> Request | None:
        self.time.advance(round(seconds * SECOND))
        self.coordinator.poll()
        return self.reader.read_request()

    @property
    def lost(self) -> dict[int, str]:
        return {rank: view.lost for rank, view in self.coordinator.ranks.items() if view.lost is not None}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "control", Request(id="x", steps=2, together=True))


@pytest.mark.parametrize(
    ("views", "start"),
    [
        # Two looks of half a second and half a second more, after a look's age: 2 s, and a quarter to be on the safe side.
        ([(100, 0.01, {}), (90, 0.01, {})], 100 + 250 + 1),
        ([(100, 10.0, {}), (100, 10.0, {})], 102),
        ([(100, None, {})], 101),
        ([(100, 10.0, {"warmup": 3}), (100, 10.0, {})], 105),
        ([(100, 0.1, {"look_seconds": 10.0})], 483),
        ([(100_000, 0.01, {}), (100, 0.5, {})], None),
    ],
    ids=["short batches", "long ones", "unknown ones", "warm-up", "a rank that looks seldom", "far apart"],
)
def test_the_common_start_lies_ahead_of_every_rank_or_is_a_time(
    views: list[tuple[int, float | None, dict[str, Any]]], start: int | None
) -> None:
    ranks = [
        RankView("x", status=status(0, state="acknowledged", batch=batch, step_seconds=step_s, **fields))
        for batch, step_s, fields in views
    ]
    decided = common_start(Request(id="x", together=True), ranks, 0, 1000 * SECOND)
    assert decided.has_start
    assert decided.start_batch == start
    assert decided.start_time == (pytest.approx(1001.5) if start is None else None)


def test_the_start_is_written_when_every_rank_has_answered(run: Run) -> None:
    run.say(status(0, batch=100), status(1, batch=100))
    run.coordinator.begin()
    asked = run.look()
    assert asked is not None
    assert (asked.has_start, asked.steps) == (False, 2)
    # Silent ranks are given up after 30 s. The start is written then, and must find the others.
    assert asked.expires == pytest.approx(run.time.wall_ns / 1e9 + 40, abs=1)
    run.say(status(0, state=CaptureState.ACKNOWLEDGED, batch=101))
    assert run.look() is None
    run.say(status(1, state=CaptureState.ACKNOWLEDGED, batch=102))
    told = run.look()
    assert told is not None
    assert told.id == "x"
    assert told.start_batch is not None
    assert told.start_batch > 102
    for state in (CaptureState.WAITING, CaptureState.RECORDING, CaptureState.SAVING):
        run.say(status(0, state=state), status(1, state=state))
        run.look()
        assert not run.coordinator.finished
    run.say(status(0, state=CaptureState.DONE), status(1, state=CaptureState.DONE))
    run.look()
    assert run.coordinator.finished
    assert run.lost == {}


def test_a_rank_that_does_not_answer_is_waited_for_a_while_and_then_left_out(run: Run) -> None:
    run.say(status(0, batch=100), status(1, batch=100))
    run.coordinator.begin()
    run.look()
    run.say(status(0, state=CaptureState.ACKNOWLEDGED, batch=101))
    assert run.look(29) is None
    run.say(status(0, state=CaptureState.ACKNOWLEDGED, batch=390))
    told = run.look(2)
    assert told is not None
    assert told.start_batch is not None
    assert run.lost == {1: "it has not answered for 30 s"}
    run.say(status(0, state=CaptureState.DONE))
    run.look()
    assert run.coordinator.finished


def test_a_rank_that_stands_still_is_given_up_and_taken_back_when_it_goes_on(run: Run) -> None:
    run.say(status(0, state=CaptureState.ACKNOWLEDGED), status(1, state=CaptureState.ACKNOWLEDGED))
    run.coordinator.begin()
    run.look()
    run.say(status(0, state=CaptureState.RECORDING), status(1, state=CaptureState.RECORDING))
    run.look()
    run.look(29)
    run.say(status(0, state=CaptureState.RECORDING, batch=5), status(1, state=CaptureState.RECORDING))
    run.look(2)
    assert run.lost == {1: "it has not passed to another batch for 30 s"}
    run.say(status(1, state=CaptureState.RECORDING, batch=5))
    run.look()
    assert run.lost == {}


def test_a_rank_whose_batches_are_long_is_given_three_of_them(run: Run) -> None:
    long = status(0, state=CaptureState.RECORDING, step_seconds=60.0, world_size=1)
    run.say(long)
    run.coordinator.begin()
    run.look()
    run.look(179)
    assert run.lost == {}
    run.look(2)
    assert list(run.lost) == [0]


def test_a_rank_that_saves_a_large_trace_is_waited_for(run: Run) -> None:
    for _ in range(10):
        run.say(status(0, state=CaptureState.SAVING, world_size=1))
        run.coordinator.begin() if not run.coordinator.ranks else None
        run.look(20)
        assert run.lost == {}


def test_a_refusal_is_an_answer(run: Run) -> None:
    run.coordinator.begin()
    run.say(status(0, state=CaptureState.ACKNOWLEDGED), status(1, refused=("x", "another capture is in force")))
    told = run.look()
    assert told is not None
    run.say(status(0, state=CaptureState.DONE))
    told = run.look()
    assert run.coordinator.finished
    assert run.coordinator.ranks[1].refusal == "another capture is in force"
    assert run.coordinator.ranks[1].state == "refused"


def test_a_rank_that_ends_or_starts_again_is_not_waited_for(run: Run) -> None:
    run.coordinator.begin()
    run.say(status(0, state=CaptureState.RECORDING), status(1, state=CaptureState.RECORDING))
    run.look()
    run.say(status(0, state=CaptureState.RECORDING, listening=False), status(1, pid=7))
    run.look()
    assert run.lost == {0: "it has ended", 1: "it was started again"}
    assert run.coordinator.finished


def test_files_of_an_earlier_larger_run_do_not_count(run: Run) -> None:
    run.say(*(status(rank, world_size=8, listening=False) for rank in range(8)))
    run.say(status(0, batch=100), status(1, batch=100))
    run.coordinator.begin()
    run.say(status(0, state=CaptureState.ACKNOWLEDGED), status(1, state=CaptureState.ACKNOWLEDGED))
    assert run.look() is not None
    assert sorted(run.coordinator.ranks) == [0, 1]


def test_a_stop_waits_for_what_runs_if_anything_does(tmp_path: Path) -> None:
    run = Run(tmp_path / "control", Request(id="stop", stop=True))
    run.say(status(0, state=CaptureState.RECORDING, request="a"), status(1, state=CaptureState.DONE, request="b"))
    run.coordinator.begin()
    asked = run.look()
    assert asked is not None
    assert asked.stop
    assert (run.coordinator.finished, list(run.coordinator.ranks)) == (False, [0])
    run.say(status(0, state=CaptureState.DONE, request="a"))
    run.look()
    assert run.coordinator.finished
    assert run.coordinator.ranks[0].state == CaptureState.DONE
    nothing = Run(tmp_path / "other", Request(id="stop", stop=True))
    nothing.say(status(0))
    nothing.coordinator.begin()
    nothing.look()
    assert (nothing.coordinator.finished, nothing.coordinator.ranks) == (True, {})


def test_a_capture_that_is_taken_back_does_not_wait_for_those_who_never_answered(run: Run) -> None:
    run.coordinator.begin()
    run.say(status(0, state=CaptureState.ACKNOWLEDGED))
    run.look()
    run.coordinator.stop()
    asked = run.look()
    assert asked is not None
    assert asked.stop
    run.say(status(0, state=CaptureState.CANCELLED))
    run.look()
    assert run.coordinator.finished
    assert run.lost == {1: "it has not answered"}


@pytest.mark.parametrize("end", [{"state": CaptureState.DONE}, {"refused": ("x", "busy")}], ids=["done", "refused"])
def test_a_rank_that_serves_another_request_later_keeps_its_result(run: Run, end: dict[str, Any]) -> None:
    run.coordinator.begin()
    run.say(status(0, **end), status(1, state=CaptureState.RECORDING))
    run.look()
    result = run.coordinator.ranks[0].state
    run.say(status(0, state=CaptureState.RECORDING, request="other", refused=("another", "busy")))
    run.look()
    assert (run.coordinator.ranks[0].state, run.lost, run.coordinator.finished) == (result, {}, False)
    run.say(status(1, state=CaptureState.DONE))
    run.look()
    assert run.coordinator.finished


def test_a_request_that_another_one_replaces_is_lost_and_does_not_stop_that_one(run: Run) -> None:
    run.coordinator.begin()
    run.say(status(0, state=CaptureState.ACKNOWLEDGED))
    run.look()
    other = Request(id="other", steps=5)
    run.folder.write(other)
    run.say(*(status(rank, state=CaptureState.WAITING, request="other") for rank in (0, 1)))
    assert run.look() == other
    assert run.lost == {0: "another request has replaced this one"}
    run.look(31)
    assert (run.coordinator.finished, run.lost[1]) == (True, "it has not answered for 30 s")
    run.coordinator.stop()
    assert run.folder.holds(other)
    run.say(status(0, state=CaptureState.RECORDING))
    run.look()
    run.coordinator.stop()
    stop = run.look()
    assert stop is not None
    assert (stop.stop, stop.ranks) == (True, (0,)), "the capture of this request"


def test_a_rank_that_waits_for_the_time_is_not_given_up(tmp_path: Path) -> None:
    time = FakeClock()
    run = Run(tmp_path / "control", Request(id="x", start_time=time.wall_ns / 1e9 + 3600))
    run.coordinator.begin()
    run.say(status(0, state=CaptureState.WAITING, world_size=1))
    run.look()
    run.look(3000)
    assert run.lost == {}


@pytest.mark.skipif(machine() is None, reason="this system does not tell which processes share a machine")
def test_it_is_known_here_whether_a_process_has_died() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    told = status(0, pid=child.pid, machine=machine())
    assert listens(told)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is dead, and its parent has not asked yet
    assert not listens(told)
    child.communicate()
    assert not listens(told)
    assert listens(dataclasses.replace(told, machine="another")), "nothing is known of other machines"


def test_of_very_many_ranks_those_that_speak_are_watched_and_not_all_that_may_be_absent(run: Run) -> None:
    run.coordinator.begin()
    run.look(29)
    assert (run.coordinator.finished, run.coordinator.ranks) == (False, {})
    run.look(2)
    assert (run.coordinator.finished, run.coordinator.ranks) == (True, {}), "nobody answered"
    run.say(status(0, world_size=1_000_000), status(999_999, world_size=1_000_000))
    run.coordinator.begin()
    run.look()
    assert sorted(run.coordinator.ranks) == [*range(10_000), 999_999]
    run.look(31)
    assert run.coordinator.finished
    assert len(run.lost) == 10_001
