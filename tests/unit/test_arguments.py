"""Checks of arguments: what is refused, and that the message says what is accepted."""

from __future__ import annotations

import math

import pytest

from tracekit.arguments import check_choice, check_seconds, check_whole
from tracekit.errors import ConfigError


def test_whole_numbers_from_the_least_on_are_returned() -> None:
    assert [check_whole("steps", 1), check_whole("steps", 10**30), check_whole("wait", 0, 0)] == [1, 10**30, 0]


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None, math.inf])
def test_what_is_no_whole_number_seconds_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="steps must be a whole number from 1 on, not "):
        check_whole("steps", value)


def test_finite_numbers_seconds_pass() -> None:
    check_seconds("interval", 1)
    check_seconds("interval", 1e-9)


@pytest.mark.parametrize("value", [0, -0.5, True, "1", None, math.inf, math.nan])
def test_what_is_no_finite_number_seconds_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="interval must be a number of seconds above 0, not "):
        check_seconds("interval", value)


@pytest.mark.parametrize("value", ["c", "", None, ["a"], 1])
def test_what_is_none_of_the_choices_is_refused_and_they_are_named(value: object) -> None:
    check_choice("mode", "b", ("a", "b"))
    with pytest.raises(ConfigError, match="mode must be one of 'a', 'b', not "):
        check_choice("mode", value, ("a", "b"))
