"""Which names are wanted, and which slices hold an event of such a name."""

from __future__ import annotations

import re
from bisect import bisect_left
from fnmatch import translate
from typing import TYPE_CHECKING, Any, ClassVar

from tracekit.formats.event_fields import raw_number
from tracekit.formats.trace_event import Raw, decode_or_none

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["TrackId", "WantedNames"]

TrackId = tuple[Any, Any]
"""``pid`` and ``tid`` of an event, as they stand in the file."""


class WantedNames:
    """Knows whether a name is wanted, once `note` was told of every event also whether a slice holds one.

    Slices of a track are nested, so that one holds the first wanted event that begins within it, or none.

    Args:
        patterns: Names, with ``*``, ``?`` and ``[...]`` as in a shell; case counts.
    """

    ON_TRACKS: ClassVar = frozenset("XBiIR")
    """The phases of events that stand in a slice of their thread."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._pattern = re.compile("|".join(map(translate, sorted(patterns))))
        self._fitting: dict[bytes, bool] = {}
        self._starts: dict[TrackId, list[int]] = {}
        self._sorted = False

    def fits(self, name: bytes) -> bool:
        """Tell whether a name, as it stands in the file, is wanted."""
        known = self._fitting.get(name)
        if known is None:
            text = decode_or_none(Raw(name)) if name else ""
            known = self._fitting[name] = isinstance(text, str) and self._pattern.match(text) is not None
        return known

    def note(self, track: TrackId, name: bytes, start: int) -> None:
        """Note where an event begins, if its name is wanted."""
        if self.fits(name):
            self._starts.setdefault(_plain(track), []).append(start)

    def wants(self, track: TrackId, name: bytes, start: int, end: int) -> bool:
        """Tell whether an event is wanted for its name, or for that of one within it."""
        if self.fits(name):
            return True
        if not self._sorted:
            for starts in self._starts.values():
                starts.sort()
            self._sorted = True
        starts = self._starts.get(_plain(track), [])
        at = bisect_left(starts, start)
        return at < len(starts) and starts[at] < end


def _plain(track: TrackId) -> TrackId:
    pid, tid = track
    return raw_number(pid), None if tid is None else raw_number(tid)
