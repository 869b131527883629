"""Recovery of one trace: read events up to the first damage, copy the bytes before it, and write the events behind it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tracekit.arguments import check_path
from tracekit.check.recovery.report import CutSlices, RecoveryReport, place_of
from tracekit.errors import ConfigError, StorageError, TraceFormatError
from tracekit.formats.byte_stream import ByteStream
from tracekit.formats.gzip_codec import GzipWriter
from tracekit.formats.json.repair import repair_text
from tracekit.formats.json.salvage import SalvageReader, SalvageStream
from tracekit.formats.json.window import LostBytes
from tracekit.formats.rank_trace import BASE_TIME_KEY, METADATA_EVENT, SUMMARY_EVENT
from tracekit.formats.trace_event import Event, decode_dict, encode_json, raw_field
from tracekit.formats.trace_stream import FOREIGN_FORMS, form_of
from tracekit.storage import PRIVATE_MODE, ExistsError, atomic_write, is_remote, same_file, without_secrets
from tracekit.traces.inputs import recovered_copies
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arguments import StrPath
    from tracekit.formats.json.reader import RawEvent

SUFFIXES: Final = (".json", ".json.gz", ".json.zst", ".json.tmp")  # the suffixes of traces in a folder
_NAMED_SLICES: Final = 100
_METADATA_NAME: Final = f'"{METADATA_EVENT}"'.encode()


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
    header in the middle, with members of gzip that are cut or damaged. Events keep their bytes. Only text that a strict JSON
    parser refuses is repaired, and reported. A rank trace stays one: its last event reports the losses. The object form
    keeps its keys. The result appears whole or not at all. Memory is bounded for files of any size.

    A hole in the file cannot be detected if its two ends fit together to one event.

    Args:
        path: A file or URL. It is not changed, unless ``in_place``.
        output: The file to write, ``.json`` or ``.json.gz``. The default is ``NAME.recovered.json``, or ``.json.gz``, in the
            folder of the input.
        overwrite: Replace an output (and, in place, a ``NAME.broken``) that exists.
        in_place: Replace the file, a local one, when the new one is complete, and keep it as ``NAME.broken``.
        close_open_slices: End slices that were open at the end at the time of the last event. Otherwise Perfetto draws
            them to the end of the trace, without an end.

    Returns:
        The damage and the recovery.

    Raises:
        ConfigError: The arguments do not go together.
        StorageError: The file cannot be read, or the output not written, or it is there already.
        TraceFormatError: The file has no events, or is packed in a form that is not written in place.
    """
    path, output, packing = _check(
        check_path("path", path), None if output is None else check_path("output", output), in_place=in_place
    )
    before = _state(path)
    with contextlib.closing(_Recovery(path)) as recovery:
        recovery.find_damage()
        report = recovery.report()
        if report.whole and (report.events or report.form == "object"):
            return report
        if not report.events:
            reason = "; ".join(report.damages) or "it does not hold one whole event"
            raise TraceFormatError(report.path, f"nothing can be recovered: {reason}")
        if in_place and packing not in ("", "gzip"):
            words = f"damaged, and packed with {packing}; recovery in place writes plain files and gzip; give an output"
            raise TraceFormatError(report.path, words)
        output = output or (path if in_place else recovered_copies(path)[report.compressed])
        compress = report.compressed if in_place else output.endswith(".gz")
        kept_as = Path(f"{path}.broken") if in_place else None
        if kept_as is not None and os.path.lexists(kept_as) and not overwrite:
            raise ExistsError(without_secrets(str(kept_as)), "already exists, from an earlier recovery; move it")
        # In place, the file stays readable for those who could read it.
        mode = Path(path).stat().st_mode & 0o777 if in_place else PRIVATE_MODE
        with contextlib.ExitStack() as undo:
            with atomic_write(output, overwrite=overwrite or in_place, mode=mode) as file:
                with GzipWriter(file) if compress else contextlib.nullcontext(file) as sink:
                    recovery.write(sink, close=close_open_slices)
                if kept_as is not None:
                    _keep(path, kept_as, before)
                    undo.callback(kept_as.unlink, missing_ok=True)
            undo.pop_all()
        return recovery.report(output=without_secrets(output), kept_as=None if kept_as is None else str(kept_as))


