"""Recovery of one trace: two streams through the file, the first to see what is wrong, the second to write it clean."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

from tracekit.arguments import check_path
from tracekit.errors import ConfigError, StorageError, TraceFormatError
from tracekit.formats.byte_stream import ByteStream
from tracekit.formats.fragments import FragmentReader, LostBytes
from tracekit.formats.json_repair import repair_text
from tracekit.formats.rank_trace import BASE_TIME_KEY, METADATA_EVENT, SUMMARY_EVENT
from tracekit.formats.trace_event import encode_json
from tracekit.formats.trace_stream import foreign_form
from tracekit.recovery.open_slices import OpenSlices, decoded
from tracekit.recovery.report import RecoveryReport
from tracekit.storage import ExistsError, atomic_write, basename, is_remote, same_file, without_secrets
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arguments import StrPath
    from tracekit.formats.fragments import Fragment

__all__ = ["SUFFIXES", "is_other_json", "recover_trace"]

SUFFIXES: Final = (".json", ".json.gz", ".json.tmp")
"""What files of a folder are called that may be traces."""

_ENDINGS: Final = (".json.gz.tmp", ".json.tmp", ".json.gz", ".json", ".gz")
_GZIP_LEVEL: Final = 1  # a fifth of the time of the default for a quarter more bytes
_MAX_OTHER_BYTES: Final = 16 * 1024 * 1024
_NAMED_SLICES: Final = 100


def recover_trace(
    path: StrPath,
    output: StrPath | None = None,
    *,
    overwrite: bool = False,
    in_place: bool = False,
    close_open_slices: bool = False,
) -> RecoveryReport:
    """Write every event of a cut or damaged trace that can be read into a clean file. A whole file is left as it is.

    Both forms of the Trace Event Format are read, plain and gzip: cut anywhere, torn, with NUL bytes, other text or a second
    header in the middle, with members of gzip that are cut or damaged. Events are copied as the bytes they are; only
    what a strict JSON parser would refuse is repaired, and said. A rank trace stays one, with a last event that says what
    was lost; the object form keeps its keys. The result appears whole or not at all. Memory is bounded whatever the size.

    What no reader can see is a hole in the file whose two ends happen to fit together to one event.

    Args:
        path: A file or URL. It is not changed, unless ``in_place``.
        output: Where to write, ``.json`` or ``.json.gz``; ``NAME.recovered.json``, or ``.json.gz``, beside it by default.
        overwrite: Whether an output (and, in place, a ``NAME.broken``) that is there already may be replaced.
        in_place: Replace the file, a local one, when the new one is complete, and keep it as ``NAME.broken``.
        close_open_slices: End slices that were open at the end at the time of the last event. Without, they stay as they are,
            and Perfetto draws them to the end of the trace, as ones that did not end.

    Returns:
        What was found and done.

    Raises:
        ConfigError: The arguments do not go together.
        StorageError: The file cannot be read, or the output not written, or it is there already.
        TraceFormatError: There is no event in the file.
    """
    path, output = _check(
        check_path("path", path), None if output is None else check_path("output", output), in_place=in_place
    )
    _refuse_foreign(path)
    before = _state(path)
    recovery = _Recovery(path)
    for _ in recovery.runs():
        pass
    report = recovery.report()
    if report.whole and (report.events or report.form == "object"):
        return report
    if not report.events:
        reason = "; ".join(report.damages) or "it does not hold one whole event"
        raise TraceFormatError(report.path, f"nothing can be recovered: {reason}")
    if in_place:
        return _recover_in_place(path, before, overwrite=overwrite, close=close_open_slices, compress=report.compressed)
    output = output or _default_output(path, compressed=report.compressed)
    with atomic_write(output, overwrite=overwrite) as file:
        recovery = _write(path, file, close=close_open_slices, compress=output.endswith(".gz"))
    return recovery.report(output=without_secrets(output))


def _refuse_foreign(path: str) -> None:
    with ByteStream(path) as stream:
        foreign = foreign_form(stream.peek())
    if foreign:
        shown = without_secrets(path)
        raise TraceFormatError(
            shown,
            f"this is {foreign}, and recover makes JSON whole; tracekit convert {shown} OUTPUT.json writes all that can be "
            "read of it",
        )


def _check(path: str, output: str | None, *, in_place: bool) -> tuple[str, str | None]:
    if not path:
        raise ConfigError("the path of the trace is empty; give the name of a file")
    if in_place:
        if output is not None:
            raise ConfigError("an output and recovery in place exclude each other; give one of them")
        if is_remote(path):
            raise ConfigError(f"{without_secrets(path)}: only a local file can be recovered in place; give an output")
        # A link stays a link.
        return os.path.realpath(path), None
    if output is not None:
        if not output.endswith((".json", ".json.gz")):
            raise ConfigError(f"{without_secrets(output)}: the output must end with .json or .json.gz")
        if same_file(path, output):
            raise ConfigError(
                f"{without_secrets(path)}: the output is the input; choose another name, or recover in place"
            )
    return path, output


def _default_output(path: str, *, compressed: bool) -> str:
    bare = path.split("?", 1)[0] if is_remote(path) else path
    for ending in _ENDINGS:
        if bare.endswith(ending) and basename(bare) != ending:
            bare = bare.removesuffix(ending)
            break
    return f"{bare}.recovered.json" + (".gz" if compressed else "")


def _recover_in_place(
    path: str, before: tuple[int, int] | None, *, overwrite: bool, close: bool, compress: bool
) -> RecoveryReport:
    kept_as = Path(f"{path}.broken")
    if os.path.lexists(kept_as) and not overwrite:
        raise ExistsError(without_secrets(str(kept_as)), "already exists, from an earlier recovery; move it")
    kept = False
    try:
        with atomic_write(path) as file:
            recovery = _write(path, file, close=close, compress=compress)
            if _state(path) != before:
                raise StorageError(
                    f"{path}: changes while it is read; wait until its process has ended, or recover to another file"
                )
            kept_as.unlink(missing_ok=True)
            try:
                os.link(path, kept_as)
            except OSError:  # a file system without links
                shutil.copy2(path, kept_as)
            kept = True
    except BaseException:
        if kept:
            kept_as.unlink(missing_ok=True)
        raise
    _copy_mode(os.fspath(kept_as), path)
    return recovery.report(output=path, kept_as=os.fspath(kept_as))


def _write(path: str, file: IO[bytes], *, close: bool, compress: bool) -> _Recovery:
    recovery = _Recovery(path)
    if compress:
        with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
            recovery.write(cast("IO[bytes]", packed), close=close)
    else:
        recovery.write(file, close=close)
    return recovery


def _state(path: str) -> tuple[int, int] | None:
    """Return what tells whether a local file has changed."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _copy_mode(source: str, target: str) -> None:
    # The file stays for those that it was for.
    with contextlib.suppress(OSError):
        os.chmod(target, Path(source).stat().st_mode & 0o777)


