from __future__ import annotations

import gzip
import json
import math
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from tracekit.errors import TraceFormatError
from tracekit.formats import byte_stream
from tracekit.formats.decimal_time import format_us, parse_us
from tracekit.formats.json import reader as reader_module
from tracekit.formats.json import window
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.json.repair import repair_object
from tracekit.formats.trace_event import UNSET, Event, encode_events

if TYPE_CHECKING:
    from pathlib import Path

EVENTS: list[dict[str, Any]] = [
    {
        "ph": "X",
        "name": f"op {i}",
        "cat": "cpu_op",
        "pid": 7,
        "tid": 8,
        "ts": i * 10,
        "dur": 5,
        "args": {"n": {"x": [i]}},
    }
    for i in range(50)
]


def read(path: Path) -> tuple[TraceReader, list[dict[str, Any]]]:
    reader = TraceReader(str(path))
    events = [event for run in reader.runs() for event in run]
    return reader, json.loads("[" + encode_events(events).decode() + "]")


def kinds(reader: TraceReader) -> dict[str, int]:
    return {finding.kind: finding.count for finding in reader.repairs}


def lost(reader: TraceReader) -> dict[str, int]:
    return {finding.kind: finding.count for finding in reader.drops}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def _write(content: str | bytes, name: str = "trace.json") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return _write


@pytest.fixture(params=[16, 100, 1000, 262144])
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(byte_stream, "PIECE_BYTES", request.param)
    return int(request.param)


