"""Recording, merging and reading work where the calls and files of Linux are missing, as on macOS, in pure Python."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# A sitecustomize of every process of the test: no system call of Linux alone, and no /proc.
HIDE = """
import builtins, io, os, sys, time

for module, names in (
    (os, ("sched_getaffinity", "copy_file_range", "memfd_create", "posix_fadvise", "posix_fallocate", "splice", "O_TMPFILE")),
    (time, ("CLOCK_BOOTTIME",)),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

def hide(call):
    def hidden(path, *args, **options):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return call(path, *args, **options)
    return hidden

builtins.open = io.open = hide(io.open)
for name in ("open", "stat", "lstat", "readlink", "listdir", "scandir"):
    setattr(os, name, hide(getattr(os, name)))
sys.platform = "darwin"
"""
RECORD = """
from tracekit import JSONTraceHandler, Profiler

with Profiler(JSONTraceHandler("run/rank{rank}.json"), rank=RANK, world_size=2, run_id="run") as profiler:
    for _ in range(20):
        with profiler.marker("forward"):
            sum(range(1000))
        profiler.marker("training").counter({"loss": 0.5})
        profiler.step()
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder / "hide"), "TRACEKIT_PURE_PYTHON": "1", "BROWSER": "true"}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert "Traceback" not in done.stderr
    return done


def said(folder: Path, *arguments: str) -> str:
    done = run(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks that were recorded without Linux."""
    folder = tmp_path_factory.mktemp("without_linux")
    (folder / "hide").mkdir()
    (folder / "hide" / "sitecustomize.py").write_text(HIDE)
    hidden = said(folder, "-c", "import os, sys; print(sys.platform, hasattr(os, 'copy_file_range'))")
    assert hidden == "darwin False\n"
    for rank in "01":
        said(folder, "-c", RECORD.replace("RANK", rank))
    return folder


def test_two_ranks_are_recorded_merged_and_checked(recorded: Path) -> None:
    said(recorded, "-m", "tracekit", "merge", "-o", "one.json.gz", "run")
    said(recorded, "-m", "tracekit", "merge", "--workers", "2", "-o", "two.json.gz", "run")
    assert (recorded / "one.json.gz").read_bytes() == (recorded / "two.json.gz").read_bytes()
    assert "ok" in said(recorded, "-m", "tracekit", "validate", "one.json.gz")


def test_questions_are_answered(recorded: Path) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    assert "forward" in said(recorded, "-m", "tracekit", "summary", "run")
    sql = "select count(*) n from events where name = 'forward' and duration_ns is not null"
    assert said(recorded, "-m", "tracekit", "query", "--format", "csv", "run", sql).split() == ["n", "40"]


def test_a_trace_is_opened(recorded: Path) -> None:
    opened = run(recorded, "-m", "tracekit", "open", "--no-browser", "--timeout", "0.1", "run/rank0.json")
    assert opened.stdout.startswith("http://127.0.0.1:")
    assert "nobody came for the trace" in opened.stderr
