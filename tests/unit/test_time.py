"""Units, amounts and time strings, held against every vector of Composer's time module.

A row gives what Composer does where tracekit differs, and why.
"""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from typing import get_type_hints

import pytest

from tracekit.errors import ConfigError, TimeError
from tracekit.timestamp import Time, Timestamp, TimeUnit, ensure_time

LARGEST = 2**63 - 1


def test_the_units_have_the_names_and_values_of_composer() -> None:
    assert {unit.name: unit.value for unit in TimeUnit} == {
        "ITERATION": "iter",
        "EPOCH": "ep",
        "BATCH": "ba",
        "SAMPLE": "sp",
        "TOKEN": "tok",
        "DURATION": "dur",
        "SECOND": "sec",
    }


@pytest.mark.parametrize("unit", TimeUnit)
def test_a_unit_is_built_from_a_member_a_value_or_a_name_in_any_case(unit: TimeUnit) -> None:
    for spelling in (unit, unit.value, unit.value.upper(), unit.value.title(), unit.name, unit.name.lower()):
        assert TimeUnit(spelling) is unit


@pytest.mark.parametrize("wrong", ["epochs", "", "e", 5, None, 1.0, [], "ſec"])
def test_anything_else_is_no_unit_and_the_error_lists_the_units(wrong: object) -> None:
    with pytest.raises(TimeError, match=r"is not a unit of training time; .*ep \(epoch\), ba \(batch\)"):
        TimeUnit(wrong)


def test_a_unit_equals_its_value_without_a_warning_and_hashes_like_it() -> None:
    # Composer warns at each comparison with a string; warnings are errors in this suite.
    assert TimeUnit.EPOCH == "ep"
    assert TimeUnit.EPOCH != "ba"
    assert TimeUnit.EPOCH != "EP"  # differs from Composer: "EP" and "ep" cannot both hash like the member
    assert hash(TimeUnit.EPOCH) == hash("ep")
    assert f"{TimeUnit.EPOCH}" == str(TimeUnit.EPOCH) == "ep"


def test_a_time_takes_the_type_of_its_value_in_brackets_as_composers_does() -> None:
    time = Time[int](5, "ep")
    assert time == Time(5, "ep")
    assert type(time) is Time

    def annotated(time: Time[int], fraction: Time[float]) -> None: ...

    assert get_type_hints(annotated)["time"] == Time[int] != Time[float]
    assert pickle.loads(pickle.dumps(time)) == copy.deepcopy(time) == time
    assert not hasattr(time, "__dict__")


@pytest.mark.parametrize(
    ("value", "unit", "stored"),
    [
        (5, "ep", 5),
        (-LARGEST, "tok", -LARGEST),
        (1, "dur", 1.0),
        (-0.5, "dur", -0.5),
        (timedelta(hours=1, seconds=1), "sec", 3601),
        (timedelta(seconds=-2), "sec", -2),
    ],
)
def test_a_value_is_stored_exactly_as_its_unit_wants_it(value: float, unit: str, stored: float) -> None:
    time = Time(value, unit)
    assert (time.value, time.unit) == (stored, TimeUnit(unit))
    assert (type(time.value), type(time.unit)) == (type(stored), TimeUnit)
    assert (int(time), float(time)) == (int(stored), float(stored))


@pytest.mark.parametrize(
    ("value", "unit", "message"),
    [
        (5.0, "ep", "a time in ep is a whole number, not 5.0"),
        (True, "ep", "a time in ep is a whole number, not True"),  # Composer keeps the bool, which prints as "Trueep"
        ("5", "ep", "a time in ep is a whole number, not '5'"),
        (None, "ep", "a time in ep is a whole number, not None"),
        (Time(5, "ep"), "ep", "a time in ep is a whole number"),
        (timedelta(seconds=5), "ep", "a time in ep is a whole number"),
        (timedelta(seconds=2.5), "sec", "is not a whole number of seconds"),
        (LARGEST + 1, "tok", "at most 64 bits"),  # Composer has no limit; JSON of other languages and traces have
        (-LARGEST - 1, "tok", "at most 64 bits"),
        pytest.param(10**5000, "tok", "at most 64 bits", id="an integer too long to print"),
        ("0.5", "dur", "a time in dur is a finite number, not '0.5'"),  # Composer converts; strings are from_timestring
        (float("nan"), "dur", "a finite number, not nan"),  # Composer keeps nan, which no comparison or JSON survives
        (float("inf"), "dur", "a finite number, not inf"),
        (10**400, "dur", "a finite number, not an integer beyond 64 bits"),
        (True, "dur", "a finite number, not True"),
        (5, "epochs", "'epochs' is not a unit"),
    ],
)
def test_a_value_that_does_not_fit_its_unit_is_a_time_error(value: object, unit: str, message: str) -> None:
    with pytest.raises(TimeError, match=message) as caught:
        Time(value, unit)
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, ValueError)


