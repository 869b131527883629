"""Dying politely: SIGTERM with and without a grace period, SIGINT, exceptions, and threads that record to the very end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults import Child, Remains, left_in, opened, opens, read_trace, wait_until
from tests.faults.processes import PATIENCE_S, ROOT
from tests.faults.test_kills import assert_all_delivered_is_there, wait_for_deliveries

if TYPE_CHECKING:
    from tests.perfetto import Engine

# An interval of an hour: what is in the file afterwards was brought there by the signal.
POLITE = """
profiler = record(flush_interval=3600.0, sigterm_grace=3600.0)
for number in range(2000):
    with profiler.marker("work"):
        pass
profiler.marker("open").start()
"""

WAYS_TO_WAIT = {
    "python": "say('ready')\nwhile True:\n    sum(range(100))\n",
    "system call": "say('ready')\nhear()\n",
    "sleep": "say('ready')\ntime.sleep(600)\n",
}


@pytest.mark.parametrize("waits", WAYS_TO_WAIT)
def test_sigterm_with_grace_loses_nothing_and_ends_as_sigterm_does(tmp_path: Path, engine: Engine, waits: str) -> None:
    with Child(POLITE + WAYS_TO_WAIT[waits], tmp_path) as child:
        child.hear("ready")
        child.signal(signal.SIGTERM)
        assert child.end() == -signal.SIGTERM  # the grace would be an hour
        assert child.errors == ""
        remains = left_in(tmp_path)
        assert_complete(remains, engine, work=2000)
        assert remains.open_slices() == ["open"]
        assert remains.summary["slices"] == 2000


def assert_complete(remains: Remains, engine: Engine, work: int) -> None:
    opens(engine, remains)
    assert (remains.count("XE", "work"), remains.closed) == (work, True)


def test_sigterm_in_the_middle_of_recording_keeps_what_was_recorded_when_it_came(
    tmp_path: Path, engine: Engine
) -> None:
    program = "emit_at(record(flush_interval=3600.0, sigterm_grace=3600.0), 20_000)"
    with Child(program, tmp_path) as child:
        wait_until(lambda: child.tally[child.tally.EMITTED] >= 5000)
        before = child.tally[child.tally.EMITTED]
        child.signal(signal.SIGTERM)
        assert child.end() == -signal.SIGTERM
        remains = opened(engine, tmp_path)
        assert remains.count("X", "work") >= before
        assert remains.closed


HANDLER = "tracekit"
"""Who looks for the signal; ``"python's alone"`` is the bad way."""
STUCK = """
import ctypes
if os.environ["HANDLER"] == "python's alone":
    # Somebody else has the wakeup descriptor, and the signal is seen when the main thread is back in Python: never.
    for end in (pipe := os.pipe()):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(pipe[1])
libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(256)
main = threading.get_native_id()

def watch():
    where = hex(ctypes.addressof(mutex))
    while where not in open(f"/proc/self/task/{main}/syscall").read():
        time.sleep(0.001)
    say("hangs")

threading.Thread(target=watch, daemon=True).start()
profiler = record(flush_interval=0.05, sigterm_grace=2.0)
end = profiler._termination._end
profiler._termination._end = lambda _: end(100.0)  # a busy machine may need longer to write than the main thread gets
with profiler.marker("hang"):
    profiler.flush()
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)  # never comes back, not even for a signal
"""


@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="needs Linux to see that the main thread hangs")
def test_sigterm_ends_also_a_process_whose_main_thread_hangs_in_c_code(tmp_path: Path, engine: Engine) -> None:
    with Child(STUCK, tmp_path, environment={"HANDLER": HANDLER}) as child:
        child.hear("hangs")
        child.signal(signal.SIGTERM)
        assert child.end() == -signal.SIGTERM
        remains = opened(engine, tmp_path)
        assert remains.open_slices() == ["hang"]
        assert remains.closed


PREVIOUS = """
def previous(number, frame):
    say(f"previous {number} {os.path.getsize('t.json')}")
    if os.environ["THEN"] == "exit":
        os._exit(7)
    if os.environ["THEN"] == "raise":
        raise SystemExit(8)

signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ["THEN"] == "ignore" else previous)
profiler = record(flush_interval=3600.0, sigterm_grace=3600.0)
for _ in range(1000):
    with profiler.marker("work"):
        pass
say("ready")
while hear() != "stop":
    with profiler.marker("after"):
        pass
profiler.stop()
say(f"back {signal.getsignal(signal.SIGTERM) in (previous, signal.SIG_IGN)}")
signal.set_wakeup_fd(-1)
hear()
"""


@pytest.mark.parametrize(("then", "exit_code"), [("exit", 7), ("raise", 8)])
def test_the_handler_that_was_there_before_is_called_with_everything_written(
    tmp_path: Path, engine: Engine, then: str, exit_code: int
) -> None:
    with Child(PREVIOUS, tmp_path, environment={"THEN": then}) as child:
        child.hear("ready")
        child.signal(signal.SIGTERM)
        number, size = child.hear("previous").split()
        assert int(number) == signal.SIGTERM
        assert int(size) > 1000 * 50
        assert child.end() == exit_code
        remains = left_in(tmp_path)
        assert remains.count("X", "work") == 1000
        assert remains.closed == (then == "raise")
        opens(engine, remains)


@pytest.mark.parametrize("then", ["go on", "ignore"])
def test_a_process_that_lives_on_records_on_and_gets_its_handler_back(
    tmp_path: Path, engine: Engine, then: str
) -> None:
    with Child(PREVIOUS, tmp_path, environment={"THEN": then}) as child:
        child.hear("ready")
        for _ in range(30 if then == "go on" else 3):
            child.signal(signal.SIGTERM)
            if then == "go on":
                child.hear("previous")  # the next signal comes while this one is still being dealt with
            else:
                wait_until(lambda: (tmp_path / "t.json").stat().st_size >= 50_000)
        child.tell()
        child.tell("stop")
        assert child.hear("back") == "True"
        child.signal(signal.SIGTERM)
        if then == "go on":
            child.hear("previous")
        child.tell()
        assert (child.end(), child.errors) == (0, "")
        remains = left_in(tmp_path)
        assert (remains.count("X", "work"), remains.count("X", "after"), remains.closed) == (1000, 1, True)
        opens(engine, remains)


def test_both_of_two_nested_recordings_are_completed(tmp_path: Path, engine: Engine) -> None:
    program = """
        options = {"flush_interval": 3600.0, "sigterm_grace": 3600.0}
        for profiler in (record("outer.json", **options), record("inner.json", **options)):
            with profiler.marker("work"):
                pass
        say("ready")
        hear()
    """
    with Child(program, tmp_path) as child:
        child.hear("ready")
        child.signal(signal.SIGTERM)
        assert child.end() == -signal.SIGTERM
        for name in ("outer.json", "inner.json"):
            assert_complete(read_trace(tmp_path / name), engine, work=1)


FORKED = """
import warnings
warnings.simplefilter("ignore")  # forking beside threads is the point
profiler = record(flush_interval=3600.0, sigterm_grace=3600.0)
with profiler.marker("work"):
    pass
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)
    os._exit(5)
_, status = os.waitpid(child, 0)
with profiler.marker("work"):
    pass
