"""Differential tests of the event table: the core and plain Python fill the same columns."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import both_cores
from tests.bad_traces import BAD_OWN_TRACES, BAD_TRACES, GOOD_TRACES
from tracekit.errors import TraceFormatError
from tracekit.table import columns
from tracekit.table.columns import read_columns
from tracekit.table.extend import ArrowTable
from tracekit.table.plain_columns import ALL_ARGS, COLUMNS, KEY_ARGS, PlainColumns

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real_traces import RealTraces

duckdb = pytest.importorskip("duckdb")
pytestmark = pytest.mark.core

DAMAGED = {bad.name: bad.data for bad in (*BAD_TRACES, *BAD_OWN_TRACES)} | GOOD_TRACES


def read_with_core(path: Path, keeps_args: int = ALL_ARGS) -> Any:
    """Return the rows of all tables, and the facts of a file."""
    try:
        found, facts = read_columns(str(path), keeps_args=keeps_args)
    except TraceFormatError as error:
        return str(error)
    assert not isinstance(found, PlainColumns)
    rows = {}
    with duckdb.connect() as connection:
        for name in COLUMNS:
            connection.register("arrow_table", ArrowTable(name, lambda: found))
            rows[name] = connection.execute("SELECT * FROM arrow_table").fetchall()
    return rows, facts


def read_in_python(path: Path, keeps_args: int = ALL_ARGS) -> Any:
    with both_cores.pure():
        try:
            plain, facts = read_columns(str(path), keeps_args=keeps_args)
        except TraceFormatError as error:
            return str(error)
    assert isinstance(plain, PlainColumns)
    return {name: plain.rows(name) for name in COLUMNS}, facts


def check(path: Path, keeps_args: int = ALL_ARGS) -> Any:
    found, expected = read_with_core(path, keeps_args), read_in_python(path, keeps_args)
    assert found == expected
    return found


SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


STARTS = ("nccl", "gloo:", "record_param_comms", "[memory]", "tracekit.gap")
Names = st.sampled_from([*STARTS, "ncclKernel", "ncc", "gloo:send", "x[memory]", "gemm", r"\u006eccl"])
Arguments = st.sampled_from(
    ['{"Collective name": "x"}', '{"a": "\\"Collective name\\""}', '{"Collective": 1}', "{}", "[]"]
)


@SAME_FOLDER
@given(
    st.lists(st.tuples(Names, st.sampled_from(["kernel", "cpu_op"]), Arguments, st.sampled_from("XiBb")), max_size=12)
)
def test_core_and_python_keep_the_arguments_of_the_same_events(
    tmp_path: Path, events: list[tuple[str, str, str, str]]
) -> None:
    records = [
        f'{{"ph": "{phase}", "name": "{name}", "cat": "{category}", "pid": 1, "tid": 1, "ts": {at}, "dur": 1, "args": {args}}}'
        for at, (name, category, args, phase) in enumerate(events)
    ]
    path = tmp_path / "t.json"
    path.write_text(f"[{', '.join(records)}]")
    found = check(path, KEY_ARGS)
    if not isinstance(found, tuple):
        return
    kept = {number for number, _ in found[0]["args"]}
    args_of: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name, category, args, _ in events:
        args_of[category, json.loads(f'"{name}"')].append(args)
    for number, (_, category, name, *_) in enumerate(found[0]["events"]):
        if len(args_of[category, name]) == 1:
            has_collective = category == "kernel" and '"Collective name"' in args_of[category, name][0]
            assert (number in kept) == (name.startswith(STARTS) or has_collective)


@SAME_FOLDER
@given(
    seed=st.integers(0, 2**64), piece_bytes=st.sampled_from([300, 5_000]), memory_bytes=st.sampled_from([1, 1 << 26])
)
def test_core_and_python_fill_the_same_columns_from_generated_traces(
    tmp_path: Path, seed: int, piece_bytes: int, memory_bytes: int
) -> None:
    path = tmp_path / "t.json"
    data = both_cores.trace(Random(seed))
    path.write_bytes(gzip.compress(data) if seed % 5 == 0 else data)
    with both_cores.small_pieces(piece_bytes), mock.patch.object(columns, "_MEMORY_BYTES", memory_bytes):
        check(path)


def overlapping_slices(random: Random) -> list[dict[str, Any]]:
    """Return slices of few tracks that nest, touch and cross, some in order, with steps, launches and kernels."""
    events: list[dict[str, Any]] = []
    times = random.choice([5, 30, 1000])
    for _ in range(random.randrange(1, random.choice([10, 300]))):
        kind = random.random()
        place = {"pid": random.choice([1, 1, "a", 2]), "tid": random.randrange(3)}
        span = {"ts": random.randrange(times), "dur": random.choice([0, 1, random.randrange(times)])}
        args = {"correlation": random.randrange(-2, 8), "stream": 7}
        if kind < 0.05:
            event = {"name": f"ProfilerStep#{random.randrange(9)}", "cat": "user_annotation", **place, **span}
        elif kind < 0.1:
            batch = {"batch": random.choice([3, 4, None]), "epoch": 1}
            event = {"name": "batch", "cat": "training loop", **place, **span, "args": batch}
        elif kind < 0.3:
            event = {"name": "k", "cat": random.choice(["kernel", "gpu_memcpy"]), **place, **span, "args": args}
        elif kind < 0.5:
            event = {"name": "launch", "cat": "cuda_runtime", **place, **span, "args": args}
        else:
            event = {"name": random.choice(["f", 'g"\n', "ü"]), **place, **span}
        events.append({"ph": "X", **event})
        if kind > 0.9:
            events.append({"ph": random.choice("BEbeniC"), "id": 1, "cat": "c", **place, "name": "w", "ts": span["ts"]})
            events[-1]["args"] = {"value": random.choice([1, 0.5, "x", None]), "loss": 2}
    if random.random() < 0.3:
        events.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
    state = {"epoch": 1, "batch": 2, "sample": 30, "token": 400, "iteration": 0}
    stamp = {"ph": "M", "name": "tracekit_timestamp", "pid": 1, "tid": 1, "ts": times / 2, "args": state}
    return [*events, stamp] if random.random() < 0.5 else events


def begins_and_ends(random: Random) -> list[dict[str, Any]]:
    """Return begins and ends that pair or not, some of them odd, with counters and async slices between them."""
    events: list[dict[str, Any]] = []
    for number in range(random.randrange(1, 200)):
        event = {"ph": random.choice("BBBEEEECbenX"), "pid": 1, "tid": random.choice([1, 1, "a"])}
        event["ts"] = random.choice([number, number, number + 0.125, number - 3, number // 4 * 4])
        for key, values in {
            "name": ["f", "g", "batch", "evaluation", "ProfilerStep#3", "", 7, "a\\"],
            "cat": ["c", "training loop", "user_annotation", "", None],
            "id": [1, "0x2", {"local": 3}],
            "args": [
                {"batch": 3, "correlation": 4},
                {"v": 0.1, "w": 12345678.000001, "x": -3, "y": 1e5},
                {"v": "text"},
            ],
        }.items():
            if random.random() < 0.6:
                event[key] = random.choice(values)
        if event["ph"] == "X" or random.random() < 0.05:
            event["dur"] = random.randrange(5)
        if random.random() < 0.03:
            del event[random.choice(["pid", "tid", "ts"])]
        if random.random() < 0.03:
            event["bind_id"] = "0x1f"
        events.append(event)
    return events


@SAME_FOLDER
@given(seed=st.integers(0, 2**64), piece_bytes=st.sampled_from([300, 1 << 18]))
def test_core_and_python_pair_the_same_begins_and_ends(tmp_path: Path, seed: int, piece_bytes: int) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(begins_and_ends(Random(seed))), encoding="utf-8")
    with both_cores.small_pieces(piece_bytes):
        check(path)


@SAME_FOLDER
@given(seed=st.integers(0, 2**64), memory_bytes=st.sampled_from([1, 1 << 26]))
def test_core_and_python_nest_the_same_slices_and_find_the_same_steps(
    tmp_path: Path, seed: int, memory_bytes: int
) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(overlapping_slices(Random(seed)), ensure_ascii=seed % 2 == 0), encoding="utf-8")
    with mock.patch.object(columns, "_MEMORY_BYTES", memory_bytes):
        tables, _ = check(path)
    slices = [dict(zip(COLUMNS["events"], row, strict=True)) for row in tables["events"]]
    for slice_ in slices:
        if slice_["parent"] is None:
            continue
        parent = slices[slice_["parent"]]
        assert parent["track"] == slice_["track"]
        assert parent["start_ns"] <= slice_["start_ns"]
        assert parent["start_ns"] + parent["duration_ns"] >= slice_["start_ns"] + slice_["duration_ns"]
        assert slice_["depth"] == parent["depth"] + 1
        assert 0 <= parent["self_ns"] <= parent["duration_ns"]


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_core_and_python_fill_the_same_columns_from_bad_traces(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(data)
    check(path)


def test_core_and_python_fill_the_same_columns_from_real_traces(traces: RealTraces) -> None:
    for folder in traces.folders():
        for path in sorted(folder.iterdir()):
            if ".json" in path.name:
                check(path)
