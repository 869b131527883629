"""`validate_file` on archives and manifests: every fault that Perfetto refuses is a problem, and good archives have none."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.bad_traces import ARCHIVE_RULES, array, rank_trace, slice_
from tracekit.check.validation import validate_file
from tracekit.errors import ConfigError, TraceFormatError
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Cli
    from tracekit.check.validation import ValidationReport

GOOD = array(slice_(1, 2))
MANIFEST = "perfetto_manifest.json"


def document(*files: Any, **more: Any) -> dict[str, Any]:
    return {"version": 1, "files": list(files), **more}


def manifest(*files: Any, **more: Any) -> bytes:
    return json.dumps({"perfetto_manifest": document(*files, **more)}).encode()


def tar(members: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zip_(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def validate(folder: Path, data: bytes, **options: bool) -> list[ValidationReport]:
    path = folder / "file"
    path.write_bytes(data)
    return validate_file(str(path), **options)


def placed(path: str, **clocks: Any) -> dict[str, Any]:
    return {"path": path, "machine": {"name": "m"}, "clocks": {"sync_to": {"file": "a.json"}, **clocks}}


A, B = {"path": "a.json", "machine": {"name": "rank 0"}}, placed("b.json", offset_ns=-5)
TRACES = [("a.json", GOOD), ("b.json", GOOD)]


@pytest.mark.parametrize("pack", [tar, zip_])
def test_a_good_archive_and_its_traces(tmp_path: Path, pack: Any) -> None:
    members = [("a.json", rank_trace()), (MANIFEST, manifest(A, B)), (".DS_Store", b"junk"), ("b.json", GOOD)]
    reports = validate(tmp_path, pack(members) if pack is zip_ else pack([members[0], members[1], members[3]]))
    assert [(report.form, report.kind, report.events, report.errors) for report in reports] == [
        ("archive", "other", 2, 0),
        ("array", "rank", reports[1].events, 0),
        ("array", "other", 1, 0),
    ]
    assert reports[2].file == f"{tmp_path / 'file'}: b.json"


@pytest.mark.parametrize("ending", ["tar", "zip"])
def test_what_merge_writes_is_good(tmp_path: Path, ending: str) -> None:
    (tmp_path / "rank0.json").write_bytes(rank_trace())
    merge_traces(str(tmp_path / f"m.{ending}"), [str(tmp_path / "rank0.json")])
    reports = validate_file(str(tmp_path / f"m.{ending}"))
    assert [report.counts for report in reports] == [{}, {}]


def test_a_problem_in_a_trace_of_an_archive_without_a_manifest_is_told_of_that_trace(tmp_path: Path) -> None:
    own, good, bad = validate(tmp_path, tar([("a.json", GOOD), ("b.json", array(slice_(1, None)))]))
    assert (own.errors, good.errors, bad.errors) == (0, 0, 1)
    assert str(bad.problems[0]).startswith(f"{tmp_path / 'file'}: b.json: event 1")


BAD_ARCHIVES = {
    "cut tar": ("archive", tar(TRACES)[:1000]),
    "cut zip": ("archive", zip_(TRACES)[:-30]),
    "no trace": ("archive-member", tar([*TRACES, ("notes.txt", b"hello")])),
    "empty member": ("archive-member", zip_([*TRACES, ("empty.json", b"")])),
    "long name": ("archive-member", zip_([("x" * 100 + ".json", GOOD)])),
    "twice": ("archive-member", tar([("a.json", GOOD), ("a.json", GOOD)])),
    "not ascii": ("archive-member", zip_([("ü.json", GOOD)])),
    "method": ("archive-member", zip_([("a.json", GOOD)], zipfile.ZIP_BZIP2)),
    "a name that is no text": ("archive", zip_([("ü.json", GOOD)]).replace("ü".encode(), b"\xff\xff")),
    "no name": ("archive", zip_([("\t", GOOD)]).replace(b"\t", b"\0")),
    "absent": ("manifest", tar([("a.json", GOOD), (MANIFEST, manifest(A, B))])),
    "listed twice": ("manifest", tar([*TRACES, (MANIFEST, manifest(A, A))])),
    "unknown reference": ("manifest", tar([*TRACES, (MANIFEST, manifest(placed("b.json")))])),
    "itself": ("manifest", tar([*TRACES, (MANIFEST, manifest(placed("a.json")))])),
    "two manifests": ("manifest", tar([*TRACES, (MANIFEST, manifest(A)), ("2.json", manifest(A))])),
    "packed": ("manifest", tar([("a.json", gzip.compress(GOOD)), (MANIFEST, manifest(A))])),
    "archive in it": ("manifest", tar([("a.json", zip_(TRACES)), (MANIFEST, manifest(A))])),
    "no json": ("manifest", tar([*TRACES, (MANIFEST, manifest(A)[:-1])])),
}


@pytest.mark.parametrize(("rule", "data"), BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
def test_each_bad_archive_breaks_its_rule_once(tmp_path: Path, rule: str, data: bytes) -> None:
    report = validate(tmp_path, data)[0]
    assert (report.counts, report.errors) == ({rule: 1}, 1)


def test_every_rule_about_archives_has_a_bad_one() -> None:
    assert {rule for rule, _ in BAD_ARCHIVES.values()} == ARCHIVE_RULES


RELAY = {"path": "relay", "machines": [{"id": 0, "name": "host"}, {"id": 7, "name": "vm"}]}
VM = {"file": "relay", "machine": "vm", "clock": "MONOTONIC"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"files": []},
        {"version": 2},
        {"version": "1"},
        document() | {"files": {}},
        document("a.json"),
        document({"path": ""}),
        document({"path": "a", "machine": "m"}),
        document({"path": "a", "machine": {"name": ""}}),
        document({"path": "a", "machine": {"name": "m"}, "machines": [{"id": 0, "name": "m"}]}),
        document({"path": "a", "machines": [{"id": 2**32, "name": "m"}]}),
        document({"path": "a", "clocks": {"offset_ns": 1}}),
        document({"path": "a", "clocks": {"sync_to": {"machine": "m"}}}),
        document(A, placed("b", offset_ns=1.5)),
        document(A, placed("b", offset_ns=-(2**63))),
        document(A, placed("b", clock="TAI")),
        document(trace_time={}),
        document(trace_time={"clock": "BOOTTIME", "machine": "m"}),
        document(trace_time={"clock": "BOOTTIME", "file": "absent"}),
        document(attributes={"": "x"}),
        document(attributes={"key": 1.5}),
        document(attributes=[]),
        document(RELAY, {"path": "b", "machine": {"name": "m"}, "clocks": {"sync_to": {"file": "relay"}}}),
        document(A, {"path": "b", "machines": [{"id": 0, "name": "m"}], "clocks": {"sync_to": {"file": "a.json"}}}),
    ],
    ids=str,
)
def test_each_wrong_manifest_breaks_the_rule_once(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (report,) = validate(tmp_path, json.dumps({"perfetto_manifest": wrong}).encode())
    assert (report.form, report.counts) == ("manifest", {"manifest": 1})


@pytest.mark.parametrize(
    "good",
    [
        {"version": 1},
        document(A, placed("b.json", offset_ns=2**62, clock="BOOTTIME")),
        document(A, trace_time={"clock": "REALTIME", "file": "a.json"}),
        document(attributes={"run.id": "x", "number": 5}, new_field=[1]),
        document(RELAY, {"path": "b", "clocks": {"sync_to": VM}}),
    ],
    ids=str,
)
def test_good_manifests_break_none(tmp_path: Path, good: dict[str, Any]) -> None:
    (report,) = validate(tmp_path, json.dumps({"perfetto_manifest": good}).encode())
    assert (report.counts, report.events) == ({}, len(good.get("files", [])))


def test_other_files_go_their_way(tmp_path: Path) -> None:
    assert validate(tmp_path, GOOD)[0].form == "array"
    with pytest.raises(ConfigError):
        validate_file("")
    with pytest.raises(TraceFormatError, match="not JSON"):
        validate(tmp_path, b"hello")
    report = validate(tmp_path, tar([*TRACES, (MANIFEST, manifest(A, B))]), schema=False)[0]
    assert report.not_checked == "the schemas were not asked for"


def test_the_command_prints_a_line_for_each(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "good.zip").write_bytes(zip_([*TRACES, (MANIFEST, manifest(A, B))]))
    (tmp_path / "bad.zip").write_bytes(zip_([*TRACES, ("notes.txt", b"hello")]))
    traces = ["a.json: ok: 1 event", "b.json: ok: 1 event"]
    lines = ["good.zip: ok: 2 traces", *(f"good.zip: {line}" for line in traces)]
    assert cli("validate good.zip").out.splitlines() == lines
    lines = cli("validate bad.zip", 3).out.splitlines()
    assert lines[0].startswith("bad.zip: [archive-member] 'notes.txt': is not a trace")
    assert lines[-2:] == [f"bad.zip: {line}" for line in traces]
