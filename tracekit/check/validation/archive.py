"""Checks archives of traces: the manifest, what Perfetto's readers take, and every trace in them."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections import Counter
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from tracekit.arguments import check_path
from tracekit.check.schemas import PERFETTO_MANIFEST, compile_schema
from tracekit.check.validation.report import Findings, ValidationReport
from tracekit.check.validation.trace import validate_stream, validate_trace
from tracekit.errors import MissingExtraError, StorageError, TraceFormatError, TracekitError
from tracekit.formats.archive_file import MANIFEST_KEY
from tracekit.formats.byte_stream import PIECE_BYTES, TraceStream, is_damage, packing_of
from tracekit.formats.trace_event import decode_json
from tracekit.storage import open_read, refuse_pipe, without_secrets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tracekit.arguments import StrPath

_HEAD_BYTES: Final = 512
_MAX_MANIFEST_BYTES: Final = 16 * 1024 * 1024
_MAX_NAME: Final = 99
_MANIFEST: Final = re.compile(rb'\s*\{\s*"' + MANIFEST_KEY.encode() + rb'"')
_JSON: Final = re.compile(rb"\s*[\[{]")
_ZIP_VERSION: Final = 20
_ZIP_FLAGS: Final = 0xF
_ENCRYPTED: Final = 1
_PACKINGS: Final = ("gzip", "zip", "tar")  # that Perfetto unpacks
_PROTOBUF: Final = b"\n"


def validate_file(path: StrPath, *, schema: bool = True) -> list[ValidationReport]:
    """Check a trace, a manifest, or an archive and everything in it.

    Args:
        path: File or URL: a trace as `validate_trace` takes it, ``perfetto_manifest.json``, a tar or a zip archive.
        schema: Apply the schemas.

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
        archive = _Archive(without_secrets(path), schema=schema)
        if (packing := packing_of(head)) in ("zip", "tar"):
            file.seek(0)
            return archive.reports(packing, file)
        if _MANIFEST.match(head):
            return [archive.manifest_report(head + file.read(_MAX_MANIFEST_BYTES))]
    return [validate_trace(path, schema=schema)]


class _MemberStream(TraceStream):
    """The bytes of a trace in an archive. Errors are those of the archive."""

    def __init__(self, path: str, member: BinaryIO) -> None:
        super().__init__(path)
        self._member = member

    def read(self) -> bytes:
        return self._member.read(PIECE_BYTES)


