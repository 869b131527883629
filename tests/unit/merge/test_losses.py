"""A merge names the losses of the recordings: in its report, in words, and in the merged trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.merge_inputs import event, meta
from tests.merge_inputs import rank_trace as rank_trace_of
from tests.merged_tables import losses
from tracekit import JSONTraceHandler, Profiler, TraceHandler
from tracekit.merge import merge_traces
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from tracekit.merge import MergeReport

GAP = "tracekit.gap"
CLEAN = ("tracekit_summary", {"slices": 1, "instants": 0, "counters": 0, "dropped": {}, "failures": {}})


def rank_trace(
    rank: int, *told: tuple[str, dict[str, Any]], closed: bool = True, at: int = 5, pid: int | None = None, **own: Any
) -> str:
    pid = 100 + rank if pid is None else pid
    metadata = [meta(name, pid, pid, **args) for name, args in told if name != GAP]
    gaps = [event(GAP, 6, ph="i", s="p", pid=pid, tid=pid, args=args) for name, args in told if name == GAP]
    events = [*metadata, event("a", at, pid=pid, tid=pid), *gaps]
    lines = rank_trace_of(*events, rank=rank, pid=pid, **own)
    return "[\n" + ",\n".join(map(json.dumps, lines)) + ("\n]\n" if closed else ",\n")


def summary(failures: dict[str, int] | None = None, **dropped: int) -> tuple[str, dict[str, Any]]:
    lost = {name.replace("_", " "): count for name, count in dropped.items()}
    return "tracekit_summary", {**CLEAN[1], "dropped": lost, "failures": failures or {}}


@pytest.fixture
def lost(merge: Any) -> Any:
    """Merge traces, and return the report and what it tells of losses, as the merged trace tells as well."""

    def _lost(*traces: str) -> tuple[MergeReport, list[tuple[Any, ...]]]:
        merged, report = merge({f"{number}.json": text for number, text in enumerate(traces)})
        told = report.recording_losses
        found = [(loss.rank, Path(loss.path).name, loss.kind, loss.reason, loss.count) for loss in told]
        assert [tuple(entry.values()) for entry in losses(merged)] == found
        again, report_again = merge({"merged.json": merged})
        assert losses(again) == losses(merged)
        assert [(loss.rank, loss.kind, loss.reason, loss.count) for loss in report_again.recording_losses] == [
            (loss.rank, loss.kind, loss.reason, loss.count) for loss in told
        ]
        return report, found

    return _lost


def test_a_whole_recording_lost_nothing(lost: Any) -> None:
    report, found = lost(rank_trace(0, CLEAN), rank_trace(1, CLEAN))
    assert found == []
    assert report.lines()[0].endswith(", nothing lost")


def test_what_a_summary_says_is_told_by_rank_and_reason(lost: Any) -> None:
    told = summary({"Mine.process_events": 2}, events_beyond_limits=7)
    report, found = lost(rank_trace(0, CLEAN), rank_trace(3, told))
    assert found == [
        (3, "1.json", "dropped", "events beyond limits", 7),
        (3, "1.json", "failed", "Mine.process_events", 2),
    ]
    assert report.complete
    lines, path = report.lines(), report.inputs[1].path
    assert lines[0].endswith(", nothing lost in the merge")
    assert f"lost while recording: rank 3: 7 events beyond limits ({path})" in lines
    assert f"failed while recording: rank 3: Mine.process_events 2 times ({path})" in lines


@pytest.mark.parametrize(
    ("told", "count"),
    [
        ([("tracekit_loss", {"lost_events": 5})], 5),
        ([(GAP, {"lost_events": 3}), (GAP, {"lost_events": 4})], 7),
        ([("tracekit_loss", {"lost_events": 5}), (GAP, {"lost_events": 5})], 5),
        ([("tracekit_loss", {"lost_events": 0})], None),
        ([("tracekit_loss", {"lost_events": "5"}), (GAP, {})], None),
        ([("tracekit_dump", {"reasons": ["asked for"], "events": 1, "dropped": 10})], None),
    ],
)
def test_without_a_summary_the_counts_of_the_file_are_the_least(
    lost: Any, told: list[tuple[str, dict[str, Any]]], count: int | None
) -> None:
    reason = "events that could not be written, at least"
    closed = told[0][0] != "tracekit_dump"  # a dump of a flight recorder has no end
    assert lost(rank_trace(0, *told, closed=closed))[1] == (
        [] if count is None else [(0, "0.json", "dropped", reason, count)]
    )


def test_recordings_that_did_not_end_are_said_to_be_cut(lost: Any) -> None:
    report, found = lost(rank_trace(0, CLEAN), rank_trace(1, closed=False), rank_trace(2, closed=False))
    assert [(rank, kind, count) for rank, _, kind, _, count in found] == [(1, "cut", None), (2, "cut", None)]
    why = "the file ends without its summary; killed, or still running"
    assert f"cut while recording: ranks 1-2: {why}" in report.lines()


def test_only_the_last_file_of_a_recording_needs_the_summary_which_counts_for_all(lost: Any) -> None:
    first, last = rank_trace(0, at=5), rank_trace(0, at=50, closed=False)
    assert [loss[:3] for loss in lost(first, last)[1]] == [(0, "1.json", "cut")]
    first = rank_trace(0, ("tracekit_loss", {"lost_events": 5}), at=5, closed=False)
    assert lost(first, rank_trace(0, summary(unwritten=5), at=50))[1] == [(0, "1.json", "dropped", "unwritten", 5)]


def test_each_process_of_a_rank_has_its_own_account(lost: Any) -> None:
    first = rank_trace(0, attempt=0, closed=False)
    second = rank_trace(0, CLEAN, attempt=1, pid=200, at=500)
    child = rank_trace(0, summary(lost=1), parent_pid=200, pid=201, worker=0, at=600)
    assert [loss[1:4] for loss in lost(first, second, child)[1]] == [
        ("0.json", "cut", "the file ends without its summary"),
        ("2.json", "dropped", "lost"),
    ]


class Failing(TraceHandler):
    """Cannot do anything."""

    def process_events(self, batch: Any) -> None:
        raise RuntimeError("no")


def test_a_real_recording_that_failed_and_was_cut(tmp_path: Path) -> None:
    clock = FakeClock(tick_ns=1)
    live, whole, output = tmp_path / "live.json", tmp_path / "rank0.json", tmp_path / "merged.json"
    handlers = [JSONTraceHandler(whole), Failing()]
    with Profiler(handlers, rank=0, run_id="r", clock=clock.clock, flush_interval=3600) as profiler:
        with profiler.marker("a"):
            clock.advance(1000)
        profiler.flush()
        live.write_bytes(whole.read_bytes())
    report = merge_traces(str(output), [str(whole)])
    assert [(loss.kind, loss.reason) for loss in report.recording_losses] == [("failed", "Failing.process_events")]
    report = merge_traces(str(output), [str(live)], overwrite=True)
    assert [loss.kind for loss in report.recording_losses] == ["cut"]