def _check(path: str, output: str | None, *, in_place: bool) -> tuple[str, str | None, str]:
    """Return the path, the output and the packing; raise an error if they exclude each other, or the file is not JSON."""
    shown = without_secrets(path)
    if not path:
        raise ConfigError("the path of the trace is empty; give the name of a file")
    if in_place and output is not None:
        raise ConfigError("an output and recovery in place exclude each other; give one of them")
    if in_place and is_remote(path):
        raise ConfigError(f"{shown}: only a local file can be recovered in place; give an output")
    if output is not None and not output.endswith((".json", ".json.gz")):
        raise ConfigError(f"{without_secrets(output)}: the output must end with .json or .json.gz")
    if output is not None and same_file(path, output):
        raise ConfigError(f"{shown}: the output is the input; choose another name, or recover in place")
    path = os.path.realpath(path) if in_place else path  # a link stays a link
    with ByteStream(path) as stream:
        foreign, shown, packing = FOREIGN_FORMS.get(form_of(stream.peek())), stream.path, stream.packing
    if foreign:
        advice = f"tracekit convert {shown} OUTPUT.json writes all that can be read of it"
        raise TraceFormatError(shown, f"this is {foreign}, and recover makes JSON whole; {advice}")
    return path, output, packing


def _keep(path: str, kept_as: Path, before: tuple[int, int] | None) -> None:
    """Give a file that has not changed a second name."""
    if _state(path) != before:
        raise StorageError(
            f"{path}: changes while it is read; wait until its process has ended, or recover to another file"
        )
    kept_as.unlink(missing_ok=True)
    try:
        os.link(path, kept_as)
    except OSError:  # a file system without links
        shutil.copy2(path, kept_as)


