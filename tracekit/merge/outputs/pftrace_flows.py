"""Flow events turned into numbers on the slices that they tie together.

In Chrome JSON an arrow is events of its own (``s``, ``t``, ``f``), which belong to the slice around them. In a native trace
it is a number that its slices carry, so nothing can tie it to a wrong one. Which slice that is follows the rule of
Perfetto's JSON importer: the innermost at that time, or the one that has just ended there; the next one to begin for an
``f`` that does not say ``"bp":"e"``.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.pftrace import flow, flow_end
from tracekit.merge.sorted_items import SortedItems

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["END", "FLOW", "INSTANT", "NEXT", "SLICE", "START", "STEP", "bind_flows"]

SLICE, INSTANT, FLOW = range(3)
"""Kinds of items."""

START, STEP, END, NEXT = range(4)
"""Places on an arrow; `NEXT` is an end that belongs to the next slice."""

_ARROW: Final = 0x9E3779B97F4A7C15
_ALL: Final = 2**64 - 1


def bind_flows(items: Iterable[tuple[Any, ...]]) -> SortedItems:
    """Find the slice of every flow event.

    Args:
        items: In order; (start, -end, order, track, `SLICE` or `INSTANT`, bytes), then place and number of every arrow
            that it is said to be on; and (time, 1, order, track, `FLOW`, bytes, place, number) of flow events.

    Returns:
        (start, -end, order, number, whether at its end, fields) for each slice with arrows, in the order of the slices. What
        has no slice stands at (time, 1, order), as the flow event itself.
    """
    ends = SortedItems()
    open_: dict[int, list[tuple[int, int, int]]] = {}
    waiting: dict[int, list[tuple[Any, ...]]] = {}
    for item in items:
        start, minus_end, order, uuid, kind = item[:5]
        if kind == SLICE:
            stack = open_.setdefault(uuid, [])
            while stack and -stack[-1][1] <= start:
                stack.pop()
            stack.append((start, minus_end, order))
            for bound in waiting.pop(uuid, ()):
                ends.add((*bound, start, minus_end, order), 0)
        if kind != FLOW:
            for place, number in zip(item[6::2], item[7::2], strict=True):
                ends.add((number, start, order, place, start, minus_end, order), 0)
        else:
            place, number = item[6:]
            bound = (number, start, order, place)
            if place == NEXT:
                waiting.setdefault(uuid, []).append(bound)
                continue
            stack = open_.get(uuid, [])
            while stack and -stack[-1][1] < start:
                stack.pop()
            ends.add((*bound, *(stack[-1] if stack else item[:3])), 0)
    for left in waiting.values():
        for number, time, order, place in left:
            ends.add((number, time, order, place, time, 1, order), 0)
    fields = SortedItems()
    for number, arrow in groupby(ends, key=lambda end: end[0]):
        for position, (slice_, late, text) in enumerate(_fields(number, arrow)):
            fields.add((*slice_, number, position, late, text), len(text))
    ends.close()
    return fields


def _fields(number: int, arrow: Iterable[tuple[Any, ...]]) -> Iterable[tuple[tuple[int, ...], bool, bytes]]:
    """Yield what the slices of one arrow carry: the slice, whether at its end, and the field."""
    source: tuple[int, ...] | None = None
    ended = True
    further = 0
    for _, _, _, place, *where in arrow:
        slice_ = tuple(where)
        # An arrow goes from what begins earlier to what begins later, unless the number stands at the end of the slice.
        late = source is not None and slice_ < source
        if place == START:
            if ended:
                source, ended = slice_, False
                yield slice_, False, flow(number)
        elif place == STEP:
            source, ended = slice_, False
            yield slice_, late, flow(number)
        elif source is None or not ended:
            ended = True
            yield slice_, late, flow_end(number)
        else:
            # The number of an arrow that has ended begins another one: each further end has one of its own.
            further += 1
            another = (number + further * _ARROW) & _ALL
            yield source, False, flow(another)
            yield slice_, late, flow_end(another)
