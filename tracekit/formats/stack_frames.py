"""Stack frames of the Trace Event Format: the header table ``stackFrames``.

Events refer to a frame by its id in ``sf``. ``esf`` is the id of the stack at the end of a slice. The ``parent`` of a
frame is the id of its caller. Ids are numbers or strings; ``7`` and ``"7"`` are the same id. Keys of the table are
strings.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.trace_event import UNSET, Raw, decode_or_none, encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.formats.trace_event import Event

STACK_FRAMES: Final = "stackFrames"
PARENT: Final = "parent"  # the key of a frame with the id of its caller
_FRAME: Final = "sf"
_END_FRAME: Final = "esf"
_SAMPLES: Final = "samples"
_ID_BYTES: Final = 8
_MOST_KNOWN: Final = 1000
_MOST_LISTED: Final = 100


def _frame_key(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def frame_key(raw: bytes) -> str | None:
    """Return the table key of an id, from its JSON text, or None if it is not an id."""
    return _frame_key(decode_or_none(Raw(raw)))


def rename_frames(event: Event, new: Callable[[bytes], Raw]) -> None:
    """Replace the frame ids of an event, if it has any, by what ``new`` returns for them; both are JSON text."""
    if event.sf is not UNSET:
        event.sf = new(bytes(event.sf))
    if event.extra is not UNSET and _END_FRAME in event.extra:
        event.extra = {**event.extra, _END_FRAME: new(bytes(event.extra[_END_FRAME]))}


def numbered_frames(header: Mapping[str, Any]) -> dict[str, int]:
    """Return a new id for each frame of a trace's table. The new ids are numbers without a meaning."""
    table = header.get(STACK_FRAMES)
    return {key: number for number, key in enumerate(table if isinstance(table, dict) else (), 1)}


def renumber(header: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    """Return the header with new frame ids in the table and in ``samples``, which also refer to frames."""

    def renamed(entry: Any, field: str) -> Any:
        key = _frame_key(entry.get(field)) if isinstance(entry, dict) else None
        return entry if key is None or key not in ids else {**entry, field: ids[key]}

    found = dict(header)
    table, samples = found.get(STACK_FRAMES), found.get(_SAMPLES)
    if isinstance(table, dict):
        found[STACK_FRAMES] = {str(ids.get(key, key)): renamed(frame, PARENT) for key, frame in table.items()}
    if isinstance(samples, list):
        found[_SAMPLES] = [renamed(sample, _FRAME) for sample in samples]
    return found


class StackFrames:
    """The frames of one file, with ids that are equal in every file for the same frame with the same callers.

    An id is a hash of the frame and its callers. So the tables of many files can be joined without communication
    between their readers, a frame occurs once, and another join does not change the ids.

    Args:
        table: The decoded ``stackFrames``. Invalid frames are skipped, and callers that are missing or close a cycle.
    """

    def __init__(self, table: Any) -> None:
        self.used: dict[str, bytes] = {}  # the frames that events refer to, with all their callers, as JSON text
        self._ids: dict[str, str] = {}
        self._frames: dict[str, tuple[bytes, str | None, str]] = {}
        self._known: dict[bytes, Raw] = {}
        frames = (
            {key: frame for key, frame in table.items() if isinstance(frame, dict)} if isinstance(table, dict) else {}
        )
        for key in frames:
            self._add(key, frames)

    def __bool__(self) -> bool:
        return bool(self._ids)

    def rename(self, event: Event) -> None:
        """Replace the ids of an event by those of this table. Keep an id that is not in the file's table."""
        rename_frames(event, lambda raw: self._replaced(raw, self._renamed))

    def write_out(self, event: Event) -> None:
        """Replace the ids of an event by lists of frames, for a format without a frame table. Innermost frame first."""
        rename_frames(event, lambda raw: self._replaced(raw, self._written_out))

    def _add(self, key: str, frames: dict[str, dict[str, Any]]) -> None:
        import hashlib  # few traces have stack frames

        way: dict[str, None] = {}
        at: str | None = key
        while at is not None and at in frames and at not in way and at not in self._ids:
            way[at] = None
            at = _frame_key(frames[at].get(PARENT))
        parent = None if at is None else self._ids.get(at)
        for found in reversed(way):
            frame = frames[found]
            # An id must not depend on the order of the fields.
            fields = {name: frame[name] for name in sorted(frame) if name != PARENT}
            text = encode_json(fields if parent is None else {**fields, PARENT: parent})
            # The hash needs no secrecy, only a short text without accidental collisions.
            name = hashlib.blake2b(text, digest_size=_ID_BYTES).hexdigest()
            self._ids[found] = name
            self._frames[name] = text, parent, _words(fields)
            parent = name

    def _replaced(self, raw: bytes, new: Callable[[str], Any]) -> Raw:
        known = self._known.get(raw)
        if known is None:
            key = frame_key(raw)
            name = None if key is None else self._ids.get(key)
            if name is None:
                return Raw(raw)
            known = self._known[raw] = Raw(encode_json(new(name)))
        return known

    def _renamed(self, name: str) -> str:
        at: str | None = name
        while at is not None and at not in self.used:
            self.used[at], at, _ = self._frames[at]
        return name

    def _written_out(self, name: str) -> list[str]:
        if len(self._known) >= _MOST_KNOWN:  # each entry contains all callers
            self._known.clear()
        stack: list[str] = []
        at: str | None = name
        while at is not None:
            _, at, words = self._frames[at]
            stack.append(words)
        if len(stack) > _MOST_LISTED:
            stack[_MOST_LISTED:] = [f"{len(stack) - _MOST_LISTED} more"]
        return stack


def _words(fields: dict[str, Any]) -> str:
    name, category = fields.get("name"), fields.get("category")
    if isinstance(name, str) and name:
        return f"{name} ({category})" if isinstance(category, str) and category else name
    return json.dumps(fields)
