"""Checks archives of traces: the manifest, what Perfetto's readers take, and every trace in them."""

from __future__ import annotations

import dataclasses
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from tracekit.arguments import check_path
from tracekit.errors import MissingExtraError, TraceFormatError
from tracekit.formats.perfetto_manifest import MANIFEST_KEY, manifest_problems
from tracekit.formats.schema import PERFETTO_MANIFEST, compile_schema
from tracekit.formats.trace_event import decode_json
from tracekit.storage import open_read, refuse_pipe, without_secrets
from tracekit.validation.report import Findings, ValidationReport
from tracekit.validation.trace import validate_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arguments import StrPath

__all__ = ["validate_file"]

_HEAD_BYTES: Final = 512
_MAX_MANIFEST_BYTES: Final = 16 * 1024 * 1024
_MAX_NAME: Final = 99
_TAR_MAGIC: Final = slice(257, 262)
_MANIFEST: Final = re.compile(rb'\s*\{\s*"' + MANIFEST_KEY.encode() + rb'"')
_JSON: Final = re.compile(rb"\s*[\[{]")
_ZIP_VERSION: Final = 20
_ZIP_FLAGS: Final = 0xF
_ENCRYPTED: Final = 1
_GZIP: Final = b"\x1f\x8b"
_PROTOBUF: Final = b"\n"
_DAMAGED: Final = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError)


def validate_file(path: StrPath, *, schema: bool = True) -> list[ValidationReport]:
    """Check a trace, a manifest, or an archive and everything in it.

    Args:
        path: File or URL: a trace as `validate_trace` takes it, ``perfetto_manifest.json``, a tar or a zip archive.
        schema: Whether to apply the schemas.

    Returns:
        The report on the file, and for an archive one for each trace in it.

    Raises:
        ConfigError: ``path`` is empty.
        StorageError: The file is not there or cannot be read.
        TraceFormatError: It is none of these.
    """
    path = check_path("path", path)
    if not path:
        return [validate_trace(path, schema=schema)]
    refuse_pipe(path)
    with open_read(path) as file:
        head = file.read(_HEAD_BYTES)
        if _archive_of(head) is not None:
            file.seek(0)
            return _Archive(without_secrets(path), file, schema=schema).reports()
        if _MANIFEST.match(head):
            return [_validate_manifest(without_secrets(path), head + file.read(_MAX_MANIFEST_BYTES), schema=schema)]
    return [validate_trace(path, schema=schema)]


def _archive_of(head: bytes) -> str | None:
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    return "tar" if head[_TAR_MAGIC] == b"ustar" else None


def _validate_manifest(path: str, data: bytes, *, schema: bool) -> ValidationReport:
    findings = Findings()
    document, not_checked = _read_manifest(data, findings, schema=schema)
    for problem in [] if document is None else manifest_problems(document):
        findings.add("manifest", None, problem)
    problems, counts = findings.close(path, "other")
    return ValidationReport(path, "other", "manifest", len(_files(document)), problems, counts, not_checked)


def _read_manifest(data: bytes, findings: Findings, *, schema: bool) -> tuple[Any, str | None]:
    """Return a manifest that fits its schema, None otherwise; and why the schema was not applied."""
    try:
        document = decode_json(data)
    except ValueError as error:
        findings.add("manifest", None, f"it is no JSON: {error}")
        return None, None
    if not schema:
        return None, "the schemas were not asked for"
    try:
        wrong = compile_schema(PERFETTO_MANIFEST)(document)
    except MissingExtraError as error:
        return None, str(error)
    if wrong:
        findings.add("manifest", None, wrong)
        return None, None
    return document, None


def _files(document: Any) -> list[dict[str, Any]]:
    return [] if document is None else list(document[MANIFEST_KEY].get("files", []))


