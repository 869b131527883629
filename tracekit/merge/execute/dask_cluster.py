"""Merge on a Dask cluster. This module alone imports Dask, when it is first used.

Inputs and output are best on one storage that all workers reach with credentials of their own (``s3://...``); a folder that is
mounted everywhere under one name works as well. Start workers with one thread each (``dask worker --nthreads 1``), since
Python runs one thread at a time, and with the same version of tracekit as here.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import MergeError, MissingExtraError, TracekitError
from tracekit.structs import Struct
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("tracekit")

_CONNECT_S: Final = 30
_LOST_S: Final = 60.0


class DaskExecutor(Executor):
    """An executor for `tracekit.merge.merge_traces`, on Dask's own. Use it in a ``with``, from any thread.

    Dask does the work of a worker that is lost again on another one. When no worker has been there for a while, or the
    scheduler is gone, everything that is not done fails with MergeError: Dask itself would wait forever.

    Args:
        address: The scheduler's, as ``tcp://host:8786``.
        lost_s: Give up after so many seconds without any worker.

    Raises:
        MissingExtraError: Dask's package distributed is not installed.
        MergeError: The scheduler cannot be reached, or has no worker, or a worker has another version of tracekit.
    """

    def __init__(self, address: str, *, lost_s: float = _LOST_S) -> None:
        try:
            import distributed
            from distributed.comm.addressing import resolve_address
        except ImportError as error:
            raise MissingExtraError("distributed", "dask", "Merging on a Dask cluster") from error
        # Raise here the errors that it would log as tracebacks.
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        self._address = address
        self._lost_s = lost_s
        try:
            # A client that was given nonsense would print a traceback when the program ends.
            resolve_address(address)
            connect: Any = distributed.Client  # its methods have no types
            self._client = connect(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError, ImportError) as error:
            raise self._error(f"the scheduler cannot be reached: {str(error) or type(error).__name__}") from error
        self._left: set[Future[Any]] = set()
        self._closed = threading.Event()
        try:
            self._check_workers()
        except BaseException:
            self._client.close()
            raise
        self._executor: Any = self._client.get_executor(pure=False)
        self._watcher = threading.Thread(target=self._watch, name="tracekit-dask", daemon=True)
        self._watcher.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function on a worker."""
        future: Future[Any] = Future()
        # Dask cannot end what a worker has begun, so it cannot be cancelled.
        future.set_running_or_notify_cancel()
        self._left.add(future)
        self._executor.submit(_run, fn, args, kwargs).add_done_callback(lambda done: self._settle(future, done))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the connection; the cluster stays."""
        del wait, cancel_futures
        self._closed.set()
        self._watcher.join()
        self._client.close()

    def _check_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=self._lost_s)
            versions = self._client.run(_version)
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise self._error(f"no worker is ready ({reason}); every worker needs tracekit {__version__}") from error
        for worker, version in versions.items():
            if version != __version__:
                raise self._error(
                    f"the worker {worker} has tracekit {version}, and this is {__version__}; install the same everywhere"
                )

    def _settle(self, future: Future[Any], done: Future[Any]) -> None:
        if done.cancelled():
            self._fail(future, "the scheduler is gone, or has dropped the work")
        elif (error := done.exception()) is not None:
            self._fail(future, str(error) or type(error).__name__)
        else:
            result = done.result()
            with suppress(InvalidStateError):  # it was given up before
                if isinstance(result, _Raised):
                    future.set_exception(result.error)
                else:
                    future.set_result(result)
        self._left.discard(future)

    def _fail(self, future: Future[Any], reason: str) -> None:
        with suppress(InvalidStateError):
            future.set_exception(self._error(f"{' '.join(reason.split())}; nothing was written"))

    def _error(self, reason: str) -> MergeError:
        return MergeError(f"--dask {self._address}: {reason}")

    def _watch(self) -> None:
        pause_s = min(5.0, self._lost_s / 4)
        missing_s = 0.0
        while not self._closed.wait(pause_s):
            missing_s += pause_s
            with suppress(Exception):
                if self._client.sync(self._client.scheduler.ncores, callback_timeout=pause_s):
                    missing_s = 0.0
            if missing_s >= self._lost_s:
                for future in list(self._left):
                    self._fail(future, "the cluster has no worker any more")


class _Raised(Struct, frozen=True):
    """The exception of a piece of work, as a result: Dask would send its traceback too, and hangs where it cannot."""

    error: TracekitError


def _run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except TracekitError as error:
        return _Raised(error)
    except Exception as error:
        logger.exception("tracekit: a piece of work for a merge failed")
        return _Raised(MergeError(f"a worker failed ({type(error).__name__}: {error}); its log says more"))


def _version() -> str:
    return __version__
