"""T6: Ctrl-C at any point of a marker. It is never swallowed, and the marker works afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults import Child, left_in, opens

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

INTERRUPTED = """
    import random
    profiler = record(flush_interval={interval})
    marker, outer = profiler.marker("work"), profiler.marker("outer")
    fired = 0

    def interrupt(number, frame):
        global fired
        fired += 1
        raise KeyboardInterrupt

    def recurse(depth):
        with marker:
            if depth:
                recurse(depth - 1)

    signal.signal(signal.SIGALRM, interrupt)
    for number in range({interrupts}):
        before = fired
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-6, 2e-4))
            while fired == before:
                if number % 3 == 0:
                    with marker:
                        pass
                elif number % 3 == 1:
                    recurse(3)
                else:
                    with outer, marker:
                        marker.instant()
            tally[2] += 1  # the signal came, and its exception did not
        except KeyboardInterrupt:
            tally[3] += 1
    while fired < {interrupts}:
        time.sleep(0.001)
    profiler.flush()
    after = profiler.marker("after")
    for number in range(100):
        with after, marker, outer:
            profiler.marker("n").counter({{"n": number}})
    profiler.stop()
"""


def interrupt_at_random(folder: Path, engine: Engine, interrupts: int, interval: float = 0.2) -> None:
    with Child(INTERRUPTED.format(interrupts=interrupts, interval=interval), folder) as child:
        assert child.end() == 0, child.errors
        assert "Error" not in child.errors
        swallowed, raised = child.tally[2], child.tally[3]
    assert (swallowed, raised) == (0, interrupts)
    remains = left_in(folder)
    opens(engine, remains)
    assert remains.values("n", "n") == list(range(100))
    assert remains.count("XE", "after") == 100  # one that is open at a cut is a B and an E
    # Inside each of the 100 stand exactly one of the others: what was interrupted before takes nothing from them.
    first = min(event["ts"] for event in remains.of("XB", "after"))
    for name in ("work", "outer"):
        later = [event for event in remains.of("XE", name) if event["ts"] >= first]
        assert len(later) == 100
        assert all(event.get("dur", 0) < 1_000_000 for event in later)
    assert len(remains.open_slices()) <= interrupts


def test_an_interrupt_at_any_point_is_not_swallowed_and_the_marker_works_afterwards(
    tmp_path: Path, engine: Engine
) -> None:
    interrupt_at_random(tmp_path, engine, 500)


def test_an_interrupt_of_a_thread_that_does_the_work_of_the_writer_takes_nothing_with_it(
    tmp_path: Path, engine: Engine
) -> None:
    """With so short an interval the writer is late again and again, and the interrupted thread writes itself."""
    interrupt_at_random(tmp_path, engine, 500, interval=0.005)


@pytest.mark.slow
def test_10000_interrupts(tmp_path: Path, engine: Engine) -> None:
    """In several processes: what was interrupted stays open to the end, and Perfetto draws 512 slices inside of each other."""
    for number in range(25):
        folder = tmp_path / str(number)
        folder.mkdir()
        interrupt_at_random(folder, engine, 400)
