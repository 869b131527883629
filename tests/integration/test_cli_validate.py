"""``tracekit validate``: what it prints, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.bad_traces import FIRST, array, between, counter, object_, rank_trace, slice_

if TYPE_CHECKING:
    from tests.conftest import Cli

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "good": between(),
    "bad": between(slice_(-5, 1)),
    "many": array(*[slice_(-5, 1) for _ in range(100)]),
    "live": array(FIRST)[:-3],
    "rank0": rank_trace(slice_(5, 1), world_size=0),
    "no-json": b"\x0a\x05proto",
}
OK = "good.json: ok: 2 events"
PROBLEM = "bad.json: event 2: [perfetto-negative-time] ts is -5; write times relative to an earlier base"
PROBLEMS = "bad.json: problems: 3 events, 1 error"
LIVE = "live.json: byte 69: warning: [unfinished] the array has no closing bracket; is its process still running?"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The current folder, which holds a file of each kind, and a folder of two traces."""
    for folder in ("run", "empty"):
        (tmp_path / folder).mkdir()
    (tmp_path / "run" / "notes.txt").write_text("no trace")
    for name, data in {**FILES, "run/a": FILES["good"], "run/b": FILES["good"]}.items():
        (tmp_path / f"{name}.json").write_bytes(data)
    return tmp_path


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [
        ("good.json", 0, [OK]),
        ("bad.json", 3, [PROBLEM, PROBLEMS]),
        ("good.json bad.json", 3, [OK, PROBLEM, PROBLEMS, "2 files, 1 error, 0 warnings"]),
        ("run", 0, ["run/a.json: ok: 2 events", "run/b.json: ok: 2 events", "2 files, 0 errors, 0 warnings"]),
        ("-q good.json good.json", 0, []),
        ("-q good.json bad.json", 3, [PROBLEM, PROBLEMS, "2 files, 1 error, 0 warnings"]),
        ("live.json", 0, [LIVE, "live.json: ok: 1 event, 1 warning"]),
        ("--strict live.json", 3, [LIVE, "live.json: problems: 1 event, 1 warning"]),
        ("--no-schema rank0.json", 0, ["rank0.json: ok: 2 events"]),
    ],
)
def test_validate_prints_a_line_for_each_problem_and_each_file(
    arguments: str, code: int, printed: list[str], cli: Cli
) -> None:
    output = cli(f"validate {arguments}", code)
    assert output.out.splitlines() == printed
    assert ("the schemas were not applied" in output.err) == ("--no-schema" in arguments)


@pytest.mark.usefixtures("files")
def test_validate_counts_the_problems_that_it_does_not_print(cli: Cli) -> None:
    assert cli("validate many.json", 3).out.splitlines()[9:] == [
        "many.json: event 10: [perfetto-negative-time] ts is -5; write times relative to an earlier base",
        "many.json: [perfetto-negative-time] 90 more",
        "many.json: problems: 100 events, 100 errors",
    ]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", ["missing.json", "no-json.json", "empty"])
def test_a_file_that_cannot_be_read_exits_with_1_and_the_others_are_checked(name: str, cli: Cli) -> None:
    printed = cli(f"validate {name} good.json", 1)
    assert printed.out.splitlines()[0] == OK
    assert printed.err.startswith(f"tracekit validate: {name}: ")
    assert printed.err.count("\n") == 1


@pytest.mark.usefixtures("files")
def test_json_is_one_document_with_everything(cli: Cli) -> None:
    document = json.loads(cli("validate --json bad.json missing.json", 1).out)
    (report,) = document["files"]
    assert (report["file"], report["kind"], report["events"], report["errors"]) == ("bad.json", "other", 3, 1)
    assert (report["problems"][0]["rule"], report["problems"][0]["event"]) == ("perfetto-negative-time", 2)
    assert [entry["file"] for entry in document["unreadable"]] == ["missing.json"]


def test_control_characters_of_a_trace_do_not_reach_the_terminal(files: Path, cli: Cli) -> None:
    name = "\x1b]0;owned\x07\x9b31m\u202e"
    data = between(slice_(5, ..., name), counter('{"\\u001b[2J":true}'), slice_(5, 1, pid=name, ph=name))
    (files / "evil.json").write_bytes(data)
    out = cli("validate evil.json", 3).out
    assert "owned" in out
    assert not [character for character in out if ord(character) < 32 and character != "\n"]
    assert not {"\x9b", "\x7f", "\u202e"} & set(out)


def test_the_process_ends_with_the_code_and_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(object_(FIRST)[:-4])
    command = [sys.executable, "-m", "tracekit", "validate", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=240)
    assert (ended.returncode, ended.stderr) == (3, "")
    assert str(path) in ended.stdout
