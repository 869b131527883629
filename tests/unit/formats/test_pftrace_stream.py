"""Native traces of Perfetto that others wrote, read as Chrome JSON."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from tracekit.check.recovery import recover_trace
from tracekit.check.validation import validate_trace
from tracekit.errors import TraceFormatError
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.pftrace_stream import is_pftrace
from tracekit.formats.trace_event import decode_json, encode_events, time_field
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

BOOT_NS = 5_000_000_000
REAL_NS = 1_795_217_077_496_886_033
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


class Writer:
    """Writes a trace as the SDK of Perfetto does."""

    def __init__(self) -> None:
        self.trace = protos.Trace()

    def packet(self, **fields: Any) -> Any:
        return self.trace.packet.add(trusted_packet_sequence_id=9, **fields)

    def track(self, uuid: int, **fields: Any) -> Any:
        descriptor = self.packet().track_descriptor
        descriptor.uuid = uuid
        for name, value in fields.items():
            setattr(descriptor, name, value)
        return descriptor

    def event(self, time: int, kind: int, track: int, name: str = "", **fields: Any) -> Any:
        packet = self.packet(timestamp=time)
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        if name:
            packet.track_event.name = name
        for field, value in fields.items():
            if isinstance(value, list):
                getattr(packet.track_event, field).extend(value)
            else:
                setattr(packet.track_event, field, value)
        return packet

    def save(self, path: Path) -> Path:
        data = self.trace.SerializeToString()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


def sample() -> Writer:
    writer = Writer()
    snapshot = writer.packet(sequence_flags=1).clock_snapshot
    snapshot.clocks.add(clock_id=6, timestamp=BOOT_NS)
    snapshot.clocks.add(clock_id=1, timestamp=REAL_NS)
    process = writer.track(1).process
    process.pid, process.process_name = 77, "trainer"
    thread = writer.track(2, parent_uuid=1).thread
    thread.pid, thread.tid, thread.thread_name = 77, 78, "main"
    writer.track(3, parent_uuid=1, name="stream 7")
    writer.track(4, parent_uuid=1, name="memory used").counter.unit = 3
    begin = writer.event(BOOT_NS + 10, BEGIN, 2, "forward", flow_ids=[5], categories=["a", "b"]).track_event
    begin.debug_annotations.add(name="step", int_value=-3)
    shape = begin.debug_annotations.add(name="shape")
    shape.array_values.add(uint_value=2)
    shape.array_values.add(double_value=0.5)
    writer.event(BOOT_NS + 500, BEGIN, 3, "kernel", terminating_flow_ids=[5])
    writer.event(BOOT_NS + 900, END, 3)
    writer.event(BOOT_NS + 1_010, END, 2)
    writer.event(BOOT_NS + 20, COUNTER, 4, double_counter_value=2.5)
    writer.event(BOOT_NS + 30, INSTANT, 2, "saw")
    return writer


def read(path: Path) -> tuple[list[dict[str, Any]], TraceReader]:
    """Return the events of a trace, with their times to the nanosecond as ``ns``, and its reader."""
    with TraceReader(str(path)) as reader:
        events = [event for run in reader.runs() for event in run]
    found: list[dict[str, Any]] = decode_json(b"[" + encode_events(events) + b"]")
    for event, raw in zip(found, events, strict=True):
        event["ns"] = time_field(raw.ts)
    return found, reader


@pytest.mark.parametrize("name", ["t.pftrace", "t.pftrace.gz", "t.json"])
def test_tracks_slices_counters_and_arrows_are_read_whatever_the_name(tmp_path: Path, name: str) -> None:
    events, reader = read(sample().save(tmp_path / name))
    assert (reader.repairs, reader.drops) == ([], [])
    names = [(event["name"], event["args"]["name"]) for event in events if event["ph"] == "M"]
    assert sorted(names) == [("process_name", "trainer"), ("thread_name", "main"), ("thread_name", "stream 7")]
    rest = [event for event in events if event["ph"] != "M"]
    forward, start, kernel, end, _, _, counter, instant = rest
    assert [(event["ph"], event["ns"] - REAL_NS) for event in rest] == [
        ("B", 10), ("s", 10), ("B", 500), ("f", 500), ("E", 900), ("E", 1_010), ("C", 20), ("i", 30),
    ]  # fmt: skip
    assert (forward["pid"], forward["tid"], forward["cat"], forward["name"]) == (77, 78, "a,b", "forward")
    assert forward["args"] == {"step": -3, "shape": [2, 0.5]}
    assert kernel["tid"] != forward["tid"]
    assert (start["id"], end["bp"]) == (end["id"], "e")
    assert (counter["name"], counter["args"]) == ("memory", {"used": 2.5})
    assert (instant["name"], instant["s"]) == ("saw", "t")


def test_clocks_of_a_sequence_and_defaults_and_interned_texts_are_followed(tmp_path: Path) -> None:
    writer = sample()
    first = writer.packet(sequence_flags=1)
    first.clock_snapshot.clocks.add(clock_id=6, timestamp=BOOT_NS + 2_000)
    first.clock_snapshot.clocks.add(clock_id=64, timestamp=7, is_incremental=True, unit_multiplier_ns=1_000)
    first.trace_packet_defaults.timestamp_clock_id = 64
    first.trace_packet_defaults.track_event_defaults.track_uuid = 2
    first.interned_data.event_names.add(iid=4, name="interned")
    first.interned_data.event_categories.add(iid=2, name="kept")
    first.interned_data.debug_annotation_names.add(iid=1, name="key")
    first.interned_data.debug_annotation_string_values.add(iid=1, str=b"text")
    for kind, delta in ((BEGIN, 3), (END, 4)):
        packet = writer.packet(timestamp=delta, sequence_flags=2)
        packet.track_event.type = kind
        if kind == BEGIN:
            packet.track_event.name_iid = 4
            packet.track_event.category_iids.append(2)
            packet.track_event.debug_annotations.add(name_iid=1, string_value_iid=1)
    events, reader = read(writer.save(tmp_path / "t.pftrace"))
    begin, end = events[-2:]
    assert reader.drops == []
    assert (begin["name"], begin["cat"], begin["args"], begin["tid"]) == ("interned", "kept", {"key": "text"}, 78)
    times = [(event["ph"], event["ns"] - REAL_NS) for event in (begin, end)]
    assert times == [("B", 2_000 + 3_000), ("E", 2_000 + 7_000)]


def test_what_has_no_form_in_json_is_counted(tmp_path: Path) -> None:
    writer = sample()
    writer.packet(timestamp=1).ftrace_events.cpu = 3
    writer.event(5, BEGIN, 2, "no clock").timestamp_clock_id = 40
    writer.event(BOOT_NS + 5, INSTANT, 2, "with more").track_event.log_message.body_iid = 4
    _, reader = read(writer.save(tmp_path / "t.pftrace"))
    assert {drop.kind: drop.count for drop in reader.drops} == {
        "packets_that_are_no_track_events": 1,
        "events_of_an_unknown_clock": 1,
        "field_21_of_events": 1,
    }


def test_compressed_packets_are_unpacked(tmp_path: Path) -> None:
    whole = protos.Trace()
    whole.packet.add(compressed_packets=zlib.compress(sample().trace.SerializeToString()))
    (tmp_path / "packed.pftrace").write_bytes(whole.SerializeToString())
    packed, _ = read(tmp_path / "packed.pftrace")
    plain, _ = read(sample().save(tmp_path / "plain.pftrace"))
    assert packed == plain


def test_packed_packets_are_not_unpacked_inside_of_others(tmp_path: Path) -> None:
    """Each layer can be a thousand times the one below: a file of a few kB would never end."""
    data = protos.Trace(packet=[protos.TracePacket(timestamp=5)]).SerializeToString() * 1000
    for _ in range(2):
        layer = protos.TracePacket(compressed_packets=zlib.compress(data))
        data = protos.Trace(packet=[layer] * 10).SerializeToString()
    (tmp_path / "bomb.pftrace").write_bytes(sample().trace.SerializeToString() + data)
    events, reader = read(tmp_path / "bomb.pftrace")
    assert len(events) == 11
    assert [(drop.kind, drop.count) for drop in reader.drops] == [("broken_packets", 100)]


@pytest.mark.parametrize("verb", [validate_trace, recover_trace])
def test_what_checks_and_mends_json_says_what_to_do(tmp_path: Path, verb: Any) -> None:
    path = sample().save(tmp_path / "t.pftrace.gz")
    said = r"native trace of Perfetto \(pftrace\).*tracekit convert .* OUTPUT.json"
    with pytest.raises(TraceFormatError, match=said):
        verb(str(path))
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_every_prefix_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    data = sample().trace.SerializeToString()
    path = tmp_path / "cut.pftrace"
    counts = []
    for end in range(8, len(data) + 1):
        path.write_bytes(data[:end])
        events, reader = read(path)
        counts.append(len(events))
        assert {repair.kind for repair in reader.repairs} <= {"cut_file"}
    assert counts == sorted(counts)
    assert counts[-1] == 11


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_broken_bytes_end_in_events_or_in_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int
) -> None:
    data = bytearray(sample().trace.SerializeToString())
    chance = random.Random(seed)
    for _ in range(count):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path = tmp_path_factory.getbasetemp() / "broken.pftrace"
    path.write_bytes(data)
    with suppress(TraceFormatError):
        read(path)


@pytest.mark.parametrize(
    "text", [b"\n{\n}", b'\n{"traceEvents": []}', b"\n[\n{}]", b"\n[]", b"", b"\n", b"\n\n\n[", b'\n "']
)
def test_json_after_an_empty_line_is_no_native_trace(text: bytes) -> None:
    assert not is_pftrace(text)


def test_native_traces_of_others_are_merged_beside_json(tmp_path: Path) -> None:
    sample().save(tmp_path / "rank_1.pftrace")
    event = {"ph": "X", "name": "here", "pid": 1, "tid": 1, "ts": REAL_NS // 1000, "dur": 5}
    (tmp_path / "rank_0.json").write_text(json.dumps([event]))
    report = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path)])
    assert report.complete
    assert [(item.rank, item.kind, item.form) for item in report.inputs] == [
        (0, "chrome", "array"),
        (1, "chrome", "pftrace"),
    ]
    assert [rank.processes for rank in report.ranks] == [["rank 0 · process 1"], ["rank 1 · trainer"]]
