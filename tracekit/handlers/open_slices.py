"""OpenSlices: the slices that are open between two batches, where one file ends and the next begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.events import BEGIN, END, WIDTH, count_kinds, places

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class OpenSlices:
    """Follows the starts and finishes of the slices that stay open from one batch to the next.

    A batch has the start of every slice that is open at its end, so no other state is carried over to the next batch.
    """

    __slots__ = ("_by_track",)

    def __init__(self) -> None:
        self._by_track: dict[int, list[tuple[int, int]]] = {}  # track: (label, start ns), the outermost first

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield (label, start in monotonic ns, track), outer slices before inner ones."""
        for track, slices in self._by_track.items():
            for label, start_ns in slices:
                yield label, start_ns, track

    def follow(self, records: Sequence[Any]) -> None:
        """Take in the records of a batch (see `tracekit.events`)."""
        if not any(count_kinds(records, BEGIN, END)):
            return
        edges = [
            (records[at * WIDTH + 1], records[at * WIDTH + 2], records[at * WIDTH], records[at * WIDTH + 3])
            for at in places(records, BEGIN, END)
        ]
        # The sort is stable: at equal times, ends stay before starts.
        for time_ns, kind, label, track in sorted(edges, key=lambda edge: edge[0]):
            slices = self._by_track.setdefault(track, [])
            if kind == BEGIN:
                slices.append((label, time_ns))
            elif slices:
                slices.pop()
        self._by_track = {track: slices for track, slices in self._by_track.items() if slices}

    def begins(self, at_ns: int | None = None) -> list[Any]:
        """Return records that start every open slice, outer ones first, at ``at_ns`` or, if that is None, at its true start."""
        return [
            entry
            for label, start_ns, track in self
            for entry in (label, start_ns if at_ns is None else at_ns, BEGIN, track)
        ]

    def ends(self, at_ns: int) -> list[Any]:
        """Return records that finish every open slice at ``at_ns``, inner ones first."""
        return [entry for label, _, track in reversed(list(self)) for entry in (label, at_ns, END, track)]
