"""EventOrder: sorts events and hooks by time, for a handler that takes them one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tracekit.events import BEGIN, END, edge_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.events import EventBatch

# Time that events are held. An event of a thread that was suspended before recording it still gets its place.
GRACE_NS: Final = 200_000_000
_NO_TIME: Final = 1 << 62

_HOOK_WIDTH: Final = 5
_EVENT_WIDTH: Final = 7


class EventOrder:
    """Holds events and hooks for the grace period, and delivers them in time order. Used by one thread.

    The slice of a training batch is recorded at its end, which may be long after its start. Therefore its start is
    delivered when a cut finds the batch running (`EventBatch.running`), and its end when the slice is recorded.
    ``loop_track`` holds these slices and nothing else. ``late`` counts what arrived after the delivery of something
    later.
    """

    def __init__(self, loop_track: int = -1) -> None:
        self.late = 0
        # An event: an edge and its batch, and one more entry if the event was not recorded. A hook: (time, phase, tie,
        # method, arguments).
        self._held: list[tuple[Any, ...]] = []
        self._delivered_ns = 0
        self._hook_ns = 0
        self._loop_track = loop_track
        self._running: tuple[int, int, EventBatch] | None = None  # start, label and batch of the started slice

    def add_batch(self, batch: EventBatch) -> None:
        """Hold the events of a batch."""
        last_end_ns = 0  # of a slice of the loop
        for edge in batch.edges():
            time_ns, _, tie, kind, label, what = edge
            if what == self._loop_track and kind == BEGIN:
                self._begin(time_ns, tie, label, batch)
                self._running = None  # its end is in the same batch
                continue
            if what == self._loop_track and kind == END:
                last_end_ns = time_ns
            self._held.append((*edge, batch))
        if batch.running is not None and batch.running[1] >= last_end_ns:  # otherwise it has ended since the cut
            label, start_ns, _ = batch.running
            self._begin(start_ns, -_NO_TIME, label, batch)

    def _begin(self, start_ns: int, tie: int, label: int, batch: EventBatch) -> None:
        if self._running is not None and start_ns <= self._running[0]:
            return  # already started
        self.end_running(start_ns)  # the slice of a batch that is not recorded
        self._running = (start_ns, label, replace(batch, records=()))  # the records may take much memory
        # Events such as a long fetch may have been delivered before the batch was known. They stay in front of its
        # start.
        time_ns = max(start_ns, self._delivered_ns)
        self._held.append((time_ns, 1, tie, BEGIN, label, self._loop_track, batch))

    def end_running(self, time_ns: int) -> None:
        """End the slice of the batch that is still running."""
        if self._running is not None:
            _, label, batch = self._running
            self._running = None
            self._held.append((time_ns, 0, 0, END, label, self._loop_track, batch, "not recorded"))

    def add_hook(self, time_ns: int | None, method: str, args: tuple[Any, ...]) -> None:
        """Hold a hook for a monotonic time; None is directly after the previous hook, or as early as possible.

        Slices that end at its time come before it; slices that start at its time come after it.
        """
        if time_ns is not None:
            self.late += time_ns < self._delivered_ns
            self._hook_ns = max(self._hook_ns, time_ns)
        self._held.append((self._hook_ns, 0, 1, method, args))

    def deliver(
        self,
        until_ns: int | None,
        give: Callable[[EventBatch, Any, bool], object],
        call: Callable[[str, tuple[Any, ...]], object],
    ) -> None:
        """Deliver the events and hooks up to a monotonic time, inclusive; None delivers everything.

        ``give`` gets a batch, an event of it, and True if the event counts (the start of a slice does not); ``call``
        gets the method and the arguments of a hook.
        """
        self._held.sort(key=edge_order)
        until_ns = _NO_TIME if until_ns is None else until_ns
        count = 0
        for item in self._held:
            if item[0] > until_ns:
                break
            count += 1
            late = item[0] < self._delivered_ns
            self._delivered_ns = max(self._delivered_ns, item[0])
            if len(item) == _HOOK_WIDTH:
                call(item[3], item[4])
                continue
            self.late += late
            batch: EventBatch = item[6]
            give(batch, batch.event_of(item[:6]), item[3] != BEGIN and len(item) == _EVENT_WIDTH)
        del self._held[:count]
