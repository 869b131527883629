"""One capture on one rank, batch by batch, with fake times."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.capture.control_folder import CaptureState, Request
from tracekit.capture.state_machine import RankCapture
from tracekit.recording.schedule import ProfilerAction

LETTERS = dict(zip(ProfilerAction, "-was", strict=True))
SECOND = 1_000_000_000


class Played:
    """A training loop that asks a window what to do; a batch takes a second."""

    def __init__(self, *, steps: int | None = 2, seconds: float = 600, warmup: int = 0, **request: Any) -> None:
        self.window = RankCapture(Request(id="x", **request), steps=steps, seconds=seconds, warmup=warmup)
        self.previous = ProfilerAction.SKIP

    def run(self, *batches: int, base: ProfilerAction = ProfilerAction.SKIP) -> str:
        """Ask about some batches; return a letter for each answer: "-" skips, w warms up, a is active, s is active and saves."""
        answers = []
        for batch in batches:
            self.previous = self.window.action(batch, (1000 + batch) * SECOND, batch * SECOND, base, self.previous)
            answers.append(LETTERS[self.previous])
        return "".join(answers)

    @property
    def state(self) -> str:
        return self.window.status.state


def test_a_stop_and_the_first_batch_at_the_same_moment_leave_one_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop of another thread comes after the decision to record, and before the state says so."""
    played = Played(steps=1)
    move = played.window._move

    def stopped_first(state: CaptureState, **changes: Any) -> bool:
        if state is CaptureState.RECORDING:
            move(CaptureState.CANCELLED, note="stopped")
        return move(state, **changes)

    monkeypatch.setattr(played.window, "_move", stopped_first)
    assert played.run(3, 4) == "--"
    assert (played.state, played.window.status.note) == (CaptureState.CANCELLED, "stopped")


PLAYED: dict[str, tuple[dict[str, Any], list[int], str, tuple[int, int]]] = {
    "its batches and nothing else": ({"steps": 3}, [7, 8, 9, 10, 11], "aas--", (7, 9)),
    "after a warm-up": ({"warmup": 2}, [4, 5, 6, 7, 8], "wwas-", (6, 7)),
    "at a batch": ({"warmup": 2, "start_batch": 10}, [7, 8, 9, 10, 11, 12], "-wwas-", (10, 11)),
    "late, so at once": ({"warmup": 2, "start_batch": 10}, [13, 14, 15], "as-", (13, 14)),
    "late for the warm-up": ({"warmup": 2, "start_batch": 10}, [9, 10, 11, 12], "was-", (10, 11)),
    "after a time": ({"steps": 1, "start_time": 1008.5}, [7, 8, 9, 10], "--s-", (9, 9)),
    "for some seconds": ({"steps": None, "seconds": 2.5}, [1, 2, 3, 4, 5], "aaa--", (1, 3)),
    "for whole seconds": ({"steps": None, "seconds": 2}, [1, 2, 3], "aa-", (1, 2)),
    "for what is shorter": ({"steps": 2, "seconds": 100}, [1, 2, 3], "as-", (1, 2)),
    # At the end of an epoch, the batch after the last one is asked for by step, and again by next_epoch.
    "asked twice": ({"warmup": 1}, [1, 1, 2, 2, 3, 3, 4, 4], "wwaass--", (2, 3)),
    "asked twice, for some seconds": ({"steps": None, "seconds": 1.5}, [1, 1, 2, 2, 3, 3], "aaaa--", (1, 2)),
}


@pytest.mark.parametrize("name", PLAYED)
def test_a_capture_records(name: str) -> None:
    options, batches, answers, (first, last) = PLAYED[name]
    played = Played(**options)
    assert played.state == CaptureState.WAITING
    assert played.run(*batches) == answers
    status = played.window.status
    assert (status.state, status.first_batch, status.last_batch) == (CaptureState.SAVING, first, last)
    assert status.late_batches == (3 if name == "late, so at once" else 0)
    played.window.set_files(("a",), complete=True)
    assert played.state == CaptureState.DONE
    assert not played.window.status.state.in_force


@pytest.mark.parametrize(
    ("options", "batches", "base", "is_open", "answers", "first"),
    [
        ({"steps": 1, "start_batch": 10}, [8, 9, 10, 11], ProfilerAction.ACTIVE, False, "assa", 10),
        ({"steps": 1}, [5, 6, 7], ProfilerAction.ACTIVE, True, "ssa", 6),
        ({"steps": 1, "warmup": 1}, [5, 6, 7], ProfilerAction.ACTIVE, True, "wsa", 6),
        ({"steps": None, "seconds": 1.5}, [1, 2, 3, 4], ProfilerAction.ACTIVE_AND_SAVE, False, "aaws", 1),
    ],
    ids=["saved before a known start", "saved first", "ended by the warm-up", "does not go on with that of a capture"],
)
def test_an_open_window_of_the_base_schedule_is(
    options: dict[str, Any], batches: list[int], base: ProfilerAction, is_open: bool, answers: str, first: int
) -> None:
    played = Played(**options)
    if is_open:
        played.previous = ProfilerAction.ACTIVE
    assert played.run(*batches, base=base) == answers
    assert played.window.status.first_batch == first


def test_nothing_begins_before_the_common_start_is_known() -> None:
    played = Played(together=True)
    assert played.run(1, 2) == "--"
    assert played.state == CaptureState.ACKNOWLEDGED
    played.window.set_start(Request(id="x", together=True, start_batch=4))
    assert played.run(3, 4, 5, 6) == "-as-"


@pytest.mark.parametrize(
    ("before", "after", "answers", "last"),
    [([1, 2], [3], "aa-", 2), ([1], [1, 2], "aa-", 1)],
    ids=["later", "while the first batch is asked for twice"],
)
def test_a_stop_ends_it_with_the_batch_that_runs(before: list[int], after: list[int], answers: str, last: int) -> None:
    played = Played(steps=None)
    answered = played.run(*before)
    played.window.stop("it was stopped before it began")
    assert answered + played.run(*after) == answers
    status = played.window.status
    assert (status.state, status.last_batch, status.note) == (CaptureState.SAVING, last, None)


@pytest.mark.parametrize("batches", [(), (8,), (8, 9)])
def test_a_stop_before_the_first_batch_cancels_it(batches: tuple[int, ...]) -> None:
    played = Played(warmup=2, start_batch=10)
    played.run(*batches)
    played.window.stop("nobody wants it")
    assert played.run(10, 11) == "--"
    assert (played.state, played.window.status.note) == (CaptureState.CANCELLED, "nobody wants it")
    assert not played.window.status.state.in_force


@pytest.mark.parametrize(
    ("options", "batches", "state", "last"),
    [
        ({"steps": 10}, [1, 2, 3], CaptureState.SAVING, 3),
        ({"start_batch": 10}, [1], CaptureState.CANCELLED, None),
        ({"together": True}, [], CaptureState.CANCELLED, None),
    ],
    ids=["recording", "waiting", "without a start"],
)
def test_the_end_of_the_run_cuts_it(
    options: dict[str, Any], batches: list[int], state: CaptureState, last: int | None
) -> None:
    played = Played(**options)
    played.run(*batches)
    played.window.end_run(3, "the run ended")
    status = played.window.status
    assert (status.state, status.last_batch, status.note) == (state, last, "the run ended")
