"""Run long work: one process for each piece, a few at a time, once for each key, with progress."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from tracekit.errors import TracekitError
from tracekit.structs import Struct, field
from tracekit.worker_processes import prepare_worker, without_interrupts

WAITING: Final = "waiting"
RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"

_MAX_KEPT: Final = 256
_MAX_WAITING: Final = 32
_MAX_S: Final = 3600.0
_END_S: Final = 5.0


class Job(Struct):
    """A piece of work."""

    share: float = 0.0  # share that is done, 0 to 1
    doing: str = ""  # the present activity
    ended_ns: int = 0  # time of its end on the monotonic clock
    future: Future[Any] = field(default_factory=Future)  # its result or error

    @property
    def state(self) -> str:
        """WAITING, RUNNING, DONE or FAILED."""
        if self.future.done():
            return FAILED if self.future.cancelled() or self.future.exception() else DONE
        return RUNNING if self.future.running() else WAITING

    @property
    def ended(self) -> bool:
        """True if it is DONE or has FAILED."""
        return self.future.done()

    @property
    def result(self) -> Any:
        """The result of one that is DONE."""
        return self.future.result()

    @property
    def error(self) -> str:
        """The reason of one that has FAILED, for people."""
        return str(self.future.exception()) if self.state == FAILED and not self.future.cancelled() else ""


class Jobs:
    """Starts work, two pieces at a time, and keeps its results, until `close`. Any thread may use it.

    Work runs in spawned processes, so that it can be ended at any moment and a trace that breaks it breaks nothing else.
    """

    def __init__(self, at_once: int = 2) -> None:
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="tracekit serve work")
        self._context = multiprocessing.get_context("spawn")
        self._lock = threading.Lock()
        self._jobs: OrderedDict[Hashable, Job] = OrderedDict()
        self._closing = threading.Event()

    def find(self, key: Hashable) -> Job | None:
        """Return the job of a key, if there is one."""
        with self._lock:
            return self._jobs.get(key)

    def start(self, key: Hashable, function: Callable[..., Any], *arguments: Any, again: bool = False) -> Job:
        """Return the job of a key, and start it unless there is one, or ``again`` if it has ended.

        The function is called in another process with the arguments, and with ``progress``: a function of a share and words.
        """
        with self._lock:
            job = self._jobs.get(key)
            if job is None or (again and job.ended):
                job = Job()
                waiting = sum(one.state == WAITING for one in self._jobs.values())
                if self._closing.is_set() or waiting >= _MAX_WAITING:
                    job.future.set_exception(TracekitError("too much is being done already; try again in a while"))
                    return job
                job.future = self._threads.submit(self._run, job, function, arguments)
                self._jobs[key] = job
            self._jobs.move_to_end(key)
            for old in [old for old, one in self._jobs.items() if one.ended][: max(0, len(self._jobs) - _MAX_KEPT)]:
                del self._jobs[old]
            return job

    def close(self) -> None:
        """End all work, and wait until its threads and processes are gone."""
        self._closing.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    # ---- in a thread ----------------------------------------------------------------------------------------------------

    def _run(self, job: Job, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        ours, theirs = self._context.Pipe(duplex=False)
        work = (theirs, function, arguments)
        process = self._context.Process(target=_work, args=work, name="tracekit serve work", daemon=True)
        with ours:
            try:
                with theirs, without_interrupts():
                    process.start()
                result = self._follow(job, ours, process.sentinel)
                process.join(_END_S)
            except Exception as error:
                raise TracekitError(_reason(error)) from error
            else:
                return result
            finally:
                job.ended_ns = time.monotonic_ns()
                for end in (process.terminate, process.kill):
                    if process.pid is not None and process.is_alive():
                        end()
                        process.join(_END_S)
                process.close()

    def _follow(self, job: Job, ours: Connection, sentinel: int) -> Any:
        deadline_s = time.monotonic() + _MAX_S
        while not self._closing.is_set():
            ready = wait([ours, sentinel], 0.2)
            if ready:
                try:
                    # Children of a dead process may still hold the other end open.
                    kind, *said = ours.recv() if ours in ready else ("died",)
                except (EOFError, OSError, pickle.UnpicklingError):
                    kind, said = "died", []
                if kind == "result":
                    return said[0]
                if kind != "progress":
                    raise TracekitError(*said or ("the process that did this has died; is there enough memory?",))
                job.share, job.doing = said
            if time.monotonic() > deadline_s:
                raise TracekitError(f"it was given up after {_MAX_S / 60:.0f} minutes")
        raise TracekitError("the server is being stopped")


# ---- in the process -----------------------------------------------------------------------------------------------------


def _work(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Do a piece of work, and send its progress and result."""
    prepare_worker()
    # Exits in good order, so that temporary files are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sent_s = 0.0

    def progress(share: float, doing: str) -> None:
        nonlocal sent_s
        if time.monotonic() - sent_s >= 0.1:
            sent_s = time.monotonic()
            connection.send(("progress", min(1.0, max(0.0, share)), doing))

    with contextlib.suppress(BrokenPipeError):
        try:
            said = ("result", function(*arguments, progress=progress))
        except Exception as error:  # noqa: BLE001 - see above
            said = ("error", _reason(error))
        connection.send(said)


def _reason(error: Exception) -> str:
    expected = isinstance(error, TracekitError)
    return str(error) if expected else f"unexpected {type(error).__name__}: {error}; please report this"
