"""Selecting by name: what is named, the slices around it, and arrows with both of their slices or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.merge_inputs import event
from tests.merge_inputs import names as names_in
from tracekit.errors import ConfigError
from tracekit.merge import Selection
from tracekit.merge.selection.criteria import WantedNames


@pytest.fixture
def trim(merge: Any) -> Any:
    """Merge a trace with what is selected of it by name; return the names of its events, sorted, and the report."""

    def _trim(events: list[dict[str, Any]], *names: str, **more: Any) -> tuple[list[str], Any]:
        merged, report = merge({"rank0.json": events}, select=Selection.parse(names=names, **more))
        return sorted(names_in(merged)), report

    return _trim


def test_slices_around_what_is_named_are_kept_whole(trim: Any) -> None:
    events = [
        event("step", 0, 100),
        event("forward", 10, 30),
        event("attention", 12, 5),
        event("mlp", 20, 5),
        event("backward", 50, 40),
        event("step", 200, 50),
        event("attention", 15, 5, tid=8),
        event("loader", 14, 9, tid=9),
    ]
    names, report = trim(events, "attention")
    assert names == ["attention", "attention", "forward", "step"]
    assert [(item.reason, item.count) for item in report.left_out] == [("name", 4)]
    assert report.complete
    assert "left out on request: 4 events of other names" in report.lines()


def test_halves_of_slices_share_their_fate(trim: Any) -> None:
    halves = [
        ("outer", 0, "B"),
        ("wanted", 5, "B"),
        ("wanted", 6, "E"),
        ("outer", 9, "E"),
        ("other", 20, "B"),
        ("other", 22, "E"),
        ("wanted", 30, "B"),
    ]
    events = [event(name, at, ph=phase) for name, at, phase in halves]
    for name in ("wanted", "other"):
        events += [event(name, at, ph=phase, cat="a", id2={"local": name}) for at, phase in ((1, "b"), (2, "e"))]
    assert trim(events, "wanted")[0] == ["outer"] * 2 + ["wanted"] * 5


def test_an_instant_keeps_its_slice_and_a_counter_needs_its_own_name(trim: Any) -> None:
    events = [event("step", 0, 10), event("saved", 5, ph="i", s="t"), event("other", 6, ph="i", s="t")]
    events += [event(name, 1, ph="C", args={"value": 1}) for name in ("loss", "memory")]
    assert trim(events, "saved", "loss")[0] == ["loss", "saved", "step"]


def test_an_arrow_is_kept_with_both_of_its_slices_or_not_at_all(trim: Any) -> None:
    events = [event("launch", 0, 5), event("kernel", 10, 5, tid=8), event("other", 20, 5, tid=8)]
    for number, (start, end) in enumerate(((1, 11), (2, 21))):
        events.append(event("flow", start, ph="s", id=number, cat="c"))
        events.append(event("flow", end, ph="f", tid=8, id=number, cat="c", bp="e"))
    assert trim(events, "launch", "kernel")[0] == ["flow", "flow", "kernel", "launch"]
    assert trim(events, "launch")[0] == ["launch"]


@pytest.mark.parametrize(
    ("pattern", "more", "expected"),
    [
        ("gloo:*", {"min_duration": "10us"}, ["gloo:broadcast"]),
        ("*:all_*", {}, ["gloo:all_reduce", "nccl:all_reduce"]),
        ("GLOO:*", {}, []),
        ("a\u00e9 ?x], y", {}, ["a\u00e9 [x], y"]),
    ],
)
def test_names_go_with_the_other_wishes_and_patterns_are_those_of_a_shell(
    trim: Any, pattern: str, more: Any, expected: list[str]
) -> None:
    events = [event("gloo:all_reduce", 0, 5), event("gloo:broadcast", 10, 50), event("nccl:all_reduce", 100, 50)]
    assert trim([*events, event("a\u00e9 [x], y", 200, 1)], pattern, **more)[0] == expected


def test_arrows_between_collectives_need_a_merge_first(merge: Any) -> None:
    with pytest.raises(ConfigError, match="merge first"):
        merge({"a.json": [event("a")]}, select=Selection(names=["a"]), collective_flows=True)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30), st.sampled_from("ab"))), st.data())
def test_a_slice_holds_a_name_where_a_plain_search_finds_one(marks: list[tuple[int, int, str]], data: Any) -> None:
    wanted = WantedNames(["a"])
    for start, _, name in marks:
        wanted.note((1, "1"), f'"{name}"'.encode(), start)
    start, length = data.draw(st.tuples(st.integers(0, 30), st.integers(0, 30)))
    expected = any(name == "a" and start <= at < start + length for at, _, name in marks)
    assert wanted.wants((1, "1"), b'"c"', start, start + length) == expected
    assert wanted.wants((1, "1"), b'"a"', start, start)
    assert not wanted.wants((2, "1"), b'"c"', 0, 100)
