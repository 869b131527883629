"""Exchange: pass the timers of the ranks through the store of torch.distributed, with a limit on every wait.

Megatron gathers by a collective on the GPU, which hangs as soon as one rank does not take part, without naming it. Here every
rank puts its values into the store (the table of short values that torch.distributed keeps for its process groups) and goes
on. The rank that reports reads those of all ranks, waits for a limited time, and knows which ranks are missing. No collective
is started, so nothing can get out of step with those of the training.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from tracekit.distributed import torch_process_group
from tracekit.sources.clock_exchange import default_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_READ: Final = "/read"
_LEVEL_TOPIC: Final = "level"
_MAX_KEPT: Final = 32  # Values of a rank that stay in the store. A reader is never that far behind the others.
_MAX_STEPS: Final = 256  # steps that are remembered, more than there are values in the store: one may come again
_LATE_S: Final = 0.05  # timeout for a rank that was missing the last time
_FIRST_PAUSE_S: Final = 0.0005
_MAX_PAUSE_S: Final = 0.05


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
        """Put this rank's value of a topic into the store. Does not wait.

        Args:
            topic: Name of the value; the same on all ranks, and different each time.
            value: A JSON value.
            reads: True if this rank will `read` the others' values.
            lasting: Keep it in the store.
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
