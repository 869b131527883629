"""What holds of every merge, whatever is merged."""

from __future__ import annotations

import gzip
import itertools
import json
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.merged_tables import rank_of_pid
from tracekit.errors import TracekitError
from tracekit.formats.decimal_time import format_us, parse_us
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from tracekit.merge import MergeReport

BASE_NS = 1_790_857_026_000_000_000
TEXT = st.text(max_size=8)
TIMES_NS = st.integers(0, 3_000)
Trace = dict[str, Any]


@st.composite
def events(draw: st.DrawFn, pid: int) -> list[dict[str, Any]]:
    """Events of one process, with times as integer ns under ``at`` and ``for``; ``mark`` names each for good."""
    found: list[dict[str, Any]] = []
    for mark in range(draw(st.integers(0, 12))):
        phase = draw(st.sampled_from("XXXXBEisfCbe"))
        event: dict[str, Any] = {
            "ph": phase,
            "name": draw(TEXT) or "x",
            "pid": draw(st.sampled_from([pid, pid, 0, -1, "Spans"])),
            "tid": draw(st.sampled_from([pid, 7, 0, -1, "stream 7", 2**40])),
            "at": draw(TIMES_NS),
            "args": {"mark": mark, "correlation": draw(st.integers(0, 5))},
        }
        if phase == "X":
            event["for"] = draw(st.one_of(st.just(0), TIMES_NS))
        elif phase in "sf":
            event |= {"id": draw(st.integers(0, 3)), "cat": "ac2g"}
        elif phase in "be":
            event |= {"id": draw(st.sampled_from(["0x1", 1, "job"])), "cat": "task"}
        elif phase == "i":
            event["s"] = draw(st.sampled_from("tpg"))
        elif phase == "C":
            event["args"] = {"value": draw(st.floats(allow_nan=False, allow_infinity=False, width=16))}
        found.append(event)
    return found


@st.composite
def runs(draw: st.DrawFn) -> list[Trace]:
    """The traces of a few ranks: rank traces and torch traces, of differing generations."""
    traces: list[Trace] = []
    for rank in range(draw(st.integers(1, 3))):
        pid = draw(st.sampled_from([4711, 4711 + rank]))
        kinds = draw(st.sampled_from([["tracekit"], ["torch"], ["tracekit", "torch"]]))
        for kind in kinds:
            base_ns = (
                BASE_NS if kind == "tracekit" else draw(st.sampled_from([0, BASE_NS, BASE_NS - 7_889_238 * 10**9]))
            )
            traces.append({"kind": kind, "rank": rank, "pid": pid, "base_ns": base_ns, "events": draw(events(pid))})
    return traces


def as_line(event: dict[str, Any], time_ns: int) -> str:
    """Return an event as it stands in a file, at a time."""
    plain = {key: value for key, value in event.items() if key not in ("at", "for")}
    text = json.dumps(plain, ensure_ascii=False)[:-1] + f', "ts": {format_us(time_ns).decode()}'
    return text + (f', "dur": {format_us(event["for"]).decode()}}}' if "for" in event else "}")


def write(folder: Path, number: int, trace: Trace) -> Path:
    """Write a trace as its kind does."""
    # 10 s after the base, so that a time of 0 does not look like none.
    zero_ns = BASE_NS + 10**10 - trace["base_ns"]
    lines = [as_line(event, zero_ns + event["at"]) for event in trace["events"]]
    if trace["kind"] == "tracekit":
        own = {"rank": trace["rank"], "pid": trace["pid"], "baseTimeNanoseconds": trace["base_ns"], "host": "h"}
        lines.insert(0, json.dumps({"ph": "M", "name": "tracekit_metadata", "pid": trace["pid"], "args": own}))
        path = folder / f"{number}.json"
        path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
        return path
    header = json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": trace["rank"]}})[:-1]
    base = f', "baseTimeNanoseconds": {trace["base_ns"]}' if trace["base_ns"] else ""
    path = folder / f"{number}.json.gz"
    path.write_bytes(gzip.compress((header + base + ', "traceEvents": [' + ",".join(lines) + "]}").encode(), mtime=0))
    return path


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(), parse_float=str)
    return found


def timed(merged: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in merged["traceEvents"] if event["ph"] != "M" and event.get("cat") != "clock"]


