"""DurationStatistics: what it says is true, however the durations are grouped and ordered."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit import ConfigError
from tracekit.statistics import QUANTILE_ERROR, DurationStatistics

HOURS_10 = 10 * 3600 * 10**9
durations = st.lists(st.one_of(st.integers(0, 1000), st.integers(0, HOURS_10)), max_size=60)


@given(durations, st.floats(0, 1))
def test_a_quantile_is_within_its_error_of_the_duration_that_stands_there(found: list[int], quantile: float) -> None:
    told = DurationStatistics(found).quantile_ns(quantile)
    if not found:
        assert told == 0
        return
    exact = sorted(found)[max(math.ceil(quantile * len(found)), 1) - 1]
    assert abs(told - exact) <= QUANTILE_ERROR * exact
    assert min(found) <= told <= max(found)


@given(durations)
def test_everything_but_the_quantiles_is_exact(found: list[int]) -> None:
    told = DurationStatistics(found)
    assert (told.count, told.total_ns) == (len(found), sum(found))
    assert (told.min_ns, told.max_ns) == ((min(found), max(found)) if found else (0, 0))
    assert told.mean_ns == (statistics.fmean(found) if found else 0) or math.isclose(
        told.mean_ns, sum(found) / len(found)
    )
    assert math.isclose(told.stdev_ns, statistics.pstdev(found) if found else 0, rel_tol=1e-9)
    assert (told.quantile_ns(0), told.quantile_ns(1)) == (told.min_ns, told.max_ns)


@given(durations, durations, durations)
def test_merging_is_associative_and_commutative(a: list[int], b: list[int], c: list[int]) -> None:
    parts = [DurationStatistics(part) for part in (a, b, c)]
    left = DurationStatistics.merged([DurationStatistics.merged(parts[:2]), parts[2]])
    right = DurationStatistics.merged([parts[0], DurationStatistics.merged(parts[1:])])
    assert left == right == DurationStatistics.merged(reversed(parts)) == DurationStatistics(a + b + c)
    assert parts[0] == DurationStatistics(a), "what is merged stays as it is"


@given(durations)
def test_it_survives_json(found: list[int]) -> None:
    before = DurationStatistics(found)
    after = DurationStatistics.from_dict(json.loads(json.dumps(before.to_dict())))
    assert after == before
    after.add(5)
    before.add(5)
    assert after == before


@given(st.lists(st.integers(0, HOURS_10), min_size=1, max_size=60), st.lists(st.floats(0, 1), min_size=2))
def test_quantiles_never_fall(found: list[int], quantiles: list[float]) -> None:
    told = [DurationStatistics(found).quantile_ns(quantile) for quantile in sorted(quantiles)]
    assert told == sorted(told)


def test_the_memory_is_bounded() -> None:
    every_bucket = [(1 << power) + step * (1 << power) // 64 for power in range(46) for step in range(64)]
    assert len(DurationStatistics(every_bucket).to_dict()["buckets"]) < 2700


def test_the_deviation_of_long_durations_that_hardly_differ_is_exact() -> None:
    """Floating point would say 0, or fail at a square root of something below it."""
    assert DurationStatistics([HOURS_10, HOURS_10 + 2]).stdev_ns == 1.0
    assert DurationStatistics([HOURS_10] * 1000).stdev_ns == 0.0


def test_what_is_no_duration_or_quantile_is_refused_and_the_text_says_what_it_is() -> None:
    assert DurationStatistics([1]) != "something else"
    assert repr(DurationStatistics([1, 3])) == "<DurationStatistics of 2: total 4 ns, mean 2 ns, min 1 ns, max 3 ns>"
    with pytest.raises(ConfigError, match="0 ns or more, not -1"):
        DurationStatistics([5, -1])
    for quantile in (-0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match="from 0 to 1"):
            DurationStatistics([1]).quantile_ns(quantile)
