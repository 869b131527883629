"""The verdict of a summary: what limits a run, and which steps count."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.explain.test_stragglers import FORWARD, slow_run
from tracekit import find_stragglers, merge_traces, summarize_traces
from tracekit.explain.run_report import report_run
from tracekit.explain.summary_results import summary_lines

if TYPE_CHECKING:
    from pathlib import Path

Stages = dict[str, float]


def write(path: Path, stages: Stages, steps: int = 20, gpu: Stages | None = None, lengths: Any = None) -> str:
    """Write steps of these stages, us; ``gpu``: kernels, each launched when the GPU has become idle."""
    events: list[dict[str, Any]] = []
    at = 0.0
    for step in range(steps):
        factor = (lengths or {}).get(step, 1.0)
        began = at
        for name, length in stages.items():
            category = "cpu_op" if gpu and name.startswith("aten::") else ""
            events.append(
                {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": 1, "ts": at, "dur": length * factor}
            )
            at += length * factor
        busy = began
        for number, (name, length) in enumerate((gpu or {}).items()):
            identity = {"correlation": 100 * step + number, "device": 0, "stream": 7}
            call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 2}
            kernel = {
                "ph": "X",
                "cat": "gpu_memcpy" if name == "Memcpy" else "kernel",
                "name": name,
                "pid": 0,
                "tid": 7,
            }
            events.append({**call, "ts": busy + 0.5, "dur": 0.2, "args": identity})
            events.append({**kernel, "ts": busy + 1, "dur": length, "args": identity})
            busy += 1 + length
        batch = {"name": "batch", "cat": "training loop", "args": {"batch": step}}
        events.append({"ph": "X", **batch, "pid": 1, "tid": 9, "ts": began, "dur": at - began})
    path.write_text(json.dumps(events))
    return str(path)


@pytest.mark.parametrize(
    ("stages", "gpu", "bound", "sentence"),
    [
        ({"dataloader": 50, "forward": 30, "backward": 20}, None, "input", "waiting for data takes 50.0% of the step."),
        (
            {"forward": 20, "backward": 20, "all_reduce": 60},
            None,
            "communication",
            "exchanging data and waiting for it takes 60.0% of the step.",
        ),
        (
            {"forward": 40, "aten::broadcast_tensors": 60},  # an operator that broadcasts shapes is not a collective
            None,
            "compute",
            "aten::broadcast_tensors takes 60.0% of the step.",
        ),
        (
            {"forward": 20, "all-reduce": 80},
            {"gemm": 10, "add": 5},
            "communication",
            "exchanging data, mostly by the CPU while GPUs are idle, takes 79.3% of the time of the GPUs.",
        ),
        (
            {"forward": 100},
            {"gemm": 10, "add": 10},
            "launch",
            "for 79.2% of the time, GPUs are idle until the CPU launches work.",
        ),
        (
            {"forward": 20, "aten::linear": 80},
            {"gemm": 10, "add": 10},
            "launch",
            "for 79.2% of the time, GPUs are idle until the CPU launches work.",
        ),
        (
            {"forward": 70, "backward": 20, "aten::mul": 10},
            {"gemm": 10, "add": 10},
            "CPU",
            "for 68.9% of the time, GPUs are idle while the CPU runs no operator, most of it in forward.",
        ),
        ({"forward": 100}, {"Memcpy": 80, "gemm": 10}, "copy", "copies and fills take 80.4% of the time of the GPUs."),
        ({"forward": 100}, {"gemm": 90}, "compute", "computing takes 90.5% of the time of the GPUs."),
        (
            {"forward": 100},
            {"gemm": 20, "ncclDevKernel_AllReduce_Sum": 70},
            "communication",
            "communication that computing does not hide takes 70.3% of the time of the GPUs.",
        ),
    ],
)
def test_verdict_names_what_takes_most_time(
    tmp_path: Path, stages: Stages, gpu: Stages | None, bound: str, sentence: str
) -> None:
    verdict = summarize_traces([write(tmp_path / "rank0.json", stages, gpu=gpu)]).verdict
    assert (verdict.bound, verdict.sentences[1]) == (bound.lower(), f"The run is {bound}-bound: {sentence}")
    assert len(verdict.sentences) <= 5
    assert verdict.sentences[-1].startswith("Next: tracekit ")


def test_idle_gpus_without_launches_have_no_known_cause(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    write(path, {"forward": 100}, gpu={"gemm": 20})
    events = [event for event in json.loads(path.read_text()) if event.get("cat") != "cuda_runtime"]
    path.write_text(json.dumps(events))
    verdict = summarize_traces([str(path)]).verdict
    assert (verdict.bound, verdict.share) == ("unknown", None)
    assert verdict.sentences[1].startswith("GPUs are idle for 79.2% of the time. The traces have no launches")


def write_with_exchange(path: Path, computing: tuple[float, float], exchanging: tuple[float, float]) -> str:
    """Write 20 steps of 100 us: a forward of 30 us that computes, a backward of 70 us, and an all-reduce on another thread."""
    events: list[dict[str, Any]] = []
    for step in range(20):
        began = 100.0 * step
        batch = {"name": "batch", "cat": "training loop", "args": {"batch": step}, "tid": 9}
        for event, start, length in (
            (batch, 0, 100),
            ({"name": "forward", "tid": 1}, 0, 30),
            ({"name": "aten::mm", "cat": "cpu_op", "tid": 1}, 0, 30),
            ({"name": "backward", "tid": 1}, 30, 70),
            ({"name": "aten::mm", "cat": "cpu_op", "tid": 1}, *computing),
            ({"name": "gloo:all_reduce", "cat": "user_annotation", "tid": 5}, *exchanging),
        ):
            events.append({"ph": "X", "pid": 1, **event, "ts": began + start, "dur": length})
    path.write_text(json.dumps(events))
    return str(path)


@pytest.mark.parametrize(
    ("computing", "exchanging", "expected"),
    [
        ((30, 20), (40, 60), "communication-bound: exchanging data and waiting for it takes 50.0% of the step."),
        ((30, 70), (40, 60), "compute-bound: backward takes 70.0% of the step."),
        ((30, 40), (65, 20), "compute-bound: backward takes 55.0% of the step."),
    ],
    ids=["waited for", "hidden", "partly hidden"],
)
def test_all_reduce_of_another_thread_counts_where_no_operator_computes(
    tmp_path: Path, computing: tuple[float, float], exchanging: tuple[float, float], expected: str
) -> None:
    summary = summarize_traces([write_with_exchange(tmp_path / "rank0.json", computing, exchanging)])
    assert summary.verdict.sentences[1] == f"The run is {expected}"


def test_warm_up_and_evaluation_do_not_count_and_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", {"forward": 100}, steps=30, lengths={0: 20, 1: 5, 10: 30})
    events = json.loads((tmp_path / "rank0.json").read_text())
    start = next(event["ts"] for event in events if event.get("args") == {"batch": 10})
    events.append({"ph": "X", "name": "evaluation", "pid": 1, "tid": 3, "ts": start + 50, "dur": 100})
    next(event for event in events if event["name"] == "forward" and event["ts"] == start)["name"] = "validation"
    # An evaluation at the end, with slices of its own, is no part of a step and no outlier.
    end = max(event["ts"] + event["dur"] for event in events)
    events.append({"ph": "X", "name": "evaluation", "pid": 1, "tid": 1, "ts": end, "dur": 20_000})
    forward = {"ph": "X", "name": "forward", "pid": 1, "tid": 1, "dur": 100}
    events += [{**forward, "ts": end + 100 * number} for number in range(200)]
    (tmp_path / "rank0.json").write_text(json.dumps(events))
    summary = summarize_traces([path])
    (rank,) = summary.ranks
    shares = {one.name: one.share_of_steps or 0 for one in summary.markers}
    assert shares["forward"] + shares["validation"] == pytest.approx(1)
    assert (shares["evaluation"] < 0.02, summary.outliers) == (True, [])
    assert (rank.steps.count, rank.steps.mean_ns, rank.steps.longest_ns) == (27, 100_000, 100_000)
    assert [stage.name for stage in rank.stages] == ["forward"]
    assert summary.warm_up == [0, 1]
    assert summary.notes == [
        "steps that overlap an evaluation are not counted: step 10",
        "steps 0 to 1 are warm-up (up to 20.0 x the usual step) and not counted: 2 steps",
    ]
    assert [number for number, counted in enumerate(rank.step_by_step.counted) if not counted] == [0, 1, 10]


def test_delays_below_the_resolution_of_the_alignment_are_not_named(tmp_path: Path) -> None:
    folder = slow_run(tmp_path / "run", 2, FORWARD)
    merged = str(tmp_path / "merged.json")
    merge_traces(merged, [folder], align="wall")
    assert [one.rank for one in find_stragglers([merged]).stragglers] == [2]
    document = json.loads((tmp_path / "merged.json").read_text())
    for clock in document["tracekit"]["clocks"]["ranks"]:
        clock["error_ns"] = 150_000_000
    (tmp_path / "merged.json").write_text(json.dumps(document))
    report = find_stragglers([merged])
    assert report.stragglers == []
    (note,) = [note for note in report.notes if note.startswith("delays below 1")]
    assert "of a step are not reported: the alignment of the ranks may stretch times by 5." in note


def test_tables_fit_80_columns_with_long_names_and_many_ranks(tmp_path: Path) -> None:
    long = "a_function_with_a_very_long_name_" * 4
    for rank in range(12):
        write(tmp_path / f"rank{rank}.json", {long: 123_456.7, f"{long} 2": 98_765.4}, gpu={f"void {long}": 55_555.5})
    summary = summarize_traces([str(tmp_path)])
    for per_rank in (False, True):
        lines = list(summary_lines(summary, 20, per_rank=per_rank))
        first = lines.index("")
        assert max(map(len, lines[first:])) <= 80


def test_events_of_torchs_allocator_are_counters(tmp_path: Path) -> None:
    device = {"Device Type": 1, "Device Id": 0, "Bytes": 10, "Total Reserved": 1000}
    memory = {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "pid": 1, "tid": 1}
    events: list[dict[str, Any]] = [
        {**memory, "ts": at, "args": {**device, "Total Allocated": 100 * at}} for at in range(1, 6)
    ]
    events.append({**memory, "ts": 7, "args": {"Total Allocated": "many", "Device Type": "cuda"}})
    events.append({"ph": "X", "name": "work", "pid": 1, "tid": 1, "ts": 0, "dur": 9})
    (tmp_path / "rank0.json").write_text(json.dumps(events))
    counters = report_run([str(tmp_path)]).counters.counters
    assert [(one.name, one.key, one.values, one.low, one.high, one.last) for one in counters] == [
        ("torch memory GPU 0", "allocated_bytes", 5, 100, 500, [500]),
        ("torch memory GPU 0", "reserved_bytes", 5, 1000, 1000, [1000]),
    ]
