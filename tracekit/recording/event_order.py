"""EventOrder: puts the events and hooks of a handler that takes them one by one into the order of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.events import BEGIN, edge_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.events import EventBatch

__all__ = ["GRACE_NS", "EventOrder"]

GRACE_NS: Final = 200_000_000
"""How long events are held, so that one whose thread was suspended before it could record it still gets its place."""

_NO_TIME: Final = 1 << 62


class EventOrder:
    """Holds events and hooks for the grace period, and delivers them in the order of their times. Used by one thread.

    Attributes:
        late: How many events came when one of a later time had been delivered.
    """

    def __init__(self) -> None:
        self.late = 0
        self._held: list[
            tuple[Any, ...]
        ] = []  # an edge and its batch; or time, phase, tie, a function and its arguments
        self._delivered_ns = 0
        self._hook_ns = 0

    def add_batch(self, batch: EventBatch) -> None:
        """Hold the events of a batch."""
        self._held += [(*edge, batch) for edge in batch.edges()]

    def add_hook(self, time_ns: int | None, method: str, args: tuple[Any, ...]) -> None:
        """Hold a hook. At its time, ends of slices come before it and starts after it.

        Args:
            time_ns: Its monotonic time; None is that of the hook before.
            method: The handler's method.
            args: Its arguments.
        """
        self._hook_ns = max(self._hook_ns, time_ns or 0)
        self._held.append((self._hook_ns, 0, 1, method, args))

    def deliver(
        self,
        until_ns: int | None,
        give: Callable[[EventBatch, Any, bool], object],
        call: Callable[[str, tuple[Any, ...]], object],
    ) -> None:
        """Deliver what is not later than a monotonic time; None delivers all.

        Args:
            until_ns: The time.
            give: Takes a batch, an event of it, and whether it counts as one (the start of a slice does not).
            call: Takes a hook.
        """
        self._held.sort(key=edge_order)
        until_ns = _NO_TIME if until_ns is None else until_ns
        count = 0
        for item in self._held:
            if item[0] > until_ns:
                break
            count += 1
            if len(item) == 5:
                call(item[3], item[4])
                continue
            self.late += item[0] < self._delivered_ns
            self._delivered_ns = max(self._delivered_ns, item[0])
            batch: EventBatch = item[6]
            give(batch, batch.event_of(item[:6]), item[3] != BEGIN)
        del self._held[:count]
