"""Student's t, effective sample size, and the standard error of means of correlated values."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.verdict_simulation import autoregressive, hidden, white
from tracekit.explain.arrays import median_of_others, medians, robust_deviation
from tracekit.explain.noise import MAX_FREEDOM, critical_values, estimate_means, quantile, upper_tail

if TYPE_CHECKING:
    from numpy.typing import NDArray


def _exceeds(series: NDArray[np.float64], tail: float) -> bool:
    found = estimate_means(series)
    return bool(found.mean[0] > critical_values(tail, found.freedom)[0] * found.error[0])


# From tables of Student's t.
STUDENT = [(1, 0.025, 12.7062), (2, 0.005, 9.9248), (5, 0.01, 3.3649), (10, 0.001, 4.1437), (30, 0.0005, 3.6460)]


@pytest.mark.parametrize(("freedom", "tail", "t"), STUDENT)
def test_quantile_agrees_with_tables(freedom: float, tail: float, t: float) -> None:
    assert quantile(tail, freedom) == pytest.approx(t, abs=1e-4)
    assert upper_tail(t, freedom) == pytest.approx(tail, rel=1e-3)
    assert upper_tail(-t, freedom) == pytest.approx(1 - tail, rel=1e-6)


def test_upper_tail_of_one_degree_of_freedom_is_cauchys() -> None:
    for t in (0.0, 0.1, 1.0, 31.8, 1e6):
        assert upper_tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, rel=1e-6)


def test_upper_tail_of_many_degrees_of_freedom_is_normal() -> None:
    assert upper_tail(3.0, MAX_FREEDOM) == pytest.approx(1 - NormalDist().cdf(3.0))
    assert upper_tail(3.0, MAX_FREEDOM - 1) == pytest.approx(1 - NormalDist().cdf(3.0), rel=0.05)
    assert upper_tail(math.inf, 3) == 0


def test_critical_values_round_degrees_of_freedom_down() -> None:
    found = critical_values(0.001, np.array([[1.0, 3.3], [47.0, 1e9]]))
    assert found.shape == (2, 2)
    expected = [quantile(0.001, 1), quantile(0.001, 3.25), quantile(0.001, 40), quantile(0.001, MAX_FREEDOM)]
    assert found.ravel().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("rows", range(2, 9))
def test_median_of_others_leaves_out_the_own_row(rows: int) -> None:
    # Small integers, so that there are ties.
    values = np.random.default_rng(rows).integers(0, 4, (rows, 60)).astype(float)
    expected = np.array([np.median(np.delete(values, row, axis=0), axis=0) for row in range(rows)])
    assert (median_of_others(values) == expected).all()
    assert (medians(values) == np.median(values, axis=1)).all()


def test_robust_deviation_of_normal_values_is_their_deviation() -> None:
    assert robust_deviation(3 * np.random.default_rng(1).standard_normal(100_000)) == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize(("correlation", "share"), [(0.0, 1.0), (0.5, 1 / 3), (0.9, 1 / 19)])
def test_effective_sample_size_of_autoregressive_noise(correlation: float, share: float) -> None:
    noise = autoregressive(correlation)(np.random.default_rng(2), (40, 4000))
    assert np.median(estimate_means(noise).ess) == pytest.approx(4000 * share, rel=0.2)


@pytest.mark.parametrize("steps", [60, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (150, 600)), 2000])
@pytest.mark.parametrize("make", [white, autoregressive(0.5), autoregressive(0.9)], ids=["white", "ar 0.5", "ar 0.9"])
def test_t_of_noise_exceeds_its_critical_value_as_rarely_as_it_says(make: object, steps: int) -> None:
    assert callable(make)
    values: NDArray[np.float64] = make(np.random.default_rng(steps), (2000, steps))
    # Each row alone, as for two ranks; the deviations of the estimates are those of single runs.
    exceeding = sum(_exceeds(values[at : at + 1], 0.01) for at in range(len(values)))
    assert exceeding <= 2000 * 0.015


def test_slow_noise_below_fast_noise_is_seen() -> None:
    values = hidden(np.random.default_rng(5), (2000, 600))
    assert sum(_exceeds(values[at : at + 1], 0.01) for at in range(len(values))) <= 2000 * 0.03


def test_drift_of_a_whole_run_leaves_two_degrees_of_freedom() -> None:
    noise = np.random.default_rng(8).standard_normal((1, 2000))
    drift = 6 * np.sin(np.linspace(0.3, 1.7, 2000))
    steady, drifting = estimate_means(noise), estimate_means(noise + drift)
    assert steady.freedom[0] > 5
    assert drifting.freedom[0] == 2
    # The mean of a longer run may differ by as much as the drift itself.
    assert drifting.error[0] > 0.5
    assert steady.error[0] < 0.05


def test_one_stall_changes_neither_mean_nor_error_much() -> None:
    values = np.random.default_rng(4).standard_normal((2, 400))
    stalled = values.copy()
    stalled[0, 77] = 1e6
    before, after = estimate_means(values), estimate_means(stalled)
    assert after.mean[0] == pytest.approx(before.mean[0], abs=0.05)
    assert after.error[0] == pytest.approx(before.error[0], rel=0.3)


def test_constant_values_have_no_error() -> None:
    found = estimate_means(np.array([[0.1] * 50, [0.0] * 50]))
    assert found.mean.tolist() == pytest.approx([0.1, 0.0])
    assert found.error.tolist() == [0, 0]
    assert (found.freedom >= MAX_FREEDOM).all()


def test_rows_share_their_correlation() -> None:
    random = np.random.default_rng(6)
    found = estimate_means(np.concatenate([white(random, (1, 600)), autoregressive(0.9)(random, (6, 600))]))
    assert found.ess[0] == pytest.approx(np.median(found.ess))
