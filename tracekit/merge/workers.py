"""Processes that work for a merge, and what ends them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, ParamSpec, TypeVar

from tracekit.merge.inputs import find_inputs
from tracekit.processors import usable_processors
from tracekit.storage import is_remote, size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

__all__ = ["ProcessPool", "fitting_pool", "prepare_worker", "process_pool", "without_interrupts"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_MOST_WORKERS: Final = 8
"""So many are started unasked at most: each takes some 45 MB, and the disk wants to be shared."""
_WORTH_BYTES: Final = {"fork": 64_000_000, "spawn": 512_000_000}
"""From this size on, unpacked, a second process saves more than its start costs: some milliseconds, or half a second."""
_PACKED_TO: Final = 8
"""How many times as large traces are unpacked, about."""


def process_pool(workers: int) -> ProcessPool:
    """Return an executor of new processes, for `tracekit.merge.merge_traces`.

    They are copies of this process (fork) where it has no other thread, which could hold a lock for ever in a copy; that
    takes some milliseconds. Else they are started anew (spawn), and a program must not start its work when it is imported
    (``if __name__ == "__main__":``).

    Args:
        workers: How many processes.
    """
    return ProcessPool(workers)


@contextlib.contextmanager
def fitting_pool(output: str, inputs: Sequence[str]) -> Iterator[ProcessPool | None]:
    """Start the processes that a merge is faster with, for the time of a ``with``: one for each processor, none for small inputs.

    For programs that may be started anew without doing their work again; see `process_pool`.

    Args:
        output: As of `tracekit.merge.merge_traces`.
        inputs: As of `tracekit.merge.merge_traces`.

    Yields:
        The executor; None where one process does as well, where files are not on this machine, or where none can be started.

    Raises:
        ConfigError: Nothing was named, or the output is one of the inputs.
        StorageError: An input is not there.
    """
    workers = _fitting_workers(output, inputs)
    pool = None
    if workers > 1:
        # What forbids processes, or the locks between them, forbids no merge.
        with contextlib.suppress(OSError, NotImplementedError):
            pool = ProcessPool(workers)
    if pool is None:
        yield None
        return
    with pool:
        yield pool


def _fitting_workers(output: str, inputs: Sequence[str]) -> int:
    if any(map(is_remote, (output, *inputs))):
        return 1
    paths = [path for path, _ in find_inputs(output, inputs)]
    sizes = (size_bytes(path) or 0 for path in paths)
    unpacked = sum(size * (_PACKED_TO if path.endswith(".gz") else 1) for path, size in zip(paths, sizes, strict=True))
    return min(len(paths), usable_processors(), _MOST_WORKERS) if unpacked >= _WORTH_BYTES[_start_method()] else 1


class ProcessPool(ProcessPoolExecutor):
    """Processes of this machine. They leave Ctrl-C, which reaches all of the terminal, to the one that started them.

    Attributes:
        workers: How many they are.

    Args:
        workers: How many processes are started.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        context = multiprocessing.get_context(_start_method())
        super().__init__(max_workers=workers, mp_context=context, initializer=prepare_worker)
        # At once, while it is as it was found: forked, if at all, before there are threads.
        self.submit(int)

    def submit(
        self, fn: Callable[_Arguments, _Result], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> Future[_Result]:
        """Give work to the next process that is free."""
        # It may start a process, which inherits what is blocked: a worker that is just starting would print a traceback.
        with without_interrupts():
            return super().submit(fn, *args, **kwargs)


def _start_method() -> Literal["fork", "spawn"]:
    """Return "fork" where this process has no other thread, not even one that Python knows nothing of."""
    # Before 3.11 some processes would be forked later, from a process that then has threads.
    if sys.platform != "linux" or sys.version_info < (3, 11):
        return "spawn"
    try:
        return "fork" if len([*Path("/proc/self/task").iterdir()]) == 1 else "spawn"
    except OSError:
        return "spawn"


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back from this thread, and from every process that it starts meanwhile."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare_worker() -> None:
    """Have this process, which another one has spawned, leave Ctrl-C to that one, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    """End this process when the one that started it is gone: nobody will ever ask it for anything again."""
    wait([sentinel])
    os._exit(1)
