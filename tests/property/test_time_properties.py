"""Laws of training time, for any values."""

from __future__ import annotations

import copy
import datetime as dt
import json
import pickle
from datetime import timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tracekit.errors import TimeError
from tracekit.timestamp import Time, Timestamp, TimeUnit

LARGEST = 2**63 - 1
WHOLE_UNITS = [unit for unit in TimeUnit if unit is not TimeUnit.DURATION]

counts = st.integers(-LARGEST, LARGEST)
# Sums and differences of these stay within 64 bits.
small_counts = st.integers(-(2**60), 2**60)
fractions = st.floats(allow_nan=False, allow_infinity=False)
whole_times = st.builds(Time, counts, st.sampled_from(WHOLE_UNITS))
times = whole_times | st.builds(Time.from_duration, fractions)

totals = st.integers(0, 2**50)
wall_clocks = st.timedeltas(timedelta(0), timedelta(days=10_000))
timestamps = st.builds(Timestamp, *[totals] * 10, *[wall_clocks] * 4)


@given(times)
def test_a_time_is_what_its_time_string_its_repr_its_pickle_and_its_copy_say(time: Time) -> None:
    read = Time.from_timestring(time.to_timestring()), eval(repr(time)), pickle.loads(pickle.dumps(time))
    for twin in (*read, copy.copy(time), copy.deepcopy(time)):
        assert twin == time
        assert hash(twin) == hash(time)
        assert type(twin.value) is type(time.value)
        assert twin.unit is time.unit


@given(whole_times, st.data())
def test_spelling_a_whole_number_differently_does_not_change_it(time: Time, data: st.DataObject) -> None:
    digits = f"{abs(time.value):_}" if data.draw(st.booleans()) else str(abs(time.value))
    zeros = data.draw(st.integers(0, 3))
    fraction = data.draw(st.sampled_from(["", ".", ".0", ".000"])) if not zeros else ""
    if zeros and abs(time.value) % 10**zeros == 0:
        digits, fraction = str(abs(time.value) // 10**zeros), f"e{zeros}"
    sign = "-" if time.value < 0 else data.draw(st.sampled_from(["", "+"]))
    space = st.sampled_from(["", " ", "\t"])
    unit = data.draw(st.sampled_from([time.unit.value, time.unit.value.upper(), time.unit.value.title()]))
    text = f"{data.draw(space)}{sign}{digits}{fraction}{data.draw(space)}{unit}{data.draw(space)}"
    assert repr(Time.from_timestring(text)) == repr(time)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.sets(st.sampled_from("hms"), min_size=1))
def test_hours_minutes_and_seconds_add_up(hours: int, minutes: int, seconds: int, present: set[str]) -> None:
    parts = [(hours, "h", 3600), (minutes, "m", 60), (seconds, "s", 1)]
    text = "".join(f"{number}{letter}" for number, letter, _ in parts if letter in present)
    total = sum(number * factor for number, letter, factor in parts if letter in present)
    assert Time.from_timestring(text) == Time.from_timedelta(text) == Time(total, "sec")


@given(st.text() | st.text("0123456789+-_.eE hmsbapktoudri٣\n"))
def test_any_text_is_a_time_or_a_time_error(text: str) -> None:
    try:
        time = Time.from_timestring(text)
    except TimeError:
        return
    assert Time.from_timestring(str(time)) == time


@given(small_counts, small_counts, small_counts, st.sampled_from(WHOLE_UNITS))
def test_sums_and_differences_follow_the_laws_of_whole_numbers(a: int, b: int, c: int, unit: TimeUnit) -> None:
    x, y, z = Time(a, unit), Time(b, unit), Time(c, unit)
    assert x + y == y + x == Time(a + b, unit) == x + b == a + y == x + str(y)
    assert (x + y) + z == x + (y + z)
    assert x - y == -(y - x) == x + -y == Time(a - b, unit)
    assert x + y - y == +x == x
    assert sum([x, y, z]) == Time(a + b + c, unit)


@given(counts, st.integers(-LARGEST, LARGEST).filter(bool), st.sampled_from(WHOLE_UNITS))
def test_quotient_times_divisor_and_the_rest_give_the_value_back(value: int, divisor: int, unit: TimeUnit) -> None:
    quotient = int(Time(value, unit) / divisor)
    rest = value - quotient * divisor
    assert abs(rest) < abs(divisor)
    assert rest == 0 or (rest < 0) == (value < 0)  # cut toward zero
    assert Time(value, unit) % divisor == value % divisor


@given(small_counts, st.integers(-7, 7), st.sampled_from(WHOLE_UNITS))
def test_a_whole_factor_is_exact(value: int, factor: int, unit: TimeUnit) -> None:
    assert Time(value, unit) * factor == factor * Time(value, unit) == Time(value * factor, unit)


