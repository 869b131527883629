"""The training timestamp, held against the field table and the transition matrix of Composer's time module."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tracekit.errors import TimeError
from tracekit.timestamp import Time, Timestamp, TimeUnit

SECOND = timedelta(seconds=1)
ZERO = timedelta(0)

COUNTERS = {
    "iteration": TimeUnit.ITERATION,
    "epoch": TimeUnit.EPOCH,
    "batch": TimeUnit.BATCH,
    "sample": TimeUnit.SAMPLE,
    "token": TimeUnit.TOKEN,
    "epoch_in_iteration": TimeUnit.EPOCH,
    "token_in_iteration": TimeUnit.TOKEN,
    "batch_in_epoch": TimeUnit.BATCH,
    "sample_in_epoch": TimeUnit.SAMPLE,
    "token_in_epoch": TimeUnit.TOKEN,
}
WALL_CLOCKS = ("total_wct", "iteration_wct", "epoch_wct", "batch_wct")
FIELDS = (*COUNTERS, *WALL_CLOCKS)

# A different value in each field, so that a test notices two that are swapped.
FULL = {name: 101 + index for index, name in enumerate(COUNTERS)} | {
    name: timedelta(seconds=201 + index, microseconds=7) for index, name in enumerate(WALL_CLOCKS)
}


def full() -> Timestamp:
    return Timestamp(**FULL)


def plain(timestamp: Timestamp) -> dict[str, int | timedelta]:
    """The fields as plain numbers and timedeltas."""
    return {name: int(getattr(timestamp, name)) for name in COUNTERS} | {
        name: getattr(timestamp, name) for name in WALL_CLOCKS
    }


def test_the_fields_have_composers_order_and_keep_what_they_are_given() -> None:
    assert plain(full()) == FULL
    assert plain(Timestamp(*FULL.values())) == FULL


@pytest.mark.parametrize("name", COUNTERS)
def test_a_counter_is_a_time_of_its_unit_and_takes_a_number_a_time_or_a_string(name: str) -> None:
    unit = COUNTERS[name]
    for value in (7, Time(7, unit), f"7{unit}"):
        field = getattr(Timestamp(**{name: value}), name)
        assert isinstance(field, Time)
        assert (field.value, field.unit) == (7, unit)


@pytest.mark.parametrize("name", COUNTERS)
def test_a_wrong_counter_is_a_time_error_that_names_it(name: str) -> None:
    # Composer accepts negative counters, which let time go backwards.
    for wrong in (5.0, True, "5", "5sec", Time(5, "dur"), None, SECOND, 2**63, -1, "nonsense"):
        with pytest.raises(TimeError, match=f"^{name}: "):
            Timestamp(**{name: wrong})
    for wrong in (5.0, True, "5", "5ep", None, Time(5, "ep"), -1, 2**63, SECOND, []):
        with pytest.raises(TimeError, match=f"^{name}: "):
            Timestamp.from_state_dict(full().state_dict() | {name: wrong})


@pytest.mark.parametrize("name", WALL_CLOCKS)
def test_a_wrong_wall_clock_time_is_a_time_error_that_names_it(name: str) -> None:
    # Composer stores any object.
    for wrong in (5, 5.0, "5s", Time(5, "sec"), -SECOND):
        with pytest.raises(TimeError, match=f"^{name}: "):
            Timestamp(**{name: wrong})
        with pytest.raises(TimeError, match=f"^{name}: "):
            Timestamp.from_state_dict(FULL | {name: wrong})
    for wrong in (5.0, True, "5", None, -1, 2**80, SECOND):
        with pytest.raises(TimeError, match=f"^{name}_us: "):
            Timestamp.from_state_dict(full().state_dict() | {f"{name}_us": wrong})


def test_a_subclass_of_timedelta_is_stored_as_a_plain_timedelta() -> None:
    class Duration(timedelta):
        pass

    stored = Timestamp(total_wct=Duration(days=1, microseconds=5)).total_wct
    assert type(stored) is timedelta
    assert stored == timedelta(days=1, microseconds=5)


def test_a_timestamp_cannot_be_changed() -> None:
    # Composer's epoch_in_iteration has a setter.
    timestamp = full()
    for name in (*FIELDS, "other", "_values"):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(timestamp, name, 0)
    with pytest.raises(AttributeError, match="immutable"):
        del timestamp.epoch
    assert not hasattr(timestamp, "__dict__")
    assert timestamp == full()


@pytest.mark.parametrize("name", FIELDS)
def test_copy_replaces_one_field_and_keeps_the_rest(name: str) -> None:
    new: int | timedelta = 0 if name in COUNTERS else ZERO  # zero does replace; only None keeps
    assert plain(full().copy(**{name: new})) == FULL | {name: new}
    assert full().copy(**{name: None}) == full()


def test_copy_takes_strings_and_refuses_what_the_constructor_refuses() -> None:
    assert full().copy(epoch="2ep").epoch == Time(2, "ep")
    with pytest.raises(TimeError, match=r"^epoch: "):
        full().copy(epoch="2ba")
    with pytest.raises(TimeError, match=r"no field 'epochs'; its fields are iteration, epoch, batch"):
        full().copy(epochs=2)


def test_get_gives_the_total_counter_of_a_unit() -> None:
    for name in ("iteration", "epoch", "batch", "sample", "token"):
        for unit in (COUNTERS[name], name, name.upper(), COUNTERS[name].value):
            assert full().get(unit) == Time(FULL[name], COUNTERS[name])
    assert Timestamp(total_wct=timedelta(seconds=2.9)).get("sec") == Time(2, "sec")
    # Exact, where a float would round up.
    assert Timestamp(total_wct=timedelta.max).get("sec") == Time(86399999999999, "sec")
    for wrong in ("dur", TimeUnit.DURATION, "epochs", 5, None):
        with pytest.raises(TimeError):
            full().get(wrong)


def test_samples_and_tokens_of_a_batch_may_be_numbers_strings_or_times() -> None:
    # Which fields change is held against a plain loop in tests/property/test_time_properties.py.
    expected = full().to_next_batch(10, 20, 5 * SECOND)
    assert full().to_next_batch("10sp", "20tok", 5 * SECOND) == expected
    assert full().to_next_batch(Time(10, "sp"), Time(20, "tok"), 5 * SECOND) == expected


def test_without_arguments_a_transition_adds_no_samples_no_tokens_and_no_time() -> None:
    assert full().to_next_batch() == full().to_next_batch(0, 0, ZERO)
    assert full().to_next_batch().batch_wct == ZERO
    assert full().to_next_epoch() == full().to_next_epoch(0, ZERO)
    assert full().to_next_iteration() == full().to_next_iteration(ZERO)


def test_the_tokens_of_the_next_epoch_are_added_to_the_tokens_of_the_iteration_only() -> None:
    # Composer documents the argument and raises TypeError when it is used.
    assert plain(full().to_next_epoch(tokens=30)) == plain(full().to_next_epoch()) | {"token_in_iteration": 107 + 30}
    assert full().to_next_epoch(30, SECOND) == full().to_next_epoch(tokens="30tok", duration=SECOND)
    assert full().to_next_epoch(SECOND) == full().to_next_epoch(duration=SECOND)  # as in Composer
    with pytest.raises(TimeError, match="two durations"):
        full().to_next_epoch(SECOND, SECOND)


@pytest.mark.parametrize("wrong", [-1, "-1", 5.0, True, "5ba", "5", None])
def test_wrong_samples_or_tokens_are_a_time_error(wrong: object) -> None:
    with pytest.raises(TimeError, match=r"^samples: "):
        full().to_next_batch(samples=wrong)
    for step in (Timestamp.to_next_batch, Timestamp.to_next_epoch):
        with pytest.raises(TimeError, match=r"^tokens: "):
            step(full(), tokens=wrong)


@pytest.mark.parametrize("wrong", [-SECOND, 5, 5.0, "5s", Time(5, "sec")])
def test_a_wrong_duration_is_a_time_error(wrong: object) -> None:
    for step in (Timestamp.to_next_batch, Timestamp.to_next_epoch, Timestamp.to_next_iteration):
        with pytest.raises(TimeError, match=r"^duration: "):
            step(full(), duration=wrong)


@pytest.mark.parametrize("name", FIELDS)
def test_timestamps_are_equal_when_all_fields_are(name: str) -> None:
    other = full().copy(**{name: 1 if name in COUNTERS else SECOND})
    assert full() == full()
    assert hash(full()) == hash(full())
    assert full() != other
    assert len({full(), full(), other}) == 2  # Composer's timestamps are unhashable


def test_a_timestamp_compares_with_a_time_or_a_time_string_by_that_total_counter() -> None:
    timestamp = Timestamp(epoch=5, batch=50, epoch_in_iteration=1, total_wct=90.5 * SECOND)
    for other in (Time(5, "ep"), "5ep"):
        assert timestamp == other
        assert timestamp >= other
        assert timestamp <= other
        assert not timestamp < other
        assert not timestamp > other
    assert timestamp < "6ep"
    assert timestamp > Time(49, "ba")
    assert timestamp == "1m30s"
    assert timestamp != "1ep"


def test_two_timestamps_have_no_order_and_the_error_says_what_to_compare() -> None:
    # Their counters need not agree, so any order would be a guess.
    for compare in (Timestamp.__lt__, Timestamp.__le__, Timestamp.__gt__, Timestamp.__ge__):
        with pytest.raises(TypeError, match=r"a\.batch < b\.batch"):
            compare(full(), full())
        for other in ("nonsense", "5", "0.5dur", Time(0.5, "dur")):
            with pytest.raises(TimeError):
                compare(full(), other)
    with pytest.raises(TypeError, match="not supported"):
        _ = full() < 5


@pytest.mark.parametrize("other", [101, None, object(), "nonsense", "5", "0.5dur", Time(0.5, "dur")])
def test_equality_of_a_timestamp_never_raises(other: object) -> None:
    assert (full() == other) is False
    assert (full() != other) is True


REQUIRED = ("epoch", "batch", "sample", "token", "batch_in_epoch", "sample_in_epoch", "token_in_epoch")


def test_the_state_dict_holds_plain_integers_with_the_unit_in_the_key() -> None:
    state = full().state_dict()
    assert tuple(state) == (*COUNTERS, *(f"{name}_us" for name in WALL_CLOCKS))
    assert all(type(value) is int for value in state.values())
    assert state["epoch"] == 102
    assert state["batch_wct_us"] == 204_000_007


def test_absent_optional_keys_are_zero_and_an_absent_required_one_is_a_time_error_that_names_it() -> None:
    # Composer keeps what the object that loads the state had before.
    state = dict.fromkeys(REQUIRED, 3)
    assert plain(Timestamp.from_state_dict(state)) == plain(Timestamp()) | state
    for key in REQUIRED:
        with pytest.raises(TimeError, match=rf"lacks {key}$"):
            Timestamp.from_state_dict({name: 3 for name in REQUIRED if name != key})


def test_what_is_no_state_or_has_an_unknown_key_or_one_in_both_forms_is_a_time_error() -> None:
    for wrong in (None, 5, "epoch", [("epoch", 1)]):
        with pytest.raises(TimeError, match="is a dict, not"):
            Timestamp.from_state_dict(wrong)
    with pytest.raises(TimeError, match="unknown key 'epochs'"):
        Timestamp.from_state_dict(full().state_dict() | {"epochs": 1})
    with pytest.raises(TimeError, match="both total_wct and total_wct_us"):
        Timestamp.from_state_dict(full().state_dict() | {"total_wct": SECOND})
