"""Merging in steps is merging at once: merged files merged again, with further ranks, attempts, workers and cycles."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.merged_tables import inputs, losses, process_of_pid, processes, thread_of_tid
from tests.property.test_merge_properties import BASE_NS, as_line, events, load, timed, when
from tracekit.formats.decimal_time import parse_us
from tracekit.merge import merge_traces
from tracekit.merge.plan.tracks import NAMED_METADATA

if TYPE_CHECKING:
    from collections.abc import Iterable

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
                its_pid, ticks = pid + 100 + worker, 1000 + 10 * rank + worker
                child = {**own, "pid": its_pid, "start_ticks": ticks, "parent_pid": pid, "worker": worker}
                traces.append({"kind": "rank", "own": child, "at": at, "events": draw(events(its_pid))})
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
        keys = {key: own[key] for key in ("rank", "host", "boot_id", "run_id", "attempt", "pid")}
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


def names(merged: dict[str, Any]) -> Counter[tuple[Any, ...]]:
    """Return what names and orders the processes and threads, whatever their numbers are."""
    pids, tids = process_of_pid(merged), thread_of_tid(merged)
    return Counter(
        (
            event["name"],
            pids[event["pid"]],
            tids[event["pid"], event["tid"]] if event["name"].startswith("thread") else None,
            json.dumps(event["args"]),
        )
        for event in merged["traceEvents"]
        if is_name(event)
    )


def pids(merged: dict[str, Any]) -> dict[tuple[Any, ...], int]:
    """Return the numbers of the processes that are known before their events: not those of GPUs and profilers."""
    known = {event["pid"] for event in merged["traceEvents"] if event.get("args", {}).get("identity")}
    return {process: pid for pid, process in process_of_pid(merged).items() if pid in known}


def without_tids(process: dict[str, Any]) -> dict[str, Any]:
    return {**process, "threads": sorted(([str(key), lane] for _, key, lane in process["threads"]))}


def in_any_order(tables: Iterable[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(table, sort_keys=True) for table in tables)


def without_id(event: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in event.items() if key != "id"})


def shown(merged: dict[str, Any]) -> Counter[tuple[Any, ...]]:
    """Return all events as a viewer shows them; ids of flows and the like are what they tie together."""
    processes, tracks = process_of_pid(merged), thread_of_tid(merged)
    ties: dict[Any, set[tuple[Any, ...]]] = {}
    rows = []
    for event in timed(merged):
        row = (
            processes[event["pid"]],
            tracks[event["pid"], event["tid"]],
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


def ends_a_slice_of_another_file(trace: Trace) -> bool:
    """Tell whether an E of a trace has no B before it. A merge without the file of the B leaves the E out."""
    for events_in_order in (trace["events"], sorted(trace["events"], key=lambda event: int(event["at"]))):
        depths: Counter[tuple[Any, Any]] = Counter()
        for event in events_in_order:
            if event["ph"] in "BE":
                depths[event["pid"], event["tid"]] += 1 if event["ph"] == "B" else -1
                if depths[event["pid"], event["tid"]] < 0:
                    return True
    return False


def with_starts(chosen: list[str], traces: dict[str, Trace]) -> list[str]:
    """Add the other files of each rank in which slices start in one file and end in the next."""
    ranks = {traces[path]["own"]["rank"] for path in chosen}
    ranks &= {trace["own"]["rank"] for trace in traces.values() if ends_a_slice_of_another_file(trace)}
    return chosen + [path for path, trace in traces.items() if trace["own"]["rank"] in ranks and path not in chosen]


@LIMITS
@given(runs(), st.data())
def test_merging_in_steps_shows_what_merging_at_once_shows(traces: list[Trace], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [write(folder, number, trace) for number, trace in enumerate(traces)]
        chosen = data.draw(st.lists(st.sampled_from(paths), min_size=1, unique=True))
        first = with_starts(chosen, dict(zip(paths, traces, strict=True)))
        rest = [path for path in paths if path not in first]
        merge_traces(str(folder / "once.json"), paths)
        merge_traces(str(folder / "step.json"), first)
        merges_the_rest: bool = data.draw(st.booleans())
        if rest and merges_the_rest:
            merge_traces(str(folder / "other.json"), rest)
            rest = [str(folder / "other.json")]
        report = merge_traces(str(folder / "steps.json"), [str(folder / "step.json"), *rest])
        once, steps = load(folder / "once.json"), load(folder / "steps.json")
    assert report.complete
    assert shown(steps) == shown(once)
    # Processes and inputs are described behind the events of each input, so that a rank between two of a merge comes later.
    assert in_any_order(map(without_tids, processes(steps))) == in_any_order(map(without_tids, processes(once)))
    assert in_any_order(inputs(steps)) == in_any_order(inputs(once))
    assert losses(steps) == losses(once)
    assert names(steps) == names(once)
    assert pids(steps) == pids(once)


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
def test_order_and_age_of_the_inputs_do_not_matter(traces: list[Trace], random: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [write(folder, number, trace) for number, trace in enumerate(traces)]
        for ending in ("json", "json.gz", "tar", "zip"):
            merge_traces(str(folder / f"first.{ending}"), paths)
            random.shuffle(paths)
            for path in paths:
                os.utime(path, (1, 1))
            merge_traces(str(folder / f"second.{ending}"), paths)
            assert (folder / f"first.{ending}").read_bytes() == (folder / f"second.{ending}").read_bytes(), ending
