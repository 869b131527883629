"""Processes that work for a merge, and what ends them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor, Future

__all__ = ["process_pool"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def process_pool(workers: int) -> Executor:
    """Return an executor of new processes, for `tracekit.merge.merge_traces`.

    The processes are spawned, not forked, so that threads and locks of the caller do not matter. A program that uses it
    must not start its work when it is imported (``if __name__ == "__main__":``).

    Args:
        workers: How many processes.
    """
    return _Pool(max_workers=workers, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare_worker)


class _Pool(ProcessPoolExecutor):
    """A pool whose processes leave Ctrl-C, which reaches all of the terminal, to the one that started them."""

    def submit(
        self, fn: Callable[_Arguments, _Result], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> Future[_Result]:
        # It may start a process, which inherits what is blocked: a worker that is just starting would print a traceback.
        with _without_interrupts():
            return super().submit(fn, *args, **kwargs)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    """End this process when the one that started it is gone: nobody will ever ask it for anything again."""
    wait([sentinel])
    os._exit(1)
