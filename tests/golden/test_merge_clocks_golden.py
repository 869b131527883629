"""Alignment on real traces of 8 GPUs, whose clocks a test sets wrong: 8 NCCL kernels, no host name, no process groups."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.golden.test_merge_golden import DLRM, absolute
from tracekit.errors import MergeError
from tracekit.formats.decimal_time import format_us
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.perfetto import Engine
    from tests.real_traces import RealTraces

WITHIN_NS = 10_000
HOST_NS = 137_000_000
BASE_US = 1_690_000_000_000_000
LATER_US = BASE_US + 1_000_000


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def write(path: Path, trace: dict[str, Any], encode: Callable[[int], str], **header: Any) -> str:
    """Write a trace whose times are integer ns as ``encode`` writes them."""
    events = [{**event, "ts": f"@{encode(event['ts'])}@"} if "ts" in event else event for event in trace["traceEvents"]]
    text = json.dumps({**trace, **header, "traceEvents": events}).replace('"@', "").replace('@"', "")
    path.write_text(text)
    return str(path)


def decimals(ns: int) -> str:
    return format_us(ns).decode()


def in_ns(trace: dict[str, Any], by_ns: int = 0) -> dict[str, Any]:
    events = [{**event, "ts": event["ts"] * 1000 + by_ns} if "ts" in event else event for event in trace["traceEvents"]]
    return {**trace, "traceEvents": events}


@pytest.mark.parametrize("seed", range(6))
def test_random_offsets_are_found_again_within_10_us_and_the_stated_bound(
    traces: RealTraces, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    added = [chance.randint(-5_000_000_000, 5_000_000_000) for _ in DLRM]
    if seed % 2:
        added[0] = 0
    paths = [
        write(tmp_path / f"{rank}.json", in_ns(read(traces / name), by_ns), decimals)
        for rank, (name, by_ns) in enumerate(zip(DLRM, added, strict=True))
    ]
    report = merge_traces(str(tmp_path / "merged.json"), paths, strict=True)
    for rank, clock in enumerate(report.ranks):
        wrong_ns = clock.offset_ns - (added[0] - added[rank])
        assert abs(wrong_ns) <= WITHIN_NS
        assert clock.error_ns is not None
        assert abs(wrong_ns) <= clock.error_ns <= 2 * WITHIN_NS
        assert clock.aligned
    assert [clock.source for clock in report.ranks] == ["reference", *["collectives"] * 3]
    assert report.warnings == []


@pytest.mark.parametrize("options", ["full", "plain", "shapes"])
def test_offsets_of_ranks_without_gpus_are_found_within_the_stated_bound(
    traces: RealTraces, tmp_path: Path, options: str
) -> None:
    """Members of a collective of gloo leave it up to 1.5 ms apart; both ranks were of one host, so that the truth is known."""
    paths = []
    for rank in (0, 1):
        trace = json.loads(
            gzip.decompress((traces / f"torch_2.13_gloo/{options}_rank{rank}_step4.json.gz").read_bytes())
        )
        trace["host_name"] = f"host {rank}"
        trace["baseTimeNanoseconds"] += rank * HOST_NS
        paths.append(str(tmp_path / f"{rank}.json"))
        (tmp_path / f"{rank}.json").write_text(json.dumps(trace))
    clock = merge_traces(str(tmp_path / "merged.json"), paths, strict=True).ranks[1]
    assert clock.aligned
    assert clock.error_ns is not None
    assert abs(clock.offset_ns + HOST_NS) <= clock.error_ns < 20_000_000


def test_one_host_that_is_137_ms_off_is_found_and_its_ranks_stay_together(traces: RealTraces, tmp_path: Path) -> None:
    paths = []
    for rank, name in enumerate(DLRM):
        off = rank >= 2
        trace = in_ns(read(traces / name), HOST_NS if off else 0)
        paths.append(write(tmp_path / f"{rank}.json", trace, decimals, host_name="b" if off else "a"))
    report = merge_traces(str(tmp_path / "merged.json"), paths, strict=True)
    offsets = [clock.offset_ns for clock in report.ranks]
    assert offsets[:2] == [0, 0]
    assert offsets[2] == offsets[3]
    assert abs(offsets[2] + HOST_NS) <= WITHIN_NS
    assert [clock.source for clock in report.ranks] == ["reference", "shared", "collectives", "collectives"]
    assert f"clock of ranks 2-3: {report.ranks[2].clock}" in report.lines()
    assert report.ranks[2].clock.startswith("-13")


def test_ranks_of_one_clock_are_not_moved(traces: RealTraces, tmp_path: Path) -> None:
    report = merge_traces(str(tmp_path / "merged.json"), [str(traces / name) for name in DLRM], strict=True)
    assert [clock.offset_ns for clock in report.ranks] == [0, 0, 0, 0]
    assert report.ranks[1].clock.startswith("wall clock, within 1")


@pytest.mark.parametrize(
    "by_ns", [pytest.param(0, id="in step", marks=pytest.mark.slow), pytest.param(2_345_678_000, id="2.3 s off")]
)
def test_the_way_instants_are_written_does_not_matter(traces: RealTraces, tmp_path: Path, by_ns: int) -> None:
    sources = [in_ns(read(traces / name), rank * by_ns) for rank, name in enumerate(DLRM)]
    plain = [
        write(tmp_path / f"plain{rank}.json", trace, lambda ns: str(ns // 1000)) for rank, trace in enumerate(sources)
    ]
    ways: list[tuple[Callable[[int], str], dict[str, Any]]] = [
        (lambda ns: str(ns // 1000), {}),
        (decimals, {}),
        (lambda ns: decimals(ns - BASE_US * 1000), {"baseTimeNanoseconds": BASE_US * 1000}),
        (lambda ns: decimals(ns - LATER_US * 1000), {"baseTimeNanoseconds": LATER_US * 1000}),
    ]
    for turn in range(4):
        mixed = [
            write(tmp_path / f"mixed{turn}{rank}.json", trace, ways[(rank + turn) % 4][0], **ways[(rank + turn) % 4][1])
            for rank, trace in enumerate(sources)
        ]
        merge_traces(str(tmp_path / f"mixed{turn}.json"), mixed, strict=True)
        merge_traces(str(tmp_path / "plain.json"), plain, strict=True, overwrite=True)
        assert absolute(tmp_path / f"mixed{turn}.json") == absolute(tmp_path / "plain.json")


def kernels(trace: dict[str, Any]) -> list[dict[str, Any]]:
    found = [event for event in trace["traceEvents"] if str(event.get("name", "")).startswith("ncclKernel")]
    return sorted(found, key=lambda event: event["ts"])


def test_ranks_whose_collectives_do_not_correspond_are_refused(traces: RealTraces, tmp_path: Path) -> None:
    """The trap: both have NCCL kernels, but the k-th of one is not the k-th of the other."""
    first, second = in_ns(read(traces / DLRM[0])), in_ns(read(traces / DLRM[1]), HOST_NS)
    chance = random.Random(3)
    for event in kernels(second):
        event["ts"] += chance.randint(-6_000_000, 6_000_000)
    paths = [
        write(tmp_path / f"{rank}.json", trace, decimals, host_name=f"host {rank}")
        for rank, trace in enumerate((first, second))
    ]
    report = merge_traces(str(tmp_path / "merged.json"), paths)
    clock = report.ranks[1]
    assert (clock.source, clock.aligned, clock.offset_ns, clock.error_ns) == ("wall", False, 0, None)
    assert any("rank 1 is not aligned" in warning for warning in report.warnings)
    assert any(line.startswith("clock of rank 1: NOT ALIGNED: wall clock") for line in report.lines())
    with pytest.raises(MergeError, match="rank 1 is not aligned"):
        merge_traces(str(tmp_path / "strict.json"), paths, strict=True)
    assert not (tmp_path / "strict.json").exists()


def test_different_parts_of_a_run_are_refused(traces: RealTraces, tmp_path: Path) -> None:
    first, second = in_ns(read(traces / DLRM[0])), in_ns(read(traces / DLRM[1]))
    for trace, gone in ((first, slice(4, None)), (second, slice(0, 4))):
        left_out = [id(event) for event in kernels(trace)[gone]]
        trace["traceEvents"] = [event for event in trace["traceEvents"] if id(event) not in left_out]
    paths = [write(tmp_path / f"{rank}.json", trace, decimals) for rank, trace in enumerate((first, second))]
    report = merge_traces(str(tmp_path / "merged.json"), paths)
    assert not report.ranks[1].aligned


def test_perfetto_shows_the_kernels_of_a_collective_ending_together(
    engine: Engine, traces: RealTraces, tmp_path: Path
) -> None:
    paths = [
        write(tmp_path / f"{rank}.json", in_ns(read(traces / name), rank * 1_000_000_007), decimals)
        for rank, name in enumerate(DLRM)
    ]
    output = tmp_path / "merged.json"
    merge_traces(str(output), paths, strict=True)
    with engine.load(output) as loaded:
        assert loaded.errors() == []
        rows = loaded.rows(
            "select ts + dur from slice where name glob 'ncclKernel*' and category = 'kernel' order by 1"
        )
    ends = [end for (end,) in rows]
    assert len(ends) == 32
    assert all(ends[at + 3] - ends[at] < 20_000 for at in range(0, 32, 4))


@pytest.mark.parametrize("ending", ["json", "pftrace"])
def test_perfetto_draws_the_arrows_of_collectives(
    engine: Engine, traces: RealTraces, tmp_path: Path, ending: str
) -> None:
    output = tmp_path / f"merged.{ending}"
    report = merge_traces(str(output), [str(traces / name) for name in DLRM], collective_flows=True, strict=True)
    assert report.collective_events_added == 8 * (4 + 1)
    with engine.load(output) as loaded:
        assert loaded.errors() == []
        arrows = loaded.rows(
            "select from_.ts, to_.ts, from_.ts + from_.dur, to_.ts + to_.dur from flow "
            "join slice from_ on from_.id = slice_out join slice to_ on to_.id = slice_in "
            "where from_.name glob 'ncclKernel*' and to_.name glob 'ncclKernel*'"
        )
        spreads = loaded.rows(
            "select value from counter join process_counter_track track on track.id = track_id "
            "where name glob 'arrival spread*' order by ts"
        )
    assert len(arrows) == 8 * 3
    assert all(first <= second and abs(end - other) < 20_000 for first, second, end, other in arrows)
    assert len(spreads) == 8
    assert spreads[0][0] == pytest.approx(7116, abs=2)


def test_a_merge_is_merged_again_without_moving_it_again(traces: RealTraces, tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"{rank}.json", in_ns(read(traces / name), rank * 1_000_000_007), decimals)
        for rank, name in enumerate(DLRM)
    ]
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    report = merge_traces(str(whole), paths)
    again = merge_traces(str(tmp_path / "again.json"), [str(whole)], strict=True)
    assert absolute(tmp_path / "again.json") == absolute(whole)
    assert again.ranks == report.ranks
    merge_traces(str(part), paths[:2])
    later = merge_traces(str(tmp_path / "later.json"), [str(part), *paths[2:]], strict=True)
    assert absolute(tmp_path / "later.json") == absolute(whole)
    assert [clock.offset_ns for clock in later.ranks] == [clock.offset_ns for clock in report.ranks]
