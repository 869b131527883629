"""Files of other tools: traces are merged, and other files are named by their kind."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.merge_inputs import BASE_NS, event, write
from tracekit.errors import TraceFormatError
from tracekit.formats.byte_stream import seems_to_be
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.merge import MergeReport


def slice_(name: str = "x", ts: float = 5, **more: Any) -> dict[str, Any]:
    return event(name, ts, 1, pid=1, tid=1, **more)


def test_viztracer_and_the_base_of_its_times(merged: Any) -> None:
    place = {"pid": 18, "tid": 18}
    trace = {
        "traceEvents": [
            {"ph": "M", **place, "name": "process_name", "args": {"name": "MainProcess"}},
            {"ph": "M", **place, "name": "thread_name", "args": {"name": "MainThread"}},
            {**place, "ts": 14821145843.139, "ph": "X", "dur": 0.17025263622759446, "name": "f", "cat": "FEE"},
        ],
        "viztracer_metadata": {"version": "1.1.1", "overflow": False, "baseTimeNanoseconds": BASE_NS},
        "file_info": {"files": {}, "functions": {}},
    }
    (found,), report = merged(trace)
    assert report.base_time_ns == report.inputs[0].base_time_ns == BASE_NS
    assert (found["ts"], found["dur"]) == ("14821145843.139", "0.170")
    assert report.ranks[0].clock.startswith("wall clock")


def test_a_real_viztracer_trace(tmp_path: Path) -> None:
    viztracer = pytest.importorskip("viztracer")
    with viztracer.VizTracer(output_file=str(tmp_path / "viz.json"), verbose=0):
        json.dumps({})
    report = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path / "viz.json")])
    assert report.complete
    assert report.base_time_ns >= BASE_NS  # a base stands for weeks
    assert report.warnings == []


def test_jax(merged: Any) -> None:
    events, report = merged(b"""{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[
{"args":{"name":"/host:CPU"},"name":"process_name","ph":"M","pid":701},
{"args":{"long_name":"jit_f","run_id":"7"},"dur":0.1234567,"name":"PjitFunction(f)","ph":"X","pid":701,"tid":5,
"ts":7.2709999999999999},
{"args":{"name":"/device:GPU:0"},"name":"process_name","ph":"M","pid":1},
{"dur":3.000001,"name":"fusion","ph":"X","pid":1,"tid":14,"ts":8.123456},
{}]}""")
    assert [(event["ts"], event["dur"]) for event in events] == [("7.271", "0.123"), ("8.123", "3.000")]
    assert events[0]["args"] == {"long_name": "jit_f", "run_id": "7"}
    assert report.ranks[0].processes == ["rank 0 · XLA /host:CPU", "rank 0 · XLA /device:GPU:0"]
    assert report.complete


def test_nccl_profiler_with_its_bare_words_and_hexadecimal_numbers(merged: Any) -> None:
    events, report = merged(b"""[
{"name": "Init", "cat": "GROUP", "ph": "b", "id": 0, "pid": 100, "tid": 1, "ts": 12.5, "args": {"groupId": 0}},
{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 1, "pid": 100, "tid": 1, "ts": 20.5, "args": {"SeqNum": 0,
 "CommHash": 18446744073709551615, "Datatype": ncclFloat32, "Stream": 0x262ca50}},
{"name": "AllReduce", "cat": "COLL", "ph": "e", "id": 1, "pid": 100, "tid": 1, "ts": 30.25},
{"name": "Init", "cat": "GROUP", "ph": "e", "id": 0, "pid": 100, "tid": 1, "ts": 0.0},
{}]
""")
    assert [event["ph"] for event in events] == ["b", "b", "e", "e"]
    words = {"Datatype": "ncclFloat32", "Stream": "0x262ca50"}
    assert events[1]["args"] == {"SeqNum": 0, "CommHash": 18446744073709551615, **words}
    assert [(repair.kind, repair.count) for repair in report.repaired] == [("bare_word", 2)]
    assert report.complete


def test_chromium(merged: Any) -> None:
    rare = [
        {"ph": "N", "name": "frame", "id": "0x1", "cat": "c"},
        {"ph": "I", "name": "mark", "s": "g", "cat": "c"},
        {"ph": "R", "name": "navigationStart", "cat": "blink"},
        {"ph": "P", "name": "sample", "id": "0x2", "cat": "c", "args": {}, "sf": 7},
        {"ph": "S", "name": "old", "id": "0x3", "cat": "c"},
    ]
    trace = {
        "traceEvents": [
            {
                "ph": "M",
                "cat": "__metadata",
                "name": "thread_name",
                "pid": 9,
                "tid": 9,
                "args": {"name": "Main"},
                "ts": 0,
            },
            slice_("RunTask", 2, tdur=1, tts=4, cat="toplevel", id2={"local": "0x1"}),
            *({**event, "pid": 9, "tid": 9, "ts": ts} for ts, event in enumerate(rare, 3)),
        ],
        "metadata": {"os-name": "Linux"},
        "systemTraceEvents": "# tracer: nop\n",
        "stackFrames": {},
    }
    events, report = merged(trace)
    assert [event["ph"] for event in events] == ["X", "N", "I", "R", "P", "S"]
    assert (events[0]["tdur"], events[0]["tts"]) == (1, 4)
    assert report.complete


def test_the_name_of_a_file_does_not_matter(merged: Any) -> None:
    events, report = merged(gzip.compress(json.dumps([slice_()]).encode()), "trace.dat")
    assert len(events) == 1
    assert report.complete


SNAPSHOT = {"segments": [], "device_traces": [[{"action": "alloc"}]]}


def archived(form: str) -> bytes:
    buffer = io.BytesIO()
    if form == "tar":
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("a.json"))
    else:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("a.json", "[]")
            archive.writestr("b.json", "[]")
    return buffer.getvalue()


NO_TRACE = {
    "zip": (archived("zip"), "zip archive"),
    "tar": (archived("tar"), "a tar archive"),
    "gzip twice": (gzip.compress(gzip.compress(b"[]")), "packed twice"),
    "bzip2": (bz2.compress(b"[]"), "packed with bzip2"),
    "xz": (lzma.compress(b"[]"), "packed with xz"),
    "zstd in gzip": (gzip.compress(b"\x28\xb5\x2f\xfd\x04\x00"), "packed with zstd"),
    "snapshot": (pickle.dumps(SNAPSHOT), "a memory snapshot of torch"),
    "snapshot 5": (pickle.dumps(SNAPSHOT, protocol=5), "a memory snapshot of torch"),
    "pickle": (pickle.dumps([1, 2]), "a pickle of Python"),
    "page": (b"<!DOCTYPE html>\n<html><title>404</title></html>", "an HTML page"),
    "bare page": (b"\n <HTML>Access denied</HTML>", "an HTML page"),
    "xml": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "the error message of an object store"),
    "pftrace": (b"\n\x0b\x08\x01\x12\x07abcdefg", "a protobuf trace"),
    "sqlite": (b"SQLite format 3\0" + bytes(80), "an SQLite database"),
    "program": (b"\x7fELF\x02\x01", "a program"),
    "picture": (b"\x89PNG\r\n\x1a\n", "a picture"),
    "utf-16": ('[{"ph":"X"}]'.encode("utf-16"), "UTF-16"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 3\n", "Git LFS"),
    "zeros": (bytes(5000), "nothing but zeros"),
    "chakra": (
        json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1, "name": "a"}]}).encode(),
        "an execution trace",
    ),
    "manifest": (b'{"perfetto_manifest":{"version":1}}', "the manifest of an archive"),
    "index": (b'{"tracekit_index":1,"segments":[]}', "the index of a recording"),
    "speedscope": (b'{"$schema":"https://www.speedscope.app/file-format-schema.json"}', "speedscope"),
    "cpuprofile": (json.dumps({"nodes": [], "startTime": 1, "samples": []}).encode(), "a CPU profile"),
    "memory timeline": (b"[[1, 2, 3], [[0, 1]]]", "a memory timeline"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", NO_TRACE)
def test_what_is_no_trace_is_named(merged: Any, tmp_path: Path, name: str, packed: bool) -> None:
    data, words = NO_TRACE[name]
    if packed and name in {"gzip twice", "zstd in gzip"}:
        data = gzip.decompress(data)
    with pytest.raises(TraceFormatError, match=r"file\.json") as caught:
        merged(gzip.compress(data) if packed else data)
    assert words in caught.value.reason
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["file.json"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        (gzip.compress(b"[]", mtime=0)[:5], "the gzip data is cut off"),
        (b" \n\t ", "nothing but white space"),
        (b"hello world", "JSON traces begin with"),
        (b"42", "JSON traces begin with"),
        (b"[1, 2]", "the array holds no events"),
        (b'{"learning_rate": 0.1}', "no traceEvents"),
        (b'[{"learning_rate": 0.1}, {"learning_rate": 0.2}]', "none of its 2 objects is an event"),
    ],
)
def test_what_nobody_can_name_is_told_as_it_is(merged: Any, data: bytes, words: str) -> None:
    with pytest.raises(TraceFormatError) as caught:
        merged(data)
    assert words in caught.value.reason


@pytest.mark.parametrize(
    "head", [b"", b"[]", b'{"traceEvents": []}', json.dumps([slice_()]).encode(), b"{}", b"\n\n[]"]
)
def test_what_may_be_a_trace_seems_to_be_nothing_else(head: bytes) -> None:
    assert seems_to_be(head) == ""


def test_in_a_folder_each_is_left_out_with_its_reason(tmp_path: Path) -> None:
    others = {"page.json": NO_TRACE["page"][0], "tree.json": NO_TRACE["chakra"][0]}
    write(tmp_path / "run", {"rank0.json": [slice_()], **others, "metrics.json": [{"loss": 0.5}]})
    report = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path / "run")])
    assert [(item.path.rpartition("/")[2], item.harmless) for item in report.omitted] == [
        ("metrics.json", True),
        ("page.json", False),
        ("tree.json", True),
    ]
    assert "an HTML page" in report.omitted[1].reason
    assert not report.complete


@pytest.fixture
def merged(merge: Any) -> Any:
    """Merge the bytes of one file; return the events that are no metadata, and the report."""

    def _merged(data: Any, name: str = "file.json") -> tuple[list[dict[str, Any]], MergeReport]:
        found, report = merge({name: data})
        return [event for event in found["traceEvents"] if event["ph"] != "M"], report

    return _merged
