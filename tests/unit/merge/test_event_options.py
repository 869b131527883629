"""What ``--args`` and ``--snap-overlaps`` change of the events, in the compiled core and in pure Python."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.both_cores import merged, pure
from tracekit.cli import main
from tracekit.errors import ConfigError
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

ARGS = {"correlation": 7, "External id": 3, "Input Dims": [[2, 3]], "stream": 7}
OPERATORS = [
    json.dumps({"pid": 1, "tid": 1, **event})
    for event in (
        {"ph": "M", "name": "process_name", "args": {"name": "python3"}},
        {"ph": "X", "name": "op", "ts": 5, "dur": 2, "args": ARGS},
        {"ph": "X", "name": "plain", "ts": 8, "dur": 2, "args": {"stream": 7}},
        {"ph": "X", "name": "list", "ts": 8, "dur": 2, "args": [1]},
        {"ph": "i", "name": "tracekit.gap", "ts": 9, "s": "p", "args": {"lost_events": 2}},
        {"ph": "C", "name": "loss", "ts": 9, "args": {"value": 1.5}},
        {"ph": "b", "name": "task", "cat": "c", "id": "1", "ts": 10, "args": {"a": 1}},
        {"ph": "e", "name": "task", "cat": "c", "id": "1", "ts": 11},
    )
]

BOTH = pytest.mark.parametrize("compiled", [pytest.param(True, marks=pytest.mark.core), False])


def kernel(start_ns: int, end_ns: int, tid: int = 7, **more: Any) -> str:
    """A kernel as Kineto writes it."""
    args = {"device": 0, "stream": tid, "correlation": 5, "External id": 6, "grid": [1, 2, 3]}
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": tid, "args": args} | more
    times = f'"ts": {start_ns / 1000:.3f}, "dur": {(end_ns - start_ns) / 1000:g}'
    return json.dumps(event)[:-1] + f", {times}}}"


def write_trace(path: Path, events: list[str]) -> Path:
    path.write_text(
        '{"schemaVersion": 1, "deviceProperties": [], "distributedInfo": {"rank": 0}, "traceEvents": ['
        + ",\n".join(events)
        + "]}"
    )
    return path


def merge(path: Path, *, compiled: bool, **options: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the events that are no metadata, and the report."""
    output = path.with_name("merged.json")
    if compiled:
        found = merged([path], output, **options)
    else:
        with pure():
            found = merged([path], output, **options)
    assert isinstance(found, tuple)
    return [event for event in found[0]["traceEvents"] if event["ph"] != "M"], found[1]


@BOTH
@pytest.mark.parametrize(
    ("args", "operator"), [("all", ARGS), ("ids", {"correlation": 7, "External id": 3}), ("none", None)]
)
def test_merge_keeps_the_arguments_that_are_asked_for(
    tmp_path: Path, args: str, operator: dict[str, Any] | None, *, compiled: bool
) -> None:
    events, lines = merge(write_trace(tmp_path / "rank0.json", OPERATORS), compiled=compiled, args=args)
    found = {event["name"] + event["ph"]: event.get("args") for event in events}
    assert "1 file of 1 rank" in lines[0]
    assert "nothing lost" in lines[0]
    assert found["opX"] == operator
    assert found["plainX"] == ({"stream": 7} if args == "all" else None)
    assert found["listX"] == ({"args": [1]} if args == "all" else None)
    assert found["taskb"] == ({"a": 1} if args == "all" else None)
    assert found["tracekit.gapi"] == {"lost_events": 2}
    assert found["lossC"] == {"value": "1.5"}  # numbers are read as texts


def test_archive_leaves_arguments_out_as_well(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json", OPERATORS)
    report = merge_traces(str(tmp_path / "merged.tar"), [str(path)], args="none")
    assert b"Input Dims" not in (tmp_path / "merged.tar").read_bytes()
    assert list(report.rewritten or ()) == [str(path)]


@BOTH
def test_merge_shortens_small_overlaps_of_a_gpu_stream_with_snap_overlaps(tmp_path: Path, *, compiled: bool) -> None:
    kernels = [(0, 10_000), (8_000, 20_000), (17_000, 30_000), (29_999, 40_000)]
    path = write_trace(tmp_path / "rank0.json", [kernel(*times) for times in kernels] + [kernel(1_000, 2_000, tid=8)])
    events, lines = merge(path, compiled=compiled, snap_overlaps_ns=2_000)
    *stream, other = [(event["ts"], float(event["dur"]), event["tid"]) for event in events]
    lanes = {tid for _, _, tid in stream}
    assert [(start, duration) for start, duration, _ in stream] == [
        ("0.000", 8.0), ("8.000", 12.0), ("17.000", 13.0), ("29.999", 10.001)
    ]  # fmt: skip
    assert (len(lanes), stream[0][2], other[:2]) == (2, 7, ("1.000", 1.0))
    assert "1 overlapping slice of GPU streams shortened, by 2 µs at most" in lines
    assert "1 overlapping slice moved to tracks named (overlap)" in lines


@BOTH
def test_merge_shortens_the_inner_of_two_nested_slices_that_a_later_one_overlaps(
    tmp_path: Path, *, compiled: bool
) -> None:
    kernels = [(0, 100_000), (10_000, 20_000), (18_500, 30_000)]
    path = write_trace(tmp_path / "rank0.json", [kernel(*times) for times in kernels])
    events, lines = merge(path, compiled=compiled, snap_overlaps_ns=2_000)
    assert [(float(event["dur"]), event["tid"]) for event in events] == [(100.0, 7), (8.5, 7), (11.5, 7)]
    assert "1 overlapping slice of GPU streams shortened, by 1.5 µs at most" in lines


@BOTH
def test_merge_keeps_times_exact_without_snap_overlaps(tmp_path: Path, *, compiled: bool) -> None:
    path = write_trace(tmp_path / "rank0.json", [kernel(0, 10_000), kernel(9_999, 20_000)])
    events, lines = merge(path, compiled=compiled)
    assert [float(event["dur"]) for event in events] == [10.0, 10.001]
    assert not any("shortened" in line for line in lines)


@BOTH
def test_merge_snaps_no_overlap_of_a_thread(tmp_path: Path, *, compiled: bool) -> None:
    operators = [kernel(*times, cat="cpu_op", pid=50) for times in ((0, 10_000), (9_999, 20_000))]
    events, lines = merge(write_trace(tmp_path / "rank0.json", operators), compiled=compiled, snap_overlaps_ns=2_000)
    assert len({event["tid"] for event in events}) == 2
    assert not any("shortened" in line for line in lines)


def test_command_line_takes_args_and_snap_overlaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path / "rank0.json", [kernel(0, 10_000), kernel(9_500, 20_000)])
    command = ["merge", str(path), "-o", str(tmp_path / "merged.json"), "--json", "--args", "none"]
    assert main([*command, "--snap-overlaps", "2.5"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["overlaps_moved"], report["overlaps_snapped"], report["largest_snap_ns"]) == (0, 1, 500)
    assert '"correlation"' not in (tmp_path / "merged.json").read_text()
    assert main([*command, "--snap-overlaps", "-1"]) == 2


def test_merge_refuses_options_that_do_not_fit(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json", [kernel(0, 10_000)])
    with pytest.raises(ConfigError, match="one of all, ids, none"):
        merge_traces(str(tmp_path / "merged.json"), [str(path)], args="some")
    with pytest.raises(ConfigError, match="as they are"):
        merge_traces(str(tmp_path / "merged.zip"), [str(path)], snap_overlaps_ns=5)
