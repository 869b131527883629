"""``tracekit validate``: what it prints, and its exit codes."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bad_traces import FIRST, array, between, counter, object_, rank_trace, slice_
from tracekit.cli import validate

GOOD = between()
BAD = between(slice_(-5, 1))
WARNS = array(FIRST)[:-3]


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser(prog="tracekit validate")
    validate.prepare_parser(parser)
    return validate.run(parser.parse_args([str(argument) for argument in arguments]))


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_a_good_file_is_ok_and_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "good.json", GOOD)
    assert run(path) == 0
    assert capsys.readouterr().out == f"{path}: ok: 2 events\n"


def test_problems_are_printed_with_file_event_and_rule_and_exit_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "bad.json", BAD)
    assert run(path) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{path}: event 2: [perfetto-negative-time] ts is -5")
    assert lines[-1] == f"{path}: problems: 3 events, 1 error"


def test_warnings_are_allowed_unless_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "live.json", WARNS)
    assert run(path) == 0
    assert "warning: [unfinished]" in capsys.readouterr().out
    assert run("--strict", path) == 3


def test_quiet_says_nothing_about_good_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write(tmp_path, "good.json", GOOD), write(tmp_path, "bad.json", BAD)
    assert run("-q", good, good) == 0
    assert capsys.readouterr().out == ""
    assert run("-q", good, bad) == 3
    assert f"{good}:" not in capsys.readouterr().out


def test_several_files_end_with_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write(tmp_path, "good.json", GOOD), write(tmp_path, "bad.json", BAD)
    assert run(good, bad) == 3
    assert capsys.readouterr().out.splitlines()[-1] == "2 files, 1 error, 0 warnings"


@pytest.mark.parametrize("data", [None, b"", b"\x0a\x05proto"], ids=["missing", "folder", "no JSON"])
def test_a_file_that_cannot_be_read_exits_with_1_and_the_others_are_checked(
    data: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, other = write(tmp_path, "good.json", GOOD), tmp_path / "other.json"
    if data:
        other.write_bytes(data)
    elif data is not None:
        other.mkdir()
    assert run(other, good) == 1
    printed = capsys.readouterr()
    assert f"{good}: ok" in printed.out
    assert str(other) in printed.err
    assert printed.err.count("\n") == 1


def test_json_is_one_document_with_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, missing = write(tmp_path, "bad.json", BAD), tmp_path / "missing.json"
    assert run("--json", bad, missing) == 1
    document = json.loads(capsys.readouterr().out)
    (report,) = document["files"]
    assert (report["file"], report["kind"], report["events"], report["errors"]) == (str(bad), "other", 3, 1)
    assert report["problems"][0]["rule"] == "perfetto-negative-time"
    assert report["problems"][0]["event"] == 2
    assert [entry["file"] for entry in document["unreadable"]] == [str(missing)]


def test_more_problems_than_are_printed_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "bad.json", array(*[slice_(-5, 1) for _ in range(100)]))
    assert run(path) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == f"{path}: [perfetto-negative-time] 90 more"
    assert lines[-1].endswith("100 errors")


def test_control_characters_of_a_trace_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "\x1b]0;owned\x07\x9b31m\u202e"
    data = between(slice_(5, ..., name), counter('{"\\u001b[2J":true}'), slice_(5, 1, pid=name, ph=name))
    assert run(write(tmp_path, "evil.json", data)) == 3
    out = capsys.readouterr().out
    assert "owned" in out
    assert not [character for character in out if ord(character) < 32 and character != "\n"]
    assert not {"\x9b", "\x7f", "\u202e"} & set(out)


def test_a_rank_trace_is_checked_against_the_schemas_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "rank0.json", rank_trace(slice_(5, 1), world_size=0))
    assert run(path) == 3
    assert "event 1: [schema] args.world_size: 0 is less than the minimum of 1" in capsys.readouterr().out
    assert run("--no-schema", path) == 0
    assert "schemas were not applied" in capsys.readouterr().err


def test_the_command_ends_with_the_code_and_without_a_traceback(tmp_path: Path) -> None:
    path = write(tmp_path, "cut.json", object_(FIRST)[:-4])
    command = [sys.executable, "-m", "tracekit", "validate", str(path)]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).resolve().parents[2], timeout=240
    )
    assert ended.returncode == 3, ended.stderr
    assert "Traceback" not in ended.stderr
    assert str(path) in ended.stdout + ended.stderr


def test_no_file_is_wrong_usage() -> None:
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2


def test_the_traces_of_a_folder_are_validated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text('[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2}]')
    (tmp_path / "notes.txt").write_text("no trace")
    assert run(tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition("/")[2] for line in lines[:2]] == ["rank0.json: ok: 1 event", "rank1.json: ok: 1 event"]
    assert lines[2:] == ["2 files, 0 errors, 0 warnings"]
