"""Alignment on real traces of 8 GPUs, whose clocks a test sets wrong: 8 NCCL kernels, no host name, no process groups."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.golden.test_merge_golden import DLRM
from tracekit.formats.decimal_time import format_us
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine
    from tests.real_traces import RealTraces

WITHIN_NS = 10_000
HOST_NS = 137_000_000


def read(path: Path, by_ns: int = 0) -> dict[str, Any]:
    """Return a trace whose times are moved, and integer ns."""
    trace: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    for event in trace["traceEvents"]:
        if "ts" in event:
            event["ts"] = event["ts"] * 1000 + by_ns
    return trace


def write(path: Path, trace: dict[str, Any], **header: Any) -> str:
    """Write a trace whose times are integer ns."""
    events = [
        {**event, "ts": f"@{format_us(event['ts']).decode()}@"} if "ts" in event else event
        for event in trace["traceEvents"]
    ]
    path.write_text(json.dumps({**trace, **header, "traceEvents": events}).replace('"@', "").replace('@"', ""))
    return str(path)


def moved(traces: RealTraces, folder: Path, added_ns: list[int]) -> list[str]:
    """Write the traces of 4 ranks with clocks that are off."""
    sources = enumerate(zip(DLRM, added_ns, strict=True))
    return [write(folder / f"{rank}.json", read(traces / name, by_ns)) for rank, (name, by_ns) in sources]


@pytest.mark.parametrize("seed", range(3))
def test_random_offsets_are_found_again_within_10_us_and_the_stated_bound(
    traces: RealTraces, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    added = [chance.randint(-5_000_000_000, 5_000_000_000) for _ in DLRM]
    report = merge_traces(str(tmp_path / "merged.json"), moved(traces, tmp_path, added), strict=True)
    for rank, clock in enumerate(report.ranks):
        wrong_ns = clock.offset_ns - (added[0] - added[rank])
        assert clock.error_ns is not None
        assert abs(wrong_ns) <= min(WITHIN_NS, clock.error_ns)
        assert clock.error_ns <= 2 * WITHIN_NS
        assert clock.aligned
    assert [clock.source for clock in report.ranks] == ["reference", *["collectives"] * 3]
    assert report.warnings == []


def test_ranks_of_one_clock_are_not_moved(traces: RealTraces, tmp_path: Path) -> None:
    report = merge_traces(str(tmp_path / "merged.json"), [str(traces / name) for name in DLRM], strict=True)
    assert [clock.offset_ns for clock in report.ranks] == [0, 0, 0, 0]
    assert report.ranks[1].clock.startswith("wall clock, within 1")


@pytest.mark.parametrize("options", ["full", "plain", "shapes"])
def test_offsets_of_ranks_without_gpus_are_found_within_the_stated_bound(
    traces: RealTraces, tmp_path: Path, options: str
) -> None:
    """Members of a collective of gloo leave it up to 1.5 ms apart; both ranks were of one host, so that the truth is known."""
    paths = []
    for rank in (0, 1):
        source = traces / f"torch_2.13_gloo/{options}_rank{rank}_step4.json.gz"
        trace = json.loads(gzip.decompress(source.read_bytes()))
        trace |= {"host_name": f"host {rank}", "baseTimeNanoseconds": trace["baseTimeNanoseconds"] + rank * HOST_NS}
        paths.append(str(tmp_path / f"{rank}.json"))
        (tmp_path / f"{rank}.json").write_text(json.dumps(trace))
    clock = merge_traces(str(tmp_path / "merged.json"), paths, strict=True).ranks[1]
    assert clock.aligned
    assert clock.error_ns is not None
    assert abs(clock.offset_ns + HOST_NS) <= clock.error_ns < 20_000_000


@pytest.mark.parametrize("ending", ["json", "pftrace"])
def test_perfetto_draws_the_arrows_of_collectives_that_end_together(
    engine: Engine, traces: RealTraces, tmp_path: Path, ending: str
) -> None:
    output = tmp_path / f"merged.{ending}"
    paths = moved(traces, tmp_path, [rank * 1_000_000_007 for rank in range(4)])
    report = merge_traces(str(output), paths, collective_flows=True, strict=True)
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
    assert spreads[0][0] == pytest.approx(7116, abs=20)
