"""The merged trace as Perfetto's packets, read back by the protobuf library with Perfetto's own definitions."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from tests.merge_inputs import BASE_NS
from tests.merge_inputs import write as inputs_of
from tests.property.test_merge_properties import runs, write
from tracekit import core
from tracekit.errors import TracekitError
from tracekit.merge import merge_traces
from tracekit.merge.write import pftrace_output, pftrace_packets
from tracekit.merge.write.pftrace_events import unit_of
from tracekit.traces import external_sort
from tracekit.traces.external_sort import ExternalSort

if TYPE_CHECKING:
    from pathlib import Path

START_US = BASE_NS // 1000 + 10**9


def trace(*events: dict[str, Any], rank: int = 0) -> dict[str, Any]:
    """Return a trace of torch; ``at`` of an event is in us after the start."""
    placed = [{"pid": 10, "tid": 10, "dur": 0.5, **event, "ts": START_US + event["at"]} for event in events]
    kept = [{key: value for key, value in event.items() if key != "at"} for event in placed]
    return {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": kept}


def test_members_of_one_collective_carry_one_correlation(tmp_path: Path) -> None:
    args = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Seq": 17, "Collective name": "allreduce"}
    files = {
        f"rank{rank}.json": trace(op(rank, "record_param_comms", args=args), op(5, args={"Seq": 17}), rank=rank)
        for rank in range(2)
    }
    told = Counter(event.correlation_id_str for _, _, event in begun(packets(tmp_path, files)))
    assert told == {"0 [0, 1] 17": 2, "": 2}


def test_files_of_one_rank_share_tracks_and_a_sequence_and_ranks_do_not(tmp_path: Path) -> None:
    files = {"a.json": trace(op(0, "a")), "b.json": trace(op(9, "b")), "c.json": trace(op(0, "c"), rank=1)}
    found = packets(tmp_path, files)
    where = {name: (sequence, event.track_uuid) for name, sequence, event in begun(found)}
    assert where["a"] == where["b"]
    assert where["a"][0] != where["c"][0]
    assert where["a"][1] != where["c"][1]
    described = [packet.track_descriptor.uuid for packet in found if packet.HasField("track_descriptor")]
    assert len(described) == len(set(described))
    assert {uuid for _, uuid in where.values()} < set(described)


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=pytest.mark.core), False])
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(traces=runs())
def test_neither_memory_nor_order_nor_workers_change_a_byte(
    tmp_path_factory: pytest.TempPathFactory, traces: list[dict[str, Any]], compiled: bool
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    inputs = [str(write(folder, number, trace)) for number, trace in enumerate(traces)]
    outputs = [folder / f"{number}.pftrace" for number in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(core, "merge", None)
        try:
            merge_traces(str(outputs[0]), inputs)
        except TracekitError:
            return
        merge_traces(str(outputs[1]), inputs[::-1])
        patch.setattr(pftrace_packets, "ExternalSort", partial(ExternalSort, memory_bytes=600))
        patch.setattr(pftrace_output, "MAX_MEMORY_BYTES", 600)
        merge_traces(str(outputs[2]), inputs)
    first, second, third = (output.read_bytes() for output in outputs)
    assert first == second == third


@pytest.mark.usefixtures("core_or_python")
def test_what_exceeds_memory_is_beside_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_sort, "MAX_MEMORY_BYTES", 0)
    monkeypatch.setattr(pftrace_output, "MAX_MEMORY_BYTES", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    files = {"rank0.json": trace(*map(op, range(50)))}
    assert len(begun(packets(tmp_path, files))) == 50
    merge_traces(str(tmp_path / "merged.tar"), inputs_of(tmp_path, files))


def test_a_native_trace_is_written_into_an_archive_as_json(tmp_path: Path) -> None:
    packets(tmp_path, {"rank0.json": trace(op())}, "first.pftrace")
    report = merge_traces(str(tmp_path / "all.tar"), [str(tmp_path / "first.pftrace")])
    assert (report.complete, [item.form for item in report.inputs]) == (True, ["pftrace"])
    assert b'"traceEvents"' in (tmp_path / "all.tar").read_bytes()


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("rss_bytes", "bytes"),
        ("bytes", "bytes"),
        ("read_bytes_per_s", "bytes/s"),
        ("load_percent", "%"),
        ("wait_ns", "ns"),
        ("wait_ms", "ms"),
        ("µs", "µs"),
        ("time_s", "s"),
        ("loss", ""),
        ("epochs", ""),
        ("columns", ""),
    ],
)
def test_the_name_of_a_series_tells_its_unit(name: str, unit: str) -> None:
    assert unit_of(name) == unit


def op(at: int = 0, name: str = "op", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "at": at, **more}


def packets(folder: Path, files: dict[str, Any], name: str = "merged.pftrace") -> list[Any]:
    """Return the packets of the merge of some files."""
    merge_traces(str(folder / name), inputs_of(folder, files))
    return list(protos.Trace.FromString((folder / name).read_bytes()).packet)


def begun(packets: list[Any]) -> list[tuple[str, int, Any]]:
    """Return name, sequence and event of each slice, with the track that it is on by default."""
    found, track = [], 0
    names = {
        (packet.trusted_packet_sequence_id, entry.iid): entry.name
        for packet in packets
        for entry in packet.interned_data.event_names
    }
    for packet in packets:
        sequence, event = packet.trusted_packet_sequence_id, packet.track_event
        if packet.HasField("trace_packet_defaults"):
            track = packet.trace_packet_defaults.track_event_defaults.track_uuid
        if event.type == protos.TrackEvent.TYPE_SLICE_BEGIN:
            event.track_uuid = track
            found.append((names[sequence, event.name_iid], sequence, event))
    return found


def test_what_has_no_place_in_a_native_trace_is_an_argument_and_comes_back_from_it(tmp_path: Path) -> None:
    samples = [{"ph": "P", "name": "sample", "at": at, "cname": "good"} for at in range(3)]
    found = packets(tmp_path, {"rank0.json": trace(op(0, "a", tts=7, mine=[1], id=3), *samples)})
    keys = {entry.iid: entry.name for packet in found for entry in packet.interned_data.debug_annotation_names}
    [[_, _, event]] = begun(found)
    assert [
        (keys[argument.name_iid], sorted(keys[entry.name_iid] for entry in argument.dict_entries))
        for argument in event.debug_annotations
    ] == [("trace_event", ["id", "mine", "tts"])]
    merge_traces(str(tmp_path / "again.json"), [str(tmp_path / "merged.pftrace")])
    events = json.loads((tmp_path / "again.json").read_text())["traceEvents"]
    assert [event["cname"] for event in events if event["ph"] == "P"] == 3 * ["good"]
    assert [(event["tts"], event["mine"]) for event in events if event.get("name") == "a"] == [(7, [1])]
