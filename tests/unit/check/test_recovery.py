"""Recovery of one trace: what is kept of every cut and damage, what is said, and that nothing else is touched."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
import sys
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bad_traces import METADATA, array, begin, counter, end, event, object_, rank_trace, slice_
from tracekit import ConfigError, RecoveryReport, StorageError, TraceFormatError, recover_trace, validate_trace
from tracekit.check.recovery import engine
from tracekit.check.schemas import TRACE_EVENT, compile_schema
from tracekit.formats.byte_stream import BytesStream
from tracekit.formats.json.salvage import SalvageReader
from tracekit.traces.inputs import ANONYMOUS, copy_name, recovered_copies

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


A, B, C = slice_(1, 1, "a"), slice_(10, 1, "b"), slice_(20, 1, "c")


def recover(folder: Path, data: bytes, **options: Any) -> tuple[RecoveryReport, Any]:
    """Recover a file of these bytes; return the report and the events or the object of the result."""
    path, output = folder / "t.json", folder / "out.json"
    path.write_bytes(data)
    report = recover_trace(path, output, overwrite=True, **options)
    return report, None if report.whole else json.loads(output.read_bytes())


def names(events: Any) -> list[str]:
    return [one["name"] for one in (events["traceEvents"] if isinstance(events, dict) else events)]


def slices(events: Any) -> list[str]:
    return [one["name"] for one in events if one["ph"] == "X"]


@pytest.mark.parametrize(
    ("data", "found", "lost", "tail"),
    [
        (array(A, B)[:-3] + b",\n" + b"\0" * 5000, "ab", [], 5000),
        (array(A, B) + b"\0" * 50, "ab", [], 50),
        (array(A, B)[:-10], "a", [], len(B) - 7),
        (b"[\n" + A + b",\n" + b"\0" * 400_000 + B + b"\n]", "ab", [(len(A) + 4, 400_000, 0)], 0),
        (b"[\n" + A + b",\n" + B[:30] + b"\n" + C + b"\n]", "ac", [(len(A) + 4, 31, 1)], 0),
        (b"[\n" + A + b",\n" + B[:30] + C + b"\n]", "ac", [(len(A) + 4, 30, 1)], 0),
        (b"[\n" + A + b",\nOut of memory\n" + C + b"\n]", "ac", [(len(A) + 4, 14, 0)], 0),
        (b"[\n" + A + b',\n{"ph":"X","args":{"l":[1,\n' + B + b",\n" + C + b"\n]", "abc", [(len(A) + 4, 26, 1)], 0),
        (b"[\n" + A + b",\n[\n" + B + b"\n]", "ab", [], 0),
        (array(A) + array(B, C), "abc", [], 0),
        (object_(A) + object_(B, C), "abc", [], 0),
        (A + b"\n" + B + b"\n" + C, "abc", [], 0),
        (b"\0" * 10 + A[1:] + b",\n" + B + b"\n]", "b", [(0, len(A) + 11, 1)], 0),
        (object_(A, B)[:-2], "ab", [], 0),
        (object_(A, B)[:-30], "a", [], len(B) - 26),
    ],
    ids=[
        "NUL tail", "NUL after the end", "cut in an event", "NUL in the middle", "torn at a line", "torn within a line",
        "a message of another program", "torn in a list", "second header", "two arrays", "two objects", "lines without a list",
        "head lost", "object not closed", "object cut in an event",
    ],
)  # fmt: skip
def test_every_kind_of_damage_leaves_what_can_be_read_and_says_the_rest(
    tmp_path: Path, data: bytes, found: str, lost: list[tuple[int, int, int]], tail: int
) -> None:
    report, events = recover(tmp_path, data)
    assert names(events) == list(found)
    assert report.events == len(found)
    assert [(loss.offset_bytes, loss.length_bytes, loss.events) for loss in report.losses] == lost
    assert (report.tail.length_bytes if report.tail else 0) == tail
    assert (report.complete, report.whole) == (not lost, False)
    assert validate_trace(str(tmp_path / "out.json")).counts == {}
    assert recover_trace(tmp_path / "out.json").whole


@pytest.mark.parametrize(
    ("data", "found", "lost", "repairs"),
    [
        (array(A, B[: B.index(b'"ts"')] + C[C.index(b'"tid"') :]), ["a"], 1, {}),
        (array(A, b'{"name":"no phase"}', slice_(1, 1, "f")[:-1] + b',"ph":"X"}')[:-3], ["a", "no phase"], 1, {}),
        (array(A, slice_(2, 1, "@").replace(b"@", b'a "ph" b')), ["a", 'a "ph" b'], 0, {"unescaped_quote": 2}),
        (array(A, slice_(5, 1, "@").replace(b"@", b'std::"x"')), ["a", 'std::"x"'], 0, {"unescaped_quote": 2}),
        (array(A, slice_(6, 1, "😀")), ["a", "😀"], 0, {"surrogate_escape": 1}),
        (array(A, counter('{"v":NaN}')), ["a", "loss"], 0, {"not_finite": 1}),
        (array(A, B.replace(b'"b"', b'"b\0b"'), C), ["a", "b\0b", "c"], 0, {"control_character": 1}),
        (array(A, B.replace(b'"b"', b'"b\0\0b"'), C), ["a", "c"], 1, {}),
    ],
    ids=[
        "halves of two events", "two phases", "the key of a phase in a text", "quotes", "surrogates", "NaN",
        "a zero in a text", "a hole in a text",
    ],
)  # fmt: skip
def test_what_a_strict_parser_refuses_is_repaired_or_lost(
    tmp_path: Path, data: bytes, found: list[str], lost: int, repairs: dict[str, int]
) -> None:
    report, events = recover(tmp_path, data)
    assert names(events) == found
    assert report.lost_parts + (report.tail is not None) == lost
    assert report.repairs == repairs
    assert ("quotes that are not escaped" in "\n".join(report.lines())) == ("unescaped_quote" in repairs)


def test_members_of_gzip_after_a_damaged_or_torn_one_are_found(tmp_path: Path) -> None:
    first, second, third = (gzip.compress(text, mtime=0) for text in (b"[\n" + A + b",\n", B + b",\n", C + b"\n]\n"))
    report, events = recover(tmp_path, first + second[:20] + third)
    assert (names(events), report.complete) == (["a", "c"], False)
    assert f"reading goes on at byte {len(first) + 20}" in report.damages[0]
    damaged = second[:15] + bytes([second[15] ^ 0xFF]) + second[16:]
    report, events = recover(tmp_path, first + damaged + third)
    assert (names(events)[0], names(events)[-1], report.complete) == ("a", "c", False)
    report, events = recover(tmp_path, first + second + third[:-4])
    assert (names(events), report.damages, report.complete) == (["a", "b", "c"], ("the gzip data is cut off",), True)


def test_everything_that_was_unpacked_before_the_damage_counts(tmp_path: Path) -> None:
    lines = [slice_(number, 0.5, f"event {number}") for number in range(20_000)]
    packed = gzip.compress(array(*lines), mtime=0)
    cut = packed[: len(packed) // 2]
    text = zlib.decompressobj(31).decompress(cut)
    report, events = recover(tmp_path, cut[:-1] + b"\xff" * 300)
    assert len(events) in range(text.count(b"\n") - 3, text.count(b"\n") + 3)
    assert report.damages


def test_a_rank_trace_ends_with_a_summary_of_the_recovery_that_fits_the_schema(tmp_path: Path) -> None:
    data = rank_trace(
        begin(5, "step"), A, B[:20] + b"\n" + C, counter('{"a":1}'), event(ph="i", ts=30, s="t", name="i"), A
    )
    report, events = recover(tmp_path, data[:-20])
    *_, last = events
    assert events[0]["name"] == "tracekit_metadata"
    assert compile_schema(TRACE_EVENT)(last) is None
    assert (last["ph"], last["name"], last["pid"]) == ("M", "tracekit_summary", 1)
    args = last["args"]
    assert (args["slices"], args["instants"], args["counters"]) == (3, 1, 1)
    assert list(args["dropped"].values()) == [2]
    recovered = args["recovered"]
    assert recovered["lost_parts"] == 1
    assert report.tail is not None
    assert recovered["tail_bytes"] == report.tail.length_bytes
    assert recovered["open_slices"] == ["step"]
    assert validate_trace(str(tmp_path / "out.json")).counts == {"unclosed-begin": 1}


def test_a_header_that_was_written_twice_stands_once_in_the_result(tmp_path: Path) -> None:
    report, events = recover(tmp_path, rank_trace(A)[:-3] + b",\n" + rank_trace(B))
    assert slices(events) == ["a", "b"]
    assert names(events).count("tracekit_metadata") == 1
    assert (report.complete, report.repairs["second_header"]) == (True, 2)


@pytest.mark.parametrize("third", [b"", rank_trace(C)], ids=["at the end", "and the first goes on"])
def test_another_recording_in_the_file_is_told_with_its_place_and_not_mixed_in(tmp_path: Path, third: bytes) -> None:
    first, second = rank_trace(A), rank_trace(B, C, baseTimeNanoseconds=METADATA["baseTimeNanoseconds"] + 1000)
    report, events = recover(tmp_path, first + second + third)
    assert slices(events) == ["a"]
    assert names(events).count("tracekit_metadata") == 1
    at = len(first) + second.index(b"{")
    assert report.losses[0].offset_bytes == at
    assert report.lost_events == (second + third).count(b'"ph"')
    assert f"tail -c +{at + 1}" in report.damages[0]
    assert not report.complete


def test_the_object_form_keeps_its_keys_before_and_after_the_events(tmp_path: Path) -> None:
    head = b'{"schemaVersion": 1.50, "deviceProperties": [{"id": 0}], "traceEvents": '
    tail = b', "displayTimeUnit": "ms", "baseTimeNanoseconds": 17, "traceName": "cu'
    report, result = recover(tmp_path, head + array(A, B[:40] + b"\n", C).strip() + tail)
    assert names(result.pop("traceEvents")) == ["a", "c"]
    kept = {"schemaVersion": 1.5, "deviceProperties": [{"id": 0}], "displayTimeUnit": "ms", "baseTimeNanoseconds": 17}
    assert result == kept
    assert b'"schemaVersion": 1.50,' in (tmp_path / "out.json").read_bytes()
    assert report.tail is not None
    assert report.tail.begins == '"traceName": "cu'
    _, result = recover(tmp_path, b'{"traceEvents":' + array(A) + b',"baseTimeNanoseconds":179085')
    assert set(result) == {"traceEvents"}, "a number that may be cut is none"


def test_keys_with_quotes_that_are_not_escaped_keep_the_rest_of_their_values(tmp_path: Path) -> None:
    head = b'{"schemaVersion": 1,\n"distributedInfo" :  {"backend": "a"b", "rank": 3},\n"traceName": "x"y",\n"traceEvents": ['
    report, document = recover(tmp_path, head + A + b"]}")
    assert (names(document), report.complete, report.repairs) == (["a"], True, {"unescaped_quote": 2})
    assert (document["distributedInfo"], document["traceName"]) == ({"backend": 'a"b', "rank": 3}, 'x"y')


def test_a_torn_event_of_a_rank_trace_is_not_taken_for_one_with_a_wrong_quote(tmp_path: Path) -> None:
    torn = b'{"ph":"X","name":"fo' + b'bar","pid":1,"tid":1,"ts":5,"dur":1,"args":{"x":"y"z"}}'
    _, events = recover(tmp_path, rank_trace(A, torn, B))
    assert slices(events) == ["a", "b"]


def test_the_bytes_before_the_damage_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = b'{"x": 1, "traceEvents" :[ ' + A + b" ,\t" + B + b'], "y":2, "traceEvents":[' + C
    assert recover(tmp_path, sound + b"]}")[0].whole
    monkeypatch.setattr(SalvageReader, "max_run_bytes", 10)
    report, events = recover(tmp_path, sound + b",\n" + B[:30] + b"\n" + A + b'], "z": 3')
    assert (report.events, events["x"], events["y"]) == (4, 1, 2)
    assert (tmp_path / "out.json").read_bytes().startswith(sound + b",\n" + A)
    (tmp_path / "t.json").write_bytes(sound)
    monkeypatch.setattr(engine, "SalvageStream", lambda path: BytesStream(path, sound[:-1]))
    with pytest.raises(StorageError, match=r"t\.json: changes while it is read"):
        recover_trace(tmp_path / "t.json", tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()


def test_open_slices_are_named_with_their_thread_and_for_how_long(tmp_path: Path) -> None:
    data = array(
        event(ph="M", name="thread_name", args={"name": "MainThread"}),
        begin(1, "epoch"), begin(2, "done"), end(3, "done"), begin(5, "all_réduce"), begin(6, "other", tid=2),
        slice_(7, 3), begin(8, "x", tid=3), end(9, ..., tid=3),
    )  # fmt: skip
    report, events = recover(tmp_path, data[:-3])
    assert [(one.name, one.tid, one.thread, one.open_ns) for one in report.open_slices] == [
        ("epoch", 1, "MainThread", 9000),
        ("all_réduce", 1, "MainThread", 5000),
        ("other", 2, "", 4000),
    ]
    assert not report.closed_slices
    assert [one["ph"] for one in events].count("E") == 2
    assert "  open at the end: all_réduce (MainThread), for 5.000 µs" in report.lines()


def test_a_slice_was_open_until_the_clocks_were_read_last(tmp_path: Path) -> None:
    base_ns, clock = METADATA["baseTimeNanoseconds"], METADATA["clock"]
    hour_ns = 3_600_000_000_000
    start_us = (clock["wall_ns"] - base_ns) // 1000
    # The wall clock was set back meanwhile; the monotonic one counts.
    anchor = {"wall_ns": clock["wall_ns"] - 5, "monotonic_ns": clock["monotonic_ns"] + hour_ns, "error_ns": 1}
    hung = rank_trace(begin(start_us, "all_reduce"), event(ph="M", name="tracekit_clock_anchor", args=anchor))
    report, _ = recover(tmp_path, hung[:-3])
    (found,) = report.open_slices
    assert (found.name, found.open_ns) == ("all_reduce", hour_ns + clock["wall_ns"] % 1000)
    assert "for 3600.000 s" in report.lines()[-1]


@pytest.mark.parametrize(
    "data",
    [b"", b"[", b"[]", b"[1,2]", b"\0" * 99, b'{"a": 1}', b'{"traceEvents":[', A[:-1], gzip.compress(A, mtime=0)[:12]],
)
def test_a_file_without_a_whole_event_is_an_error_and_nothing_is_written(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(TraceFormatError, match=r"t\.json: nothing can be recovered: "):
        recover(tmp_path, data)
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_the_default_output_is_private_and_not_overwritten(tmp_path: Path) -> None:
    path, output = tmp_path / "rank0.json", tmp_path / "rank0.recovered.json"
    path.write_bytes(array(A)[:-3])
    path.chmod(0o640)
    assert recover_trace(path).output == str(output)
    assert output.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StorageError, match="already exists"):
        recover_trace(path)
    assert recover_trace(path, overwrite=True).output


def test_in_place_replaces_the_file_and_keeps_the_broken_one(tmp_path: Path) -> None:
    path, broken = tmp_path / "t.json.gz", tmp_path / "t.json.gz.broken"
    cut = gzip.compress(array(A, B))[:-3]
    path.write_bytes(cut)
    report = recover_trace(path, in_place=True)
    assert (report.output, report.kept_as) == (str(path), str(broken))
    assert gzip.decompress(path.read_bytes()) == array(A, B)
    assert broken.read_bytes() == cut
    assert recover_trace(path, in_place=True).whole
    path.write_bytes(cut)
    with pytest.raises(StorageError, match=r"broken: already exists"):
        recover_trace(path, in_place=True)
    assert path.read_bytes() == cut
    recover_trace(path, in_place=True, overwrite=True)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["t.json.gz", "t.json.gz.broken"]


def test_in_place_writes_no_gzip_under_the_name_of_another_packing(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("t.json", array(A)[:-3])
    with pytest.raises(TraceFormatError, match="packed with zip; recovery in place writes plain files and gzip"):
        recover_trace(tmp_path / "t.zip", in_place=True)
    assert [one.name for one in tmp_path.iterdir()] == ["t.zip"]


def test_in_place_touches_nothing_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(array(A)[:-3])

    def fail(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StorageError, match="No space left"):
        recover_trace(path, in_place=True)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("t.json", array(A)[:-3])]


def test_in_place_touches_nothing_when_the_file_still_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(array(A)[:-3])
    whole_write = engine._Recovery.write

    def write(self: Any, file: Any, *, close: bool) -> None:
        whole_write(self, file, close=close)
        path.write_bytes(array(A, B)[:-3])

    monkeypatch.setattr(engine._Recovery, "write", write)
    with pytest.raises(StorageError, match="changes while it is read"):
        recover_trace(path, in_place=True)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("t.json", array(A, B)[:-3])]


def test_wrong_arguments_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(array(A)[:-3])
    for arguments, options in (
        ([""], {}),
        ([path, tmp_path / "x.json"], {"in_place": True}),
        (["s3://bucket/t.json"], {"in_place": True}),
        ([path, tmp_path / "x.txt"], {}),
        ([path, path], {}),
    ):
        with pytest.raises(ConfigError):
            recover_trace(*arguments, **options)  # type: ignore[arg-type]
    with pytest.raises(StorageError):
        recover_trace(tmp_path / "none.json")
    assert [one.name for one in tmp_path.iterdir()] == ["t.json"]


MEASURE = """
import re, sys
from pathlib import Path
import tracekit.check.recovery

