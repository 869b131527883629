"""Merging a part of a run: the rules of each option, and the counts of the rest."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.merge_inputs import BASE_NS, event, meta, rank_trace, torch_trace, write
from tests.merge_inputs import names as names_in
from tracekit.errors import ConfigError, MergeError
from tracekit.merge import Selection, merge_traces
from tracekit.merge.execute import executor
from tracekit.merge.selection.steps import spans_of_steps
from tracekit.worker_processes import process_pool

if TYPE_CHECKING:
    from tracekit.merge import MergeReport

SECOND_US = 1_000_000


def training_time(batch: int, ts: float) -> dict[str, Any]:
    return {**meta("tracekit_timestamp", 100, 100, batch=batch), "ts": ts}


def of_rank(rank: int, *events: dict[str, Any]) -> dict[str, Any]:
    """Return a torch trace of a rank."""
    return torch_trace(*events, distributedInfo={"rank": rank}, host_name="h")


@pytest.fixture
def select(merge: Any) -> Any:
    """Write files by name, merge what is selected of them, and return the names of its events and the report."""

    def _select(files: Any, **selection: Any) -> tuple[list[str], MergeReport]:
        files = files if isinstance(files, dict) else {"a.json": files}
        merged, report = merge(files, select=Selection(**selection))
        return names_in(merged), report

    return _select


def left_out(report: MergeReport) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in report.left_out:
        counts[item.reason] = counts.get(item.reason, 0) + (item.count or 0)
    return counts


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Selection()),
        ({"ranks": "0, 3-5"}, Selection(ranks=frozenset({0, 3, 4, 5}))),
        ({"steps": "10:20"}, Selection(steps=(10, 20))),
        ({"steps": "10"}, Selection(steps=(10, 11))),
        ({"steps": ":20"}, Selection(steps=(None, 20))),
        ({"steps": "7:"}, Selection(steps=(7, None))),
        ({"time_window": "1.5:2"}, Selection(time_window=(Decimal("1.5"), Decimal(2)))),
        ({"time_window": ":2"}, Selection(time_window=(None, Decimal(2)))),
        ({"categories": "kernel, gpu_memcpy"}, Selection(categories=frozenset({"kernel", "gpu_memcpy"}))),
        ({"exclude_categories": "a,"}, Selection(exclude_categories=frozenset({"a"}))),
        ({"min_duration": "5us"}, Selection(min_duration_ns=5000)),
        ({"min_duration": "1.5 ms"}, Selection(min_duration_ns=1_500_000)),
        ({"names": []}, Selection()),
    ],
)
def test_the_text_of_an_option(options: dict[str, str], expected: Selection) -> None:
    assert Selection.parse(**options) == expected


WRONG_TEXTS = {
    "ranks": ["", "five", "5-3", "0-99999999", "-1"],
    "steps": ["", "5:5", "x:y", "1:2:3", "-1:2"],
    "time_window": ["5", "2:1", "1e3:", "NaN:"],
    "categories": [","],
    "exclude_categories": [""],
    "min_duration": ["5", "fast", "-5us"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in WRONG_TEXTS.items() for text in texts])
def test_a_wrong_text_of_an_option_is_refused_by_the_name_of_the_option(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^(--)?{name}|^--{name.replace('_', '-')}"):
        Selection.parse(**{name: text})


@pytest.mark.parametrize(
    "values",
    [
        {"ranks": []},
        {"categories": []},
        {"categories": "kernel"},
        {"exclude_categories": "kernel"},
        {"steps": (3, 2)},
        {"steps": (-1, 2)},
        {"time_window": (float("nan"), None)},
        {"steps": (1.5, 2)},
        {"steps": (1,)},
        {"time_window": ("a", 1)},
        {"min_duration_ns": -1},
        {"min_duration_ns": 1.5},
        {"names": []},
        {"names": "a"},
    ],
    ids=str,
)
def test_a_value_that_can_select_nothing_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Selection(**values)


def test_inputs_of_other_ranks_are_not_read_beyond_their_head(select: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    probe = executor.probe
    monkeypatch.setattr(executor, "probe", lambda path, *rest: read.append(Path(path).name) or probe(path, *rest))
    files = {
        "a.json": rank_trace(event("zero")),
        "b.json": rank_trace(event("one"), rank=1),
        "c.json": of_rank(2, event("two")),
    }
    names, report = select(files, ranks={1})
    assert (read, names) == (["b.json"], ["one"])
    assert [(Path(item.path).name, item.reason, item.count) for item in report.left_out] == [
        ("a.json", "rank", None),
        ("c.json", "rank", None),
    ]
    assert report.omitted == []
    assert "left out on request: 2 files of other ranks" in report.lines()


def test_what_the_index_of_another_rank_misses_is_not_missed(tmp_path: Path) -> None:
    for rank in range(2):
        segments = [{"name": f"rank{rank}-part{part:04d}.json", "state": "uploaded"} for part in range(2)]
        index = {"tracekit_index": 1, "rank": rank, "segments": segments}
        trace = rank_trace(event("a"), rank=rank)
        write(tmp_path / "run", {f"rank{rank}-part0000.json": trace, f"rank{rank}.index.json": index})
    for rank in range(2):
        options: dict[str, Any] = {"overwrite": True, "select": Selection(ranks={rank})}
        report = merge_traces(str(tmp_path / "m.json"), [str(tmp_path / "run")], **options)
        assert [Path(item.path).name for item in report.omitted] == [f"rank{rank}-part0001.json"]


def test_a_rank_that_is_told_behind_the_events_is_selected_too(select: Any) -> None:
    late = torch_trace(event("three"))
    files = {"rank1.json": {**late, "distributedInfo": {"rank": 3}}, "x.json": rank_trace(event("zero"))}
    assert select(files, ranks=range(3, 5))[0] == ["three"]


def test_a_companion_is_found_though_its_rank_trace_is_not_selected(select: Any) -> None:
    files = {
        "a.json": rank_trace(event("zero")),
        "b.json": rank_trace(meta("tracekit_companion", 100, file="host.pt.json"), rank=1),
        "host.pt.json": torch_trace(event("op")),
    }
    assert select(files, ranks=[0])[0] == ["zero"]
    assert select(files, ranks=[1])[0] == ["op"]


def test_a_rank_given_by_hand_counts(merge: Any) -> None:
    files = {"t.json": of_rank(1, event("a")), "u.json": of_rank(2, event("b"))}
    merged, _ = merge(files, ranks={"t.json": 7, "u.json": 8}, select=Selection(ranks={7}))
    assert names_in(merged) == ["a"]


def test_ranks_are_taken_out_of_a_merged_trace(merge: Any, select: Any) -> None:
    files = {
        f"{rank}.json": rank_trace(event(f"on {rank}"), event(f"from {rank}", ph="s", id=1), rank=rank)
        for rank in range(3)
    }
    everything, _ = merge(files)
    names, report = select({"all.json": everything}, ranks={0, 2})
    assert names == ["on 0", "from 0", "on 2", "from 2"]
    of_rank_1 = [found for found in everything["traceEvents"] if found["pid"] == 100_001]
    assert left_out(report) == {"rank": len(of_rank_1)}
    assert [rank.rank for rank in report.ranks] == [0, 2]
    with pytest.raises(MergeError, match="none of the inputs"):
        select({"all.json": everything}, ranks={7})


@pytest.mark.parametrize(
    ("window", "names", "gone"),
    [
        ((1, 2), ["reaches in", "at its start", "inside", "starts in it", "around it"], 3),
        ((2, None), ["starts in it", "at its end", "around it"], 5),
    ],
)
def test_a_time_window_takes_what_reaches_into_it(select: Any, window: Any, names: list[str], gone: int) -> None:
    events = [
        event("first", 0),
        event("ends at it", 500_000, 500_000),
        event("reaches in", 500_000, 500_001),
        event("at its start", SECOND_US, ph="i"),
        event("inside", 1_500_000, ph="C", args={"v": 1}),
        event("starts in it", 1_999_999, 900_000),
        event("at its end", 2 * SECOND_US, ph="i"),
        event("around it", 100, 5 * SECOND_US),
    ]
    found, report = select(rank_trace(*events), time_window=window)
    assert (found, left_out(report)) == (names, {"time": gone})
    assert report.complete


@pytest.mark.parametrize(
    ("window", "names"),
    [
        ((1.5, 3), ["b"]),
        ((BASE_NS + 10**9, BASE_NS + 10**9 + 1), ["a"]),
        ((1, BASE_NS + 4 * 10**9), ["b"]),  # one end each way
    ],
    ids=["first event", "epoch", "both"],
)
def test_the_window_counts_from_the_first_event_of_the_merge_or_from_the_epoch(
    select: Any, window: Any, names: list[str]
) -> None:
    files = {"a.json": of_rank(0, event("a", SECOND_US)), "b.json": of_rank(1, event("b", 3 * SECOND_US))}
    assert select(files, time_window=window)[0] == names


def test_a_window_from_the_epoch_needs_a_clock(select: Any) -> None:
    events = [event("a"), event("b", 2 * SECOND_US)]
    with pytest.raises(ConfigError, match="do not state their clock"):
        select(events, time_window=(BASE_NS, None))
    assert select(events, time_window=(1, None))[0] == ["b"]


def test_nothing_selected_is_said(select: Any) -> None:
    names, report = select(rank_trace(event("a")), time_window=(100, 200))
    assert names == []
    assert report.warnings == ["nothing that happened is selected: the merged trace holds names only"]


def test_steps_go_by_the_training_time_and_its_companions_with_them(merge: Any, select: Any) -> None:
    batches = [
        part for at in range(3) for part in (training_time(at, 100 * at), event(f"batch {at}", 100 * at + 10, 80))
    ]
    files = {
        "a.json": rank_trace(*batches, event("0 and 1", 90, 15, tid=7)),
        "b.json": of_rank(0, event("op in 1", 150), event("ProfilerStep#0", 150, 50), event("op in 2", 250)),
    }
    merged, report = merge(files, select=Selection(steps=(1, 2)))
    assert names_in(merged) == ["batch 1", "0 and 1", "op in 1", "ProfilerStep#0"]
    assert left_out(report) == {"step": 3}
    kept = [found["args"]["batch"] for found in merged["traceEvents"] if found["name"] == "tracekit_timestamp"]
    assert kept == [0, 1, 2]
    assert select(files, steps=(2, None))[0] == ["batch 2", "op in 2"]
    with pytest.raises(MergeError, match=r"none of the steps .* they tell of steps 0 to 2"):
        select(files, steps=(5, 6))
    with pytest.raises(MergeError, match="they tell of no training steps at all"):
        select(rank_trace(event("a")), steps=(0, None))


def test_steps_that_are_recorded_while_the_trace_is_merged_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grow_first(*args: Any) -> Any:
        with path.open("a") as file:
            file.write(json.dumps(training_time(1, 100)) + ",\n")
        return spans_of_steps(*args)

    path = tmp_path / "live.json"
    lines = rank_trace(training_time(0, 0), event("batch 0", 10, 80))
    path.write_text("[\n" + "".join(json.dumps(line) + ",\n" for line in lines))
    monkeypatch.setattr("tracekit.merge.selection.event_filter.spans_of_steps", grow_first)
    with pytest.raises(MergeError, match="they tell of steps 0 to 0"):
        merge_traces(tmp_path / "merged.json", path, select=Selection(steps=(1, 2)))


def test_a_step_that_was_tried_again_is_taken_from_both_attempts(select: Any) -> None:
    def attempt(number: int, at: float, *batches: int) -> list[dict[str, Any]]:
        times = [(at + 100 * place, batch) for place, batch in enumerate(batches)]
        steps = [(training_time(batch, ts), event(f"{number}: {batch}", ts + 1, 98)) for ts, batch in times]
        return rank_trace(*(part for step in steps for part in step), attempt=number)

    files = {"a.json": attempt(0, 0, 5, 6, 7), "b.json": attempt(1, 1000, 6, 7, 8)}
    assert select(files, steps=(6, 8))[0] == ["0: 6", "0: 7", "1: 6", "1: 7"]


def test_without_training_time_the_steps_of_the_profiler_count(select: Any) -> None:
    def steps(rank: int, at: float) -> dict[str, Any]:
        return of_rank(
            rank,
            event("ProfilerStep#3", at, 100),
            event("ProfilerStep#4", at + 101, 100),
            event("between", at + 100.2, 0.2),
            event("op 4", at + 150, 10),
            event("late kernel", at + 230, 10, pid=0, tid=7, cat="kernel"),
            event("ProfilerStep#4", at + 110, 150, pid=0, tid=7, cat="gpu_user_annotation"),
        )

    silent = of_rank(5, event("no steps", 170, tid=3), event("before", 20, tid=3))
    rank = ["ProfilerStep#4", "op 4", "late kernel", "ProfilerStep#4"]
    files = {"a.json": steps(0, 0), "b.json": steps(1, 30), "c.json": silent}
    assert select(files, steps=(4, None))[0] == [*rank, *rank, "no steps"]
    assert "between" in select(steps(0, 0), steps=(3, 4))[0]


def test_steps_may_be_halves_of_slices_as_native_traces_have_them(select: Any) -> None:
    halves = [
        event("outer", 0, ph="B"),
        event("ProfilerStep#3", 1, ph="B"),
        event("inner", 2, ph="B"),
        event("", 3, ph="E"),
        event("", 100, ph="E"),
        event("ProfilerStep#4", 101, ph="B"),
        event("ProfilerStep#4", 200, ph="E"),
        event("outer", 201, ph="E"),
        event("ProfilerStep#9", 202, ph="E"),
        event("ProfilerStep#5", 210, ph="B"),
    ]
    trace = of_rank(0, *halves, *(event(f"at {ts}", ts, 1, tid=7) for ts in (50, 150, 205, 250)))
    for step, expected in ((3, ["at 50"]), (4, ["at 150", "at 205"]), (5, ["at 250"])):
        assert [name for name in select(trace, steps=(step, step + 1))[0] if name.startswith("at ")] == expected
    with pytest.raises(MergeError, match=r"they tell of steps 3 to 5"):
        select(trace, steps=(9, 10))


@pytest.mark.parametrize("halves", [False, True])
def test_without_training_time_the_slices_of_batches_count(select: Any, halves: bool) -> None:
    events: list[dict[str, Any]] = []
    for batch in range(3):
        more: dict[str, Any] = {"cat": "training loop", "args": {"batch": batch}, "tid": 3}
        whole = [event("batch", 100 * batch, 100, **more)]
        two = [event("batch", 100 * batch, ph="B", **more), event("", 100 * batch + 100, ph="E", tid=3)]
        events += [*(two if halves else whole), event(f"in {batch}", 100 * batch + 10, 5)]
    assert [name for name in select(rank_trace(*events), steps=(1, 2))[0] if name.startswith("in ")] == ["in 1"]


WORK = [
    event("kernel", 0, 10, cat="kernel"),
    event("both", 1, 5, cat="a,kernel"),
    event("op", 7, 4.999, cat="cpu_op"),
    event("none", 20),
    event("memory", 5, ph="C", args={"v": 1}),
    event("power", 6, ph="C", args={"v": 1}, cat="gpu"),
    event("instant", 7, ph="i", cat="kernel"),
    event("other", 8, ph="i"),
    event("never ends", 40, ph="B"),
    event("long pair", 30, ph="B", tid=7),
    event("short pair", 31, ph="B", tid=7),
    event("short pair", 32, ph="E", tid=7),
    event("long pair", 36, ph="E", tid=7),
]


@pytest.mark.parametrize(
    ("selection", "names", "gone"),
    [
        ({"categories": ["kernel"]}, ["kernel", "both", "memory", "instant"], {"category": 9}),
        ({"categories": ["kernel"], "exclude_categories": ["a"]}, ["kernel", "memory", "instant"], {"category": 10}),
        (
            {"exclude_categories": ["kernel", "gpu"]},
            ["op", "none", "memory", "other", "never ends", "long pair", "short pair", "short pair", "long pair"],
            {"category": 4},
        ),
        (
            {"min_duration_ns": 5000},
            ["kernel", "both", "memory", "power", "instant", "other", "never ends", "long pair", "long pair"],
            {"duration": 4},
        ),
    ],
)
def test_categories_and_durations(select: Any, selection: Any, names: list[str], gone: dict[str, int]) -> None:
    found, report = select(rank_trace(*WORK), **selection)
    assert (found, left_out(report)) == (names, gone)
    assert sum(report.events_out.values()) == (
        sum(report.events_in.values()) + report.metadata_added - sum(gone.values())
    )


@pytest.mark.parametrize("backwards", [False, True])
def test_pairs_stay_pairs_and_tasks_that_never_end_reach_on(select: Any, backwards: bool) -> None:
    halves = [("outer", 10, "B"), ("inner", 20, "B"), ("inner", 30, "E"), ("outer", 100, "E"), ("no time", None, "B")]
    events = [event(name, at, ph=phase) for name, at, phase in halves]
    events += [event("task", at, ph=phase, cat="a", id="0x1") for at, phase in ((15, "b"), (95, "e"))]
    events.append(event("endless", 15, ph="b", cat="a", id="0x2"))
    names, _ = select(rank_trace(event("zero", 0), *events[:: -1 if backwards else 1]), time_window=(0.00005, 0.00006))
    assert sorted(names) == ["endless", "outer", "outer", "task", "task"]


@pytest.mark.parametrize(
    ("selection", "arrows", "gone"),
    [
        ({"exclude_categories": ["gpu_memset"]}, [1, 1, 3], {"category": 1, "arrow": 2}),
        # The operator is there, but it is not what the arrow came from.
        ({"exclude_categories": ["cuda_runtime"]}, [3], {"category": 2, "arrow": 4}),
        ({"exclude_categories": ["ac2g"]}, [], {"category": 5}),
        ({"time_window": (0, 0.000015)}, [], {"time": 4, "arrow": 5}),
    ],
    ids=str,
)
def test_arrows_go_with_their_slices(merge: Any, selection: Any, arrows: list[int], gone: dict[str, int]) -> None:
    gpu: dict[str, Any] = {"pid": 0, "tid": 7}
    flow: dict[str, Any] = {"cat": "ac2g"}
    events = [
        event("op", 0, 100, cat="cpu_op"),
        event("launch", 10, 5, cat="cuda_runtime"),
        event("go", 10, ph="s", id=1, **flow),
        event("launch", 20, 5, cat="cuda_runtime"),
        event("go", 20, ph="s", id=2, **flow),
        event("kernel", 30, 5, cat="kernel", **gpu),
        event("go", 30, ph="f", id=1, bp="e", **flow, **gpu),
        event("memset", 40, 5, cat="gpu_memset", **gpu),
        event("go", 40, ph="f", id=2, bp="e", **flow, **gpu),
        # Kineto: of many arrows only one end is in the trace.
        event("kernel", 50, 5, cat="kernel", **gpu),
        event("go", 50, ph="f", id=3, bp="e", **flow, **gpu),
    ]
    merged, report = merge({"a.json": of_rank(0, *events)}, select=Selection(**selection))
    assert [found["id"] for found in merged["traceEvents"] if found["ph"] in "sf"] == arrows
    assert left_out(report) == gone


def test_an_arrow_without_bp_ends_at_the_next_slice(select: Any) -> None:
    events = [
        event("from", 0, 5, cat="a"),
        event("go", 1, ph="s", id=1),
        event("go", 7, ph="f", id=1, tid=7),
        event("to", 9, 5, cat="b", tid=7),
        event("before", 6, 2, cat="a", tid=7),
    ]
    assert select(rank_trace(*events), categories=["a"])[0] == ["from", "before"]
    assert select(rank_trace(*events), categories=["a", "b"])[0] == [found["name"] for found in events]


def test_what_is_left_on_a_track_of_overlaps_stays_on_its_lane(merge: Any) -> None:
    times = {"a": (0, 10), "b": (5, 10), "c": (20, 10), "d": (25, 10), "e": (40, 1)}
    trace = rank_trace(*(event(name, *at, cat="y" if name == "b" else "x") for name, at in times.items()))
    whole, some = (
        {found["name"]: found["tid"] for found in merge({"a.json": trace}, **options)[0]["traceEvents"]}
        for options in ({}, {"select": Selection(categories=["x"])})
    )
    assert {name: some[name] for name in "acde"} == {name: whole[name] for name in "acde"}
    assert whole["d"] == whole["b"] != whole["a"]


def test_an_event_that_nothing_can_show_is_a_loss_and_no_request(select: Any) -> None:
    _, report = select(of_rank(0, event("a"), event("b", None)), time_window=(0, 1))
    assert [(drop.reason, drop.lost) for drop in report.dropped] == [("no_time", True)]
    assert report.left_out == []


@pytest.mark.parametrize("ending", ["json", "json.gz", "pftrace", "tar"])
def test_workers_select_the_same(tmp_path: Path, ending: str) -> None:
    slices = [event("pair", 300, ph="B", cat="x"), event("pair", 310, ph="E")]
    slices += [event("go", 50, ph="s", id=1), event("go", 90, ph="f", id=1)]
    slices += [event(f"{number} slice", 10 * number, number, cat="x") for number in range(20)]
    inputs = write(tmp_path / "run", {f"rank{rank}.json": rank_trace(*slices, rank=rank) for rank in range(3)})
    select = Selection(
        ranks={0, 2}, time_window=(0.00005, None), categories=["x"], min_duration_ns=6000, names=["1? *", "pair"]
    )
    alone = merge_traces(str(tmp_path / f"alone.{ending}"), inputs, select=select)
    with process_pool(2) as workers:
        together = merge_traces(str(tmp_path / f"together.{ending}"), inputs, select=select, executor=workers)
    assert Path(alone.output).read_bytes() == Path(together.output).read_bytes()
    assert alone.left_out == together.left_out
    assert {item.reason for item in alone.left_out} == {"rank", "time", "duration", "name", "arrow"}


@pytest.fixture
def trim(merge: Any) -> Any:
    """Merge a trace with what is selected of it by name; return the names of its events, sorted, and the report."""

    def _trim(events: list[dict[str, Any]], *names: str, **more: Any) -> tuple[list[str], Any]:
        merged, report = merge({"rank0.json": events}, select=Selection.parse(names=names, **more))
        return sorted(names_in(merged)), report

    return _trim


def test_slices_around_what_is_named_are_kept_whole(trim: Any) -> None:
    events = [
        event("step", 0, 100),
        event("forward", 10, 30),
        event("attention", 12, 5),
        event("mlp", 20, 5),
        event("backward", 50, 40),
        event("step", 200, 50),
        event("attention", 15, 5, tid=8),
        event("loader", 14, 9, tid=9),
    ]
    names, report = trim(events, "attention")
    assert names == ["attention", "attention", "forward", "step"]
    assert [(item.reason, item.count) for item in report.left_out] == [("name", 4)]
    assert report.complete
    assert "left out on request: 4 events of other names" in report.lines()


def test_halves_of_slices_share_their_fate(trim: Any) -> None:
    halves = [
        ("outer", 0, "B"),
        ("wanted", 5, "B"),
        ("wanted", 6, "E"),
        ("outer", 9, "E"),
        ("other", 20, "B"),
        ("other", 22, "E"),
        ("wanted", 30, "B"),
    ]
    events = [event(name, at, ph=phase) for name, at, phase in halves]
    for name in ("wanted", "other"):
        events += [event(name, at, ph=phase, cat="a", id2={"local": name}) for at, phase in ((1, "b"), (2, "e"))]
    assert trim(events, "wanted")[0] == ["outer"] * 2 + ["wanted"] * 5


def test_an_instant_keeps_its_slice_and_a_counter_needs_its_own_name(trim: Any) -> None:
    events = [event("step", 0, 10), event("saved", 5, ph="i", s="t"), event("other", 6, ph="i", s="t")]
    events += [event(name, 1, ph="C", args={"value": 1}) for name in ("loss", "memory")]
    assert trim(events, "saved", "loss")[0] == ["loss", "saved", "step"]


def test_an_arrow_is_kept_with_both_of_its_slices_or_not_at_all(trim: Any) -> None:
    events = [event("launch", 0, 5), event("kernel", 10, 5, tid=8), event("other", 20, 5, tid=8)]
    for number, (start, end) in enumerate(((1, 11), (2, 21))):
        events.append(event("flow", start, ph="s", id=number, cat="c"))
        events.append(event("flow", end, ph="f", tid=8, id=number, cat="c", bp="e"))
    assert trim(events, "launch", "kernel")[0] == ["flow", "flow", "kernel", "launch"]
    assert trim(events, "launch")[0] == ["launch"]


@pytest.mark.parametrize(
    ("pattern", "more", "expected"),
    [
        ("gloo:*", {"min_duration": "10us"}, ["gloo:broadcast"]),
        ("*:all_*", {}, ["gloo:all_reduce", "nccl:all_reduce"]),
        ("GLOO:*", {}, []),
        ("a\u00e9 ?x], y", {}, ["a\u00e9 [x], y"]),
    ],
)
def test_names_go_with_the_other_wishes_and_patterns_are_those_of_a_shell(
    trim: Any, pattern: str, more: Any, expected: list[str]
) -> None:
    events = [event("gloo:all_reduce", 0, 5), event("gloo:broadcast", 10, 50), event("nccl:all_reduce", 100, 50)]
    assert trim([*events, event("a\u00e9 [x], y", 200, 1)], pattern, **more)[0] == expected


def test_arrows_between_collectives_need_a_merge_first(merge: Any) -> None:
    with pytest.raises(ConfigError, match="merge first"):
        merge({"a.json": [event("a")]}, select=Selection(names=["a"]), collective_flows=True)


def test_a_slice_holds_a_name_where_a_plain_search_finds_one(trim: Any) -> None:
    chance, events, expected = random.Random(0), [], []
    for tid in range(100):
        start, end = sorted(chance.sample(range(30), 2))
        marks = [(chance.randrange(30), chance.choice("ab")) for _ in range(chance.randrange(6))]
        events += [event(name, at, ph="i", tid=tid) for at, name in marks]
        events.append(event(f"slice {tid}", start, end - start, tid=tid))
        expected += ["a" for _, name in marks if name == "a"]
        expected += [f"slice {tid}"] * any(name == "a" and start <= at < end for at, name in marks)
    assert trim(events, "a")[0] == sorted(expected)
