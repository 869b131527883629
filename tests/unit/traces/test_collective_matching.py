"""Matching the collectives of two ranks, and refusing to match without proof."""

from __future__ import annotations

import random

import pytest

from tracekit.traces.collectives.collector import Collective, Label, kind_of
from tracekit.traces.collectives.matching import match, match_near

MS = 1_000_000


def done(
    end: int, kind: str = "all_reduce", size: str = "", step: int | None = None, sequence: int | None = None
) -> Collective:
    return Collective(Label(kind, ("0", "[0, 1]"), size), sequence, step, end - 1000, end, 0, 7)


def ends(pairs: list[tuple[Collective, Collective]] | str) -> list[tuple[int, int]]:
    assert not isinstance(pairs, str), pairs
    return [(first.end_ns, second.end_ns) for first, second in pairs]


def irregular(count: int, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    return sorted(chance.sample(range(0, count * 5 * MS, 1000), count))


def numbered(*numbers: int | None, period: int = MS, shift: int = 0) -> list[Collective]:
    return [done(at * period + shift, sequence=number) for at, number in enumerate(numbers)]


def test_numbers_decide_whatever_the_times_say() -> None:
    found = match(numbered(*range(10)), numbered(*range(4, 14), period=5 * MS, shift=3))
    assert ends(found) == [((4 + at) * MS, 5 * at * MS + 3) for at in range(6)]


def test_a_number_that_comes_twice_is_nobodys() -> None:
    assert len(ends(match(numbered(*range(8), 0, 1), numbered(*range(8))))) == 6


def test_parts_of_a_run_are_matched_where_they_overlap() -> None:
    times = irregular(40)
    ours = [done(time) for time in times[:30]]
    theirs = [done(time + 5_000_000_123) for time in times[6:]]
    assert ends(match(ours, theirs)) == [(time, time + 5_000_000_123) for time in times[6:30]]


def test_gaps_in_both_do_not_shift_what_follows() -> None:
    times = irregular(40, seed=3)
    ours = [done(time) for number, time in enumerate(times) if number % 7]
    theirs = [done(time - 77) for number, time in enumerate(times) if number % 5]
    expected = [(time, time - 77) for number, time in enumerate(times) if number % 7 and number % 5]
    assert ends(match(ours, theirs)) == expected


@pytest.mark.parametrize("count", [12, 17])
def test_steps_and_sizes_tell_apart_what_repeats(count: int) -> None:
    def repeated(shift: int) -> list[Collective]:
        # Two alike in each step: the offset by a whole period has half the votes of the true one at most.
        own = [{"step": number // 2} if count == 12 else {"size": str(number)} for number in range(count)]
        return [done(number * 10 * MS + shift, **each) for number, each in enumerate(own)]  # type: ignore[arg-type]

    times = [number * 10 * MS for number in range(count)]
    assert ends(match(repeated(0), repeated(5 * MS))) == [(time, time + 5 * MS) for time in times]


THREE = [done(time) for time in (1 * MS, 5 * MS, 6 * MS)]
PERIODIC = [done(number * 10 * MS) for number in range(50)]


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        (numbered(0, 1, 2), numbered(1, 2, 3), "only 2"),
        (PERIODIC, [done(number * 10 * MS + 2 * MS) for number in range(50)], "fit at more than one offset"),
        (THREE, THREE, ""),
        (THREE, [], "no collectives of a process group of both"),
    ],
    ids=["two numbers in common", "a period of its own", "three alike", "none"],
)
def test_collectives_that_prove_nothing_are_refused(
    ours: list[Collective], theirs: list[Collective], reason: str
) -> None:
    found = match(ours, theirs)
    assert isinstance(found, str)
    assert reason in found


def test_unrelated_collectives_are_refused() -> None:
    for seed in range(400):
        ours = [done(time) for time in irregular(8 + seed % 40, seed)]
        theirs = [done(time) for time in irregular(8 + seed % 40, seed + 1000)]
        assert isinstance(match(ours, theirs), str), seed


def test_long_traces_are_followed_while_the_clocks_drift() -> None:
    times = irregular(5000, seed=9)
    ours = [done(time) for time in times]
    theirs = [done(time + 17 + time // 20_000) for time in times]
    found = ends(match(ours, theirs))
    assert len(found) > 4900
    assert all(second - first == 17 + first // 20_000 for first, second in found)


@pytest.mark.parametrize("ppm", [-100, 40, 100])
@pytest.mark.parametrize("count", [20, 300])
def test_match_follows_a_drift_over_ten_minutes_however_far_apart_collectives_are(count: int, ppm: int) -> None:
    chance = random.Random(count)
    times = sorted(chance.sample(range(0, 600_000 * MS, 1000), count))
    theirs = {time: done(time + 17 + time * ppm // 1_000_000 + chance.randint(0, 20_000)) for time in times}
    ours = [done(time) for time in times if chance.random() < 0.9]
    found = ends(match(ours, [one for one in theirs.values() if chance.random() < 0.9]))
    assert len(found) > 0.7 * count
    assert all(second == theirs[first].end_ns for first, second in found)


def test_numbers_of_a_part_are_enough() -> None:
    ours = numbered(*(number if number % 2 else None for number in range(10)))
    theirs = numbered(*(number if number > 4 else None for number in range(10)), shift=7)
    assert ends(match(ours, theirs)) == [(number * MS, number * MS + 7) for number in (5, 7, 9)]


def test_on_one_clock_the_nearest_is_taken_once() -> None:
    ours = [done(time) for time in (0, MS, 2 * MS)]
    theirs = [done(time) for time in (50_000, MS - 20_000, MS + 30_000, 9 * MS)]
    assert ends(match_near(ours, theirs, 0)) == [(0, 50_000), (MS, MS - 20_000)]
    assert match_near([], theirs, 0) == []


KINDS = {
    "all_reduce": ("allreduce", "nccl:all_reduce", "allreduce_coalesced"),
    "all_gather": ("_allgather_base", "all_gather_into_tensor_coalesced"),
    "reduce_scatter": ("_reduce_scatter_base", "ReduceScatter"),
    "all_to_all": ("all_to_allv", "alltoall_base"),
    **{name: (name,) for name in ("barrier", "broadcast", "gather", "scatter", "send", "recv")},
    "reduce": ("Reduce",),
    "": ("SendRecv", "Generic", "wait"),
}


def test_names_of_torch_nccl_and_gloo_have_a_kind() -> None:
    assert {kind: tuple(name for name in names if kind_of(name) == kind) for kind, names in KINDS.items()} == KINDS
