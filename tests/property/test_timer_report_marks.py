"""ReportMarks: reports take nothing from each other, whatever the order in which they are asked (weakness T7)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracekit.timers.timer import ReportMarks

REPORTS = ("log", "write", "wandb")
actions = st.lists(
    st.one_of(
        st.tuples(st.just("measure"), st.integers(0, 1000), st.just(True)),
        st.tuples(st.sampled_from(["own", *REPORTS]), st.just(0), st.booleans()),
    ),
    max_size=40,
)


def act(marks: ReportMarks, total: int, actions: list[tuple[str, int, bool]]) -> int:
    """Measure and report; returns the total then."""
    for action, amount, reset in actions:
        if action == "own":
            marks.own(total, reset=reset)
        elif action != "measure":
            marks.report(action, total, reset=reset)
        total += amount
    return total


@given(st.lists(actions, max_size=5))
def test_a_report_that_always_resets_shows_everything_exactly_once(between: list[list[tuple[str, int, bool]]]) -> None:
    """The other reports, with or without a reset, take nothing from it."""
    marks, total, shown = ReportMarks(), 0, 0
    for found in between:
        total = act(marks, total, [action for action in found if action[0] != "log"])
        shown += marks.report("log", total, reset=True)
    assert shown == total


@given(actions)
def test_one_report_alone_is_as_with_megatron(found: list[tuple[str, int, bool]]) -> None:
    """One sum that is set to zero by every reset: that is the timer's own reading, and every report's that is the only one."""
    marks, total, there = ReportMarks(), 0, 0
    for action, amount, reset in found:
        if action == "measure":
            total += amount
            there += amount
            continue
        if action == "own":
            assert marks.own(total, reset=False) == there
        else:
            assert marks.report("log", total, reset=reset) == there
            there = 0 if reset else there


@given(actions, st.integers(0, 1000))
def test_after_a_restart_every_report_begins_there(found: list[tuple[str, int, bool]], more: int) -> None:
    marks = ReportMarks()
    total = act(marks, 0, found)
    marks.restart(total)
    assert marks.own(total + more, reset=False) == more
    assert [marks.report(report, total + more, reset=True) for report in REPORTS] == [more] * 3


def test_a_total_that_another_thread_has_not_put_back_yet_is_shown_the_next_time() -> None:
    marks = ReportMarks()
    assert marks.report("log", 10, reset=True) == 10
    assert marks.report("log", 7, reset=True) == 0
    assert marks.report("log", 12, reset=True) == 2
    assert marks.own(11, reset=True) == 0
    assert marks.own(13, reset=False) == 1
