"""K1, K4, K7: sudden death. What was flushed opens, and at most 250 ms of recording are gone."""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.faults import GOOD, Child, Tally, bites, left_in, opens, wait_until, writers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults import Remains
    from tests.perfetto import Engine

LOSS_WINDOW_NS = 250_000_000
RATES = (1_000, 20_000, 200_000)
"""Events per second."""
KILLS, SLOW_KILLS = 2, 25

EMIT = """
    profiler = record({path!r})
    say("recording")
    emit_at(profiler, {rate})
"""


def assert_little_is_lost(remains: Remains, tally: Tally) -> float:
    """Assert that the newest event in the file is at most 250 ms older than the last one recorded; return it in ms."""
    lost_ns = tally[Tally.LAST_NS] - remains.newest_ns
    assert lost_ns <= LOSS_WINDOW_NS + 4 * tally.late_ns, (
        f"{lost_ns / 1e6:.0f} ms are lost, and the machine was {tally.late_ns / 1e6:.0f} ms late"
    )
    assert remains.torn.count(b"\n") == 0
    return lost_ns / 1e6


def kill_while_recording(folder: Path, engine: Engine, rate: int, writer: str, number: int) -> float:
    folder.mkdir()
    path = ("t.json", "t.json.gz")[number % 2]
    with Child(EMIT.format(path=path, rate=rate), folder, writer=writer) as child:
        child.hear("recording")
        if writer == GOOD:  # a busy machine may take longer than what follows
            wait_until(lambda: any(b'"work"' in path.read_bytes() for path in folder.glob("t.json*")))
        # The moment is random, and has to be: a flush every 200 ms, at none of whose steps a kill may do harm.
        time.sleep(random.uniform(0.25, 0.6))
        child.kill()
        remains = left_in(folder)
        opens(engine, remains)
        assert remains.count("XB") > 0
        return assert_little_is_lost(remains, child.tally)


@pytest.mark.parametrize(
    ("writer", "rate"),
    [
        *((GOOD, rate) for rate in RATES),
        *((bad, 20_000) for bad in ("never flushes", "object at close", "object form")),
    ],
)
def test_a_kill_at_any_time_loses_little(tmp_path: Path, engine: Engine, writer: str, rate: int) -> None:
    with bites(writer):
        for number in range(KILLS):
            kill_while_recording(tmp_path / str(number), engine, rate, writer, number)


@pytest.mark.slow
@pytest.mark.parametrize("rate", RATES)
def test_many_kills_lose_little(tmp_path: Path, engine: Engine, rate: int) -> None:
    windows = [kill_while_recording(tmp_path / str(number), engine, rate, GOOD, number) for number in range(SLOW_KILLS)]
    print(f"{rate} events/s, {SLOW_KILLS} kills: at most {max(windows):.0f} ms lost")


DEATHS = {
    "os._exit": ("os._exit(3)", 3),
    "os.abort": ("os.abort()", -signal.SIGABRT),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
    "exec": ("os.execv(sys.executable, [sys.executable, '-c', 'import sys; sys.exit(4)'])", 4),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM),
}


@pytest.mark.parametrize(
    ("writer", "death"),
    [*((GOOD, death) for death in DEATHS), ("never flushes", "os._exit"), ("object at close", "os._exit")],
)
def test_other_sudden_ends_lose_as_little(tmp_path: Path, engine: Engine, writer: str, death: str) -> None:
    how, exit_code = DEATHS[death]
    program = f"""
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        profiler = record()
        profiler.marker("open").start()
        {"profiler.flush()" if writer == GOOD else ""}
        emit_at(profiler, 20_000, seconds=0.5)
        {how}
    """
    with bites(writer), Child(program, tmp_path, writer=writer) as child:
        assert child.end() == exit_code, child.errors
        remains = left_in(tmp_path)
        opens(engine, remains)
        assert_little_is_lost(remains, child.tally)
        # The last cut may have come in the midst of one of the others.
        assert [name for name in remains.open_slices() if name != "work"] == ["open"]


@writers("only whole slices")
def test_a_marker_around_a_hang_is_in_the_file(tmp_path: Path, engine: Engine, writer: str) -> None:
    """A hang that lets other threads run, such as a collective that waits for a rank that is gone."""
    program = """
        profiler = record()
        with profiler.marker("outer"), profiler.marker("all_reduce"):
            say("hanging")
            time.sleep(60)
    """
    with bites(writer), Child(program, tmp_path, writer=writer) as child:
        child.hear("hanging")
        time.sleep(2)  # this is the fault: it hangs for so long
        child.kill()
        remains = left_in(tmp_path)
        opens(engine, remains)
        assert remains.open_slices() == ["outer", "all_reduce"]
