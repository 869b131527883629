"""Dumps of torch's flight recorder, read as traces: collectives, hangs, damage, and hostile pickles."""

from __future__ import annotations

import gzip
import os
import pickle
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.flight_dumps import BASE_NS, MS, as_json, as_pickle, dump, entry, hung
from tracekit.check.recovery import recover_trace
from tracekit.check.validation import validate_trace
from tracekit.errors import TraceFormatError, TracekitError
from tracekit.formats.flight_dump import is_flight_dump
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.plain_pickle import PickleRefusedError, read_pickle
from tracekit.formats.trace_event import decode_json, encode_events, time_field
from tracekit.view.query import query

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def read(path: Path) -> tuple[list[dict[str, Any]], TraceReader]:
    """Return the events without the metadata, with their times to the nanosecond as ``ns``, and the reader."""
    with TraceReader(str(path)) as reader:
        events = [event for run in reader.runs() for event in run]
    found: list[dict[str, Any]] = decode_json(b"[" + encode_events(events) + b"]")
    for event, raw in zip(found, events, strict=True):
        event["ns"] = time_field(raw.ts)
    return [event for event in found if event["ph"] != "M"], reader


def written(folder: Path, data: bytes, at_ns: int = BASE_NS + 1000 * MS, name: str = "nccl_trace_rank_0") -> Path:
    path = folder / name
    path.write_bytes(data)
    os.utime(path, ns=(at_ns, at_ns))
    return path


FORMS = {
    "pickle": as_pickle,
    "pickle of protocol 4": lambda value: as_pickle(value, 4),
    "json": as_json,
    "packed": lambda value: gzip.compress(as_pickle(value)),
}


@pytest.mark.parametrize("form", FORMS)
def test_collectives_of_a_dump_have_their_arguments_in_every_form(tmp_path: Path, form: str) -> None:
    """The golden tests look at their tracks, names and times."""
    events, reader = read(written(tmp_path, FORMS[form](hung())))
    assert (reader.foreign, reader.repairs, reader.drops) == ("flight recorder", [], [])
    assert reader.header["flight_recorder"] == {"version": "2.10", "comm_lib_version": "2.27.5"}
    args = [event["args"] for event in events if event["ph"] in "XB"]
    coalesced = "with the others of its launch (coalesced)"
    completed = ["yes", "yes", coalesced, coalesced, "yes", "no", "no", "no; it timed out"]
    assert [found["completed"] for found in args] == completed
    assert args[0]["Process Group Ranks"] == "[0, 1]"
    assert (args[0]["Seq"], args[0]["duration_ms"], args[0]["input_sizes"]) == (1, 6.5, [[4, 4], []])
    assert args[0]["time_discovered_completed_ns"] == BASE_NS + 9 * MS
    assert ("Seq" in args[2], args[2]["p2p_seq_id"]) == (False, 1)
    assert args[5]["last_completed_collective of the group"] == 2
    if form != "json":
        assert args[0]["frames"] == ["train (/home/ann/train.py:7)"]


def test_what_completed_without_a_time_is_an_instant(tmp_path: Path) -> None:
    """As gloo leaves it: never "completed", but the group says how far it came."""
    gloo = [entry(number, "gloo:all_reduce", created_ns=BASE_NS + number, retired=number < 2) for number in range(3)]
    events, _ = read(written(tmp_path, as_json(dump(gloo))))
    assert [event["ph"] for event in events] == ["i", "i", "B", "i"]
    assert events[-4]["args"]["completed"] == "yes; when is not recorded"


def test_collectives_that_one_poll_found_completed_nest(tmp_path: Path) -> None:
    found_us = (100_000, 100_012, 100_024, 102_000, 200_000)
    ends_ns = [BASE_NS + us * 1000 for us in found_us]
    entries = [entry(number, created_ns=BASE_NS + number, completed_ns=end) for number, end in enumerate(ends_ns)]
    events, _ = read(written(tmp_path, as_json(dump(entries))))
    assert [event["args"]["time_discovered_completed_ns"] for event in events] == ends_ns
    assert [round(event["dur"]) for event in events] == [100_024, 100_024, 100_024, 102_000, 200_000]


