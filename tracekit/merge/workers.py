"""Processes that work for a merge, and what ends them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait

__all__ = ["process_pool"]


def process_pool(workers: int) -> ProcessPoolExecutor:
    """Return an executor of new processes, for `tracekit.merge.merge_traces`.

    The processes are spawned, not forked, so that threads and locks of the caller do not matter. A program that uses it
    must not start its work when it is imported (``if __name__ == "__main__":``).

    Args:
        workers: How many processes.
    """
    return ProcessPoolExecutor(
        max_workers=workers, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare_worker
    )


def _prepare_worker() -> None:
    # Ctrl-C reaches every process of the terminal; the one that merges tells the others what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    """End this process when the one that started it is gone: nobody will ever ask it for anything again."""
    wait([sentinel])
    os._exit(1)
