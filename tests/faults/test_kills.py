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

from tests.faults import GOOD, Child, Tally, bites, in_the_long_run, left_in, opens, wait_until, writers
from tests.faults.processes import PATIENCE_S
from tracekit import MemoryTraceHandler, Profiler

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults import Remains
    from tests.perfetto import Engine

DELIVERIES = 4
"""A test waits for this many: the second may be the first one with events."""
ROUNDING_NS = 1_000
RATES = (1_000, 20_000, 200_000)
"""Events per second."""
KILLS, SLOW_KILLS = 2, 25

EMIT = """
    profiler = record({path!r})
    say("recording")
    emit_at(profiler, {rate})
"""


def wait_for_deliveries(child: Child, writer: str = GOOD, more: int = DELIVERIES) -> None:
    """Wait until the writer has delivered a few more times, without being asked; a bad one is not waited for as long."""
    enough = child.tally[Tally.DELIVERIES] + more
    wait_until(lambda: child.tally[Tally.DELIVERIES] >= enough, PATIENCE_S if writer == GOOD else 2)


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


def kill_while_recording(folder: Path, engine: Engine, rate: int, writer: str, number: int) -> None:
    folder.mkdir()
    path = ("t.json", "t.json.gz")[number % 2]
    with Child(EMIT.format(path=path, rate=rate), folder, writer=writer) as child:
        child.hear("recording")
        wait_for_deliveries(child, writer)
        # The moment is random, and has to be: a kill may do harm at no step of a delivery.
        time.sleep(random.uniform(0.0, 0.1))
        child.kill()
        remains = left_in(folder)
        opens(engine, remains)
        assert remains.count("XB") > 0
        assert_all_delivered_is_there(remains, child.tally)


@pytest.mark.parametrize(
    ("writer", "rate"),
    [
        *((GOOD, rate) for rate in RATES),
        *(in_the_long_run(bad, 20_000) for bad in ("never flushes", "object at close", "object form")),
    ],
)
def test_a_kill_at_any_time_loses_little(tmp_path: Path, engine: Engine, writer: str, rate: int) -> None:
    with bites(writer):
        for number in range(KILLS):
            kill_while_recording(tmp_path / str(number), engine, rate, writer, number)


@pytest.mark.slow
@pytest.mark.parametrize("rate", RATES)
def test_many_kills_lose_little(tmp_path: Path, engine: Engine, rate: int) -> None:
    for number in range(SLOW_KILLS):
        kill_while_recording(tmp_path / str(number), engine, rate, GOOD, number)


DEATHS = {
    "os._exit": ("os._exit(3)", 3),
    "os.abort": ("os.abort()", -signal.SIGABRT),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
    "exec": ("os.execv(sys.executable, [sys.executable, '-c', 'import sys; sys.exit(4)'])", 4),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM),
}


@pytest.mark.parametrize(
    ("writer", "death"),
    [
        *((GOOD, death) for death in DEATHS),
        *(in_the_long_run(bad, "os._exit") for bad in ("never flushes", "object at close")),
    ],
)
def test_other_sudden_ends_lose_as_little(tmp_path: Path, engine: Engine, writer: str, death: str) -> None:
    how, exit_code = DEATHS[death]
    program = f"""
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        profiler = record()
        profiler.marker("open").start()
        {"profiler.flush()" if writer == GOOD else ""}
        emit_at(profiler, 20_000, deliveries={DELIVERIES}, seconds={PATIENCE_S if writer == GOOD else 1})
        {how}
    """
    with bites(writer), Child(program, tmp_path, writer=writer) as child:
        assert child.end() == exit_code, child.errors
        remains = left_in(tmp_path)
        opens(engine, remains)
        assert_all_delivered_is_there(remains, child.tally)
        # The last cut may have come in the midst of one of the others.
        assert [name for name in remains.open_slices() if name != "work"] == ["open"]


@writers("only whole slices")
def test_a_marker_around_a_hang_is_in_the_file(tmp_path: Path, engine: Engine, writer: str) -> None:
    """A hang that lets other threads run, such as a collective that waits for a rank that is gone."""
    program = """
        profiler = record()
        with profiler.marker("outer"), profiler.marker("all_reduce"):
            say("hanging")
            time.sleep(600)
    """
    with bites(writer), Child(program, tmp_path, writer=writer) as child:
        child.hear("hanging")
        trace = tmp_path / "t.json"
        # A bad writer is given two seconds.
        wait_until(lambda: b'"all_reduce"' in trace.read_bytes(), PATIENCE_S if writer == GOOD else 2)
        child.kill()
        remains = left_in(tmp_path)
        opens(engine, remains)
        assert remains.open_slices() == ["outer", "all_reduce"]