@pytest.mark.parametrize(
    ("written_ms", "seen"),
    [(700_000, ("timeout (the file is younger)", 600_020)), (600_000, ("dump written", 600_000)), (5, None)],
)
def test_what_hung_is_seen_until_the_file_was_written_or_the_timeout(
    tmp_path: Path, written_ms: int, seen: tuple[str, int] | None
) -> None:
    one = dump([entry(5, created_ns=BASE_NS + 20 * MS, started_ns=BASE_NS + 21 * MS)])
    events, _ = read(written(tmp_path, as_pickle(one), BASE_NS + written_ms * MS))
    ends = [(event["name"], (event["ns"] - BASE_NS) // MS) for event in events if event["ph"] == "i"]
    assert ends == ([seen] if seen else [])


@pytest.mark.parametrize("form", FORMS)
def test_what_does_not_read_dumps_says_what_to_do(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, FORMS[form](hung()))
    for verb in (validate_trace, recover_trace, lambda dump: query(dump, "select 1", trace_processor="/nowhere")):
        with pytest.raises(TraceFormatError, match=r"a dump of torch's flight recorder.*tracekit convert"):
            verb(str(path))


TIMES = st.integers(BASE_NS, BASE_NS + 10**12)
ENTRIES = st.builds(
    entry,
    st.integers(0, 2**40),
    st.sampled_from(["nccl:all_reduce", "nccl:send 0->1", "gloo:barrier", 'q"\\\u2028é']),
    created_ns=TIMES,
    started_ns=st.none() | TIMES,
    completed_ns=st.none() | TIMES,
    group=st.tuples(st.text(max_size=4), st.text(max_size=4)),
    pg_id=st.integers(0, 3),
    seq=st.integers(0, 5),
    p2p_seq=st.none() | st.integers(1, 3),
    retired=st.booleans(),
)
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(st.lists(ENTRIES, min_size=1, max_size=6), st.booleans())
@same_folder
def test_every_entry_is_one_event_at_its_time(tmp_path: Path, found: list[dict[str, Any]], in_json: bool) -> None:
    whole = dump(found, pg_status={})
    events, reader = read(written(tmp_path, as_json(whole) if in_json else as_pickle(whole, 4)))
    assert reader.drops == []
    shown = [event for event in events if event["tid"] != "flight recorder"]
    assert Counter(event["ns"] for event in shown) == Counter(one["time_created_ns"] for one in found)
    completed = [one["time_discovered_completed_ns"] for one in found]
    assert sum(event["ph"] == "X" for event in shown) >= sum(time is not None for time in completed)
    assert all(event["dur"] >= 0 for event in shown if event["ph"] == "X")


@given(st.data())
@same_folder
def test_any_change_of_a_dump_gives_a_result_or_a_clear_error(tmp_path: Path, data: st.DataObject) -> None:
    changed = bytearray(as_json(hung()) if data.draw(st.booleans()) else as_pickle(hung()))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        length = data.draw(st.sampled_from([0, 1, 1, 1, 8, 100]))
        changed[at : at + length] = data.draw(st.binary(max_size=4))
    with suppress(TracekitError):
        assert len(read(written(tmp_path, bytes(changed)))[0]) <= 9


def test_entries_that_are_none_are_counted(tmp_path: Path) -> None:
    good = entry(0, created_ns=BASE_NS, completed_ns=BASE_NS + 5)
    entries: list[Any] = [good, 5, {"state": "completed"}, entry(1, created_ns=-4), {"time_created_ns": 1 << 70}, None]
    events, reader = read(written(tmp_path, as_pickle(dump(entries))))
    assert [event["ph"] for event in events] == ["X"]
    assert {(drop.kind, drop.count) for drop in reader.drops} == {("broken_entries", 2), ("entries_without_a_time", 3)}


def test_odd_values_of_fields_do_no_harm(tmp_path: Path) -> None:
    odd = entry(
        0,
        created_ns=BASE_NS,
        completed_ns=BASE_NS - 5,
        group=("<b>\ud800", "x" * 10_000),
        frames=[{"name": b"\xff", "line": "x"}, 7, {}],
        input_sizes=[[1 << 80, "a", None], 4],
        duration_ms=float("nan"),
        timeout_ms=1 << 100,
        process_group_more={1: 2},
    )
    odd["profiling_name"] = ["no text"]
    events, reader = read(written(tmp_path, as_pickle(dump([odd]), 4)))
    (event,) = events
    assert (event["name"], event["dur"], event["args"]["input_sizes"]) == ("collective", 0, [[], []])
    assert len(event["tid"]) < 5000
    assert reader.drops == []


def test_broken_entries_of_a_json_dump_are_repaired_or_counted(tmp_path: Path) -> None:
    names = ['say "hi"', "deep", "last"]
    entries = [entry(number, name, created_ns=BASE_NS + number) for number, name in enumerate(names)]
    data = (
        as_json(dump(entries)).replace(b'say \\"hi\\"', b'say "hi"').replace(b'"deep"', b"[" * 15_000 + b"]" * 15_000)
    )
    events, reader = read(written(tmp_path, data))
    found = [event["name"].removesuffix(" (not completed)") for event in events if event["ph"] in "XBi"]
    assert found[:2] == ['say "hi"', "last"]
    assert [(drop.kind, drop.count) for drop in reader.drops] == [("broken_entries", 1)]


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_of_a_dump_that_is_cut_off_the_whole_entries_are_kept(tmp_path: Path, form: str) -> None:
    data = FORMS[form](hung())
    seen = set()
    for end in range(0, len(data), 5):
        path = written(tmp_path, data[:end])
        try:
            events, reader = read(path)
        except TraceFormatError:
            continue
        seen.add(sum(event["ph"] in "XB" for event in events))
        assert [repair.kind for repair in reader.repairs + reader.drops][:1] != []
    assert seen - {0} == set(range(1, 9))


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x80",
        b"\x80\x02}q\x00.",
        b'{"traceEvents":[{"args":{"pg_config":1}}]}',
        b'{"schemaVersion":1,"distributedInfo":{"pg_config":[]},"traceEvents":[',
        b'{"version":"2.10"}',
        b'[{"collective_seq_id":1}]',
    ],
)
def test_what_is_no_dump(head: bytes) -> None:
    assert not is_flight_dump(head)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**127), 2**127 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
)


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
@example([255, 256, 65536, (1, 2, 3, 4), {1: {}}, "x" * 70_000, b"\0\xff" * 200, b"x" * 70_000], 3)
@example([b"x" * 70_000, b"\0\xff" * 200], 5)
def test_plain_values_are_read_as_python_wrote_them(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol=protocol)) == (value, True)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    with suppress(PickleRefusedError):
        read_pickle(b"\x80\x04" + data)


