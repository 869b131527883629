"""Merging a part of a run: what each option takes, what goes with it, and what is said about the rest."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.errors import ConfigError, MergeError
from tracekit.merge import Selection, merge_traces
from tracekit.worker_processes import process_pool

if TYPE_CHECKING:
    from tracekit.merge import MergeReport

BASE_NS = 1_790_857_026_000_000_000
SECOND_US = 1_000_000


def slice_(name: str, ts: float, dur: float = 2, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 100, "tid": 100, "ts": ts, "dur": dur, **more}


def event(ph: str, name: str, ts: float, **more: Any) -> dict[str, Any]:
    return {"ph": ph, "name": name, "pid": 100, "tid": 100, "ts": ts, **more}


def training_time(batch: int, ts: float) -> dict[str, Any]:
    return event("M", "tracekit_timestamp", ts, args={"batch": batch})


def rank_trace(*events: dict[str, Any], rank: int = 0, **metadata: Any) -> list[dict[str, Any]]:
    own = {"rank": rank, "pid": 100, "host": f"h{rank}", "baseTimeNanoseconds": BASE_NS, **metadata}
    return [event("M", "tracekit_metadata", 0, args=own), *events]


def torch_trace(*events: dict[str, Any], rank: int = 0) -> dict[str, Any]:
    info = {"rank": rank}
    return {
        "schemaVersion": 1,
        "baseTimeNanoseconds": BASE_NS,
        "distributedInfo": info,
        "host_name": f"h{rank}",
        "traceEvents": list(events),
    }


class Merged:
    """A merged trace and its report."""

    def __init__(self, path: Path, report: MergeReport) -> None:
        self.report = report
        self.events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]

    @property
    def names(self) -> list[str]:
        return [found["name"] for found in self.events if found["ph"] != "M" and found.get("cat") != "clock"]

    @property
    def phases(self) -> list[str]:
        return [found["ph"] for found in self.events if found["ph"] != "M"]

    @property
    def left_out(self) -> dict[str, int | None]:
        assert self.report.complete
        assert sum(self.report.events_out.values()) == len(self.events)
        dropped = sum(drop.count for drop in self.report.dropped)
        gone = sum(item.count or 0 for item in self.report.left_out)
        assert sum(self.report.events_out.values()) == (
            sum(self.report.events_in.values())
            + self.report.metadata_added
            + self.report.clock_events_added
            - dropped
            - gone
        )
        return {item.reason: item.count for item in self.report.left_out}


@pytest.fixture
def merge(tmp_path: Path) -> Any:
    """Write files by name, merge what is selected of them, and return it."""

    def _merge(files: dict[str, Any], inputs: list[str] | None = None, **selection: Any) -> Merged:
        for name, value in files.items():
            (tmp_path / name).write_text(value if isinstance(value, str) else json.dumps(value))
        output = tmp_path / "merged.json"
        paths = [str(tmp_path / name) for name in inputs or files]
        report = merge_traces(str(output), paths, overwrite=True, select=Selection(**selection))
        return Merged(output, report)

    return _merge


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
    ],
)
def test_the_text_of_an_option(options: dict[str, str], expected: Selection) -> None:
    assert Selection.parse(**options) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"ranks": ""},
        {"ranks": "five"},
        {"ranks": "5-3"},
        {"ranks": "0-99999999"},
        {"ranks": "-1"},
        {"steps": ""},
        {"steps": "5:5"},
        {"steps": "x:y"},
        {"steps": "1:2:3"},
        {"steps": "-1:2"},
        {"time_window": "5"},
        {"time_window": "2:1"},
        {"time_window": "1e3:"},
        {"time_window": "NaN:"},
        {"categories": ","},
        {"exclude_categories": ""},
        {"min_duration": "5"},
        {"min_duration": "fast"},
        {"min_duration": "-5us"},
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"^(--)?{name}|^--{name.replace('_', '-')}"):
        Selection.parse(**options)


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
        {"min_duration_ns": -1},
    ],
)
def test_a_value_that_can_select_nothing_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Selection(**values)


def test_inputs_of_other_ranks_are_not_read_beyond_their_head(
    merge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "a.json": rank_trace(slice_("zero", 1)),
        "b.json": rank_trace(slice_("one", 1), rank=1),
        "c.json": torch_trace(slice_("two", 1), rank=2),
    }
    read: list[str] = []
    from tracekit.merge.execute import executor

    probe = executor.probe
    monkeypatch.setattr(executor, "probe", lambda path, *rest: read.append(path) or probe(path, *rest))
    merged = merge(files, ranks={1})
    assert read == [str(tmp_path / "b.json")]
    assert merged.names == ["one"]
    assert [(item.path, item.reason, item.count) for item in merged.report.left_out] == [
        (str(tmp_path / "a.json"), "rank", None),
        (str(tmp_path / "c.json"), "rank", None),
    ]
    assert merged.report.omitted == []
    assert "left out on request: 2 files of other ranks" in merged.report.lines()


def test_what_the_index_of_another_rank_misses_is_not_missed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in range(2):
        (folder / f"rank{rank}-part0000.json").write_text(json.dumps(rank_trace(slice_("a", 1), rank=rank)))
        segments = [{"name": f"rank{rank}-part{part:04d}.json", "state": "uploaded"} for part in range(2)]
        (folder / f"rank{rank}.index.json").write_text(
            json.dumps({"tracekit_index": 1, "rank": rank, "segments": segments})
        )
    reports = [
        merge_traces(str(tmp_path / "m.json"), [str(folder)], overwrite=True, select=Selection(ranks={rank}))
        for rank in range(2)
    ]
    assert [[item.path.rpartition("/")[2] for item in report.omitted] for report in reports] == [
        ["rank0-part0001.json"],
        ["rank1-part0001.json"],
    ]


def test_a_rank_that_only_the_name_tells_is_selected_too(merge: Any) -> None:
    late = json.dumps(torch_trace(slice_("three", 1), rank=3))
    moved_back = late.replace('"distributedInfo": {"rank": 3}, ', "")[:-1] + ', "distributedInfo": {"rank": 3}}'
    merged = merge({"rank1.json": moved_back, "x.json": rank_trace(slice_("zero", 1))}, ranks=range(3, 5))
    assert merged.names == ["three"]


def test_a_companion_is_found_though_its_rank_trace_is_not_selected(merge: Any) -> None:
    anonymous = torch_trace(slice_("op", 1))
    del anonymous["distributedInfo"], anonymous["host_name"]
    files = {
        "a.json": rank_trace(slice_("zero", 1)),
        "b.json": rank_trace(event("M", "tracekit_companion", 0, args={"file": "host.pt.json"}), rank=1),
        "host.pt.json": anonymous,
    }
    assert merge(files, ranks=[0]).names == ["zero"]
    assert merge(files, ranks=[1]).names == ["op"]


def test_a_rank_given_by_hand_counts(merge: Any, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(torch_trace(slice_("a", 1), rank=1)))
    (tmp_path / "u.json").write_text(json.dumps(torch_trace(slice_("b", 1), rank=2)))
    output = tmp_path / "merged.json"
    merge_traces(
        str(output),
        [str(tmp_path / "t.json"), str(tmp_path / "u.json")],
        ranks={"t.json": 7, "u.json": 8},
        select=Selection(ranks={7}),
    )
    assert [found["name"] for found in json.loads(output.read_text())["traceEvents"] if found["ph"] == "X"] == ["a"]


def test_a_rank_that_is_not_there_is_an_error(merge: Any) -> None:
    with pytest.raises(MergeError, match="none of the inputs is of a rank"):
        merge({"a.json": rank_trace(slice_("zero", 1))}, ranks={5})


def test_ranks_are_taken_out_of_a_merged_trace(merge: Any, tmp_path: Path) -> None:
    files = {
        f"{rank}.json": rank_trace(slice_(f"on {rank}", 1), event("s", f"from {rank}", 1, id=1), rank=rank)
        for rank in range(3)
    }
    everything = merge(files).events
    (tmp_path / "merged.json").rename(tmp_path / "all.json")
    merged = merge({}, ["all.json"], ranks={0, 2})
    assert merged.names == ["on 0", "from 0", "on 2", "from 2"]
    assert merged.left_out == {"rank": len([found for found in everything if found["pid"] == 100_001])}
    assert [rank.rank for rank in merged.report.ranks] == [0, 2]
    with pytest.raises(MergeError, match="none of the inputs"):
        merge({}, ["all.json"], ranks={7})


def test_a_time_window_takes_what_reaches_into_it(merge: Any) -> None:
    events = [
        slice_("first", 0),
        slice_("ends at it", 500_000, 500_000),
        slice_("reaches in", 500_000, 500_001),
        event("i", "at its start", SECOND_US),
        event("C", "inside", 1_500_000, args={"v": 1}),
        slice_("starts in it", 1_999_999, 900_000),
        event("i", "at its end", 2 * SECOND_US),
        slice_("around it", 100, 5 * SECOND_US),
    ]
    merged = merge({"a.json": rank_trace(*events)}, time_window=(1, 2))
    assert merged.names == ["reaches in", "at its start", "inside", "starts in it", "around it"]
    assert merged.left_out == {"time": 3}
    assert merge({"a.json": rank_trace(*events)}, time_window=(2, None)).names == [
        "starts in it",
        "at its end",
        "around it",
    ]


def test_the_window_counts_from_the_first_event_of_the_merge_or_from_the_epoch(merge: Any) -> None:
    later = torch_trace(slice_("b", 3 * SECOND_US), rank=1)
    files = {"a.json": torch_trace(slice_("a", SECOND_US)), "b.json": later}
    assert merge(files, time_window=(1.5, 3)).names == ["b"]
    assert merge(files, time_window=(BASE_NS + 10**9, BASE_NS + 10**9 + 1)).names == ["a"]
    # One end each way.
    assert merge(files, time_window=(1, BASE_NS + 4 * 10**9)).names == ["b"]


def test_a_window_from_the_epoch_needs_a_clock(merge: Any) -> None:
    with pytest.raises(ConfigError, match="do not tell their clock"):
        merge({"rank0.json": [slice_("a", 1)]}, time_window=(BASE_NS, None))
    assert merge({"rank0.json": [slice_("a", 1), slice_("b", 2 * SECOND_US)]}, time_window=(1, None)).names == ["b"]


def test_nothing_selected_is_said(merge: Any) -> None:
    merged = merge({"a.json": rank_trace(slice_("a", 1))}, time_window=(100, 200))
    assert merged.names == []
    assert merged.report.warnings == ["nothing that happened is selected: the merged trace holds names only"]


def test_steps_go_by_the_training_time_and_its_companions_with_them(merge: Any) -> None:
    own = rank_trace(
        training_time(0, 0),
        slice_("batch 0", 10, 80),
        training_time(1, 100),
        slice_("batch 1", 110, 80),
        training_time(2, 200),
        slice_("batch 2", 210, 80),
        slice_("0 and 1", 90, 15, tid=7),
    )
    torch = torch_trace(slice_("op in 1", 150), slice_("ProfilerStep#0", 150, 50), slice_("op in 2", 250))
    merged = merge({"a.json": own, "b.json": torch}, steps=(1, 2))
    assert merged.names == ["batch 1", "0 and 1", "op in 1", "ProfilerStep#0"]
    assert merged.left_out == {"step": 1}
    assert [found["args"]["batch"] for found in merged.events if found["name"] == "tracekit_timestamp"] == [0, 1, 2]
    assert merge({"a.json": own, "b.json": torch}, steps=(2, None)).names == ["batch 2", "op in 2"]
    with pytest.raises(MergeError, match=r"none of the steps .* they tell of steps 0 to 2"):
        merge({"a.json": own, "b.json": torch}, steps=(5, 6))
    with pytest.raises(MergeError, match="they tell of no training steps at all"):
        merge({"c.json": rank_trace(slice_("a", 1))}, steps=(0, None))


def test_a_step_that_was_tried_again_is_taken_from_both_attempts(merge: Any) -> None:
    def attempt(number: int, at: float, *batches: int) -> list[dict[str, Any]]:
        events = []
        for place, batch in enumerate(batches):
            events += [training_time(batch, at + 100 * place), slice_(f"{number}: {batch}", at + 100 * place + 1, 98)]
        return rank_trace(*events, attempt=number, run_id="r")

    merged = merge({"a.json": attempt(0, 0, 5, 6, 7), "b.json": attempt(1, 1000, 6, 7, 8)}, steps=(6, 8))
    assert merged.names == ["0: 6", "0: 7", "1: 6", "1: 7"]


def test_without_training_time_the_steps_of_the_profiler_count(merge: Any) -> None:
    def steps(rank: int, at: float) -> dict[str, Any]:
        return torch_trace(
            slice_("ProfilerStep#3", at, 100),
            slice_("ProfilerStep#4", at + 101, 100),
            slice_("between", at + 100.2, 0.2),
            slice_("op 4", at + 150, 10),
            {**slice_("late kernel", at + 230, 10), "pid": 0, "tid": 7, "cat": "kernel"},
            {**slice_("ProfilerStep#4", at + 110, 150), "pid": 0, "tid": 7, "cat": "gpu_user_annotation"},
            rank=rank,
        )

    silent = torch_trace({**slice_("no steps", 170), "tid": 3}, {**slice_("before", 20), "tid": 3}, rank=5)
    merged = merge({"a.json": steps(0, 0), "b.json": steps(1, 30), "c.json": silent}, steps=(4, None))
    rank = ["ProfilerStep#4", "op 4", "late kernel", "ProfilerStep#4"]
    assert merged.names == [*rank, *rank, "no steps"]
    assert "between" in merge({"a.json": steps(0, 0)}, steps=(3, 4)).names


def test_steps_may_be_halves_of_slices_as_native_traces_have_them(merge: Any) -> None:
    halves = [
        event("B", "outer", 0),
        event("B", "ProfilerStep#3", 1),
        event("B", "inner", 2),
        event("E", "", 3),
        event("E", "", 100),
        event("B", "ProfilerStep#4", 101),
        event("E", "ProfilerStep#4", 200),
        event("E", "outer", 201),
        event("E", "ProfilerStep#9", 202),
        event("B", "ProfilerStep#5", 210),
    ]
    ops = [slice_(f"at {ts}", ts, 1, tid=7) for ts in (50, 150, 205, 250)]
    names = {low: merge({"a.json": torch_trace(*halves, *ops)}, steps=(low, low + 1)).names for low in (3, 4, 5)}
    assert [[name for name in found if name.startswith("at ")] for found in names.values()] == [
        ["at 50"],
        ["at 150", "at 205"],
        ["at 250"],
    ]
    with pytest.raises(MergeError, match=r"they tell of steps 3 to 5"):
        merge({"a.json": torch_trace(*halves, *ops)}, steps=(9, 10))


@pytest.mark.parametrize("halves", [False, True])
def test_without_training_time_the_slices_of_batches_count(merge: Any, halves: bool) -> None:
    events: list[dict[str, Any]] = []
    for batch in range(3):
        more = {"cat": "training loop", "args": {"batch": batch}, "tid": 3}
        at = 100 * batch
        if halves:
            events += [event("B", "batch", at, **more), event("E", "", at + 100, tid=3)]
        else:
            events.append(slice_("batch", at, 100, **more))
        events.append(slice_(f"in {batch}", at + 10, 5))
    found = merge({"a.json": rank_trace(*events)}, steps=(1, 2)).names
    assert [name for name in found if name.startswith("in ")] == ["in 1"]


def test_categories(merge: Any) -> None:
    events = [
        slice_("kernel", 1, cat="kernel"),
        slice_("both", 2, cat="a,kernel"),
        slice_("op", 3, cat="cpu_op"),
        slice_("none", 4),
        event("C", "memory", 5, args={"v": 1}),
        event("C", "power", 6, args={"v": 1}, cat="gpu"),
        event("i", "instant", 7, cat="kernel"),
        event("i", "other", 8),
    ]
    merged = merge({"a.json": rank_trace(*events)}, categories=["kernel"])
    assert merged.names == ["kernel", "both", "memory", "instant"]
    assert merged.left_out == {"category": 4}
    merged = merge({"a.json": rank_trace(*events)}, exclude_categories=["kernel", "gpu"])
    assert merged.names == ["op", "none", "memory", "other"]
    assert merge({"a.json": rank_trace(*events)}, categories=["kernel"], exclude_categories=["a"]).names == [
        "kernel",
        "memory",
        "instant",
    ]


def test_short_slices_are_left_out_and_everything_else_is_no_slice(merge: Any) -> None:
    events = [
        slice_("long", 0, 10),
        slice_("just", 1, 5),
        slice_("short", 7, 4.999),
        event("i", "instant", 8),
        event("C", "counter", 8, args={"v": 1}),
        event("B", "long pair", 20),
        event("B", "short pair", 21),
        event("E", "short pair", 22),
        event("E", "long pair", 30),
        event("B", "never ends", 40),
        event("b", "async", 50, id=1, cat="c"),
        event("e", "async", 51, id=1, cat="c"),
        event("b", "async", 52, id=1, cat="c"),
        event("e", "async", 60, id=1, cat="c"),
    ]
    merged = merge({"a.json": rank_trace(*events)}, min_duration_ns=5000)
    assert merged.names == [
        "long",
        "just",
        "instant",
        "counter",
        "long pair",
        "long pair",
        "never ends",
        "async",
        "async",
    ]
    assert [found["ts"] for found in merged.events if found["name"] == "async"] == [52, 60]
    assert merged.left_out == {"duration": 5}


@pytest.mark.parametrize("backwards", [False, True])
def test_pairs_stay_pairs(merge: Any, backwards: bool) -> None:
    events = [
        event("B", "outer", 10, cat="a"),
        event("B", "inner", 20, cat="b"),
        event("E", "inner", 30),
        event("E", "outer", 100),
        event("B", "late", 200, cat="a"),
        event("E", "late", 300),
        event("b", "task", 15, cat="a", id="0x1"),
        event("e", "task", 95, cat="a", id="0x1"),
        event("b", "task", 15, cat="a", id="0x2"),
    ]
    if backwards:
        events.reverse()
    merged = merge({"a.json": rank_trace(slice_("zero", 0), *events)}, time_window=(0.00005, 0.00006))
    assert sorted(merged.names) == ["outer", "outer", "task", "task", "task"]
    merged = merge({"a.json": rank_trace(*events)}, exclude_categories=["b"])
    assert sorted(merged.phases) == sorted("BEBEbeb")
    merged = merge({"a.json": rank_trace(*events)}, categories=["b"])
    assert sorted(merged.names) == ["inner", "inner"]


def test_arrows_go_with_their_slices(merge: Any) -> None:
    def flow(phase: str, ts: float, flow_id: int, **more: Any) -> dict[str, Any]:
        return event(phase, "go", ts, id=flow_id, cat="ac2g", **({"bp": "e"} if phase == "f" else {}), **more)

    events = [
        slice_("op", 0, 100, cat="cpu_op"),
        slice_("launch", 10, 5, cat="cuda_runtime"),
        flow("s", 10, 1),
        slice_("launch", 20, 5, cat="cuda_runtime"),
        flow("s", 20, 2),
        slice_("kernel", 30, 5, cat="kernel", pid=0, tid=7),
        flow("f", 30, 1, pid=0, tid=7),
        slice_("memset", 40, 5, cat="gpu_memset", pid=0, tid=7),
        flow("f", 40, 2, pid=0, tid=7),
        # Kineto: of many arrows only one end is in the trace.
        slice_("kernel", 50, 5, cat="kernel", pid=0, tid=7),
        flow("f", 50, 3, pid=0, tid=7),
    ]
    trace = {"a.json": torch_trace(*events)}
    merged = merge(trace, exclude_categories=["gpu_memset"])
    assert merged.left_out == {"category": 1, "arrow": 2}
    assert [found["id"] for found in merged.events if found["ph"] in "sf"] == [1, 1, 3]
    # The operator is there, but it is not what the arrow came from.
    merged = merge(trace, exclude_categories=["cuda_runtime"])
    assert [found["id"] for found in merged.events if found["ph"] in "sf"] == [3]
    assert merge(trace, exclude_categories=["ac2g"]).left_out == {"category": 5}
    assert merge(trace, time_window=(0, 0.000015)).names == ["op", "launch"]


def test_an_arrow_without_bp_ends_at_the_next_slice(merge: Any) -> None:
    events = [
        slice_("from", 0, 5, cat="a"),
        event("s", "go", 1, id=1),
        event("f", "go", 7, id=1, tid=7),
        slice_("to", 9, 5, cat="b", tid=7),
        slice_("before", 6, 2, cat="a", tid=7),
    ]
    assert merge({"a.json": rank_trace(*events)}, categories=["a"]).names == ["from", "before"]
    assert merge({"a.json": rank_trace(*events)}, categories=["a", "b"]).names == [found["name"] for found in events]


def test_what_is_left_on_a_track_of_overlaps_stays_on_its_lane(merge: Any) -> None:
    events = [
        slice_("a", 0, 10, cat="x"),
        slice_("b", 5, 10, cat="y"),
        slice_("c", 20, 10, cat="x"),
        slice_("d", 25, 10, cat="x"),
        slice_("e", 40, 1, cat="x"),
    ]
    whole = {found["name"]: found["tid"] for found in merge({"a.json": rank_trace(*events)}).events}
    merged = merge({"a.json": rank_trace(*events)}, categories=["x"])
    assert {name: whole[name] for name in "acde"} == {
        found["name"]: found["tid"] for found in merged.events if found["ph"] == "X"
    }
    assert whole["d"] == whole["b"] != whole["a"]


def test_an_event_that_nothing_can_show_is_a_loss_and_no_request(merge: Any) -> None:
    merged = merge({"a.json": torch_trace(slice_("a", 1), {**slice_("b", 1), "ts": None})}, time_window=(0, 1))
    assert [(drop.reason, drop.lost) for drop in merged.report.dropped] == [("no_time", True)]
    assert merged.report.left_out == []


@pytest.mark.parametrize("ending", ["json", "json.gz", "pftrace", "tar"])
def test_workers_select_the_same(tmp_path: Path, ending: str) -> None:
    for rank in range(3):
        events = [slice_(f"{number} on {rank}", 10 * number, number, cat="x") for number in range(20)]
        pair = [
            event("B", "pair", 300, cat="x"),
            event("E", "pair", 310),
            event("s", "go", 50, id=1),
            event("f", "go", 90, id=1),
        ]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(rank_trace(*events, *pair, rank=rank)))
    select = Selection(
        ranks={0, 2}, time_window=(0.00005, None), categories=["x"], min_duration_ns=6000, names=["1? *", "pair"]
    )
    outputs = [str(tmp_path / f"{name}.{ending}") for name in ("alone", "together")]
    inputs = [str(tmp_path / f"rank{rank}.json") for rank in range(3)]
    alone = merge_traces(outputs[0], inputs, select=select)
    with process_pool(2) as executor:
        together = merge_traces(outputs[1], inputs, select=select, executor=executor)
    assert Path(outputs[0]).read_bytes() == Path(outputs[1]).read_bytes()
    assert alone.left_out == together.left_out
    assert {item.reason for item in alone.left_out} == {"rank", "time", "duration", "name", "arrow"}


def test_ranks_alone_choose_no_events() -> None:
    assert not Selection(ranks=frozenset({0}), exclude_categories=[]).of_events  # type: ignore[arg-type]
    assert Selection(exclude_categories=["kernel"]).of_events  # type: ignore[arg-type]
