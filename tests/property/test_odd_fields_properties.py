"""Traces whose fields hold what nobody expects there: every tool gives a result or one of tracekit's own errors."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit
from tests import bad_traces
from tests.examples import examples
from tracekit import TracekitError, core
from tracekit.check.anonymise import anonymise_traces
from tracekit.explain.run_report import report_run
from tracekit.merge import Selection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def merge(path: Path, folder: Path, output: str = "m.json", **options: Any) -> object:
    return tracekit.merge_traces(folder / output, path, overwrite=True, **{"ranks": {"in.json": 0}, **options})


TOOLS: dict[str, Callable[[Path, Path], object]] = {
    "validate": lambda path, folder: tracekit.validate_trace(path),
    "merge": merge,
    "merge, its own rank": lambda path, folder: merge(path, folder, ranks=None),
    "merge to pftrace": lambda path, folder: merge(path, folder, "m.pftrace"),
    "merge some steps": lambda path, folder: merge(path, folder, select=Selection(steps=(0, 3))),
    "merge some names": lambda path, folder: merge(path, folder, select=Selection(names=["a*"])),
    "recover": lambda path, folder: tracekit.recover_trace(
        path, folder / "r.json", overwrite=True, close_open_slices=True
    ),
    "summarize": lambda path, folder: tracekit.summarize_traces(path),
    "find stragglers": lambda path, folder: tracekit.find_stragglers(path),
    "diff": lambda path, folder: tracekit.diff_traces(path, path),
    "report": lambda path, folder: report_run([str(path)]),
    "anonymise": lambda path, folder: anonymise_traces([(path, folder / "a.json")], names=True, overwrite=True),
}

METADATA = {
    "tracekit_metadata": {**bad_traces.METADATA, "boot_id": "boot", "start_ticks": 7},
    "tracekit_timestamp": {"batch": 0},
    "tracekit_summary": {"slices": 1, "dropped": {}},
    "tracekit_clock_anchor": {"wall_ns": 1, "monotonic_ns": 2, "error_ns": 3},
    "tracekit_loss": {"lost_events": 1},
    "process_name": {"name": "rank 0"},
    "thread_name": {"name": "main"},
}
ARGS = {"batch": 1, "External id": 3, "Collective name": "allreduce", "Process Group Name": "0", "correlation": 5}
KEYS = ("ph", "name", "cat", "pid", "tid", "ts", "dur", "id", "args", "bp", "s", "sf", "id2", "scope", "bind_id", "own")

scalars = st.sampled_from(
    [None, True, "", "x", "12", "1e3", "NaN", "é\ud800", -1, 0, 1.5, 1e308, 2**64, 10**30, -(10**30)]
)
odd = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.sampled_from(["a", "rank"]), scalars, max_size=2)


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(METADATA)))
        event: dict[str, Any] = {"ph": "M", "name": name, "pid": 1, "tid": 1, "ts": 1, "args": dict(METADATA[name])}
    else:
        event = {
            "ph": draw(st.sampled_from("XBEiICbnestfMNDOPvR")),
            "name": draw(st.sampled_from(["a", "step", "ProfilerStep#1", "batch"])),
            "cat": draw(st.sampled_from(["", "kernel", "cpu_op", "training loop", "timer", "ac2g", "user_annotation"])),
            "pid": draw(st.integers(0, 2)),
            "tid": draw(st.integers(0, 2)),
            "ts": draw(st.integers(0, 20)),
            "dur": draw(st.integers(0, 9)),
            "id": draw(st.integers(0, 3)),
            "args": dict(ARGS),
        }
    event.update(draw(st.dictionaries(st.sampled_from(KEYS), odd, max_size=2)))
    if isinstance(event["args"], dict):
        event["args"].update(draw(st.dictionaries(st.sampled_from(sorted(event["args"]) or ["rank"]), odd, max_size=1)))
    for key in draw(st.sets(st.sampled_from(KEYS), max_size=1)):
        event.pop(key, None)
    return event


merged = st.fixed_dictionaries(
    {"merge": odd},
    optional={
        "processes": odd | st.lists(st.dictionaries(st.sampled_from(["pid", "rank", "key", "name", "threads"]), odd)),
        "inputs": odd | st.lists(st.dictionaries(st.sampled_from(["rank", "kind", "header"]), odd)),
        "losses": odd | st.lists(st.dictionaries(st.sampled_from(["rank", "kind", "reason"]), odd)),
        "clocks": odd | st.fixed_dictionaries({"ranks": odd | st.lists(st.fixed_dictionaries({"rank": odd}))}),
    },
)
heads = st.fixed_dictionaries(
    {},
    optional={
        "tracekit": odd | merged,
        **dict.fromkeys(
            ("distributedInfo", "baseTimeNanoseconds", "deviceProperties", "stackFrames", "host_name"), odd
        ),
        **dict.fromkeys(("rank", "schemaVersion", "displayTimeUnit", "samples"), odd),
    },
)


def written(path: Path, trace: Any) -> Path:
    path.write_bytes(json.dumps(trace).encode())
    return path


@pytest.mark.parametrize("tool", TOOLS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(head=heads, found=st.lists(events(), min_size=1, max_size=8), form=st.sampled_from(["array", "object"]))
def test_every_tool_ends_in_a_result_or_an_error_of_its_own(
    tmp_path: Path, tool: str, head: dict[str, Any], found: list[dict[str, Any]], form: str
) -> None:
    path = written(tmp_path / "in.json", found if form == "array" else {**head, "traceEvents": found})
    with contextlib.suppress(TracekitError):
        TOOLS[tool](path, tmp_path)


times = st.integers(0, 9) | st.sampled_from([0.5, "3", -1, 2**42 + 1, 2**53 + 0.5, 2**62, 2**63 - 1, 2**63, 10**30])


@st.composite
def slices(draw: st.DrawFn) -> dict[str, Any]:
    event: dict[str, Any] = {"ph": draw(st.sampled_from("XXBBEEsfinbe")), "pid": 1, "tid": draw(st.integers(1, 2))}
    event |= {"ts": draw(times), "name": draw(st.sampled_from(["a", "a", "b", "", 5])), "id": draw(st.integers(0, 9))}
    event |= {"dur": draw(times)} if event["ph"] == "X" else {}
    return event | draw(st.dictionaries(st.sampled_from(["args", "cat", "s", "bp", "dur", "ph"]), odd, max_size=1))


def assert_merge_is_valid(folder: Path, source: Path) -> None:
    """Merge to JSON, and to a native trace and that to JSON, and validate both."""
    for output, path in (("m.json", source), ("m.pftrace", source), ("n.json", folder / "m.pftrace")):
        try:
            merge(path, folder, output, **({} if path == source else {"ranks": None}))
        except TracekitError:
            return
        if output.endswith(".json"):
            report = tracekit.validate_trace(folder / output)
            assert [str(problem) for problem in report.problems if problem.severity == "error"] == []


BOTH = pytest.mark.parametrize("compiled", [pytest.param(True, marks=pytest.mark.core), False], ids=["core", "python"])


@BOTH
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    head=heads,
    found=st.lists(events(), min_size=1, max_size=8) | st.lists(slices(), min_size=1, max_size=12),
    form=st.sampled_from(["array", "object"]),
)
def test_what_a_merge_writes_of_odd_events_is_valid(
    tmp_path: Path, compiled: bool, head: dict[str, Any], found: list[dict[str, Any]], form: str
) -> None:
    path = written(tmp_path / "in.json", found if form == "array" else {**head, "traceEvents": found})
    with contextlib.nullcontext() if compiled else mock.patch.object(core, "merge", None):
        assert_merge_is_valid(tmp_path, path)


NESTED = json.loads('{"a":' * 100 + "1" + "}" * 100)
DEEP = [{"ph": "B", "name": "a", "pid": 1, "tid": 1, "ts": n} for n in range(600)]
DEEP += [{"ph": "E", "name": "a", "pid": 1, "tid": 1, "ts": 600 + n} for n in range(600)]
UNUSUAL = {
    "a duration beyond 64 bits": [{"dur": 2**63}],
    "an end beyond 64 bits": [{"dur": 9_223_372_036_854_775}],
    "a name that is a number": [{"name": 5}],
    "no name": [{"name": None}],
    "a category that is a list": [{"cat": ["a", "b"]}],
    "arguments that are a list": [{"args": [1]}],
    "arguments that are nested": [{"args": NESTED}],
    "a phase that is a number": [{"ph": 5}],
    "a phase that is a list": [{"ph": ["X"]}],
    "a phase of no format": [{"ph": "z"}],
    "an instant of no scope": [{"ph": "i", "s": 5}],
    "a mark of all processes": [{"ph": "R", "s": "g"}],
    "a flow without a category": [{"ph": "s", "id": 4}],
    "a time far from the base": [{"ts": 9_007_199_254_740.993}, {"ts": 9_007_199_254_741.994}],
    "a B at the time of a shorter X": [{"ph": "B"}, {}, {"ph": "E", "ts": 9}],
    "slices 600 deep": DEEP,
}


@BOTH
@pytest.mark.parametrize("odd_events", UNUSUAL.values(), ids=UNUSUAL)
def test_what_a_merge_writes_of_an_odd_event_is_valid(
    tmp_path: Path, compiled: bool, odd_events: list[dict[str, Any]]
) -> None:
    found = [SLICE, *({**SLICE, "ts": 7, **event} for event in odd_events), {**SLICE, "ts": 2000}]
    path = written(tmp_path / "in.json", found)
    with contextlib.nullcontext() if compiled else mock.patch.object(core, "merge", None):
        assert_merge_is_valid(tmp_path, path)
        report: Any = merge(path, tmp_path)
    # The report does not name the other two: a scope that all ranks would share, and a time moved by a few ns at most.
    unnamed = (UNUSUAL["a time far from the base"], UNUSUAL["a mark of all processes"])
    assert report.repaired or report.dropped or report.overlaps_moved or odd_events in unnamed


SLICE = {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 5, "dur": 1}
TIMESTAMP: dict[str, Any] = {"ph": "M", "name": "tracekit_timestamp", "pid": 1, "tid": 1, "ts": 1, "args": {"batch": 0}}


OWN = {**TIMESTAMP, "name": "tracekit_metadata", "args": METADATA["tracekit_metadata"]}
BROKE_A_TOOL = {
    "a phase that is a list": [TIMESTAMP, SLICE, {**SLICE, "ph": ["X"]}],
    "a name that is a list": [TIMESTAMP, SLICE, {**SLICE, "ph": "M", "name": ["thread_name"], "args": {}}],
    "a process without steps": [TIMESTAMP, SLICE, {**SLICE, "pid": 2}],
    "a surrogate": [{**OWN, "tid": "é\ud800"}, TIMESTAMP, SLICE],
    "a boot that is a list": [{**OWN, "args": {**OWN["args"], "boot_id": ["boot"]}}, TIMESTAMP, SLICE],
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("found", BROKE_A_TOOL.values(), ids=BROKE_A_TOOL)
def test_what_has_broken_a_tool_once_gives_a_result(tmp_path: Path, tool: str, found: list[dict[str, Any]]) -> None:
    assert TOOLS[tool](written(tmp_path / "in.json", found), tmp_path) is not None
