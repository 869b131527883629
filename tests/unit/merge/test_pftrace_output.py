"""The merged trace as Perfetto's packets, read back by the protobuf library with Perfetto's own definitions."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from tests.property.test_merge_properties import BASE_NS, runs, write
from tracekit import core
from tracekit.errors import ConfigError, TracekitError
from tracekit.merge import merge_traces
from tracekit.merge.write import pftrace_output, pftrace_packets
from tracekit.merge.write.pftrace_events import unit_of
from tracekit.traces import external_sort
from tracekit.traces.external_sort import ExternalSort

if TYPE_CHECKING:
    from pathlib import Path

START_NS = BASE_NS + 10**12


def trace(path: Path, *events: dict[str, Any], rank: int = 0) -> Path:
    """Write a trace of torch; ``at`` of an event is in ns after the start."""
    texts = []
    for event in events:
        ns = START_NS + event.pop("at")
        texts.append(f'{json.dumps({"pid": 10, "tid": 10, **event})[:-1]}, "ts": {ns // 1000}.{ns % 1000:03d}}}')
    header = json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": rank}})[:-1]
    path.write_text(f'{header}, "traceEvents": [{", ".join(texts)}]}}')
    return path


def merged(tmp_path: Path, *inputs: Path, **options: Any) -> list[Any]:
    """Return the packets of the merge of some inputs."""
    output = tmp_path / "merged.pftrace"
    merge_traces(str(output), [str(path) for path in inputs], overwrite=True, **options)
    return list(protos.Trace.FromString(output.read_bytes()).packet)


def slices(packets: list[Any]) -> list[tuple[int, int, Any]]:
    """Return time, type and event of each track event, with the track that it is on by default."""
    clock = track = 0
    found = []
    for packet in packets:
        if packet.HasField("trace_packet_defaults"):
            clock, track = 0, packet.trace_packet_defaults.track_event_defaults.track_uuid
        if packet.HasField("track_event"):
            clock += packet.timestamp
            packet.track_event.track_uuid = track
            found.append((clock - START_NS, packet.track_event.type, packet.track_event))
    return found


def names(packets: list[Any]) -> dict[int, str]:
    return {entry.iid: entry.name for packet in packets for entry in packet.interned_data.event_names}


def test_times_are_ns_since_the_epoch_and_packets_of_one_time_are_in_the_order_of_their_nesting(tmp_path: Path) -> None:
    path = trace(
        tmp_path / "rank0.json",
        {"ph": "X", "name": "next", "at": 501, "dur": 0.25},
        {"ph": "X", "name": "inner", "at": 1, "dur": 0.1},
        {"ph": "X", "name": "outer", "at": 1, "dur": 0.5},
        {"ph": "X", "name": "nothing", "at": 501, "dur": 0},
    )
    packets = merged(tmp_path, path)
    text = names(packets)
    assert [(at, kind, text.get(event.name_iid, "")) for at, kind, event in slices(packets)] == [
        (1, 1, "outer"),
        (1, 1, "inner"),
        (101, 2, ""),
        (501, 2, ""),
        (501, 1, "next"),
        (501, 3, "nothing"),
        (751, 2, ""),
    ]


def test_members_of_one_collective_carry_one_correlation(tmp_path: Path) -> None:
    args = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Seq": 17, "Collective name": "allreduce"}
    inputs = [
        trace(
            tmp_path / f"rank{rank}.json",
            {"ph": "X", "name": "record_param_comms", "at": rank, "dur": 1, "args": args},
            {"ph": "X", "name": "other", "at": 5000, "dur": 1, "args": {"Seq": 17}},
            rank=rank,
        )
        for rank in range(2)
    ]
    packets = merged(tmp_path, *inputs)
    told = Counter(event.correlation_id_str for _, kind, event in slices(packets) if kind == 1)
    assert told == {"0 [0, 1] 17": 2, "": 2}


def test_what_has_no_place_in_a_native_trace_is_kept_as_an_argument(tmp_path: Path) -> None:
    path = trace(
        tmp_path / "rank0.json",
        {"ph": "X", "name": "a", "at": 0, "dur": 1, "tts": 7, "cname": "good", "id": 3, "mine": [1]},
        {"ph": "P", "name": "sample", "at": 5},
    )
    packets = merged(tmp_path, path)
    keys = {entry.iid: entry.name for packet in packets for entry in packet.interned_data.debug_annotation_names}
    found = []
    for _, kind, event in slices(packets):
        for argument in event.debug_annotations:
            found.append(
                (kind, keys[argument.name_iid], sorted(keys[entry.name_iid] for entry in argument.dict_entries))
            )
    assert found == [(1, "trace_event", ["cname", "id", "mine", "tts"]), (3, "trace_event", ["ph"])]


def test_files_of_one_rank_share_tracks_and_a_sequence_and_ranks_do_not(tmp_path: Path) -> None:
    inputs = [
        trace(tmp_path / name, {"ph": "X", "name": name, "at": at, "dur": 1}, rank=rank)
        for name, rank, at in (("rank0.json", 0, 0), ("rank0_later.json", 0, 9000), ("rank1.json", 1, 0))
    ]
    packets = merged(tmp_path, *inputs)
    text = {
        (packet.trusted_packet_sequence_id, entry.iid): entry.name
        for packet in packets
        for entry in packet.interned_data.event_names
    }
    where = {}
    slices(packets)
    for packet in packets:
        event, sequence = packet.track_event, packet.trusted_packet_sequence_id
        if event.type == 1:
            where[text[sequence, event.name_iid]] = sequence, event.track_uuid
    assert where["rank0.json"] == where["rank0_later.json"]
    assert where["rank0.json"][0] != where["rank1.json"][0]
    assert where["rank0.json"][1] != where["rank1.json"][1]
    described = [packet.track_descriptor.uuid for packet in packets if packet.HasField("track_descriptor")]
    assert len(described) == len(set(described))
    assert {uuid for _, uuid in where.values()} < set(described)


@pytest.mark.parametrize("compiled", [True, False])
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


@pytest.mark.parametrize("compiled", [True, False])
def test_what_exceeds_memory_is_beside_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    path = trace(tmp_path / "rank0.json", *[{"ph": "X", "name": "op", "at": n, "dur": 1} for n in range(50)])
    if not compiled:
        monkeypatch.setattr(core, "merge", None)
    monkeypatch.setattr(external_sort, "MAX_MEMORY_BYTES", 0)
    monkeypatch.setattr(pftrace_output, "MAX_MEMORY_BYTES", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert sum(kind == 1 for _, kind, _ in slices(merged(tmp_path, path))) == 50
    merge_traces(str(tmp_path / "merged.tar"), [str(path)])


def test_a_packed_trace_unpacks_to_the_plain_one(tmp_path: Path) -> None:
    path = trace(tmp_path / "rank0.json", {"ph": "X", "name": "op", "at": 0, "dur": 1})
    for name in ("a.pftrace", "b.pftrace.gz"):
        merge_traces(str(tmp_path / name), [str(path)])
    assert gzip.decompress((tmp_path / "b.pftrace.gz").read_bytes()) == (tmp_path / "a.pftrace").read_bytes()


def test_another_ending_is_refused_with_the_endings_there_are(tmp_path: Path) -> None:
    path = trace(tmp_path / "rank0.json", {"ph": "X", "name": "op", "at": 0, "dur": 1})
    with pytest.raises(ConfigError, match=r"\.pftrace or \.pftrace\.gz"):
        merge_traces(str(tmp_path / "merged.perfetto"), [str(path)])


def test_a_native_trace_is_written_into_an_archive_as_json(tmp_path: Path) -> None:
    path = trace(tmp_path / "rank0.json", {"ph": "X", "name": "op", "at": 0, "dur": 1})
    merge_traces(str(tmp_path / "first.pftrace"), [str(path)])
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


def test_what_has_no_place_in_a_native_trace_comes_back_from_it(tmp_path: Path) -> None:
    samples = [{"ph": "P", "name": "sample", "at": at, "cname": "good"} for at in range(3)]
    path = trace(tmp_path / "rank0.json", {"ph": "X", "name": "a", "at": 0, "dur": 1, "tts": 7, "mine": [1]}, *samples)
    merge_traces(str(tmp_path / "merged.pftrace"), [str(path)])
    merge_traces(str(tmp_path / "again.json"), [str(tmp_path / "merged.pftrace")])
    events = json.loads((tmp_path / "again.json").read_text())["traceEvents"]
    assert [event["cname"] for event in events if event["ph"] == "P"] == 3 * ["good"]
    assert [(event["tts"], event["mine"]) for event in events if event.get("name") == "a"] == [(7, [1])]
