"""Lanes: whatever markers do, slices nest on every track, and nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.events import BEGIN, END, INSTANT, WIDTH
from tracekit.recording.buffer import LANE_TID, RecordBuffer
from tracekit.recording.compiled import new_records
from tracekit.recording.lanes import Lanes

if TYPE_CHECKING:
    from collections.abc import Callable

Span = tuple[int, int, int]  # start, end, track


def play(
    spans: list[Span], cuts: list[int], make_records: Callable[[], list[Any]] = new_records
) -> tuple[RecordBuffer, list[list[Any]]]:
    """Feed slices to `Lanes` as a writer with these flush times would; return what comes out of each flush."""
    buffer = RecordBuffer()
    for number in range(3):
        buffer.new_track(f"thread {number + 1}", tid=100 + number)
    lanes = Lanes(buffer)
    flushed, last = [], 0
    for cut in [*sorted(set(cuts)), 10_000]:
        ended = sorted((span for span in spans if last < span[1] <= cut), key=lambda span: (span[1], -span[0]))
        records = make_records()
        for start, end, track in ended:
            records += (start, start, end, track)  # the label is the start, to know the slice by
        opened = [(start, start, track) for start, end, track in spans if start <= cut < end]
        flushed.append(list(lanes.arrange(records, opened, cut)))
        last = cut
    return buffer, flushed


def tracks_of(flushed: list[list[Any]]) -> dict[int, list[tuple[int, int, int]]]:
    """Return (start, end, label) of every slice by track, pairing starts and ends as a viewer does: the innermost first."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    edges: dict[int, list[tuple[int, int, int]]] = {}
    for records in flushed:
        for at in range(0, len(records), WIDTH):
            label, time, kind, track = records[at : at + WIDTH]
            if kind >= 0:
                found.setdefault(track, []).append((time, kind, label))
            else:
                edges.setdefault(track, []).append((time, 0 if kind == END else 1, label))
    for track, points in edges.items():
        stack: list[tuple[int, int]] = []
        for time, is_begin, label in sorted(points, key=lambda point: point[:2]):
            if is_begin:
                stack.append((time, label))
            else:
                matching = [entry for entry in stack if entry[1] == label]
                assert matching, "an end without a start"
                assert stack[-1] == matching[-1], "an end that is not the innermost's"
                start, _ = stack.pop()
                found.setdefault(track, []).append((start, time, label))
        assert not stack, "a start without an end"
    return found


def assert_nested(spans: list[tuple[int, int, int]]) -> None:
    stack: list[int] = []
    for start, end, _ in sorted(spans, key=lambda span: (span[0], -span[1])):
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or stack[-1] >= end, spans
        stack.append(end)


# Starts are distinct, as the readings of a clock are.
some_spans = st.lists(
    st.tuples(st.integers(1, 200), st.integers(1, 60), st.integers(1, 3)), max_size=12, unique_by=lambda span: span[0]
).map(lambda spans: [(start * 7, start * 7 + length * 5, track) for start, length, track in spans])


@given(some_spans, st.lists(st.integers(1, 2000), max_size=5))
def test_slices_nest_on_every_track_and_keep_their_times(spans: list[Span], cuts: list[int]) -> None:
    _, flushed = play(spans, cuts)
    by_track = tracks_of(flushed)
    durations: dict[int, int] = {}  # a slice may be cut in two, and loses nothing by it
    for found in by_track.values():
        assert_nested(found)
        for start, end, label in found:
            durations[label] = durations.get(label, 0) + end - start
    assert durations == {start: end - start for start, end, _ in spans}


@given(some_spans, st.lists(st.integers(1, 2000), max_size=5))
def test_the_start_of_an_open_slice_is_given_with_the_first_flush_that_sees_it(
    spans: list[Span], cuts: list[int]
) -> None:
    _, flushed = play(spans, cuts)
    begun: set[int] = set()
    for cut, records in zip([*sorted(set(cuts)), 10_000], flushed, strict=True):
        begun |= {records[at] for at in range(0, len(records), WIDTH) if records[at + 2] == BEGIN}
        for start, end, _ in spans:
            assert start in begun or not start <= cut < end


def test_slices_that_nest_or_touch_stay_on_their_thread_and_others_go_to_a_lane_of_its_own() -> None:
    buffer, flushed = play([(10, 100, 1), (20, 50, 1), (50, 90, 1), (100, 120, 1)], cuts=[55, 105])
    assert set(tracks_of(flushed)) == {1}
    assert len(buffer.tracks) == 4, "no lane was made"
    buffer, flushed = play([(10, 50, 1), (30, 70, 1)], cuts=[])
    assert set(tracks_of(flushed)) == {1, 4}
    assert buffer.tracks[4].name == "thread 1 · overlap 1"
    assert buffer.tracks[4].tid >= LANE_TID


def test_a_thousand_flushes_with_one_long_slice_give_one_start_and_one_end() -> None:
    spans = [(1, 9_999, 1), *((start, start + 3, 1) for start in range(10, 9_000, 10))]
    _, flushed = play(spans, cuts=list(range(5, 9_000, 9)))
    kinds = [records[at + 2] for records in flushed for at in range(0, len(records), WIDTH) if records[at] == 1]
    assert kinds == [BEGIN, END]


def test_two_slices_that_go_on_from_one_moment_do_not_meet_on_a_lane() -> None:
    """A start and a whole slice of one time: viewers would take the whole slice, which ends first, for the outer one."""
    spans = [(1, 20, 1), (2, 30, 1), (3, 900, 1)]  # each begins inside of the one before and outlives it
    _, flushed = play(spans, cuts=[10, 40])
    begun: list[tuple[int, int]] = []
    for records in flushed:
        for at in range(0, len(records), WIDTH):
            if records[at + 2] >= 0 or records[at + 2] == BEGIN:
                begun.append((records[at + 3], records[at + 1]))
    assert len(set(begun)) == len(begun)
    for found in tracks_of(flushed).values():
        assert_nested(found)


@pytest.mark.parametrize("in_list", [True, False], ids=["list", "core"])
def test_an_instant_at_the_start_of_an_open_slice_does_not_end_it(in_list: bool) -> None:
    buffer = RecordBuffer()
    track = buffer.new_track("main", 1)
    lanes = Lanes(buffer)
    assert lanes.arrange([], [(0, 100, track)], 150) == [0, 100, BEGIN, track]
    late = [1, 100, INSTANT, track]  # it waited for room
    records = late.copy() if in_list else new_records()
    if not in_list:
        records.extend(tuple(late))
    assert list(lanes.arrange(records, [(0, 100, track)], 200)) == late
    records += (0, 100, 250, track)
    assert list(lanes.arrange(records, [], 300))[-4:] == [0, 250, END, track]
