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
    process.wait(120)
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
