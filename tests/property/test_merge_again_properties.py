"""Merging in steps is merging at once: merged files merged again, with further ranks, attempts, workers and cycles."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.test_merge_properties import BASE_NS, as_line, events, load, timed, when
from tracekit.formats.decimal_time import parse_us
from tracekit.merge import merge_traces
from tracekit.merge.input_scan import NAMED_METADATA

LIMITS = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
TASK_NS = 1_000_000
Trace = dict[str, Any]


@st.composite
def runs(draw: st.DrawFn) -> list[Trace]:
    """The files of a few ranks: rank traces of their attempts, of their workers, in several parts, and cycles of torch."""
    traces: list[Trace] = []
    for rank in range(draw(st.integers(1, 3))):
        for attempt in range(draw(st.integers(1, 2))):
            pid = 4711 + draw(st.sampled_from([0, rank, 10 * rank + attempt]))
            at = attempt * TASK_NS
            own = {"rank": rank, "attempt": attempt, "pid": pid, "start_ticks": 10 * rank + attempt}
            for kind in draw(
                st.sampled_from([["rank"], ["rank", "rank"], ["rank", "torch"], ["rank", "torch", "torch"]])
            ):
                traces.append({"kind": kind, "own": own, "at": at, "events": draw(events(pid))})
                at += 5000
            for worker in range(draw(st.integers(0, 2))):
                child = {
                    **own,
                    "pid": pid + 100 + worker,
                    "start_ticks": 1000 + 10 * rank + worker,
                    "parent_pid": pid,
                    "worker": worker,
                }
                traces.append({"kind": "rank", "own": child, "at": at, "events": draw(events(pid + 100 + worker))})
    return traces


def write(folder: Path, number: int, trace: Trace) -> str:
    """Write a trace as its kind does."""
    own = {"host": "h", "run_id": "r", "boot_id": "b", "baseTimeNanoseconds": BASE_NS, **trace["own"]}
    # So that no file is like another one.
    own_events = [{"ph": "i", "name": "file", "pid": own["pid"], "tid": own["pid"], "at": 0, "args": {"mark": -number}}]
    lines = [as_line(event, 10**10 + trace["at"] + event["at"]) for event in own_events + trace["events"]]
    path = folder / f"{number:02d}.json"
    if trace["kind"] == "rank":
        name = {"ph": "M", "name": "process_name", "pid": own["pid"], "args": {"name": _title(own)}}
        head = {"ph": "M", "name": "tracekit_metadata", "pid": own["pid"], "args": own}
        path.write_text("[\n" + ",\n".join([json.dumps(head), json.dumps(name), *lines]) + "\n]\n")
    else:
        keys = {
            "rank": own["rank"],
            "host": "h",
            "boot_id": "b",
            "run_id": "r",
            "attempt": own["attempt"],
            "pid": own["pid"],
        }
        header = json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "tracekit": keys})[:-1]
        path.write_text(header + ', "traceEvents": [' + ",".join(lines) + "]}")
    return str(path)


def _title(own: dict[str, Any]) -> str:
    attempt = f" · attempt {own['attempt']}" if own["attempt"] else ""
    worker = f" · worker {own['worker']}" if "worker" in own else ""
    return f"rank {own['rank']}{attempt}{worker}"


def is_name(event: dict[str, Any]) -> bool:
    """Tell whether an event names or orders a process or thread, which the merge does anew."""
    return event["ph"] == "M" and event["name"] in NAMED_METADATA


def without_id(event: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in event.items() if key != "id"})


def shown(merged: dict[str, Any]) -> Counter[tuple[Any, ...]]:
    """Return all events as a viewer shows them; ids of flows and the like are what they tie together."""
    processes = {
        process["pid"]: (process["rank"], tuple(process["key"]), process["name"])
        for process in merged["tracekit"]["processes"]
    }
    ties: dict[Any, set[tuple[Any, ...]]] = {}
    rows = []
    for event in timed(merged):
        row = (
            processes[event["pid"]],
            event["tid"],
            event["ph"],
            when(merged, event),
            parse_us(str(event.get("dur", 0)).encode()),
            event.get("name"),
            event["args"].get("mark"),
            event["args"].get("value"),
        )
        tie = (
            event["ph"] in "sf",
            event.get("id"),
            json.dumps(event.get("id2")),
            event["pid"] if "id2" in event else 0,
        )
        if "id" in event or "id2" in event:
            ties.setdefault(tie, set()).add(row[2:])
        rows.append((row, tie))
    return Counter((*row, frozenset(ties.get(tie, ()))) for row, tie in rows)


@LIMITS
@given(runs(), st.data())
def test_merging_in_steps_shows_what_merging_at_once_shows(traces: list[Trace], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [write(folder, number, trace) for number, trace in enumerate(traces)]
        first = data.draw(st.lists(st.sampled_from(paths), min_size=1, unique=True))
        rest = [path for path in paths if path not in first]
        merge_traces(str(folder / "once.json"), paths)
        merge_traces(str(folder / "step.json"), first)
        if rest and data.draw(st.booleans()):
            merge_traces(str(folder / "other.json"), rest)
            rest = [str(folder / "other.json")]
        report = merge_traces(str(folder / "steps.json"), [str(folder / "step.json"), *rest])
        once, steps = load(folder / "once.json"), load(folder / "steps.json")
    assert report.complete
    assert shown(steps) == shown(once)
    for key in ("processes", "inputs", "losses"):
        assert steps["tracekit"][key] == once["tracekit"][key], key
    assert [event for event in steps["traceEvents"] if is_name(event)] == [
        event for event in once["traceEvents"] if is_name(event)
    ]


@LIMITS
@given(runs())
def test_a_merged_trace_merged_again_is_the_same(traces: list[Trace]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        merge_traces(str(folder / "once.json"), [write(folder, number, trace) for number, trace in enumerate(traces)])
        merge_traces(str(folder / "again.json"), [str(folder / "once.json")])
        once, again = load(folder / "once.json"), load(folder / "again.json")
    # Ids of arrows may be others, as long as they tie the same together.
    assert shown(again) == shown(once)
    assert sorted(map(without_id, again.pop("traceEvents"))) == sorted(map(without_id, once.pop("traceEvents")))
    assert again == once


@LIMITS
@given(runs(), st.randoms(use_true_random=False))
def test_the_order_and_the_names_of_the_folders_do_not_matter(traces: list[Trace], random: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [write(folder, number, trace) for number, trace in enumerate(traces)]
        for ending in ("json", "json.gz", "tar", "zip"):
            merge_traces(str(folder / f"first.{ending}"), paths)
            random.shuffle(paths)
            merge_traces(str(folder / f"second.{ending}"), paths)
            assert (folder / f"first.{ending}").read_bytes() == (folder / f"second.{ending}").read_bytes(), ending
