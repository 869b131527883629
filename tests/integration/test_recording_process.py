"""Whole processes that record: how they end, what they import, what they leave to their children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

HEAD = """
import os, sys, threading
from tracekit import JSONTraceHandler, Profiler
profiler = Profiler(JSONTraceHandler("t.json"), rank=0, record_batches=False)
profiler.start()
with profiler.marker("before"):
    pass
"""


def start(program: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + program],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    return process.communicate(timeout=240)


@pytest.mark.parametrize(
    ("program", "exit_code"),
    [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError('mine')", 1), ("threading.Thread(target=sys.exit).start()", 0)],
    ids=["falls off the end", "sys.exit", "exception", "sys.exit in a thread"],
)
def test_a_profiler_that_is_not_stopped_completes_its_file_at_the_end_of_the_process(
    tmp_path: Path, program: str, exit_code: int
) -> None:
    process = start(program, tmp_path)
    _, errors = finish(process)
    assert process.returncode == exit_code
    assert "tracekit" not in errors
    events = json.loads((tmp_path / "t.json").read_text("utf-8"))
    assert [event["name"] for event in events if event["ph"] in "XB"] == ["before"]
    assert events[-1]["name"] == "tracekit_summary"


@pytest.mark.parametrize("how", ["SIGKILL", "os._exit"])
def test_what_was_flushed_opens_after_sudden_death_and_the_open_marker_shows(
    tmp_path: Path, engine: Engine, how: str
) -> None:
    process = start(
        "profiler.marker('open').start()\nprofiler.flush()\nprint('flushed', flush=True)\nsys.stdin.readline()\nos._exit(9)",
        tmp_path,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "flushed\n"
    if how == "SIGKILL":
        process.send_signal(signal.SIGKILL)
    else:
        process.stdin.write("\n")
    finish(process)
    assert process.returncode in (-signal.SIGKILL, 9)
    with engine.load(tmp_path / "t.json") as trace:
        assert trace.errors() == []
        assert trace.rows("select name, dur >= 0 from slice order by ts") == [("before", 1), ("open", 0)]


def test_a_second_process_of_the_same_rank_is_refused_with_a_sentence(tmp_path: Path) -> None:
    finish(start("", tmp_path))
    before = (tmp_path / "t.json").read_bytes()
    process = start("", tmp_path)
    _, errors = finish(process)
    assert process.returncode == 1
    assert "t.json: exists already" in errors
    assert (tmp_path / "t.json").read_bytes() == before


def test_recording_to_a_local_file_imports_neither_fsspec_nor_torch(tmp_path: Path) -> None:
    process = start(
        "print([name for name in ('fsspec', 'torch', 'psutil', 'msgspec') if name in sys.modules])", tmp_path
    )
    printed, _ = finish(process)
    assert printed.strip() == "[]"


def test_a_read_only_folder_is_refused_with_a_sentence_before_training(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # Root may write everywhere, but not below a file.
        (tmp_path / "traces").write_text("")
    else:
        (tmp_path / "traces").mkdir(mode=0o500)
    program = "Profiler(JSONTraceHandler('traces/x/t.json'), rank=0).start()"
    process = start(program, tmp_path)
    _, errors = finish(process)
    assert process.returncode == 1
    assert "traces/x/t.json: cannot be written: " in errors.splitlines()[-1]