@given(counts, counts, st.sampled_from(WHOLE_UNITS))
def test_the_order_is_that_of_the_values_from_either_side(a: int, b: int, unit: TimeUnit) -> None:
    x, y = Time(a, unit), Time(b, unit)
    for left, right in ((x, y), (x, b), (a, y), (x, str(y)), (str(x), y)):
        assert (left < right, left <= right, left == right, left != right, left >= right, left > right) == (
            a < b,
            a <= b,
            a == b,
            a != b,
            a >= b,
            a > b,
        )
    if x == y:
        assert hash(x) == hash(y)


@given(times, times)
def test_across_units_equality_is_false_and_everything_else_is_a_time_error(x: Time, y: Time) -> None:
    assume(x.unit is not y.unit)
    assert x != y
    for operation in (lambda: x < y, lambda: x >= y, lambda: x + y, lambda: x - y, lambda: x % y, lambda: x / y):
        with pytest.raises(TimeError):
            operation()


@given(st.integers(-(2**40), 2**40), st.timedeltas(timedelta(days=-9999), timedelta(days=9999)))
def test_seconds_compare_with_a_timedelta_as_two_timedeltas_do(seconds: int, duration: timedelta) -> None:
    assume(abs(seconds) < 86400 * 10**8)
    time, same = Time(seconds, "sec"), timedelta(seconds=seconds)
    assert (time < duration, time == duration, time > duration) == (same < duration, same == duration, same > duration)


@given(timestamps)
def test_a_timestamp_comes_back_from_its_state_dict_its_repr_its_pickle_and_its_copy(timestamp: Timestamp) -> None:
    state = timestamp.state_dict()
    composers = {name: getattr(timestamp, name) for name in ("total_wct", "iteration_wct", "epoch_wct", "batch_wct")}
    composers |= {key: value for key, value in state.items() if not key.endswith("_us")}
    for twin in (
        Timestamp.from_state_dict(state),
        Timestamp.from_state_dict(json.loads(json.dumps(state))),
        Timestamp.from_state_dict(composers),
        eval(repr(timestamp), {"Timestamp": Timestamp, "datetime": dt}),
        pickle.loads(pickle.dumps(timestamp)),
        copy.copy(timestamp),
        copy.deepcopy(timestamp),
        timestamp.copy(),
    ):
        assert type(twin) is Timestamp
        assert twin == timestamp
        assert hash(twin) == hash(timestamp)


STEPS = st.tuples(
    st.sampled_from(["batch", "batch", "batch", "epoch", "iteration"]),
    st.integers(0, 1000),
    st.integers(0, 10**6),
    st.timedeltas(timedelta(0), timedelta(hours=1)),
)


@given(timestamps, st.lists(STEPS, max_size=30))
def test_any_sequence_of_steps_counts_as_a_naive_loop_over_the_transition_matrix(
    timestamp: Timestamp, steps: list[tuple[str, int, int, timedelta]]
) -> None:
    state = timestamp.state_dict()
    for kind, samples, tokens, duration in steps:
        took = duration // timedelta(microseconds=1)
        if kind == "batch":
            timestamp = timestamp.to_next_batch(samples, tokens, duration)
            added = {"batch": 1, "batch_in_epoch": 1, "sample": samples, "sample_in_epoch": samples, "token": tokens}
            added |= {"token_in_iteration": tokens, "token_in_epoch": tokens}
            added |= {"total_wct_us": took, "iteration_wct_us": took, "epoch_wct_us": took}
            cleared = ["batch_wct_us"]
        elif kind == "epoch":
            timestamp = timestamp.to_next_epoch(tokens, duration)
            added = {"epoch": 1, "epoch_in_iteration": 1, "token_in_iteration": tokens}
            added |= {"total_wct_us": took, "iteration_wct_us": took}
            cleared = ["batch_in_epoch", "sample_in_epoch", "token_in_epoch", "epoch_wct_us", "batch_wct_us"]
        else:
            timestamp = timestamp.to_next_iteration(duration)
            added = {"iteration": 1, "total_wct_us": took}
            cleared = [
                "epoch_in_iteration",
                "token_in_iteration",
                "batch_in_epoch",
                "sample_in_epoch",
                "token_in_epoch",
            ]
            cleared += ["iteration_wct_us", "epoch_wct_us", "batch_wct_us"]
        state = {key: value + added.get(key, 0) for key, value in state.items()} | dict.fromkeys(cleared, 0)
        if kind == "batch":
            state["batch_wct_us"] = took
        assert timestamp.state_dict() == state
        assert timestamp == Timestamp.from_state_dict(state)
