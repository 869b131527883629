"""The compiled core: who chooses it, what it takes, what it gives back."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from tests.both_cores import MANY_IDS, merged, small_pieces
from tracekit import core
from tracekit.merge.plain import TextPatcher
from tracekit.merge.scan import _Scanner

if TYPE_CHECKING:
    from pathlib import Path

needs_core = pytest.mark.core

SLICE = (
    b'{"ph":"X","name":"a","pid":5,"tid":6,"ts":1.500,"dur":0.250,"args":{"correlation":3,"x":[{"External id": 4}]}}'
)
FLOW = b'{"ph":"s","name":"a","cat":"c","id":7,"pid":5,"tid":6,"ts":2.000}'
PLACES = [(b"5", b"6", 1001, 8, -1)]


def load_anew(code: str, **environment: str) -> list[str]:
    """Return what a new process prints that imports the core."""
    program = f"import logging, sys; logging.basicConfig(level=logging.DEBUG, stream=sys.stdout); {code}"
    program += "; from tracekit import core; print(core.merge is None)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_variable_forces_pure_python() -> None:
    line, pure = load_anew("pass", TRACEKIT_PURE_PYTHON="1")
    assert line == "DEBUG:tracekit.core:pure Python, as TRACEKIT_PURE_PYTHON says"
    assert pure == "True"


def test_without_the_extension_it_is_pure_python_and_one_line_of_the_log_says_so() -> None:
    modules = ("sys.modules['tracekit.core._merge']", "sys.modules['tracekit.core._record']")
    line, pure = load_anew(" = ".join((*modules, "None")))
    assert line.startswith("DEBUG:tracekit.core:pure Python: ")
    assert pure == "True"
    line, pure = load_anew(f"{modules[0]} = None")
    assert line.startswith("DEBUG:tracekit.core:pure Python")
    assert "_merge" in line
    assert pure == "True"


@needs_core
def test_the_log_says_that_the_core_is_used() -> None:
    line, pure = load_anew("pass", TRACEKIT_PURE_PYTHON="0")
    assert line.startswith("DEBUG:tracekit.core:compiled core: ")
    assert pure == "False"


def make_scanner() -> Any:
    assert core.merge is not None
    return core.merge.Scanner((b'"nccl',), 10**18)


def make_patcher(shift_ns: int = 0, least_ns: int = 0, offset: int = 0, *, arg_ids: bool = False) -> Any:
    assert core.merge is not None
    patcher = core.merge.Patcher(shift_ns, least_ns, 2**62, offset, arg_ids)
    for place in PLACES:
        patcher.add_place(*place)
    return patcher


@needs_core
def test_what_a_scan_tells() -> None:
    named = SLICE.replace(b'"a"', b'"ncclKernel"').replace(b":6,", b":60,")
    metadata = b'{"ph":"M","name":"process_name","pid":5,"args":{"name":"x"}}'
    text = b" , ".join([SLICE, FLOW, named])
    found = make_scanner().scan(text)
    one = array("q", [1500]).tobytes(), array("q", [-1750]).tobytes()
    assert found == (
        {"X": 2, "s": 1}, 5000, 1500, 2000, None,
        [(0, len(SLICE), 0), (text.index(named), len(text), 1)], [(0, *one), (1, *one)], [(text.index(named), len(text))], [],
    )  # fmt: skip
    text += b",\n" + metadata
    counts, checksum, *_, spans = make_scanner().scan(text)
    assert (counts["M"], checksum, spans) == (1, 5000, [(text.index(metadata), len(text))])


@needs_core
def test_a_track_is_told_once_and_again_if_its_run_was_given_back() -> None:
    scanner = make_scanner()
    assert scanner.scan(SLICE + b"," + FLOW + b"}") is None
    assert scanner.scan(SLICE)[5] == [(0, len(SLICE), 0)]
    assert scanner.scan(SLICE)[5] == []


@needs_core
def test_epoch_times_are_told_apart() -> None:
    late = SLICE.replace(b"1.500", b"1712345678000000.125")
    assert make_scanner().scan(SLICE + b"," + late)[2:5] == (1500, 1712345678000000125, 1712345678000000125)


NOT_TAKEN = {
    "empty": b"",
    "no object": b"5",
    "cut": SLICE[:-1],
    "two events without a comma": SLICE + SLICE,
    "a comma at the end": SLICE + b",",
    "an unknown key": SLICE.replace(b'"args"', b'"other"'),
    "a key that stands twice": SLICE.replace(b'"name"', b'"pid"'),
    "a key with an escape": SLICE.replace(b'"ts"', b'"t\\u0073"'),
    "no phase": SLICE.replace(b'"ph":"X",', b""),
    "a long phase": SLICE.replace(b'"X"', b'"XX"'),
    "a slice of B and E": SLICE.replace(b'"X"', b'"B"'),
    "no duration": SLICE.replace(b'"dur"', b'"tts"'),
    "no time": SLICE.replace(b'"ts"', b'"tts"'),
    "no pid": SLICE.replace(b'"pid"', b'"tts"'),
    "a duration below 0": SLICE.replace(b"0.250", b"-1.000"),
    "a duration of four decimals": SLICE.replace(b"0.250", b"0.2505"),
    "a time as text": SLICE.replace(b"1.500", b'"1.500"'),
    "a time with an exponent": SLICE.replace(b"1.500", b"15e-1"),
    "a time beyond 64 bits": SLICE.replace(b"1.500", b"9223372036854775.808"),
    "an end beyond 64 bits": SLICE.replace(b"1.500", b"9223372036854775.807"),
    "a leading zero": SLICE.replace(b"1.500", b"01.500"),
    "a pid with decimals": SLICE.replace(b'"pid":5', b'"pid":5.0'),
    "a pid with an escape": SLICE.replace(b'"pid":5', b'"pid":"\\u0035"'),
    "a control character": SLICE.replace(b'"a"', b'"a\n"'),
    "a NUL in a name": SLICE.replace(b'"a"', b'"a\0"'),
    "a NUL behind": SLICE + b"\0",
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
def test_what_is_given_back(text: bytes) -> None:
    scanner = make_scanner()
    assert scanner.scan(text) is None
    # At every place where blocks of 16 bytes can begin, and after it all is well.
    for space in range(1, 18):
        assert scanner.scan(space * b" " + text) is None
    assert scanner.scan(SLICE) is not None
    # And where all around it is known, since it stood before.
    usual = b",".join([SLICE] * 9)
    assert scanner.scan(usual) is not None
    assert scanner.scan(b"%b,%b,%b" % (usual, text, usual)) is None
    assert scanner.scan(usual) is not None


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
COUNTS = {
    "X": (1, 0, 0, 0, 0, 0, 0),
    "i": (0, 0, 0, 0, 1, 0, 0),
    "C": (0, 0, 0, 0, 0, 0, 1),
    "s": (0, 1, 0, 0, 0, 0, 0),
}


def phase_of(text: bytes) -> str:
    return chr(text.split(b'"ph"')[1].lstrip(b' :"\n')[0])


@needs_core
@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("then", LAYOUTS)
def test_what_stood_before_changes_nothing(first: str, then: str) -> None:
    """What is kept of one event to read the next one faster."""
    behind = b" " * 200  # with less behind it, blocks are not compared
    before, text = b",".join([LAYOUTS[first]] * 3) + behind, LAYOUTS[then] + behind
    scanner, fresh = make_scanner(), make_scanner()
    scanner.scan(before)
    fresh.scan(SLICE)
    scanner.scan(SLICE)
    assert scanner.scan(text) == fresh.scan(text)
    counts, checksum = COUNTS[phase_of(text)], 2000 if then == "an arrow" else 1500
    for shift_ns, offset in ((0, 0), (1_000_000, 10**10)):
        patcher, fresh = (make_patcher(shift_ns, offset=offset, arg_ids=offset > 0) for _ in range(2))
        patcher.patch(before, tuple(3 * count for count in COUNTS[phase_of(before)]), 3 * checksum)
        assert patcher.patch(text, counts, checksum) == fresh.patch(text, counts, checksum)


@needs_core
def test_what_a_patch_changes() -> None:
    text = b",\n".join([SLICE, FLOW])
    found = make_patcher(10**9 + 1, 0, 10**10, arg_ids=True).patch(text, (1, 1, 0, 0, 0, 0, 0), 3500)
    wanted = text.replace(b'"pid":5,"tid":6', b'"pid":1001,"tid":8').replace(b"1.500", b"1000001.500", 1)
    wanted = wanted.replace(b"1000001.500", b"1000001.501").replace(b"2.000", b"1000002.001")
    wanted = wanted.replace(b'"correlation":3', b'"correlation":10000000003').replace(b'id": 4', b'id": 10000000004')
    assert found == wanted.replace(b'"id":7', b'"id":10000000007')
    assert make_patcher().patch(text, (1, 1, 0, 0, 0, 0, 0), 3500) == text.replace(b'5,"tid":6', b'1001,"tid":8')


NOT_PATCHED = {
    "another checksum": (SLICE, 1501),
    "pid in a text": (SLICE.replace(b'"a"', b'"pid"'), 1500),
    "pid at the end of a key": (SLICE.replace(b'"x"', b'"xpid"'), 1500),
    "another order": (SLICE.replace(b'"pid":5,"tid":6', b'"tid":6,"pid":5'), 1500),
    "a key between": (SLICE.replace(b'"tid"', b'"tts":1,"tid"'), 1500),
    "a time below 0": (SLICE.replace(b"1.500", b"-0.000"), 0),
    "a time before the first": (SLICE.replace(b"1.500", b"0.001"), 1),
    "another phase": (SLICE.replace(b'"X"', b'"i"'), 1500),
    "too far from pid to tid": (SLICE.replace(b',"tid"', b"," + 96 * b" " + b'"tid"'), 1500),
    "too many ids": (SLICE.replace(b'"a"', MANY_IDS.encode()), 1500),
}


@needs_core
@pytest.mark.parametrize(("text", "checksum"), NOT_PATCHED.values(), ids=NOT_PATCHED)
def test_what_is_not_patched(text: bytes, checksum: int) -> None:
    patcher = make_patcher(least_ns=2 if b"0.001" in text else 0, offset=5, arg_ids=True)
    assert patcher.patch(text, (1, 0, 0, 0, 0, 0, 0), checksum) is None
    assert patcher.patch(SLICE, (1, 0, 0, 0, 0, 0, 0), 1500) is not None or b"0.001" in text


@needs_core
def test_a_place_that_is_not_known_is_asked_for() -> None:
    patcher = make_patcher()
    text = SLICE.replace(b'"pid":5', b'"pid":"Spans"')
    for _ in range(2):
        assert patcher.patch(text, (1, 0, 0, 0, 0, 0, 0), 1500) == (b'"Spans"', b"6")
    patcher.add_place(b'"Spans"', b"6", 2**32 - 1, 2**64 - 1, 0)
    assert b'"pid":4294967295,"tid":18446744073709551615,' in patcher.patch(text, (1, 0, 0, 0, 0, 0, 0), 1500)
    assert patcher.lane_counts() == [1]


@needs_core
def test_arguments_are_checked() -> None:
    compiled: Any = core.merge
    with pytest.raises(TypeError):
        make_scanner().scan("text")
    with pytest.raises(TypeError):
        compiled.Scanner([b"no tuple"], 0)
    with pytest.raises(ValueError, match="2 to 32 bytes"):
        compiled.Scanner((b"x",), 0)
    with pytest.raises(ValueError, match="too many words"):
        compiled.Scanner((b"ab",) * 17, 0)
    with pytest.raises(OverflowError):
        compiled.Patcher(2**63, 0, 0, 0, False)
    with pytest.raises(OverflowError, match="63 bits"):
        compiled.Patcher(0, 0, 0, 2**63, False)
    with pytest.raises(ValueError, match="one length"):
        compiled.sort_rows(bytes(8), bytes(16), 0)
    with pytest.raises(ValueError, match="64-bit"):
        compiled.nest(bytes(7), bytes(7), b"")
    with pytest.raises(ValueError, match="at least one window"):
        compiled.nest_merged([], b"")
    with pytest.raises(ValueError, match="no row at its place"):
        compiled.nest_merged([(bytes(8), bytes(8), 1)], b"")
    with pytest.raises(TypeError, match="a window is a tuple"):
        compiled.nest_merged([5], b"")


@needs_core
def test_nothing_is_kept_of_a_text() -> None:
    text = SLICE + b"," + FLOW
    before = sys.getrefcount(text)
    scanner, patcher = make_scanner(), make_patcher()
    for _ in range(3):
        scanner.scan(text)
        patcher.patch(text, (1, 1, 0, 0, 0, 0, 0), 3500)
        patcher.patch(text.replace(b"5", b"9"), (1, 1, 0, 0, 0, 0, 0), 3500)
    assert sys.getrefcount(text) == before


@needs_core
@pytest.mark.parametrize("indent", [None, 2])
def test_usual_runs_take_the_short_way(tmp_path: Path, indent: int | None) -> None:
    events: list[dict[str, Any]] = [
        {"ph": "X", "name": "a", "pid": 50, "tid": 7 + n % 2, "ts": 1000.5 * n, "dur": 500, "args": {"correlation": n}}
        for n in range(200)
    ]
    events += [{"ph": "s", "name": "b", "id": n, "pid": 50, "tid": 7, "ts": 1000 * n} for n in range(50)]
    events += [{"ph": "C", "name": "c", "pid": 50, "tid": 7, "ts": 5000 + n, "args": {"x": n}} for n in range(50)]
    paths = [tmp_path / f"rank{number}.json" for number in range(2)]
    for path in paths:
        path.write_text(json.dumps(events, indent=indent))
    with (
        small_pieces(),
        mock.patch.object(_Scanner, "take", autospec=True, side_effect=_Scanner.take) as take,
        mock.patch.object(
            TextPatcher, "_patch_columns", autospec=True, side_effect=TextPatcher._patch_columns
        ) as columns,
    ):
        found = merged(paths, tmp_path / "merged.json")
    assert isinstance(found, tuple)
    # Of each file the last event, before the closing bracket, is read alone.
    assert [len(call.args[1]) for call in take.call_args_list] == [1, 1]
    assert columns.call_count == 0


ODD = {
    "two spellings of one track": """[
{"ph":"X","pid":1,"tid":-0,"ts":10.000,"dur":5.000,"name":"a"},
{"ph":"X","pid":1,"tid":0,"ts":10.000,"dur":4.000,"name":"b"},
{"ph":"X","pid":1,"tid":-0,"ts":12.000,"dur":10.000,"name":"c"},
{"ph":"X","pid":1,"tid":0,"ts":13.000,"dur":1.000,"name":"d"}
]""",
    "a name on several lines": """[
{"ph":"X","pid":1,"tid":2,"ts":1.0,"dur":1,"name":[1,\n2,\n3]},
{"ph":"X","pid":1,"tid":2,"ts":3.0,"dur":1,"name":"ncclKernel_AllReduce","args":{"a":1}},
{"ph":"X","pid":1,"tid":2,"ts":5.0,"dur":1,"name":"b"}
]""",
    "more decimals than a Decimal's arithmetic keeps": """[
{"ph":"X","pid":1,"tid":2,"ts":5.00049999999999999999999999999999999999,"dur":1,"name":"a"},
{"ph":"X","pid":1,"tid":2,"ts":6.000,"dur":1,"name":"b"},
{"ph":"X","pid":1,"tid":2,"ts":8.000,"dur":1,"name":"c"}
]""",
    "hundreds of tracks": "[\n"
    + ",\n".join(f'{{"ph":"X","pid":1,"tid":{n},"ts":{n}.000,"dur":1.000,"name":"a"}}' for n in range(300))
    + "\n]",
}


@needs_core
@pytest.mark.parametrize("case", ODD)
def test_both_write_the_same_of_what_is_rare(tmp_path: Path, case: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(ODD[case])
    compiled = merged([path], tmp_path / "merged.json")
    with mock.patch.object(core, "merge", None):
        assert merged([path], tmp_path / "merged.json") == compiled
    assert isinstance(compiled, tuple)


@needs_core
def test_a_patcher_that_was_never_made_gives_everything_back() -> None:
    compiled: Any = core.merge
    patcher = compiled.Patcher.__new__(compiled.Patcher)
    patcher.add_place(b"5", b"6", 1, 1, -1)
    assert patcher.patch(SLICE, (1, 0, 0, 0, 0, 0, 0), 1500) is None
