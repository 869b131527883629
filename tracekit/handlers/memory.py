"""MemoryTraceHandler: keeps the events in memory, for notebooks and tests."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tracekit.arguments import check_whole
from tracekit.events import Counter, Event, Instant, SliceBegin, SliceEnd
from tracekit.handlers.base import Recording, Summary, TraceHandler

if TYPE_CHECKING:
    from tracekit.events import EventBatch


class MemoryTraceHandler(TraceHandler):
    """Keeps the last events in memory.

    Read it after `Profiler.flush` or `Profiler.stop`. Thread-safe to read: each property returns a new list.

    Args:
        max_events: Maximum number of events; a slice counts as two. The oldest are dropped first, and counted in `dropped`.
    """

    def __init__(self, max_events: int = 1_000_000) -> None:
        check_whole("max_events", max_events)
        self._events: deque[Event] = deque(maxlen=max_events)
        self.dropped = 0
        self.trace_files: list[str] = []
        """Paths of the Chrome JSON traces that other parts of this process have written."""
        self.recording: Recording | None = None
        self.stats: Summary | None = None
        """The counts of recorded and lost events; set when the profiler stops."""

    def open(self, recording: Recording) -> None:
        """Keep the identity of this process."""
        self.recording = recording

    def process_events(self, batch: EventBatch) -> None:
        """Keep a batch."""
        for event in batch:
            if len(self._events) == self._events.maxlen:
                self.dropped += 1
            self._events.append(event)

    def process_chrome_json_trace_file(self, filepath: str) -> None:
        """Keep the path."""
        self.trace_files.append(filepath)

    def summary(self, summary: Summary) -> None:
        """Keep the counts."""
        self.stats = summary

    @property
    def events(self) -> list[Event]:
        """Every event, in the order of delivery."""
        return list(self._events)

    @property
    def slices(self) -> list[tuple[SliceBegin, SliceEnd]]:
        """Start and finish of every complete slice, in the order of the finishes."""
        open_slices: dict[int, list[SliceBegin]] = {}
        found: list[tuple[SliceBegin, SliceEnd]] = []
        for event in list(self._events):
            if isinstance(event, SliceBegin):
                open_slices.setdefault(id(event.track), []).append(event)
            elif isinstance(event, SliceEnd) and open_slices.get(id(event.track)):
                found.append((open_slices[id(event.track)].pop(), event))
        return found

    @property
    def instants(self) -> list[Instant]:
        """Every instant."""
        return [event for event in list(self._events) if isinstance(event, Instant)]

    @property
    def counters(self) -> list[Counter]:
        """Every counter."""
        return [event for event in list(self._events) if isinstance(event, Counter)]
