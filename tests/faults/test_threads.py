"""T1: many threads at once, and many that live shortly. Every event is there, on the track of its thread."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.faults import Child, opened

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

MANY_AT_ONCE = """
    # On a busy machine a million events take more than the usual 10 s, and all of them may have to wait for the handler.
    profiler = record(shutdown_timeout=100.0, max_buffered_events=4_000_000, max_buffered_bytes=1 << 29)
    shared = profiler.marker("shared")
    ready = threading.Barrier({threads})

    def work(number):
        own, counter = profiler.marker(f"of {{number}}"), profiler.marker("n")
        native[number] = threading.get_native_id()
        ready.wait()
        for round in range({rounds}):
            with shared, own:
                counter.counter({{f"worker {{number}}": round}})

    native = {{}}
    for thread in in_threads({threads}, work):
        thread.join()
    profiler.stop()
    say("tids " + " ".join(str(native[number]) for number in range({threads})))
"""


@pytest.mark.parametrize("rounds", [200, pytest.param(3334, marks=pytest.mark.slow)])
def test_100_threads_lose_nothing(tmp_path: Path, engine: Engine, rounds: int) -> None:
    threads = 100
    with Child(MANY_AT_ONCE.format(threads=threads, rounds=rounds), tmp_path) as child:
        tids = list(map(int, child.hear("tids ").split()))
        assert child.end() == 0, child.errors
        remains = opened(engine, tmp_path)
        slices = Counter((event["name"], event["tid"]) for event in remains.of("XB"))
        values: dict[str, list[float]] = {}
        for event in remains.of("C"):
            ((series, value),) = event["args"].items()
            values.setdefault(series, []).append(value)
        names = {event["tid"]: event["args"]["name"] for event in remains.of("M", "thread_name")}
        assert len(set(tids)) == threads
        for number, tid in enumerate(tids):
            assert names.get(tid) == f"worker {number}"
            assert slices["shared", tid] == slices[f"of {number}", tid] == rounds
            assert values[f"worker {number}"] == list(range(rounds))
        dropped = sum(remains.summary["dropped"].values())
        assert (remains.summary["slices"], dropped) == (2 * threads * rounds, 0)


SHORT_LIVED = """
    profiler = record()

    def work(number):
        with profiler.marker("work"):
            profiler.marker(str(threading.get_native_id())).instant()
        threading.current_thread().name = "renamed too late"

    def rss_kb():
        return int(open("/proc/self/statm").read().split()[1]) * 4

    before = 0
    for number in range({threads}):
        thread = threading.Thread(target=work, args=(number,), name=f"short {{number}}")
        thread.start()
        thread.join()
        if number == {threads} // 10:
            profiler.flush()
            before = rss_kb()
    profiler.flush()
    tally[2] = rss_kb() - before
    profiler.stop()
"""


@pytest.mark.parametrize("threads", [2000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_short_lived_threads_stand_on_tracks_of_their_own_ids(tmp_path: Path, engine: Engine, threads: int) -> None:
    with Child(SHORT_LIVED.format(threads=threads), tmp_path) as child:
        assert child.end() == 0, child.errors
        remains = opened(engine, tmp_path)
        assert remains.count("XB", "work") == threads  # B: it was open when the writer looked
        native = [(event["name"], str(event["tid"])) for event in remains.of("i")]
        assert len(native) == threads
        assert [pair for pair in native if pair[0] != pair[1]] == []
        assert max(tid for event in remains.events if (tid := event["tid"])) < 1 << 31
        # What is kept for a thread that is gone is its name and a few numbers.
        assert child.tally[2] < 3 * threads, f"{child.tally[2]} KB more for {threads} threads"


def test_a_thread_pool_that_reuses_threads_has_one_track_each_with_the_name_of_the_thread(
    tmp_path: Path, engine: Engine
) -> None:
    program = """
        from concurrent.futures import ThreadPoolExecutor
        profiler = record()
        barrier = threading.Barrier(4)

        def work(number):
            with profiler.marker("work"):
                if number < 4:
                    barrier.wait()

        for pool in ("loader", "saver"):
            with ThreadPoolExecutor(4, thread_name_prefix=pool) as executor:
                list(executor.map(work, range(200)))
        threading.current_thread().name = "trainer"
        with profiler.marker("work"):
            pass
        profiler.stop()
    """
    with Child(program, tmp_path) as child:
        assert child.end() == 0, child.errors
    remains = opened(engine, tmp_path)
    with engine.load(remains.path) as trace:
        rows = trace.rows(
            "select thread.name, count(*) from slice join thread_track on thread_track.id = track_id "
            "join thread using (utid) group by thread.name"
        )
    counts = dict(rows)
    assert set(counts) == {f"{pool}_{number}" for pool in ("loader", "saver") for number in range(4)} | {"trainer"}
    assert sum(counts.values()) == 401
