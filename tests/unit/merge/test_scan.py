"""The first look at an input: its facts, the part of the file that is read, and heads of any size."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.merge_inputs import BASE_NS, event, meta, rank_trace, torch_trace, write
from tests.merged_tables import inputs
from tracekit import TraceFormatError, recover_trace, summarize_traces, validate_trace
from tracekit.merge import Selection, merge_traces
from tracekit.merge.scan.probe import probe

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.merge.scan.input import Input

NAMES = [meta("process_name", 100, 0, name="python"), meta("process_labels", 100, 0, labels="CPU")]


def slices(count: int) -> list[dict[str, Any]]:
    return [event(f"aten::op_{number}", 10 * number, 5, cat="cpu_op") for number in range(1, count + 1)]


def scan(path: Path, trace: Any, *, cut_bytes: int = 0) -> Input:
    text = json.dumps(trace)
    path.write_text(text[: len(text) - cut_bytes])
    return probe(str(path))


def facts(found: Input) -> Any:
    return (
        (found.kind, found.base_ns, found.first_ns, found.highest_ns, found.identity),
        (found.rank_inside, found.companions, found.named_pids, found.head()),
    )


@pytest.mark.parametrize("count", [3, 300, 1500])
@pytest.mark.parametrize("form", ["torch", "rank"])
def test_a_small_trace_in_order_of_time_is_known_by_its_ends(tmp_path: Path, form: str, count: int) -> None:
    path, events = tmp_path / "t.json", [*NAMES, *slices(count)]
    trace: Any = rank_trace(*events, rank=3) if form == "rank" else torch_trace(*events, distributedInfo={"rank": 3})
    found = scan(path, trace if form == "rank" else {**trace, "traceName": "behind the events"})
    assert found.whole is (count == 3)
    assert facts(found) == facts(probe(str(path), whole=True))
    assert (found.first_ns, found.highest_ns) == (10_000, count * 10_000)


def test_many_names_before_the_events_of_a_small_trace_are_read(tmp_path: Path) -> None:
    names = [meta("thread_name", 100, tid, name=f"thread {tid}") for tid in range(200)]
    found = scan(tmp_path / "t.json", torch_trace(*NAMES, *names, *slices(200)))
    assert not found.whole
    assert (found.first_ns, found.named_pids) == (10_000, ((100, "python"),))


def test_names_of_processes_between_the_events_of_a_small_trace_are_read(tmp_path: Path) -> None:
    events = slices(300)
    found = scan(tmp_path / "t.json", torch_trace(*events[:150], *NAMES, *events[150:]))
    assert found.whole
    assert found.named_pids == ((100, "python"),)


@pytest.mark.parametrize(("name", "count"), [("t.json", 300), ("t.json", 6000), ("t.json.gz", 20_000)])
def test_companions_named_anywhere_in_a_rank_trace_are_found(tmp_path: Path, name: str, count: int) -> None:
    first, second, third = (
        meta("tracekit_companion", 100, 100, file=file) for file in ("gpu0.json", "gpu1.json", "gpu2.json")
    )
    odd = [meta("tracekit_companion", 100, 100), event("tracekit_companion", 5, args={"file": "none.json"})]
    half = slices(count // 2)
    text = json.dumps(rank_trace(first, *half, second, *odd, *half, third)).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert probe(str(tmp_path / name)).companions == ("gpu0.json", "gpu1.json", "gpu2.json")


def test_a_rank_trace_that_ends_in_nothing_readable_is_read_for_its_last_time(tmp_path: Path) -> None:
    """A machine that lost power may leave zeros at the end of a file."""
    text = json.dumps(rank_trace(*slices(6000)))
    (tmp_path / "t.json").write_bytes(text.encode()[:-1] + bytes(100_000))
    assert probe(str(tmp_path / "t.json")).highest_ns == 60_000_000


def test_the_last_time_before_long_keys_behind_the_events_is_found(tmp_path: Path) -> None:
    """The drift of a clock counts up to it, and so the error that the merge states."""
    found = scan(tmp_path / "t.json", {**torch_trace(*slices(6000)), "frames": "x" * 200_000})
    found.read_end()
    assert found.highest_ns == 60_001_000  # to the microsecond


@pytest.mark.parametrize("split_at", range(12))
def test_the_last_time_is_found_across_pieces(tmp_path: Path, split_at: int) -> None:
    found = scan(tmp_path / "t.json", {**torch_trace(*slices(6000)), "frames": "x" * 200_000})
    text = b'{"ts":7,"args":[1,2,3]},{"ts":900123},{"args":'
    cut = text.index(b'"ts":900') + split_at
    assert b"".join(found.note_end(iter([text[:20], text[20:cut], text[cut:], b"4567890]}"]))) == text + b"4567890]}"
    assert found.highest_ns == 900_124_000


def test_the_size_of_a_packed_rank_trace_is_that_of_all_of_it(tmp_path: Path) -> None:
    text = json.dumps(rank_trace(*slices(20_000))).encode()
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(text))
    seen: list[int] = []
    assert probe(str(tmp_path / "t.json.gz"), seen.append).bytes_read == len(text) == seen[-1]


@pytest.mark.parametrize("cut_bytes", [1, 3, 40, 5000])
@pytest.mark.parametrize("form", ["torch", "rank"])
def test_a_small_trace_that_was_cut_ends_with_its_last_event(tmp_path: Path, form: str, cut_bytes: int) -> None:
    path = tmp_path / "t.json"
    trace: Any = rank_trace(*slices(300)) if form == "rank" else torch_trace(*slices(300))
    found = scan(path, trace, cut_bytes=cut_bytes)
    assert facts(found) == facts(probe(str(path), whole=True))


def test_a_small_trace_that_states_its_base_behind_the_events_has_it(tmp_path: Path) -> None:
    trace = torch_trace(*slices(300))
    base_ns = trace.pop("baseTimeNanoseconds")
    found = scan(tmp_path / "t.json", {**trace, "baseTimeNanoseconds": base_ns})
    assert (found.whole, found.base_ns) == (False, base_ns)


GROUPS = [{"pg_name": str(number), "backend_config": "cuda:nccl", "ranks": list(range(64))} for number in range(20)]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A merged trace whose head is as large as that of thousands of ranks."""
    folder = tmp_path_factory.mktemp("large")
    said = {f"key{number}": "x" * 4000 for number in range(60)}
    ranks = [
        torch_trace(event("a", rank, pid=100 + rank), distributedInfo={"rank": rank}, **said) for rank in range(80)
    ]
    write(folder / "ranks", {f"rank{rank}.json": trace for rank, trace in enumerate(ranks)})
    merge_traces(folder / "merged.json", folder / "ranks")
    assert (folder / "merged.json").stat().st_size > 17 << 20
    return folder / "merged.json"


