"""K1, K4, K7: sudden death. The file opens and holds all that was delivered; the writer delivers by itself, all the time.

No test here reads a clock. A kill loses what was recorded since the last delivery, and the writer makes one in each
`flush_interval` of 200 ms (`test_the_writer_delivers_several_times_in_each_flush_interval`), or later on a busy machine.
"""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.faults import Child, Tally, opened, processes, wait_until
from tracekit import MemoryTraceHandler, Profiler

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults import Remains
    from tests.perfetto import Engine

DELIVERIES = 4
"""A test waits for this many: the second may be the first one with events."""
ROUNDING_NS = 1_000

EMIT = """
    profiler = record({path!r})
    say("recording")
    emit_at(profiler, {rate})
"""


def wait_for_deliveries(child: Child) -> None:
    """Wait until the writer has delivered a few more times, without being asked."""
    enough = child.tally[Tally.DELIVERIES] + DELIVERIES
    wait_until(lambda: child.tally[Tally.DELIVERIES] >= enough)


def assert_all_delivered_is_there(remains: Remains, tally: Tally) -> None:
    """Assert that the file holds every event that had been delivered, and at most one torn record behind them."""
    assert tally[Tally.DELIVERED_NS] > 0, "nothing was delivered"
    missing_ns = tally[Tally.DELIVERED_NS] - remains.newest_ns
    assert missing_ns <= ROUNDING_NS, f"the file lacks the last {missing_ns / 1e6:.3f} ms of what was delivered"
    assert remains.torn.count(b"\n") == 0


def test_the_writer_delivers_several_times_in_each_flush_interval() -> None:
    with Profiler(MemoryTraceHandler(), rank=0) as profiler:
        assert profiler._options.flush_interval == 0.2
        writer = profiler._writer
        writer._found = 1  # few events: a kill between two deliveries costs less than the interval
        assert writer._next_pause_s() <= 0.1
        writer._found = 5_000
        assert writer._next_pause_s() <= 0.05


@pytest.mark.parametrize("kills", [2, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rate", [1_000, 20_000, 200_000])
def test_a_kill_at_any_time_loses_little(tmp_path: Path, engine: Engine, rate: int, kills: int) -> None:
    for number in range(kills):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Child(EMIT.format(path=("t.json", "t.json.gz")[number % 2], rate=rate), folder) as child:
            child.hear("recording")
            wait_for_deliveries(child)
            # The moment is random, and has to be: a kill may do harm at no step of a delivery.
            time.sleep(random.uniform(0.0, 0.1))
            child.kill()
            remains = opened(engine, folder)
            assert remains.count("XB") > 0
            assert_all_delivered_is_there(remains, child.tally)


DEATHS = {
    "os._exit": ("os._exit(3)", 3),
    "os.abort": ("os.abort()", -signal.SIGABRT),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
    "exec": ("os.execv(sys.executable, [sys.executable, '-c', 'import sys; sys.exit(4)'])", 4),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM),
}


@pytest.mark.parametrize("death", DEATHS)
def test_other_sudden_ends_lose_as_little(tmp_path: Path, engine: Engine, death: str) -> None:
    how, exit_code = DEATHS[death]
    program = f"""
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        profiler = record()
        profiler.marker("open").start()
        emit_at(profiler, 20_000, deliveries={DELIVERIES}, seconds={processes.PATIENCE_S / 2})
        {how}
    """
    with Child(program, tmp_path) as child:
        assert child.end() == exit_code, child.errors
        remains = opened(engine, tmp_path)
        assert_all_delivered_is_there(remains, child.tally)
        # The last cut may have come in the midst of one of the others.
        assert [name for name in remains.open_slices() if name != "work"] == ["open"]


def test_a_marker_around_a_hang_is_in_the_file(tmp_path: Path, engine: Engine) -> None:
    """A hang that lets other threads run, such as a collective that waits for a rank that is gone."""
    program = """
        profiler = record()
        with profiler.marker("outer"), profiler.marker("all_reduce"):
            say("hanging")
            time.sleep(600)
    """
    with Child(program, tmp_path) as child:
        child.hear("hanging")
        trace = tmp_path / "t.json"
        wait_until(lambda: b'"all_reduce"' in trace.read_bytes())
        child.kill()
        remains = opened(engine, tmp_path)
        assert remains.open_slices() == ["outer", "all_reduce"]
