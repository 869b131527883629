"""Slow ranks and outlier steps, from stage times with known delays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.verdict_simulation import NOISES, STAGES, STEP_NS, WAIT, own_times, with_waiting
from tracekit.explain.cycles import Cycles, find_cycles, stage_costs
from tracekit.explain.slow_ranks import RankComparison, compare_ranks, find_outlier_steps
from tracekit.explain.steps import count_warm_up, warm_up_note

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LOADING, FORWARD, BACKWARD, _, OPTIMIZER = range(len(STAGES))
WORK = (LOADING, FORWARD, BACKWARD, OPTIMIZER)


def work(seed: int, ranks: int = 4, steps: int = 60, noise: str = "independent 3%") -> Floats:
    """Return stage times without waiting, ns."""
    return own_times(np.random.default_rng(seed), NOISES[noise], (ranks, steps), shared=bool(seed % 2))


def cycles_of(times: Floats, known: bool = False) -> Cycles:
    found = find_cycles(times, [True] * times.shape[1], [known and stage == WAIT for stage in range(len(STAGES))])
    assert found is not None
    return found


def compared(times: Floats, known: bool = False) -> tuple[Cycles, RankComparison]:
    cycles = cycles_of(times, known)
    found = compare_ranks(cycles)
    assert found is not None
    return cycles, found


def named(times: Floats, known: bool = False) -> list[tuple[int, str | None]]:
    cycles, found = compared(times, known)
    return [(one.row, None if one.place is None else STAGES[cycles.order[one.place]]) for one in found.slow]


# Cycles.


def test_cycles_of_two_stages_by_hand() -> None:
    # Rank 1 takes 3 more in the first stage, and the others wait for it in the second.
    times = np.array(
        [[[10, 23], [10, 23], [10, 23]], [[13, 20], [13, 20], [13, 20]], [[10, 23], [10, 23], [10, 23]]], float
    )
    cycles = find_cycles(times, [False, True, True], [False, True])
    assert cycles is not None
    assert (cycles.order, cycles.waits, cycles.own_stages, cycles.length) == ([0, 1], True, 1, 33)
    first, second = stage_costs(cycles)
    assert [(cost.exposed, cost.median) for cost in (first, second)] == [(13, 10), (20, 23)]
    assert first.led == [0, 3, 0]


@pytest.mark.parametrize("known", [True, False])
def test_stage_in_which_ranks_wait_is_found(known: bool) -> None:
    cycles = cycles_of(with_waiting(work(1), WAIT), known)
    assert ([STAGES[stage] for stage in cycles.order][-1], cycles.waits) == ("all_reduce", True)
    # A cycle begins with the optimizer of one step, and ends with all_reduce of the next.
    assert [cycles.step_of(7, place) for place in range(5)] == [7, 8, 8, 8, 8]
    assert cycles.times.shape == (4, 59, 5)
    # Ranks that never wait have cycles from step to step.
    free = cycles_of(work(3))
    assert (free.waits, free.order, free.own_stages) == (False, [0, 1, 2, 3, 4], 5)


def test_cycles_leave_out_steps_that_do_not_follow_each_other() -> None:
    joined = [True] * 60
    joined[20] = False
    cycles = find_cycles(with_waiting(work(1), WAIT), joined, [False] * 5)
    assert cycles is not None
    assert len(cycles.begins) == 58
    assert 19 not in cycles.begins


def test_waiting_costs_nothing() -> None:
    times = work(3)
    times[1, :, FORWARD] += 30e6
    cycles = cycles_of(with_waiting(times, WAIT))
    costs = dict(zip((STAGES[stage] for stage in cycles.order), stage_costs(cycles), strict=True))
    assert costs["forward"].exposed == pytest.approx(60e6, rel=0.05)
    assert costs["all_reduce"].exposed == pytest.approx(5e6, rel=0.1)
    assert costs["all_reduce"].median == pytest.approx(35e6, rel=0.1)


@pytest.mark.parametrize("shape", [(1, 30), (4, 2)])
def test_too_little_gives_no_cycles(shape: tuple[int, int]) -> None:
    assert find_cycles(work(1, *shape), [True] * shape[1], [False] * 5) is None


def test_few_cycles_give_no_comparison_and_no_outliers() -> None:
    assert compare_ranks(cycles_of(work(1, steps=4))) is None
    times = work(1, steps=9)
    times[0, 4] *= 9
    assert find_outlier_steps(cycles_of(times)) == []


# Slow ranks.


@pytest.mark.parametrize("layout", ["known", "found", "free"])
@pytest.mark.parametrize("stage", WORK, ids=[STAGES[stage] for stage in WORK])
def test_delay_is_found_in_its_rank_and_stage_and_nowhere_else(stage: int, layout: str) -> None:
    for seed in range(5):
        rank = seed % 4
        times = work(seed)
        times[rank, :, stage] += 0.1 * STEP_NS
        times = times if layout == "free" else with_waiting(times, WAIT)
        assert named(times, layout == "known") == [(rank, STAGES[stage])]
        (one,) = compared(times, layout == "known")[1].slow
        assert one.low < 0.1 * STEP_NS < one.high
        assert 0 < one.low < one.mean < one.high
        assert one.chance < 0.01


def test_two_slow_ranks_are_both_found_and_small_delays_in_all_stages_together() -> None:
    times = work(7, ranks=8)
    times[2, :, LOADING] += 0.1 * STEP_NS
    times[5, :, OPTIMIZER] += 0.2 * STEP_NS
    assert named(with_waiting(times, WAIT)) == [(5, "optimizer"), (2, "dataloader")]
    times = work(2, steps=400)
    times[3] += 0.015 * STEP_NS
    assert named(times) == [(3, None)]


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_rank_that_waits_in_a_stage_of_its_own_work_is_not_named(ranks: int) -> None:
    # Ranks meet at the end of backward and again at the end of all_reduce: the others wait in backward for a slow forward.
    for seed in range(20):
        times = work(seed, ranks=ranks)
        times[0, :, FORWARD] += 0.1 * STEP_NS
        assert named(with_waiting(with_waiting(times, BACKWARD), WAIT)) == [(0, "forward")]


def test_delay_below_the_least_effect_is_not_named() -> None:
    times = work(1, steps=2000)
    times[1, :, FORWARD] += 0.01 * STEP_NS
    cycles = cycles_of(times)
    for options, count in (({}, 0), ({"min_share": 0.005}, 1), ({"min_share": 0.005, "resolution": 0.01 * STEP_NS}, 0)):
        found = compare_ranks(cycles, **options)
        assert found is not None
        assert len(found.slow) == count


def test_limit_of_a_negative_result_holds_and_falls_with_steps() -> None:
    limits = []
    for steps in (150, 2000):
        found = compared(work(1, steps=steps, noise="AR(1) 0.9 10%"))[1]
        assert found.slow == []
        limits.append(found.limit)
    assert limits[0] > 0.08
    assert 0.02 < limits[1] < 0.08


def test_steps_that_are_needed_suffice() -> None:
    found = compared(work(3, steps=150, noise="AR(1) 0.5 10%"))[1]
    assert found.steps_needed in (200, 500, 1000)
    times = work(5, steps=found.steps_needed, noise="AR(1) 0.5 10%")
    times[2, :, FORWARD] += 0.05 * STEP_NS
    assert named(times) == [(2, "forward")]
    assert compared(work(3, steps=2000))[1].steps_needed is None


def test_noise_is_given_for_each_rank() -> None:
    times = np.concatenate([work(1, ranks=3, steps=600), work(2, ranks=1, steps=600, noise="independent 10%")])
    noise = compared(times)[1].noise
    assert noise[3] == pytest.approx(0.1, rel=0.2)
    assert max(noise[:3]) < 0.05


# Outlier steps.


@pytest.mark.parametrize("layout", ["waiting", "free"])
def test_stall_is_found_with_its_rank_stage_length_and_cost(layout: str) -> None:
    times = work(1, ranks=8, steps=100)
    times[3, 20:23, LOADING] += 120e6
    cycles = cycles_of(with_waiting(times, WAIT) if layout == "waiting" else times)
    (one,) = find_outlier_steps(cycles)
    assert (one.row, STAGES[cycles.order[one.place]]) == (3, "dataloader")
    assert [cycles.step_of(cycle, one.place) for cycle in one.cycles] == [20, 21, 22]
    assert one.late == pytest.approx(120e6, rel=0.1)
    assert one.excess == pytest.approx(360e6, rel=0.1)
    assert not one.is_recurrent
    found = compare_ranks(cycles)
    assert found is not None
    assert found.slow == []


def test_rank_that_stalls_in_one_step_of_ten_is_recurrent() -> None:
    times = work(1, ranks=4, steps=150)
    times[2, ::10, FORWARD] += 0.6 * STEP_NS
    (one,) = find_outlier_steps(cycles_of(with_waiting(times, WAIT)))
    assert (one.row, one.is_recurrent) == (2, True)
    assert 14 <= len(one.cycles) <= 15


def test_steps_in_which_all_ranks_are_slow_blame_none() -> None:
    times = work(1, steps=100)
    times[:, 50, FORWARD] += STEP_NS
    cycles = cycles_of(with_waiting(times, WAIT))
    (one,) = find_outlier_steps(cycles)
    assert (one.row, STAGES[cycles.order[one.place]]) == (None, "forward")


# Warm-up.

DRIFT = np.linspace(140, 100, 500) + np.random.default_rng(1).normal(0, 3, 500)
STEADY = np.random.default_rng(1).normal(100, 2, 100)


@pytest.mark.parametrize(
    ("lengths", "count"),
    [
        ([900, 400, 200, *STEADY[3:]], 3),
        ([900, *STEADY[1:]], 1),
        ([900, 100, 300, *STEADY[3:]], 3),
        (STEADY, 0),
        ([100, 100, 100, 900, *STEADY[4:]], 0),
        ([900] + [100] * 8, 0),
        (DRIFT, 0),
    ],
    ids=["falling", "one", "with a short one", "none", "late", "few steps", "drift"],
)
def test_warm_up_is_the_long_steps_at_the_beginning(lengths: Floats, count: int) -> None:
    assert count_warm_up(np.array(lengths, float)) == count


def test_note_names_the_warm_up_steps() -> None:
    note = warm_up_note(range(5, 27), np.array([900.0, 300.0] + [100.0] * 20), 2)
    assert note == "steps 5 to 6 are warm-up (up to 9.0 x the usual step) and not counted: 2 steps"
