"""Flow events become numbers on the slices that they tie together."""

from __future__ import annotations

import struct
from typing import Any

from tracekit.merge.outputs.pftrace_flows import END, FLOW, INSTANT, NEXT, SLICE, START, STEP, bind_flows

A, B = 7, 8
ARROW = 1000
Item = tuple[Any, ...]


def slice_(start: int, end: int, order: int, track: int = A, *arrows: int) -> Item:
    return (start, -end, order, track, SLICE, b"", *arrows)


def flow(time: int, order: int, place: int, track: int = A, number: int = ARROW) -> Item:
    return (time, 1, order, track, FLOW, b"", place, number)


def arrows(*items: Item) -> list[tuple[int, bool, str, int]]:
    """Return what slices carry: order of the slice, whether at its end, "out" or "in", number of the arrow."""
    found = []
    for _, _, order, _, _, late, text in bind_flows(sorted(items)):
        key, number = text[:2], struct.unpack("<Q", text[2:])[0]
        found.append((order, late, {b"\xf9\x02": "out", b"\x81\x03": "in"}[key], number))
    return found


def test_an_arrow_goes_from_the_slice_around_its_start_to_the_slice_around_its_end() -> None:
    found = arrows(
        slice_(0, 100, 1), slice_(10, 20, 2), flow(15, 3, START), slice_(30, 90, 4, B), flow(40, 5, END, B)
    )  # fmt: skip
    assert found == [(2, False, "out", ARROW), (4, False, "in", ARROW)]


def test_of_the_slices_at_one_time_the_one_that_began_there_counts() -> None:
    found = arrows(slice_(0, 50, 1), slice_(50, 60, 2), flow(50, 3, START), slice_(60, 60, 4, B), flow(60, 5, END, B))
    assert found == [(2, False, "out", ARROW), (4, False, "in", ARROW)]


def test_a_slice_that_has_just_ended_still_counts_where_none_begins() -> None:
    assert arrows(slice_(0, 50, 1), flow(50, 2, START)) == [(1, False, "out", ARROW)]
    assert arrows(slice_(0, 50, 1), flow(51, 2, START)) == [(2, False, "out", ARROW)]


def test_an_end_may_belong_to_the_next_slice() -> None:
    found = arrows(slice_(0, 9, 1), flow(1, 2, START), slice_(0, 99, 3, B), flow(5, 4, NEXT, B), slice_(20, 30, 5, B))
    assert found == [(1, False, "out", ARROW), (5, False, "in", ARROW)]


def test_what_has_no_slice_stands_for_itself() -> None:
    assert arrows(flow(5, 1, START), flow(6, 2, NEXT, B)) == [(1, False, "out", ARROW), (2, False, "in", ARROW)]


def test_a_chain_goes_through_its_steps() -> None:
    found = arrows(
        slice_(0, 5, 1), slice_(10, 15, 2), slice_(20, 25, 3), flow(0, 4, START), flow(10, 5, STEP), flow(20, 6, END)
    )  # fmt: skip
    assert found == [(1, False, "out", ARROW), (2, False, "out", ARROW), (3, False, "in", ARROW)]


def test_each_of_several_ends_of_one_arrow_has_a_number_that_its_start_has_too() -> None:
    items = [slice_(10 * at, 10 * at + 5, at) for at in range(4)]
    found = arrows(*items, flow(0, 10, START), *(flow(10 * at, 10 + at, END) for at in (1, 2, 3)))
    out = [number for order, _, way, number in found if (order, way) == (0, "out")]
    ends = [number for order, _, way, number in found if way == "in"]
    assert len(set(out)) == 3
    assert out[0] == ends[0] == ARROW
    assert sorted(out) == sorted(ends)


def test_a_number_that_is_used_again_is_another_arrow() -> None:
    items = [slice_(10 * at, 10 * at + 5, at) for at in range(4)]
    found = arrows(*items, flow(0, 10, START), flow(10, 11, END), flow(20, 12, START), flow(30, 13, END))
    assert [(order, way) for order, _, way, _ in found] == [(0, "out"), (1, "in"), (2, "out"), (3, "in")]


def test_an_arrow_to_a_slice_that_began_earlier_stands_at_its_end() -> None:
    found = arrows(slice_(0, 100, 1, B), slice_(10, 20, 2), flow(12, 3, START), flow(30, 4, END, B))
    assert found == [(1, True, "in", ARROW), (2, False, "out", ARROW)]


def test_slices_and_instants_may_say_themselves_which_arrow_they_are_on() -> None:
    instant = (30, -30, 3, B, INSTANT, b"", END, ARROW)
    found = arrows(slice_(0, 9, 1, A, START, ARROW), slice_(10, 19, 2, A, STEP, ARROW), instant)
    assert found == [(1, False, "out", ARROW), (2, False, "out", ARROW), (3, False, "in", ARROW)]
