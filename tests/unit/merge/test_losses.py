"""What the ranks lost while they recorded is told by the merge: in its report, in words, and in the merged trace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import JSONTraceHandler, Profiler, TraceHandler
from tracekit.check.schemas import MERGE_REPORT, compile_schema
from tracekit.merge import merge_traces
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.merge import MergeReport

BASE_NS = 1_790_857_026_000_000_000


def rank_trace(rank: int, *metadata: tuple[str, dict[str, Any]], closed: bool = True, **own: Any) -> str:
    identity = {"rank": rank, "pid": 100 + rank, "host": "h", "baseTimeNanoseconds": BASE_NS, **own}
    pid = identity["pid"]
    events = [{"ph": "M", "name": "tracekit_metadata", "pid": pid, "tid": pid, "args": identity}]
    events += [
        {"ph": "M", "name": name, "pid": pid, "tid": pid, "args": args} for name, args in metadata if name != GAP
    ]
    events += [{"ph": "X", "name": "a", "pid": pid, "tid": pid, "ts": own.get("at", 5), "dur": 2}]
    gaps = [args for name, args in metadata if name == GAP]
    events += [{"ph": "i", "s": "p", "name": GAP, "pid": pid, "tid": pid, "ts": 6, "args": args} for args in gaps]
    return "[\n" + ",\n".join(map(json.dumps, events)) + ("\n]\n" if closed else ",\n")


GAP = "tracekit.gap"
CLEAN = ("tracekit_summary", {"slices": 1, "instants": 0, "counters": 0, "dropped": {}, "failures": {}})


def summary(failures: dict[str, int] | None = None, **dropped: int) -> tuple[str, dict[str, Any]]:
    lost = {name.replace("_", " "): count for name, count in dropped.items()}
    return "tracekit_summary", {**CLEAN[1], "dropped": lost, "failures": failures or {}}


@pytest.fixture
def merge(tmp_path: Path) -> Any:
    def _merge(*traces: str) -> tuple[MergeReport, list[tuple[Any, ...]]]:
        paths = []
        for number, text in enumerate(traces):
            paths.append(str(tmp_path / f"{number}.json"))
            (tmp_path / f"{number}.json").write_text(text)
        report = merge_traces(str(tmp_path / "merged.json"), paths, overwrite=True)
        assert compile_schema(MERGE_REPORT)(json.loads(json.dumps(report.to_json()))) is None
        head = json.loads((tmp_path / "merged.json").read_text())["tracekitTotals"]["losses"]
        found = [
            (loss.rank, loss.path.rpartition("/")[2], loss.kind, loss.reason, loss.count)
            for loss in report.recording_losses
        ]
        assert [tuple(entry.values()) for entry in head] == found
        return report, found

    return _merge


def test_a_whole_recording_lost_nothing(merge: Any) -> None:
    report, found = merge(rank_trace(0, CLEAN), rank_trace(1, CLEAN))
    assert found == []
    assert report.lines()[0].endswith(", nothing lost")


def test_what_a_summary_says_is_told_by_rank_and_reason(merge: Any) -> None:
    report, found = merge(
        rank_trace(0, CLEAN), rank_trace(3, summary({"Mine.process_events": 2}, events_beyond_limits=7))
    )
    assert found == [
        (3, "1.json", "dropped", "events beyond limits", 7),
        (3, "1.json", "failed", "Mine.process_events", 2),
    ]
    assert report.complete
    lines = report.lines()
    assert lines[0].endswith(", nothing lost in the merge")
    path = report.inputs[1].path
    assert f"lost while recording: rank 3: 7 events beyond limits ({path})" in lines
    assert f"failed while recording: rank 3: Mine.process_events 2 times ({path})" in lines


def test_a_summary_counts_for_all_files_of_its_recording(merge: Any) -> None:
    files = [rank_trace(0, ("tracekit_loss", {"lost_events": 5}), at=5), rank_trace(0, summary(unwritten=5), at=50)]
    assert merge(*files)[1] == [(0, "1.json", "dropped", "unwritten", 5)]


@pytest.mark.parametrize(
    ("told", "count"),
    [
        ([("tracekit_loss", {"lost_events": 5})], 5),
        ([(GAP, {"lost_events": 3}), (GAP, {"lost_events": 4})], 7),
        ([("tracekit_loss", {"lost_events": 5}), (GAP, {"lost_events": 5})], 5),
        ([("tracekit_loss", {"lost_events": 0})], None),
        ([("tracekit_loss", {"lost_events": "5"}), (GAP, {})], None),
    ],
)
def test_without_a_summary_the_counts_of_the_file_are_the_least(
    merge: Any, told: list[tuple[str, dict[str, Any]]], count: int | None
) -> None:
    _, found = merge(rank_trace(0, *told))
    assert found == (
        [] if count is None else [(0, "0.json", "dropped", "events that could not be written, at least", count)]
    )


def test_a_recording_that_did_not_end_is_said_to_be_cut(merge: Any) -> None:
    report, found = merge(rank_trace(0, CLEAN), rank_trace(1, closed=False), rank_trace(2, closed=False))
    assert [(rank, kind, count) for rank, _, kind, _, count in found] == [(1, "cut", None), (2, "cut", None)]
    assert (
        "cut while recording: ranks 1-2: the file ends without its summary; killed, or still running" in report.lines()
    )


def test_only_the_last_file_of_a_recording_needs_the_summary(merge: Any) -> None:
    first, last = rank_trace(0, at=5), rank_trace(0, at=50, closed=False)
    assert [loss[:3] for loss in merge(first, last)[1]] == [(0, "1.json", "cut")]
    assert merge(rank_trace(0, at=5, closed=False), rank_trace(0, CLEAN, at=50))[1] == []


def test_a_dump_of_a_flight_recorder_has_no_summary(merge: Any) -> None:
    dump = ("tracekit_dump", {"reasons": ["asked for"], "events": 1, "dropped": 10})
    assert merge(rank_trace(0, dump, closed=False))[1] == []


def test_each_process_of_a_rank_has_its_own_account(merge: Any) -> None:
    first = rank_trace(0, attempt=0, run_id="r", pid=100, closed=False)
    second = rank_trace(0, CLEAN, attempt=1, run_id="r", pid=200, at=500)
    child = rank_trace(0, summary(lost=1), parent_pid=200, run_id="r", pid=201, worker=0, at=600)
    assert [loss[1:4] for loss in merge(first, second, child)[1]] == [
        ("0.json", "cut", "the file ends without its summary"),
        ("2.json", "dropped", "lost"),
    ]


def test_a_merge_of_a_merge_passes_it_on(merge: Any, tmp_path: Path) -> None:
    _, once = merge(rank_trace(1, summary(lost=3)), rank_trace(2, closed=False))
    (tmp_path / "first.json").write_bytes((tmp_path / "merged.json").read_bytes())
    report = merge_traces(str(tmp_path / "again.json"), [str(tmp_path / "first.json")])
    again = [(loss.rank, loss.path, loss.kind, loss.reason, loss.count) for loss in report.recording_losses]
    assert again == once
    assert (
        json.loads((tmp_path / "again.json").read_text())["tracekitTotals"]["losses"]
        == (json.loads((tmp_path / "first.json").read_text())["tracekitTotals"]["losses"])
    )


class Failing(TraceHandler):
    """Cannot do anything."""

    def process_events(self, batch: Any) -> None:
        raise RuntimeError("no")


def test_a_real_recording_that_failed_and_was_cut(tmp_path: Path) -> None:
    clock = FakeClock(tick_ns=1)
    live, whole, output = tmp_path / "live.json", tmp_path / "rank0.json", tmp_path / "merged.json"
    with Profiler(
        [JSONTraceHandler(whole), Failing()], rank=0, run_id="r", clock=clock.clock, flush_interval=3600
    ) as profiler:
        with profiler.marker("a"):
            clock.advance(1000)
        profiler.flush()
        live.write_bytes(whole.read_bytes())
    report = merge_traces(str(output), [str(whole)])
    assert [(loss.kind, loss.reason) for loss in report.recording_losses] == [("failed", "Failing.process_events")]
    report = merge_traces(str(output), [str(live)], overwrite=True)
    assert [loss.kind for loss in report.recording_losses] == ["cut"]
