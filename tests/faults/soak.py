"""U1: the soak. Threads record while their process forks and is killed; what was flushed is there, and memory is flat.

The whole of it, which writes and removes about 12 GB, a life at a time::

    python -m tests.faults.soak --events 100e6

`tests/faults/test_soak.py` runs a bounded part of it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import sys
import tempfile
import threading
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tests.faults.processes import GOOD, Child
from tests.faults.remains import opens, read_trace
from tests.faults.tally import Tally
from tests.faults.writers import make_writer
from tests.perfetto import Engine
from tracekit import JSONTraceHandler, Profiler, TraceHandler

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Report", "live", "soak"]

THREADS = 8
BLOCK = 500
PART_BYTES = 64 << 20
FORK_TIMEOUT_S = 60.0

# Slots of the tally. Those of the threads follow each other.
FLUSHES, FLUSHES_LATE, FORKS, FORKS_HUNG, DROPPED = range(2, 7)
DONE, FLUSHED = 20, 40


@dataclass
class Report:
    """What a soak found. Every loss is an entry of ``losses``; there should be none.

    Attributes:
        events: How many events are in the files.
        emitted: How many were recorded by the threads.
        unflushed: How many of these were lost with a process that was killed, none of them flushed.
        dropped: How many were dropped for want of room, and counted.
        growth_kb: How much more memory each process had after two fifths of its events than before.
    """

    events: int = 0
    emitted: int = 0
    unflushed: int = 0
    dropped: int = 0
    lives: int = 0
    kills: int = 0
    forks: int = 0
    flushes: int = 0
    files: int = 0
    seconds: float = 0.0
    growth_kb: list[int] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return it for people."""
        growth_kb = sorted(self.growth_kb) or [0]
        return [
            f"{self.emitted:,} events recorded in {self.seconds:.0f} s by {self.lives} processes, {self.kills} of them killed",
            f"{self.forks} forks, {self.flushes} flushes, {self.files} files",
            f"{self.events:,} events in the files",
            f"{self.unflushed:,} lost with a kill before they were flushed, {self.dropped:,} dropped and counted",
            (
                "the most memory of a process after two fifths of its events, compared with before: "
                f"{growth_kb[0]:+,} to {growth_kb[-1]:+,} KB, half of them below {growth_kb[len(growth_kb) // 2]:+,} KB"
            ),
            *(self.losses or ["nothing that was flushed is lost"]),
        ]


