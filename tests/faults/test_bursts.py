"""T2: more events than anybody can write. Each is in the file or counted, and memory stays bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults import GOOD, Child, bites, in_the_long_run, left_in, opens

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

BURST = """
    from tracekit import TraceHandler
    {handler}
    profiler = record("t.json", *others, max_buffered_events={limit}, on_full={on_full!r}, shutdown_timeout=60)
    marker, counter = profiler.marker("work"), profiler.marker("n")

    def rss_kb():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024

    def highest():
        while not over:
            tally[3] = max(tally[3], rss_kb())
            time.sleep(0.02)

    over, before = [], rss_kb()
    watcher = threading.Thread(target=highest)
    watcher.start()
    end = time.monotonic() + {seconds}
    while time.monotonic() < end:
        for _ in range(1000):
            with marker:
                pass
        tally[0] += 1000
        counter.counter({{"n": tally[0]}})
    over.append(1)
    watcher.join()
    tally[2] = before
    profiler.stop()
"""

# Sleeps for a while at every batch, as a slow disk does; a handler that is as slow as that never keeps up with a burst.
SLOW = """
    class Slow(TraceHandler):
        def process_events(self, batch):
            time.sleep(0.3)
            tally[4] += len(batch) - batch.records[2::4].count(-3)  # a start in advance is not an event of its own
        def summary(self, summary):
            tally[5] = sum(summary.dropped.values())
    others = [Slow()]
"""

# Records no faster than the other handler is given events, however busy the machine is.
KEEPS_PACE = """
    others, reached = [Slow()], [time.monotonic_ns()]
    def keep_pace():
        if tally[0] % 5_000 == 0:
            while tally[tally.DELIVERED_NS] < reached[0]:
                time.sleep(0.001)
            reached[0] = time.monotonic_ns()
"""


def burst(
    folder: Path, engine: Engine, writer: str, on_full: str, seconds: float, handler: str = "others = []"
) -> None:
    program = BURST.format(on_full=on_full, seconds=seconds, limit=50_000, handler=handler.strip())
    with bites(writer), Child(program, folder, writer=writer) as child:
        assert child.end() == 0, child.errors
        remains = left_in(folder)
        opens(engine, remains)
        assert remains.summary is not None
        emitted = child.tally[0] + child.tally[0] // 1000
        slices, counters = remains.count("XE", "work"), remains.values("n", "n")
        dropped = sum(remains.summary["dropped"].values())
        assert slices + len(counters) + dropped == emitted
        assert counters == sorted(counters)
        if on_full == "block":
            assert dropped == 0
        assert child.errors.count("does not keep up") <= 2
        # 50,000 events that wait, and as many again that are just taken and encoded: about 100 bytes each, and their lines.
        assert child.tally[3] - child.tally[2] < 100 * 1024, (
            f"{child.tally[3] - child.tally[2]} KB more than at the start"
        )


@pytest.mark.parametrize(
    ("writer", "on_full"),
    [(GOOD, "drop_newest"), (GOOD, "drop_oldest"), (GOOD, "block"), in_the_long_run("loses silently", "drop_newest")],
)
def test_every_event_of_a_burst_is_written_or_counted(
    tmp_path: Path, engine: Engine, writer: str, on_full: str
) -> None:
    burst(tmp_path, engine, writer, on_full, 0.2)


def test_what_a_slow_handler_misses_is_counted_for_it_and_the_others_miss_nothing(
    tmp_path: Path, engine: Engine
) -> None:
    program = BURST.format(on_full="drop_newest", seconds=1.0, limit=50_000, handler=SLOW.strip())
    for before, after in {
        "range(1000)": "range(100)",
        "+= 1000": "+= 100; keep_pace()",
        "others = [Slow()]": KEEPS_PACE.strip(),
        "time.monotonic() < end": "tally[0] < 100_000",
        "time.sleep(0.3)": "while not over: time.sleep(0.01)",  # slow on any machine: one batch takes all of the burst
    }.items():
        assert program.count(before) == 1
        program = program.replace(before, after)
    with Child(program, tmp_path) as child:
        assert child.end() == 0, child.errors
        remains = left_in(tmp_path)
        opens(engine, remains)
        emitted = child.tally[0] + child.tally[0] // 100
        assert remains.summary is not None
        assert remains.summary["dropped"] == {}
        assert remains.count("XE", "work") + remains.count("C", "n") == emitted
        assert child.tally[5] > 0
        assert child.tally[4] + child.tally[5] == emitted


@pytest.mark.slow
def test_every_event_of_two_seconds_is_written_or_counted(tmp_path: Path, engine: Engine) -> None:
    burst(tmp_path, engine, GOOD, "drop_newest", 2.0)
