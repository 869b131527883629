"""Extend the cached tables of a rank trace that has grown: read its new bytes only, and add a part to each table.

The rows of a part keep their numbers. A new slice may enclose rows of earlier parts, or be enclosed by them, and a new step may
contain them: such rows are nested again and move to the new part. Parts are merged: each has at least twice the rows of the
next. Slices that are open at the end of the file are kept as events; the next part cuts off their rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.byte_stream import TraceStream
from tracekit.formats.rank_trace import TIMESTAMP_EVENT
from tracekit.formats.trace_event import decode_or_none, encode_event
from tracekit.storage import is_remote
from tracekit.structs import Struct, asdict, field

if TYPE_CHECKING:
    from typing_extensions import Self

    from tracekit.formats.json.reader import TraceReader
    from tracekit.formats.trace_event import Event

_FILE: Final = "growth"
_PREFIX_BYTES: Final = 64 * 1024
_CHECKED_BYTES: Final = 64
_PIECE_BYTES: Final = 256 * 1024
_MAX_LOG_BYTES: Final = 64 * 1024 * 1024
_SEPARATORS: Final = b" \t\r\n,"


class Part(Struct):
    """A part of a table."""

    name: str  # the name of its file in the entry
    first_row: int  # the number of its first row in the table
    rows: int  # the number of its rows that count; the file may have more


class Growth(Struct):
    """The state from which the tables of a file are extended."""

    at: int = 0  # the offset behind the last whole record
    checked: str = ""  # the bytes before it, in hexadecimal digits
    prefix: str = ""  # the hash of the first bytes of the file
    prefix_bytes: int = 0  # their number
    unusable: int = 0  # the number of events without a usable time
    rows: dict[str, int] = field(default_factory=dict)  # the number of rows of each table, without those of open slices
    parts: dict[str, list[Part]] = field(default_factory=dict)  # the parts of each table
    serial: int = 0  # the number of extensions
    tracks: list[tuple[str, str]] = field(default_factory=list)  # pid and tid of each track, as JSON
    begun: list[tuple[int, str]] = field(default_factory=list)  # track and event of each open slice
    waiting: list[str] = field(default_factory=list)  # the events of open async slices
    metadata: list[str] = field(default_factory=list)  # the metadata events, except training times
    steps: list[list[Any]] = field(default_factory=list)  # the state of a `StepCollector`
    log_bytes: int = 0  # the size of the metadata

    def note_metadata(self, event: Event) -> None:
        """Keep a metadata event."""
        if decode_or_none(event.name) != TIMESTAMP_EVENT:  # those are in `steps`
            text = encode_event(event)
            self.log_bytes += len(text)
            self.metadata.append(text.decode("utf-8", "surrogateescape"))

    def stop(self, reader: TraceReader, path: str, start: int) -> bool:
        """Record the end of the last whole record; return False if the file cannot be extended."""
        is_plain = reader.form == "array" and not (reader.compressed or reader.foreign or is_remote(path))
        is_whole = not reader.lost_parts and all(repair.kind == "cut_file" for repair in reader.repairs)
        if not is_plain or not is_whole or self.log_bytes > _MAX_LOG_BYTES:
            return False
        end = start + (reader.bytes_read if reader.tail is None else reader.tail.offset_bytes)
        with Path(path).open("rb") as file:
            prefix = file.read(min(_PREFIX_BYTES, end))
            file.seek(max(0, end - _PIECE_BYTES))
            last = file.read(end - file.tell()).rstrip(_SEPARATORS)
            if not last.endswith(b"}"):
                return False
            file.seek(max(0, end - _PIECE_BYTES))
            self.at = file.tell() + len(last)
        self.checked = last[-_CHECKED_BYTES:].hex()
        self.prefix, self.prefix_bytes = _digest(prefix), len(prefix)
        return True

    def save(self, folder: Path) -> None:
        """Write the state to the folder of an entry."""
        document = asdict(self)
        document["parts"] = {name: [asdict(part) for part in parts] for name, parts in self.parts.items()}
        (folder / _FILE).write_text(json.dumps(document), encoding="ascii")


def is_extendable(folder: Path) -> bool:
    """Return True if an entry has a state from which it can be extended."""
    return (folder / _FILE).exists()


def load_growth(folder: Path, path: str) -> Growth | None:
    """Return the state of an entry; None if it has none, or the file was truncated or has another beginning."""
    try:
        found = Growth(**json.loads((folder / _FILE).read_text(encoding="ascii")))
        with Path(path).open("rb") as file:
            prefix = file.read(found.prefix_bytes)
            checked = bytes.fromhex(found.checked)
            file.seek(found.at - len(checked))
            if file.read(len(checked)) != checked or _digest(prefix) != found.prefix:
                return None
    except (OSError, ValueError, TypeError):
        return None
    found.parts = {name: [Part(**part) for part in parts] for name, parts in found.parts.items()}  # type: ignore[arg-type]
    return found


def link_part(source: Path, target: Path) -> None:
    """Make the file of a part available in another entry."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


class NewBytes(TraceStream):
    """The new records of an array, as an array.

    Args:
        path: The file.
        at: The offset behind the last known record.
    """

    def __init__(self, path: str, at: int) -> None:
        super().__init__(path)
        self._file = Path(path).open("rb")  # noqa: SIM115 - closed by close()
        self._file.seek(at)
        self._has_begun = False
        self.start = at
        """The offset in the file of the first byte of the stream."""

    def read(self) -> bytes:
        """Return the next piece; empty at the end."""
        piece = self._file.read(_PIECE_BYTES)
        if self._has_begun:
            return piece
        self._has_begun = True
        records = piece.lstrip(_SEPARATORS)
        self.start += len(piece) - len(records) - 1
        return b"[" + records

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