def when(merged: dict[str, Any], event: dict[str, Any]) -> int:
    time = parse_us(str(event["ts"]).encode())
    assert time is not None
    return int(merged.get("baseTimeNanoseconds", 0)) + time


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(runs())
def test_nothing_is_lost_or_moved_ids_stay_in_their_rank_and_slices_of_a_track_nest(traces: list[Trace]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = merge_traces(str(folder / "merged.json"), [str(write(folder, *each)) for each in enumerate(traces)])
        merged = load(folder / "merged.json")
    assert_nothing_is_lost_or_moved(traces, merged, report)
    assert_ids_stay_in_their_rank(traces, merged)
    assert_slices_nest(merged)


def assert_nothing_is_lost_or_moved(traces: list[Trace], merged: dict[str, Any], report: MergeReport) -> None:
    """Compare the events with those of the inputs, to the nanosecond."""
    expected: Counter[tuple[Any, ...]] = Counter()
    for trace in traces:
        for event in trace["events"]:
            mark, value = event["args"].get("mark"), event["args"].get("value")
            at_ns, shown = BASE_NS + 10**10 + event["at"], None if value is None else str(value)
            expected[trace["rank"], event["ph"], at_ns, event.get("for", 0), event["name"], mark, shown] += 1
    ranks = rank_of_pid(merged)
    found = Counter(
        (
            ranks[event["pid"]],
            event["ph"],
            when(merged, event),
            parse_us(str(event.get("dur", 0)).encode()),
            event.get("name"),
            event["args"].get("mark"),
            event["args"].get("value"),
        )
        for event in timed(merged)
    )
    assert not found - expected
    missing = expected - found
    assert {row[1] for row in missing} <= {"E"}, "only an end without its begin may be left out"
    assert missing.total() == sum(drop.count for drop in report.dropped if drop.reason == "end_without_begin")
    dropped = sum(drop.count for drop in report.dropped)
    added = report.metadata_added + report.clock_events_added
    assert sum(report.events_out.values()) == sum(report.events_in.values()) + added - dropped
    assert sum(report.events_out.values()) == len(merged["traceEvents"])
    assert report.complete


def assert_ids_stay_in_their_rank(traces: list[Trace], merged: dict[str, Any]) -> None:
    """Check what ties events together, and that numbers and scopes are those that viewers take."""
    ranks = rank_of_pid(merged)
    only_torch = not any(trace["kind"] == "tracekit" for trace in traces)
    owners: dict[Any, set[int]] = {}
    for event in timed(merged):
        ids = {"flow": event.get("id"), "correlation": event["args"].get("correlation") if only_torch else None}
        for kind, value in ids.items():
            if value is not None:
                owners.setdefault((kind, value), set()).add(ranks[event["pid"]])
    assert all(len(found) == 1 for found in owners.values())
    for event in merged["traceEvents"]:
        assert 0 < event["pid"] < 2**32
        assert 0 < event["tid"] < 2**32
        assert event.get("s") != "g"
        if event["ph"] in "be":
            assert isinstance(event["id2"]["local"], str)
            assert "id" not in event


def assert_slices_nest(merged: dict[str, Any]) -> None:
    """Check that slices of a track lie in each other or apart."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in timed(merged):
        if event["ph"] == "X":
            start = when(merged, event)
            end = start + (parse_us(str(event["dur"]).encode()) or 0)
            tracks.setdefault((event["pid"], event["tid"]), []).append((start, end))
    for spans in tracks.values():
        for (start, end), (other, other_end) in itertools.combinations(sorted(spans), 2):
            assert other >= end or other_end <= end or other == start


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(runs(), st.integers(0, 10**6), st.binary(max_size=3))
def test_a_cut_or_damaged_input_gives_a_merge_or_one_clear_error(traces: list[Trace], at: int, noise: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [write(folder, number, trace) for number, trace in enumerate(traces)]
        data = paths[0].read_bytes()
        position = at % (len(data) + 1)
        for damaged in (data[:position], data[:position] + noise + data[position + len(noise) :]):
            paths[0].write_bytes(damaged)
            with suppress(TracekitError):
                report = merge_traces(
                    str(folder / "merged.json"), [str(path) for path in paths], overwrite=True, ranks={paths[0].name: 0}
                )
                assert len(load(folder / "merged.json")["traceEvents"]) == sum(report.events_out.values())
            assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
