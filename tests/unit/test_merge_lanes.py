from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.formats.event_fields import MAX_DEPTH
from tracekit.merge.input_scan import ThreadScan
from tracekit.merge.lanes import ANY, BEGIN, DROPPED, END, INVALID, Moves, Slices, _find_lane, assign_lanes
from tracekit.merge.namespaces import Process, Thread, free_tids, spread
from tracekit.merge.process_key import CPU

if TYPE_CHECKING:
    from collections.abc import Callable

NO_TIME = -3
SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8)), max_size=12)


def track(*events: tuple[int, int] | tuple[int, int, int]) -> Slices:
    """Slices from (start, duration), or (time, BEGIN or END, name)."""
    slices = Slices()
    for start, duration, *name in events:
        if duration in (BEGIN, END):
            slices.rows.append((start, name[0] if name else ANY, ANY, duration))
        else:
            slices.rows.append((start, -start - duration) if duration != NO_TIME else INVALID)
        slices.mixed = slices.mixed or duration < 0
    slices.finish()
    return slices


def lanes(*parts: tuple[Slices, int]) -> list[dict[int, int]]:
    """Where the slices of each part go that do not stay, by index."""
    moved = assign_lanes(list(parts))
    return [{} if part is None else dict(part.events.rows(0, 10**6)) for part in moved]  # type: ignore[union-attr, arg-type]


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
def test_what_overlaps_without_nesting_gets_a_lane(events: list[tuple[int, int]], moves: dict[int, int]) -> None:
    assert lanes((track(*events), 0)) == [moves]


@pytest.mark.parametrize("begin", [True, False], ids=["B and E", "X"])
def test_slices_nested_deeper_than_viewers_take_get_a_lane(begin: bool) -> None:
    count = MAX_DEPTH + 3
    if begin:
        slices = [(number, BEGIN, number) for number in range(count)]
        slices += [(2 * count - number, END, number) for number in reversed(range(count))]
        deepest = {*range(MAX_DEPTH, count), *range(count, count + 3)}
    else:
        slices = [(number, 2 * (count - number)) for number in range(count)]  # type: ignore[misc]
        deepest = set(range(MAX_DEPTH, count))
    assert lanes((track(*slices), 0)) == [dict.fromkeys(deepest, 1)]
    assert lanes((track(*slices[:MAX_DEPTH]), 0)) == [{}]


def test_two_files_of_a_track_meet_on_one_time() -> None:
    marker, operators = track((0, 100)), track((1000, 20), (1090, 20))
    assert lanes((marker, 0), (operators, -1000)) == [{}, {1: 1}]


@given(SPANS, SPANS)
def test_on_every_lane_slices_nest_and_none_moves_without_need(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    parts = [first, second]
    moves = lanes(*[(track(*spans), 0) for spans in parts])
    found: dict[int, list[tuple[int, int]]] = {}
    for spans, moved in zip(parts, moves, strict=True):
        for index, (start, duration) in enumerate(spans):
            found.setdefault(moved.get(index, 0), []).append((start, start + duration))
    for spans in found.values():
        for (start, end), (other_start, other_end) in itertools.combinations(sorted(spans), 2):
            assert other_start >= end or other_end <= end or other_start == start
    spans = sorted((start, start + duration) for spans in parts for start, duration in spans)
    partial = any(a[0] < b[0] < a[1] < b[1] for a, b in itertools.combinations(spans, 2))
    assert bool(sum(map(len, moves))) is partial


def calls_of(work: Callable[[], object]) -> int:
    """Return how many calls of Python and C functions some work makes."""
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_lanes_of_many_threads_are_numbered_in_linear_work() -> None:
    def number(count: int) -> None:
        process = Process(0, (CPU, 1))
        process.threads = {tid: Thread(tid, None, None, tid) for tid in range(1, count + 1)}
        left = free_tids(process)
        for thread in list(process.threads.values()):
            moved = Moves(None, None, frozenset({1}), 1)
            thread.scans = [(0, ThreadScan())]
            spread(process, thread, [moved], {}, left)
        assert len({thread.tid for thread in process.threads.values()}) == 2 * count

    small, large = calls_of(lambda: number(50)), calls_of(lambda: number(400))
    assert large < 10 * small


class CountedEnds(list[int]):
    """A lane that counts how often its innermost end is looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        CountedEnds.looks += 1
        return super().__getitem__(index)


@pytest.mark.xfail(strict=True, reason="merge in one pass (issue 14): each overlapping slice looks at every lane")
def test_slices_that_all_overlap_take_n_log_n_work() -> None:
    def looks(count: int) -> int:
        CountedEnds.looks = 0
        lanes = [CountedEnds()]
        for number in range(count):
            _find_lane(lanes, number, number + 1000)  # type: ignore[arg-type]
            lanes[-1] = CountedEnds(lanes[-1])
        return CountedEnds.looks

    assert looks(256) < 16 * looks(32)
