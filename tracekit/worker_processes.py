"""Worker processes on this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from tracekit.processors import start_method

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

__all__ = ["ProcessPool", "prepare_worker", "process_pool", "without_interrupts"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def process_pool(workers: int) -> ProcessPool:
    """Return an executor of new processes, such as for `tracekit.merge.merge_traces`.

    The processes are forked where this process has no other thread, which could leave a lock held in the copy; that takes some
    milliseconds. Otherwise they are spawned, and a program must not start its work when it is imported
    (``if __name__ == "__main__":``).

    Args:
        workers: The number of processes, this one included.
    """
    return ProcessPool(workers)


class ProcessPool(ProcessPoolExecutor):
    """Processes of this machine. They ignore Ctrl-C, which reaches all processes of a terminal.

    Attributes:
        workers: The number of processes, the one that starts them included.

    Args:
        workers: As the attribute. One process at least is started.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        context = multiprocessing.get_context(start_method())
        super().__init__(max_workers=max(1, workers - 1), mp_context=context, initializer=prepare_worker)
        # Fork now, before this process starts threads.
        self.submit(int)

    def submit(
        self, fn: Callable[_Arguments, _Result], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> Future[_Result]:
        """Give a call to the next free process."""
        # It may start a process, which inherits blocked signals: a starting worker would print a traceback.
        with without_interrupts():
            return super().submit(fn, *args, **kwargs)


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Block Ctrl-C for this thread, and for every process that it starts meanwhile."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare_worker() -> None:
    """Make this process ignore Ctrl-C, and end with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    """End this process when the one that started it is gone."""
    wait([sentinel])
    os._exit(1)
