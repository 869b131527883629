"""Checks of arguments: what is refused, and that the message says what is accepted."""

from __future__ import annotations

import math
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.arguments import check_choice, check_names, check_path, check_paths, check_seconds, check_whole
from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


def test_what_fits_passes_and_paths_become_texts() -> None:
    assert [check_whole("steps", 1), check_whole("steps", 10**30), check_whole("wait", 0, 0)] == [1, 10**30, 0]
    for seconds in (1, 1e-9):
        check_seconds("interval", seconds)
    check_choice("mode", "b", ("a", "b"))
    check_names("inside", ["train"])
    paths = ["a.json", Path("a") / "b.json", "s3://bucket/a.json"]
    assert [check_path("path", value) for value in paths] == ["a.json", "a/b.json", "s3://bucket/a.json"]
    assert check_path("path", PureWindowsPath("C:/traces/a.json")) == r"C:\traces\a.json"
    assert check_paths("paths", "ab") == check_paths("paths", Path("ab")) == ["ab"]
    assert check_paths("paths", (one for one in ("a", Path("b")))) == ["a", "b"]


@pytest.mark.parametrize(
    ("check", "wrong", "message"),
    [
        (check_whole, [0, -1, True, 1.0, "1", None, math.inf], "a must be a whole number from 1 on, not "),
        (check_seconds, [0, -0.5, True, "1", None, math.inf, math.nan], "a must be a number of seconds above 0, not "),
        (
            lambda name, value: check_choice(name, value, ("x", "y")),
            ["c", "", None, ["x"], 1],
            "a must be one of 'x', 'y', not ",
        ),
        (check_path, [3, None, b"a.json", ["a.json"]], "a must be a path or URL, not "),
        (check_path, [list(range(1000))], r"^a must be a path or URL, not \[0, .{1,80}\.\.\.$"),
        (check_path, [Path("s3://bucket/a.json")], r"pathlib makes another thing of a URL \(s3:/bucket/a.json\)"),
        (check_names, ["train"], r"such as \['train'\], not one text"),
    ],
    ids=["whole", "seconds", "choice", "path", "long", "URL", "names"],
)
def test_what_does_not_fit_is_refused(check: Callable[[str, Any], object], wrong: list[Any], message: str) -> None:
    for value in wrong:
        with pytest.raises(ConfigError, match=message):
            check("a", value)