def peak_kib():  # not ru_maxrss, in which Linux counts what the parent had
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

before = peak_kib()
report = tracekit.check.recovery.recover_trace(sys.argv[1])
print(report.events, peak_kib() - before)
"""


def test_an_event_is_not_lost_for_its_size(tmp_path: Path) -> None:
    text = "x" * 15_000_000
    broken = slice_(12, 1, "q", args={"t": text}).replace(b'"q"', b'"a "q" b"')
    data = array(A, slice_(11, 1, "large", args={"t": text}), broken, B)[:-20]
    report, events = recover(tmp_path, data)
    assert names(events) == ["a", "large", 'a "q" b']
    assert (report.lost_parts, report.repairs) == (0, {"unescaped_quote": 2})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["events", "torn in a list", "NUL", "one text", "nested"])
def test_memory_is_bounded_whatever_is_in_fifty_megabytes(tmp_path: Path, kind: str) -> None:
    path, size = tmp_path / "t.json.gz", 50 * 1024 * 1024
    line = slice_(123456, 7.5, "forward", cat="model", args={"epoch": 1, "batch": 17}) + b",\n"
    piece = {"NUL": b"\0" * 4096, "one text": b"x" * 4096, "nested": b'{"ph":[' * 500}.get(kind, line)
    start = {"torn in a list": b'{"ph":"X","args":{"l":[1,\n', "one text": b'{"ph":"X","name":"'}.get(kind, b"")
    with gzip.open(path, "wb", 1) as file:
        file.write(b"[\n" + A + b",\n" + start)
        for _ in range(size // len(piece)):
            file.write(piece)
    measured = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True)
    events, grown_kib = map(int, measured.stdout.split())
    assert events == (size // len(line) + 1 if piece is line else 1)
    # The file and its events decoded would take several hundred MB. An event may have 16 MiB, and is decoded once.
    assert grown_kib < (100 if kind in ("torn in a list", "one text") else 50) * 1024


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
        ("a.pftrace.gz", "a"),
        ("s3://b/a.json.gz?versionId=1", "s3://b/a"),
    ],
)
def test_the_name_of_the_output_keeps_that_of_the_input(name: str, bare: str) -> None:
    assert recovered_copies(name) == (f"{bare}.recovered.json", f"{bare}.recovered.json.gz")
    assert copy_name(name, ANONYMOUS) == f"{bare}.anonymous.json"
