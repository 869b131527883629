"""Upload: copies the segments of a spool, and the index, to the remote storage. Uploads are idempotent.

An existing object is never replaced. If it holds the same bytes, it counts as an earlier upload of this segment. Otherwise it
belongs to another writer, and the segment takes the next name.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tracekit import storage
from tracekit.errors import StorageError
from tracekit.formats.rank_trace import index_document
from tracekit.naming import following_names
from tracekit.outbox.outbox import pack
from tracekit.outbox.spool import digest
from tracekit.storage import TooSlowError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.formats.rank_trace import Segment
    from tracekit.outbox.spool import Spool

T = TypeVar("T")
_MOST_HANGING: Final = 8
_LONGEST_ANSWER_S: Final = 600.0
_INDEX_FILE: Final = "index.json"
_CANCEL_FIRST: Final = 0.9  # the client times out a little before its thread is abandoned


class Caller:
    """Calls functions on threads of their own, and waits for each with a timeout.

    A client of an object store can hang if a server accepts a connection and never answers. Such a call cannot be
    ended from outside: its thread is abandoned.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._hanging: list[threading.Thread] = []
        self._current: Future[Any] | None = None

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Call a function on another thread; return its result or raise its exception. `TooSlowError`: it hangs."""
        self._hanging = [thread for thread in self._hanging if thread.is_alive()]
        if len(self._hanging) >= _MOST_HANGING:
            raise TooSlowError(f"the storage hangs: {_MOST_HANGING} calls have not returned")
        answer: Future[T] = Future()
        self._current = answer
        thread = threading.Thread(target=_call, args=(function, answer), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending; the client has a timeout as well
            return function()
        if not wait([answer], timeout_s).done:
            self._hanging.append(thread)
            raise TooSlowError(f"the storage gave no answer within {timeout_s:g} s")
        return answer.result()

    def close(self) -> None:
        """End a pending call with `TooSlowError`."""
        if self._current is not None:
            with suppress(InvalidStateError):  # it has come before
                self._current.set_exception(TooSlowError("it was not waited for any longer"))


def _call(function: Callable[[], Any], answer: Future[Any]) -> None:
    with suppress(InvalidStateError):  # `Caller.close` has answered for it
        try:
            answer.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            answer.set_exception(error)


@dataclass(frozen=True, slots=True)
class Retry:
    """The times of an upload, in seconds.

    Attributes:
        warm_up_s: Maximum time that the start of a recording waits for the first answer of the storage.
        answer_s: Timeout of the first request. It doubles with each timeout: it is short for a dead network, and grows for a
            slow one.
        first_s: The pause after the first failure; doubled with each further failure in a row.
        longest_s: The longest pause.
        index_s: Minimum time between two uploads of the index.
    """

    warm_up_s: float = 5.0
    answer_s: float = 30.0
    first_s: float = 1.0
    longest_s: float = 60.0
    index_s: float = 30.0


@dataclass(slots=True)
class Pace:
    """The current timeout and pause of an upload.

    The pause grows with each failure in a row; a success resets it. The timeout grows with each request that takes too long.
    """

    retry: Retry
    failures: int = 0
    answer_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.answer_s = self.retry.answer_s

    def succeeded(self) -> None:
        """Note a request that succeeded."""
        self.failures = 0

    def failed(self, *, too_slow: bool) -> float:
        """Note a request that failed; return the pause in seconds, random so that ranks do not retry simultaneously."""
        self.failures += 1
        if too_slow:
            self.answer_s = min(self.answer_s * 2, max(_LONGEST_ANSWER_S, self.retry.answer_s))
        longest_s = min(self.retry.longest_s, self.retry.first_s * 2.0 ** min(self.failures - 1, 60))
        return longest_s * random.uniform(0.5, 1.0)


class GoneError(StorageError):
    """The file to upload is no longer in the spool."""


class Uploader:
    """Uploads the files of a spool; every request has a timeout. Used by one thread."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._caller = Caller("tracekit-upload")
        self._index_url: str | None = None  # URL of the index of this recording
        self._index_taken = 0  # number of index names that other recordings have taken
        self._index_done: dict[str, Any] | None = None

    @property
    def index_due(self) -> bool:
        """True if the last uploaded index is out of date."""
        return self._index_done != self._index()

    def close(self) -> None:
        """End a pending request."""
        self._caller.close()

    def deliver(self, segment: Segment, timeout_s: float, stopped: Callable[[], bool] = lambda: False) -> None:
        """Upload one segment, packed if its name ends with ``.gz``.

        Raises:
            StoppedError: ``stopped`` returned True while packing.
            GoneError: The file does not exist.
            RefusedError: The storage refuses the upload.
            StorageError: The upload failed; a retry may succeed.
        """
        path = self._spool.path(segment)
        try:
            if segment.url.endswith(".gz") and path.suffix != ".gz":
                packed = path.with_name(path.name + ".gz")
                pack(path, packed, stopped)
                path = packed
            size_bytes, sha256 = digest(path)
        except FileNotFoundError:
            raise GoneError(f"{path}: is gone; somebody has removed it from the spool") from None
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error.strerror or error}") from error
        for url in following_names(segment.url):
            try:
                self._put(path, url, timeout_s)
            except storage.AlreadyThereError:
                if not self._is_there(url, size_bytes, sha256, timeout_s):
                    continue
            self._spool.delivered(segment, url, size_bytes, sha256)
            return

    def deliver_index(self, timeout_s: float) -> None:
        """Upload the index; replace the earlier one of this recording. Raises as `deliver` does."""
        for number, url in enumerate(following_names(self._spool.header["index"])):
            if number >= self._index_taken and self._put_index(url, timeout_s):
                return

    def claim_index(self, timeout_s: float) -> None:
        """Upload the first index, to test that the storage is reachable and writable; `AlreadyThereError`: it is taken."""
        url = self._spool.header["index"]
        if not self._put_index(url, timeout_s):
            raise storage.AlreadyThereError(f"{storage.without_secrets(url)}: exists already")

    def _put_index(self, url: str, timeout_s: float) -> bool:
        """Make the index, or replace that of this recording; return False if another recording has that name."""
        document, local = self._index(), self._spool.folder / _INDEX_FILE
        try:
            local.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        except OSError as error:
            raise StorageError(f"{local}: cannot be written: {error.strerror or error}") from error
        try:
            self._put(local, url, timeout_s, replace=self._index_url == url)
        except storage.AlreadyThereError:
            there = self._read(url, timeout_s)
            if there is None or not self._is_own(there):
                self._index_taken += 1
                return False
            self._put(local, url, timeout_s, replace=True)
        self._index_url, self._index_done = url, document
        return True

    def _index(self) -> dict[str, Any]:
        spool = self._spool
        return index_document(
            spool.header, list(spool.segments.values()), spool.header["index"], complete=spool.closed and spool.done
        )

    def _is_there(self, url: str, size_bytes: int, sha256: str, timeout_s: float) -> bool:
        there = self._read(url, timeout_s)
        return there is not None and len(there) == size_bytes and hashlib.sha256(there).hexdigest() == sha256

    def _is_own(self, there: bytes) -> bool:
        try:
            return bool(json.loads(there)["id"] == self._spool.header["id"])
        except (ValueError, KeyError, TypeError):
            return False

    def _put(self, path: Path, url: str, timeout_s: float, *, replace: bool = False) -> None:
        limit_s = timeout_s * _CANCEL_FIRST
        self._caller.call(lambda: storage.put(os.fspath(path), url, replace=replace, timeout_s=limit_s), timeout_s)

    def _read(self, url: str, timeout_s: float) -> bytes | None:
        return self._caller.call(lambda: storage.read(url, timeout_s=timeout_s * _CANCEL_FIRST), timeout_s)