def test_integers_of_numpy_are_taken_as_integers() -> None:
    numpy = pytest.importorskip("numpy")
    time = Time(numpy.int64(5), "ba")
    assert type(time.value) is int
    assert time + numpy.int64(2) == Time(7, "ba")
    assert time * numpy.int64(2) == Time(10, "ba")
    assert time > numpy.int64(4)
    with pytest.raises(TimeError):
        Time(numpy.array([1, 2]), "ba")


def test_there_is_a_constructor_for_each_unit() -> None:
    made = [getattr(Time, f"from_{unit.name.lower()}")(5) for unit in TimeUnit if unit is not TimeUnit.SECOND]
    assert made == [Time(5, unit) for unit in TimeUnit if unit is not TimeUnit.SECOND]


def test_seconds_come_from_a_timedelta_or_from_hours_minutes_and_seconds() -> None:
    assert Time.from_timedelta("1h20m40s") == Time(4840, "sec")
    assert Time.from_timedelta(timedelta(minutes=2)) == Time(120, "sec")  # Composer takes only the string
    for wrong in ("5ep", "30sec", "", "9" * 5000 + "h", timedelta(seconds=0.1), 5):
        with pytest.raises(TimeError):
            Time.from_timedelta(wrong)


def test_a_time_cannot_be_changed() -> None:
    time = Time(5, "ep")
    with pytest.raises(AttributeError, match="immutable"):
        time.value = 6
    with pytest.raises(AttributeError, match="immutable"):
        time.other = 6
    with pytest.raises(AttributeError, match="immutable"):
        del time.unit
    assert not hasattr(time, "__dict__")
    assert time == Time(5, "ep")


def test_zero_is_false_as_with_timedelta() -> None:
    # Composer's bool(Time(0, "ep")) is True, because it defines none.
    assert not Time(0, "ep")
    assert not Time(0.0, "dur")
    assert Time(-1, "ep")


def test_input_may_be_a_time_a_string_a_number_or_a_timedelta() -> None:
    time = Time(5, "ep")
    assert Time.from_input(time) is time
    assert ensure_time(time, "ba") is time
    assert ensure_time("5ep", "ba") == time  # a string names its own unit
    assert ensure_time(5, "ep") == time
    assert ensure_time(5, TimeUnit.EPOCH) == time
    assert ensure_time(0.5, "dur") == Time(0.5, "dur")
    assert ensure_time(timedelta(seconds=90), "ba") == Time(90, "sec")  # Composer refuses a timedelta


@pytest.mark.parametrize(
    ("value", "unit"), [(5, None), (0.5, "ep"), (None, "ep"), ([], "ep"), ("5", "ep"), (b"5ep", "ep")]
)
def test_input_that_is_no_time_is_a_time_error(value: object, unit: str | None) -> None:
    with pytest.raises(TimeError):
        ensure_time(value, unit)


def test_a_time_string_must_be_a_string() -> None:
    with pytest.raises(TimeError, match="a time string is needed"):
        Time.from_timestring(b"5ep")


# The spellings of a value and a unit, beside those that tests/property/test_time_properties.py makes up.
READ = {
    (10, "ba"): ["10ba", "100e-1ba"],
    (5, "ba"): ["5Ba", "5.ba"],
    (0, "ep"): ["0ep", "0.00ep", "0e999999999ep"],  # no huge power is built
    (300_000_000_000, "sp"): ["3_0e10sp"],
    (0.5, "dur"): ["0.5dur", ".5dur"],
    (-0.5, "dur"): ["-0.5dur"],
    (100, "sec"): ["1e2sec", "1m40s", "100s"],
    # Composer refuses hours from 24 on, minutes and seconds from 60 on, and white space at the end.
    (86400, "sec"): ["24h", " 23h60m\n"],
    # Composer makes a float of it, and loses the last digit.
    (2**53 + 1, "tok"): ["9007199254740993tok", "9007199254740993.0tok", "9.007199254740993e15tok"],
    (LARGEST, "tok"): ["9223372036854775807tok"],
}


