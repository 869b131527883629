"""Comparison of the clocks of two ranks by ping-pong through a store.

A store is a table of short values that every rank can reach; torch.distributed keeps one for its process groups. Rank 0
answers, one rank at a time; the others ask::

    rank r                               rank 0
    asked += 1, request/N = r       ->   sees the request, answers ready/N = its identity
    ping/N/k                        ->   wakes up, reads its clock
    wakes up                        <-   pong/N/k = the reading

Rank 0 reads its clock between the send and the wake-up of rank r. So the offset is known within half a round trip, even if the
two directions take different times. The shortest of several round trips gives the best bound.
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from tracekit.clock import ClockOffset

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX: Final = "tracekit/clock/"
PATIENCE_S: Final = 5.0  # maximum time that a rank waits for its turn
# Timeout for the other side within an exchange; a process that is alive answers within milliseconds
ANSWER_S: Final = 2.0
# A round trip below this is good enough. A longer one had to wait for an interpreter lock, and more are tried.
GOOD_NS: Final = 1_000_000
LEAST_PINGS: Final = 8
MOST_PINGS: Final = 64
_NOBODY: Final = "-"  # replaces the number of a rank that has stopped waiting


class Answering:
    """Rank 0's side, over a connection to torch's ``Store`` that nothing else uses: `get` blocks other calls."""

    def __init__(
        self, store: Any, *, rank: int, boot_id: str | None, timeline_offset_ns: int, monotonic_ns: Callable[[], int]
    ) -> None:
        store.set_timeout(timedelta(seconds=ANSWER_S))
        self._store = store
        self._monotonic_ns = monotonic_ns
        self._hello = json.dumps([rank, boot_id, timeline_offset_ns])
        store.set(PREFIX + "here", "1")
        # Continue the count of an earlier recording, of this process or of an earlier one.
        self._answered: int = store.add(PREFIX + "answered", 0)
        self.ranks: set[int] = set()
        """The ranks that have been answered."""

    def leave(self) -> None:
        """Prevent further requests."""
        self._store.delete_key(PREFIX + "here")

    def waiting(self) -> bool:
        """Return True if a rank has asked; takes one access to the store."""
        asked: int = self._store.add(PREFIX + "asked", 0)
        return asked > self._answered

    def answer(self) -> None:
        """Answer the rank that has asked first.

        Raises:
            Exception: Any error of the store, if that rank ends during the exchange.
        """
        self._answered = number = self._store.add(PREFIX + "answered", 1)
        store, request = self._store, f"{PREFIX}{number}/"
        asked_by = store.get(request + "request").decode()
        store.delete_key(request + "request")
        if asked_by == _NOBODY:
            store.delete_key(request + "ping0")
            return
        store.set(request + "ready", self._hello)
        for ping in range(MOST_PINGS):
            said = store.get(f"{request}ping{ping}").decode()
            now_ns = self._monotonic_ns()
            if said != _NOBODY:
                store.set(f"{request}pong{ping}", str(now_ns))
            store.delete_key(f"{request}ping{ping}")
            if said == _NOBODY:
                store.delete_key(request + "ready")
                return
            if said == "0":
                break
        self.ranks.add(int(asked_by))


def measure(
    store: Any, *, rank: int, timeline_offset_ns: int, monotonic_ns: Callable[[], int], pause: Callable[[float], bool]
) -> ClockOffset | None:
    """Compare the clocks once, in some milliseconds; return None if rank 0 does not take part or does not answer.

    This is the side of every other rank, also over a connection that nothing else uses. ``pause`` waits for a number of
    seconds; True stops the wait for an answer.

    Raises:
        Exception: Any error of the store, if it is gone.
    """
    store.set_timeout(timedelta(seconds=ANSWER_S))
    if not store.check([PREFIX + "here"]):
        return None  # a request would stay in the store
    request = f"{PREFIX}{store.add(PREFIX + 'asked', 1)}/"
    store.set(request + "request", str(rank))
    until_s = time.monotonic() + PATIENCE_S
    while not store.check([request + "ready"]):
        if pause(0.01) or time.monotonic() > until_s:
            store.set(request + "ping0", _NOBODY)  # rank 0 may have read the request meanwhile
            store.set(request + "request", _NOBODY)
            return None
    reference_rank, reference_boot_id, reference_offset_ns = json.loads(store.get(request + "ready"))
    store.delete_key(request + "ready")
    readings: list[
        tuple[int, int, int]
    ] = []  # of each round trip: length, own time of its middle, offset of rank 0 then
    go_on = True
    while go_on:
        ping = len(readings)
        go_on = ping + 1 < LEAST_PINGS or (ping + 1 < MOST_PINGS and min(readings)[0] > GOOD_NS)
        sent_ns = monotonic_ns()
        store.set(f"{request}ping{ping}", "1" if go_on else "0")
        answer = store.get(f"{request}pong{ping}")
        woken_ns = monotonic_ns()
        store.delete_key(f"{request}pong{ping}")
        middle_ns = (sent_ns + woken_ns) // 2
        readings.append((woken_ns - sent_ns, middle_ns, int(answer) - middle_ns))
    round_trip_ns, middle_ns, monotonic_offset_ns = min(readings)
    return ClockOffset(
        monotonic_ns=middle_ns,
        offset_ns=monotonic_offset_ns + reference_offset_ns - timeline_offset_ns,
        monotonic_offset_ns=monotonic_offset_ns,
        error_ns=round_trip_ns // 2 + 1,
        round_trips=len(readings),
        reference_rank=reference_rank,
        reference_boot_id=reference_boot_id,
    )


class Drift:
    """Computes the drift between two clocks from several offsets.

    Keeps the last ``keep`` offsets. The drift comes from the newest offset and the earlier one that gives the best bound.
    """

    __slots__ = ("_kept",)

    def __init__(self, keep: int = 60) -> None:
        self._kept: deque[ClockOffset] = deque(maxlen=keep)

    def add(self, newest: ClockOffset) -> ClockOffset:
        """Add a measurement; return it with its drift."""
        best: tuple[int, int] | None = None  # error, drift
        for earlier in self._kept:
            elapsed_ns = newest.monotonic_ns - earlier.monotonic_ns
            if earlier.reference_boot_id != newest.reference_boot_id or elapsed_ns <= 0:
                continue
            # Rounded up, because it is a bound.
            error_ppb = -(-(newest.error_ns + earlier.error_ns) * 1_000_000_000 // elapsed_ns)
            grown_ns = newest.monotonic_offset_ns - earlier.monotonic_offset_ns
            if best is None or error_ppb < best[0]:
                best = error_ppb, grown_ns * 1_000_000_000 // elapsed_ns
        self._kept.append(newest)
        return newest if best is None else replace(newest, drift_ppb=best[1], drift_error_ppb=best[0])


def reachable(store: Any) -> bool:
    """Return True if the store still answers; it ends with the process that keeps it."""
    try:
        store.add(PREFIX + "asked", 0)
    except Exception:  # noqa: BLE001 - torch's errors share no class in all versions
        return False
    return True


def default_store(distributed: Any) -> Any:
    """Return the store of the default process group; ``distributed`` is ``torch.distributed``."""
    return distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - torch offers it under no other name


def own_connection(store: Any) -> Any:
    """Return a store with the same content over a separate connection.

    torch holds a lock while a thread waits for a value. On the connection that training uses, that would block training.
    """
    if hasattr(store, "clone"):
        return store.clone()
    raise NotImplementedError("needs a torch whose stores can be cloned (2.6 or later)")