@pytest.mark.usefixtures("piece_bytes")
@pytest.mark.parametrize("indent", [None, 0, 2, "\t"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", ["array", "header first", "header last"])
def test_every_layout_gives_the_events_and_the_header(write: Any, indent: Any, packed: bool, form: str) -> None:
    header = {"baseTimeNanoseconds": 5, "deviceProperties": [{"id": 0}, {"id": 1}]}
    value: Any = {
        "array": EVENTS,
        "header first": {**header, "traceEvents": EVENTS},
        "header last": {"traceEvents": EVENTS, **header},
    }[form]
    content = json.dumps(value, indent=indent).encode()
    reader, events = read(write(gzip.compress(content) if packed else content))
    assert events == EVENTS
    assert (reader.form, reader.header) == (("array", {}) if form == "array" else ("object", header))
    assert (reader.events, reader.bytes_read, reader.compressed) == (len(EVENTS), len(content), packed)
    assert (reader.repairs, reader.drops) == ([], [])


def test_events_without_their_bracket_are_refused_with_the_way_to_save_them(write: Any) -> None:
    with pytest.raises(TraceFormatError, match="it holds events, which tracekit recover saves"):
        TraceReader(str(write('{"ph":"i","name":"a","ts":1},\n{"ph":"i","name":"b","ts":2}')))


def test_keys_before_the_events_are_known_before_the_events_are_read(write: Any) -> None:
    reader = TraceReader(str(write('{"rank": 3, "traceEvents": [], "traceName": "x"}')))
    assert reader.header == {"rank": 3}
    assert list(reader.runs()) == []
    assert reader.header == {"rank": 3, "traceName": "x"}


B = '{"ph":"X","name":"b","ts":2}'


@pytest.mark.parametrize(
    ("text", "event", "kind"),
    [
        ('{"ph":"X","name":"quote "q""},' + B, {"name": 'quote "q"'}, "unescaped_quote"),
        ('{"ph":"X","name":"d["k"]"},' + B, {"name": 'd["k"]'}, "unescaped_quote"),
        ('{"ph":"X","name":"f("a", "b")"},' + B, {"name": 'f("a", "b")'}, "unescaped_quote"),
        ('{"ph":"X","name":"t\tn\n"},' + B, {"name": "t\tn\n"}, "control_character"),
        ('{"ph":"X","name":"\\ud83d\\ude00"},' + B, {"name": "😀"}, "surrogate_escape"),
        ('{"ph":"X","name":"\\ud83d!"},' + B, {"name": "\ufffd!"}, "lone_surrogate"),
        (b'{"ph":"X","name":"caf\xe9"},' + B.encode(), {"name": "caf\ufffd"}, "invalid_utf8"),
        ('{"ph":"X","name":"C:\\q"},' + B, {"name": "C:\\q"}, "bad_escape"),
        ('{"ph":"X","name":"a",},' + B, {"name": "a"}, "trailing_comma"),
        ('{"ph":"X","name":"a"}' + B, {"name": "a"}, "missing_comma"),
        ('{"ph":"X","name":"a"},\n' + B + ",", {"name": "a"}, "trailing_comma"),
        ('{"ph":"X","args":{"x":ncclFloat32}},' + B, {"args": {"x": "ncclFloat32"}}, "bare_word"),
        ('{"ph":"X","args":{"x":-Infinity}},' + B, {"args": {"x": "-Infinity"}}, "not_finite"),
        ('{"ph":"X","args":{"x":NaN,"b":1.5}},' + B, {"args": {"x": "NaN", "b": 1.5}}, "not_finite"),
        ('{"ph":"X","name":"\\\\ud83d"},' + B, {"name": "\\ud83d"}, None),
    ],
)
def test_a_broken_event_is_repaired_and_counted(write: Any, text: Any, event: dict[str, Any], kind: str | None) -> None:
    reader, events = read(write(b"[%b]" % text if isinstance(text, bytes) else f"[{text}]"))
    assert events == [{"ph": "X", **event}, json.loads(B)]
    assert list(kinds(reader)) == ([kind] if kind else [])
    assert reader.drops == []


def test_a_repair_says_where_in_the_file(write: Any) -> None:
    text = '[\n{"ph":"X","name":"a"},\n{"ph":"X","name":"b"c"},\n{"ph":"X","name":"d"}\n]'
    reader, _ = read(write(text))
    assert [finding.offset_bytes for finding in reader.repairs] == [text.index('{"ph":"X","name":"b')]


@pytest.mark.parametrize(
    ("text", "names", "kind"),
    [
        ('[\n{"ph":"X","name":"a"},\nrubbish,\n{"ph":"X","name":"b"}\n]', ["a", "b"], "not_an_event"),
        ('[\n{"ph":"X","name":"a"},\n\0\0\0\0\n{"ph":"X","name":"b"}\n]', ["a", "b"], "not_an_event"),
        ('[{"ph":"X","name":"a"},17,{"ph":"X","name":"b"}]', ["a", "b"], "not_an_event"),
        ('[\n{"ph":"X","name":"a"},\n{"ph":"X","na{"ph":"X","name":"b"}\n]', ["a", "b"], "broken_event"),
        ('[\n{"ph":"X","name":"a"},\n{"ph":"X","name":"torn {"ph":"X","name":"b"}\n]', ["a", "b"], "broken_event"),
        ('[{"ph":"X","name":"a"},{"ph":"X","name":"b"},{"ph":"X","na', ["a", "b"], "cut_event"),
        ('[{"ph":"X","name":"a"}] {"ph":"X","name":"b"}', ["a"], "data_after_end"),
    ],
)
def test_what_cannot_be_repaired_is_counted_and_the_next_event_is_read(
    write: Any, text: str, names: list[str], kind: str
) -> None:
    reader, events = read(write(text))
    assert [event.get("name") for event in events] == names
    assert lost(reader) == {kind: 1}


def test_deep_nesting_loses_that_event_only(write: Any) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    reader, events = read(write('[{"name":"a"},\n{"name":"deep","args":{"x":' + deep + '}},\n{"name":"b"}]'))
    assert [event["name"] for event in events] == ["a", "b"]
    assert lost(reader) == {"broken_event": 1}


def test_the_end_of_what_no_decoder_follows_is_not_looked_for() -> None:
    for levels, found in ((20_000, True), (20_001, False)):
        text = b'{"a":' * levels + b"1" + b"}" * levels
        assert (repair_object(text, 0, len(text)) is not None) == found


@pytest.mark.parametrize("head", [b"", b"[", b'{"traceEvents":['])
def test_white_space_without_end_takes_no_memory(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "space.json.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(head)
        for _ in range(40):
            file.write(b" \n" * (1 << 19))
    tracemalloc.start()
    try:
        with suppress(TraceFormatError), TraceReader(str(path)) as reader:
            assert [event for run in reader.runs() for event in run] == []
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("head", [b"", b"["])
def test_white_space_is_not_read_for_ever(write: Any, monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    monkeypatch.setattr(window, "_MAX_UNREADABLE_BYTES", 1 << 18)
    with pytest.raises(TraceFormatError, match="bytes of it are nothing but white space"):
        TraceReader(str(write(head + b" " * (1 << 20))))


@pytest.mark.parametrize("piece", [b"{", b'{"ph":\n', b'"', b'{"ph":"X","args":{"l":[1,'])
def test_what_begins_with_nothing_readable_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: bytes
) -> None:
    monkeypatch.setattr(window, "_MAX_UNREADABLE_BYTES", 1 << 18)
    monkeypatch.setattr(reader_module, "MAX_EVENT_BYTES", 1 << 17)
    monkeypatch.setattr(window, "_MAX_UNREADABLE_EVENTS", 5000)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b"[{" + piece * (3 << 20) + b"]"))
    with TraceReader(str(path)) as reader:
        assert [event for run in reader.runs() for event in run] == []
    assert reader.bytes_read < 1 << 20
    assert [drop.kind for drop in reader.drops] == ["broken_event"]


def test_unknown_keys_are_kept(write: Any) -> None:
    event = {"ph": "X", "name": "a", "ts": 1, "pid": 1, "tid": "x", "colour": {"r": 1}, "z": None}
    assert read(write(json.dumps([event, EVENTS[0]])))[1] == [event, EVENTS[0]]


def test_numbers_keep_every_digit(write: Any) -> None:
    path = write(
        '[{"ph":"X","name":"a","ts":4360038729919.9970,"dur":1e-3,"args":{"x":0.1000000000000000055511151231257827}}]'
    )
    [[event]] = list(TraceReader(str(path)).runs())
    assert isinstance(event, Event)
    assert bytes(event.ts or b"") == b"4360038729919.9970"
    assert b"0.1000000000000000055511151231257827" in encode_events([event])
    assert event.cat is UNSET


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b" \n ", "white space"),
        (b"hello", "begin with"),
        ("[1]".encode("utf-16"), "UTF-16"),
        (b"[1, 2]", "no events"),
        (b'{"a": 1}', "no traceEvents"),
        (b'{"otherData":{"traceEvents":[{"ph":"X"}]}}', "no traceEvents"),
        (gzip.compress(b'{"a": 1}', mtime=0), "no traceEvents"),
        (b"\x1f\x8bgarbage", "gzip"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_reason(write: Any, content: bytes, reason: str) -> None:
    path = write(content)
    with pytest.raises(TraceFormatError, match=reason) as caught:
        TraceReader(str(path))
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"0", 0),
        (b"1694128201435418", 1694128201435418000),
        (b"4360038729919.997", 4360038729919997),
        (b"7.2709999999999999", 7271),
        (b"0.0005", 1),
        (b"-0.0005", -1),
        (b"-3.25", -3250),
        (b'"200.5"', 200500),
        (b"1e3", 1000000),
        (b"1727743122000000.123456", 1727743122000000123),
        *((text, None) for text in (b"NaN", b'"NaN"', b"null", b"1e400", b"9" * 30, b'"later"', b"{}", b"")),
    ],
)
def test_microseconds_become_exact_nanoseconds(text: bytes, ns: int | None) -> None:
    assert parse_us(text) == ns


