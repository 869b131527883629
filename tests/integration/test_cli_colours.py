"""Answers in a terminal: bold headings and red problems, the same text, and nothing of it where nobody wants it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.report_pages import rank_trace
from tracekit import JSONTraceHandler, Profiler

pytest.importorskip("rich", reason="rich is not installed")

ROOT = Path(__file__).resolve().parents[2]
STYLES = re.compile(r"\x1b\[[0-9;]*m")
GOOD = '[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2}]'


def in_terminal(*arguments: str, **variables: str) -> str:
    """Run a command with a pseudo-terminal as its standard output; return the bytes that reach it, as text."""
    own = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLORTERM")}
    environment = {**own, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "40", **variables}
    command = [sys.executable, "-m", "tracekit", *arguments]
    control, terminal = pty.openpty()
    nothing = subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdin=nothing, stdout=terminal, stderr=nothing):
        os.close(terminal)
        data = b""
        with suppress(OSError):  # the other end is closed
            while piece := os.read(control, 65536):
                data += piece
        os.close(control)
    return data.decode().replace("\r\n", "\n")


def in_pipe(*arguments: str) -> str:
    command = [sys.executable, "-m", "tracekit", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_a_terminal_gets_styles_and_a_pipe_the_same_text_without(tmp_path: Path) -> None:
    for rank in (0, 1):
        rank_trace(tmp_path / f"rank{rank}.json", rank)
    plain = in_pipe("summary", str(tmp_path))
    styled = in_terminal("summary", str(tmp_path))
    assert "\x1b" not in plain
    assert STYLES.sub("", styled) == plain
    assert re.search(r"\x1b\[1msteps of 2 ranks[^\n]*\x1b\[0m", styled)
    assert re.search(r"\x1b\[1m +least +median +most  on rank\x1b\[0m", styled)
    assert not re.search(r"\x1b\[[0-9;]*m +mean ", styled)
    assert in_terminal("summary", str(tmp_path), NO_COLOR="1") == plain
    assert in_terminal("summary", str(tmp_path), TERM="dumb") == plain


def test_validate_is_green_yellow_and_red_and_a_loss_in_a_merge_is_red(tmp_path: Path) -> None:
    good, doubtful, bad = files = [str(tmp_path / name) for name in ("good.json", "doubtful.json", "bad.json")]
    Path(good).write_text(GOOD)
    Path(doubtful).write_text(GOOD.replace("X", "E"))
    Path(bad).write_text(GOOD.replace('"ts":1,', ""))
    styled = in_terminal("validate", *files)
    assert STYLES.sub("", styled) == in_pipe("validate", *files)
    assert f"\x1b[32m{good}: ok" in styled
    assert f"\x1b[33m{doubtful}: event 1: warning" in styled
    assert re.search(rf"\x1b\[1;31m{re.escape(bad)}: event 1.*\n\x1b\[1;31m{re.escape(bad)}: problems", styled)
    Path(bad).write_text(GOOD[:-1] + ',{"ph":"X","na')
    assert re.search(r"\x1b\[1;31mLOST: ", in_terminal("merge", "-o", str(tmp_path / "merged.json"), bad))


def test_query_draws_a_table_that_fits_the_terminal(tmp_path: Path) -> None:
    rank_trace(tmp_path / "rank0.json", 0)
    query = ("query", "-q", str(tmp_path), "select 'a very long text that needs several lines' as words, 7 as number")
    plain = in_pipe(*query)
    assert plain.splitlines()[2] == "a very long text that needs several lines       7"
    drawn = in_terminal(*query)
    assert re.search(r"\x1b\[1mwords *\x1b", drawn)
    lines = STYLES.sub("", drawn).splitlines()
    assert max(map(len, lines)) <= 40
    assert any(line.rstrip().endswith("   7") for line in lines)
    assert in_terminal(*query, NO_COLOR="1") == plain
    assert in_terminal(*query, "--format", "csv").splitlines()[0] == "words,number"


def test_top_draws_the_table_of_its_screen_once(tmp_path: Path) -> None:
    with Profiler(JSONTraceHandler(tmp_path / "rank0.json"), rank=0, run_id="run") as profiler:
        for _ in range(3):
            profiler.step()
    drawn = in_terminal("top", "--once", str(tmp_path), COLUMNS="120")
    assert re.search(r"\x1b\[1m +rank +state .*\x1b\[0m", drawn)
    plain = in_terminal("top", "--once", str(tmp_path), COLUMNS="120", NO_COLOR="1")
    assert "\x1b" not in plain
    shown = [text.splitlines()[2:4] for text in (STYLES.sub("", drawn), plain)]
    assert shown[0] == shown[1]
