"""Answers in a terminal: bold headings and red problems, the same text, and nothing of it where nobody wants it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report_pages import rank_trace
from tracekit import JSONTraceHandler, Profiler

ROOT = Path(__file__).resolve().parents[2]
STYLES = re.compile(r"\x1b\[[0-9;]*m")


def in_terminal(*arguments: str, **variables: str) -> str:
    """Run a command with a pseudo-terminal as its standard output; return the bytes that reach it, as text."""
    own = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLORTERM")}
    control, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tracekit", *arguments],
        env={**own, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "40", **variables},
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
    )
    os.close(terminal)
    data = b""
    while True:
        try:
            piece = os.read(control, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        data += piece
    os.close(control)
    process.wait(240)
    return data.decode().replace("\r\n", "\n")


def in_pipe(*arguments: str) -> str:
    command = [sys.executable, "-m", "tracekit", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_a_terminal_gets_styles_and_a_pipe_the_same_text_without(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
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


def test_a_loss_is_red(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
    (tmp_path / "rank0.json").write_text('[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2},{"ph":"X","na')
    styled = in_terminal("merge", "-o", str(tmp_path / "merged.json"), str(tmp_path / "rank0.json"))
    assert re.search(r"\x1b\[1;31mLOST: ", styled)
    assert "\x1b" not in STYLES.sub("", styled)


def test_validate_is_green_yellow_and_red_with_the_same_text(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
    good, doubtful, bad = tmp_path / "good.json", tmp_path / "doubtful.json", tmp_path / "bad.json"
    good.write_text('[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2}]')
    doubtful.write_text('[{"ph":"E","name":"a","pid":1,"tid":1,"ts":1}]')
    bad.write_text('[{"ph":"X","name":"a","pid":1,"tid":1,"dur":2}]')
    files = [str(path) for path in (good, doubtful, bad)]
    styled = in_terminal("validate", *files)
    assert STYLES.sub("", styled) == in_pipe("validate", *files)
    assert f"\x1b[32m{good}: ok" in styled
    assert f"\x1b[33m{doubtful}: event 1: warning" in styled
    assert re.search(
        rf"\x1b\[1;31m{re.escape(str(bad))}: event 1.*\n\x1b\[1;31m{re.escape(str(bad))}: problems", styled
    )


def test_query_draws_a_table_that_fits_the_terminal(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
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
    pytest.importorskip("rich", reason="rich is not installed")
    with Profiler(JSONTraceHandler(tmp_path / "rank0.json"), rank=0, run_id="run") as profiler:
        for _ in range(3):
            profiler.step()
    drawn = in_terminal("top", "--once", str(tmp_path), COLUMNS="120")
    assert re.search(r"\x1b\[1mrank\x1b\[0m", drawn)
    plain = in_terminal("top", "--once", str(tmp_path), COLUMNS="120", NO_COLOR="1")
    assert "\x1b" not in plain
    assert [line.split() for line in STYLES.sub("", drawn).splitlines()[2:4]] == [
        line.split() for line in plain.splitlines()[2:4]
    ]
