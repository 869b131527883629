"""The compiled core where memory fails, threads meet, a process forks and signals come in the middle of its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.scripts import run_script

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.core

# A run that takes tens of milliseconds, without the interpreter lock; and what a rewriter that is at it says to another thread.
BUSY = """
import os, signal, sys, threading
from tracekit import core
EVENT = b'{"ph":"X","name":"step","pid":5,"tid":6,"ts":1.500,"dur":0.250}'
RUN = b",".join([b"", *[EVENT] * 300_000])
found = []

def make():
    rewriter = core.merge.Rewriter(b'"nccl', "/tmp")
    rewriter.begin(0, 0, 2**61, 0, True, 0, b"", ())
    rewriter.add_track(b"5", b"6", 1001, 8, 0)
    return rewriter

def rewrite(rewriter, text):
    # Returns the reason, and whether all events were written.
    reason, at = rewriter.rewrite(text, 0, True)
    rewriter.append(b"")
    return reason, rewriter.take().count(b"\\n") == text.count(b"}")

rewriter = make()

def refused():
    # Returns whether the rewriter is at work in the other thread.
    try:
        rewriter.counts(), rewriter.noted()
    except RuntimeError:
        return True
    return False

def run():
    try:
        found.append(rewrite(rewriter, RUN))
    except RuntimeError:
        found.append(None)  # this thread's turn to be refused

def start():
    thread = threading.Thread(target=run)
    thread.start()
    return thread
"""


def test_python_s_own_memory_may_fail_at_any_request(tmp_path: Path) -> None:
    pytest.importorskip("_testcapi", reason="this CPython has no module that makes its memory fail")
    # In a process of its own: the memory of every thread fails.
    program = """
import random
from tests.faults import core_fuzz
source = random.Random(1)
assert sum(core_fuzz.fail_python_memory(core_fuzz.event_run(source)) for _ in range(10)) > 20
"""
    run_script(tmp_path, "-c", program)


def test_a_rewriter_at_work_refuses_another_thread_and_leaves_a_forked_process_able_to_work(tmp_path: Path) -> None:
    program = """
for _ in range(1000):
    thread = start()
    if any(refused() for _ in iter(thread.is_alive, False)):
        child = os.fork()
        if child == 0:
            # The thread is not here: its rewriter stays as it was, or had ended; a new one works.
            assert rewrite(make(), RUN) == (0, True)
            assert refused() in (False, True)
            del rewriter
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        thread.join()
        break
    thread.join()
else:
    raise AssertionError("the rewriter was never seen at work")
assert found[-1] == (0, True)
assert rewrite(rewriter, RUN) == (0, True)
"""
    # Python 3.12 and later warn of what is tested here.
    run_script(tmp_path, "-W", "ignore::DeprecationWarning", "-c", BUSY + program)


def test_interrupts_in_the_middle_of_runs_come_through_and_leave_the_rewriter_usable(tmp_path: Path) -> None:
    program = """
signal.signal(signal.SIGALRM, signal.default_int_handler)
interrupts = 0
while interrupts < 20:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001 * (1 + interrupts))
        while True:
            rewrite(make(), RUN)
    except KeyboardInterrupt:
        interrupts += 1
assert rewrite(make(), RUN) == (0, True)
"""
    run_script(tmp_path, "-c", BUSY + program)
