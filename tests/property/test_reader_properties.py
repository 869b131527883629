"""Differential tests of the reader: the core and Python agree on every file."""

from __future__ import annotations

import gzip
import json
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests import both_cores
from tests.bad_traces import BAD_TRACES, GOOD_TRACES
from tracekit import core
from tracekit.errors import TraceFormatError
from tracekit.formats import byte_stream
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.json.window import find_events, scan_value
from tracekit.formats.trace_event import encode_json

if TYPE_CHECKING:
    from pathlib import Path

TRACES = {bad.name: bad.data for bad in BAD_TRACES} | GOOD_TRACES
needs_core = pytest.mark.skipif(core.merge is None, reason="the core is not built")


def read(path: Path) -> Any:
    """Return the events of a file as JSON texts, and the attributes of its reader."""
    try:
        with TraceReader(str(path)) as reader:
            events = [encode_json(event) for run in reader.runs() for event in run]
    except TraceFormatError as error:
        return str(error)
    findings = reader.repairs, reader.drops, reader.losses, reader.tail, reader.closed
    return events, findings, reader.header, reader.form, reader.events, reader.bytes_read


def read_in_python(path: Path) -> Any:
    with both_cores.pure():
        return read(path)


@pytest.fixture(params=TRACES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A small trace, most of them bad."""
    (tmp_path / "t.json").write_bytes(TRACES[request.param])
    return tmp_path / "t.json"


@needs_core
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), piece_bytes=st.sampled_from([16, 100, 700, 1 << 18]))
@example(seed=22963, piece_bytes=16)
def test_core_and_python_read_the_same_from_generated_and_damaged_files(
    tmp_path: Path, seed: int, piece_bytes: int
) -> None:
    random = Random(seed)
    data = both_cores.trace(random, most_events=20)
    data = both_cores.damaged(random, data) if seed % 3 == 0 else data
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(data) if seed % 5 == 0 else data)
    whole = read(path)
    assert read_in_python(path) == whole
    if seed % 3:  # the extent of damage may depend on the pieces
        with mock.patch.object(byte_stream, "PIECE_BYTES", piece_bytes):
            assert read(path)[:-1] == whole[:-1]
            assert read_in_python(path)[:-1] == whole[:-1]


def test_reading_the_window_gives_the_same_events_as_runs(path: Path) -> None:
    whole = read(path)
    if isinstance(whole, str):
        return
    events = []
    with mock.patch.object(byte_stream, "PIECE_BYTES", 300), TraceReader(str(path)) as reader:
        while reader.in_events:
            found = reader.read_odd()
            events += [encode_json(event) for event in found]
            if not found:
                reader.end_events()
    assert (events, reader.header, reader.events, reader.closed) == (whole[0], whole[2], whole[4], whole[1][4])


def test_passing_events_oneself_gives_the_same_findings_as_runs(path: Path) -> None:
    whole = read(path)
    if isinstance(whole, str):
        return
    with TraceReader(str(path)) as reader:
        while reader.in_events:
            spans, _ = find_events(reader.text, reader.at)
            reader.pass_events(spans[1] if spans else reader.at)
            if reader.text.startswith(b",", reader.at):
                reader.pass_events(reader.at + 1)
            if not reader.read_odd():
                reader.end_events()
    in_texts = {"invalid_utf8", "surrogate_escape", "lone_surrogate"}  # found only in events that the reader reads
    found, expected = (
        [[(one.kind, one.count) for one in findings if one.kind not in in_texts] for findings in both]
        for both in ((reader.repairs, reader.drops), whole[1][:2])
    )
    assert (found, reader.closed) == (expected, whole[1][4])


@needs_core
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200) | st.text('[]{}",:\\\n\0pht1 eE.-', max_size=200).map(str.encode))
def test_core_and_python_find_the_same_events_in_any_bytes(data: bytes) -> None:
    found = find_events(data, 0)
    with both_cores.pure():
        assert find_events(data, 0) == found
    spans, stop = found
    for begin, end in zip(spans[::2], spans[1::2], strict=True):
        assert isinstance(json.loads(data[begin:end].decode("latin-1")), dict)
    assert (spans[-1] if spans else 0) <= stop <= len(data)


@given(events=st.lists(st.dictionaries(st.text(), st.text() | st.lists(st.integers())), min_size=1))
def test_whole_events_are_found_with_their_places(events: list[Any]) -> None:
    texts = [json.dumps(event, ensure_ascii=False).encode() for event in events]
    text = b" ,\n".join(texts)
    spans, stop = find_events(text, 0)
    assert [text[begin:end] for begin, end in zip(spans[::2], spans[1::2], strict=True)] == texts
    assert stop == len(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"a": 1}', (8, True)),
        (b'{"a": 1} ', (8, True)),
        (b'{"a": ', (6, False)),
        (b'{"a": "x', (8, False)),
        (b'{"a": "x"', (9, False)),
        (b"12", (2, False)),
        (b"12,", (2, True)),
        (b'{"a" 1}' + bytes(20), (5, False)),
        (b'{"a":NaN}' + bytes(20), (0, False)),
        (b'{"a":"\n"}' + bytes(20), (6, False)),
        (b'{"a":"' + b"x" * 100_000 + b'"}', (100_008, True)),
        (b'{"a":"' + b"x" * 100_000, (100_006, False)),
    ],
)
def test_a_value_is_whole_or_says_where_it_breaks(text: bytes, expected: tuple[int, bool]) -> None:
    assert scan_value(text, 0) == expected


HEADERS = (
    b"",
    b'"a":1,',
    b' "a" : [1, {"b": 2}] ,\n\t"c": "x\\u00e9\\"",',
    b'"a":1,"a":2,',
    b'"a":1,,"b":2,',
    b'"a":1 "b":2,',
    b'"a":NaN,"b":2,',
    b'"a":"\\ud83d","b":"\xff",',
    b'"a":"has "quotes" inside","b":2,',
    b'"a":\t"has "quotes" inside",\n"b" : {"c": "x"y", "d": 3},\n"e": "x"y",\n',
    b'"a":{"traceEvents":[1],"b":2},',
    b'"a":"\\"traceEvents\\":[","b":2,',
    b'"traceEvents":null,"b":2,',
    b'"traceEvents":3,"b":2,',
    b'"a":%b1%b,' % (b"[" * 2000, b"]" * 2000),
)
TAILS = (
    b"}",
    b" , } \n",
    b',"z":1}',
    b',\n"z": "x", "y": [3] }\r\n',
    b',"z":1,}',
    b',"z":1',
    b',"z":1}}',
    b',"z":1}\0\0',
    b',"z":"has "quotes" inside"}',
    b',"z":1,"traceEvents":[{"ph":"i","name":"c","pid":1,"tid":1,"ts":3}],"y":2}',
    b',"z":"' + b"x" * 300 + b'"}',
    b'"z":1}',
)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("header", HEADERS)
def test_keys_taken_at_once_are_those_taken_one_by_one(tmp_path: Path, header: bytes, tail: bytes) -> None:
    path = tmp_path / "t.json"
    events = b'{"ph":"i","name":"a","pid":1,"tid":1,"ts":1},{"ph":"i","name":"b","pid":1,"tid":1,"ts":2}'
    path.write_bytes(b'{%b"traceEvents":[%b]%b' % (header, events, tail))
    at_once = read(path)
    with mock.patch.object(TraceReader, "_take_keys", return_value=False):
        assert read(path) == at_once