# Time strings by the position and the problem that the error names. Composer reads "5" as 50 s, "1h5" as 3650 s and "" as 0 s.
REFUSED = {
    (0, "it is empty"): ["", "  "],
    (1, "the unit is missing"): ["5"],
    (2, "'5' cannot follow '1h'"): ["1h5"],
    (3, "'1m' cannot follow '30s'"): ["30s1m"],
    (5, "'ec' cannot follow '1h30s'"): ["1h30sec"],
    (2, "' 30m' cannot follow '1h'"): ["1h 30m"],
    (1, "'H20M' is not a unit"): ["1H20M"],
    (2, "'h' is not a unit"): ["-1h"],
    (3, "'h' is not a unit"): ["1.5h"],
    (1, "'epoch' is not a unit (write 'ep')"): ["5epoch"],
    (2, "'epochs' is not a unit (write 'ep')"): ["5 epochs"],
    (1, "'batches' is not a unit (write 'ba')"): ["5batches"],
    (1, "'samples' is not a unit (write 'sp')"): ["5samples"],
    (1, "is not a unit"): ["5٣ba", "5\x00ep", "5ba6ba", "0x10ba", "1__0sp"],
    (2, "is not a unit"): ["10S", "50%dur"],
    (5, "'_sp' is not a unit"): ["1_000_sp"],
    (1, "a number is needed, not 'ep'"): [" ep"],
    (0, "a number is needed"): ["ep", ".ep", "nanba", "infba", "nandur", "infdur", "٣ba", "--5ep"],
    (0, "is not a whole number"): ["5.5ba", "1.1iter", "0.1sec", "1e-999999999ba"],
    (0, "does not fit in 64 bits"): ["1e400ba", "1e999999999tok", "9223372036854775808tok", "9999999999999999h"],
    (0, "1e400 is too large"): ["1e400dur"],
    (64, "it goes on after 64 characters"): ["0" * 80 + "5ep", "9" * 5000 + "h"],
}


@pytest.mark.parametrize(("time", "text"), [(time, text) for time, texts in READ.items() for text in texts])
def test_a_time_string_is_read_exactly(time: tuple[float, str], text: str) -> None:
    read = Time.from_timestring(text)
    assert (read.value, read.unit) == time
    assert type(read.value) is type(time[0])


@pytest.mark.parametrize(("said", "text"), [(said, text) for said, texts in REFUSED.items() for text in texts])
def test_a_refused_time_string_is_told_what_is_wrong_where_and_what_is_accepted(
    said: tuple[int, str], text: str
) -> None:
    with pytest.raises(TimeError) as caught:
        Time.from_timestring(text)
    message = str(caught.value)
    assert f", position {said[0]}: " in message
    assert said[1] in message
    assert "accepted are a number and a unit" in message
    assert len(message) < 500
    assert "\n" not in message


def test_a_float_between_two_whole_values_is_ordered_between_them() -> None:
    assert Time(5, "ep") < 5.5 < Time(6, "ep")
    assert Time(2**53 + 1, "tok") > float(2**53)


@pytest.mark.parametrize(
    "other", [Time(5, "ba"), "5ba", "nonsense", "", None, object(), [], timedelta(seconds=5), TimeUnit.EPOCH]
)
def test_equality_never_raises(other: object) -> None:
    # Composer raises RuntimeError across units, so that mixed times cannot be searched in a list.
    assert (Time(5, "ep") == other) is False
    assert (Time(5, "ep") != other) is True
    assert Time(5, "ep") in [other, Time(5, "ep")]


@pytest.mark.parametrize("other", [Time(5, "ba"), "5ba", "nonsense", "5", timedelta(seconds=5)])
def test_an_ordering_across_units_or_with_an_invalid_string_is_a_time_error(other: Time | str) -> None:
    time = Time(5, "ep")
    for compare in (time.__lt__, time.__le__, time.__gt__, time.__ge__):
        with pytest.raises(TimeError):
            compare(other)
    with pytest.raises(TimeError, match=r"5ep compared with 5ba: the units differ"):
        _ = time < Time(5, "ba")
    with pytest.raises(TypeError, match="not supported"):
        _ = time < None


def test_a_time_and_a_timestamp_compare_from_both_sides() -> None:
    # Composer: Time == Timestamp is False and Time < Timestamp is a TypeError, while the reverse works.
    timestamp = Timestamp(epoch=5)
    assert Time(5, "ep") == timestamp
    assert Time(4, "ep") < timestamp
    assert Time(6, "ep") >= timestamp


@pytest.mark.parametrize(
    ("time", "other", "results"),
    [
        (Time(0.5, "dur"), 0.25, (0.75, 0.25, -0.25)),
        (Time(1.0, "dur"), 2, (3.0, -1.0, 1.0)),
        (Time(30, "sec"), timedelta(minutes=1), (90, -30, 30)),
    ],
)
def test_sum_and_difference_take_numbers_strings_times_and_timedeltas(
    time: Time, other: Time | str | float | timedelta, results: tuple[float, float, float]
) -> None:
    added, less, difference = results
    assert repr(time + other) == repr(other + time) == repr(Time(added, time.unit))
    assert (time - other, other - time) == (Time(less, time.unit), Time(difference, time.unit))


