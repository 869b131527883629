"""One capture on one rank, batch by batch, with fake times."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.capture.documents import CaptureState, Request
from tracekit.capture.state_machine import TRANSITIONS, CaptureEvent, RankCapture
from tracekit.recording.schedule import ProfilerAction

SKIP, WARMUP, ACTIVE, SAVE = "skip", "warmup", "active", "active_and_save"
SECOND = 1_000_000_000


class Played:
    """A training loop that asks a window what to do; a batch takes a second."""

    def __init__(self, *, steps: int | None = 2, seconds: float = 600, warmup: int = 0, **request: Any) -> None:
        self.window = RankCapture(Request(id="x", **request), steps=steps, seconds=seconds, warmup=warmup)
        self.previous = ProfilerAction.SKIP

    def ask(self, batch: int, base: str = SKIP) -> str:
        action = self.window.action(batch, (1000 + batch) * SECOND, batch * SECOND, ProfilerAction(base), self.previous)
        self.previous = action
        return action.value

    def run(self, *batches: int, base: str = SKIP) -> list[str]:
        return [self.ask(batch, base) for batch in batches]

    @property
    def state(self) -> str:
        return self.window.status().state


def events_to(state: CaptureState) -> list[CaptureEvent] | None:
    """Return events that lead from the first state to a state, or None if the table has no such path."""
    paths: dict[CaptureState, list[CaptureEvent]] = {CaptureState.ACKNOWLEDGED: []}
    for _ in CaptureState:
        for (before, event), after in TRANSITIONS.items():
            if before in paths:
                paths.setdefault(after, [*paths[before], event])
    return paths.get(state)


@pytest.mark.parametrize("event", CaptureEvent)
@pytest.mark.parametrize("state", CaptureState)
def test_an_event_changes_the_state_as_the_table_says_or_not_at_all(state: CaptureState, event: CaptureEvent) -> None:
    capture = Played(together=True).window
    for each in events_to(state) or []:
        assert capture._report(each, last=7, note="why")
    assert capture.state is state, "every state can be reached"
    known = (state, event) in TRANSITIONS
    assert capture._report(event, last=7, note="why") is known
    after = TRANSITIONS.get((state, event), state)
    status = capture.status()
    assert (capture.state, status.state) == (after, after)
    has_ended = after in (CaptureState.SAVING, CaptureState.DONE, CaptureState.CANCELLED)
    assert (status.note is not None) is has_ended
    assert (status.last_batch is not None) is (has_ended and after is not CaptureState.CANCELLED)


@pytest.mark.parametrize("state", CaptureState)
def test_a_capture_is_in_force_until_no_event_can_change_it(state: CaptureState) -> None:
    assert state.in_force is any(before is state for before, _ in TRANSITIONS)


def test_a_stop_and_the_first_batch_at_the_same_moment_leave_one_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop of another thread comes after the decision to record, and before the state says so."""
    played = Played(steps=1)
    report = played.window._report

    def stopped_first(event: CaptureEvent, *args: Any, **options: Any) -> bool:
        if event is CaptureEvent.FIRST_BATCH:
            report(CaptureEvent.STOP_REQUESTED, note="stopped")
        return report(event, *args, **options)

    monkeypatch.setattr(played.window, "_report", stopped_first)
    assert played.run(3, 4) == [SKIP, SKIP]
    assert (played.state, played.window.status().note) == (CaptureState.CANCELLED, "stopped")


def test_a_capture_records_its_batches_and_nothing_else() -> None:
    played = Played(steps=3)
    assert played.state == CaptureState.WAITING
    assert played.run(7, 8, 9, 10, 11) == [ACTIVE, ACTIVE, SAVE, SKIP, SKIP]
    status = played.window.status()
    assert (status.state, status.first_batch, status.last_batch) == (CaptureState.SAVING, 7, 9)
    played.window.complete_files()
    assert played.state == CaptureState.DONE
    assert not played.window.state.in_force


def test_the_warm_up_comes_before_the_first_batch() -> None:
    assert Played(warmup=2).run(4, 5, 6, 7, 8) == [WARMUP, WARMUP, ACTIVE, SAVE, SKIP]
    at_batch = Played(warmup=2, start_batch=10)
    assert at_batch.run(7, 8, 9, 10, 11, 12) == [SKIP, WARMUP, WARMUP, ACTIVE, SAVE, SKIP]
    assert at_batch.window.status().first_batch == 10


def test_a_rank_that_is_past_the_start_begins_at_once_and_says_so() -> None:
    late = Played(warmup=2, start_batch=10)
    assert late.run(13, 14, 15) == [ACTIVE, SAVE, SKIP]
    assert late.window.status().late_batches == 3
    nearly = Played(warmup=2, start_batch=10)
    assert nearly.run(9, 10, 11, 12) == [WARMUP, ACTIVE, SAVE, SKIP]
    assert nearly.window.status().late_batches == 0


