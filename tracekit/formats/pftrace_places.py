"""The tracks of a native trace, and which process and thread of Chrome JSON each one is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tracekit.formats.pftrace_events import text_of
from tracekit.formats.protobuf_wire import fields, signed

__all__ = ["Place", "Places"]

_HASHED: Final = 1 << 63
_GLOBAL: Final = "global tracks"


@dataclass(slots=True)
class _Track:
    parent: int = 0
    name: str = ""
    pid: int | None = None
    tid: int | None = None
    counter: bool = False
    process: str = ""
    thread: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the events of a track go.

    Attributes:
        pid: Process; a name for what is of no process.
        tid: Thread; None for what is of the process as a whole.
        name: Of the track or thread.
        process: Name of the process, where the trace tells it.
        task: The id of async events; empty for all else.
    """

    pid: int | str
    tid: int | str | None
    name: str
    process: str
    task: str = ""


class Places:
    """The tracks that were described so far."""

    def __init__(self) -> None:
        self.merged = False
        """Whether tracekit merged the trace: the numbers of its tracks tell which process and thread they are."""
        self._tracks: dict[int, _Track] = {}
        self._found: dict[int, Place] = {}

    def describe(self, message: bytes) -> Place | None:
        """Learn from a ``TrackDescriptor``; returns the place of a process of a merged trace, which counts without events."""
        uuid, track = 0, _Track()
        for number, value in fields(message):
            if number == 1 and isinstance(value, int):
                uuid = value
            elif number == 5 and isinstance(value, int):
                track.parent = value
            elif number in (2, 10, 13):
                track.name = text_of(value)
            elif number == 8:
                track.counter = True
            elif number == 3 and isinstance(value, bytes):
                process = dict(fields(value))
                track.pid, track.process = int(process.get(1, 0)), text_of(process.get(6, b""))
            elif number == 4 and isinstance(value, bytes):
                thread = dict(fields(value))
                track.pid, track.tid = int(thread.get(1, 0)), signed(int(thread.get(2, 0)))
                track.thread = text_of(thread.get(5, b""))
        self._tracks[uuid] = track
        self._found.clear()
        is_process = self.merged and 0 < uuid < _HASHED and not uuid & 0xFFFFFFFF
        return self.place(uuid) if is_process else None

    def place(self, uuid: int) -> Place:
        """Return where the events of a track go."""
        found = self._found.get(uuid)
        if found is None:
            track = self._tracks.get(uuid, _Track())
            found = self._found[uuid] = self._merged(uuid, track) if self.merged else self._other(uuid, track)
        return found

    @staticmethod
    def _merged(uuid: int, track: _Track) -> Place:
        if uuid >= _HASHED:
            pid = track.parent >> 32
            return Place(pid, None, track.name, "", "" if track.counter else f"{uuid:x}")
        pid, tid = uuid >> 32, uuid & 0xFFFFFFFF
        return Place(
            pid, tid or None, track.thread or (track.name if tid else ""), track.process or ("" if tid else track.name)
        )

    def _other(self, uuid: int, track: _Track) -> Place:
        pid: int | str | None = None
        process, seen, at = "", set(), uuid
        while at in self._tracks and at not in seen:
            seen.add(at)
            above = self._tracks[at]
            pid = above.pid if pid is None else pid
            process = process or above.process
            at = above.parent
        name = track.thread or track.name or track.process
        if track.tid is not None and pid is not None:
            return Place(pid, track.tid, name, process)
        return Place(_GLOBAL if pid is None else pid, None if track.counter else f"track {uuid:x}", name, process)