def live(writer: str, quota: int, rate: int, *, killed: bool, seed: float, options: dict[str, Any]) -> None:
    """Record from many threads, so many events a second, until the quota is reached; then stop, or wait for the kill."""
    dice = random.Random(seed)
    slots = Tally("tally.bin").slots
    handler: TraceHandler
    if writer == GOOD:
        handler = JSONTraceHandler("t-part{part:04d}.json", rotate_bytes=PART_BYTES)
    else:
        handler = make_writer(writer, "t.json")
    profiler = Profiler(handler, rank=0, record_batches=False, **getattr(handler, "profiler_options", {}), **options)
    profiler.start()
    workers = [
        threading.Thread(target=_work, args=(profiler, number, slots, quota // THREADS, rate // THREADS))
        for number in range(THREADS)
    ]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        done = list(slots[DONE : DONE + THREADS])
        if profiler.flush(60.0):
            slots[DROPPED] = sum(profiler.stats.dropped.values())
            slots[FLUSHED : FLUSHED + THREADS] = array("q", done)
            slots[FLUSHES] += 1
        else:
            slots[FLUSHES_LATE] += 1
        profiler.step()
        if dice.random() < 0.2:
            _fork(profiler, slots)
        time.sleep(dice.uniform(0.0, 0.1))
    while killed:
        profiler.marker("quiet").instant()
        time.sleep(0.01)
    profiler.stop()
    slots[DROPPED] = sum(profiler.stats.dropped.values())


def _work(profiler: Profiler, number: int, slots: memoryview, quota: int, rate: int) -> None:
    marker, counter, series = profiler.marker(f"of {number}"), profiler.marker("done"), f"of {number}"
    done, start = 0, time.monotonic()
    while done < quota:
        time.sleep(max(0.0, start + done / rate - time.monotonic()))
        for _ in range(BLOCK):
            with marker:
                pass
        done += BLOCK
        counter.counter({series: done})
        slots[DONE + number] = done


def _fork(profiler: Profiler, slots: memoryview) -> None:
    """Fork with all threads running. The child records into nothing of its parent's, and ends in some way."""
    child = os.fork()
    if child == 0:
        with profiler.marker("in the child"):
            profiler.flush()
        os._exit(0)
    slots[FORKS] += 1
    deadline = time.monotonic() + FORK_TIMEOUT_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            slots[FORKS_HUNG] += 1
            os.kill(child, 9)
            os.waitpid(child, 0)
            return
        time.sleep(0.005)


def soak(folder: Path, engine: Engine, *, events: int, rate: int = 300_000, lives: int = 10, seed: int = 0) -> Report:
    """Let processes record, kill every other one at a random time, and look at what each left."""
    dice = random.Random(seed)
    report = Report()
    start = time.monotonic()
    for number in range(lives):
        life, who = folder / f"life {number}", f"life {number}"
        life.mkdir()
        killed = number % 2 == 0
        options = {
            "max_buffered_events": dice.choice([50_000, 200_000]),
            "on_full": dice.choice(["block", "block", "drop_newest", "drop_oldest"]),
        }
        quota = events // lives
        program = f"""
            from tests.faults.soak import live
            live(WRITER, {quota}, {rate}, killed={killed}, seed={dice.random()}, options={options})
        """
        with Child(program, life) as child:
            early_kb, late_kb = _watch(child, quota, until=dice.uniform(0.5, 1.0) if killed else 2.0)
            if early_kb and late_kb:
                report.growth_kb.append(late_kb - early_kb)
            if killed:
                time.sleep(dice.uniform(0.0, 0.3))
                child.kill()
            elif child.end(3600) != 0:
                report.losses.append(f"{who}: exit code {child.process.returncode}: {child.errors[-2000:]}")
            report.losses += [f"{who}: {loss}" for loss in _look(life, engine, child.tally, report, killed=killed)]
        report.lives += 1
        report.kills += killed
        shutil.rmtree(life)
    report.seconds = time.monotonic() - start
    return report


def _watch(child: Child, quota: int, *, until: float) -> tuple[int, int]:
    """Wait until a share of the quota is recorded, or the child has ended.

    Returns:
        The most memory that it had between a tenth and four tenths of its quota, and after that; 0 where nobody looked.
    """
    early_kb = late_kb = 0
    statm = Path(f"/proc/{child.process.pid}/statm")
    while child.process.poll() is None:
        share = sum(child.tally.slots[DONE : DONE + THREADS]) / quota
        if share >= until:
            break
        with contextlib.suppress(OSError, IndexError):  # it has just ended
            kb = int(statm.read_text().split()[1]) * resource.getpagesize() // 1024
            if 0.1 < share < 0.4:
                early_kb = max(early_kb, kb)
            elif share >= 0.4:
                late_kb = max(late_kb, kb)
        time.sleep(0.02)
    return early_kb, late_kb


class _Event(msgspec.Struct):
    ph: str
    name: str
    args: dict[str, Any] = {}


_events = msgspec.json.Decoder(list[_Event])


def _read(path: Path) -> Iterator[list[_Event]]:
    """Yield the events of a file of any size; the last record may be torn."""
    rest = b""
    with path.open("rb") as file:
        assert file.readline() == b"[\n", f"{path.name} does not begin as an array"
        while piece := file.read(8 << 20):
            head, newline, rest = (rest + piece).rpartition(b"\n")
            lines = (head + newline).removesuffix(b"]\n").rstrip(b"\n").removesuffix(b",")
            if lines:
                yield _events.decode(b"[" + lines + b"]")


def _look(life: Path, engine: Engine, tally: Tally, report: Report, *, killed: bool) -> Iterator[str]:
    """Yield what the files of a process lack."""
    found: Counter[str] = Counter()
    summary: dict[str, Any] | None = None
    last_of = [0] * THREADS
    gaps = 0
    files = sorted(life.glob("t*.json"))
    assert files, "no file is left"
    for path in files:
        for event in (event for events in _read(path) for event in events):
            if event.ph in {"X", "B"}:
                found[event.name] += 1
            elif event.ph == "C":
                found["counters"] += 1
                for series, value in event.args.items():
                    thread = int(series.removeprefix("of "))
                    gaps += value != last_of[thread] + BLOCK
                    last_of[thread] = int(value)
            elif event.name == "tracekit_summary":
                summary = event.args
    opens(engine, read_trace(files[-1]))
    done, flushed = (list(tally.slots[first : first + THREADS]) for first in (DONE, FLUSHED))
    slices = [found[f"of {number}"] for number in range(THREADS)]
    in_file = sum(slices) + found["counters"]
    recorded, kept = (sum(counts) + sum(counts) // BLOCK for counts in (done, flushed))  # slices and counters
    dropped = tally[DROPPED]
    if not dropped:
        for number in range(THREADS):
            if min(slices[number], last_of[number]) < flushed[number]:
                there = f"{slices[number]} slices and counters up to {last_of[number]}"
                yield f"thread {number} flushed {flushed[number]} events, and {there} are there"
        if gaps:
            yield f"{gaps} counters are missing or out of order"
    if in_file + dropped < kept:
        yield f"{kept} events flushed, {in_file} there, {dropped} dropped"
    # A slice that is open when a file ends is finished there, and goes on in the next.
    if not killed and not 0 <= in_file + dropped - recorded <= THREADS * len(files):
        yield f"{recorded} events recorded, {in_file} there, {dropped} dropped"
    if not killed and (summary is None or sum(summary["dropped"].values()) != dropped):
        yield f"the last file ends with {summary}, and {dropped} were dropped"
    if found["in the child"]:
        yield f"{found['in the child']} events of forked children in the file of their parent"
    for slot, what in ((FORKS_HUNG, "forked children hung"), (FLUSHES_LATE, "flushes did not return in time")):
        if tally[slot]:
            yield f"{tally[slot]} {what}"
    report.events += in_file
    report.emitted += recorded
    report.unflushed += max(recorded - in_file - dropped, 0)
    report.dropped += dropped
    report.files += len(files)
    report.forks += tally[FORKS]
    report.flushes += tally[FLUSHES]


def main() -> int:
    """Run it and print the report; returns 1 if something was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--events", type=float, default=100e6, help="how many in all (default: 100e6)")
    parser.add_argument("--rate", type=float, default=300e3, help="how many a second, at most (default: 300e3)")
    parser.add_argument(
        "--lives", type=int, default=20, help="how many processes; every other one is killed (default: 20)"
    )
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    with contextlib.closing(Engine()) as engine, tempfile.TemporaryDirectory(prefix="tracekit-soak-") as folder:
        rate, events = int(told.rate), int(told.events)
        report = soak(Path(folder), engine, events=events, rate=rate, lives=told.lives, seed=told.seed)
    print("\n".join(report.lines()))
    return 1 if report.losses else 0


if __name__ == "__main__":
    sys.exit(main())
