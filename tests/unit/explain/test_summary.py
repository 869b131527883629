"""Summaries of traces that tests write; `tests/golden/test_summary_golden.py` holds the figures to Perfetto's engine."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.benchmarks.merge_inputs import Inputs
from tests.benchmarks.summary_speed import measure
from tracekit import diff_traces, find_stragglers, summarize_traces
from tracekit.cli import main
from tracekit.errors import ConfigError
from tracekit.explain.summary_results import summary_lines
from tracekit.explain.text import certainty, duration, shortened, shortened_apart, table

if TYPE_CHECKING:
    from tracekit.explain.summary_results import MarkerSummary, TraceSummary


def x(name: str, ts: float, dur: float, tid: Any = 1, pid: Any = 1, cat: str = "m", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": pid, "tid": tid, **more}


def batch(number: Any, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    return x("batch", ts, dur, cat="training loop", **{"tid": 9, "args": {"batch": number}, **more})


def mark(ph: str, name: str | None, ts: float, **more: Any) -> dict[str, Any]:
    event = {"ph": ph, "cat": "m", "ts": ts, "pid": 1, "tid": 1, **more}
    return event if name is None else {**event, "name": name}


def trace(path: Path, *events: dict[str, Any], **header: Any) -> str:
    path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": list(events)}))
    return str(path)


def summary_of(tmp_path: Path, *events: dict[str, Any], **header: Any) -> TraceSummary:
    return summarize_traces([trace(tmp_path / "trace.json", *events, **header)])


def by_name(summary: TraceSummary) -> dict[str, MarkerSummary]:
    return {marker.name: marker for marker in summary.markers}


# Markers and steps.


def test_begins_and_ends_are_paired_by_name_and_asynchronous_ones_by_id(tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path,
        mark("B", "a", 0, args={"x": 1}),
        mark("B", "b", 4),
        mark("E", None, 10),  # ends b
        mark("E", "a", 12),
        mark("B", "never", 20),
        mark("E", "unknown", 21),
        mark("b", "c", 0, id=1),
        mark("b", "c", 5, id2={"local": 2}),
        mark("e", "c", 30, id=1),
        mark("e", "c", 8, id2={"local": 2}),
        mark("e", "c", 9, id=3),
    )
    assert {one.name: (one.count, one.total_ns, one.self_ns) for one in summary.markers} == {
        "a": (1, 12_000, 6000),
        "b": (1, 6000, 6000),
        "c": (2, 33_000, 33_000),
    }
    assert summary.notes == ["1 slice not counted: they begin and never end"]


@pytest.mark.parametrize(
    "event",
    [
        x("a", 1, -1),
        x("a", 1e300, 1),
        x("a", 1, 1e18),
        {**x("a", 1, 1), "ts": None},
        {**x("a", 1, 1), "dur": "much"},
        {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 5},
        {"ph": "B", "name": "a", "pid": 1, "tid": 1},
    ],
)
def test_event_without_usable_time_is_left_out_and_told(tmp_path: Path, event: dict[str, Any]) -> None:
    summary = summary_of(tmp_path, x("good", 0, 5), event)
    assert [(one.name, one.total_ns) for one in summary.markers] == [("good", 5000)]
    assert summary.incomplete
    assert summary.notes == ["1 event not counted: their time or duration is missing, negative or beyond all bounds"]


def test_steps_of_tracekit_go_before_those_of_torch(tmp_path: Path) -> None:
    loop = {"cat": "training loop", "tid": 9}
    summary = summary_of(
        tmp_path,
        batch(41, 0, 10),
        mark("B", "batch", 10, args={"batch": 42}, **loop),
        mark("E", None, 40, **loop),
        x("ProfilerStep#7", 0, 40, cat="user_annotation"),
        x("forward", 1, 5),
        x("forward", 12, 20),
    )
    rank = summary.ranks[0]
    assert (rank.step_by_step.numbers, rank.step_by_step.durations_ns) == ([41, 42], [10_000, 30_000])
    assert rank.step_by_step.stages_ns == {"forward": [5000, 20_000]}
    assert rank.unrecorded_ns == 15_000
    assert by_name(summary)["forward"].share_of_steps == 25 / 40


def test_slices_on_an_overlap_track_of_a_merge_are_of_their_thread(tmp_path: Path) -> None:
    lane = 3_221_225_472
    names = [(1, "MainThread"), (lane, "MainThread (overlap)")]
    summary = summary_of(
        tmp_path,
        *({"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}} for tid, name in names),
        batch(1, 0, 100),
        x("ProfilerStep#1", 0, 100, tid=lane, cat="user_annotation"),
        x("forward", 1, 9, tid=lane, cat="timer"),
        x("forward", 2, 8),
        x("backward", 10, 50),
        x("optimizer", 60, 30, tid=lane),
    )
    assert summary.ranks[0].training_thread == "MainThread"
    stages = {stage.name: stage.total_ns for stage in summary.ranks[0].stages}
    assert stages == {"forward": 9_000, "backward": 50_000, "optimizer": 30_000}


def test_waiting_for_data_counts_once_where_it_nests_and_only_on_the_training_thread(tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path,
        x("ProfilerStep#0", 0, 100, cat="user_annotation"),
        x("dataloader", 0, 30),
        x("enumerate(DataLoader)#Iter.__next__", 5, 20, cat="user_annotation"),
        x("dataloader", 90, 20),
        x("dataloader prefetch", 0, 95, tid=2),
    )
    loading = summary.ranks[0].loading
    assert loading is not None
    assert (loading.count, loading.total_ns, loading.longest_ns) == (2, 50_000, 30_000)
    assert loading.share_of_steps == 0.5


def test_stages_that_cross_are_cut_and_named_and_never_negative(tmp_path: Path) -> None:
    events = []
    for step in range(8):
        at = 1000 * step
        events += [
            batch(step, at, 1000),
            x("backward", at + 10, 500),  # ends within the slice of another tool that it begins before
            x("nccl:all_reduce", at + 405, 100, cat="user_annotation"),
            x("Optimizer.step", at + 400, 300),
            x("nccl:all_reduce", at + 600, 90, cat="user_annotation"),
        ]
    paths = [trace(tmp_path / f"rank{rank}.json", *events) for rank in (0, 1)]
    summary = summarize_traces(paths)
    for rank in summary.ranks:
        assert {stage.name: stage.total_ns // 8 for stage in rank.stages} == {
            "backward": 400_000,
            "backward > nccl:all_reduce": 100_000,
            "Optimizer.step": 100_000,
            "Optimizer.step > nccl:all_reduce": 90_000,
        }
        assert rank.unrecorded_ns == 8 * 310_000
    assert [note for note in summary.notes if "16 slices" in note and "cross" in note and "Optimizer.step" in note]
    assert all(marker.self_ns >= 0 for marker in summary.markers)
    assert all(stage.exposed_ns >= 0 for stage in find_stragglers(paths).stages)


@pytest.mark.parametrize(("recorded", "waits"), [(8, True), (4, True), (3, False)])
def test_slices_of_torch_next_to_markers_are_stages_only_if_they_wait_and_most_steps_have_them(
    tmp_path: Path, recorded: int, waits: bool
) -> None:
    events = []
    for step in range(8):
        at = 1000 * step
        events += [batch(step, at, 1000), x("forward", at + 10, 300), x("loss", at + 400, 100), x("gap", at + 990, 5)]
        if step < recorded:
            events += [
                x("train", at + 5, 800, cat="user_annotation"),  # encloses markers
                x("aten::add", at + 320, 60, cat="cpu_op"),
                x("nccl:all_reduce", at + 510, 20, cat="user_annotation"),
                x("aten::item", at + 820, 150, cat="cpu_op"),
                x("cudaDeviceSynchronize", at + 971, 10, cat="cuda_runtime"),
            ]
    summary = summary_of(tmp_path, *events)
    own = {"forward": 300_000, "loss": 100_000, "gap": 5_000}
    torch = {"nccl:all_reduce": 20_000 * recorded // 8, "cudaDeviceSynchronize": 10_000 * recorded // 8}
    assert {stage.name: stage.total_ns // 8 for stage in summary.ranks[0].stages} == own | (torch if waits else {})
    # They fill gaps, which are longest where torch recorded nothing.
    assert summary.gaps[0].length_ns == (15_000 if recorded == 8 else 490_000)


def test_slice_that_encloses_all_steps_is_no_stage_and_one_between_them_fills_the_gap(tmp_path: Path) -> None:
    events = []
    for at in (*range(0, 10_000, 1000), *range(60_000, 70_000, 1000)):
        events += [x("batch", at, 1000, cat="training loop", tid=2), x("forward", at, 1000)]
    events += [x("train", 0, 80_000), x("validation", 10_000, 50_000), x("end", 79_000, 1000)]
    summary = summary_of(tmp_path, *events)
    assert [(gap.length_ns, gap.after, gap.before) for gap in summary.gaps] == [(9_000_000, "forward", "end")]
    assert [stage.name for stage in summary.ranks[0].stages] == ["forward"]


def test_pause_between_two_windows_is_no_gap_and_their_first_steps_do_not_count(tmp_path: Path) -> None:
    events, at = [], 0
    for number in (10, 11, 12, 13, 30, 31, 32, 33):
        length = 300 if number in (10, 30) else 100
        events += [
            batch(number, at, length),
            x("forward", at, length - 40),
            x("backward", at + length - 30, 30),
            x("kernel", at + 5, length - 60, tid=7, pid="gpu", cat="kernel"),
        ]
        at += length + (1_000_000 if number == 13 else 0)
    summary = summary_of(tmp_path, *events)
    assert {gap.where for gap in summary.gaps} == {"thread 1", "gpu"}
    assert max(gap.length_ns for gap in summary.gaps) == 60_000
    assert summary.ranks[0].steps.mean_ns == 100_000


# Files and ranks.


def test_rank_is_taken_from_the_trace_from_its_name_or_assumed(tmp_path: Path) -> None:
    trace(tmp_path / "a.json", x("a", 0, 1), distributedInfo={"rank": 2})
    trace(tmp_path / "rank_1.json", x("a", 0, 1))
    trace(tmp_path / "other.json", x("a", 0, 1))
    of_composer = {"ph": "M", "name": "global_rank", "pid": 7, "tid": 1, "args": {"value": 7}}
    (tmp_path / "composer.json").write_text(json.dumps([of_composer, x("a", 0, 1, pid=7)]))
    summary = summarize_traces([str(tmp_path)])
    assert [rank.rank for rank in summary.ranks] == [0, 1, 2, 7]
    assert summary.notes == [f"{tmp_path / 'other.json'} does not state its rank; it is called rank 0"]


def test_several_files_of_one_thread_are_one_thread(tmp_path: Path) -> None:
    # Segments of one rank trace, and a torch trace of the same process with another base.
    own = {"rank": 0, "pid": 1, "baseTimeNanoseconds": 5000}
    for number in range(3):
        events = [
            mark("M", "tracekit_metadata", 0, args=own),
            batch(number, 100 * number, 100),
            x("forward", 100 * number + 10, 50, cat=""),
        ]
        (tmp_path / f"rank0.{number}.json").write_text(json.dumps(events))
    trace(tmp_path / "torch_rank0.json", x("aten::mm", 25, 20, cat="cpu_op"), baseTimeNanoseconds=1000)
    summary = summarize_traces([str(tmp_path)])
    assert summary.ranks[0].step_by_step.stages_ns == {"forward": [50_000] * 3}
    assert by_name(summary)["forward"].self_ns == 130_000  # without aten::mm, which is in another file
    assert [gap.length_ns for gap in summary.gaps] == [50_000, 50_000]


def test_slowest_rank_is_named_and_each_rank_has_the_name_of_its_thread(tmp_path: Path) -> None:
    for rank, length in enumerate((10, 11, 15)):
        name = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": f"main {rank}"}}
        step = x("ProfilerStep#1", 0, length, cat="user_annotation")
        trace(tmp_path / f"rank{rank}.json", name, step, x("forward", 0, 5))
    summary = summarize_traces([str(tmp_path)])
    assert [rank.training_thread for rank in summary.ranks] == ["main 0", "main 1", "main 2"]
    slowest = summary.slowest_rank
    assert slowest is not None
    assert (slowest.rank, slowest.step_mean_ns, slowest.median_of_ranks_ns) == (2, 15_000, 11_000)


def attempt(path: Path, number: int, steps: range, run_id: str = "run") -> str:
    """Write one attempt of rank 0: steps of 100 us with a forward of 60 us."""
    own = {"rank": 0, "run_id": run_id, "attempt": number, "pid": 10 + number, "host": "h", "start_ticks": 7 + number}
    pid = 10 + number
    events = [mark("M", "tracekit_metadata", 0, pid=pid, args=own)]
    for step in steps:
        events += [batch(step, 100 * step, 100, tid=1, pid=pid), x("forward", 100 * step, 60, pid=pid)]
    path.write_text(json.dumps(events))
    return str(path)


def test_stages_of_all_attempts_of_a_rank_count(tmp_path: Path) -> None:
    for number, steps in enumerate((range(5), range(5, 20))):
        attempt(tmp_path / f"rank0.attempt{number}.json", number, steps)
    # A busier process without steps is not joined with them.
    trace(tmp_path / "rank0.worker.json", x("fetch", 0, 2000, pid=99))
    rank = summarize_traces([str(tmp_path)]).ranks[0]
    assert (rank.steps.count, rank.unrecorded_ns) == (20, 20 * 40_000)
    assert [(stage.name, stage.total_ns) for stage in rank.stages] == [("forward", 20 * 60_000)]
    assert rank.step_by_step.stages_ns == {"forward": [60_000] * 20}


def test_several_runs_of_one_rank_are_not_mixed(tmp_path: Path) -> None:
    first = attempt(tmp_path / "first.json", 0, range(20), "monday")
    second = attempt(tmp_path / "second.json", 1, range(20, 40), "tuesday")
    message = r"rank 0 has traces of 2 runs: 'monday' \(.*first.json\), 'tuesday' \(.*second.json\); name the traces of one run"
    for analyse in (summarize_traces, find_stragglers, lambda paths: diff_traces([second], paths)):
        with pytest.raises(ConfigError, match=message):
            analyse([first, second])
    assert diff_traces([first], [second]).compared == 2


def test_process_that_makes_up_a_run_each_time_it_records_is_one(tmp_path: Path) -> None:
    runs = (("a", range(5)), ("b", range(5, 9)))
    paths = [attempt(tmp_path / f"{name}.json", 0, steps, name) for name, steps in runs]
    # Another process, such as a child, joins them, whichever comes first.
    paths += [attempt(tmp_path / f"0{name}.json", 3, range(0), name) for name, _ in runs]
    assert summarize_traces(paths).ranks[0].steps.count == 9


def test_trace_counts_once_and_copies_of_it_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(attempt(tmp_path / "r.json", 0, range(20)))
    (tmp_path / "link.json").symlink_to("r.json")
    for names in (["r.json", "./r.json"], ["r.json", str(tmp_path)], ["r.json", "link.json"]):
        assert by_name(summarize_traces(names))["forward"].count == 20
    (tmp_path / "r.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(
        ConfigError, match=r"r\.json and .*r\.json\.gz are copies of one trace, which would count twice"
    ):
        summarize_traces([str(tmp_path)])
    (tmp_path / "r.json.gz").unlink()
    # Neither are parts of one trace copies, nor traces that differ in their content only.
    attempt(tmp_path / "part2.json", 0, range(20, 40))
    (tmp_path / "s.json").write_text(path.read_text().replace("forward", "reverse"))
    counts = {marker.name: marker.count for marker in summarize_traces([str(tmp_path)]).markers}
    assert (counts["forward"], counts["reverse"]) == (40, 20)


def test_merge_beside_its_inputs_is_told(tmp_path: Path) -> None:
    path, merged = attempt(tmp_path / "r.json", 0, range(20)), str(tmp_path / "merged.json")
    assert main(["merge", "-o", merged, path]) == 0
    notes = summarize_traces([path, merged]).notes
    assert any("merged.json is the result of a merge" in note and "counts twice" in note for note in notes)
    assert summarize_traces([merged]).notes == summarize_traces([path]).notes == []


def test_no_trace_is_refused() -> None:
    with pytest.raises(ConfigError, match="no trace is named"):
        summarize_traces([])


def test_progress_only_grows(tmp_path: Path) -> None:
    told: list[float] = []
    path = trace(tmp_path / "rank0.json", *(x("a", at, 1, tid=at % 3) for at in range(1000)))
    summarize_traces([path], progress=lambda share, _: told.append(share))
    assert told == sorted(told)
    assert 0 < told[-1] <= 1


@pytest.mark.slow
def test_memory_grows_by_less_than_half_of_the_trace(tmp_path: Path) -> None:
    peaks, sizes = [], (30_000_000, 240_000_000)
    with Inputs(folder=tmp_path) as inputs:
        for size in sizes:
            (path,) = inputs.torch(size, 1).paths
            peaks.append(measure([sys.executable, "-m", "tracekit", "summary", str(path)]).peak_mb)
    assert max(peaks) < 250
    assert peaks[1] - peaks[0] < (sizes[1] - sizes[0]) / 1e6 / 2


# Malicious input.


def test_many_begins_that_fit_no_end_and_deep_arguments_take_no_time_to_speak_of(tmp_path: Path) -> None:
    # Looking through all of them for each end would be a thousand million comparisons.
    events = [mark("B", "a", at) for at in range(20_000)] + [mark("E", "b", 50_000 + at) for at in range(50_000)]
    events += [mark("b", "a", at, id=1) for at in range(50_000)] + [mark("e", "b", 90_000, id=1) for _ in range(50_000)]
    path = Path(trace(tmp_path / "trace.json", x("deep", 1, 1, args={"x": "deep"}), *events))
    path.write_text(path.read_text().replace('{"x": "deep"}', f'{{"x": {"[" * 100_000 + "]" * 100_000}}}'))
    summary = summarize_traces([str(path)])
    assert {name: marker.count for name, marker in by_name(summary).items()} == {"a": 50_000}
    assert summary.notes == [
        "1 place in the files cannot be read: what stood there is not counted",
        "20,000 slices not counted: they begin and never end",
    ]


def test_numbers_at_the_edge_of_64_bits_do_not_overflow(tmp_path: Path) -> None:
    most_us = 2**61 // 1000
    events = [
        *(batch(2**80, 100 * at, 100 if at < 11 else most_us) for at in range(12)),
        *(x("a", 1100 + at, most_us - 3000) for at in range(1, 12)),
        *(x("b", 100 * at, 50) for at in range(11)),
    ]
    paths = [
        trace(tmp_path / f"rank{rank}.json", *events, distributedInfo={"rank": rank}, baseTimeNanoseconds=2**62 - 1)
        for rank in range(2)
    ]
    summary = summarize_traces(paths)
    assert by_name(summary)["a"].total_ns == 11 * (most_us - 3000) * 1000
    for result in (summary, find_stragglers(paths), diff_traces(paths[:1], paths[1:])):
        json.dumps(result.as_dict(), allow_nan=False)


# Words.


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1000, "1.00 µs"),
        (99_949, "99.9 µs"),
        (999_600, "1.00 ms"),
        (123_456_789, "123 ms"),
        (5_000_000_000_000, "5,000 s"),
        (-1500, "-1.50 µs"),
    ],
)
def test_duration_has_three_digits_that_count(ns: int, text: str) -> None:
    assert duration(ns) == text


def test_nothing_is_wholly_certain() -> None:
    assert [certainty(sure) for sure in (0.5, 0.999, 0.9991, 1.0)] == ["50.0%", "99.9%", *["more than 99.9%"] * 2]


def test_markers_of_one_name_show_their_categories(tmp_path: Path) -> None:
    slices = [x("forward", 0, 50, cat="timer"), x("forward", 60, 40, cat="gpu_user_annotation"), x("other", 200, 9)]
    lines = list(summary_lines(summary_of(tmp_path, *slices), 20))
    rows = lines[lines.index("markers by total time") + 2 :][:3]
    assert [row[2:].split("  ")[0] for row in rows] == ["forward (timer)", "forward (gpu_user_…ation)", "other"]


def test_table_lines_up_and_long_names_show_where_they_differ() -> None:
    assert table(("name", "n"), [("a", "1"), ("long", "100")]) == ["  name    n", "  a       1", "  long  100"]
    assert shortened("a" * 40 + "b" * 40, 20) == "a" * 13 + "…" + "b" * 6
    names = [f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__" for kind in ("SingleProcess", "MultiProcessing")]
    assert shortened_apart([*names, "short"], 32) == {
        names[0]: "enumerate(…)#_SingleProcessDataL",
        names[1]: "enumerate(…)#_MultiProcessingDat",
        "short": "short",
    }
    assert len(set(shortened_apart(["a" * 40, "a" * 50], 20).values())) == 2
