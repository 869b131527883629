"""Dumps of torch's flight recorder: every collective becomes one event, and no bytes do harm."""

from __future__ import annotations

import pickle
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.flight_dumps import BASE_NS, as_json, as_pickle, dump, entry, hung
from tracekit.errors import TracekitError
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.plain_pickle import PickleRefusedError, read_pickle
from tracekit.formats.trace_event import decode_json, encode_events, time_field

if TYPE_CHECKING:
    from pathlib import Path

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

times = st.integers(BASE_NS, BASE_NS + 10**12)
entries = st.builds(
    entry,
    st.integers(0, 2**40),
    st.sampled_from(["nccl:all_reduce", "nccl:send 0->1", "gloo:barrier", 'q"\\\u2028é']),
    created_ns=times,
    started_ns=st.none() | times,
    completed_ns=st.none() | times,
    group=st.tuples(st.text(max_size=4), st.text(max_size=4)),
    pg_id=st.integers(0, 3),
    seq=st.integers(0, 5),
    p2p_seq=st.none() | st.integers(1, 3),
    retired=st.booleans(),
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**127), 2**127 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
)


def read(path: Path) -> tuple[list[dict[str, Any]], TraceReader]:
    with TraceReader(str(path)) as reader:
        events = [event for run in reader.runs() for event in run]
    found: list[dict[str, Any]] = decode_json(b"[" + encode_events(events) + b"]")
    for event, raw in zip(found, events, strict=True):
        event["ts_ns"] = time_field(raw.ts)  # as a double a time since the epoch is rounded
    return [event for event in found if event["ph"] != "M"], reader


@given(st.lists(entries, min_size=1, max_size=6), st.booleans())
@same_folder
def test_every_entry_is_one_event_at_its_time(tmp_path: Path, found: list[dict[str, Any]], in_json: bool) -> None:
    path = tmp_path / "dump"
    whole = dump(found, pg_status={})
    path.write_bytes(as_json(whole) if in_json else as_pickle(whole, 4))
    events, reader = read(path)
    assert reader.drops == []
    shown = [event for event in events if event["tid"] != "flight recorder"]
    assert Counter(event["ts_ns"] for event in shown) == Counter(one["time_created_ns"] for one in found)
    completed = [one["time_discovered_completed_ns"] for one in found]
    assert sum(event["ph"] == "X" for event in shown) >= sum(time is not None for time in completed)
    assert all(event["dur"] >= 0 for event in shown if event["ph"] == "X")


@given(plain, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_are_read_as_python_wrote_them(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol=protocol)) == (value, True)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    with suppress(PickleRefusedError):
        read_pickle(b"\x80\x04" + data)


@given(st.data())
@same_folder
def test_any_change_of_a_dump_gives_a_result_or_a_clear_error(tmp_path: Path, data: st.DataObject) -> None:
    in_json = data.draw(st.booleans())
    changed = bytearray(as_json(hung()) if in_json else as_pickle(hung()))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        length = data.draw(st.sampled_from([0, 1, 1, 1, 8, 100]))
        changed[at : at + length] = data.draw(st.binary(max_size=4))
    path = tmp_path / "dump"
    path.write_bytes(changed)
    with suppress(TracekitError):
        events, _ = read(path)
        assert len(events) <= 9