def test_it_begins_after_a_time() -> None:
    played = Played(start_time=1008.5, steps=1)
    assert played.run(7, 8, 9, 10) == [SKIP, SKIP, SAVE, SKIP]


def test_nothing_begins_before_the_common_start_is_known() -> None:
    played = Played(together=True)
    assert played.run(1, 2) == [SKIP, SKIP]
    assert played.state == CaptureState.ACKNOWLEDGED
    played.window.set_start(Request(id="x", together=True, start_batch=4))
    assert played.run(3, 4, 5, 6) == [SKIP, ACTIVE, SAVE, SKIP]


def test_it_lasts_so_many_seconds_to_the_end_of_a_batch() -> None:
    played = Played(steps=None, seconds=2.5)
    assert played.run(1, 2, 3, 4, 5) == [ACTIVE, ACTIVE, ACTIVE, SKIP, SKIP]
    assert played.window.status().last_batch == 3
    assert Played(steps=None, seconds=2).run(1, 2, 3) == [ACTIVE, ACTIVE, SKIP], "the limit itself ends it"
    assert Played(steps=2, seconds=100).run(1, 2, 3) == [ACTIVE, SAVE, SKIP], "whatever comes first"


def test_a_stop_ends_it_with_the_batch_that_runs() -> None:
    played = Played(steps=None)
    assert played.run(1, 2) == [ACTIVE, ACTIVE]
    played.window.stop("it was stopped before it began")
    assert played.run(3) == [SKIP]
    assert played.window.status().note is None
    assert (played.state, played.window.status().last_batch) == (CaptureState.SAVING, 2)


def test_a_stop_while_the_first_batch_is_asked_for_twice_still_records_it() -> None:
    played = Played(steps=None)
    assert played.run(1) == [ACTIVE]
    played.window.stop("unused")
    assert played.run(1, 2) == [ACTIVE, SKIP]
    assert (played.state, played.window.status().last_batch) == (CaptureState.SAVING, 1)


@pytest.mark.parametrize("batches", [(), (8,), (8, 9)])
def test_a_stop_before_the_first_batch_cancels_it(batches: tuple[int, ...]) -> None:
    played = Played(warmup=2, start_batch=10)
    played.run(*batches)
    played.window.stop("nobody wants it")
    assert played.run(10, 11) == [SKIP, SKIP]
    assert (played.state, played.window.status().note) == (CaptureState.CANCELLED, "nobody wants it")
    assert not played.window.state.in_force


def test_to_be_asked_twice_about_a_batch_changes_nothing() -> None:
    """As happens at the end of an epoch: the batch after the last one is asked for by step, and again by next_epoch."""
    played = Played(warmup=1, steps=2)
    assert played.run(1, 1, 2, 2, 3, 3, 4, 4) == [WARMUP, WARMUP, ACTIVE, ACTIVE, SAVE, SAVE, SKIP, SKIP]
    timed = Played(steps=None, seconds=1.5)
    assert timed.run(1, 1, 2, 2, 3, 3) == [ACTIVE, ACTIVE, ACTIVE, ACTIVE, SKIP, SKIP]


def test_a_window_of_the_base_schedule_that_is_open_is_saved_first() -> None:
    known = Played(start_batch=10, steps=1)
    assert known.run(8, 9, 10, 11, base=ACTIVE) == [ACTIVE, SAVE, SAVE, ACTIVE]
    now = Played(steps=1)
    now.previous = ProfilerAction.ACTIVE
    assert now.run(5, 6, 7, base=ACTIVE) == [SAVE, SAVE, ACTIVE], "begins one batch later"
    assert now.window.status().first_batch == 6
    warmed = Played(steps=1, warmup=1)
    warmed.previous = ProfilerAction.ACTIVE
    assert warmed.run(5, 6, 7, base=ACTIVE) == [WARMUP, SAVE, ACTIVE], "the warm-up ends it"


def test_a_window_of_the_base_schedule_does_not_go_on_with_that_of_a_capture() -> None:
    timed = Played(steps=None, seconds=1.5)
    assert timed.run(1, 2, 3, 4, base=SAVE) == [ACTIVE, ACTIVE, WARMUP, SAVE]


def test_the_end_of_the_run_cuts_it() -> None:
    played = Played(steps=10)
    played.run(1, 2, 3)
    played.window.end_run(3, "the run ended")
    status = played.window.status()
    assert (status.state, status.first_batch, status.last_batch) == (CaptureState.SAVING, 1, 3)
    waiting = Played(start_batch=10)
    waiting.run(1)
    waiting.window.end_run(1, "the run ended")
    assert (waiting.state, waiting.window.status().note) == (CaptureState.CANCELLED, "the run ended")
    without_start = Played(together=True)
    without_start.window.end_run(1, "the run ended")
    assert without_start.state == CaptureState.CANCELLED