def is_other_json(path: str) -> bool:
    """Tell whether a file is a whole JSON document, as reports and settings are that lie among traces; not a lost trace.

    Raises:
        StorageError: The file cannot be read.
    """
    text = b""
    with ByteStream(path) as stream:
        while piece := stream.read():
            text += piece
            if len(text) > _MAX_OTHER_BYTES:
                return False
        if stream.damage:
            return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class _Recovery:
    """One stream through a file."""

    def __init__(self, path: str) -> None:
        self._reader = FragmentReader(path)
        self._slices = OpenSlices()
        self._metadata: Fragment | None = None
        self._counts = {"X": 0, "B": 0, "i": 0, "I": 0, "C": 0}
        self._events = 0
        self._second_headers = 0
        self._closed_slices = False
        # Where another recording begins, and what had been lost until there: parts, events, bytes.
        self._other: Fragment | None = None
        self._other_events = 0
        self._lost_before = (0, 0, 0)

    def runs(self) -> Iterator[list[Fragment]]:
        """Yield the events that are kept."""
        with self._reader as reader:
            for run in reader.runs():
                kept = [fragment for fragment in run if self._take(fragment)]
                if kept:
                    yield kept

    def _take(self, fragment: Fragment) -> bool:
        fields = fragment.fields
        phase = fields.get("ph")
        if phase == "M" and fields.get("name") == METADATA_EVENT and self._reader.form == "array":
            if self._metadata is None:
                self._metadata = fragment
            elif _base(fragment) == _base(self._metadata):
                self._second_headers += 1
                return self._other is not None
            elif self._other is None:
                reader = self._reader
                self._other = fragment
                self._lost_before = (reader.lost_parts, reader.lost_events, reader.lost_bytes)
        if self._other is not None:
            # Its times are relative to another base, and events are not changed.
            self._other_events += 1
            return False
        self._events += 1
        if isinstance(phase, str) and phase in self._counts:  # two halves may have grown together to anything
            self._counts[phase] += 1
        self._slices.add(fragment)
        return True

    def write(self, file: IO[bytes], *, close: bool) -> None:
        """Write what is kept as a clean trace."""
        reader = self._reader
        runs = self.runs()
        first = next(runs, [])
        early = dict(reader.keys)
        if reader.form == "object":
            file.write(b"{\n" + b"".join(_pair(item) + b",\n" for item in early.items()) + b'"traceEvents": ')
        file.write(b"[\n" + b",\n".join(fragment.text for fragment in first))
        for run in runs:
            file.write(b"".join(b",\n" + fragment.text for fragment in run))
        ends = self._slices.ends() if close else []
        self._closed_slices = bool(ends)
        if self._metadata is not None:
            ends.append(self._summary(self._metadata))
        # Nothing comes before these where every event was in vain, which `recover_trace` has refused.
        file.write(b"".join(b",\n" + line for line in ends) + b"\n]")
        if reader.form == "object":
            late = [item for item in reader.keys.items() if item[0] not in early]
            file.write(b"".join(b",\n" + _pair(item) for item in late) + b"\n}")
        file.write(b"\n")

    def _summary(self, metadata: Fragment) -> bytes:
        report = self.report()
        lost = report.lost_events + (report.tail.events if report.tail else 0)
        counts, own = self._counts, decoded(metadata)
        fields: dict[str, Any] = {
            "ph": "M",
            "name": SUMMARY_EVENT,
            **{key: own[key] for key in ("pid", "tid") if key in own},
            "args": {
                "slices": counts["X"] + counts["B"],
                "instants": counts["i"] + counts["I"],
                "counters": counts["C"],
                "dropped": {"lost in a damaged file, at least": lost} if lost else {},
                "recovered": {
                    "tracekit_version": __version__,
                    "lost_parts": report.lost_parts,
                    "lost_bytes": report.lost_bytes,
                    "tail_bytes": report.tail.length_bytes if report.tail else 0,
                    "open_slices": [slice_.name for slice_ in report.open_slices[:_NAMED_SLICES]],
                    "closed_slices": self._closed_slices,
                },
            },
        }
        return encode_json(fields)

    def report(self, *, output: str | None = None, kept_as: str | None = None) -> RecoveryReport:
        """Return what was found, after the last of `runs`."""
        reader = self._reader
        losses, tail, damages, repairs = list(reader.losses), reader.tail, list(reader.damages), dict(reader.repairs)
        parts, events, length = reader.lost_parts, reader.lost_events, reader.lost_bytes
        if self._second_headers:
            repairs["second_header"] = repairs.get("second_header", 0) + self._second_headers
        if self._other is not None:
            start = self._other.offset_bytes
            rest = LostBytes(start, reader.bytes_read - start, self._other_events, "another recording")
            losses = [loss for loss in losses if loss.offset_bytes < start] + [rest]
            parts, events, length = self._lost_before
            parts, events, length = parts + 1, events + rest.events, length + rest.length_bytes
            tail = None
            damages.append(
                f"another recording, whose times have another base, begins at byte {start}; "
                f"cut it out (tail -c +{start + 1}) to recover it as well"
            )
        return RecoveryReport(
            path=reader.path,
            output=output,
            kept_as=kept_as,
            form=reader.form,
            compressed=reader.compressed,
            events=self._events,
            losses=tuple(losses),
            lost_parts=parts,
            lost_events=events,
            lost_bytes=length,
            tail=tail,
            closed=reader.closed,
            damages=tuple(damages),
            repairs=repairs,
            open_slices=self._slices.left(),
            closed_slices=self._closed_slices,
        )


def _base(fragment: Fragment) -> Any:
    args = fragment.fields.get("args")
    return args.get(BASE_TIME_KEY) if isinstance(args, dict) else None


def _pair(item: tuple[str, bytes]) -> bytes:
    key, value = item
    return b'"%b": %b' % (repair_text(key.encode("latin-1"))[0], value)