def test_values_that_newer_and_older_pickles_hold_are_read() -> None:
    assert read_pickle(b"\x80\x04\x8e" + (3).to_bytes(8, "little") + b"abc.") == (b"abc", True)
    assert read_pickle(b"\x80\x02U\x03abc.") == ("abc", True)


class _Bomb:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch /nowhere/owned",)


REFUSED = {
    "a call": (pickle.dumps({"pg_config": _Bomb()}), "STACK_GLOBAL"),
    "a call of protocol 2": (pickle.dumps({"pg_config": _Bomb()}, 2), "GLOBAL"),
    "an object of a class": (pickle.dumps(ValueError("x"), 2), "GLOBAL"),
    "an extension": (b"\x80\x02\x82\x01.", "EXT1"),
    "a persistent id": (b"\x80\x02K\x01Q.", "BINPERSID"),
    "a set": (pickle.dumps({1}, 4), "0x8f"),
    "a text opcode": (b"\x80\x02I5\n.", "0x49"),
    "a huge number": (b"\x80\x02\x8b" + (2000).to_bytes(4, "little") + b"\x7f" * 2000 + b".", "a number of 2000 bytes"),
    "a negative length": (b"\x80\x02\x8b\xff\xff\xff\xff.", "negative length"),
    "nothing on the stack": (b"\x80\x02a.", "damaged at byte 3"),
    "a memo that was never made": (b"\x80\x02h\x05.", "damaged at byte"),
    "keys of one hash": (pickle.dumps({number * (2**61 - 1): 0 for number in range(3)}, 4), "damaged"),
    "a key that is a list": (b"\x80\x02}(]K\x01u.", "damaged"),
    "half a pair": (b"\x80\x02}(K\x01u.", "damaged"),
    "a later protocol": (b"\x80\x09.", "later than 5"),
    "many lists": (b"\x80\x02" + b"]" * 1001, "more than 1000 lists"),
    "many opcodes": (b"\x80\x02" + b"N" * 10_000, "more than 10000 opcodes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_pickle_with_more_than_plain_values_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.formats.plain_pickle._MAX_CONTAINERS", 1000)
    monkeypatch.setattr("tracekit.formats.plain_pickle._MAX_OPCODES", 10_000)
    data, words = REFUSED[name]
    with pytest.raises(PickleRefusedError, match=words):
        read_pickle(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r\xff\xff\xff\x7f",  # a place in the memo
        b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f",  # the length of a text
        b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f",  # the length of a frame
        b"\x80\x02B\xff\xff\xff\xff",  # the length of bytes
    ],
)
def test_what_a_pickle_claims_is_not_made(data: bytes) -> None:
    value, whole = read_pickle(data)
    assert not value
    assert not whole


def test_a_pickle_can_be_as_deep_as_it_likes(tmp_path: Path) -> None:
    deep = b"]" * 100_000 + b"a" * 99_999
    whole = read_pickle(b"\x80\x02" + deep + b".")[1]
    assert whole
    inside = b"\x80\x02}(X\x09\0\0\0pg_configK\x01X\x07\0\0\0entries](" + deep + b"eu."
    events, reader = read(written(tmp_path, inside))
    assert (events, [drop.kind for drop in reader.drops]) == ([], ["broken_entries"])


def test_a_dump_that_unpacks_to_more_than_it_may_is_refused(tmp_path: Path) -> None:
    head = b'{"comm_lib_version":"'
    with gzip.open(tmp_path / "bomb", "wb", 1) as file:
        file.write(head)
        for _ in range(65):
            file.write(b"x" * (1 << 20))
    with pytest.raises(TraceFormatError, match="more than 64 MB"):
        read(tmp_path / "bomb")


def test_one_thing_many_times_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.formats.flight_dump._MAX_TEXT_BYTES", 1_000_000)
    one = entry(0, created_ns=BASE_NS, completed_ns=BASE_NS + 5)
    one["frames"] *= 60
    _, reader = read(written(tmp_path, as_pickle(dump([one] * 20_000))))
    assert reader.events < 2000
    assert [finding.detail for finding in reader.repairs] == ["it makes more than 0 MB of events"]
