"""Dumps of torch's flight recorder, read as traces: collectives, hangs, damage, and hostile pickles."""

from __future__ import annotations

import gzip
import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from tests.flight_dumps import BASE_NS, MS, as_json, as_pickle, dump, entry, hung
from tracekit.check.recovery import recover_trace
from tracekit.check.validation import validate_trace
from tracekit.errors import TraceFormatError
from tracekit.formats.flight_dump import is_flight_dump
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.plain_pickle import PickleRefusedError, is_pickle, read_pickle
from tracekit.formats.trace_event import decode_json, encode_events
from tracekit.view.query import query

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def read(path: Path) -> tuple[list[dict[str, Any]], TraceReader]:
    with TraceReader(str(path)) as reader:
        events = [event for run in reader.runs() for event in run]
    found: list[dict[str, Any]] = decode_json(b"[" + encode_events(events) + b"]")
    return found, reader


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
    assert [event["ph"] for event in events if event["ph"] != "M"] == ["i", "i", "B", "i"]
    assert events[-4]["args"]["completed"] == "yes; when is not recorded"


@pytest.mark.parametrize(
    ("written_ms", "seen"),
    [(700_000, ("timeout (the file is younger)", 600_020)), (600_000, ("dump written", 600_000)), (5, None)],
)
def test_what_hung_is_seen_until_the_file_was_written_or_the_timeout(
    tmp_path: Path, written_ms: int, seen: tuple[str, int] | None
) -> None:
    one = dump([entry(5, created_ns=BASE_NS + 20 * MS, started_ns=BASE_NS + 21 * MS)])
    events, _ = read(written(tmp_path, as_pickle(one), BASE_NS + written_ms * MS))
    ends = [(event["name"], round(event["ts"] * 1000 - BASE_NS) / MS) for event in events if event["ph"] == "i"]
    assert [(name, round(at)) for name, at in ends] == ([seen] if seen else [])


@pytest.mark.parametrize("form", FORMS)
def test_what_does_not_read_dumps_says_what_to_do(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, FORMS[form](hung()))
    for verb in (validate_trace, recover_trace, lambda dump: query(dump, "select 1", trace_processor="/nowhere")):
        with pytest.raises(TraceFormatError, match=r"a dump of torch's flight recorder.*tracekit convert"):
            verb(str(path))


def test_entries_that_are_none_are_counted(tmp_path: Path) -> None:
    good = entry(0, created_ns=BASE_NS, completed_ns=BASE_NS + 5)
    entries: list[Any] = [good, 5, {"state": "completed"}, entry(1, created_ns=-4), {"time_created_ns": 1 << 70}, None]
    events, reader = read(written(tmp_path, as_pickle(dump(entries))))
    assert [event["ph"] for event in events if event["ph"] != "M"] == ["X"]
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
    (event,) = [event for event in events if event["ph"] != "M"]
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


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_values_of_every_size_are_read_as_python_reads_them(protocol: int) -> None:
    value = [
        255,
        256,
        65536,
        -(1 << 120),
        ("x",),
        (1, 2, 3, 4),
        {1: {2: []}},
        "x" * 70_000,
        b"\x00\xff" * 200,
        b"x" * 70_000,
    ]
    data = pickle.dumps(value, protocol=protocol)
    assert is_pickle(data)
    assert read_pickle(data) == (value, True)


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
