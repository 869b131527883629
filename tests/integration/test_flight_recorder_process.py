"""Whole processes with a flight recorder: real signals, a main thread that hangs in C code, exceptions that end them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.perfetto import Engine

HEAD = """
import ctypes, os, signal, sys, threading
from tracekit import FlightRecorder, Profiler
from tracekit.handlers import flight_recorder

flight_recorder._LAST_WORDS_S = 60.0  # a busy machine may take longer than the second that is given otherwise

class Tells(FlightRecorder):
    told = 0

    def flush(self):
        super().flush()
        if len(self.paths) > self.told:
            self.told = len(self.paths)
            print("dumped", flush=True)

def record(**options):
    profiler = Profiler(Tells("dump{dump}.json", **options), rank=0)
    profiler.start()
    with profiler.marker("before"):
        pass
    return profiler
"""

HANG = """
profiler = record(on_signal=signal.SIGUSR1)
libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(256)
main = threading.get_native_id()

def watch():
    where = hex(ctypes.addressof(mutex))
    while where not in open(f"/proc/self/task/{main}/syscall").read():
        pass
    print("hangs", flush=True)

threading.Thread(target=watch, daemon=True).start()
with profiler.marker("hang"):
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)  # never comes back, not even for a signal
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


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def dump_of(path: Path) -> tuple[list[str], set[str]]:
    """Return the reasons of a dump and the names of its slices."""
    loaded: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    (reasons,) = [event["args"]["reasons"] for event in loaded if event["name"] == "tracekit_dump"]
    return reasons, {event["name"] for event in loaded if event["ph"] in "BX"}


@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="needs Linux to see that the main thread hangs")
def test_a_signal_dumps_also_while_the_main_thread_hangs_in_c_code(tmp_path: Path, engine: Engine) -> None:
    process = start(HANG, tmp_path)
    try:
        assert says(process) == "hangs"
        for number in range(2):
            process.send_signal(signal.SIGUSR1)
            assert says(process) == "dumped"
            assert dump_of(tmp_path / f"dump{number}.json")[0] == ["signal SIGUSR1"]
    finally:
        process.kill()
        process.communicate()
    with engine.load(tmp_path / "dump1.json") as trace:
        assert trace.errors() == []
        # What hangs is open.
        assert trace.rows("select name, dur >= 0 from slice where name != 'batch' order by ts") == [
            ("before", 1),
            ("hang", 0),
        ]


def test_a_signal_to_a_forked_child_is_not_taken_for_one_to_the_parent(tmp_path: Path) -> None:
    process = start(
        """
import warnings
warnings.simplefilter("ignore")  # forking beside threads is the point
profiler = record(on_signal=signal.SIGUSR1)
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGUSR1)
    os._exit(5)
_, status = os.waitpid(child, 0)
for _ in range(3):
    profiler.flush()
print(os.waitstatus_to_exitcode(status), len(os.listdir(".")), flush=True)
profiler.stop()
""",
        tmp_path,
    )
    output, errors = process.communicate(timeout=240)
    assert (output.strip(), process.returncode) == ("5 0", 0), errors


@pytest.mark.parametrize(
    ("program", "exit_code"),
    [
        ("record(excepthooks=True)\nraise RuntimeError('mine')", 1),
        # What is called next may end the process at once.
        ("sys.excepthook = lambda *_: os._exit(7)\nrecord(excepthooks=True)\nraise RuntimeError('mine')", 7),
    ],
    ids=["nobody catches it", "the hook before ends the process"],
)
def test_an_exception_that_ends_the_process_is_dumped(tmp_path: Path, program: str, exit_code: int) -> None:

    process = start(program, tmp_path)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == exit_code
    assert ("RuntimeError: mine" in errors) == (exit_code == 1)
    assert "tracekit" not in errors
    reasons, names = dump_of(tmp_path / "dump0.json")
    assert reasons == ["exception: RuntimeError: mine"]
    assert "before" in names
    assert len(list(tmp_path.iterdir())) == 1
