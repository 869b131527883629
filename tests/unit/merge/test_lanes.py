from __future__ import annotations

import itertools
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit import core
from tracekit.formats.trace_event import MAX_DEPTH
from tracekit.merge.rewrite.rewriter import Lanes, Rewriter

ANY, BEGIN, END, NO_TIME, DROPPED = -1, -2, -3, -4, -5
EVENT = b"0123456789"
SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8)), max_size=12)


def in_core() -> Any:
    assert core.merge is not None
    return core.merge.Rewriter(b'"none', tempfile.gettempdir())


@pytest.fixture(params=[pytest.param(in_core, marks=pytest.mark.core), Rewriter], ids=["core", "python"])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


def laid(rewriter: Any, output: bytes) -> list[bytes]:
    """Return the text of each event with the patches over it, without what is behind it."""
    text = rewriter.lay(output, 0)
    return [text[at : at + len(EVENT)] for at in range(0, len(text), len(EVENT) + 2)]


def lanes(make: Any, events: Any) -> dict[int, int]:
    """Return the lane of each event that does not stay, by its index.

    Args:
        make: Makes a rewriter.
        events: Slices as (start, duration), or (time, BEGIN or END, name).
    """
    rewriter = make()
    for start, duration, *name in events:
        label = rewriter.label(b'"%d"' % name[0] if name else b"", b"")
        if duration in (BEGIN, END):
            rewriter.append(EVENT, 0, ord("B" if duration == BEGIN else "E"), start, start, 0, label)
        elif duration == NO_TIME:
            rewriter.append(EVENT)
        else:
            rewriter.append(EVENT, 0, ord("X"), start, start + duration, 0)
    output = rewriter.take()
    moved, lost, _, _ = rewriter.finish(lambda log, lane: 1000 * (log + 1) + lane)
    found = {}
    for index, text in enumerate(laid(rewriter, output)):
        if text != EVENT:
            found[index] = int(text) - 1000 if text.strip() else DROPPED
    assert moved == sum(lane != DROPPED for lane in found.values())
    assert lost == len(found) - moved
    return found


@pytest.mark.parametrize(
    ("events", "moves"),
    [
        ([], {}),
        ([(0, 10), (2, 3), (5, 5), (10, 4)], {}),
        ([(0, 10), (5, 10)], {1: 1}),
        ([(5, 10), (0, 10)], {0: 1}),
        ([(0, 10), (9, 2)], {1: 1}),
        ([(0, 10), (0, 10), (0, 5)], {}),
        ([(0, 5), (0, 10)], {}),
        ([(0, 100), (0, 20), (90, 20)], {2: 1}),
        ([(0, 10), (10, 0), (10, 5), (5, 0), (5, 0)], {}),
        ([(0, 10), (5, 10), (7, 10)], {1: 1, 2: 2}),
        ([(0, 10), (5, 10), (12, 10)], {1: 1}),
        ([(0, 10), (5, 10), (20, 10), (25, 10)], {1: 1, 3: 1}),
        ([(0, 10), (0, NO_TIME), (5, 10)], {2: 1}),
        ([(0, BEGIN), (10, END), (5, 10)], {2: 1}),
        ([(0, 10), (5, BEGIN), (12, END)], {1: 1, 2: 1}),
        ([(0, BEGIN), (5, 10), (20, 3)], {}),
        ([(0, 10), (5, BEGIN)], {1: 1}),
        ([(5, END), (6, BEGIN), (7, END), (8, END)], {0: DROPPED, 3: DROPPED}),
        ([(1, BEGIN, 7), (2, BEGIN, 8), (3, END, 7), (4, END, 8)], {1: 1, 3: 1}),
        ([(1, BEGIN, 7), (2, END, 8), (3, END)], {1: DROPPED}),
        ([(5, END), (0, BEGIN)], {}),
        ([(0, 5), (0, BEGIN), (10, END)], {1: 1, 2: 1}),
        ([(0, BEGIN), (10, END), (0, 5)], {0: 1, 1: 1}),
        ([(0, BEGIN), (5, END), (0, 5)], {}),
    ],
)
def test_what_overlaps_without_nesting_gets_a_lane(
    make: Any, events: list[tuple[int, int]], moves: dict[int, int]
) -> None:
    assert lanes(make, events) == moves


@pytest.mark.parametrize("halves", [True, False], ids=["B and E", "X"])
def test_slices_nested_deeper_than_viewers_take_get_a_lane(make: Any, halves: bool) -> None:
    count = MAX_DEPTH + 3
    slices: list[Any] = [(number, 2 * (count - number)) for number in range(count)]
    deepest = set(range(MAX_DEPTH, count))
    if halves:
        slices = [(number, BEGIN, number) for number in range(count)]
        slices += [(2 * count - number, END, number) for number in reversed(range(count))]
        deepest |= set(range(count, count + 3))
    assert lanes(make, slices) == dict.fromkeys(deepest, 1)
    assert lanes(make, slices[:MAX_DEPTH]) == {}


def test_arrows_follow_the_slice_that_moves(make: Any) -> None:
    rewriter = make()
    for start, end in ((0, 10), (5, 15), (20, 30)):
        rewriter.append(EVENT, 0, ord("X"), start, end, 0)
    for time in (5, 0, 6, 20):
        rewriter.append(EVENT, 0, ord("f"), time, time, 0)
    output = rewriter.take()
    rewriter.finish(lambda _, lane: lane)
    assert [index for index, text in enumerate(laid(rewriter, output)) if text != EVENT] == [1, 3]


@given(SPANS)
def test_on_every_lane_slices_nest_and_none_moves_without_need(spans: list[tuple[int, int]]) -> None:
    moves = lanes(Rewriter, spans)
    if core.merge is not None:
        assert lanes(in_core, spans) == moves
    found: dict[int, list[tuple[int, int]]] = {}
    for index, (start, duration) in enumerate(spans):
        found.setdefault(moves.get(index, 0), []).append((start, start + duration))
    for on_lane in found.values():
        for (start, end), (other_start, other_end) in itertools.combinations(sorted(on_lane), 2):
            assert other_start >= end or other_end <= end or other_start == start
    ends = sorted((start, start + duration) for start, duration in spans)
    partial = any(a[0] < b[0] < a[1] < b[1] for a, b in itertools.combinations(ends, 2))
    assert bool(moves) is partial


class CountedEnd(int):
    """An end that counts how often it is compared."""

    looks = 0

    def __gt__(self, other: int) -> bool:
        CountedEnd.looks += 1
        return int(self) > other

    def __le__(self, other: int) -> bool:
        CountedEnd.looks += 1
        return int(self) <= other


def test_slices_that_all_overlap_take_n_log_n_work() -> None:
    def looks(count: int) -> int:
        CountedEnd.looks = 0
        lanes = Lanes()
        assert [lanes.take(number, CountedEnd(number + 1000)) for number in range(count)] == [*range(count)]
        return CountedEnd.looks

    assert 0 < looks(256) < 16 * looks(32)
