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

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class ProcessPool(ProcessPoolExecutor):
    """An executor of new processes on this machine, such as for `tracekit.merge.merge_traces`.

    If this process has no other thread, which could leave a lock held in the copy, it forks the processes in some milliseconds.
    Otherwise they are spawned, and a program must not start its work when it is imported (``if __name__ == "__main__":``).
    The processes ignore Ctrl-C, which reaches all processes of a terminal.

    Attributes:
        workers: The number of processes, including the one that starts them.

    Args:
        workers: As the attribute. At least one process is started.
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
        """Run a call in the next free process."""
        # This may start a process. It inherits the blocked signals; otherwise, Ctrl-C would print a traceback at its start.
        with without_interrupts():
            return super().submit(fn, *args, **kwargs)


process_pool = ProcessPool


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
