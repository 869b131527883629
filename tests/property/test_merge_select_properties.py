"""What holds of every selection: it takes what a plain reading of the rules takes, leaves no half behind, and counts the rest."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.merged_tables import rank_of_pid
from tests.property.test_merge_again_properties import shown
from tests.property.test_merge_properties import BASE_NS, load, timed
from tracekit.errors import MergeError
from tracekit.formats.decimal_time import format_us
from tracekit.merge import Selection, merge_traces
from tracekit.merge.plan.plan import namespace_of

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
START_NS = BASE_NS + 10**10
CATEGORIES = ["a", "b", "a,b", "c", ""]
Trace = dict[str, Any]


@st.composite
def slices(draw: st.DrawFn, tid: int, low: int, high: int, depth: int = 0) -> list[dict[str, Any]]:
    """Slices that nest in a span of time, as one event or as two, some with an arrow that begins or ends in them."""
    found: list[dict[str, Any]] = []
    at = low
    while at < high and len(found) < 6 and draw(st.booleans()):
        start = draw(st.integers(at, high))
        end = draw(st.integers(start, high))
        slice_ = {"name": f"s{draw(st.integers(0, 99))}", "cat": draw(st.sampled_from(CATEGORIES)), "tid": tid}
        arrow = draw(st.sampled_from(["", "s", "f"]))
        if start == end or draw(st.booleans()):
            found.append({"ph": "X", **slice_, "at": start, "for": end - start})
        else:
            both = {**slice_, "span": (start, end)}
            found += [{"ph": "B", **both, "at": start}, {"ph": "E", **both, "at": end}]
        if arrow:
            more = {"bp": "e"} if arrow == "f" else {}
            flow = {"ph": arrow, "name": "go", "cat": "flow", "id": draw(st.integers(0, 1)), "tid": tid, **more}
            found.append({**flow, "at": draw(st.integers(start, end))})
        if depth < 2 and end - start > 2:
            found += draw(slices(tid, start + 1, end - 1, depth + 1))
        at = end + 1
    return found


@st.composite
def runs(draw: st.DrawFn) -> list[Trace]:
    """Rank traces with slices, instants, counters, tasks and training times, in any order."""
    traces = []
    for rank in range(draw(st.integers(1, 3))):
        events = [event for tid in (7, 8) for event in draw(slices(tid, 0, 200))]
        for _ in range(draw(st.integers(0, 3))):
            at = draw(st.integers(0, 200))
            events.append({"ph": "i", "name": "i", "cat": draw(st.sampled_from(CATEGORIES)), "tid": 7, "at": at})
            events.append({"ph": "C", "name": "c", "tid": 7, "at": draw(st.integers(0, 200)), "args": {"value": 1}})
            end = at + draw(st.integers(1, 50))
            place = {"id": len(events), "tid": 7, "span": (at, end)}
            task = {"name": "t", "cat": draw(st.sampled_from(CATEGORIES)), **place}
            events += [{"ph": "b", **task, "at": at}, {"ph": "e", **task, "at": end}]
        for number in range(draw(st.integers(0, 2))):
            at = sorted(draw(st.lists(st.integers(0, 200), min_size=2, max_size=2)))
            for phase, tid, start in (("s", 20 + number, at[0]), ("f", 30 + number, at[1])):
                slice_ = {"name": "end", "cat": draw(st.sampled_from(CATEGORIES)), "tid": tid, "at": start}
                events.append({"ph": "X", **slice_, "for": draw(st.integers(1, 30))})
                flow = {"ph": phase, "name": "go", "cat": "flow", "id": 10 + number, "tid": tid, "at": start}
                events.append(flow | ({"bp": "e"} if phase == "f" else {}))
        steps = sorted(draw(st.lists(st.integers(0, 200), max_size=4)))
        names = [
            {"ph": "M", "name": "tracekit_timestamp", "tid": 7, "at": at, "args": {"batch": batch}}
            for batch, at in enumerate(steps)
        ]
        order = draw(st.permutations(events))
        traces.append({"rank": rank, "events": names + list(order)})
    return traces


@st.composite
def selections(draw: st.DrawFn) -> dict[str, Any]:
    ends = sorted(draw(st.lists(st.integers(0, 220), min_size=2, max_size=2, unique=True)))
    options: dict[str, Any] = {
        "ranks": draw(st.sets(st.integers(0, 2), min_size=1)),
        # From the epoch, so that it means the same whatever else is merged.
        "time_window": (START_NS + ends[0], START_NS + ends[1]),
        "steps": (draw(st.integers(0, 2)), draw(st.sampled_from([3, 4, None]))),
        "categories": draw(st.sets(st.sampled_from("abc"), min_size=1)),
        "exclude_categories": draw(st.sets(st.sampled_from(["a", "b", "c", "flow"]), min_size=1)),
        "min_duration_ns": draw(st.integers(0, 30)),
    }
    return {name: options[name] for name in draw(st.sets(st.sampled_from(sorted(options)), min_size=1))}


def write(folder: Path, trace: Trace) -> str:
    rank = trace["rank"]
    pid = 100 + rank
    own = {"rank": rank, "pid": pid, "host": "h", "run_id": "r", "baseTimeNanoseconds": BASE_NS}
    lines = [json.dumps({"ph": "M", "name": "tracekit_metadata", "pid": pid, "tid": pid, "args": own})]
    # The first event and the last one: the merge, and the last step, begin and end alike for all.
    ends = [{"ph": "i", "name": "edge", "tid": 9, "at": at} for at in (0, 300)]
    for mark, event in enumerate([*ends, *trace["events"]]):
        plain = {key: value for key, value in event.items() if key not in ("at", "for", "span")}
        plain["args"] = {"mark": mark} | plain.get("args", {})
        text = json.dumps({**plain, "pid": pid})[:-1] + f', "ts": {format_us(10**10 + event["at"]).decode()}'
        lines.append(text + (f', "dur": {format_us(event["for"]).decode()}' if "for" in event else "") + "}")
    path = folder / f"rank{rank}.json"
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    return str(path)


@contextmanager
def suppress_no_steps() -> Iterator[list[bool]]:
    """Let a merge be refused for want of the steps that are asked for; what is yielded is empty then."""
    done = [True]
    try:
        yield done
    except MergeError as error:
        assert "none of the steps" in str(error)  # noqa: PT017 - any other one is a fault
        done.clear()


def wants(event: dict[str, Any], selection: Selection) -> bool:
    """Tell whether an event is selected; not of an arrow."""
    at, end = event.get("span", (event["at"], event["at"] + event.get("for", 0)))
    duration = end - at
    if selection.time_window is not None:
        low, high = (int(end or 0) - START_NS for end in selection.time_window)
        if not (at < high and max(at + duration, at + 1) > low):
            return False
    names = {name for name in event.get("cat", "").split(",") if name}
    if selection.categories is not None and names.isdisjoint(selection.categories) and (names or event["ph"] != "C"):
        return False
    if not names.isdisjoint(selection.exclude_categories):
        return False
    return event["ph"] in "iC" or duration >= selection.min_duration_ns


@LIMITS
@given(runs(), selections())
def test_a_selection_takes_what_its_rules_say_and_counts_the_rest(traces: list[Trace], options: dict[str, Any]) -> None:
    options = {"ranks": {0, 1, 2}} | {name: value for name, value in options.items() if name != "steps"}
    selection = Selection(**options)
    wanted = [trace for trace in traces if selection.wants_rank(trace["rank"])]
    if not wanted:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = merge_traces(str(folder / "m.json"), [write(folder, trace) for trace in traces], select=selection)
        merged = load(folder / "m.json")
    alone = "XBEbeiC"
    expected = Counter(
        (trace["rank"], mark, event["ph"])
        for trace in wanted
        for mark, event in enumerate([{"ph": "i", "at": 0}, {"ph": "i", "at": 300}, *trace["events"]])
        if event["ph"] in alone and wants(event, selection)
    )
    rank_of = rank_of_pid(merged)
    found = Counter(
        (rank_of[event["pid"]], event["args"].get("mark"), event["ph"])
        for event in timed(merged)
        if event["ph"] in alone
    )
    assert found == expected
    gone = sum(item.count or 0 for item in report.left_out) + sum(drop.count for drop in report.dropped)
    added = report.metadata_added + report.clock_events_added
    assert sum(report.events_out.values()) == sum(report.events_in.values()) + added - gone
    assert sum(report.events_out.values()) == len(merged["traceEvents"])
    assert report.complete


@LIMITS
@given(runs(), selections())
def test_no_half_is_left_behind(traces: list[Trace], options: dict[str, Any]) -> None:
    selection = Selection(**{"ranks": {0, 1, 2}} | options)
    if not any(selection.wants_rank(trace["rank"]) for trace in traces):
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [write(folder, trace) for trace in traces]
        with suppress_no_steps() as done:
            merge_traces(str(folder / "m.json"), paths, select=selection)
        if not done:
            return
        merged = load(folder / "m.json")
    tasks: Counter[tuple[Any, ...]] = Counter()
    opened: dict[tuple[Any, ...], list[float]] = {}
    spans: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in sorted(timed(merged), key=lambda event: (float(event["ts"]), event["ph"] != "B")):
        track, phase, ts = (event["pid"], event["tid"]), event["ph"], float(event["ts"])
        if phase == "X":
            spans.setdefault(track, []).append((ts, ts + float(event["dur"])))
        elif phase == "B":
            opened.setdefault((track, event["name"]), []).append(ts)
        elif phase == "E":
            spans.setdefault(track, []).append((opened[track, event["name"]].pop(), ts))
        elif phase in "be":
            tasks[event["pid"], event["id2"]["local"]] += 1 if phase == "b" else -1
    assert not any(opened.values())
    assert not any(tasks.values())
    arrows: dict[Any, set[str]] = {}
    before: dict[Any, set[str]] = {}
    for event in timed(merged):
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], set()).add(event["ph"])
            around = spans.get((event["pid"], event["tid"]), [])
            assert any(low - 1e-9 <= float(event["ts"]) <= high + 1e-9 for low, high in around), event
    for trace in traces:
        namespace = namespace_of(trace["rank"], 0, 2**32 // 100_000)
        for event in trace["events"]:
            if event["ph"] in "sf":
                before.setdefault(namespace * 10**10 + event["id"], set()).add(event["ph"])
    for key, ends in arrows.items():
        assert ends == before[key], "an arrow that had both ends has one"


@LIMITS
@given(runs(), selections())
def test_selecting_from_a_merged_trace_is_merging_the_selection(traces: list[Trace], options: dict[str, Any]) -> None:
    selection = Selection(**options)
    if not any(selection.wants_rank(trace["rank"]) for trace in traces):
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [write(folder, trace) for trace in traces]
        merge_traces(str(folder / "all.json"), paths)
        for output, inputs in (("at once", paths), ("later", [str(folder / "all.json")])):
            with suppress_no_steps() as done:
                merge_traces(str(folder / f"{output}.json"), inputs, select=selection)
            if not done:
                assert not (folder / "at once.json").exists()
                return
        at_once, later = load(folder / "at once.json"), load(folder / "later.json")
    assert shown(later) == shown(at_once)


@LIMITS
@given(runs())
def test_a_selection_of_everything_is_everything(traces: list[Trace]) -> None:
    everything = Selection(
        ranks=range(10), time_window=(0, None), steps=None, exclude_categories=["none of them"], min_duration_ns=0
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [write(folder, trace) for trace in traces]
        report = merge_traces(str(folder / "some.json"), paths, select=everything)
        merge_traces(str(folder / "all.json"), paths)
        # A selection is rewritten in Python, which spaces and orders the keys of an event in its own way.
        assert load(folder / "some.json") == load(folder / "all.json")
    assert report.left_out == []
