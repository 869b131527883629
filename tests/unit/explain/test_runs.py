"""Compare runs: one earlier run, and several."""

from __future__ import annotations

import numpy as np
import pytest

from tests.verdict_simulation import autoregressive, white
from tracekit.explain.noise import Correction
from tracekit.explain.run_change import RunChange, compare_runs

ALONE = Correction(1, 0.99)


def change(before: list[np.ndarray], after: np.ndarray) -> tuple[RunChange, float, float]:
    """Return the change, and its limits."""
    found = compare_runs(before, after)
    assert found is not None
    return found, found.ratio / found.reach(ALONE), found.ratio * found.reach(ALONE)


def test_limits_hold_the_true_ratio_as_often_as_they_say() -> None:
    random = np.random.default_rng(8)
    below = above = 0
    for _ in range(1000):
        first, second = (typical * (1 + 0.1 * autoregressive(0.5)(random, (300,))) for typical in (5.0, 6.0))
        _, low, high = change([first], second)
        below += high < 1.2
        above += low > 1.2
    assert max(below, above) <= 20


def test_reach_is_the_least_ratio_that_is_certain() -> None:
    random = np.random.default_rng(3)
    first, second = (5 * (1 + 0.1 * white(random, (400,))) for _ in range(2))
    found, _, _ = change([first], second)
    reach = found.reach(ALONE)
    assert reach == pytest.approx(1.017, abs=0.005)
    _, low, _ = change([first], second * reach / found.ratio)
    assert low == pytest.approx(1, abs=0.005)


def test_single_outliers_change_little() -> None:
    values = 5 + 0.05 * white(np.random.default_rng(1), (60,))
    found, _, _ = change([values], np.where(np.arange(60) % 20 == 7, 1000 * values, values))
    assert found.ratio == pytest.approx(1.0, abs=0.02)


def test_variation_between_earlier_runs_widens_the_limits() -> None:
    random = np.random.default_rng(4)
    runs = [typical + 0.05 * white(random, (400,)) for typical in (4.8, 5.0, 5.2, 5.1)]
    later = 5.3 + 0.05 * white(random, (400,))
    _, low, _ = change(runs[1:2], later)
    assert low > 1.05
    several, low, _ = change(runs, later)
    assert low < 1 < several.ratio
    # Two runs before tell next to nothing of their variation.
    assert change(runs[:2], later)[0].reach(ALONE) > 1.5


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
    found = compare_runs([np.array(before)], np.array(after))
    assert (None if found is None else found.chance(ALONE)) == chance


def test_few_correlated_values_are_never_certain() -> None:
    first = 5 + np.sin(np.arange(20) / 7)
    found, low, _ = change([first], 3 * first)
    assert found.chance(ALONE) == 1
    assert low < 1
    assert found.reach(ALONE) > 2
