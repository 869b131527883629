"""Compare runs: one earlier run, and several."""

from __future__ import annotations

import numpy as np
import pytest

from tests.verdict_simulation import autoregressive, white
from tracekit.explain.noise import Correction
from tracekit.explain.run_change import RunChange, compare_runs

ALONE = Correction(1, 0.99)


def change(before: list[np.ndarray], after: np.ndarray, correction: Correction = ALONE) -> RunChange:
    found = compare_runs(before, after, correction)
    assert found is not None
    return found


def test_limits_hold_the_true_ratio_as_often_as_they_say() -> None:
    random = np.random.default_rng(8)
    below = above = 0
    for _ in range(1000):
        first, second = (typical * (1 + 0.1 * autoregressive(0.5)(random, (300,))) for typical in (5.0, 6.0))
        found = change([first], second)
        below += found.high < 1.2
        above += found.low > 1.2
    assert max(below, above) <= 20


def test_resolution_is_the_least_ratio_that_is_certain() -> None:
    random = np.random.default_rng(3)
    first, second = (5 * (1 + 0.1 * white(random, (400,))) for _ in range(2))
    found = change([first], second)
    assert found.resolution == pytest.approx(0.017, rel=0.3)
    just = change([first], second * (1 + found.resolution) / found.ratio)
    assert just.low == pytest.approx(1, abs=0.005)


def test_single_outliers_change_little() -> None:
    values = 5 + 0.05 * white(np.random.default_rng(1), (60,))
    found = change([values], np.where(np.arange(60) % 20 == 7, 1000 * values, values))
    assert found.ratio == pytest.approx(1.0, abs=0.02)


def test_variation_between_earlier_runs_widens_the_limits() -> None:
    random = np.random.default_rng(4)
    runs = [typical + 0.05 * white(random, (400,)) for typical in (4.8, 5.0, 5.2, 5.1)]
    later = 5.3 + 0.05 * white(random, (400,))
    one, several = change(runs[1:2], later), change(runs, later)
    assert one.low > 1.05
    assert several.low < 1 < several.ratio
    # Two runs before tell next to nothing of their variation.
    assert change(runs[:2], later).resolution > 0.5


@pytest.mark.parametrize(
    ("before", "after", "chance"),
    [
        ([5.0] * 5, [5.0] * 9, 1.0),
        ([5.0] * 5, [6.0] * 5, 0.0),
        ([5.0] * 4, [6.0] * 9, None),
        ([0.0] * 9, [6.0] * 9, None),
    ],
)
def test_values_without_spread_and_too_few_of_them(
    before: list[float], after: list[float], chance: float | None
) -> None:
    found = compare_runs([np.array(before)], np.array(after), ALONE)
    assert (None if found is None else found.chance) == chance


def test_few_correlated_values_are_never_certain() -> None:
    first = 5 + np.sin(np.arange(20) / 7)
    found = change([first], 3 * first)
    assert found.chance == 1
    assert found.low < 1
    assert found.resolution > 1
