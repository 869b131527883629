"""How ranks hand each other their timers: through the store of torch.distributed, where nobody ever waits for ever.

Megatron gathers by a collective on the GPU, which hangs as soon as one rank does not take part in it, and nothing can be said
about who that is. Here every rank puts its values into the store (the table of short values that torch.distributed keeps
beside its process groups) and goes on; who reports reads those of all ranks, waits for a given time at most, and knows which
ranks are missing. No collective is started, so nothing can get out of step with those of the training.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Exchange", "Store", "default_store", "open_exchange", "process_group"]

_PREFIX: Final = "tracekit/timers"
_READ: Final = "/read"
_KEPT: Final = 32
"""So many values of a rank stay in the store; older ones are taken out. A reader is never that far behind the others."""

_LATE_S: Final = 0.05
"""How long a rank is waited for that was missing the last time."""

_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.05


class Store(Protocol):
    """What is used of torch's ``Store``."""

    def set(self, key: str, value: bytes | str, /) -> None:
        """Set a value."""

    def get(self, key: str, /) -> bytes:
        """Return a value."""

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Return values."""

    def check(self, keys: list[str], /) -> bool:
        """Tell whether there are values for all of these keys."""

    def delete_key(self, key: str, /) -> bool:
        """Forget a value."""

    def has_extended_api(self) -> bool:
        """Tell whether there is `multi_get`."""


def process_group() -> Any:
    """Return ``torch.distributed`` if there is a default process group of more than one rank. Never imports torch."""
    module: Any = sys.modules.get("torch.distributed")
    try:
        if module is not None and module.is_available() and module.is_initialized() and module.get_world_size() > 1:
            return module
    except (AttributeError, RuntimeError, ValueError):
        pass  # half imported, or a fake process group without ranks
    return None


def default_store(distributed: Any) -> Any:
    """Return the store of the default process group; ``distributed`` is ``torch.distributed``."""
    return distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - torch offers it under no other name


class Exchange:
    """The values of one registry of timers, by rank. One thread at a time.

    Args:
        store: Where they are put.
        rank: This rank.
        world_size: How many there are.
        registry: Which registry it is; the same on all ranks, and different for each process group.
        hosts_store: Whether the store ends with this process. It then waits (for a limited time) until all have read.
        monotonic_s: The clock; for tests.
        pause: Waits for so many seconds; for tests.
    """

    def __init__(
        self,
        store: Store,
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
        self._prefix = f"{_PREFIX}/{registry}"
        self._put: deque[str] = deque()
        self._absent: set[int] = set()

    def put(self, topic: str, value: bytes, *, reads: bool, lasting: bool = False) -> None:
        """Put this rank's value of a topic into the store. Does not wait.

        Args:
            topic: What it is; the same on all ranks, and different each time.
            value: The value.
            reads: Whether this rank is going to `read` the others'.
            lasting: Keep it there.
        """
        key = self._key(topic, self.rank)
        self._store.set(key, (b"+" if reads else b"-") + value)
        if lasting or key in self._put:  # a report for the same step, once more
            return
        self._put.append(key)
        if len(self._put) > _KEPT:
            old = self._put.popleft()
            self._store.delete_key(old)
            self._store.delete_key(old + _READ)

    def read(self, topic: str, timeout_s: float, ranks: Iterable[int] | None = None) -> dict[int, bytes]:
        """Return the values of a topic by rank, those of ranks that are there within a time.

        A rank that was missing the last time is waited for much shorter, until it is there again.
        """
        found = self._collect(topic, timeout_s, sorted(range(self.world_size) if ranks is None else ranks))
        return {rank: value[1:] for rank, value in found.items()}

    def acknowledge(self, topic: str) -> None:
        """Tell who keeps the store that this rank has read."""
        self._store.set(self._key(topic, self.rank) + _READ, b"")

    def wait_for_readers(self, topic: str, timeout_s: float) -> None:
        """Wait until those have read who are going to, if the store ends with this process."""
        if not self._hosts_store:
            return
        until_s = self._monotonic_s() + timeout_s
        found = self._collect(topic, timeout_s, range(self.world_size))
        readers = [rank for rank, value in found.items() if value[:1] == b"+" and rank != self.rank]
        if readers:
            self._wait([self._key(topic, rank) + _READ for rank in readers], until_s)

    def _collect(self, topic: str, timeout_s: float, ranks: Sequence[int]) -> dict[int, bytes]:
        keys = {rank: self._key(topic, rank) for rank in ranks}
        until_s = self._monotonic_s() + timeout_s
        there = self._wait([key for rank, key in keys.items() if rank not in self._absent], until_s)
        late = [key for rank, key in keys.items() if rank in self._absent]
        if late:
            there = self._wait(late, min(until_s, self._monotonic_s() + _LATE_S)) and there
        present = keys if there else {rank: key for rank, key in keys.items() if self._store.check([key])}
        self._absent = (self._absent - set(present)) | (set(keys) - set(present))
        return dict(zip(present, self._values(list(present.values())), strict=True))

    def _values(self, keys: list[str]) -> list[bytes]:
        if self._store.has_extended_api():
            return self._store.multi_get(keys)
        return [self._store.get(key) for key in keys]

    def _wait(self, keys: list[str], until_s: float) -> bool:
        """Wait until all keys are there. By looking again and again: torch's own wait cannot be interrupted."""
        pause_s = _FIRST_PAUSE_S
        while keys and not self._store.check(keys):
            if self._monotonic_s() >= until_s:
                return False
            self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return True

    def _key(self, topic: str, rank: int) -> str:
        return f"{self._prefix}/{topic}/{rank}"


def open_exchange(distributed: Any, registry: str) -> Exchange:
    """Return an exchange of a registry for the default process group; see `Exchange`.

    It has a connection of its own where torch has that (from 2.6 on).
    """
    store, rank = default_store(distributed), distributed.get_rank()
    # Under torchrun the agent keeps the store, else rank 0 does.
    hosts_store = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() != "true"
    own = store.clone() if hasattr(store, "clone") else store
    return Exchange(own, rank, distributed.get_world_size(), registry, hosts_store=hosts_store)
