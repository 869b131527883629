"""What the programs of `tests.faults.Child` find in their namespace."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from tests.faults.processes import GOOD
from tests.faults.tally import Tally
from tests.faults.writers import make_writer
from tracekit import Profiler, TraceHandler
from tracekit.events import WIDTH, EventBatch

__all__ = ["WRITER", "emit_at", "hear", "in_threads", "note_deliveries", "profiler_of", "record", "say", "tally"]

WRITER = sys.argv[1] if len(sys.argv) > 1 else GOOD

tally = Tally("tally.bin")
"""Counts that survive this process; the test reads them from the same file."""


def say(word: str) -> None:
    """Tell the test."""
    os.write(1, f"{word}\n".encode())  # at once: a signal handler may say something while another word is being said


def hear() -> str:
    """Wait for a word of the test."""
    return sys.stdin.readline().strip()


def profiler_of(path: str = "t.json", *handlers: TraceHandler, **options: Any) -> Profiler:
    """Make a profiler that writes a file, with the writer that the test asks for, and with further handlers."""
    writer = note_deliveries(make_writer(WRITER, path))
    # A busy machine may need more than the usual 10 s at the end; whoever tests that says less.
    usual = {"rank": 0, "record_batches": False, "shutdown_timeout": 100.0}
    return Profiler([writer, *handlers], **{**usual, **options, **getattr(writer, "profiler_options", {})})


def note_deliveries(writer: TraceHandler, into: Tally = tally) -> TraceHandler:
    """Note in a tally what a writer has been given each time when it is flushed, which must be in its file then.

    This tells what a kill may lose without a clock: whatever a busy machine delays, it delays this note as well.
    """
    process_events, flush = writer.process_events, writer.flush
    newest_ns = 0

    def noted_events(batch: EventBatch) -> None:
        nonlocal newest_ns
        _, time_ns, kind, _ = batch.records[-WIDTH:]
        newest_ns = max(newest_ns, time_ns, kind)  # of a slice, the kind is its end
        process_events(batch)

    def noted_flush() -> None:
        flush()
        into[Tally.DELIVERED_NS] = newest_ns
        into[Tally.DELIVERIES] += 1

    writer.process_events, writer.flush = noted_events, noted_flush  # type: ignore[method-assign]
    return writer


def record(path: str = "t.json", *handlers: TraceHandler, **options: Any) -> Profiler:
    """The same, started."""
    profiler = profiler_of(path, *handlers, **options)
    profiler.start()
    return profiler


def emit_at(
    profiler: Profiler, events_per_second: int, *, deliveries: int | None = None, seconds: float = 300.0
) -> None:
    """Record slices at a rate, a burst each millisecond, until the process is killed; the tally counts them.

    Args:
        profiler: Where to.
        events_per_second: How many, on average, if the machine can.
        deliveries: Return after this many deliveries; see `note_deliveries`.
        seconds: Give up then.
    """
    marker, slots, now = profiler.marker("work"), tally.slots, time.monotonic_ns
    start = now()
    end = start + int(seconds * 1e9)
    emitted = 0
    while (time_ns := now()) < end and (deliveries is None or tally[Tally.DELIVERIES] < deliveries):
        due = (time_ns - start) * events_per_second // 1_000_000_000
        # Not more than a burst of what was missed while the machine was busy.
        due = min(due, emitted + max(events_per_second // 50, 1))
        while emitted < due:
            with marker:
                pass
            emitted += 1
        slots[0] = emitted
        time.sleep(0.001)


def in_threads(count: int, target: Any, *args: Any) -> list[threading.Thread]:
    """Start threads on a function, which gets the number of the thread as well, and return them."""
    threads = [
        threading.Thread(target=target, args=(number, *args), name=f"worker {number}") for number in range(count)
    ]
    for thread in threads:
        thread.start()
    return threads
