"""Events of a merge: options that leave out or shorten parts of them, and the counts of repairs and drops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.merge_inputs import event, meta, torch_trace, write
from tracekit.errors import ConfigError
from tracekit.formats.decimal_time import is_exact, parse_us
from tracekit.merge import merge_traces

ARGS = {"correlation": 7, "External id": 3, "Input Dims": [[2, 3]], "stream": 7}
OPERATORS = [
    meta("process_name", 100, name="python3"),
    event("op", 5, args=ARGS),
    event("plain", 8, args={"stream": 7}),
    event("list", 8, args=[1]),
    event("tracekit.gap", 9, ph="i", s="p", args={"lost_events": 2}),
    event("loss", 9, ph="C", args={"value": 1.5}),
    event("task", 10, ph="b", cat="c", id="1", args={"a": 1}),
    event("task", 11, ph="e", cat="c", id="1"),
]


def kernel(start_ns: int, end_ns: int, tid: int = 7, pid: int = 0, cat: str = "kernel") -> dict[str, Any]:
    """Return a kernel as Kineto writes it."""
    args = {"device": 0, "stream": tid, "correlation": 5, "External id": 6, "grid": [1, 2, 3]}
    return event("gemm", start_ns / 1000, (end_ns - start_ns) / 1000, pid=pid, tid=tid, cat=cat, args=args)


def rank0(*events: dict[str, Any]) -> dict[str, Any]:
    return {"rank0.json": torch_trace(*events, deviceProperties=[], distributedInfo={"rank": 0})}


@pytest.mark.usefixtures("core_or_python")
@pytest.mark.parametrize(
    ("args", "operator"), [("all", ARGS), ("ids", {"correlation": 7, "External id": 3}), ("none", None)]
)
def test_merge_keeps_the_arguments_that_are_asked_for(merge: Any, args: str, operator: dict[str, Any] | None) -> None:
    merged, report = merge(rank0(*OPERATORS), args=args)
    found = {event["name"] + event["ph"]: event.get("args") for event in merged["traceEvents"]}
    assert "nothing lost" in report.lines()[0]
    assert found["opX"] == operator
    assert found["plainX"] == ({"stream": 7} if args == "all" else None)
    assert found["listX"] == ({"args": [1]} if args == "all" else None)
    assert found["taskb"] == ({"a": 1} if args == "all" else None)
    assert found["tracekit.gapi"] == {"lost_events": 2}
    assert found["lossC"] == {"value": "1.5"}  # numbers are read as texts


@pytest.mark.usefixtures("core_or_python")
@pytest.mark.parametrize(
    ("twice", "kept"),
    [
        ('{"correlation": 5, "External id": 1, "correlation": 6}', {"correlation": 6, "External id": 1}),
        ('{"correlation": 5, "correlation": {"correlation": 6}}', None),
        ('{"correlation": "none", "External id": 1, "correlation": 5}', {"correlation": 5, "External id": 1}),
    ],
)
def test_last_value_of_a_key_that_stands_twice_is_kept(tmp_path: Path, twice: str, kept: dict[str, int] | None) -> None:
    (path,) = write(tmp_path, rank0(event("op", 5, args="here")))
    Path(path).write_text(Path(path).read_text().replace('"here"', twice))
    merge_traces(str(tmp_path / "merged.json"), [path], args="ids")
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    assert [found.get("args") for found in events if found["name"] == "op"] == [kept]


def test_archive_leaves_arguments_out_as_well(tmp_path: Path) -> None:
    paths = write(tmp_path, rank0(*OPERATORS))
    report = merge_traces(str(tmp_path / "merged.tar"), paths, args="none")
    assert b"Input Dims" not in (tmp_path / "merged.tar").read_bytes()
    assert list(report.rewritten or ()) == paths


PAIR = [(0, 10_000), (9_999, 20_000)]
MOVED = "1 overlapping slice moved to tracks named (overlap)"
SNAPPED = "1 overlapping slice of GPU streams shortened, by {} µs at most"


@pytest.mark.usefixtures("core_or_python")
@pytest.mark.parametrize(
    ("kernels", "options", "durations", "said"),
    [
        (
            [kernel(*times) for times in ((0, 10_000), (8_000, 20_000), (17_000, 30_000), (29_999, 40_000))],
            {"snap_overlaps_ns": 2_000},
            [8, 12, 13, 10.001],
            {SNAPPED.format(2), MOVED},
        ),
        (
            # The inner of two nested slices is the one that a later one overlaps.
            [kernel(*times) for times in ((0, 100_000), (10_000, 20_000), (18_500, 30_000))],
            {"snap_overlaps_ns": 2_000},
            [100, 8.5, 11.5],
            {SNAPPED.format(1.5)},
        ),
        ([kernel(*times) for times in PAIR], {}, [10, 10.001], {MOVED}),
        (
            [kernel(*times, cat="cpu_op", pid=50) for times in PAIR],
            {"snap_overlaps_ns": 2_000},
            [10, 10.001],
            {MOVED},
        ),
    ],
    ids=["small overlaps", "nested", "not asked for", "a thread"],
)
def test_merge_shortens_small_overlaps_of_gpu_streams_where_that_is_asked_for(
    merge: Any, kernels: list[Any], options: dict[str, Any], durations: list[float], said: set[str]
) -> None:
    merged, report = merge(rank0(*kernels, kernel(1_000, 2_000, tid=8)), **options)
    found = [event for event in merged["traceEvents"] if event["ph"] == "X"]
    assert [float(event["dur"]) for event in found] == [*durations, 1]
    assert [float(event["ts"]) for event in found] == [*(event["ts"] for event in kernels), 1]
    assert {line for line in report.lines() if "overlapping" in line} == said
    assert len({event["tid"] for event in found[:-1]}) == (2 if MOVED in said else 1)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("merged.json", {"args": "some"}, "one of all, ids, none"),
        *(("merged.json", {"snap_overlaps_ns": value}, "snap_overlaps_ns must be a whole") for value in (-1, 1.5, "5")),
        *(
            ("merged.json", {"ranks": {"rank0.json": rank}}, "the rank of rank0.json must be")
            for rank in (-1, True, "1")
        ),
        ("merged.zip", {"snap_overlaps_ns": 5}, "as they are"),
        ("merged.json", {"select": (1, 2)}, "select must be a Selection"),
        ("merged.json", {"executor": 5}, "executor must be an Executor"),
    ],
)
def test_merge_refuses_options_that_do_not_fit(tmp_path: Path, name: str, options: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        merge_traces(str(tmp_path / name), write(tmp_path, rank0(kernel(0, 10_000))), **options)


GOOD = '{"ph":"X","name":"a","pid":1,"tid":1,"ts":5,"dur":2}'
ODD = {
    "repaired": {
        "long_phase": '{"ph":"instant","name":"a","pid":1,"tid":1,"ts":5}',
        "missing_dur": '{"ph":"X","name":"a","pid":1,"tid":1,"ts":5}',
        "bad_dur": '{"ph":"X","name":"a","pid":1,"tid":1,"ts":5,"dur":-2}',
        "text_time": '{"ph":"X","name":"a","pid":1,"tid":1,"ts":"5","dur":2}',
        "missing_id": '{"ph":"b","name":"a","cat":"c","pid":1,"tid":1,"ts":5}',
        "counter_value_left_out": '{"ph":"C","name":"a","pid":1,"tid":1,"ts":5,"args":{"x":1,"y":"no"}}',
        "name_not_text": '{"ph":"X","name":7,"pid":1,"tid":1,"ts":5,"dur":2}',
        "missing_name": '{"ph":"X","pid":1,"tid":1,"ts":5,"dur":2}',
        "args_not_object": '{"ph":"X","name":"a","pid":1,"tid":1,"ts":5,"dur":2,"args":[1]}',
    },
    "dropped": {
        "empty_event": "{}",
        "no_phase": '{"name":"a","pid":1,"tid":1,"ts":5,"dur":2}',
        "unknown_phase": '{"ph":"?","name":"a","pid":1,"tid":1,"ts":5,"dur":2}',
        "no_time": '{"ph":"X","name":"a","pid":1,"tid":1,"dur":2}',
        "flow_without_id": '{"ph":"s","name":"a","cat":"c","pid":1,"tid":1,"ts":5}',
        "counter_without_number": '{"ph":"C","name":"a","pid":1,"tid":1,"ts":5,"args":{}}',
    },
}


@pytest.mark.usefixtures("core_or_python")
@pytest.mark.parametrize(("what", "kind"), [(what, kind) for what, kinds in ODD.items() for kind in kinds])
def test_merge_of_three_odd_events_counts_three(merge: Any, what: str, kind: str) -> None:
    odd = ODD[what][kind]
    _, report = merge({"odd.json": f"[{','.join([GOOD, odd, odd, GOOD, odd])}]"})
    counted = {one.kind: one.count for one in report.repaired}, {one.reason: one.count for one in report.dropped}
    assert counted == (({kind: 3}, {}) if what == "repaired" else ({}, {kind: 3}))


@pytest.mark.usefixtures("core_or_python")
def test_merge_counts_a_duration_that_ends_beyond_64_bits(merge: Any) -> None:
    late = '{"ph":"X","name":"late","pid":1,"tid":1,"ts":5,"dur":9223372036854775.807}'
    _, report = merge({"odd.json": f"[{GOOD},{late}]"})
    assert {one.kind: one.count for one in report.repaired} == {"bad_dur": 1}


@pytest.mark.usefixtures("core_or_python")
def test_merge_moves_starts_and_ends_beyond_100_days_to_times_that_viewers_read(merge: Any) -> None:
    day_120_us = 120 * 86_400 * 10**6
    slices = [
        f'{{"ph":"X","name":"n","pid":1,"tid":1,"ts":{day_120_us + 10 * number}.{number:03},"dur":3.{7 * number:03}}}'
        for number in range(100)
    ]
    merged, _ = merge({"long.json": f"[{GOOD},{','.join(slices)}]"})
    found = [(us(event["ts"]), us(event["dur"])) for event in merged["traceEvents"] if event.get("name") == "n"]
    assert len(found) == 100
    assert all(is_exact(start) and is_exact(start + length) for start, length in found)
    assert not all(length % 1000 == 7 * number for number, (_, length) in enumerate(found))


def us(text: str) -> int:
    found = parse_us(str(text).encode())
    assert found is not None
    return found
