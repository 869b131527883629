"""Clocks: anchors, the time scale of a recording, steps of the wall clock."""

from __future__ import annotations

import time
from random import Random

import pytest

from tracekit.clock import STEP_TOLERANCE_NS, SYSTEM_CLOCK, Clock, Timeline
from tracekit.formats.rank_trace import base_time_ns
from tracekit.testing import FakeClock


def test_an_anchor_is_one_moment_on_both_clocks() -> None:
    before = time.time_ns()
    anchor = SYSTEM_CLOCK.anchor()
    assert before <= anchor.wall_ns <= time.time_ns()
    assert anchor.error_ns >= 0
    assert anchor.monotonic_ns + anchor.offset_ns == anchor.wall_ns


def test_the_anchor_is_the_reading_with_the_least_time_in_between() -> None:
    gaps = iter([500, 40, 900, 300, 200])
    now = 0

    def monotonic() -> int:
        return now

    def wall() -> int:
        nonlocal now
        now += next(gaps)
        return 1_000_000 + now

    assert Clock(wall_ns=wall, monotonic_ns=monotonic).anchor().error_ns == 20


def test_a_time_scale_goes_on_unbroken_over_a_step_which_is_told_once() -> None:
    fake = FakeClock()
    timeline = Timeline(fake.clock)
    start = timeline.wall_ns(fake.monotonic_ns)
    assert start == fake.wall_ns
    assert timeline.check()[1] is None
    fake.wall_ns -= 2_000_000_000
    fake.advance(5)
    anchor, step = timeline.check()
    assert step is not None
    assert step.step_ns == -2_000_000_000
    assert anchor.wall_ns == fake.wall_ns
    assert timeline.wall_ns(fake.monotonic_ns) == start + 5
    assert timeline.check()[1] is None
    fake.wall_ns += 2_000_000_000
    assert timeline.check()[1] is not None


@pytest.mark.parametrize("noise_ns", [-STEP_TOLERANCE_NS, STEP_TOLERANCE_NS])
def test_the_noise_of_readings_is_no_step(noise_ns: int) -> None:
    fake = FakeClock()
    timeline = Timeline(fake.clock)
    fake.wall_ns += noise_ns
    assert timeline.check()[1] is None


def test_small_differences_do_not_add_up_unseen() -> None:
    fake = FakeClock()
    timeline = Timeline(fake.clock)
    steps = []
    for _ in range(10):
        fake.wall_ns += STEP_TOLERANCE_NS // 2
        steps.append(timeline.check()[1])
    assert sum(step.step_ns for step in steps if step) >= 4 * STEP_TOLERANCE_NS


# As Perfetto's importer does: the text as a double, times 1000, rounded.
def as_perfetto_reads(relative_ns: int) -> int:
    product = float(f"{relative_ns // 1000}.{relative_ns % 1000:03}") * 1000
    whole = int(product)
    return whole + (product - whole >= 0.5)


def test_times_are_exact_in_perfetto_for_ten_days_whenever_a_trace_starts() -> None:
    random = Random(7)
    grid_s = 7_889_238
    assert any(as_perfetto_reads(ns) != ns for ns in range(4_401_604_844_134_482, 4_401_604_844_134_582)), (
        "what it is about"
    )
    for start_s in range(20 * grid_s, 21 * grid_s, 6 * 3600):
        base_ns = base_time_ns(start_s * 10**9)
        assert start_s * 10**9 >= base_ns
        for run_s in (0, 86_400, 10 * 86_400):
            first_ns = (start_s + run_s) * 10**9 - base_ns + random.randrange(10**9)
            for ns in range(first_ns, first_ns + 40):
                assert as_perfetto_reads(ns) == ns, (start_s, run_s, ns)


# Worked out by hand from the constant: floor(now / 7889238 s) * 7889238 s; the values are those of real traces.
@pytest.mark.parametrize(
    ("now_s", "base_s"),
    [
        (1711964646, 1711964646),
        (1719853883, 1711964646),
        (1727743122, 1727743122),
        (1790857026, 1790857026),
        (1790857026 + 4_503_600, 1790857026),
    ],
)
def test_the_base_of_a_trace_lies_on_kinetos_grid(now_s: int, base_s: int) -> None:
    assert base_time_ns(now_s * 10**9 + 123) == base_s * 10**9
