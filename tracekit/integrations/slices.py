"""NestedMarkers: the open slices of a training loop, one inside the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.recording.marker import Marker


class NestedMarkers:
    """The open slices of one thread by key, each inside the one before it."""

    def __init__(self) -> None:
        self._open: dict[str, Marker] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._open

    def begin(self, key: str, marker: Marker) -> None:
        """Begin a slice. An open one with the same key ends first."""
        self.end(key)
        marker.start()
        self._open[key] = marker

    def end(self, key: str) -> None:
        """End a slice and those inside it, if it is open."""
        if key in self._open:
            self.close(inside=key)
            self._open.pop(key).finish()

    def close(self, inside: str = "") -> None:
        """End all slices, the innermost first, or only those inside one of them."""
        while self._open and next(reversed(self._open)) != inside:
            self._open.popitem()[1].finish()
