from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import tracekit
from tests.flight_dumps import as_json, as_pickle, hung
from tracekit import core
from tracekit.capture.documents import RankStatus, Request
from tracekit.capture.folder import ControlFolder
from tracekit.errors import ConfigError, MergeError, StorageError
from tracekit.formats.kineto import gpu_of_label, rank_in_name
from tracekit.merge import merge_traces
from tracekit.merge.scan.identity import RanksByHand
from tracekit.storage import file_identity
from tracekit.traces.inputs import find_traces
from tracekit.worker_processes import process_pool

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.merge import MergeReport

BASE_NS = 1_790_857_026_000_000_000
GRID_NS = 7_889_238 * 10**9


def event(
    name: str, ts: Any = 5, dur: Any = 2, *, ph: str = "X", pid: Any = 100, tid: Any = 100, **more: Any
) -> dict[str, Any]:
    found = {"ph": ph, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, **more}
    return found if ph == "X" else {key: value for key, value in found.items() if key != "dur"}


def meta(event_name: str, on: Any, tid: Any = 0, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": event_name, "pid": on, "tid": tid, "args": args}


def rank_trace(*events: dict[str, Any], rank: int = 0, pid: int = 100, **metadata: Any) -> list[dict[str, Any]]:
    own = {
        "rank": rank,
        "pid": pid,
        "host": "h",
        "run_id": "r",
        "attempt": 0,
        "baseTimeNanoseconds": BASE_NS,
        **metadata,
    }
    return [meta("tracekit_metadata", pid, pid, **own), *events]


def torch_trace(*events: dict[str, Any], **header: Any) -> dict[str, Any]:
    return {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, **header, "traceEvents": list(events)}


@pytest.fixture
def merge(tmp_path: Path) -> Any:
    """Write files by name, merge them, and return the merged trace and the report."""

    def _merge(files: dict[str, Any], **options: Any) -> tuple[dict[str, Any], MergeReport]:
        folder = tmp_path / "run"
        folder.mkdir()
        for name, value in files.items():
            data = json.dumps(value).encode()
            (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        output = tmp_path / "merged.json"
        report = merge_traces(str(output), [str(folder / name) for name in files], **options)
        merged: dict[str, Any] = json.loads(output.read_text(), parse_float=str)
        return merged, report

    return _merge


def timed(merged: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {found["name"]: found for found in merged["traceEvents"] if found["ph"] != "M"}


def titles(merged: dict[str, Any]) -> dict[int, str]:
    return {found["pid"]: found["args"]["name"] for found in merged["traceEvents"] if found["name"] == "process_name"}


def in_order(merged: dict[str, Any]) -> list[str]:
    """Return the titles of the processes in the order in which they are shown."""
    orders = {
        found["pid"]: found["args"]["sort_index"]
        for found in merged["traceEvents"]
        if found["name"] == "process_sort_index"
    }
    return [titles(merged)[pid] for pid in sorted(orders, key=orders.__getitem__)]


def threads(merged: dict[str, Any]) -> dict[tuple[int, int], str]:
    return {
        (found["pid"], found["tid"]): found["args"]["name"]
        for found in merged["traceEvents"]
        if found["name"] == "thread_name"
    }


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-3.json.gz", 3),
        ("rank12_trace.json", 12),
        ("prof_rank-0.json.gz", 0),
        ("trace-rank-7.json", 7),
        ("torch-rank5-20.json.gz", 5),
        ("worker4_step_12.1694128201545.pt.trace.json.gz", 4),
        ("16-TP-2.trace.json.gz", 2),
        ("16-TP-2-DP-0-PP-0-EP-0.trace.json.gz", 2),
        ("16-TP-2-DP-1-PP-0-EP-0.trace.json.gz", None),
        ("host_4711.1694128201545.pt.trace.json", None),
        ("frank3.json", None),
        ("trace.json", None),
    ],
)
def test_the_rank_in_a_file_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_gpu_labels() -> None:
    assert [gpu_of_label(label) for label in ("GPU 0", "GPU 12 ", "CPU", "")] == [0, 12, None, None]


def test_a_marker_and_the_operator_under_it_stand_on_one_track(merge: Any) -> None:
    merged, report = merge(
        {
            "rank0.json": rank_trace(
                meta("process_name", 100, name="rank 0"),
                meta("thread_name", 100, 100, name="MainThread"),
                event("forward", 10.125, 50),
                meta("tracekit_companion", 100, file="cycle.json.gz"),
            ),
            "cycle.json.gz": torch_trace(
                meta("process_name", 100, name="python3"),
                meta("thread_name", 100, 100, name="thread 100 (python3)"),
                event("aten::mm", 20, 5),
                event("aten::relu", 55, 10),
            ),
        }
    )
    found = timed(merged)
    assert report.inputs[1].rank_source == "tracekit_companion"
    assert [(found[name]["pid"], found[name]["tid"]) for name in ("forward", "aten::mm")] == [(1, 100), (1, 100)]
    assert (found["forward"]["ts"], found["aten::mm"]["ts"]) == ("10.125", "20.000")
    assert titles(merged) == {1: "rank 0 · python3"}
    # What overlaps the marker without lying in it has a track beside it.
    beside = found["aten::relu"]["tid"]
    assert threads(merged) == {(1, 100): "MainThread", (1, beside): "MainThread (overlap)"}
    assert report.overlaps_moved == 1


def test_an_arrow_goes_with_the_slice_that_moves(merge: Any) -> None:
    merged, _ = merge(
        {
            "rank0.json": torch_trace(
                event("a", 0, 10, tid=7),
                event("b", 5, 10, tid=7),
                event("launch", 1, 1),
                event("arrow", 1, ph="s", id=1),
                event("arrow b", 5, ph="f", id=1, tid=7, bp="e"),
            )
        }
    )
    found = timed(merged)
    assert found["b"]["tid"] != 7
    assert found["arrow b"]["tid"] == found["b"]["tid"]


def test_gpus_come_after_the_process_with_names_that_say_what_they_are(merge: Any) -> None:
    merged, report = merge(
        {
            "rank3.json": torch_trace(
                *[meta("process_labels", gpu, labels=f"GPU {gpu}") for gpu in range(8)],
                meta("process_labels", 100, labels="CPU"),
                meta("process_name", 100, name="python3"),
                meta("thread_name", 1, 7, name="stream 7 "),
                event("kernel", pid=1, tid=7),
                event("op"),
                event("overhead", pid=-1, tid=0),
                event("PyTorch Profiler (0)", pid="Spans", tid="PyTorch Profiler"),
                event("Record Window End", pid="", tid="", ph="i", s="g"),
            )
        }
    )
    assert in_order(merged) == [
        "rank 3 · python3",
        "rank 3 · GPU 1",
        "rank 3 · overhead",
        "rank 3 · profiler",
    ]
    assert {pid // merged["tracekit"]["merge"]["pid_stride"] for pid in titles(merged)} == {3}
    gpu = next(pid for pid, title in titles(merged).items() if title == "rank 3 · GPU 1")
    assert threads(merged)[gpu, 7] == "rank 3 · GPU 1 · stream 7"
    assert timed(merged)["Record Window End"]["s"] == "p"
    assert sum(drop.count for drop in report.dropped if drop.reason == "unused_process") == 7
    assert report.complete


def test_a_device_without_any_declaration_is_known_by_its_categories(merge: Any) -> None:
    merged, _ = merge({"rank0.json": torch_trace(event("op", cat="cpu_op"), event("k", pid=2, tid=7, cat="kernel"))})
    assert titles(merged) == {1: "rank 0 · process 100", 2: "rank 0 · GPU 2"}


def test_ranks_on_both_sides_of_the_grid_meet(merge: Any) -> None:
    merged, report = merge(
        {
            "rank0.json": torch_trace(event("a", 7_889_237_000_000.5), baseTimeNanoseconds=BASE_NS),
            "rank1.json": torch_trace(event("b", 1_000_000), baseTimeNanoseconds=BASE_NS + GRID_NS),
        }
    )
    found = timed(merged)
    assert merged["baseTimeNanoseconds"] == report.base_time_ns == BASE_NS
    assert (found["a"]["ts"], found["b"]["ts"]) == ("7889237000000.500", "7889239000000.000")


def test_an_input_without_a_clock_is_placed_and_flagged(merge: Any) -> None:
    files = {
        "rank0.json": torch_trace(event("a", 1000)),
        "rank1.json": [event("b", 77, pid=5), event("c", 78, pid=5)],
    }
    merged, report = merge(files)
    found = timed(merged)
    assert (found["a"]["ts"], found["b"]["ts"], found["c"]["ts"]) == ("1000.000", "1000.000", "1001.000")
    assert "rank 1 is not aligned" in report.warnings[0]
    assert [rank.clock for rank in report.ranks] == ["wall clock; host unknown", "unknown"]


def test_strict_refuses_a_clock_that_had_to_be_assumed(merge: Any, tmp_path: Path) -> None:
    files = {"rank0.json": torch_trace(event("a")), "rank1.json": [event("b")]}
    with pytest.raises(MergeError, match="does not tell its clock"):
        merge(files, strict=True)
    assert not (tmp_path / "merged.json").exists()


def test_times_that_are_none_do_not_shift_the_rest(merge: Any) -> None:
    epoch_us = BASE_NS // 1000
    files = {
        "rank0.json": torch_trace(
            event("a", epoch_us + 5), event("zero", 0, 0), event("null", None), baseTimeNanoseconds=0
        )
    }
    merged, report = merge(files)
    assert list(timed(merged)) == ["a"]
    assert timed(merged)["a"]["ts"] == "5.000"
    assert {drop.reason: drop.count for drop in report.dropped} == {"time_out_of_range": 1, "no_time": 1}
    assert not report.complete


def test_odd_but_readable_values_are_written_as_viewers_take_them(merge: Any) -> None:
    merged, report = merge(
        {
            "rank0.json": torch_trace(
                event("text", "1.5", "2"),
                event("long", 7.2709999999999999, 1.00049),
                event("backwards", 9, -1),
                event("endless", 10, ph="X", dur=None),
                event("count", 11, ph="C", args={"good": 1, "text": "2.5", "bad": "abc", "on": True, "list": [1]}),
                event("job", 12, ph="b", id="0x1", cat="c"),
                event("job", 13, ph="e", id="0x1", cat="c"),
                event("float pid", 14, pid=100.0, tid=100.0),
            )
        }
    )
    found = timed(merged)
    assert (found["text"]["ts"], found["text"]["dur"]) == ("1.500", "2.000")
    assert (found["long"]["ts"], found["long"]["dur"]) == ("7.271", "1.000")
    assert (found["backwards"]["dur"], found["endless"]["dur"]) == ("0.000", "0.000")
    assert found["count"]["args"] == {"good": 1, "text": "2.5", "on": 1}
    assert found["job"]["id2"] == {"local": "0x1"}
    assert "id" not in found["job"]
    assert found["float pid"]["pid"] == found["text"]["pid"]
    assert {repair.kind: repair.count for repair in report.repaired} == {
        "bad_dur": 2,
        "counter_value_left_out": 2,
        "text_time": 2,
    }


def test_cycles_of_one_process_share_it_and_keep_their_ids_apart(merge: Any) -> None:
    cycle = [event("launch", 1, 1, args={"correlation": 7, "note": '"correlation": 7'}), event("go", 1, ph="s", id=7)]
    later = [{**found, "ts": found["ts"] + 100, "name": found["name"] + " 2"} for found in cycle]
    merged, _ = merge({"a-rank0.json": torch_trace(*cycle), "b-rank0.json": torch_trace(*later)})
    found = timed(merged)
    assert {one["pid"] for one in found.values()} == {1}
    assert found["go"]["id"] != found["go 2"]["id"]
    assert found["launch"]["args"]["correlation"] != found["launch 2"]["args"]["correlation"]
    assert found["launch 2"]["args"]["note"] == '"correlation": 7'


def test_a_restarted_rank_has_a_process_for_each_attempt(merge: Any) -> None:
    merged, _ = merge(
        {
            "first.json": rank_trace(event("a"), attempt=0),
            "second.json": rank_trace(event("b", pid=200), pid=200, attempt=1),
        }
    )
    assert len({found["pid"] for found in timed(merged).values()}) == 2
    assert len(titles(merged)) == 2


def test_a_packed_copy_is_merged_once(merge: Any) -> None:
    trace = rank_trace(event("a"))
    merged, report = merge({"rank0.json": trace, "rank0.json.gz": trace})
    assert [found["name"] for found in merged["traceEvents"] if found["ph"] == "X"] == ["a"]
    assert [item.reason.split(" ")[0] for item in report.omitted] == ["holds"]
    assert report.complete


@pytest.mark.parametrize("different", ["name", "args"])
def test_files_that_differ_in_content_only_are_both_merged(merge: Any, different: str) -> None:
    first, second = ("a", 1), ("b", 1) if different == "name" else ("a", 2)
    files = {
        f"rank0-{number}.json": rank_trace(event(name, args={"value": value}))
        for number, (name, value) in enumerate((first, second))
    }
    merged, report = merge(files)
    found = [(event["name"], event["args"]["value"]) for event in merged["traceEvents"] if event["ph"] == "X"]
    assert sorted(found) == sorted([first, second])
    assert report.omitted == []


def test_a_rank_by_hand_wins(merge: Any) -> None:
    _, report = merge({"rank1.json": torch_trace(event("a"), distributedInfo={"rank": 2})}, ranks={"rank1.json": 3})
    assert [(item.rank, item.rank_source) for item in report.inputs] == [(3, "--rank")]


def test_ten_thousand_ranks_fit_the_process_ids(merge: Any) -> None:
    merged, _ = merge({"rank9999.json": torch_trace(event("a"))})
    assert timed(merged)["a"]["pid"] == 999_900_001


def test_ranks_that_do_not_fit_have_their_processes_closer_together(merge: Any) -> None:
    merged, _ = merge({"rank50000.json": torch_trace(event("a"))})
    assert merged["tracekit"]["merge"]["pid_stride"] == 10_000
    assert timed(merged)["a"]["pid"] == 500_000_001


def test_many_processes_of_a_rank_have_numbers_of_their_own(merge: Any) -> None:
    many = [event(f"p{pid}", pid=pid, tid=1) for pid in range(100, 1300)]
    merged, _ = merge({"rank2.json": torch_trace(*many), "rank3.json": torch_trace(event("x"))})
    pids = {name: found["pid"] for name, found in timed(merged).items()}
    assert len(set(pids.values())) == 1201
    assert (pids["p100"], pids["x"]) == (200_001, 300_001)


def test_a_process_without_events_is_in_the_table_of_its_rank(merge: Any) -> None:
    merged, report = merge({"rank0.json": rank_trace(), "rank1.json": rank_trace(event("a"), rank=1)})
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert titles(merged) == {1: "rank 0 · process 100", 100_001: "rank 1 · process 100"}
    assert sum(found["name"] == "tracekit_metadata" for found in merged["traceEvents"]) == 2


def test_the_output_must_be_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must end with"):
        merge_traces(str(tmp_path / "merged.pb"), [str(tmp_path)])


def test_progress_rises_to_one(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(torch_trace(event("a"))))
    seen: list[float] = []
    merge_traces(str(tmp_path / "merged.json"), [str(tmp_path)], progress=lambda share, _: seen.append(share))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_trace_is_merged_beyond_the_bytes_after_which_one_without_an_event_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core reads most of the events in place of the reader, which counts them as well."""
    monkeypatch.setattr("tracekit.formats.json.window._MAX_UNREADABLE_BYTES", 100_000)
    events = [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": at, "dur": 1} for at in range(0, 40_000, 2)]
    (tmp_path / "in.json").write_text(json.dumps({"traceEvents": events}))
    report = merge_traces(str(tmp_path / "out.json"), [str(tmp_path / "in.json")], ranks={"in.json": 0})
    assert report.complete
    assert (tmp_path / "out.json").read_text().count('"ph":"X"') + (tmp_path / "out.json").read_text().count(
        '"ph": "X"'
    ) == 20_000


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("where", ["header", "metadata"])
def test_what_is_said_beside_the_events_may_be_nested_too_deeply(tmp_path: Path, where: str, workers: int) -> None:
    # From 3.13 on, what is nested in C has a limit of its own.
    levels = 400 if sys.version_info < (3, 13) else 3000
    deep = '[{"deep":' * levels + "1" + "}]" * levels
    (tmp_path / "good.json").write_text(json.dumps(rank_trace(event("a"))))
    odd = (
        torch_trace(event("b"), deep="DEEP", distributedInfo={"rank": 1})
        if where == "header"
        else rank_trace(event("b"), rank=1, deep="DEEP")
    )
    (tmp_path / "odd.json").write_text(json.dumps(odd).replace('"DEEP"', deep))
    with process_pool(workers) if workers > 1 else nullcontext() as executor:
        report = merge_traces(str(tmp_path / "out.json"), [str(tmp_path)], executor=executor)
    assert [(item.path, item.reason) for item in report.omitted] == [
        (str(tmp_path / "odd.json"), "what it says beside its events is nested too deeply")
    ]
    assert not report.complete


def test_documents_of_a_control_folder_are_skipped_silently(tmp_path: Path) -> None:
    control = ControlFolder(tmp_path / "run" / "control")
    control.make()
    control.write_request(Request(id="a", steps=5))
    control.write_status(RankStatus(rank=0, world_size=1, run_id="r", host="h", pid=1))
    (tmp_path / "run" / "rank0.json").write_text(json.dumps(rank_trace(event("a"))))
    (tmp_path / "run" / "ranks").mkdir()
    (tmp_path / "run" / "ranks" / "rank1.json").write_text(json.dumps(rank_trace(event("b"), rank=1)))

    report = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path / "run")])
    assert [item.rank for item in report.inputs] == [0, 1]
    assert report.omitted == []
    assert find_traces([str(tmp_path / "run")]) == [
        (str(tmp_path / "run" / name), False) for name in ("rank0.json", "ranks/rank1.json")
    ]
    with pytest.raises(StorageError, match="documents of on-demand capture, not traces"):
        merge_traces(str(tmp_path / "none.json"), [str(control.path)])


def test_a_folder_of_flight_recorder_dumps_is_merged(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "nccl_trace_rank_0").write_bytes(as_pickle(hung()))
    (folder / "_dump_fr_trace_json_rank1.bin").write_bytes(as_json(hung()))
    (folder / "weights.bin").write_bytes(b"PK\x03\x04" + bytes(1000))
    (folder / "README").write_text("no trace")

    report = merge_traces(str(tmp_path / "merged.json"), [str(folder)])
    assert [(item.rank, item.kind) for item in report.inputs] == [(0, "flight recorder"), (1, "flight recorder")]
    assert report.omitted == []


def as_text(found: dict[str, Any], number: int) -> dict[str, Any]:
    """Write some ids of an event as text, as torch did in 2021."""
    if number % 2 or found["ph"] in "sf":
        return found
    return {**found, "tid": str(found["tid"]), **({"pid": str(found["pid"])} if number % 4 else {})}


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=pytest.mark.core), False], ids=["core", "python"])
@pytest.mark.parametrize("output", ["merged.json", "merged.pftrace"])
def test_ids_written_as_text_and_as_numbers_are_one_thread(tmp_path: Path, output: str, compiled: bool) -> None:
    found: list[dict[str, Any]] = [meta("thread_name", 100, 5555, name="main")]
    for n in range(0, 400, 10):
        found += [
            event(f"launch {n}", n, 5, tid=5555, args={"correlation": n}),
            event("go", n + 1, ph="s", tid=5555, id=n, cat="ac2g"),
            event("go", n + 3, ph="f", pid=0, tid=7, id=n, cat="ac2g", bp="e"),
            event(f"kernel {n}", n + 3, 12 if n % 50 == 0 else 3, pid=0, tid=7),
        ]
    for n in range(400, 500, 10):
        found += [event(f"open {n}", n, ph="B", tid=5555), event(f"open {n}", n + 5, ph="E", tid=5555)]
    written = []
    for name, events in (("numbers", found), ("texts", [as_text(each, n) for n, each in enumerate(found)])):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "rank0.json").write_text(json.dumps(torch_trace(*events)))
        with nullcontext() if compiled else mock.patch.object(core, "merge", None):
            report = merge_traces(str(folder / output), str(folder / "rank0.json"))
        assert report.overlaps_moved
        written.append((folder / output).read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("text", ["stream 7", "007", "+5", "-0", "5.0", " 5", "", "1234567890123456789"])
def test_ids_that_are_no_plain_numbers_stay_texts(merge: Any, text: str) -> None:
    merged, _ = merge({"rank0.json": torch_trace(event("a", tid=text), event("b", 9, tid=5), event("c", 12, tid=0))})
    found = timed(merged)
    assert found["a"]["tid"] not in (found["b"]["tid"], found["c"]["tid"])
    assert text in threads(merged).values() or not text


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=pytest.mark.core), False], ids=["core", "python"])
def test_every_tool_reads_the_events_of_the_outermost_object(tmp_path: Path, compiled: bool) -> None:
    path = tmp_path / "rank0.json"
    inner, one, two = (json.dumps([event(name)]) for name in ("inner", "one", "two"))
    path.write_text(f'{{"otherData":{{"traceEvents":{inner}}},"traceEvents":{one},"traceEvents":{two}}}')
    with nullcontext() if compiled else mock.patch.object(core, "merge", None):
        report = merge_traces(str(tmp_path / "merged.json"), str(path))
        assert set(timed(json.loads((tmp_path / "merged.json").read_text()))) == {"one", "two"}
    assert [repair.kind for repair in report.repaired] == ["second_events"]
    assert tracekit.validate_trace(path).counts == {"duplicate-events": 1}
    assert tracekit.recover_trace(path).events == 2
    assert {marker.name for marker in tracekit.summarize_traces(path).markers} == {"one", "two"}


@pytest.mark.parametrize("count", [10, 40])
def test_ranks_given_by_hand_are_found_with_two_looks_at_each_file(tmp_path: Path, count: int) -> None:
    paths = [str(tmp_path / f"{number}" / "trace.json") for number in range(count)]
    looks = []

    def look(path: str) -> Any:
        looks.append(path)
        return file_identity(path)

    with mock.patch("tracekit.merge.scan.identity.file_identity", look):
        by_hand = RanksByHand({path: number for number, path in enumerate(paths)})
        assert [by_hand.names(path) for path in paths] == [[path] for path in paths]
    assert len(looks) == 2 * count


def test_ranks_given_by_hand_are_by_path_by_name_or_by_another_path(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.json").write_text("[]")
    (tmp_path / "y.json").symlink_to(tmp_path / "a" / "x.json")
    path = str(tmp_path / "a" / "x.json")
    other = str(tmp_path / "a" / ".." / "a" / "x.json")
    by_hand = RanksByHand({other: 1, "x.json": 2, path: 3, str(tmp_path / "y.json"): 4, "z.json": 5})
    assert set(by_hand.names(path)) == {other, "x.json", path}
    assert by_hand.names(str(tmp_path / "b.json")) == []


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=pytest.mark.core), False], ids=["core", "python"])
@pytest.mark.parametrize("output", ["merged.json", "merged.pftrace"])
def test_events_larger_than_a_piece_are_merged(tmp_path: Path, output: str, compiled: bool) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(torch_trace(*(event(f"e{n}", 10 * n, args={"hlo": "x" * 600_000}) for n in range(3)))))
    with nullcontext() if compiled else mock.patch.object(core, "merge", None):
        report = merge_traces(str(tmp_path / output), str(path))
    assert (report.events_out["X"], report.complete) == (3, True)


def test_merging_a_merge_gives_the_ids_of_merging_all_at_once(tmp_path: Path) -> None:
    for rank in range(3):
        launch = event("launch", 5 + rank, args={"correlation": 1025, "External id": 3})
        arrow = event("ac2g", 5 + rank, ph="s", id=1025, cat="ac2g")
        (tmp_path / f"{rank}.json").write_text(json.dumps(torch_trace(launch, arrow, distributedInfo={"rank": rank})))
    paths = [str(tmp_path / f"{rank}.json") for rank in range(3)]
    merge_traces(str(tmp_path / "abc.json"), paths)
    merge_traces(str(tmp_path / "ab.json"), paths[:2])
    merge_traces(str(tmp_path / "ab_c.json"), [str(tmp_path / "ab.json"), paths[2]])

    def ids(name: str) -> list[Any]:
        events = json.loads((tmp_path / name).read_text())["traceEvents"]
        return [(found["pid"], found.get("id"), found.get("args")) for found in events if found["ph"] != "M"]

    assert ids("ab_c.json") == ids("abc.json")


def test_merge_loads_modules_of_other_forms_only_when_needed(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(json.dumps(torch_trace(event("op", 1, 2))))
    code = """if True:
        import sys
        from tracekit.cli import main
        assert main(["merge", "--quiet", "-o", sys.argv[2], sys.argv[1]]) == 0
        print(*sys.modules)
    """
    arguments = [sys.executable, "-c", code, str(tmp_path / "rank0.json"), str(tmp_path / "merged.json")]
    loaded = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split()
    rare = (
        "archive_file|flight_dump|json_lines|pftrace_stream|write.archive|pftrace_output"
        "|dask_cluster|event_filter|collective_sets"
    )
    assert not [name for name in loaded if re.search(rf"tracekit.*\.(?:{rare})$", name)]
    assert not {"fsspec", "perfetto", "tracekit.clock", "tracekit.events"} & set(loaded)