@pytest.mark.parametrize("ns", [0, 1, 999, 1000, 4360038729919997, -1, -1500, 2**63 - 1])
def test_nanoseconds_are_written_with_three_decimals_and_read_back(ns: int) -> None:
    text = format_us(ns)
    assert len(text.rpartition(b".")[2]) == 3
    assert parse_us(text) == ns
    assert math.isclose(float(text) * 1000, ns, rel_tol=1e-12)


INNER, ONE, TWO = (b'{"ph":"X","name":"%b","ts":1,"dur":1}' % name for name in (b"inner", b"one", b"two"))
WHERE_EVENTS_STAND = {
    "inside of an earlier key": (b'{"otherData":{"traceEvents":[%b]},"traceEvents":[%b]}' % (INNER, ONE), ["one"]),
    "inside of a later key": (b'{"traceEvents":[%b],"otherData":{"traceEvents":[%b]}}' % (ONE, INNER), ["one"]),
    "after brackets in a text": (b'{"note":"{[","traceEvents":[%b]}' % ONE, ["one"]),
    "after a quote that is not escaped": (b'{"a":"x"{"y","traceEvents":[%b]}' % ONE, ["one"]),
    "after an array that is not closed": (b'{"a":[{"b":1},"traceEvents":[%b]}' % ONE, ["one"]),
    "twice": (b'{"traceEvents":[%b],"x":1,"traceEvents":[%b],"y":2}' % (ONE, TWO), ["one", "two"]),
    "twice, in two layouts": (
        b'{"traceEvents":[%b,\n%b],"traceEvents":[ %b ]}' % (ONE, ONE, TWO),
        ["one", "one", "two"],
    ),
    "after null": (b'{"traceEvents":null,"traceEvents":[%b]}' % ONE, ["one"]),
    "in a second document": (b'{"traceEvents":[%b]}{"traceEvents":[%b]}' % (ONE, TWO), ["one"]),
}


@pytest.mark.parametrize("piece_bytes", [16, 1 << 18])
@pytest.mark.parametrize(("content", "names"), WHERE_EVENTS_STAND.values(), ids=WHERE_EVENTS_STAND)
def test_events_are_those_of_the_outermost_object(
    write: Any, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, content: bytes, names: list[str]
) -> None:
    monkeypatch.setattr(byte_stream, "PIECE_BYTES", piece_bytes)
    with TraceReader(str(write(content))) as reader:
        assert [json.loads(bytes(event.name)) for run in reader.runs() for event in run] == names
    assert "traceEvents" not in reader.header
    if b'"y":2' in content:
        assert (reader.header["x"], reader.header["y"]) == (1, 2)
    twice = b'],"traceEvents"' in content or b'1,"traceEvents"' in content or b"null" in content
    assert twice == any(finding.kind == "second_events" for finding in reader.repairs)


@pytest.mark.parametrize("count", [8000, 32000])
def test_a_layout_that_changes_after_the_metadata_is_learned_anew(write: Any, count: int) -> None:
    # As VizTracer writes it: metadata begins with "ph", events with "pid", all on one line.
    head = b'{"ph":"M","name":"process_name","pid":1,"args":{"name":"p"}}'
    events = [b'{"pid":1,"tid":1,"ts":%d,"ph":"X","dur":1,"name":"f"}' % ts for ts in range(count)]
    path = str(write(b'{"traceEvents":[%b]}' % b",".join([head, head, *events])))
    with TraceReader(path) as reader, mock.patch.object(reader, "_read_one", side_effect=reader._read_one) as alone:
        assert sum(map(len, reader.runs())) == count + 2
    assert alone.call_count < 10  # of the rest, each piece is decoded at once
