"""ReportMarks: reports take nothing from each other, whatever the order in which they are asked (weakness T7)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracekit.timers.timer import ReportMarks

REPORTS = ("log", "write", "wandb")
actions = st.lists(
    st.one_of(
        st.tuples(st.just("measure"), st.integers(0, 1000), st.just(True)),
        st.tuples(st.sampled_from(REPORTS), st.just(0), st.booleans()),
        st.tuples(st.just("own"), st.just(0), st.booleans()),
    ),
    max_size=40,
)


@given(actions)
def test_a_report_that_always_resets_shows_everything_exactly_once(found: list[tuple[str, int, bool]]) -> None:
    """Whatever the others do, with or without a reset."""
    marks, total, shown = ReportMarks(), 0, 0
    for action, amount, reset in found:
        if action == "measure":
            total += amount
        elif action == "own":
            marks.own(total, reset=reset)
        elif action == "log":
            shown += marks.report("log", total, reset=True)
        else:
            marks.report(action, total, reset=reset)
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
    marks, total = ReportMarks(), 0
    for action, amount, reset in found:
        if action == "measure":
            total += amount
        elif action == "own":
            marks.own(total, reset=reset)
        else:
            marks.report(action, total, reset=reset)
    marks.restart(total)
    total += more
    assert marks.own(total, reset=False) == more
    assert [marks.report(report, total, reset=True) for report in REPORTS] == [more] * 3


def test_two_reports_that_reset_show_the_same() -> None:
    marks = ReportMarks()
    for total in (5, 12, 30):
        shown = [marks.report(report, total, reset=True) for report in REPORTS]
        assert len(set(shown)) == 1, shown


def test_a_report_without_a_reset_and_then_one_with() -> None:
    """Megatron's own order: write(reset=False), then log(reset=True)."""
    marks = ReportMarks()
    assert [marks.report("write", 5, reset=False), marks.report("log", 5, reset=True)] == [5, 5]
    assert [marks.report("write", 7, reset=False), marks.report("log", 7, reset=True)] == [2, 2]


def test_a_report_that_is_asked_more_rarely_shows_all_of_it() -> None:
    marks = ReportMarks()
    assert [marks.report("write", total, reset=True) for total in (1, 2, 3)] == [1, 1, 1]
    assert marks.report("log", 3, reset=True) == 3


def test_the_same_step_again_is_the_same_and_what_has_come_since() -> None:
    marks = ReportMarks()
    assert marks.report("write", 5, reset=True, step=1) == 5
    assert marks.report("write", 6, reset=True, step=1) == 6
    assert marks.report("write", 6, reset=True, step=1) == 6
    assert marks.report("write", 9, reset=True, step=2) == 3


def test_a_total_that_another_thread_has_not_put_back_yet_is_shown_the_next_time() -> None:
    marks = ReportMarks()
    assert marks.report("log", 10, reset=True) == 10
    assert marks.report("log", 7, reset=True) == 0
    assert marks.report("log", 12, reset=True) == 2
    assert marks.own(11, reset=True) == 0
    assert marks.own(13, reset=False) == 1