def test_a_merge_of_thousands_of_ranks_is_read_again(large: Path, tmp_path: Path) -> None:
    assert validate_trace(large).problems == ()
    assert len(summarize_traces(large).ranks) == 80
    merge_traces(tmp_path / "again.json", large)
    assert (tmp_path / "again.json").read_bytes() == large.read_bytes()


def test_a_merge_of_thousands_of_ranks_that_was_cut_is_recovered_with_all_that_it_tells(
    large: Path, tmp_path: Path
) -> None:
    whole = large.read_bytes()
    (tmp_path / "cut.json").write_bytes(whole[:-40])
    report = recover_trace(tmp_path / "cut.json", tmp_path / "recovered.json")
    assert (report.lost_parts, report.events) == (0, len(json.loads(whole)["traceEvents"]) - 1)
    recovered = json.loads((tmp_path / "recovered.json").read_text())
    assert recovered["tracekit"] == json.loads(whole)["tracekit"]


def test_what_only_begins_as_a_merged_trace_is_given_up_at_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracekit.formats.json.reader.MAX_HEAD_BYTES", 1 << 20)
    endless = tmp_path / "endless.json"
    endless.write_text('{"schemaVersion":1,"tracekit":{"merge":{},"processes":[' + "1," * (4 << 20))
    with pytest.raises(TraceFormatError, match=r"no traceEvents in its first [12]\d{6} bytes"):
        merge_traces(tmp_path / "merged.json", endless)


def test_what_is_too_long_beside_the_events_is_named_and_the_rest_is_kept(merge: Any) -> None:
    info = {"backend": "nccl", "rank": 1, "world_size": 64, "pg_config": GROUPS}
    long = torch_trace(event("b"), distributedInfo=info, config="y" * 5000, with_stack=1, samples=["z" * 99] * 99)
    left_out = ["distributedInfo.pg_config", "config", "samples"]
    merged, report = merge({"first.json": rank_trace(event("a")), "second.json": long}, align="wall")
    assert [item.header_left_out for item in report.inputs] == [(), tuple(left_out)]
    assert (report.complete, report.warnings) == (True, [])
    lines = [line for line in report.lines() if "beside the events" in line]
    assert lines[1] == "left out: config beside the events of 1 input: longer than 4,096 bytes, or behind 64 other keys"
    kept = inputs(merged)
    assert "header_left_out" not in kept[0]
    assert kept[1]["header_left_out"] == left_out
    assert kept[1]["header"] == {
        "baseTimeNanoseconds": BASE_NS,
        "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 64},
        "with_stack": 1,
    }
    # An earlier merge has said so already.
    again, report = merge({"merged.json": merged}, align="wall")
    assert report.inputs[0].header_left_out == ()
    assert again == merged


def test_a_header_of_many_keys_keeps_the_first(merge: Any) -> None:
    _, report = merge({"many.json": torch_trace(event("a"), rank=0, **{f"key{number}": 1 for number in range(70)})})
    assert report.inputs[0].header_left_out == tuple(f"key{number}" for number in range(62, 70))


def test_some_ranks_of_an_earlier_merge_tell_of_themselves_only(merge: Any) -> None:
    files = {f"{rank}.json": rank_trace(event("a", pid=100 + rank), rank=rank, pid=100 + rank) for rank in range(4)}
    everything, _ = merge(files)
    some = Selection(ranks=[1, 3])
    of_all, of_ranks = (inputs(merge(each, select=some)[0]) for each in ({"all.json": everything}, files))
    assert [entry["rank"] for entry in of_all] == [1, 3]
    assert of_all == of_ranks
