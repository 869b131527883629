"""Read everything that can be read of a cut or damaged trace, each event with its bytes.

The file is plain, or gzip that is cut off, torn, or damaged in the middle of a member.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.byte_stream import GZIP_MAGIC, ByteStream
from tracekit.formats.json.reader import HEADER_KEYS, MAX_EVENT_BYTES, RawEvent, TraceReader, decode
from tracekit.formats.rank_trace import BASE_TIME_KEY, METADATA_EVENT
from tracekit.formats.trace_event import PHASES, UNSET, Event, decode_run, raw_field

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAX_KEYS: Final = 256  # Perfetto's engine crashes on more
_EVENT: Final = re.compile(rb'\{[ \t\r\n]*"(?:ph|name|cat|pid|tid|ts|dur|id|args)"[ \t\r\n]*:')
_HEADER: Final = re.compile(rb'\[[ \t\r\n]*\{[ \t\r\n]*"')
_METADATA: Final = f'"{METADATA_EVENT}"'.encode()

TEAR: Final = b"\0\0"
"""Stands in the text where something of the packed file could not be unpacked, as zeros do in a file after a crash. A single
zero is a control character of a text, which is repaired."""

_MEMBER: Final = re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_GZIP_WBITS: Final = 31
_TRIAL_BYTES: Final = 4096
# Unpacking runs past the end of a torn member into the next one before it notices.
_LOOK_BACK_BYTES: Final = 64 * 1024


class SalvageReader(TraceReader):
    """Reads one file for recovery. Iterate `raw_runs` once, to its end.

    A `TraceReader` stops at the end of the first document. This one reads on: behind torn gzip members, behind closing brackets,
    below a second header. After damage it accepts only objects with the fields of an event.
    """

    def __init__(self, path: str) -> None:
        stream = SalvageStream(path)
        self.keys: dict[str, bytes] = {}  # next to ``traceEvents``, with the text of their values
        self.damages = stream.damages
        self._by_tracekit = False
        super().__init__(path, stream=stream)

    @property
    def repair_counts(self) -> dict[str, int]:
        """The number of repairs without loss, by kind."""
        return {found.kind: found.count for found in self.repairs if found.kind not in ("cut_file", "second_events")}

    @property
    def is_damaged(self) -> bool:
        """True if anything before the present place was lost or repaired."""
        return bool(self.repair_counts or self.damages or self.lost_parts or self._lost_from is not None)

    def raw_runs(self) -> Iterator[list[RawEvent]]:
        """Yield the events in the order of the file, in runs of bounded size."""
        self._read_head()
        yield from self._runs(self._decode_raw, raw=True)

    def _decode_raw(self, body: bytes, spans: Sequence[int]) -> list[RawEvent] | None:
        events = decode_run(body)
        if body.count(b'"ph"') > sum(event.ph is not UNSET for event in events):  # each is looked at alone
            return None
        self._by_tracekit = self._by_tracekit or any(raw_field(event.name) == _METADATA for event in events)
        return [
            RawEvent(self.text[begin:end], event, self._offset + begin)
            for event, begin, end in zip(events, spans[::2], spans[1::2], strict=True)
        ]

    def _begin(self) -> None:
        self.in_events = True

    def _read_head(self) -> None:
        self.fill()
        self._skip_mark()
        self._skip_separator()
        self._commas = 0
        # The object form may begin with a key of that name.
        if self._looks_like(_EVENT) and (end := self._find_end(0, MAX_EVENT_BYTES)) is not None:
            event = decode(self.text[self.at : end])
            if event is not None and event.ph is not UNSET:
                self._note("missing_bracket", 0, "")
                return
        if self.text.startswith((b"[", b"{"), self.at):
            self.at += 1
            if self.text[self.at - 1] == ord("{"):
                self._read_keys()
        elif self.at < len(self.text):
            self._lose()

    def _take_key(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1")
        if key in self.keys:
            if key == BASE_TIME_KEY and self.keys[key] != value:
                begins = value.decode(errors="replace")
                self.damages.append(
                    f"a second document in the file counts its times from {begins} ns; its events are at wrong times"
                )
        elif len(self.keys) < _MAX_KEYS:
            self.keys[key] = value

    def _enter_document(self) -> bool:
        char = self.text[self.at]
        if char == ord("{") and self.closed and self.form == "object" and not self._looks_like(_EVENT):
            self._enter()
            self.closed = False
            self._read_keys()
        elif char == ord("[") and self._lost_from is None and self._looks_like(_HEADER):
            self._enter()
        else:
            return False
        return True

    def _enter(self) -> None:
        self.at += 1
        self._commas, self._expects_comma = 0, False
        self._note("second_header", self._offset + self.at, "")

    def _end_array(self) -> None:
        if self.closed:
            self._note("data_after_end", self._offset + self.at, "")
        self.closed = self.form == "array"
        if not self.closed:
            self._read_keys()

    def _accepts(self, event: Event, text: bytes) -> bool:
        # After a tear, other objects are parts of the arguments of a torn event.
        if (self._lost_from is not None or self.closed) and (
            event.ph not in PHASES or event.pid is UNSET or (event.ph != "M" and event.ts is UNSET)
        ):
            return False
        if text.count(b'"ph"') > 1 and _is_fused(text):
            return False
        if self.form == "object" and event.extra is not UNSET and not HEADER_KEYS.isdisjoint(event.extra):
            return False
        if self.closed:
            self.closed = False
            self._note("data_after_end", self._offset + self.at, "")
        self._by_tracekit = self._by_tracekit or raw_field(event.name) == _METADATA
        return True

    def _mend(self) -> tuple[bytes, int, list[str]] | None:
        # tracekit writes no event that needs it, so that a broken one is a torn one.
        return None if self._by_tracekit or self._lost_from is not None else super()._mend()

    def _may_mend(self, text: bytes) -> bool:
        return b'"ph"' in text and TEAR not in text and super()._may_mend(text)

    def _is_hopeless(self) -> bool:
        return False


def _is_fused(text: bytes) -> bool:
    """Return True for an object made of two events between which a part of the file is missing."""
    fused = False

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal fused
        fields = dict(items)
        fused = fused or ("ph" in fields and len(fields) < len(items))
        return fields

    json.JSONDecoder(object_pairs_hook=pairs).decode(text.decode("latin-1"))
    return fused


class SalvageStream(ByteStream):
    """Reads a file, and all of a gzip file that can be unpacked.

    A `ByteStream` ends at the first damage. This one returns every byte before it, then looks for the next member of the gzip
    file and goes on there.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._damaged_at = 0
        self._unpacked = b""  # the last of the packed bytes of this member that were unpacked

    @staticmethod
    def _new_inflater() -> Any:
        return zlib.decompressobj(_GZIP_WBITS)  # isal's cannot be copied

    def _next_member(self) -> bytes:
        self._unpacked = b""
        self._packed = self._packed.lstrip(b"\0")
        if 0 < len(self._packed) < len(GZIP_MAGIC):
            self._more()
        if not self._packed or self._packed.startswith(GZIP_MAGIC):
            return super()._next_member()
        self._damaged_at = self._read_bytes - len(self._packed)
        self._find_member("what follows is no gzip data")
        return TEAR

    def _decompress(self, limit: int) -> bytes:
        spare = self._inflater.copy()
        try:
            piece: bytes = self._inflater.decompress(self._packed, limit)
        except zlib.error as error:
            piece = self._crumbs(spare)
            self._find_member(str(error).partition("decompressing data: ")[2] or str(error))
            return piece + TEAR
        rest = self._inflater.unconsumed_tail or self._inflater.unused_data
        self._unpacked = (self._unpacked + self._packed[: len(self._packed) - len(rest)])[-_LOOK_BACK_BYTES:]
        self._packed = rest
        return piece

    def _crumbs(self, inflater: Any) -> bytes:
        """Unpack byte by byte what comes before the damage; it lies within one piece."""
        crumbs = []
        self._unpacked += self._packed
        for at in range(len(self._packed)):
            try:
                crumbs.append(inflater.decompress(self._packed[at : at + 1]))
            except zlib.error:
                self._damaged_at = self._read_bytes - len(self._packed) + at
                self._packed = self._unpacked
                break
        return b"".join(crumbs)

    def _find_member(self, reason: str) -> None:
        """Find the next member that can be unpacked to text, and go on there; or end."""
        self._inflater, self._unpacked = None, b""
        at = 1
        while True:
            found = _MEMBER.search(self._packed, at)
            # A member shows what it is within a few bytes, which may not have been read yet.
            if found is None or len(self._packed) - found.start() < _TRIAL_BYTES:
                at = max(0, len(self._packed) - 3) if found is None else found.start()
                self._packed, at = self._packed[at:], 0
                if self._more():
                    continue
                found = _MEMBER.match(self._packed)
                if found is None:
                    break
            if _holds_text(self._packed[found.start() : found.start() + _TRIAL_BYTES]):
                self._packed = self._packed[found.start() :]
                self._inflater = self._new_inflater()
                break
            at = found.start() + 1
        goes_on = (
            f"reading goes on at byte {self._read_bytes - len(self._packed)}" if self._inflater else "the rest is lost"
        )
        self._note_damage(f"the gzip file is damaged at byte {self._damaged_at} ({reason}); {goes_on}")

    def _more(self) -> bool:
        piece = self._read_file()
        self._packed += piece
        return bool(piece)


def _holds_text(packed: bytes) -> bool:
    # The magic of gzip also appears in packed data by chance; what follows it there unpacks to noise, if at all.
    try:
        text = zlib.decompressobj(_GZIP_WBITS).decompress(packed, _TRIAL_BYTES)
    except zlib.error:
        return False
    return bool(text) and not _NO_TEXT.search(text)