@pytest.mark.parametrize("other", [Time(2, "ba"), "2ba", "2", 0.5, 2.0, True, timedelta(seconds=1)])
def test_sum_and_difference_with_what_does_not_fit_are_time_errors(other: Time | str | float) -> None:
    for operation in (
        lambda: Time(5, "ep") + other,
        lambda: other + Time(5, "ep"),
        lambda: Time(5, "ep") - other,
        lambda: other - Time(5, "ep"),
        lambda: Time(5, "ep") % other,
    ):
        with pytest.raises(TimeError):
            operation()
    with pytest.raises(TimeError, match=r"^5ep \+ 2ba: the units differ, and there is no conversion between them$"):
        Time(5, "ep") + Time(2, "ba")


def test_arithmetic_with_a_foreign_type_is_pythons_type_error() -> None:
    # Composer raises RuntimeError for None; TypeError lets the other operand have its turn first.
    for operation in (
        lambda: Time(5, "ep") + None,
        lambda: None - Time(5, "ep"),
        lambda: Time(5, "ep") * None,
        lambda: Time(5, "ep") / None,
        lambda: 5 / Time(5, "ep"),
        lambda: Time(5, "ep") // 2,
    ):
        with pytest.raises(TypeError, match="unsupported operand"):
            operation()


@pytest.mark.parametrize(
    ("time", "factor", "expected"),
    [
        (Time(5, "ep"), 0.5, Time(2, "ep")),
        (Time(-5, "ep"), 0.5, Time(-2, "ep")),
        (Time(7, "ep"), Time(0.2, "dur"), Time(1, "ep")),
        (Time(10, "ep"), "0.5dur", Time(5, "ep")),
        (Time(0.5, "dur"), Time(0.5, "dur"), Time(0.25, "dur")),
        (Time(2**53 + 1, "tok"), 3, Time(3 * (2**53 + 1), "tok")),
    ],
)
def test_a_product_is_cut_toward_zero_and_takes_the_unit_that_is_no_duration(
    time: Time, factor: float | str | Time, expected: Time
) -> None:
    assert repr(time * factor) == repr(expected)
    assert repr(factor * time) == repr(expected)


@pytest.mark.parametrize(
    "factor",
    [Time(2, "ep"), Time(2, "ba"), "2ep", "2", float("nan"), float("inf"), pytest.param(10**400, id="huge"), LARGEST],
)
def test_a_product_without_meaning_is_a_time_error(factor: float | str | Time) -> None:
    with pytest.raises(TimeError):
        Time(5, "ep") * factor


@pytest.mark.parametrize(
    ("time", "divisor", "expected"),
    [
        (Time(5, "ep"), 2, Time(2, "ep")),
        (Time(-5, "ep"), 2, Time(-2, "ep")),
        (Time(5, "ep"), -2, Time(-2, "ep")),
        (Time(5, "ep"), 0.5, Time(10, "ep")),
        (Time(4, "ep"), Time(2, "ep"), Time(2.0, "dur")),
        (Time(4, "ep"), "8ep", Time(0.5, "dur")),
        (Time(1.0, "dur"), 4, Time(0.25, "dur")),
        (Time(90, "sec"), timedelta(minutes=1), Time(1.5, "dur")),
        pytest.param(Time(0.5, "dur"), 10**400, Time(0.0, "dur"), id="an integer beyond any float"),
        (Time(LARGEST, "tok"), 1, Time(LARGEST, "tok")),  # through a float it would be one more
    ],
)
def test_a_quotient_by_a_number_keeps_the_unit_and_by_a_time_is_a_duration(
    time: Time, divisor: float | str | Time, expected: Time
) -> None:
    assert repr(time / divisor) == repr(expected)


@pytest.mark.parametrize("divisor", [Time(2, "ba"), "2ba", "0.5dur", "2", float("nan")])
def test_a_quotient_without_meaning_is_a_time_error(divisor: float | str | Time) -> None:
    with pytest.raises(TimeError):
        Time(5, "ep") / divisor


@pytest.mark.parametrize("zero", [0, 0.0, "0ep", Time(0, "ep")])
def test_a_division_by_zero_is_pythons_own_error(zero: float | str | Time) -> None:
    with pytest.raises(ZeroDivisionError):
        Time(5, "ep") / zero
