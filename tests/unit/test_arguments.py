"""Checks of arguments: what is refused, and that the message says what is accepted."""

from __future__ import annotations

import math
from pathlib import Path, PureWindowsPath

import pytest

from tracekit.arguments import check_choice, check_names, check_path, check_paths, check_seconds, check_whole
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


def test_paths_become_texts_and_texts_stay_what_they_are() -> None:
    assert [check_path("path", value) for value in ("a.json", Path("a") / "b.json", "s3://bucket/a.json")] == [
        "a.json",
        "a/b.json",
        "s3://bucket/a.json",
    ]
    assert check_path("path", PureWindowsPath("C:/traces/a.json")) == r"C:\traces\a.json"
    assert check_paths("paths", "ab") == ["ab"]
    assert check_paths("paths", Path("ab")) == ["ab"]
    assert check_paths("paths", (one for one in ("a", Path("b")))) == ["a", "b"]


@pytest.mark.parametrize("value", [3, None, b"a.json", ["a.json"]])
def test_what_is_no_path_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="output must be a path or URL, not "):
        check_path("output", value)


def test_a_long_thing_that_is_no_path_is_told_in_short() -> None:
    with pytest.raises(ConfigError, match=r"^output must be a path or URL, not \[0, .*\.\.\.$") as caught:
        check_path("output", list(range(1000)))
    assert len(str(caught.value)) < 130


def test_a_path_made_of_a_url_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pathlib makes another thing of a URL \(s3:/bucket/a.json\)"):
        check_path("output", Path("s3://bucket/a.json"))


def test_one_text_is_not_several_names() -> None:
    check_names("inside", ["train"])
    with pytest.raises(ConfigError, match=r"such as \['train'\], not one text"):
        check_names("inside", "train")