def _state(path: str) -> tuple[int, int] | None:
    """Return the size and the time of a local file, which change with it."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


class _Recovery:
    """One pass through a file: `find_damage`, then `write`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reader = SalvageReader(path)
        self._runs = self._read()
        self._sound_bytes = 0  # of the unpacked file, up to the end of the last event before any damage
        self._damaged: list[RawEvent] = []  # the first events behind that
        self._early: dict[str, bytes] = {}  # the keys before that
        self._slices = CutSlices()
        self._metadata: Event | None = None
        self._counts: Counter[Any] = Counter()  # of events by phase
        self._second_headers = 0
        self._closed_slices = False
        # The place where another recording begins, and the losses before it: parts, events, bytes.
        self._other_from: int | None = None
        self._other_events = 0
        self._lost_before = (0, 0, 0)

    def find_damage(self) -> None:
        """Read up to the first events that are kept behind damage, or to the end."""
        reader = self._reader
        for run in self._runs:
            if not self._sound_bytes:
                self._early = dict(reader.keys)
            if reader.is_damaged or self._second_headers or self._other_from is not None:
                self._damaged = run
                break
            self._sound_bytes, self._early = run[-1].offset_bytes + len(run[-1].text), dict(reader.keys)

    def _read(self) -> Iterator[list[RawEvent]]:
        """Yield the events that are kept."""
        for run in self._reader.raw_runs():
            if kept := [raw for raw in run if self._take(raw)]:
                yield kept

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def _take(self, raw: RawEvent) -> bool:
        event, reader = raw.event, self._reader
        phase = event.ph
        is_header = phase == "M" and raw_field(event.name) == _METADATA_NAME and reader.form == "array"
        if is_header and self._other_from is None:
            if self._metadata is None:
                self._metadata = event
            elif _base(event) == _base(self._metadata):
                self._second_headers += 1
                return False
            else:
                self._other_from = raw.offset_bytes
                self._lost_before = (reader.lost_parts, reader.lost_events, reader.lost_bytes)
        if self._other_from is not None:
            # Its times are relative to another base, and events are not changed.
            self._other_events += 1
            return False
        self._counts[phase] += 1
        self._slices.add(event)
        return True

    def write(self, file: BinaryIO | GzipWriter, *, close: bool) -> None:
        """Write a clean trace: the bytes before the damage as they are, and the events behind it."""
        reader, early = self._reader, self._early
        between = b",\n"
        if self._sound_bytes:
            self._copy_sound(file)
        else:
            between = b"[\n"
            if reader.form == "object":
                file.write(b"{\n" + b"".join(_pair(item) + b",\n" for item in early.items()) + b'"traceEvents": ')
        for run in chain([self._damaged] if self._damaged else [], self._runs):
            file.write(between + b",\n".join(raw.text for raw in run))
            between = b",\n"
        ends = self._slices.ends() if close else []
        self._closed_slices = bool(ends)
        if self._metadata is not None:
            ends.append(self._summary(self._metadata))
        file.write(b"".join(b",\n" + line for line in ends) + b"\n]")
        if reader.form == "object":
            late = [item for item in reader.keys.items() if item[0] not in early]
            file.write(b"".join(b",\n" + _pair(item) for item in late) + b"\n}")
        file.write(b"\n")

    def _copy_sound(self, file: BinaryIO | GzipWriter) -> None:
        left = self._sound_bytes
        with SalvageStream(self._path) as stream:
            while left and (piece := stream.read()):
                file.write(piece[:left])
                left -= min(left, len(piece))
        if left:
            raise StorageError(f"{without_secrets(self._path)}: changes while it is read")

    def _summary(self, metadata: Event) -> bytes:
        report, counts = self.report(), self._counts
        lost = report.lost_events + (report.tail.events if report.tail else 0)
        recovered = {
            "tracekit_version": __version__,
            "lost_parts": report.lost_parts,
            "lost_bytes": report.lost_bytes,
            "tail_bytes": report.tail.length_bytes if report.tail else 0,
            "open_slices": [slice_.name for slice_ in report.open_slices[:_NAMED_SLICES]],
            "closed_slices": self._closed_slices,
        }
        args = {
            "slices": counts["X"] + counts["B"],
            "instants": counts["i"] + counts["I"],
            "counters": counts["C"],
            "dropped": {"lost in a damaged file, at least": lost} if lost else {},
            "recovered": recovered,
        }
        return encode_json({"ph": "M", "name": SUMMARY_EVENT, **place_of(metadata), "args": args})

    def report(self, *, output: str | None = None, kept_as: str | None = None) -> RecoveryReport:
        """Return what was found so far."""
        reader = self._reader
        repairs = reader.repair_counts
        if self._second_headers:
            repairs["second_header"] = repairs.get("second_header", 0) + self._second_headers
        losses, damages, tail = list(reader.losses), list(reader.damages), reader.tail
        parts, events, length = reader.lost_parts, reader.lost_events, reader.lost_bytes
        if self._other_from is not None:
            start, tail = self._other_from, None
            rest = LostBytes(start, reader.bytes_read - start, self._other_events, "another recording")
            losses = [loss for loss in losses if loss.offset_bytes < start] + [rest]
            parts, events, length = self._lost_before
            parts, events, length = parts + 1, events + rest.events, length + rest.length_bytes
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
            events=self._counts.total(),
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


def _base(metadata: Event) -> Any:
    return decode_dict(metadata.args).get(BASE_TIME_KEY)


def _pair(item: tuple[str, bytes]) -> bytes:
    key, value = item
    return b'"%b": %b' % (repair_text(key.encode("latin-1"))[0], value)
