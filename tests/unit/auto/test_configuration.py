"""Options from files and from the environment, below the command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.auto.configuration import overlay, read_environment, read_file
from tracekit.auto.options import OPTIONS
from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_nearest_file_with_options_is_read_as_the_command_line_would(tmp_path: Path) -> None:
    inner = tmp_path / "project" / "src"
    inner.mkdir(parents=True)
    (tmp_path / "tracekit.toml").write_text("memory = false")
    path = tmp_path / "project" / "pyproject.toml"
    path.write_text(
        '[tool.tracekit]\nlimit = "500MB"\nsteps = "20:25"\nranks = [0, 2]\nhandlers = ["a", "b"]\n'
        "memory = true\nflush_interval = 1\n"
    )
    (inner / "pyproject.toml").write_text("[tool.ruff]\nline-length = 120")
    expected = {
        "limit": 500_000_000,
        "steps": (20, 25),
        "ranks": (0, 2),
        "handlers": ("a", "b"),
        "memory": True,
        "flush_interval": 1,
    }
    assert read_file(inner) == (expected, path)
    # Of one folder, tracekit.toml wins; it has no table.
    (path.parent / "tracekit.toml").write_text('ranks = "1"')
    assert read_file(inner) == ({"ranks": (1,)}, path.parent / "tracekit.toml")


def test_a_folder_below_and_a_project_that_does_not_name_tracekit_have_no_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "tracekit.toml").write_text("memory = true")
    (tmp_path / "pyproject.toml").mkdir()
    assert read_file(tmp_path) == ({}, None)
    (tmp_path / "pyproject.toml").rmdir()
    monkeypatch.setitem(sys.modules, "tomllib", None)
    (tmp_path / "pyproject.toml").write_text("this is [ no TOML")
    assert read_file(tmp_path) == ({}, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flush_intervall = 1", " flush_intervall is not an option; did you mean flush_interval?"),
        ("on-demand = true", " on-demand is not an option; did you mean on_demand?"),
        ("xyz = 1", f" xyz is not an option; known are {', '.join(sorted(OPTIONS))}"),
        ("limit = 3", " limit: '3' is not a size from 1MB on, such as 500MB or 2GB"),
        ('steps = "20:"', " steps: 20:: name the first step and the end, such as 20:25"),
        ('steps = "many"', " steps: many: give the first step and the one after the last, for example --steps 10:20"),
        ("steps = { from = 2 }", " steps must be one text or number, not {'from': 2}"),
        ('handlers = ["a", ""]', " handlers: 'a,' is not a list of names, such as a,b"),
        ("memory = 1", " memory must be true or false, not 1"),
        ("flush_interval = true", " flush_interval must be one text or number, not True"),
        ("flush_interval = 0", " flush_interval: flush_interval must be a number of seconds above 0, not 0"),
        ('on_full = "wait"', " on_full: on_full must be one of 'drop_newest', 'drop_oldest', 'block', not 'wait'"),
        ("on_demand = true\nflight_recorder = 30", ": on_demand and flight_recorder exclude each other; keep one"),
    ],
)
def test_a_wrong_option_is_refused_with_file_key_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(f"[tool.tracekit]\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        read_file(tmp_path)
    assert str(caught.value).startswith(f"{path}: [tool.tracekit]{message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.tracekit]\nmemory = ", "pyproject.toml: this is not TOML: "),
        ("[tool]\ntracekit = 1", r"tool\.tracekit must be a table of options: \[tool\.tracekit\]"),
    ],
)
def test_a_file_without_a_table_of_options_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_file(tmp_path)


def test_the_environment_names_options_in_capitals() -> None:
    environ = {"TRACEKIT_LIMIT": "1GB", "TRACEKIT_MEMORY": "0", "TRACEKIT_STEPS": "", "LIMIT": "1"}
    environ |= {"TRACEKIT_MERGE": "False", "TRACEKIT_SHAPES": "true"}
    assert read_environment(environ) == {"limit": 10**9, "memory": False, "merge": False, "shapes": True}
    with pytest.raises(ConfigError, match=r"^TRACEKIT_LIMIT: '1' is not a size from 1MB on"):
        read_environment({"TRACEKIT_LIMIT": "1"})
    with pytest.raises(ConfigError, match=r"^TRACEKIT_ON_DEMAND and TRACEKIT_FLIGHT_RECORDER: .* keep one"):
        read_environment({"TRACEKIT_ON_DEMAND": "1", "TRACEKIT_FLIGHT_RECORDER": "5"})


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        ({"limit": 1, "memory": True}, {"limit": 2}, {"limit": 2, "memory": True}),
        ({"on_demand": True}, {"flight_recorder": 5.0}, {"flight_recorder": 5.0}),
        ({"flight_recorder": 5.0}, {"on_demand": True}, {"on_demand": True}),
        (
            {"flight_recorder": 5.0, "on_demand": False},
            {"on_demand": False},
            {"flight_recorder": 5.0, "on_demand": False},
        ),
    ],
)
def test_higher_options_replace_lower_ones_and_what_they_exclude(
    lower: dict[str, Any], upper: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert overlay(lower, upper) == expected