class _Archive:
    def __init__(self, path: str, file: BinaryIO, *, schema: bool) -> None:
        self._path = path
        self._file = file
        self._schema = schema
        self._findings = Findings()
        self._reports: list[ValidationReport] = []
        self._manifest: Any = None
        self._manifests = 0
        self._not_checked: str | None = None
        self._names: list[str] = []
        self._containers: set[str] = set()

    def reports(self) -> list[ValidationReport]:
        """Read the archive once; return what was found."""
        head = self._file.read(_HEAD_BYTES)
        self._file.seek(0)
        try:
            for name, member in self._zip_members() if _archive_of(head) == "zip" else self._tar_members():
                self._member(name, member)
        except _DAMAGED as error:
            self._findings.add("archive", None, f"the archive is cut or damaged ({error})")
        else:
            self._check_manifest()
        problems, counts = self._findings.close(self._path, "other")
        own = ValidationReport(
            self._path, "other", "archive", len(self._names), problems, counts, not_checked=self._not_checked
        )
        return [own, *self._reports]

    def _zip_members(self) -> Iterator[tuple[str, BinaryIO]]:
        with zipfile.ZipFile(self._file) as archive:
            for info in archive.infolist():
                if info.is_dir() or _hidden(info.filename):
                    continue
                usual = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                if not usual or info.flag_bits & ~_ZIP_FLAGS or info.flag_bits & _ENCRYPTED or _needs(info):
                    self._findings.add(
                        "archive-member",
                        None,
                        f"{info.filename!r}: zip64, encryption, names beyond ASCII and methods other than deflate are not read",
                    )
                if not info.flag_bits & _ENCRYPTED:
                    with archive.open(info) as member:
                        yield info.filename, cast("BinaryIO", member)

    def _tar_members(self) -> Iterator[tuple[str, BinaryIO]]:
        with tarfile.open(fileobj=self._file, mode="r:") as archive:
            for info in archive:
                member = archive.extractfile(info) if info.isreg() else None
                if member is not None:
                    yield info.name, cast("BinaryIO", member)
                elif not info.isdir():
                    self._findings.add("archive-member", None, f"{info.name!r}: is no plain file")

    def _member(self, name: str, member: BinaryIO) -> None:
        if len(name) > _MAX_NAME:
            self._findings.add("archive-member", None, f"{name!r}: has a name of more than {_MAX_NAME} characters")
        if name in self._names:
            self._findings.add("archive-member", None, f"{name!r}: is there twice")
        head = member.read(_HEAD_BYTES)
        if _MANIFEST.match(head):
            self._manifests += 1
            if self._manifests > 1:
                self._findings.add("manifest", None, f"{name!r}: is a second manifest")
                return
            data = head + member.read(_MAX_MANIFEST_BYTES)
            self._manifest, self._not_checked = _read_manifest(data, self._findings, schema=self._schema)
            return
        self._names.append(name)
        if head.startswith(_GZIP) or _archive_of(head) is not None:
            self._containers.add(name)
        elif _JSON.match(head):
            self._trace(name, head, member)
        elif not head.startswith(_PROTOBUF):
            self._findings.add("archive-member", None, f"{name!r}: is no trace, for which the whole archive is refused")

    def _trace(self, name: str, head: bytes, member: BinaryIO) -> None:
        with tempfile.TemporaryDirectory(prefix="tracekit-validate-") as folder:
            copy = Path(folder) / "trace.json"
            with copy.open("wb") as file:
                file.write(head)
                shutil.copyfileobj(member, file)
            try:
                report = validate_trace(str(copy), schema=self._schema)
            except TraceFormatError as error:
                self._findings.add("archive-member", None, f"{name!r}: {error.reason}")
                return
        label = f"{self._path}: {name}"
        problems = tuple(dataclasses.replace(problem, file=label) for problem in report.problems)
        self._reports.append(dataclasses.replace(report, file=label, problems=problems))

    def _check_manifest(self) -> None:
        if self._manifest is None:
            return
        for problem in manifest_problems(self._manifest, self._names):
            self._findings.add("manifest", None, problem)
        for entry in _files(self._manifest):
            if entry["path"] in self._containers and entry.keys() & {"machine", "machines", "clocks"}:
                self._findings.add(
                    "manifest",
                    None,
                    f"files: {entry['path']!r} is packed, and a packed file cannot be placed; unpack it",
                )


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _needs(info: zipfile.ZipInfo) -> bool:
    """Tell whether a member needs more than Perfetto's reader knows."""
    return info.extract_version > _ZIP_VERSION and info.header_offset <= zipfile.ZIP64_LIMIT
