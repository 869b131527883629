"""The hand-written encoding of Perfetto's trace format, read back by the protobuf library with Perfetto's own definitions."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from tracekit.formats import pftrace
from tracekit.merge.write.pftrace_events import EventRecords
from tracekit.merge.write.pftrace_packets import COUNTER, INSTANT, SLICE, PacketStore

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
UINT64 = st.integers(0, 2**64 - 1)
INT64 = st.integers(-(2**63) + 1, 2**63 - 1)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | INT64
    | UINT64
    | st.floats(allow_nan=False)
    | TEXT
    | st.text("xyz", min_size=190, max_size=210),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def trace(*packets: bytes) -> Any:
    return protos.Trace.FromString(b"".join(packets))


def interned(read: Any) -> dict[str, dict[int, Any]]:
    """Return the texts that a trace of one sequence defines, by kind."""
    found: dict[str, dict[int, Any]] = {}
    for packet in read.packet:
        for field, entries in packet.interned_data.ListFields():
            texts = found.setdefault(field.name, {})
            for entry in entries:
                assert entry.iid not in texts
                texts[entry.iid] = entry.str.decode() if field.name == "debug_annotation_string_values" else entry.name
    return found


def value_of(annotation: Any, texts: dict[str, dict[int, Any]]) -> Any:
    """Return the JSON value of an argument."""
    if annotation.dict_entries:
        return {name_of(entry, texts): value_of(entry, texts) for entry in annotation.dict_entries}
    if annotation.array_values:
        return [value_of(entry, texts) for entry in annotation.array_values]
    kind = annotation.WhichOneof("value")
    if kind is None:
        return None
    if kind == "nested_value":
        return {1: {}, 2: []}[annotation.nested_value.nested_type]
    value = getattr(annotation, kind)
    if kind == "string_value_iid":
        value = texts["debug_annotation_string_values"][value]
    # Items that the engine would pass over are texts, with a mark.
    return {"null": None, "[]": [], "{}": {}}[value] if annotation.proto_type_name_iid else value


def name_of(annotation: Any, texts: dict[str, dict[int, Any]]) -> str:
    return texts["debug_annotation_names"][annotation.name_iid] if annotation.name_iid else annotation.name


def written(store: PacketStore) -> Any:
    return trace(*iter(store.packets, None))


@given(
    number=st.integers(1, 2**32 - 1),
    time_ns=st.integers(0, 2**63 - 3),
    uuid=st.integers(1, 2**63 - 1),
    name=TEXT,
    category=TEXT,
    arguments=st.dictionaries(TEXT, VALUES, max_size=4),
    max_texts=st.sampled_from([0, 1, 50_000]),
)
def test_an_event_is_what_it_was(
    number: int, time_ns: int, uuid: int, name: str, category: str, arguments: dict[str, Any], max_texts: int
) -> None:
    store = PacketStore(number, max_texts)
    encoder = EventRecords(store, 0, 0)
    rest = b"".join(encoder.argument(key, value) for key, value in arguments.items())
    store.add(SLICE, uuid, uuid >> 32, time_ns, time_ns + 1, category.encode(), name.encode(), rest)
    read = written(store)
    texts = interned(read)
    assert {packet.trusted_packet_sequence_id for packet in read.packet} == {number}
    assert [packet.sequence_flags for packet in read.packet] == [1] + [2] * (len(read.packet) - 1)
    start, begin, end = read.packet[-3:]
    clocks = [(clock.clock_id, clock.timestamp, clock.is_incremental) for clock in start.clock_snapshot.clocks]
    assert clocks == [(6, 0, False), (64, 0, True)]
    assert start.trace_packet_defaults.timestamp_clock_id == 64
    assert start.trace_packet_defaults.track_event_defaults.track_uuid == uuid
    event = begin.track_event
    assert (begin.timestamp, event.type) == (time_ns, protos.TrackEvent.TYPE_SLICE_BEGIN)
    assert (texts["event_names"][event.name_iid] if event.name_iid else event.name) == name
    categories = [*event.categories, *(texts["event_categories"][iid] for iid in event.category_iids)]
    assert categories == ([category] if category else [])
    found = {name_of(argument, texts): value_of(argument, texts) for argument in event.debug_annotations}
    assert found == arguments
    assert [type(value) for value in found.values()] == [type(value) for value in arguments.values()]
    assert (end.timestamp, end.track_event.type) == (1, protos.TrackEvent.TYPE_SLICE_END)


def test_each_text_is_defined_once_and_before_it_is_used() -> None:
    store = PacketStore(7)
    encoder = EventRecords(store, 0, 0)
    for start in range(2):
        store.add(INSTANT, 5, 0, start, start, b"cat", b"forward", encoder.argument("step", "warm up"))
    store.add(INSTANT, 5, 0, 2, 2, b"cat", b"backward", b"")
    read = written(store)
    assert interned(read) == {
        "event_categories": {1: "cat"},
        "event_names": {1: "forward", 2: "backward"},
        "debug_annotation_names": {1: "step"},
        "debug_annotation_string_values": {1: "warm up"},
    }
    kinds = [packet.HasField("track_event") for packet in read.packet]
    assert kinds == sorted(kinds)


def test_what_has_no_form_of_its_own_is_kept_as_text() -> None:
    store = PacketStore(7)
    encoder = EventRecords(store, 0, 0)
    deep: Any = "bottom"
    for _ in range(60):
        deep = [deep]
    values = {"huge": 10**30, "deep": deep, "half": "\ud800"}
    rest = b"".join(encoder.argument(key, value) for key, value in values.items())
    store.add(INSTANT, 5, 0, 1, 1, b"", b"", rest)
    read = written(store)
    texts = interned(read)
    huge, nested, half = read.packet[-1].track_event.debug_annotations
    assert huge.string_value == "1" + 30 * "0"
    for _ in range(32):
        (nested,) = nested.array_values
    assert nested.string_value == 28 * "[" + '"bottom"' + 28 * "]"
    assert value_of(half, texts) == "?"


@given(value=INT64 | st.floats(allow_nan=False, allow_infinity=False) | st.integers(2**63, 2**200))
def test_the_value_of_a_counter_is_what_it_was(value: float) -> None:
    store = PacketStore(1)
    store.add(COUNTER, 1 << 63 | 9, 3, 5, 5, b"bytes", b"memory used", pftrace.counter_value(value))
    read = written(store)
    track, _, packet = read.packet[-3:]
    assert (track.track_descriptor.name, track.track_descriptor.parent_uuid) == ("memory used", 3 << 32)
    assert track.track_descriptor.counter.unit == 3
    event = packet.track_event
    kind = event.WhichOneof("counter_value_field")
    assert math.isclose(getattr(event, kind), value, rel_tol=0 if -(2**63) <= value < 2**63 else 1e-12)
    assert (packet.timestamp, event.type) == (5, protos.TrackEvent.TYPE_COUNTER)


def test_tracks_are_described_as_perfetto_defines_them() -> None:
    descriptions = [
        pftrace.root_track(),
        pftrace.process_track(1 << 32, 1, "rank 0", order=4, labels=["node a", "CPU"]),
        pftrace.thread_track(1 << 32 | 7, 1 << 32, 1, 7, "main", order=0),
        pftrace.thread_track(1 << 32 | 8, 1 << 32, 1, 8, None, order=1),
        pftrace.track(9, 1 << 32, "GPU 0", order=2),
        pftrace.track(10, 1 << 32, "task", order=3, merge=True),
        pftrace.counter_track(11, 1 << 32, "memory", unit="bytes", order=0),
        pftrace.counter_track(12, 1 << 32, "time", unit="ns", order=0),
        pftrace.counter_track(13, 1 << 32, "load", unit="%", order=0),
        pftrace.counter_track(14, 1 << 32, "loss", unit="", order=0),
    ]
    packets = trace(*(pftrace.sequence_packet(3, pftrace.block(60, text)) for text in descriptions)).packet
    assert {packet.trusted_packet_sequence_id for packet in packets} == {3}
    root, process, thread, nameless, group, merged, *counters = (packet.track_descriptor for packet in packets)
    assert (root.uuid, root.process_ordering, root.thread_ordering) == (0, 1, 1)
    assert (process.uuid, process.process.pid, process.process.process_name) == (1 << 32, 1, "rank 0")
    assert (list(process.process.process_labels), process.sibling_order_rank) == (["node a", "CPU"], 4)
    assert (thread.thread.pid, thread.thread.tid, thread.thread.thread_name) == (1, 7, "main")
    assert (thread.uuid, thread.parent_uuid) == (1 << 32 | 7, 1 << 32)
    assert not nameless.thread.HasField("thread_name")
    assert (group.name, group.child_ordering, group.sibling_order_rank) == ("GPU 0", 3, 2)
    assert group.sibling_merge_behavior == protos.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
    assert not merged.HasField("sibling_merge_behavior")
    units = [(counter.counter.unit, counter.counter.unit_name) for counter in counters]
    assert units == [(3, ""), (1, ""), (0, "%"), (0, "")]
