"""Selecting by name: what is named, the slices around it, and arrows with both of their slices or not at all."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.errors import ConfigError
from tracekit.merge import Selection, merge_traces
from tracekit.merge.selection.criteria import WantedNames

if TYPE_CHECKING:
    from pathlib import Path


def event(ph: str, name: str, ts: float, tid: int = 7, **more: Any) -> dict[str, Any]:
    return {"ph": ph, "name": name, "pid": 7, "tid": tid, "ts": ts, **more}


def slice_(name: str, ts: float, dur: float, tid: int = 7, **more: Any) -> dict[str, Any]:
    return event("X", name, ts, tid, dur=dur, **more)


def trimmed(tmp_path: Path, events: list[dict[str, Any]], *names: str, **more: Any) -> tuple[list[str], Any]:
    trace, output = tmp_path / "rank0.json", tmp_path / "trimmed.json"
    trace.write_text(json.dumps(events))
    report = merge_traces(str(output), [str(trace)], overwrite=True, select=Selection.parse(names=names, **more))
    found = json.loads(output.read_text())["traceEvents"]
    return [entry["name"] for entry in found if entry["ph"] != "M"], report


def test_slices_around_what_is_named_are_kept_whole(tmp_path: Path) -> None:
    events = [
        slice_("step", 0, 100), slice_("forward", 10, 30), slice_("attention", 12, 5), slice_("mlp", 20, 5),
        slice_("backward", 50, 40), slice_("step", 200, 50), slice_("attention", 15, 5, tid=8), slice_("loader", 14, 9, tid=9),
    ]  # fmt: skip
    names, report = trimmed(tmp_path, events, "attention")

    assert sorted(names) == ["attention", "attention", "forward", "step"]
    assert [(item.reason, item.count) for item in report.left_out] == [("name", 4)]
    assert report.complete
    assert "left out on request: 4 events of other names" in report.lines()


def test_halves_of_slices_share_their_fate(tmp_path: Path) -> None:
    events = [
        event("B", "outer", 0), event("B", "wanted", 5), event("E", "wanted", 6), event("E", "outer", 9),
        event("B", "other", 20), event("E", "other", 22), event("B", "wanted", 30),
        event("b", "wanted", 1, cat="a", id2={"local": 1}), event("e", "wanted", 2, cat="a", id2={"local": 1}),
        event("b", "other", 1, cat="a", id2={"local": 2}), event("e", "other", 2, cat="a", id2={"local": 2}),
    ]  # fmt: skip
    names, _ = trimmed(tmp_path, events, "wanted")
    assert sorted(names) == ["outer", "outer", "wanted", "wanted", "wanted", "wanted", "wanted"]


def test_an_instant_keeps_its_slice_and_a_counter_needs_its_own_name(tmp_path: Path) -> None:
    events = [
        slice_("step", 0, 10), event("i", "saved", 5, s="t"), event("i", "other", 6, s="t"),
        event("C", "loss", 1, args={"loss": 1}), event("C", "memory", 1, args={"bytes": 1}),
    ]  # fmt: skip
    assert sorted(trimmed(tmp_path, events, "saved", "loss")[0]) == ["loss", "saved", "step"]


def test_an_arrow_is_kept_with_both_of_its_slices_or_not_at_all(tmp_path: Path) -> None:
    events = [slice_("launch", 0, 5), slice_("kernel", 10, 5, tid=8), slice_("other", 20, 5, tid=8)]
    for number, (start, end) in enumerate(((1, 11), (2, 21))):
        events.append(event("s", "flow", start, id=number, cat="c"))
        events.append(event("f", "flow", end, tid=8, id=number, cat="c", bp="e"))
    assert sorted(trimmed(tmp_path, events, "launch", "kernel")[0]) == ["flow", "flow", "kernel", "launch"]
    assert trimmed(tmp_path, events, "launch")[0] == ["launch"]


def test_names_go_with_the_other_wishes_and_patterns_are_those_of_a_shell(tmp_path: Path) -> None:
    events = [slice_("gloo:all_reduce", 0, 5), slice_("gloo:broadcast", 10, 50), slice_("nccl:all_reduce", 100, 50)]
    assert trimmed(tmp_path, events, "gloo:*", min_duration="10us")[0] == ["gloo:broadcast"]
    assert trimmed(tmp_path, events, "*:all_*")[0] == ["gloo:all_reduce", "nccl:all_reduce"]
    assert trimmed(tmp_path, events, "GLOO:*")[0] == []
    assert trimmed(tmp_path, [slice_("a\u00e9 [x], y", 0, 1), slice_("b", 2, 1)], "a\u00e9 ?x], y")[0] == [
        "a\u00e9 [x], y"
    ]


def test_no_name_and_one_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="no name in it"):
        Selection(names=[])
    with pytest.raises(ConfigError, match=re.escape("names must be several names, such as ['a'], not one text")):
        Selection(names="a")
    assert Selection.parse(names=[]) == Selection()


def test_arrows_between_collectives_need_a_merge_first(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([slice_("a", 0, 1)]))
    with pytest.raises(ConfigError, match="merge first"):
        merge_traces(
            str(tmp_path / "o.json"), [str(tmp_path / "a.json")], select=Selection(names=["a"]), collective_flows=True
        )


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