class _Archive:
    """Checks one archive, or a manifest without one."""

    def __init__(self, path: str, *, schema: bool) -> None:
        self._path = path
        self._schema = schema
        self._findings = Findings()
        self._reports: list[ValidationReport] = []
        self._manifest: Any = None
        self._has_manifest = False
        self._not_checked: str | None = None
        self._names: list[str] = []
        self._containers: set[str] = set()

    def manifest_report(self, data: bytes) -> ValidationReport:
        """Check a manifest without its archive."""
        self._read_manifest(data)
        files = []
        if self._manifest is not None:
            self._add("manifest", *manifest_problems(self._manifest))
            files = self._manifest[MANIFEST_KEY].get("files", [])
        return self._findings.report(self._path, "other", "manifest", len(files), self._not_checked)

    def reports(self, kind: str, file: BinaryIO) -> list[ValidationReport]:
        """Read the archive once; return the reports on it and its traces."""
        try:
            for name, member in self._zip_members(file) if kind == "zip" else self._tar_members(file):
                self._check_member(name, member)
            if self._manifest is not None:
                self._add("manifest", *manifest_problems(self._manifest, self._names, self._containers))
        except TracekitError:
            raise
        except Exception as error:
            if not is_damage(error):
                raise StorageError(f"{self._path}: cannot be read: {error}") from error
            self._add("archive", f"the archive is cut or damaged ({error})")
        own = self._findings.report(self._path, "other", "archive", len(self._names), self._not_checked)
        return [own, *self._reports]

    def _add(self, rule: str, *messages: str) -> None:
        for message in messages:
            self._findings.add(rule, None, message)

    def _zip_members(self, file: BinaryIO) -> Iterator[tuple[str, BinaryIO]]:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if info.is_dir() or any(part.startswith(".") for part in info.filename.split("/")):
                    continue
                usual = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                encrypted = info.flag_bits & _ENCRYPTED
                too_new = info.extract_version > _ZIP_VERSION and info.header_offset <= zipfile.ZIP64_LIMIT
                if not usual or info.flag_bits & ~_ZIP_FLAGS or encrypted or too_new:
                    unread = "zip64, encryption, names beyond ASCII and methods other than deflate are not read"
                    self._add("archive-member", f"{info.filename!r}: {unread}")
                if not encrypted:
                    with archive.open(info) as member:
                        yield info.filename, cast("BinaryIO", member)

    def _tar_members(self, file: BinaryIO) -> Iterator[tuple[str, BinaryIO]]:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for info in archive:
                member = archive.extractfile(info) if info.isreg() else None
                if member is not None:
                    yield info.name, cast("BinaryIO", member)
                elif not info.isdir():
                    self._add("archive-member", f"{info.name!r}: is no plain file")

    def _check_member(self, name: str, member: BinaryIO) -> None:
        if len(name) > _MAX_NAME:
            self._add("archive-member", f"{name!r}: has a name of more than {_MAX_NAME} characters")
        if name in self._names:
            self._add("archive-member", f"{name!r}: is there twice")
        head = member.read(PIECE_BYTES)
        if _MANIFEST.match(head):
            if self._has_manifest:
                self._add("manifest", f"{name!r}: is a second manifest")
            else:
                self._read_manifest(head + member.read(_MAX_MANIFEST_BYTES))
            self._has_manifest = True
            return
        self._names.append(name)
        if packing_of(head) in _PACKINGS:
            self._containers.add(name)
        elif _JSON.match(head):
            self._check_trace(name, head, member)
        elif not head.startswith(_PROTOBUF):
            self._add("archive-member", f"{name!r}: is not a trace, for which the whole archive is refused")

    def _check_trace(self, name: str, head: bytes, member: BinaryIO) -> None:
        member.seek(0)
        try:
            stream = _MemberStream(f"{self._path}: {name}", member)
            self._reports.append(validate_stream(stream, head, schema=self._schema))
        except TraceFormatError as error:
            self._add("archive-member", f"{name!r}: {error.reason}")

    def _read_manifest(self, data: bytes) -> None:
        """Keep a manifest that fits its schema, and note why the schema was not applied."""
        try:
            document = decode_json(data)
            wrong = compile_schema(PERFETTO_MANIFEST)(document) if self._schema else None
        except ValueError as error:
            self._add("manifest", f"it is not JSON: {error}")
        except MissingExtraError as error:
            self._not_checked = str(error)
        else:
            if not self._schema:
                self._not_checked = "the schemas were not asked for"
            elif wrong:
                self._add("manifest", wrong)
            else:
                self._manifest = document


def manifest_problems(document: Any, members: Sequence[str] | None = None, packed: Collection[str] = ()) -> list[str]:
    """Return what is wrong with a manifest that fits its schema: the rules that need several fields, or the archive.

    Args:
        document: The document, decoded.
        members: The traces in its archive; None for a manifest without an archive.
        packed: Those of the members that are packed.
    """
    manifest = document[MANIFEST_KEY]
    files = manifest.get("files", [])
    paths = [entry["path"] for entry in files]
    problems = [f"files: {path!r} is listed twice" for path, times in sorted(Counter(paths).items()) if times > 1]
    if members is not None:
        present = set(members)
        problems += [f"files: {path!r} is not in the archive" for path in paths if path not in present]
    # The machines that a file of several declares, None for a file of one.
    machines = {
        entry["path"]: {machine["name"] for machine in entry["machines"]} if "machines" in entry else None
        for entry in files
    }
    wanted = manifest.get("trace_time", {})
    if "file" in wanted:
        problems += _reference_problems("trace_time", wanted, machines)
    for entry in files:
        clocks = entry.get("clocks")
        if clocks is None:
            continue
        where = f"files: clocks of {entry['path']!r}"
        reference = clocks["sync_to"]
        problems += _reference_problems(f"{where}: sync_to", reference, machines)
        if reference["file"] == entry["path"] and clocks.get("clock") == reference.get("clock"):
            problems.append(f"{where}: a file cannot be placed by itself")
        own = machines[entry["path"]]
        if own is not None and clocks.get("machine") not in own:
            problems.append(f"{where}: name which of its machines the clock is on")
    return problems + [
        f"files: {entry['path']!r} is packed, and a packed file cannot be placed; unpack it"
        for entry in files
        if entry["path"] in packed and entry.keys() & {"machine", "machines", "clocks"}
    ]


def _reference_problems(where: str, reference: dict[str, Any], machines: dict[str, set[str] | None]) -> list[str]:
    file = reference["file"]
    if file not in machines:
        return [f"{where}: {file!r} is not listed in files"]
    declared = machines[file]
    if declared is not None and reference.get("machine") not in declared:
        return [f"{where}: name which machine of {file!r} is meant"]
    return []
