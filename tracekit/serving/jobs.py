"""Long work: each piece in a process of its own, few at a time, once for each key, with its progress."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import sys
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import TracekitError
from tracekit.merge.workers import prepare_worker, without_interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from multiprocessing.connection import Connection

    Progress = Callable[[float, str], None]

__all__ = ["DONE", "FAILED", "RUNNING", "WAITING", "Job", "Jobs"]

WAITING: Final = "waiting"
RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"

_MOST_KEPT: Final = 256
_MOST_WAITING: Final = 32
_LONGEST_S: Final = 3600.0
_TELL_S: Final = 0.1
_END_S: Final = 5.0


@dataclass(slots=True)
class Job:
    """A piece of work. Its fields are set by the thread that waits for it, and may be read by any other.

    Attributes:
        state: WAITING, RUNNING, DONE or FAILED.
        share: How much is done, 0 to 1.
        doing: What is being done.
        result: What came out, once it is DONE.
        error: What a person reads, once it has FAILED.
        ended_ns: When it ended, on the monotonic clock.
    """

    state: str = WAITING
    share: float = 0.0
    doing: str = ""
    result: Any = None
    error: str = ""
    ended_ns: int = 0
    over: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def ended(self) -> bool:
        """Whether it is DONE or has FAILED; everything else is set by then."""
        return self.state in (DONE, FAILED)


class Jobs:
    """Starts work and keeps what came of it, until `close`.

    Work runs in processes that are spawned, so that it can be ended at any moment, and a trace that breaks it breaks nothing
    else. All methods may be called from any thread, and return at once, but `close`.

    Args:
        at_once: How many pieces run at the same time.
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
            job = self._jobs.get(key)
            if job is not None:
                self._jobs.move_to_end(key)
            return job

    def start(self, key: Hashable, function: Callable[..., Any], *arguments: Any, again: bool = False) -> Job:
        """Start a piece of work, and return it; or the one of this key that there is already.

        Args:
            key: What it is known by.
            function: Called in another process with the arguments and, as ``progress``, what takes a share and words.
            *arguments: For the function; they must be picklable, as its result.
            again: Whether to start it again if it has ended.
        """
        with self._lock:
            job = self._jobs.get(key)
            if job is not None and not (again and job.ended):
                return job
            job = Job()
            waiting = sum(other.state == WAITING for other in self._jobs.values())
            if self._closing.is_set() or waiting >= _MOST_WAITING:
                job.state, job.error = FAILED, "too much is being done already; try again in a while"
                job.over.set()
                return job
            self._jobs[key] = job
            self._jobs.move_to_end(key)
            self._forget_some()
            self._threads.submit(self._run, job, function, arguments)
            return job

    def forget(self, key: Hashable) -> None:
        """Forget what came of a piece of work; one that has not ended goes on."""
        with self._lock:
            job = self._jobs.get(key)
            if job is not None and job.ended:
                del self._jobs[key]

    def close(self) -> None:
        """End all work, and wait until its threads and processes are gone."""
        self._closing.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _forget_some(self) -> None:
        for key in [key for key, job in self._jobs.items() if job.ended]:
            if len(self._jobs) <= _MOST_KEPT:
                break
            del self._jobs[key]

    # ---- in a thread ----------------------------------------------------------------------------------------------------

    def _run(self, job: Job, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            job.result, state = self._outcome(job, function, arguments), DONE
        except TracekitError as error:
            job.error, state = str(error), FAILED
        except Exception as error:  # noqa: BLE001 - it is shown to whoever waits for it
            job.error, state = f"unexpected {type(error).__name__}: {error}", FAILED
        job.ended_ns = time.monotonic_ns()
        job.state = state
        job.over.set()

    def _outcome(self, job: Job, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_work, args=(theirs, function, arguments), name="tracekit serve work", daemon=True
        )
        with ours:
            try:
                if self._closing.is_set():
                    raise TracekitError("the server is being stopped")
                job.state = RUNNING
                with without_interrupts():
                    process.start()
            finally:
                theirs.close()
            try:
                result = self._follow(job, ours, process.sentinel)
                process.join(_END_S)
                return result
            finally:
                _end(process)

    def _follow(self, job: Job, ours: Connection, sentinel: int) -> Any:
        deadline = time.monotonic() + _LONGEST_S
        while not self._closing.is_set():
            ready = wait([ours, sentinel], 0.2)
            if ours in ready:
                try:
                    kind, *said = ours.recv()
                except (EOFError, OSError, pickle.UnpicklingError):
                    raise TracekitError("the process that did this has died; is there enough memory?") from None
                if kind == "progress":
                    job.share, job.doing = said
                elif kind == "error":
                    raise TracekitError(said[0])
                else:
                    return said[0]
            elif ready:
                raise TracekitError("the process that did this has died; is there enough memory?")
            if time.monotonic() > deadline:
                raise TracekitError(f"it was given up after {_LONGEST_S / 60:.0f} minutes")
        raise TracekitError("the server is being stopped")


def _end(process: Any) -> None:
    """See that a process is gone."""
    if process.is_alive():
        process.terminate()
        process.join(_END_S)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()


# ---- in the process -----------------------------------------------------------------------------------------------------


def _work(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Do a piece of work, and tell how it goes."""
    prepare_worker()
    signal.signal(signal.SIGTERM, _leave)
    told = 0.0

    def tell(share: float, doing: str) -> None:
        nonlocal told
        if time.monotonic() - told >= _TELL_S:
            told = time.monotonic()
            connection.send(("progress", min(1.0, max(0.0, share)), doing))

    with contextlib.suppress(BrokenPipeError):
        try:
            said = ("result", function(*arguments, progress=tell))
        except TracekitError as error:
            said = ("error", str(error))
        except Exception as error:  # noqa: BLE001 - see above
            said = ("error", f"unexpected {type(error).__name__}: {error}; please report this")
        connection.send(said)


def _leave(number: int, frame: object) -> None:
    """End in good order: what was half written, and what was only needed meanwhile, is removed."""
    del number, frame
    sys.exit(1)
