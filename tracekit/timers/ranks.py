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
from tracekit.wording import rank_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.recording.marker import Marker

logger = logging.getLogger("tracekit")

MAX_NAMED: Final = 10  # spans of ranks that a message names
_READ: Final = "/read"
_LEVEL: Final = "level"
_MAX_KEPT: Final = 32  # Values of a rank that stay in the store. A reader is never that far behind the others.
_MAX_STEPS: Final = 256  # steps that are remembered, more than there are values in the store: one may come again
_LATE_S: Final = 0.05  # timeout for a rank that was missing the last time
_FIRST_PAUSE_S: Final = 0.0005
_MAX_PAUSE_S: Final = 0.05
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


class RankReports:
    """The other ranks, as one registry of timers sees them. ``timeout_s`` limits the wait of a report for them.

    A value in the store belongs to a topic, which is the same on all ranks and new each time, and to a rank. Not thread-safe.
    """

    def __init__(
        self, registry: str, log_level: int, timeout_s: float, make_marker: Callable[[str, tuple[str, ...]], Marker]
    ) -> None:
        self.warn = WarnOnce("tracekit: timers: ")
        self._registry = registry
        self._log_level = log_level
        self._timeout_s = timeout_s
        self._make_marker = make_marker
        self._missing: set[int] = set()  # ranks that a warning has named
        self._default_store: Any = None
        self._opened = 0  # under torchrun a later process group of the process may have the values of an earlier one

    def _connect(self, distributed: Any) -> None:
        """Use the store of the default process group, by a connection of its own from torch 2.6 on."""
        store = default_store(distributed)
        if store is self._default_store:
            return
        self._default_store = store
        self._store = store.clone() if hasattr(store, "clone") else store
        self._prefix = f"tracekit/timers/{self._registry}/{self._opened}"
        self._opened += 1
        self._rank, self._ranks = distributed.get_rank(), range(distributed.get_world_size())
        # Under torchrun the agent keeps the store. Else rank 0 does, and the store ends with it.
        self._hosts_store = self._rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() != "true"
        self._kept: deque[str] = deque()  # keys of this rank
        self._absent: set[int] = set()
        self._levels: dict[int, int] = {}  # of the timers of ranks
        self._calls = 0  # reports that are matched by their order
        self._counts: dict[str, int] = {}  # by report
        self._step_counts: dict[str, int] = {}  # by report and step

    @property
    def place(self) -> tuple[int, int]:
        """This rank, and the number of ranks."""
        distributed = process_group()
        return (0, 1) if distributed is None else (distributed.get_rank(), distributed.get_world_size())

    # ---- reports ----------------------------------------------------------------------------------------------------

    def collect(
        self, report: str, own: Any, *, reads: bool | None = None, step: object = None, timeout_s: float | None = None
    ) -> tuple[dict[int, Any], list[int]]:
        """Send this rank's values, of JSON, and return those of all ranks and the missing ranks; empty where it does not read.

        All ranks make the same reports in the same order; a training step matches them better. Values that may be of an
        earlier report are left out. Where ``reads`` is None all ranks read: then rank 0 does, and forwards the values,
        since the store would have to answer the square of the number of ranks otherwise.

        Raises:
            TimerError: The store cannot be reached.
        """
        distributed = process_group()
        if distributed is None:
            return ({} if reads is False else {0: own}), []
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        found: dict[int, Any] = {}
        try:
            self._connect(distributed)
            topic = self._next_topic(report, step)
            number = self._calls if step is None else 0
            self._put(topic, [number, own], reads=reads is not False)
            if reads is None and self._rank != 0:
                forwarded = self._read(f"{topic}/all", timeout_s + _FORWARDING_S, [0])
                found = dict(forwarded[0][1]) if forwarded else {self._rank: own}
                if self._rank not in found:  # rank 0 had earlier values of this one, so those that it forwards are old
                    self._warn_of_order(report, found)
                    found = {self._rank: own}
            elif reads is not False:
                # A call that only another rank has made leaves its values behind, and the next call here would find them. A
                # rank that has made fewer reports than this one may be behind. It shows only if they also make other reports.
                values = {rank: value for rank, (_, value) in self._read(topic, timeout_s, self._ranks).items()}
                found = {rank: value for rank, (calls, value) in values.items() if calls >= number}
                if len(found) < len(values):
                    self._warn_of_order(report, set(values) - set(found))
                if reads is None:
                    self._put(f"{topic}/all", list(found.items()), reads=False)
            if reads is not False:
                self._store.set(self._key(topic, self._rank) + _READ, b"")
            if self._hosts_store:
                self._wait_for_readers(topic, timeout_s)
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            raise TimerError(f"the other ranks' timers cannot be read: {type(error).__name__}: {reason}") from error
        return found, [rank for rank in self._ranks if reads is not False and rank not in found]

    def sums(
        self, report: str, own: dict[str, int], *, reads: bool | None = None, step: object = None
    ) -> dict[int, dict[str, int]]:
        """Do `collect` for sums in ns by name. Missing ranks are logged once; nothing raises."""
        try:
            found, missing = self.collect(report, own, reads=reads, step=step)
        except TimerError as error:
            self.warn("store", f"{error}; the reports are of this rank alone")
            return {} if reads is False else {self.place[0]: own}
        if reads is not False:
            self._missing &= set(missing)
        if not self._missing >= set(missing):
            self._missing.update(missing)
            logger.warning(
                "tracekit: timers: %s did not report within %g s, and is not in the report. Every rank has to call it, "
                "also where it has no writer; Timers that are made in another place there need the same name=",
                rank_spans(missing, most=MAX_NAMED),
                self._timeout_s,
            )
        return found

    def _next_topic(self, report: str, step: object) -> str:
        self._calls += step is None
        counts, key = (self._counts, report) if step is None else (self._step_counts, f"{report}/step {step}")
        counts[key] = counts.get(key, -1) + 1
        if len(self._step_counts) > _MAX_STEPS:
            del self._step_counts[next(iter(self._step_counts))]
        return f"{key}/{counts[key]}"

    def _warn_of_order(self, report: str, ranks: Iterable[int]) -> None:
        self._missing.update(ranks)  # they have reported, so no other warning is to name them
        self.warn(
            ("order", report),
            f"the ranks have called this a different number of times, or some too late ({report}): the values of "
            f"{rank_spans(ranks, most=MAX_NAMED)} may be old, and are left out. Every rank has to make all reports",
        )

    # ---- the store --------------------------------------------------------------------------------------------------

    def _put(self, topic: str, value: object, *, reads: bool) -> None:
        """Put this rank's value, of JSON, into the store, and whether it will read those of the others. Does not wait."""
        key = self._key(topic, self._rank)
        self._store.set(key, json.dumps([reads, value]))
        self._kept.append(key)
        if len(self._kept) > _MAX_KEPT:
            old = self._kept.popleft()
            self._store.delete_key(old)
            self._store.delete_key(old + _READ)

    def _read(self, topic: str, timeout_s: float, ranks: Iterable[int]) -> dict[int, tuple[bool, Any]]:
        """Return, by rank, whether it reads, and its value. A rank that was missing the last time has a shorter timeout."""
        keys = {rank: self._key(topic, rank) for rank in sorted(ranks)}
        until_s = time.monotonic() + timeout_s
        are_present = self._wait([key for rank, key in keys.items() if rank not in self._absent], until_s)
        if late := [key for rank, key in keys.items() if rank in self._absent]:
            are_present = self._wait(late, min(until_s, time.monotonic() + _LATE_S)) and are_present
        present = keys if are_present else {rank: key for rank, key in keys.items() if self._store.check([key])}
        self._absent = (self._absent - set(present)) | (set(keys) - set(present))
        if self._store.has_extended_api():
            values = self._store.multi_get(list(present.values()))
        else:
            values = [self._store.get(key) for key in present.values()]
        return dict(zip(present, map(json.loads, values), strict=True))

    def _wait_for_readers(self, topic: str, timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        readers = [rank for rank, (reads, _) in self._read(topic, timeout_s, self._ranks).items() if reads]
        self._wait([self._key(topic, rank) + _READ for rank in readers], until_s)

    def _wait(self, keys: list[str], until_s: float) -> bool:
        """Wait until all keys are there. Polls, because torch's own wait cannot be interrupted."""
        pause_s = _FIRST_PAUSE_S
        while keys and not self._store.check(keys):
            if time.monotonic() >= until_s:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        return True

    def _key(self, topic: str, rank: int) -> str:
        return f"{self._prefix}/{topic}/{rank}"

    # ---- barriers ---------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Tell the other ranks the level of this one, before a barrier that it does not join."""
        if (distributed := process_group()) is not None:
            with suppress(Exception):  # a rank that waits for this logs it
                self._announce(distributed)

    def _announce(self, distributed: Any) -> None:
        self._connect(distributed)
        if self._rank not in self._levels:
            # Unlike other values it stays in the store: any later barrier reads it.
            self._store.set(self._key(_LEVEL, self._rank), json.dumps([True, self._log_level]))
            self._levels[self._rank] = self._log_level

    def barrier(self, name: str, level: int, group: Any) -> None:
        """Wait for the other ranks of a group at a timer of a level. Without torch.distributed, return immediately.

        Where a rank's level switches the timer off, that rank does not come; then nobody waits, and a warning says so
        once. At the first barrier, a rank that has not come to any within 10 minutes raises `TimerError`. Later ones
        are torch's, and end with its own timeout.
        """
        distributed = process_group()
        if distributed is None:
            return
        missing, off = [], []
        try:
            self._announce(distributed)
            ranks = self._ranks if group is None else distributed.get_process_group_ranks(group)
            if unknown := [rank for rank in ranks if rank not in self._levels]:
                found = self._read(_LEVEL, _LEVEL_TIMEOUT_S, unknown)
                self._levels |= {rank: log_level for rank, (_, log_level) in found.items()}
            missing = [rank for rank in ranks if rank not in self._levels]
            off = [rank for rank in ranks if self._levels.get(rank, level) < level]
        except Exception as error:  # noqa: BLE001 - torch's errors have no class in common in all its versions
            self.warn("levels", f"the levels of the other ranks cannot be read: {type(error).__name__}: {error}")
        if missing:
            raise TimerError(
                f"the barrier of timer {name!r}: {rank_spans(missing, most=MAX_NAMED)} has not come to any barrier of the "
                f"timers within {_LEVEL_TIMEOUT_S:g} s; all ranks of the barrier group have to"
            )
        if off:
            self.warn(
                ("barrier", name),
                f"timer {name!r} has level {level} and is off on {rank_spans(off, most=MAX_NAMED)}, so that its barrier "
                "would wait for ever; it is left out. Give all ranks the same log_level.",
            )
        else:
            wait_at_barrier(name, group, self._make_marker)


def wait_at_barrier(name: str, group: Any, make_marker: Callable[[str, tuple[str, ...]], Marker]) -> None:
    """Wait for the ranks of a group at torch's barrier. Without torch.distributed, return immediately."""
    if (distributed := process_group()) is not None:
        # Ranks leave a barrier at different moments (Megatron-LM#742); the slice shows by how much.
        with make_marker(f"{name} (barrier)", ("barrier",)):
            distributed.barrier(group=group)
