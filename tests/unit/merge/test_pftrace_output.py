"""The merged trace as Perfetto's packets: written by C as by Python, and read back with Perfetto's own definitions."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from tests.both_cores import damaged
from tests.merge_inputs import BASE_NS
from tests.merge_inputs import write as inputs_of
from tests.property.test_merge_properties import runs, write
from tracekit import core
from tracekit.errors import StorageError, TracekitError
from tracekit.merge import merge_traces
from tracekit.merge.write import pftrace_output, pftrace_packets
from tracekit.merge.write.pftrace_events import unit_of
from tracekit.merge.write.pftrace_output import PacketEncoder
from tracekit.traces import external_sort
from tracekit.traces.external_sort import ExternalSort

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


NAMES = ["aten::add", "", "π\U0001f600", 'say "hi"\n', "back\\slash", "\x01", "x" * 300, "\u2028", "k" * 40]
PHASES = "XXXXXXXXBBEEbenSFTpiIRstfsfCCCMPND"
SCALARS: list[Any] = [
    0, 1, -1, 127, 128, 2**31, 2**53, 10**17, 10**18, 2**63 - 1, -(2**63), 2**64 - 1, 10**25, 0.5, -0.25, 1e-7, 1e22, 1.0,
    123456.789, 5e-324, 1.7976931348623157e308, True, False, None, "", "text", "y" * 250, 'q"\\', "\U0001f680", [], {},
]  # fmt: skip
KEYS = [
    "External id",
    "correlation",
    "Seq",
    "Process Group Name",
    "Process Group Ranks",
    "rss_bytes",
    *["a", "b", "", "k\n", "π"],
]


def value(source: random.Random, depth: int = 0) -> Any:
    """Return any JSON value."""
    if depth < 4 and source.random() < 0.2:
        return [value(source, depth + 1) for _ in range(source.randrange(4))]
    if depth < 4 and source.random() < 0.2:
        return {source.choice(KEYS): value(source, depth + 1) for _ in range(source.randrange(4))}
    return source.choice(SCALARS)


def event(source: random.Random) -> str:
    """Return an event as the merge writes it, now and then with fields that viewers pass over."""
    phase = source.choice(PHASES)
    text: dict[str, Any] = {"ph": phase, "cat": source.choice(["cpu_op", "ac2g", ""]), "name": source.choice(NAMES)}
    if phase == "X" and source.random() < 0.95:
        text["dur"] = source.choice([0, 0.001, 1, 2.5, 3, 1000])
    if phase in "stf" or source.random() < 0.03:
        text["id"] = source.choice([1, 2, 3, 10**17])
    if phase in "benSFTp":
        text[source.choice(["id", "id2"])] = source.choice([5, "0x1f", {"local": 3}, {"local": 'a " b'}])
    if phase == "f" and source.random() < 0.7:
        text["bp"] = "e"
    if phase in "iIR" and source.random() < 0.7:
        text["s"] = source.choice("tp")
    if source.random() < 0.05:
        text.update(bind_id=source.choice([7, 8]), flow_out=True, flow_in=source.random() < 0.5)
    if source.random() < 0.05:
        text.update(tts=source.choice([1, 2.5]), cname="good", sf=["f (c)", "g"])
    if source.random() < 0.03:
        text["mine"] = value(source)
    if phase == "C":
        text["args"] = {source.choice(KEYS): source.choice([1, -2, 2.5, 1e300, 10**16]) for _ in range(2)}
    elif source.random() < 0.8:
        text["args"] = {source.choice(KEYS): value(source) for _ in range(source.randrange(6))}
    head = json.dumps(text, ensure_ascii=source.random() < 0.5, separators=source.choice([(",", ":"), (", ", ": ")]))
    pid, tid = source.randrange(1, 4), str(source.choice([1, 2, 3 * 2**30])).ljust(10)
    time = source.choice(["%d.000", "%d", "%d.500"]) % source.randrange(8)
    return f'{head[:-1]},"pid":{pid},"tid":{tid},"ts":{time}}}'


def text_of(source: random.Random) -> bytes:
    """Return a run of events."""
    return source.choice([",", ",\n", " , "]).join(event(source) for _ in range(source.randrange(1, 60))).encode()


def encoded(runs: list[bytes]) -> bytes | type[Exception]:
    """Return the packets of runs of events, or the kind of error."""
    part = PacketEncoder(3, 1_790_857_026_000_000_000, 2**63 + 17, tempfile.gettempdir())
    try:
        return b"".join([part.encode(run) for run in runs] + list(part.close([], b"")))
    except ValueError as error:
        return type(error)


@pytest.mark.core
@pytest.mark.parametrize("seed", range(40))
def test_the_core_writes_the_same_bytes_as_python(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    source = random.Random(seed)
    runs = [text_of(source) for _ in range(4)]
    if seed % 3 == 0:
        monkeypatch.setattr(pftrace_output, "MAX_TEXTS", source.choice([0, 1, 5]))
    if seed % 4 == 0:
        monkeypatch.setattr(pftrace_output, "MAX_MEMORY_BYTES", source.choice([0, 1000, 5000]))
    found = encoded(runs)
    assert isinstance(found, bytes)
    with monkeypatch.context() as patch:
        patch.setattr(core, "merge", None)
        assert encoded(runs) == found
    for run in runs:  # damaged, they are packets or an error
        assert encoded([damaged(source, run)]) is not None


@pytest.mark.core
def test_keys_that_differ_in_escapes_only_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    head = b'{"ph":"i","s":"t","name":"a","pid":1,"tid":1,"ts":1,"args":'
    keys = [rb'"a\\nb"', rb'"a\nb"', rb'"a\u005cnb"', rb'"c\\"', rb'"c"']
    runs = [b",".join(b"%b{%b:1}}" % (head, key) for key in [*keys, *reversed(keys)])]
    found = encoded(runs)
    monkeypatch.setattr(core, "merge", None)
    assert encoded(runs) == found


@pytest.mark.core
def test_the_core_encodes_usual_events_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bytes] = []
    monkeypatch.setattr(PacketEncoder, "_add", lambda self, events: given.append(events) or b"")
    usual = (
        b'{"ph":"X","cat":"kernel","name":"a \\"b\\"","pid":1,"tid":7         ,"ts":1.000,"dur":2.000,"args":{"n":[1,{"x":2}]}},'
        b'{"ph":"s","id":5,"cat":"ac2g","name":"ac2g","pid":1,"tid":7         ,"ts":1.000},'
        b'{"ph":"b","cat":"task","id2":{"local":"0x1"},"name":"t","pid":1,"tid":7         ,"ts":1.000,"sf":["f"]},'
        b'{"ph":"C","name":"memory","pid":1,"tid":7         ,"ts":1.000,"args":{"used_bytes":1.5,"free":2}}'
    )
    encoded([usual])
    assert given == []


EVENT = b'{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1}'


@pytest.mark.core
def test_a_failing_disk_is_a_storage_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pftrace_output, "MAX_MEMORY_BYTES", 0)
    encoder = PacketEncoder(3, 0, 0, str(tmp_path / "missing"))
    with pytest.raises(StorageError, match=r"the scratch file in .*missing cannot be written or read: .*No such file"):
        encoder.encode(EVENT)


@pytest.mark.core
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the file without a name in /proc")
def test_a_scratch_file_that_is_lost_is_a_storage_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pftrace_output, "MAX_MEMORY_BYTES", 0)
    encoder = PacketEncoder(3, 0, 0, str(tmp_path))
    encoder.encode(EVENT)
    assert list(tmp_path.iterdir()) == []
    opened = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    [scratch] = [path for path in opened if str(tmp_path) in str(path.readlink())]
    os.truncate(scratch, 0)
    with pytest.raises(StorageError, match=r"the scratch file in .* cannot be written or read"):
        list(encoder.close([], b""))
