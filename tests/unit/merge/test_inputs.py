"""Inputs of a merge: their ranks, their rows, and their odd values."""

from __future__ import annotations

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
from tests.merge_inputs import BASE_NS, event, meta, names, rank_trace, threads, timed, titles, torch_trace, write
from tracekit.capture.control_folder import ControlFolder, RankStatus, Request
from tracekit.errors import ConfigError, MergeError, StorageError
from tracekit.formats.kineto import gpu_of_label, rank_in_name
from tracekit.merge import merge_traces
from tracekit.merge.scan.identity import RanksByHand
from tracekit.storage import file_identity
from tracekit.traces.inputs import find_traces
from tracekit.worker_processes import process_pool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GRID_NS = 7_889_238 * 10**9


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("torch-rank5-20.json.gz", 5),
        ("16-TP-2.trace.json.gz", 2),
        ("16-TP-2-DP-0-PP-0-EP-0.trace.json.gz", 2),
        ("16-TP-2-DP-1-PP-0-EP-0.trace.json.gz", None),
        ("host_4711.1694128201545.pt.trace.json", None),
        ("frank3.json", None),
    ],
)
def test_the_rank_in_a_file_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_gpu_labels() -> None:
    assert [gpu_of_label(label) for label in ("GPU 0", "GPU 12 ", "CPU", "")] == [0, 12, None, None]


