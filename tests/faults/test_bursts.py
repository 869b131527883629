"""T2: more events than anybody can write. Each is in the file or counted, and memory stays bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults import Child, opened

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

BURST = """
    profiler = record(max_buffered_events=50_000, on_full={on_full!r}, shutdown_timeout=60)
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


@pytest.mark.parametrize(
    ("on_full", "seconds"),
    [
        ("drop_newest", 0.2),
        ("drop_oldest", 0.2),
        ("block", 0.2),
        pytest.param("drop_newest", 2.0, marks=pytest.mark.slow),
    ],
)
def test_every_event_of_a_burst_is_written_or_counted(
    tmp_path: Path, engine: Engine, on_full: str, seconds: float
) -> None:
    with Child(BURST.format(on_full=on_full, seconds=seconds), tmp_path) as child:
        assert child.end() == 0, child.errors
        remains = opened(engine, tmp_path)
        emitted = child.tally[0] + child.tally[0] // 1000
        slices, counters = remains.count("XE", "work"), remains.values("n", "n")
        dropped = sum(remains.summary["dropped"].values())
        assert slices + len(counters) + dropped == emitted
        assert counters == sorted(counters)
        if on_full == "block":
            assert dropped == 0
        assert child.errors.count("does not keep up") <= 2
        # 50,000 events that wait, and as many again that are just taken and encoded: about 100 bytes each, and their lines.
        more_kb = child.tally[3] - child.tally[2]
        assert more_kb < 100 * 1024, f"{more_kb} KB more than at the start"


# Records no faster than the file is given events, however busy the machine is; one batch takes the slow one all of the burst.
BESIDE_A_SLOW_HANDLER = """
    from tracekit import TraceHandler
    over = []
    class Slow(TraceHandler):
        def process_events(self, batch):
            while not over:
                time.sleep(0.01)
            tally[4] += len(batch) - batch.records[2::4].count(-3)  # a start in advance is not an event of its own
        def summary(self, summary):
            tally[5] = sum(summary.dropped.values())
    profiler = record("t.json", Slow(), max_buffered_events=50_000, on_full="drop_newest", shutdown_timeout=60)
    marker, counter, previous = profiler.marker("work"), profiler.marker("n"), 0
    while tally[0] < 100_000:
        for _ in range(100):
            with marker:
                pass
        tally[0] += 100
        counter.counter({"n": tally[0]})
        if tally[0] % 5_000 == 0:
            reached = time.monotonic_ns()
            while tally[tally.DELIVERED_NS] < previous:
                time.sleep(0.001)
            previous = reached
    over.append(1)
    profiler.stop()
"""


def test_what_a_slow_handler_misses_is_counted_for_it_and_the_others_miss_nothing(
    tmp_path: Path, engine: Engine
) -> None:
    with Child(BESIDE_A_SLOW_HANDLER, tmp_path) as child:
        assert child.end() == 0, child.errors
        remains = opened(engine, tmp_path)
        emitted = child.tally[0] + child.tally[0] // 100
        assert remains.summary["dropped"] == {}
        assert remains.count("XE", "work") + remains.count("C", "n") == emitted
        assert child.tally[5] > 0
        assert child.tally[4] + child.tally[5] == emitted


def test_blocking_waits_for_no_event_that_is_held_for_its_order(tmp_path: Path) -> None:
    program = """
        from tracekit import TraceHandler
        class One(TraceHandler):
            def process_instant_event(self, *_):
                tally[1] += 1
        with profiler_of("t.json", One(), max_buffered_events=300, on_full="block", record_batches=False) as profiler:
            for _ in range(1000):
                profiler.marker("a").instant()
        assert tally[1] == 1000, profiler.stats
    """
    with Child(program, tmp_path) as child:
        assert child.end() == 0, child.errors
