"""The compiled core of the merge: when it is used, and which events it takes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from tests.both_cores import MANY_IDS, merged, small_pieces
from tracekit import core
from tracekit.merge.rewrite.events import EventRewriter

if TYPE_CHECKING:
    from collections.abc import Callable


needs_core = pytest.mark.core

SLICE = (
    b'{"ph":"X","name":"a","pid":5,"tid":6,"ts":1.500,"dur":0.250,"args":{"correlation":3,"x":[{"External id": 4}]}}'
)
FLOW = b'{"ph":"s","name":"a","cat":"c","id":7,"pid":5,"tid":6,"ts":2.000}'
MORE, ODD_EVENT, NEW, AT_END = range(4)


def load_anew(code: str, **environment: str) -> list[str]:
    """Return what a new process prints that imports the core."""
    program = f"import logging, sys; logging.basicConfig(level=logging.DEBUG, stream=sys.stdout); {code}"
    program += "; from tracekit import core; from tracekit.recording.marker import Marker"
    program += "; print(core.merge is None, type(Marker.__enter__).__name__ == 'function')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


MERGE, RECORD = "sys.modules['tracekit.core._merge']", "sys.modules['tracekit.core._record']"


@pytest.mark.parametrize(
    ("code", "variable", "said", "pure"),
    [
        ("pass", "1", "pure Python, as TRACEKIT_PURE_PYTHON says$", True),
        pytest.param("pass", "0", "compiled core: ", False, marks=needs_core),
        pytest.param("pass", "", "compiled core: ", False, marks=needs_core),
        (f"{MERGE} = {RECORD} = None", "0", "pure Python: ", True),
        (f"{MERGE} = None", "0", "pure Python.*_merge", True),
    ],
    ids=["asked for", "not asked for", "empty variable", "no extension", "one extension"],
)
def test_one_line_of_the_log_says_whether_the_core_is_used(code: str, variable: str, said: str, pure: bool) -> None:
    line, *found = load_anew(code, TRACEKIT_PURE_PYTHON=variable)
    assert re.match(f"DEBUG:tracekit.core:{said}", line)
    assert found == [f"{pure} {pure and code != f'{MERGE} = None'}"]


def make_rewriter(shift_ns: int = 0, id_offset: int = 0, args: int = 0) -> Any:
    assert core.merge is not None
    rewriter = core.merge.Rewriter(b'"nccl', "/tmp")
    rewriter.begin(shift_ns, -(2**62), 2**62, id_offset, True, args, b"", ())
    for number in (5, 6, 9):
        rewriter.add_track(b"%d" % number, b"6", 1001, 8, 0)
    return rewriter


def rewritten(rewriter: Any, text: bytes) -> tuple[int, int, bytes]:
    """Return why it stops, how much is left, and what it wrote."""
    reason, at = rewriter.rewrite(text, 0, True)
    return reason, len(text) - at, rewriter.take()


NOT_TAKEN = {
    "cut": SLICE[:-1],
    "an unknown key": SLICE.replace(b'"args"', b'"other"'),
    "a key that stands twice": SLICE.replace(b'"name"', b'"pid"'),
    "a key with an escape": SLICE.replace(b'"ts"', b'"t\\u0073"'),
    "no phase": SLICE.replace(b'"ph":"X",', b""),
    "a long phase": SLICE.replace(b'"X"', b'"XX"'),
    "no duration": SLICE.replace(b'"dur"', b'"tts"'),
    "no time": SLICE.replace(b'"ts"', b'"tts"'),
    "no pid": SLICE.replace(b'"pid"', b'"tts"'),
    "a duration below 0": SLICE.replace(b"0.250", b"-1.000"),
    "a time as text": SLICE.replace(b"1.500", b'"1.500"'),
    "a time with an exponent": SLICE.replace(b"1.500", b"15e-1"),
    "a time beyond 64 bits": SLICE.replace(b"1.500", b"9223372036854775.808"),
    "a surrogate": SLICE.replace(b'"a"', b'"\\ud83d"'),
    "invalid UTF-8": SLICE.replace(b'"a"', b'"\xc3("'),
    "an overlong form": SLICE.replace(b'"a"', b'"\xe0\x80\x80"'),
    "too many ids": SLICE.replace(b'"a"', MANY_IDS.encode()),
    "a time below 0": SLICE.replace(b"1.500", b"-0.000"),
    "an end beyond 64 bits": SLICE.replace(b"1.500", b"9223372036854775.807"),
    "a leading zero": SLICE.replace(b"1.500", b"01.500"),
    "a pid with decimals": SLICE.replace(b'"pid":5', b'"pid":5.0'),
    "a pid with an escape": SLICE.replace(b'"pid":5', b'"pid":"\\u0035"'),
    "a control character": SLICE.replace(b'"a"', b'"a\n"'),
    "a NUL in a name": SLICE.replace(b'"a"', b'"a\0"'),
    "a bad escape": SLICE.replace(b'"a"', b'"\\x"'),
    "a short escape": SLICE.replace(b'"a"', b'"\\u00"'),
    "a deep value": SLICE.replace(b'"a"', b"[" * 62 + b"]" * 62),
    "a comma before a bracket": SLICE.replace(b'"a"', b"[1,]"),
    "a wrong bracket": SLICE.replace(b'"a"', b"[1}"),
    "a word": SLICE.replace(b'"a"', b"nul"),
    "no number": SLICE.replace(b'"a"', b"-"),
}


@needs_core
@pytest.mark.parametrize("text", NOT_TAKEN.values(), ids=NOT_TAKEN)
def test_rewriter_gives_back_an_odd_event(text: bytes) -> None:
    rewriter = make_rewriter()
    # At every place where blocks of 16 bytes can begin, and after it all is well.
    for space in range(18):
        assert rewritten(rewriter, space * b" " + text) == (ODD_EVENT, len(text), b"")
        rewriter.append(b"")
    assert rewritten(rewriter, b"," + SLICE)[0] == MORE
    # And where all around it is known, since it stood before.
    usual = b",".join([SLICE] * 9)
    assert rewritten(rewriter, b"," + usual)[:2] == (MORE, 0)
    reason, left, written = rewritten(rewriter, b",%b,%b,%b" % (usual, text, usual))
    assert (reason, left, written.count(b"\n")) == (ODD_EVENT, len(text) + 1 + len(usual), 9)
    rewriter.append(b"")
    assert rewritten(rewriter, b"," + usual)[:2] == (MORE, 0)


LAYOUTS = {
    "as json writes": SLICE.replace(b":", b": ").replace(b",", b", "),
    "on lines": SLICE.replace(b",", b",\n    ").replace(b"{", b"{\n    "),
    "spaces here, none there": SLICE.replace(b'"tid":6', b'"tid" :  6').replace(b'"dur":', b'"dur": '),
    "other values": SLICE.replace(b"0.250", b" 0.25 ").replace(b'"a"', b'"' + b"a" * 40 + b'"').replace(b"4}", b"44 }"),
    "pid first": b'{"pid":5,"tid":6,"ts":1.500,"ph":"X","name":"a","dur":0.250}',
    "only pid first": b'{"pid":5,"ph":"X","tid":6,"ts":1.500,"name":"a","dur":0.250}',
    "the same arguments": SLICE.replace(b'"correlation":3,', b""),
    "no arguments": SLICE[: SLICE.index(b',"args"')] + b"}",
    "nothing in them": SLICE[: SLICE.index(b"{", 1)] + b"{}}",
    "objects in objects": SLICE.replace(b"[{", b'{"x":{"y":[{"x":1},{"y":2}],"z":').replace(b"}]}", b'},"x":4}}'),
    "a key that says id": SLICE.replace(b'"x"', b'"id"'),
    "a key that says g": SLICE.replace(b'"x"', b'"g"'),
    "a key with an escape in arguments": SLICE.replace(b'"x"', b'"\\u0078"'),
    "a long key": SLICE.replace(b'"x"', b'"' + b"x" * 60 + b'"'),
    "an instant": SLICE.replace(b'"X"', b'"i"').replace(b'"dur":0.250', b'"s":"t"'),
    "a counter": b'{"ph":"C","name":"a","pid":5,"tid":6,"ts":1.500,"args":{"loss":0.25}}',
    "an arrow": FLOW,
    "a comma behind a brace": SLICE.replace(b"{", b"{,", 1),
    "no comma before pid": SLICE.replace(b',"pid"', b'"pid"'),
    "no comma in arguments": SLICE.replace(b',"x"', b'"x"'),
    "a comma in arguments": SLICE.replace(b'{"correlation"', b'{,"correlation"'),
    "a key twice": SLICE.replace(b'"dur"', b'"ts":1.500,"dur"'),
}


@needs_core
@pytest.mark.parametrize("settings", [(0, 0, 0), (1_000_000, 10**10, 0), (0, 10**10, 1), (5, 0, 2)])
def test_rewriter_writes_an_event_the_same_whatever_stood_before(settings: tuple[int, int, int]) -> None:
    behind = b" " * 200  # with less behind it, blocks are not compared
    for first, then in product(LAYOUTS, repeat=2):
        before, text = b",".join([LAYOUTS[first]] * 3) + behind, LAYOUTS[then] + behind
        rewriter, fresh = make_rewriter(*settings), make_rewriter(*settings)
        rewritten(rewriter, before)
        rewriter.append(b"")
        rewritten(rewriter, b"," + SLICE)
        assert rewritten(rewriter, b"," + text) == rewritten(fresh, text), (first, then)


@needs_core
def test_rewriter_asks_for_an_unknown_track() -> None:
    rewriter = make_rewriter()
    text = SLICE.replace(b'"pid":5', b'"pid":"Spans","cat":"c"')
    for _ in range(2):
        assert rewritten(rewriter, text) == (NEW, len(text), b"")
        assert rewriter.new_track() == (b'"Spans"', b"6", b'"c"')
    rewriter.add_track(b'"Spans"', b"6", 2**32 - 1, 2**32 - 1, 1)
    assert b'"pid":4294967295,"cat":"c","tid":4294967295,' in rewritten(rewriter, text)[2]


@needs_core
def test_rewriter_checks_its_arguments_and_its_state() -> None:
    compiled: Any = core.merge
    finished, never_made = make_rewriter(), compiled.Rewriter.__new__(compiled.Rewriter)
    for rewriter in (finished, never_made):
        rewriter.finish(lambda log, lane: 0)
    refused: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (TypeError, ".", lambda: make_rewriter().rewrite("text", 0, False)),
        (TypeError, ".", lambda: compiled.Rewriter("text", "/tmp")),
        (ValueError, "2 to 32 bytes", lambda: compiled.Rewriter(b"x", "/tmp")),
        (ValueError, "2 to 32 bytes", lambda: compiled.Rewriter(b"x" * 33, "/tmp")),
        (ValueError, "too long a path", lambda: compiled.Rewriter(b'"a', "x" * 5000)),
        (OverflowError, ".", lambda: make_rewriter(2**63)),
        (OverflowError, ".", lambda: make_rewriter(0, 2**63)),
        (ValueError, "no such mode", lambda: make_rewriter(args=3)),
        (ValueError, "no such place", lambda: make_rewriter().rewrite(b"text", 5, False)),
        (ValueError, "no such log or tid", lambda: make_rewriter().add_track(b"1", b"1", 1, 10**10, 0)),
        (ValueError, "no such log or place", lambda: make_rewriter().append(b"{}", 0, ord("X"), 1, 2, 0)),
        (OverflowError, "knot", lambda: make_rewriter().begin(0, -1, 2**62, 0, True, 0, b"", ((5, 0), (5, 1)))),
        (ValueError, "finished", lambda: finished.append(b"{}")),
        (ValueError, "finished", lambda: finished.finish(lambda log, lane: 0)),
        (ValueError, "no input", lambda: compiled.Rewriter.__new__(compiled.Rewriter).rewrite(SLICE, 0, True)),
    ]
    for error, message, call in refused:
        with pytest.raises(error, match=message):
            call()
    assert never_made.lay(b"text", 0) == b"text"


@needs_core
def test_rewriter_keeps_nothing_of_a_text() -> None:
    text = SLICE + b"," + FLOW
    before = sys.getrefcount(text)
    rewriter = make_rewriter()
    for _ in range(3):
        rewritten(rewriter, text)
        rewriter.append(b"")
        rewritten(rewriter, b"," + text.replace(b"5", b"9"))
        rewriter.append(b"")
    assert sys.getrefcount(text) == before


@needs_core
@pytest.mark.parametrize("indent", [None, 2])
def test_usual_events_are_rewritten_in_the_core(tmp_path: Path, indent: int | None) -> None:
    events: list[dict[str, Any]] = [
        {"ph": "X", "name": "a", "pid": 50, "tid": 7 + n % 2, "ts": 1000.5 * n, "dur": 500, "args": {"correlation": n}}
        for n in range(200)
    ]
    events += [{"ph": "s", "name": "b", "cat": "c", "id": n, "pid": 50, "tid": 7, "ts": 1000 * n} for n in range(50)]
    events += [{"ph": "C", "name": "c", "pid": 50, "tid": 7, "ts": 5000 + n, "args": {"x": n}} for n in range(50)]
    paths = [tmp_path / f"rank{number}.json" for number in range(2)]
    for path in paths:
        path.write_text(json.dumps(events, indent=indent))
    with small_pieces(), mock.patch.object(EventRewriter, "take", autospec=True) as take:
        found = merged(paths, tmp_path / "merged.json")
    assert isinstance(found, tuple)
    assert take.call_count == 0