def test_a_marker_and_the_operator_under_it_stand_on_one_track(merge: Any, tmp_path: Path) -> None:
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
                event("aten::rand", 1, 5),
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
    for number, name in enumerate(("cycle.json.gz", "rank0.json")):
        merge_traces(str(tmp_path / f"step{number}.json"), [str(tmp_path / "run0" / name)])
    merge_traces(str(tmp_path / "steps.json"), [str(tmp_path / f"step{number}.json") for number in range(2)])
    assert threads(json.loads((tmp_path / "steps.json").read_text())) == threads(merged)


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
    shown = titles(merged)
    assert list(shown.values()) == ["rank 3 · python3", "rank 3 · GPU 1", "rank 3 · overhead", "rank 3 · profiler"]
    assert {pid // merged["tracekit"]["merge"]["pid_stride"] for pid in shown} == {3}
    assert threads(merged)[list(shown)[1], 7] == "rank 3 · GPU 1 · stream 7"
    assert timed(merged)["Record Window End"]["s"] == "p"
    assert sum(drop.count for drop in report.dropped if drop.reason == "unused_process") == 7
    assert report.complete


def test_a_device_without_any_declaration_is_known_by_its_categories(merge: Any) -> None:
    merged, _ = merge({"rank0.json": torch_trace(event("op", cat="cpu_op"), event("k", pid=2, tid=7, cat="kernel"))})
    assert titles(merged) == {1: "rank 0 · process 100", 2: "rank 0 · GPU 2"}


def test_ranks_on_both_sides_of_the_grid_meet(merge: Any) -> None:
    files = {
        "rank0.json": torch_trace(event("a", 7_889_237_000_000.5)),
        "rank1.json": torch_trace(event("b", 1_000_000), baseTimeNanoseconds=BASE_NS + GRID_NS),
    }
    merged, report = merge(files)
    assert merged["baseTimeNanoseconds"] == report.base_time_ns == BASE_NS
    assert [timed(merged)[name]["ts"] for name in "ab"] == ["7889237000000.500", "7889239000000.000"]


def test_an_input_without_a_clock_is_placed_and_flagged(merge: Any, tmp_path: Path) -> None:
    files = {
        "rank0.json": torch_trace(event("a", 1000)),
        "rank1.json": [event("b", 77, pid=5), event("c", 78, pid=5)],
    }
    merged, report = merge(files)
    assert [timed(merged)[name]["ts"] for name in "abc"] == ["1000.000", "1000.000", "1001.000"]
    assert "rank 1 is not aligned" in report.warnings[0]
    assert [rank.clock for rank in report.ranks] == ["wall clock; host unknown", "unknown"]
    with pytest.raises(MergeError, match="does not tell its clock"):
        merge(files, strict=True)
    assert len(list(tmp_path.rglob("merged.json"))) == 1


def test_times_that_are_none_do_not_shift_the_rest(merge: Any) -> None:
    events = [event("a", BASE_NS // 1000 + 5), event("zero", 0, 0), event("null", None)]
    merged, report = merge({"rank0.json": torch_trace(*events, baseTimeNanoseconds=0)})
    assert {name: found["ts"] for name, found in timed(merged).items()} == {"a": "5.000"}
    assert {drop.reason: drop.count for drop in report.dropped} == {"time_out_of_range": 1, "no_time": 1}
    assert not report.complete


def test_odd_but_readable_values_are_written_as_viewers_take_them(merge: Any) -> None:
    merged, report = merge(
        {
            "rank0.json": torch_trace(
                event("text", "1.5", "2"),
                event("long", 7.2709999999999999, 1.00049),
                event("backwards", 9, -1),
                event("endless", 10, None),
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
    args = {"correlation": 7, "note": '"correlation": 7'}
    cycles = [[event(f"launch {at}", at, 1, args=args), event(f"go {at}", at, ph="s", id=7)] for at in (1, 101)]
    merged, _ = merge({"a-rank0.json": torch_trace(*cycles[0]), "b-rank0.json": torch_trace(*cycles[1])})
    found = timed(merged)
    assert {one["pid"] for one in found.values()} == {1}
    assert found["go 1"]["id"] != found["go 101"]["id"]
    assert found["launch 1"]["args"]["correlation"] != found["launch 101"]["args"]["correlation"]
    assert found["launch 101"]["args"]["note"] == '"correlation": 7'


def test_a_packed_copy_is_merged_once(merge: Any) -> None:
    merged, report = merge({"rank0.json": rank_trace(event("a")), "rank0.json.gz": rank_trace(event("a"))})
    assert names(merged) == ["a"]
    assert [item.reason.split(" ")[0] for item in report.omitted] == ["holds"]
    assert report.complete


@pytest.mark.parametrize("other", [event("b", args={"value": 1}), event("a", args={"value": 2})], ids=["name", "args"])
def test_files_that_differ_in_content_only_are_both_merged(merge: Any, other: dict[str, Any]) -> None:
    events = [event("a", args={"value": 1}), other]
    merged, report = merge({f"rank0-{number}.json": rank_trace(each) for number, each in enumerate(events)})
    assert names(merged) == [each["name"] for each in events]
    assert report.omitted == []


def test_a_rank_by_hand_wins(merge: Any) -> None:
    _, report = merge({"rank1.json": torch_trace(event("a"), distributedInfo={"rank": 2})}, ranks={"rank1.json": 3})
    assert [(item.rank, item.rank_source) for item in report.inputs] == [(3, "--rank")]


@pytest.mark.parametrize(("rank", "stride", "pid"), [(9999, 100_000, 999_900_001), (50_000, 10_000, 500_000_001)])
def test_many_ranks_fit_the_process_ids_or_have_their_processes_closer_together(
    merge: Any, rank: int, stride: int, pid: int
) -> None:
    merged, _ = merge({f"rank{rank}.json": torch_trace(event("a"))})
    assert merged["tracekit"]["merge"]["pid_stride"] == stride
    assert timed(merged)["a"]["pid"] == pid


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


def test_a_trace_is_merged_beyond_the_bytes_after_which_one_without_an_event_is_given_up(
    merge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core reads most of the events in place of the reader, which counts them as well."""
    monkeypatch.setattr("tracekit.formats.json.window._MAX_UNREADABLE_BYTES", 100_000)
    _, report = merge({"rank0.json": torch_trace(*(event("a", at, 1) for at in range(0, 40_000, 2)))})
    assert (report.complete, report.events_out["X"]) == (True, 20_000)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("where", ["header", "metadata"])
def test_what_is_said_beside_the_events_may_be_nested_too_deeply(tmp_path: Path, where: str, workers: int) -> None:
    # From 3.13 on, what is nested in C has a limit of its own.
    levels = 400 if sys.version_info < (3, 13) else 3000
    odd = (
        torch_trace(event("b"), deep="DEEP", distributedInfo={"rank": 1})
        if where == "header"
        else rank_trace(event("b"), rank=1, deep="DEEP")
    )
    text = json.dumps(odd).replace('"DEEP"', '[{"deep":' * levels + "1" + "}]" * levels)
    paths = write(tmp_path, {"good.json": rank_trace(event("a")), "odd.json": text})
    with process_pool(workers) if workers > 1 else nullcontext() as executor:
        report = merge_traces(str(tmp_path / "out.json"), paths, executor=executor)
    assert [(item.path, item.reason) for item in report.omitted] == [
        (paths[1], "what it says beside its events is nested too deeply")
    ]
    assert not report.complete


def test_documents_of_a_control_folder_are_skipped_silently(tmp_path: Path) -> None:
    run = tmp_path / "run"
    control = ControlFolder(run / "control")
    control.make()
    control.write(Request(id="a", steps=5))
    control.write(RankStatus(rank=0, world_size=1, run_id="r", host="h", pid=1))
    traces = {"rank0.json": rank_trace(event("a")), "ranks/rank1.json": rank_trace(event("b"), rank=1)}
    paths = write(run, traces)
    report = merge_traces(str(tmp_path / "merged.json"), [str(run)])
    assert [item.rank for item in report.inputs] == [0, 1]
    assert report.omitted == []
    assert find_traces([str(run)]) == [(path, False) for path in paths]
    with pytest.raises(StorageError, match="documents of on-demand capture, not traces"):
        merge_traces(str(tmp_path / "none.json"), [str(control.path)])


@pytest.mark.parametrize("name", ["nccl_trace_rank_{}", "dump{}", "_dump_fr_trace_json_rank{}.bin"])
def test_a_folder_of_flight_recorder_dumps_is_merged(tmp_path: Path, name: str) -> None:
    dumps = {name.format(0): as_pickle(hung()), name.format(1): as_json(hung())}
    write(tmp_path / "run", {**dumps, "weights.bin": b"PK\x03\x04" + bytes(1000), "README": "no trace"})
    report = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path / "run")])
    assert [(item.rank, item.kind) for item in report.inputs] == [(0, "flight recorder"), (1, "flight recorder")]
    assert report.omitted == []


def as_text(found: dict[str, Any], number: int) -> dict[str, Any]:
    """Write some ids of an event as text, as torch did in 2021."""
    if number % 2 or found["ph"] in "sf":
        return found
    return {**found, "tid": str(found["tid"]), **({"pid": str(found["pid"])} if number % 4 else {})}


@pytest.mark.usefixtures("core_or_python")
@pytest.mark.parametrize("output", ["merged.json", "merged.pftrace"])
def test_ids_written_as_text_and_as_numbers_are_one_thread(tmp_path: Path, output: str) -> None:
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
        paths = write(tmp_path / name, {"rank0.json": torch_trace(*events)})
        report = merge_traces(str(tmp_path / name / output), paths)
        assert report.overlaps_moved
        written.append((tmp_path / name / output).read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("text", ["stream 7", "007", "+5", "-0", "5.0", " 5", "", "1234567890123456789"])
def test_ids_that_are_no_plain_numbers_stay_texts(merge: Any, text: str) -> None:
    merged, _ = merge({"rank0.json": torch_trace(event("a", tid=text), event("b", 9, tid=5), event("c", 12, tid=0))})
    found = timed(merged)
    assert found["a"]["tid"] not in (found["b"]["tid"], found["c"]["tid"])
    assert text in threads(merged).values() or not text


@pytest.mark.usefixtures("core_or_python")
def test_every_tool_reads_the_events_of_the_outermost_object(tmp_path: Path, merge: Any) -> None:
    inner, one, two = (json.dumps([event(name)]) for name in ("inner", "one", "two"))
    text = f'{{"otherData":{{"traceEvents":{inner}}},"traceEvents":{one},"traceEvents":{two}}}'
    merged, report = merge({"rank0.json": text})
    assert names(merged) == ["one", "two"]
    assert [repair.kind for repair in report.repaired] == ["second_events"]
    [path] = write(tmp_path, {"rank0.json": text})
    assert tracekit.validate_trace(path).counts == {"duplicate-events": 1}
    assert tracekit.recover_trace(path).events == 2
    assert {marker.name for marker in tracekit.summarize_traces(path).markers} == {"one", "two"}


@pytest.mark.parametrize("count", [10, 40])
def test_ranks_given_by_hand_are_found_with_two_looks_at_each_file(tmp_path: Path, count: int) -> None:
    paths = [str(tmp_path / f"{number}" / "trace.json") for number in range(count)]
    look: Callable[[str], Any] = file_identity
    with mock.patch("tracekit.merge.scan.identity.file_identity", side_effect=look) as looked:
        by_hand = RanksByHand({path: number for number, path in enumerate(paths)})
        assert [by_hand.names(path) for path in paths] == [[path] for path in paths]
    assert looked.call_count == 2 * count


def test_ranks_given_by_hand_are_by_path_by_name_or_by_another_path(tmp_path: Path) -> None:
    [path] = write(tmp_path / "a", {"x.json": "[]"})
    (tmp_path / "y.json").symlink_to(path)
    other = str(tmp_path / "a" / ".." / "a" / "x.json")
    by_hand = RanksByHand({other: 1, "x.json": 2, path: 3, str(tmp_path / "y.json"): 4, "z.json": 5})
    assert set(by_hand.names(path)) == {other, "x.json", path}
    assert by_hand.names(str(tmp_path / "b.json")) == []


@pytest.mark.usefixtures("core_or_python")
@pytest.mark.parametrize("output", ["merged.json", "merged.pftrace"])
def test_events_larger_than_a_piece_are_merged(tmp_path: Path, output: str) -> None:
    events = [event(f"e{n}", 10 * n, args={"hlo": "x" * 600_000}) for n in range(3)]
    report = merge_traces(str(tmp_path / output), write(tmp_path, {"rank0.json": torch_trace(*events)}))
    assert (report.events_out["X"], report.complete) == (3, True)


@pytest.mark.parametrize(
    ("name", "says"),
    [("merged.pb", r"must end with.*\.pftrace or \.pftrace\.gz"), ("nul\0.json", "output must be a path or URL")],
    ids=["another ending", "no path"],
)
def test_an_output_that_cannot_be_one_is_refused(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        merge_traces(str(tmp_path / name), [str(tmp_path)])


def test_merge_loads_modules_of_other_forms_only_when_needed(tmp_path: Path) -> None:
    [path] = write(tmp_path, {"rank0.json": torch_trace(event("op", 1, 2))})
    code = """if True:
        import sys
        from tracekit.cli import main
        assert main(["merge", "--quiet", "-o", sys.argv[2], sys.argv[1]]) == 0
        print(*sys.modules)
    """
    arguments = [sys.executable, "-c", code, path, str(tmp_path / "merged.json")]
    loaded = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split()
    rare = (
        "archive_file|flight_dump|json_lines|pftrace_stream|write.archive|pftrace_output"
        "|dask_cluster|event_filter|collective_sets"
    )
    assert not [name for name in loaded if re.search(rf"tracekit.*\.(?:{rare})$", name)]
    assert not {"fsspec", "perfetto", "tracekit.clock", "tracekit.events"} & set(loaded)
