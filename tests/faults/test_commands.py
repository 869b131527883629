"""M8: commands with a full cache, or with an input that fails or belongs to another user: one sentence names the place."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.processes import ROOT
from tests.faults.test_merge_outputs import make_inputs, run_under
from tracekit.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
QUESTIONS = {"query": ["select max(args) from events"], "summary": []}


@pytest.mark.parametrize("size", [1, 700, 3000])
@pytest.mark.parametrize("verb", QUESTIONS)
def test_a_full_cache_ends_a_question_with_its_folder_and_the_remedy(tmp_path: Path, verb: str, size: int) -> None:
    make_inputs(tmp_path / "in")
    done = run_under("RLIMIT_FSIZE", size, tmp_path, verb, "in", *QUESTIONS[verb], TRACEKIT_CACHE="cache")
    assert (done.returncode, done.stdout) == (1, "")
    words = "cache: the cache cannot be written: File too large; name another folder with TRACEKIT_CACHE"
    assert done.stderr == f"tracekit: {words}\n"
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_account_without_a_home_is_asked_to_name_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container whose user has no entry in /etc/passwd."""

    def no_entry(_: int) -> None:
        raise KeyError

    for variable in ("HOME", "XDG_CACHE_HOME", "TRACEKIT_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_entry)
    make_inputs(tmp_path / "in")
    assert main(["query", str(tmp_path / "in"), "select 1"]) == 1
    expected = "tracekit: this account has no home folder for the cache; name a folder with TRACEKIT_CACHE\n"
    assert capsys.readouterr().err == expected
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "cache"))
    assert main(["query", str(tmp_path / "in"), "select 1"]) == 0


VERBS = [
    "merge -f -o OUT TRACE",
    "summary TRACE",
    "validate TRACE",
    "recover -f -o OUT TRACE",
    "anonymise -f -o OUT TRACE",
    "split -f --by-rank -o {part}.json TRACE",
]


def outcome(verb: str, trace: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a verb, and return its exit code and its messages."""
    code = main(verb.replace("OUT", str(trace.with_name("out.json"))).replace("TRACE", str(trace)).split())
    return code, capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="a file that opens and cannot be read needs Linux")
@pytest.mark.parametrize("verb", VERBS)
def test_an_input_that_cannot_be_read_on_is_named(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank0.json").symlink_to("/proc/self/mem")  # opens; its first page cannot be read
    code, message = outcome(verb, tmp_path / "rank0.json", capsys)
    assert (code, message.count("\n")) == (1, 1)
    assert message.endswith(f": {tmp_path / 'rank0.json'}: cannot be read: Input/output error\n")


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-"])
def test_a_command_with_a_closed_stream_does_its_work(tmp_path: Path, closed: str) -> None:
    make_inputs(tmp_path / "in")
    merge = f"'{sys.executable}' -m tracekit merge -o out.json in {closed}"
    done = subprocess.run(
        ["sh", "-c", merge], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads((tmp_path / "out.json").read_bytes())["traceEvents"]


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Lose the permissions of root."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    "verb", [*(verb for verb in VERBS if "summary" not in verb), "capture TRACE", "top --once TRACE", "upload TRACE"]
)
def test_the_folder_of_another_user_is_named(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    outcome(verb, folder, capsys)  # imports the modules of the verb
    with as_nobody():
        code, message = outcome(verb, folder, capsys)
    assert (code, message.count("\n"), str(folder) in message) == (1, 1, True)
    assert message.endswith(": Permission denied\n")
