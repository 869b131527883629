"""Slices that overlap without nesting, moved to lanes of their own.

A thread's track holds slices that nest. Perfetto before v57 drops an ``X`` that begins inside another one and ends after
it (``slice_drop_overlapping_complete_event``), later versions move it aside; GPU streams, threads with rounded times, and
a marker and an operator measured by two clocks have such slices. They go to a second track, so that nothing is lost.

Times are kept in arrays of 64-bit integers, 16 bytes a slice.
"""

from __future__ import annotations

from array import array
from typing import Final

__all__ = ["ANY", "BEGIN", "DROPPED", "END", "INVALID", "Slices", "assign_lanes"]

BEGIN: Final = -1
"""In place of a duration: the event is a ``B``."""
END: Final = -2
"""In place of a duration: the event is an ``E``."""
INVALID: Final = -3
"""In place of a duration: the event has no usable time and is not written."""

ANY: Final = -1
"""In place of a name or category: there is none, so an ``E`` ends whatever is open."""

DROPPED: Final = -1
"""In place of a lane: an ``E`` without its ``B``."""

_NEVER_ENDS: Final = 2**63 - 1


class Slices:
    """The slice events (``X``, ``B``, ``E``) of one track of one file, in the order of the file.

    Attributes:
        starts: When each begins (an ``E``: when it happens), ns in the file's own time.
        durations: How long each takes, ns, or one of `BEGIN`, `END`, `INVALID`.
        names: Of every ``B`` and ``E`` in turn, a number that stands for its name, `ANY` when it has none.
        categories: The same for their categories.
    """

    __slots__ = ("categories", "durations", "names", "starts")

    def __init__(self) -> None:
        self.starts = array("q")
        self.durations = array("q")
        self.names = array("q")
        self.categories = array("q")

    def clear(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]


def assign_lanes(parts: list[tuple[Slices, int]]) -> list[dict[int, int]]:
    """Find the slices of one track that must leave it.

    The order is Perfetto's: by start, at the same start the longer first, then the order of the input. A slice belongs on the
    first lane on which it lies inside, or after, what is open there.

    Args:
        parts: The slices of the track, one part for each file, with the ns to add to that file's times.

    Returns:
        For each part the events that do not stay on lane 0: their index, and their lane or `DROPPED`.
    """
    moves: list[dict[int, int]] = [{} for _ in parts]
    if _all_nest(parts):
        return moves
    spans: list[tuple[int, int, int, int, int]] = []
    for number, (slices, shift) in enumerate(parts):
        _collect(slices, shift, number, spans, moves[number])
    spans.sort()
    lanes: list[list[int]] = [[]]
    base = lanes[0]
    for start, minus_end, number, index, closing in spans:
        end = -minus_end
        while base and base[-1] <= start:
            base.pop()
        if not base or end <= base[-1]:
            base.append(end)
            continue
        lane = _find_lane(lanes, start, end)
        moves[number][index] = lane
        if closing >= 0:
            moves[number][closing] = lane
    return moves


def _all_nest(parts: list[tuple[Slices, int]]) -> bool:
    """Tell, for the usual track of nested ``X``, that nothing must leave it; in case of doubt it says no."""
    spans: list[tuple[int, int]] = []
    for slices, shift in parts:
        if slices.names or INVALID in slices.durations:
            return False
        spans += [
            (start + shift, -start - shift - duration)
            for start, duration in zip(slices.starts, slices.durations, strict=True)
        ]
    spans.sort()
    # Ends of what is open, negated; the first never ends.
    open_ = [-_NEVER_ENDS]
    for start, minus_end in spans:
        while -open_[-1] <= start:
            open_.pop()
        if minus_end < open_[-1]:
            return False
        open_.append(minus_end)
    return True


def _collect(
    slices: Slices, shift: int, number: int, spans: list[tuple[int, int, int, int, int]], moves: dict[int, int]
) -> None:
    """Append (start, -end, part, index, index of its ``E`` or -1) of every slice."""
    pairs: list[tuple[int, int, int, int]] = []
    for index, (start, duration) in enumerate(zip(slices.starts, slices.durations, strict=True)):
        if duration >= 0:
            begin = start + shift
            spans.append((begin, -begin - duration, number, index, -1))
        elif duration != INVALID:
            position = len(pairs)
            pairs.append((start, index, slices.names[position], slices.categories[position]))
    if not pairs:
        return
    # An E ends the innermost open B of its name and category, as in Perfetto (slice_tracker.cc); time decides, then the
    # order of the file.
    pairs.sort()
    open_: list[tuple[int, int, int, int]] = []
    for time, index, name, category in pairs:
        if slices.durations[index] == BEGIN:
            open_.append((time, index, name, category))
            continue
        for position in range(len(open_) - 1, -1, -1):
            start, begin, begin_name, begin_category = open_[position]
            if name in (ANY, begin_name) and category in (ANY, begin_category):
                del open_[position]
                spans.append((start + shift, -(time + shift), number, begin, index))
                break
        else:
            moves[index] = DROPPED
    spans.extend((start + shift, -_NEVER_ENDS, number, begin, -1) for start, begin, _, _ in open_)


def _find_lane(lanes: list[list[int]], start: int, end: int) -> int:
    for number, stack in enumerate(lanes[1:], 1):
        while stack and stack[-1] <= start:
            stack.pop()
        if not stack or end <= stack[-1]:
            stack.append(end)
            return number
    lanes.append([end])
    return len(lanes) - 1