say(f"child {os.waitstatus_to_exitcode(status)}")
hear()
profiler.stop()
"""


def test_sigterm_to_a_forked_child_ends_the_child_and_is_not_taken_for_the_parent_s(
    tmp_path: Path, engine: Engine
) -> None:
    with Child(FORKED, tmp_path) as child:
        assert child.hear("child") == str(-signal.SIGTERM)
        child.tell()
        assert child.end() == 0
        assert_complete(left_in(tmp_path), engine, work=2)


def test_it_must_be_started_on_the_main_thread(tmp_path: Path) -> None:
    program = """
        from tracekit import ConfigError
        def start():
            try:
                record(sigterm_grace=1.0)
            except ConfigError as error:
                say(str(error))
        in_threads = threading.Thread(target=start)
        in_threads.start()
        in_threads.join()
        assert os.listdir() == ["tally.bin"]
    """
    with Child(program, tmp_path) as child:
        assert "start the profiler there" in child.hear("sigterm_grace")
        assert (child.end(), child.errors) == (0, "")


def test_sigterm_without_grace_loses_no_more_than_a_kill(tmp_path: Path, engine: Engine) -> None:
    program = "profiler = record()\nsay('ready')\nemit_at(profiler, 2_000)\n"
    with Child(program, tmp_path) as child:
        child.hear("ready")
        wait_for_deliveries(child)
        child.signal(signal.SIGTERM)
        assert child.end() == -signal.SIGTERM
        remains = opened(engine, tmp_path)
        assert_all_delivered_is_there(remains, child.tally)


ENDS = {
    "falls off the end": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "exception": ("raise RuntimeError('mine')", 1),
    "SIGINT": ("say('ready')\nhear()", -signal.SIGINT),
    "sys.exit in a thread": ("for thread in in_threads(2, lambda _: sys.exit(5)):\n    thread.join()", 0),
    "exception in a thread": ("threading.excepthook = lambda _: None\nin_threads(1, lambda _: 1 / 0)[0].join()", 0),
}

RECORDS_AND_ENDS = """
profiler = record()
def work(_):
    for _ in range(500):
        with profiler.marker("work"):
            pass
for thread in in_threads(4, work):
    thread.join()
"""


@pytest.mark.parametrize("how", ENDS)
def test_every_end_that_python_survives_loses_nothing(tmp_path: Path, engine: Engine, how: str) -> None:
    ending, exit_code = ENDS[how]
    with Child(RECORDS_AND_ENDS + ending + "\n", tmp_path) as child:
        if how == "SIGINT":
            child.hear("ready")
            child.signal(signal.SIGINT)
        assert child.end() == exit_code
        assert_complete(left_in(tmp_path), engine, work=2000)
        assert "tracekit" not in child.errors


FINALISING = """
profiler = record(shutdown_timeout=3600.0)
marker = profiler.marker("daemon")

def for_ever():
    while True:
        with marker:
            pass
        marker.instant()
        time.sleep(0.0001)  # four threads that never let go would share the interpreter with its end, 5 ms each in turn

class Late:
    def __del__(self, marker=marker):
        with marker:
            pass

import atexit
late = Late()
atexit.register(lambda: marker.instant())
for _ in range(4):
    threading.Thread(target=for_ever, daemon=True).start()
for _ in range(1000):
    with profiler.marker("work"):
        pass
atexit.register(lambda: marker.instant())
say("ends")
"""


def test_daemon_threads_that_record_to_the_very_end_hold_nothing_up_and_say_nothing(
    tmp_path: Path, engine: Engine
) -> None:
    with Child(FINALISING, tmp_path) as child:
        child.hear("ends")
        assert child.end() == 0  # a stop may wait for an hour
        assert child.errors == ""
        assert_complete(left_in(tmp_path), engine, work=1000)


TORCHRUN = """
import os, sys, time
from tracekit import JSONTraceHandler, Profiler
profiler = Profiler(JSONTraceHandler("rank{rank}.json"), sigterm_grace=3600.0, flush_interval=3600.0, record_batches=False)
profiler.start()
for _ in range(1000):
    with profiler.marker("work"):
        pass
open(f"ready{os.environ['RANK']}", "x").close()
time.sleep(600)
"""


def test_torchrun_that_is_terminated_leaves_complete_traces_of_every_rank(tmp_path: Path, engine: Engine) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "train.py").write_text(TORCHRUN)
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.fspath(ROOT)},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: all((tmp_path / f"ready{rank}").exists() for rank in range(2)))
        process.terminate()
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    for rank in range(2):
        assert_complete(read_trace(tmp_path / f"rank{rank}.json"), engine, work=1000)
