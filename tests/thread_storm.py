"""A program that records on eight threads at once, and then accounts for every event.

``python tests/thread_storm.py FOLDER ROUNDS`` needs nothing but tracekit, so that any Python that it is installed in can run
it; see tests/integration/test_free_threading.py. It prints what it found as JSON, and exits with 1 if something is amiss.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tracekit
from tracekit import JSONTraceHandler, Profiler, ProfilerAction, validate_trace

THREADS = 8
LANE_TID = 1 << 30
ON_FULL = ("drop_newest", "drop_oldest", "block")


class Faults(list[str]):
    """What is wrong; each kind of fault stands here a few times only."""

    def expect(self, holds: bool, what: str) -> None:
        if not holds and len(self) < 20:
            self.append(what)


class Called:
    """What the threads have called on the markers of one profiler, by kind."""

    def __init__(self) -> None:
        self.by_thread: dict[int, Counter[str]] = {}
        self.tid_of: dict[int, int] = {}
        self.errors: list[str] = []

    def total(self, kind: str) -> int:
        return sum(each[kind] for each in self.by_thread.values())


def record(profiler: Profiler, called: Called, number: int, rounds: int, barrier: threading.Barrier) -> None:
    """Record on one thread: by markers that all threads share, by one of its own, and by one that profilers take turns with."""
    count: Counter[str] = Counter()
    called.by_thread[number] = count
    called.tid_of[number] = threading.get_native_id()
    source = random.Random(number)
    shared, values = profiler.marker("shared"), profiler.marker("values")
    own, mark = profiler.marker(f"own {number}"), profiler.marker("mark")
    edges = profiler.marker("edges", record_instant_on_start=True)
    barrier.wait()
    try:
        for each in range(rounds):
            with shared, own:
                count["slices"] += 2
                values.counter({f"of {number}": each})
                count["counters"] += 1
                if source.random() < 0.3:
                    with shared:  # recursion
                        count["slices"] += 1
                        mark.instant()
                        count["instants"] += 1
            with profiler.marker(f"new {each % 50}"):  # threads make the same markers at the same time
                count["slices"] += 1
            with edges:
                count["slices"] += 1
                count["instants"] += 1
            if source.random() < 0.05:
                handle = shared.begin()
                handle.end()
                count["async slices"] += 1
            with tracekit.marker("module"):
                count["module"] += 1
            if each % 10 == 0:
                short = threading.Thread(target=short_lived, args=(profiler,))
                short.start()
                short.join()
                count["slices"] += 1
    except BaseException as error:
        called.errors.append(f"thread {number}: {error!r}")
        raise


def short_lived(profiler: Profiler) -> None:
    with profiler.marker("short"):
        pass


@contextlib.contextmanager
def recording_threads(profiler: Profiler, rounds: int, faults: Faults) -> Iterator[tuple[Called, Callable[[], bool]]]:
    """Start all threads, and join them in the end; yield their calls, and a function that tells if they still record."""
    called, barrier = Called(), threading.Barrier(THREADS + 1)
    arguments = [(profiler, called, number, rounds, barrier) for number in range(THREADS)]
    threads = [threading.Thread(target=record, args=each, name=f"t{each[2]}") for each in arguments]
    for thread in threads:
        thread.start()
    barrier.wait()
    yield called, lambda: any(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()
    faults += called.errors


def storm(folder: Path, rounds: int, faults: Faults, **options: Any) -> dict[str, Any]:
    """Record with one profiler throughout, while others start and stop, and the training loop steps and flushes."""
    folder.mkdir()
    inner: list[tuple[Path, Profiler]] = []
    profiler = Profiler(JSONTraceHandler(folder / "outer.json"), rank=0, shutdown_timeout=300.0, **options)
    with profiler, recording_threads(profiler, rounds, faults) as (called, are_recording):
        steps = 0
        while are_recording():
            path = folder / f"inner{len(inner)}.json"
            with Profiler(JSONTraceHandler(path), rank=0, flush_interval=0.02) as other:
                inner.append((path, other))
                for _ in range(3):
                    with profiler.marker("main"):
                        profiler.step()
                        other.step()
                    steps += 1
                profiler.flush(60)
    events = account(folder / "outer.json", profiler, faults)
    expected = {kind: called.total(kind) for kind in ("slices", "instants", "counters")}
    expected["slices"] += called.total("async slices") + 2 * steps  # a step is a slice of the marker, and of the batch
    stats = profiler.stats
    dropped = sum(stats.dropped.values())
    # Slices of "module" are here too, as long as no other profiler runs.
    beyond = stats.recorded - sum(expected.values())
    faults.expect(0 <= beyond <= called.total("module"), f"recorded {stats.recorded}, but called {expected}")
    if not dropped:
        taken = sum(event["name"] == "module" and event["ph"] in "XB" for event in events)
        count = Counter("slices" if event["ph"] in "XBb" else event["ph"] for event in events)
        found = {"slices": count["slices"] - taken, "instants": count["i"], "counters": count["C"]}
        faults.expect(found == expected, f"counted {found}, but called {expected}")
        check_threads(events, called, rounds, faults)
    for path, other in inner:
        account(path, other, faults, THREADS)
    return {
        "events": len(events),
        "called": expected,
        "dropped": dict(stats.dropped),
        "inner": len(inner),
        "steps": steps,
    }


def switched(folder: Path, rounds: int, faults: Faults) -> dict[str, Any]:
    """Record while the schedule turns markers on and off: every slice that was recorded nests, and is accounted for."""
    folder.mkdir()
    actions = [ProfilerAction.ACTIVE, ProfilerAction.SKIP, ProfilerAction.WARMUP, ProfilerAction.SKIP]
    turn = [0]

    def schedule(_timestamp: Any) -> ProfilerAction:
        return actions[turn[0] % len(actions)]

    profiler = Profiler(JSONTraceHandler(folder / "switched.json"), schedule, rank=0, shutdown_timeout=300.0)
    with profiler:
        with recording_threads(profiler, rounds, faults) as (_, are_recording):
            while are_recording():
                turn[0] += 1
                profiler.step()
                if turn[0] % 100 == 0:
                    profiler.flush(60)
        # Nothing is open, so no marker counts a slice as such. Not "module": it has been passed between profilers, and still
        # counts a slice of a clone that waited for room (on_full="block") meanwhile.
        for marker in profiler._markers:
            for each in (marker, *marker._clones.values()):
                state = (each._start, each._contended, each._skipped)
                faults.expect(state == (0, 0, 0), f"{each!r} ended as {type(each).__name__} {state}")
    events = account(folder / "switched.json", profiler, faults)
    return {"events": len(events), "turns": turn[0], "dropped": dict(profiler.stats.dropped)}


def account(path: Path, profiler: Profiler, faults: Faults, may_stay_open: int = 0) -> list[dict[str, Any]]:
    """Read a file, and hold it against the counts of its profiler: recorded is written or counted as dropped."""
    content = json.loads(path.read_bytes())
    events: list[dict[str, Any]] = content if isinstance(content, list) else content["traceEvents"]
    count = Counter(event["ph"] for event in events)
    stats = profiler.stats
    # A slice counts at its end. That of a thread may come after the profiler has stopped, and then counts as left behind.
    written = {"slices": count["X"] + count["E"] + count["b"], "instants": count["i"], "counters": count["C"]}
    dropped = sum(stats.dropped.values())
    total = sum(written.values())
    faults.expect(
        count["B"] - count["E"] in range(may_stay_open + 1), f"{path.name}: {count['B']} starts, {count['E']} ends"
    )
    faults.expect(count["b"] == count["e"], f"{path.name}: {count['b']} async starts, {count['e']} ends")
    # Such as slices that overlap on a thread, and ends without starts
    problems = [problem for problem in validate_trace(path).problems if problem.rule != "unclosed-begin"]
    faults.expect(not problems, f"{path.name}: {problems}")
    # A slice that is open while its marker passes to another profiler ends in the file, and counts nowhere.
    passed_on = sum(event["ph"] == "E" and event["name"] == "module" for event in events)
    faults.expect(
        0 <= total + dropped - stats.recorded <= passed_on,
        f"{path.name}: recorded {stats.recorded}, written {written}, {stats.dropped}",
    )
    faults.expect(not stats.failures, f"{path.name}: {stats.failures}")
    return events


def check_threads(events: list[dict[str, Any]], called: Called, rounds: int, faults: Faults) -> None:
    """Expect the events of each thread on its track, all of them and in their order."""
    own: dict[str, list[Any]] = defaultdict(list)
    values: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "XB" and event["name"].startswith("own "):
            own[event["name"]].append(event["tid"])
        elif event["ph"] == "C" and event["name"] == "values":
            for series, value in event["args"].items():
                values[series].append((value, event["ts"]))
    for number in range(THREADS):
        tids = Counter(own[f"own {number}"])
        # A slice that is open while its marker passes to another profiler ends late, so that a later one moves to a lane.
        holds = tids.total() == rounds and {tid for tid in tids if tid < LANE_TID} == {called.tid_of[number]}
        faults.expect(holds, f"own {number} is on {tids}, not {called.tid_of[number]}")
        found = sorted(values[f"of {number}"])
        faults.expect([value for value, _ in found] == list(range(rounds)), f"values of {number}: {len(found)}")
        times = [at for _, at in found]
        faults.expect(times == sorted(times), f"the values of {number} are out of order")


def main(folder: Path, rounds: int) -> int:
    """Run all storms, and say what they found."""
    sys.setswitchinterval(1e-6)  # threads change at every chance
    faults, said = Faults(), dict[str, Any]()
    said["python"] = sys.version
    said["gil"] = getattr(sys, "_is_gil_enabled", lambda: True)()
    plenty = {"max_buffered_events": 4_000_000, "max_buffered_bytes": 1 << 30}
    said["plenty"] = storm(folder / "plenty", rounds, faults, flush_interval=0.05, **plenty)
    for on_full in ON_FULL:
        said[on_full] = storm(
            folder / on_full, rounds // 2, faults, flush_interval=0.05, on_full=on_full, max_buffered_events=1_000
        )
    said["switched"] = switched(folder / "switched", rounds, faults)
    said["faults"] = faults
    print(json.dumps(said))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
