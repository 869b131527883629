"""Which slice lies in which: from rows in order of time to self times, and to the time in which nothing was going on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.analysis.markers import TRANSPARENT, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tracekit.analysis.steps import Steps
    from tracekit.spill import Row

__all__ = ["MOST_DEPTH", "MOST_LANES", "Slice", "nested"]

MOST_DEPTH: Final = 512
"""Slices that lie deeper are counted, but taken for nobody's children: Perfetto shows no more."""
MOST_LANES: Final = 16
"""Slices of one track that reach into each other without nesting lie side by side in so many lanes."""


Slice = tuple[int, int, int, int, int, int, int, int]
"""Start, end, number of the marker, self time (what no direct child covers), how many enclosing slices there are (frames and
steps not counted), the kinds of all enclosing slices, joined, its own, and its lane. Slices of one lane nest, and those of
different lanes may cross. Times are ns."""

_FRAME: Final = int(Kind.FRAME)
_LOOKED_THROUGH: Final = int(TRANSPARENT)


def nested(
    windows: Iterable[list[Row]],
    kinds: Sequence[int],
    shift_ns: int = 0,
    steps: Steps | None = None,
    gap: Callable[[int, int, int, int], None] | None = None,
) -> Iterator[Slice]:
    """Yield the slices of a track when they end. A slice that crosses the end of another one goes to another lane.

    Args:
        windows: Rows (start, -end, number of the event, marker) in order; the first of equal slices is the outer one.
        kinds: The kind of each marker.
        shift_ns: What to add to their times.
        steps: Those of the rank. What takes longer than the longest of them, and in which one begins, is a frame, whatever its
            kind: it encloses whole steps.
        gap: Called with (from, to, marker before, marker after) for each stretch without any slice.
    """
    # An open slice is [end, start, marker, time of its children, depth within, kinds within, its own kind].
    lanes: list[list[list[int]]] = [[]]
    covered, before = None, -1
    longest_ns = steps.longest_ns if steps else 1 << 62
    for window in windows:
        for start, minus_end, _, marker in window:
            start += shift_ns  # noqa: PLW2901 - the time that counts from here on
            end = shift_ns - minus_end
            own = kinds[marker]
            if end - start > longest_ns and steps is not None and steps.any_begins(start, end):
                own |= _FRAME
            seen = not own & _LOOKED_THROUGH
            if seen:
                if covered is None or start > covered:
                    if covered is not None and gap is not None:
                        gap(covered, start, before, marker)
                    covered, before = end, marker
                elif end > covered:
                    covered, before = end, marker
            # A slice without a length lies in one that begins at the same time, and after one that ends there.
            lane, stack = 0, lanes[0]
            while len(lanes) == 1 and stack and stack[-1][0] <= start:
                yield _closed(stack, lane)
            if len(lanes) > 1 or (stack and stack[-1][0] < end):
                yield from _close(lanes, start)
                while len(lanes) > 1 and not lanes[-1]:
                    lanes.pop()
                # Prefer a lane whose open slice encloses this one over an empty lane.
                fitting = [number for number, stack in enumerate(lanes) if stack and stack[-1][0] >= end]
                fitting = fitting or [number for number, stack in enumerate(lanes) if not stack]
                if not fitting and len(lanes) >= MOST_LANES:
                    yield start, end, marker, end - start, 0, 0, own, -1
                    continue
                if not fitting:
                    lanes.append([])
                lane = fitting[0] if fitting else len(lanes) - 1
                stack = lanes[lane]
            depth = around = 0
            if stack:
                top = stack[-1]
                depth, around = top[4], top[5]
                if len(stack) >= MOST_DEPTH:
                    yield start, end, marker, end - start, depth, around, own, lane
                    continue
                top[3] += end - start
            stack.append([end, start, marker, 0, depth + seen, around | own, own])
    yield from _close(lanes, None)


def _close(lanes: list[list[list[int]]], until: int | None) -> Iterator[Slice]:
    """Yield the open slices that end until a time, or all, in the order of their ends."""
    while True:
        lane, first = -1, until
        for number, stack in enumerate(lanes):
            if stack and (first is None or stack[-1][0] < first or (lane < 0 and stack[-1][0] == first)):
                lane, first = number, stack[-1][0]
        if lane < 0:
            return
        yield _closed(lanes[lane], lane)


def _closed(stack: list[list[int]], lane: int) -> Slice:
    end, start, marker, children, _, _, own = stack.pop()
    depth, around = (stack[-1][4], stack[-1][5]) if stack else (0, 0)
    return start, end, marker, end - start - children, depth, around, own, lane
