"""Recovery, held to every prefix: exactly the events that are complete in it, as the bytes they are, in a trace that is whole."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bad_traces import METADATA, begin, counter, end, event
from tracekit import TraceFormatError, recover_trace, validate_trace
from tracekit.formats.json.salvage import SalvageReader
from tracekit.traces.inputs import recovered_copies

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVENTS = [
    event(ph="M", name="tracekit_metadata", args=METADATA),
    event(ph="M", name="thread_name", args={"name": 'a "quoted" \\ thread'}),
    begin(1.5, "stép", cat="loop"),
    b'{ "ph": "X", "ts":2,\n"dur" : 0.25, "pid":1,"tid":1, "name":"br{ace\\"d [", "args": {"n": [[1, {"ph": 0}], "],", {}]}}',
    '{"ph":"X","pid":1,"ts":3.50,"tid":1,"dur":1e0,"name":"名 😀","args":{"x":1e-7,"z":12345678901234567890}}'.encode(),
    counter('{"train":-1.5}'),
    end(9, "stép", cat="loop"),
    event(ph="i", ts=9.125, s="t", name="saw"),
]
ARRAY = b"[\n" + b",\n".join(EVENTS) + b"\n]\n"
HEAD = b'{\n"schemaVersion": 1,\n"deviceProperties": [{"id": 0, "name": "a, \\"b\\": [GPU]"}],\n"traceEvents": [\n'
TAIL = b'\n],\n"displayTimeUnit": "ms", "baseTimeNanoseconds": 1790857026000000000\n}\n'
OBJECT = HEAD + b",\n".join(EVENTS[1:]) + TAIL
FORMS = {"array": ARRAY, "object": OBJECT}
DAMAGES = [b"", b"\0\0\0", b"\0" * 300, b"\n[\n", b'{"ph":"X","name":"fo']
SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of small files need not reach the disk."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def ends(form: str) -> list[tuple[bytes, int]]:
    """Return the events of the trace, each with the place where it ends."""
    found, at = [], 0
    for one in EVENTS if form == "array" else EVENTS[1:]:
        at = FORMS[form].index(one, at) + len(one)
        found.append((one, at))
    return found


def complete(form: str, length: int) -> list[bytes]:
    """Return the events that end within the first bytes of the trace."""
    return [one for one, end in ends(form) if end <= length]


def read(path: Path) -> tuple[list[bytes], SalvageReader]:
    with SalvageReader(str(path)) as reader:
        return [raw.text for run in reader.raw_runs() for raw in run], reader


def check(path: Path, expected: list[bytes], form: str, *, whole: bool) -> None:
    """Recover a file, and hold the result to everything that is promised."""
    before = path.read_bytes()
    output = path.with_name("out.json")
    output.unlink(missing_ok=True)
    if not expected:
        with pytest.raises(TraceFormatError, match="nothing can be recovered"):
            recover_trace(path, output)
        assert not output.exists()
        return
    report = recover_trace(path, output)
    assert path.read_bytes() == before
    assert (report.events, report.form, report.whole) == (len(expected), form, whole)
    assert (report.lost_parts, report.complete) == (0, True)
    if whole:
        assert not output.exists()
        return
    found, _ = read(output)
    if form == "array":
        assert found.pop().startswith(b'{"ph":"M","name":"tracekit_summary"')
    assert found == expected
    validation = validate_trace(str(output))
    assert (validation.errors, validation.not_checked) == (0, None)
    assert recover_trace(output).whole
    names = [json.loads(one)["name"] for one in expected]
    is_open = "stép" in names and names.count("stép") == 1
    assert [slice_.name for slice_ in report.open_slices] == (["stép"] if is_open else [])


@pytest.mark.parametrize("form", FORMS)
def test_every_prefix_gives_exactly_its_complete_events(tmp_path: Path, form: str) -> None:
    data, path = FORMS[form], tmp_path / "t.json"
    closed = len(data.rstrip())  # only white space may follow the closed trace
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        found, reader = read(path)
        assert found == complete(form, length), length
        assert reader.lost_parts == 0, length
        assert set(reader.repair_counts) <= {"trailing_comma"}, length
        assert not reader.repair_counts or (found and length < closed), length
        assert reader.closed == (length >= closed), length


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@SAME_FOLDER
@given(share=st.floats(0, 1))
def test_a_prefix_is_recovered_to_a_whole_trace_of_its_events(
    tmp_path: Path, form: str, packed: bool, share: float
) -> None:
    data, path = FORMS[form], tmp_path / "t.json"
    file = gzip.compress(data, mtime=0) if packed else data
    cut = file[: round(share * len(file))]
    text = unpacked(cut) if packed else cut
    path.write_bytes(cut)
    check(path, complete(form, len(text)), form, whole=cut == file if packed else len(text) >= len(data.rstrip()))


def unpacked(cut: bytes) -> bytes:
    """Return the bytes that zlib unpacks from a cut gzip file of several members."""
    text = b""
    while cut:
        inflater = zlib.decompressobj(31)
        text += inflater.decompress(cut) + inflater.flush()
        cut = inflater.unused_data
    return text


@pytest.mark.parametrize("form", FORMS)
def test_every_prefix_of_a_gzip_file_of_several_members_gives_its_complete_events(tmp_path: Path, form: str) -> None:
    data, path = FORMS[form], tmp_path / "t.json.gz"
    third = len(data) // 3
    members = [data[:third], data[third : 2 * third], data[2 * third :]]
    packed = b"".join(gzip.compress(member, mtime=0) for member in members)
    for length in range(len(packed) + 1):
        path.write_bytes(packed[:length])
        found, reader = read(path)
        assert found == complete(form, len(unpacked(packed[:length]))), length
        assert reader.lost_parts == 0, length


def pieces(reader: SalvageReader, size: int) -> None:
    """Make the reader get its file in small pieces, as it would a large one."""
    stream = reader._stream
    whole = stream.read()
    parts: Iterator[bytes] = iter([whole[at : at + size] for at in range(0, len(whole), size)])
    stream.read = lambda: next(parts, b"")  # type: ignore[method-assign]


@SAME_FOLDER
@given(
    size=st.integers(1, 200),
    form=st.sampled_from(["array", "object"]),
    at=st.integers(0, len(OBJECT)),
    damage=st.sampled_from([*DAMAGES, b"garbage", b"}", b'"', b"]"]),
)
def test_where_the_pieces_of_a_file_end_makes_no_difference(
    tmp_path: Path, size: int, form: str, at: int, damage: bytes
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(FORMS[form][:at] + damage + FORMS[form][at:])
    expected, whole = read(path)
    with SalvageReader(str(path)) as reader:
        pieces(reader, size)
        assert [raw.text for run in reader.raw_runs() for raw in run] == expected
    for name in ("losses", "tail", "repair_counts", "closed", "keys", "form", "lost_events"):
        assert getattr(reader, name) == getattr(whole, name)


@SAME_FOLDER
@given(
    form=st.sampled_from(["array", "object"]),
    at=st.integers(0, len(OBJECT)),
    hole=st.integers(0, 400),
    damage=st.sampled_from([*DAMAGES, b"\nkilled\n", b"\xff\xfe"]),
)
def test_damage_in_the_middle_costs_only_the_events_it_touches(
    tmp_path: Path, form: str, at: int, hole: int, damage: bytes
) -> None:
    data, path, output = FORMS[form], tmp_path / "t.json", tmp_path / "out.json"
    start = len(HEAD) if form == "object" else data.index(EVENTS[0]) + len(EVENTS[0])
    stop = ends(form)[-1][1]
    at = start + at % (stop - start)
    behind = min(at + hole, stop)
    path.write_bytes(data[:at] + damage + data[behind:])
    untouched = [one for one, end in ends(form) if end <= at or end - len(one) >= behind]
    found, reader = read(path)
    # Two halves may form one event. The object form also repairs quotes.
    assert [one for one in found if one in untouched] == untouched
    assert len(found) <= len(untouched) + 1 + (b"[" in damage)
    if form == "object":
        assert reader.keys["baseTimeNanoseconds"] == b"1790857026000000000"
    output.unlink(missing_ok=True)
    report = recover_trace(path, output)
    if not report.whole:
        json.loads(output.read_bytes())
        assert recover_trace(output).whole


@SAME_FOLDER
@given(
    data=st.binary(max_size=300) | st.text('[]{}",:\\\n\0pht1 ', max_size=300).map(str.encode),
    start=st.sampled_from(["", "[", '{"traceEvents":[', "\x1f"]),
)
def test_any_bytes_end_in_a_report_or_in_the_error_of_the_format(tmp_path: Path, data: bytes, start: str) -> None:
    path, output = tmp_path / "t.json", tmp_path / "out.json"
    output.unlink(missing_ok=True)
    path.write_bytes(start.encode() + data)
    whole = True
    with contextlib.suppress(TraceFormatError):
        report = recover_trace(path, output)
        whole = report.whole
        assert report.lines()
    assert whole != output.exists()


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("a.json", "a"),
        ("a.json.gz", "a"),
        ("b/.json", "b/.json"),
        ("a.json.tmp", "a"),
        ("a.json.zst", "a"),
        ("x", "x"),
        ("s3://b/a.json.gz?versionId=1", "s3://b/a"),
    ],
)
def test_the_name_of_the_output_keeps_that_of_the_input(name: str, bare: str) -> None:
    assert recovered_copies(name) == (f"{bare}.recovered.json", f"{bare}.recovered.json.gz")
