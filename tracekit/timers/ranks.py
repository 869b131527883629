"""RankReports: the values of all ranks for one report, and the barriers of timers.

Megatron gathers by a collective on the GPU, which hangs as soon as one rank does not take part, without naming it. Here every
rank puts its values into the store (the table of short values that torch.distributed keeps for its process groups) and goes
on. The rank that reports reads those of all ranks, waits for a limited time, and knows which ranks are missing. No collective
is started, so nothing can get out of step with those of the training.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tracekit.distributed import torch_process_group
from tracekit.errors import TimerError
from tracekit.notices import WarnOnce
from tracekit.sources.clock_exchange import default_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracekit.recording.marker import Marker

_READ: Final = "/read"
_LEVEL_TOPIC: Final = "level"
_MAX_KEPT: Final = 32  # Values of a rank that stay in the store. A reader is never that far behind the others.
_MAX_STEPS: Final = 256  # steps that are remembered, more than there are values in the store: one may come again
_LATE_S: Final = 0.05  # timeout for a rank that was missing the last time
_FIRST_PAUSE_S: Final = 0.0005
_MAX_PAUSE_S: Final = 0.05
_BARRIER: Final = "barrier"  # category of the slices in which a timer waits for the other ranks
_FORWARDING_S: Final = 5.0  # extra time that the others wait for the values that rank 0 forwards
# Timeout of the first barrier for the levels of all ranks. Only a rank that is stuck takes longer.
_LEVEL_TIMEOUT_S: Final = 600.0


def process_group() -> Any:
    """Return ``torch.distributed`` if there is a default process group of more than one rank. Never imports torch."""
    distributed = torch_process_group()
    try:
        return distributed if distributed is not None and distributed.get_world_size() > 1 else None
    except (AttributeError, RuntimeError, ValueError):
        return None  # a fake process group without ranks


class Exchange:
    """The values of one registry of timers in one process group, by rank. Not thread-safe.

    The name of the registry is the same on all ranks, and different for each process group. With ``hosts_store`` the store, a
    ``Store`` of torch, ends with this process, which then waits (for a limited time) until all have read.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        registry: str,
        *,
        hosts_store: bool = False,
        monotonic_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self._store = store
        self._hosts_store = hosts_store
        self._monotonic_s = monotonic_s
        self._pause = pause
        self._prefix = f"tracekit/timers/{registry}"
        self._kept: deque[str] = deque()
        self._absent: set[int] = set()
        self._calls = 0  # reports that are matched by their order
        self._counts: dict[str, int] = {}  # by report
        self._step_counts: dict[str, int] = {}  # by report and step
        self._levels: dict[int, int] = {}
        self._is_announced = False

    def next_topic(self, report: str, step: object) -> tuple[str, int]:
        """Return a name that no report had before and that it has on all ranks, and how many reports this rank has made.

        The ranks match their reports by the step, for which the number is 0, or by their order.
        """
        self._calls += step is None
        counts, key = (self._counts, report) if step is None else (self._step_counts, f"{report}/step {step}")
        number = counts[key] = counts.get(key, -1) + 1
        if len(self._step_counts) > _MAX_STEPS:
            del self._step_counts[next(iter(self._step_counts))]
        return f"{key}/{number}", self._calls if step is None else 0

    def put(self, topic: str, value: object, *, reads: bool, lasting: bool = False) -> None:
        """Put this rank's value of a topic, a JSON value, into the store. Does not wait.

        The topic is the same on all ranks, and different each time. ``reads`` is True if this rank will `read` the
        others' values; a ``lasting`` value stays in the store.
        """
        key = self._key(topic, self.rank)
        self._store.set(key, json.dumps([reads, value]))
        if lasting or key in self._kept:
            return
        self._kept.append(key)
        if len(self._kept) > _MAX_KEPT:
            old = self._kept.popleft()
            self._store.delete_key(old)
            self._store.delete_key(old + _READ)

    def read(self, topic: str, timeout_s: float, ranks: Iterable[int] | None = None) -> dict[int, Any]:
        """Return the values of a topic by rank, those that arrive within a time.

        The timeout of a rank that was missing the last time is much shorter, until it is there again.
        """
        return {rank: value for rank, (_, value) in self._collect(topic, timeout_s, ranks).items()}

    def acknowledge(self, topic: str) -> None:
        """Tell the rank that hosts the store that this rank has read."""
        self._store.set(self._key(topic, self.rank) + _READ, b"")

    def wait_for_readers(self, topic: str, timeout_s: float) -> None:
        """Wait until all readers have read, if the store ends with this process."""
        if not self._hosts_store:
            return
        until_s = self._monotonic_s() + timeout_s
        found = self._collect(topic, timeout_s)
        readers = [rank for rank, (reads, _) in found.items() if reads and rank != self.rank]
        self._wait([self._key(topic, rank) + _READ for rank in readers], until_s)

    def announce(self, log_level: int) -> None:
        """Put the level of this rank's timers into the store, once."""
        if not self._is_announced:
            self.put(_LEVEL_TOPIC, log_level, reads=True, lasting=True)
            self._is_announced = True

    def levels(self, ranks: list[int], timeout_s: float) -> dict[int, int]:
        """Return the levels of ranks, those that are announced within a time."""
        if unknown := [rank for rank in ranks if rank not in self._levels]:
            self._levels |= self.read(_LEVEL_TOPIC, timeout_s, unknown)
        return {rank: self._levels[rank] for rank in ranks if rank in self._levels}

    def _collect(self, topic: str, timeout_s: float, ranks: Iterable[int] | None = None) -> dict[int, tuple[bool, Any]]:
        """Return by rank whether it reads the values of the others, and its value."""
        keys = {rank: self._key(topic, rank) for rank in sorted(range(self.world_size) if ranks is None else ranks)}
        until_s = self._monotonic_s() + timeout_s
        are_present = self._wait([key for rank, key in keys.items() if rank not in self._absent], until_s)
        if late := [key for rank, key in keys.items() if rank in self._absent]:
            are_present = self._wait(late, min(until_s, self._monotonic_s() + _LATE_S)) and are_present
        present = keys if are_present else {rank: key for rank, key in keys.items() if self._store.check([key])}
        self._absent = (self._absent - set(present)) | (set(keys) - set(present))
        if self._store.has_extended_api():
            values = self._store.multi_get(list(present.values()))
        else:
            values = [self._store.get(key) for key in present.values()]
        return dict(zip(present, map(json.loads, values), strict=True))

    def _wait(self, keys: list[str], until_s: float) -> bool:
        """Wait until all keys are there. Polls, because torch's own wait cannot be interrupted."""
        pause_s = _FIRST_PAUSE_S
        while keys and not self._store.check(keys):
            if self._monotonic_s() >= until_s:
                return False
            self._pause(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        return True

    def _key(self, topic: str, rank: int) -> str:
        return f"{self._prefix}/{topic}/{rank}"


def open_exchange(distributed: Any, registry: str) -> Exchange:
    """Return the exchange of a registry for the default process group, with its own connection from torch 2.6 on."""
    store, rank = default_store(distributed), distributed.get_rank()
    # Under torchrun the agent keeps the store, else rank 0 does.
    hosts_store = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() != "true"
    own = store.clone() if hasattr(store, "clone") else store
    return Exchange(own, rank, distributed.get_world_size(), registry, hosts_store=hosts_store)


logger = logging.getLogger("tracekit")


class RankReports:
    """The other ranks, as one registry of timers sees them. ``timeout_s`` limits the wait of a report for them."""

    def __init__(
        self, registry: str, log_level: int, timeout_s: float, make_marker: Callable[[str, tuple[str, ...]], Marker]
    ) -> None:
        self.warn = WarnOnce("tracekit: timers: ")
        self._registry = registry
        self._log_level = log_level
        self._timeout_s = timeout_s
        self._make_marker = make_marker
        self._exchange: Exchange | None = None
        self._store: Any = None
        self._opened = 0  # under torchrun a later process group of the process may have the values of an earlier one
        self._missing: set[int] = set()  # ranks that a warning has named

    @property
    def place(self) -> tuple[int, int]:
        """This rank, and the number of ranks."""
        distributed = process_group()
        return (0, 1) if distributed is None else (distributed.get_rank(), distributed.get_world_size())

    # ---- reports ----------------------------------------------------------------------------------------------------

    def collect(
        self, report: str, own: Any, *, reads: bool | None = None, step: object = None, timeout_s: float | None = None
    ) -> tuple[dict[int, Any], list[int]] | None:
        """Send this rank's values for a report, and return those of all ranks and the missing ranks if this rank reads them.

        All ranks make the same reports in the same order; a training step matches them better. ``own`` is a JSON
        value. Where ``reads`` is None all ranks read: then rank 0 does, and forwards the values, since the store
        would have to answer the square of the number of ranks otherwise. Values that may be of an earlier report are
        left out.

        Raises:
            TimerError: The store cannot be reached.
        """
        distributed = process_group()
        if distributed is None:
            return None if reads is False else ({0: own}, [])
        rank, world_size = self.place
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        found: dict[int, Any] = {}
        try:
            exchange = self._current(distributed)
            topic, number = exchange.next_topic(report, step)
            exchange.put(topic, [number, own], reads=reads is not False)
            if reads is None and rank != 0:
                forwarded = exchange.read(f"{topic}/all", timeout_s + _FORWARDING_S, [0])
                found = dict(forwarded[0]) if forwarded else {rank: own}
                if rank not in found:  # rank 0 had this rank's earlier values, so those that it forwards are old
                    self._warn_of_order(report, [*found])
                    found = {rank: own}
            elif reads is not False:
                found = self._current_values(report, number, exchange.read(topic, timeout_s))
                if reads is None:
                    exchange.put(f"{topic}/all", list(found.items()), reads=False)
            if reads is not False:
                exchange.acknowledge(topic)
            exchange.wait_for_readers(topic, timeout_s)
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            raise TimerError(f"the other ranks' timers cannot be read: {type(error).__name__}: {reason}") from error
        return None if reads is False else (found, [other for other in range(world_size) if other not in found])

    def sums(
        self, report: str, own: dict[str, int], *, reads: bool | None = None, step: object = None
    ) -> dict[int, dict[str, int]] | None:
        """Do `collect` for sums in ns by name. Never raises: missing ranks are logged once and left out."""
        try:
            collected = self.collect(report, own, reads=reads, step=step)
        except TimerError as error:
            self.warn("store", f"{error}; the reports are of this rank alone")
            return None if reads is False else {self.place[0]: own}
        if collected is None:
            return None
        found, missing = collected
        self._missing &= set(missing)
        if not self._missing >= set(missing):
            self._missing.update(missing)
            logger.warning(
                "tracekit: timers: rank %s did not report within %g s, and is not in the report. Every rank has to call it, "
                "also where it has no writer; Timers that are made in another place there need the same name=",
                ranks_text(missing),
                self._timeout_s,
            )
        return found

    def _current_values(self, report: str, number: int, values: dict[int, Any]) -> dict[int, Any]:
        """Leave out the values of a rank that had made fewer reports than this one has now: they may be old.

        A call that only another rank has made leaves its values behind, and the next call here would find them. A rank that
        has made more reports is not behind. This works only if the ranks also make other reports.
        """
        old = [rank for rank, (calls, _) in values.items() if calls < number]
        if old:
            self._warn_of_order(report, old)
        return {rank: value for rank, (_, value) in values.items() if rank not in old}

    def _warn_of_order(self, report: str, ranks: list[int]) -> None:
        self._missing.update(ranks)  # they have reported, so no other warning is to name them
        self.warn(
            ("order", report),
            f"the ranks have called this a different number of times, or some too late ({report}): what rank "
            f"{ranks_text(ranks)} has reported may be old, and is left out. Every rank has to make all reports",
        )

    def _current(self, distributed: Any) -> Exchange:
        store = default_store(distributed)
        if self._exchange is None or store is not self._store:
            self._exchange, self._store = open_exchange(distributed, f"{self._registry}/{self._opened}"), store
            self._opened += 1
        return self._exchange

    # ---- barriers ---------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Tell the other ranks the level of this one, before a barrier that it does not join."""
        if (distributed := process_group()) is not None:
            with suppress(Exception):  # a rank that waits for this logs it
                self._current(distributed).announce(self._log_level)

    def barrier(self, name: str, level: int, group: Any) -> None:
        """Wait for the other ranks of a group at a timer of a level. Without torch.distributed, return immediately.

        Where a rank's level switches the timer off, that rank does not come; then nobody waits, and a warning says so
        once. At the first barrier, a rank that has not come to any within 10 minutes raises `TimerError`. Later ones
        are torch's, and end with its own timeout.
        """
        distributed = process_group()
        if distributed is None:
            return
        ranks = list(range(self.place[1])) if group is None else distributed.get_process_group_ranks(group)
        levels: dict[int, int] | None = None
        try:
            exchange = self._current(distributed)
            exchange.announce(self._log_level)
            levels = exchange.levels(ranks, _LEVEL_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - torch's errors have no class in common in all its versions
            self.warn("levels", f"the levels of the other ranks cannot be read: {type(error).__name__}: {error}")
        if levels is not None and (missing := sorted(set(ranks) - set(levels))):
            raise TimerError(
                f"the barrier of timer {name!r}: rank {ranks_text(missing)} has not come to any barrier of the timers "
                f"within {_LEVEL_TIMEOUT_S:g} s; all ranks of the barrier group have to"
            )
        if off := [rank for rank, log_level in (levels or {}).items() if log_level < level]:
            self.warn(
                ("barrier", name),
                f"timer {name!r} has level {level} and is off on rank {ranks_text(off)}, so that its barrier would wait for "
                "ever; it is left out. Give all ranks the same log_level.",
            )
        else:
            wait_at_barrier(name, group, self._make_marker)

    def barrier_of_all(self) -> None:
        """Wait for all ranks."""
        if (distributed := process_group()) is not None:
            distributed.barrier()


def wait_at_barrier(name: str, group: Any, make_marker: Callable[[str, tuple[str, ...]], Marker]) -> None:
    """Wait for the ranks of a group at torch's barrier. Without torch.distributed, return immediately."""
    if (distributed := process_group()) is not None:
        # Ranks leave a barrier at different moments (Megatron-LM#742); the slice shows by how much.
        with make_marker(f"{name} (barrier)", (_BARRIER,)):
            distributed.barrier(group=group)


def ranks_text(ranks: Sequence[int]) -> str:
    """Return the numbers of ranks as text; of many, the first ones."""
    shown = ", ".join(map(str, ranks[:10]))
    return shown if len(ranks) <= 10 else f"{shown} and {len(ranks) - 10} more"
