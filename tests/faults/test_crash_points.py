"""K2, K3: a kill at exactly each write, and what a power loss makes of each."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import orjson
import pytest

from tests.faults import Child, in_process_writer, left_in, opened, opens
from tests.faults.file_calls import disk_history
from tracekit import Profiler, TraceFormatError, recover_trace

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.file_calls import State
    from tests.perfetto import Engine

# The parent imports tracekit once, and each case is a fork of it: a recording from its start to its end, or until the kill.
KILLED_AT_EVERY_WRITE = """
    from tests.faults.file_calls import kill_at_write

    def recording():
        with profiler_of("t.json", flush_interval=3600) as profiler:
            for number in range(4):
                with profiler.marker("outer"), profiler.marker(f"step {number}"):
                    profiler.marker("n").counter({"n": number})
                profiler.marker("open").start()
                profiler.flush()

    for cut in ("before", "half", "after"):
        for number in range(1, 20):
            folder = f"{cut} {number}"
            os.mkdir(folder)
            child = os.fork()
            if child == 0:
                os.chdir(folder)
                with kill_at_write(number, cut):
                    recording()
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if status == 0:
                break
            assert os.WTERMSIG(status) == signal.SIGKILL, status
        say(f"{cut} {number}")
"""


def test_a_kill_at_exactly_each_write_leaves_a_file_that_opens(tmp_path: Path, engine: Engine) -> None:
    with Child(KILLED_AT_EVERY_WRITE, tmp_path) as child:
        assert child.end() == 0, child.errors
        found = 0
        for folder in sorted(path for path in tmp_path.iterdir() if path.is_dir()):
            if not (folder / "t.json").exists():
                # Killed before the head was out: no file is better than an empty one.
                assert folder.name in {"before 1", "half 1", "after 1"}
                continue
            remains = opened(engine, folder)
            cut, number = folder.name.split()
            if cut != "half":
                assert remains.torn == b"", folder
            # The head is the first write; each flush is one more, and has all that was recorded before it.
            flushed = int(number) - 1 - (cut != "after")
            assert len(remains.values("n", "n")) >= min(flushed, 4), folder
            found += 1
        assert found >= 3 * 4


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_kill_at_the_nth_system_call_leaves_a_file_that_opens(tmp_path: Path, engine: Engine) -> None:
    """The same by the kernel, which needs no change of the program: strace kills at the N-th write of any thread."""
    program = """
        with profiler_of("t.json", flush_interval=3600) as profiler:
            for number in range(4):
                with profiler.marker("step"):
                    pass
                profiler.flush()
    """
    killed = 0
    for number in range(1, 12):
        folder = tmp_path / str(number)
        folder.mkdir()
        inject = f"inject=write,pwrite64:signal=SIGKILL:when={number}"
        under = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=write,pwrite64", "-e", inject]
        with Child(program, folder, under=under) as child:
            if child.process.wait(240) == 0:
                break
        killed += 1
        if (folder / "t.json").exists():
            opens(engine, left_in(folder))
    assert killed >= 4


def recorded_history(folder: Path) -> list[State]:
    """Record something, and return every state that the file has gone through."""
    path = folder / "t.json"
    with disk_history() as states, Profiler(in_process_writer(path), rank=0, flush_interval=3600) as profiler:
        for number in range(6):
            for inner in range(number):
                with profiler.marker("outer"), profiler.marker("inner"):
                    profiler.marker("n").counter({"n": inner})
            with profiler.marker("across a flush"):
                profiler.flush()
            profiler.step(samples=1)
    return states


def whole_records(content: bytes) -> int:
    """Count the records before the first tear."""
    count = 0
    for line in content.split(b"\n"):
        if line not in {b"[", b"]", b""}:
            try:
                orjson.loads(line.removesuffix(b","))
            except orjson.JSONDecodeError:
                break
            count += 1
    return count


def test_recovery_gets_every_record_before_the_tear(tmp_path: Path) -> None:
    states = recorded_history(tmp_path)
    assert len(states) >= 8
    torn, output = tmp_path / "torn.json", tmp_path / "recovered.json"
    written = 0  # records of the writes before; all of them are in the file, whatever becomes of the next
    for state in states:
        for how, content in state.outcomes():
            torn.write_bytes(content)
            at_least = max(whole_records(content), written)
            try:
                report = recover_trace(torn, output, overwrite=True)
            except TraceFormatError:
                assert at_least == 0, (how, state.at)
            else:
                assert report.events >= at_least, (how, state.at, report)
        written += state.data.count(b'"ph":')
    assert written > 50
