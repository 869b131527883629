"""JSON lines: an event per line, without brackets or commas."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from unittest import mock

import hypothesis
import hypothesis.strategies as st
import pytest

from tracekit.formats import byte_stream
from tracekit.formats.byte_stream import PIECE_BYTES
from tracekit.formats.trace_stream import form_of, open_trace
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path


def slice_(name: str = "x", ts: float = 5, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 1, **more}


EVENTS = [slice_("a"), slice_("}\n{", 10, args={"deep": [{}, {"}": "{"}]}), slice_("c", 20)]


def lines(events: list[dict[str, Any]], end: str = "\n") -> bytes:
    return "".join(json.dumps(event) + end for event in events).encode()


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (lines(EVENTS), True),
        (b"\n \n" + lines(EVENTS, "\r\n"), True),
        (json.dumps(EVENTS[0]).encode(), True),
        (b'{"ph":"X","name":"\xff"}\n', True),
        (json.dumps({"traceEvents": EVENTS}).encode(), False),
        (json.dumps(EVENTS, indent=1).encode(), False),
        (json.dumps(EVENTS[0], indent=1).encode(), False),
        (b'{"loss": 0.5}\n{"loss": 0.4}\n', False),
        (b'{"ph": 5}\n', False),
        (b'{"ph":"X",' + b"[" * 100_000, False),
        (lines([slice_("a", cat='"', args={"big": "x" * 300_000})])[:PIECE_BYTES], True),
        (lines([{"name": "ph", "traceEvents": [slice_("x" * 300_000)]}])[:PIECE_BYTES], False),
        (b"", False),
    ],
)
def test_json_lines_are_told_by_their_first_line(head: bytes, expected: bool) -> None:
    assert (form_of(head) == "JSON lines") is expected


@hypothesis.given(
    piece_bytes=st.integers(1, 200),
    end=st.sampled_from(["\n", "\r\n", "\n\n", " \t\n  "]),
    count=st.integers(1, 3),
    has_last_end=st.booleans(),
)
def test_json_lines_in_any_pieces_are_the_array_of_their_events(
    tmp_path_factory: pytest.TempPathFactory, piece_bytes: int, end: str, count: int, has_last_end: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "t.jsonl"
    data = lines(EVENTS[:count], end)
    path.write_bytes(data if has_last_end else data.rstrip())
    lines_in_any_piece = mock.patch("tracekit.formats.trace_stream.form_of", return_value="JSON lines")
    with lines_in_any_piece, mock.patch.object(byte_stream, "PIECE_BYTES", piece_bytes):
        stream = open_trace(str(path))
        found = b"".join(iter(stream.read, b""))
        stream.close()
    assert json.loads(found) == EVENTS[:count]
    # Places in a report are those of the file, one on.
    assert found.index(b'"name"') == data.index(b'"name"') + 1


def test_json_lines_that_are_cut_lose_only_the_last_event(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(lines(EVENTS)[:-20])
    report = merge_traces(str(tmp_path / "m.json"), [str(path)])
    assert [(drop.reason, drop.count) for drop in report.dropped] == [("cut_event", 1)]
