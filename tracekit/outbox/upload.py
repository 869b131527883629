"""Upload: copies the segments of a spool, and the index, to the remote storage. Uploads are idempotent.

An existing object is never replaced. If it holds the same bytes, it counts as an earlier upload of this segment. Otherwise it
belongs to another writer, and the segment takes the next name.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import shlex
import shutil
import threading
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tracekit import storage
from tracekit.clock import SYSTEM_CLOCK
from tracekit.errors import ConfigError, StorageError
from tracekit.formats.rank_trace import index_document
from tracekit.naming import following_names
from tracekit.notices import Notices
from tracekit.outbox.outbox import GONE, Outbox, pack
from tracekit.outbox.spool import Spool
from tracekit.storage import AlreadyThereError, RefusedError, TooSlowError, without_secrets
from tracekit.wording import counted, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tracekit.formats.rank_trace import Segment

logger = logging.getLogger("tracekit")
FULL: Final = "events of files beyond the size of the spool"
_FULL_WARNING: Final = (
    "tracekit: the spool %s holds spool_bytes (%d) of files that could not be uploaded; newer ones are dropped "
    "(%d events so far) until it is smaller"
)
_REFUSED_WARNING: Final = "tracekit: the storage refuses (%s), which is not tried again; recording goes on into %s"
_FAILED_WARNING: Final = "tracekit: an upload failed (%s); it is tried again, and until then the files are in %s"

WARM_UP_S = 5.0  # maximum time that the start of a recording waits for the first answer of the storage
# Timeout of a request. It doubles with each timeout: it is short for a dead network, and grows for a slow one.
ANSWER_S = 30.0
MAX_ANSWER_S: Final = 600.0
FIRST_PAUSE_S = 1.0  # the pause after the first failure; doubled with each further failure in a row
MAX_PAUSE_S = 60.0
INDEX_S = 30.0  # minimum time between two uploads of the index
_MAX_HANGING: Final = 8
_CANCEL_FIRST: Final = 0.9  # the client times out a little before its thread is abandoned


class GoneError(StorageError):
    """The file to upload is no longer in the spool."""


class Uploader:
    """Uploads the files of a spool, and the index, one at a time. Used by one thread, except for `close`.

    A client of an object store can hang if a server accepts a connection and never answers. Such a call cannot be
    ended from outside. So each request runs on another thread, which is abandoned after a timeout. Packing stops
    when ``stopped`` returns True.
    """

    def __init__(self, spool: Spool, stopped: Callable[[], bool] = lambda: False) -> None:
        self.refusal: RefusedError | None = None  # after it, no further request is made
        self.pause_s = 0.0  # time to wait after a failure; random, so that ranks do not retry simultaneously
        self._max_pause_s = FIRST_PAUSE_S
        self._spool = spool
        self._stopped = stopped
        self._answer_s = self._timeout_s = ANSWER_S  # of requests in general, and of the current one
        self._hanging: list[threading.Thread] = []
        self._pending: Future[Any] = Future()
        self._index_urls = following_names(spool.header["index"])
        self._index_url = next(self._index_urls)
        self._index_done: dict[str, Any] | None = None  # the last uploaded one

    @property
    def index_due(self) -> bool:
        """True if the last uploaded index is out of date."""
        return self._index_done != self._index()

    def close(self) -> None:
        """End a pending request with `TooSlowError`."""
        with suppress(InvalidStateError):  # the answer has come before
            self._pending.set_exception(TooSlowError("it was not waited for any longer"))

    def upload(self, segment: Segment | None, *, is_first: bool = False) -> StorageError | None:
        """Upload a segment, packed if its name ends with ``.gz``, or the index for None. Return the error if that fails.

        If the file of a segment is gone, the segment is dropped (`GoneError`). ``is_first`` tests with the index if the
        storage can be reached and written to: it waits for a short time only, and fails with `AlreadyThereError` if
        another recording has the name.
        """
        if self.refusal is not None:
            return self.refusal
        self._timeout_s = WARM_UP_S if is_first else self._answer_s
        try:
            if segment is None:
                self._upload_index(takes_next_name=not is_first)
            else:
                self._upload_segment(segment)
        except Exception as error:  # noqa: BLE001 - a storage client may raise any exception
            text = one_line(f"{type(error).__name__}: {error}", 300)
            failure = error if isinstance(error, StorageError) else StorageError(text)
        else:
            self._max_pause_s = FIRST_PAUSE_S
            return None
        if isinstance(failure, RefusedError):
            self.refusal = failure
        if isinstance(failure, TooSlowError):
            self._answer_s = max(self._answer_s, min(self._answer_s * 2, MAX_ANSWER_S))
        self.pause_s = self._max_pause_s * random.uniform(0.5, 1.0)
        self._max_pause_s = min(self._max_pause_s * 2, MAX_PAUSE_S)
        return failure

    def _upload_segment(self, segment: Segment) -> None:
        path = self._spool.path(segment)
        try:
            if segment.url.endswith(".gz") and path.suffix != ".gz":
                if not pack(path, path.with_name(f"{path.name}.gz"), self._stopped):
                    return
                path = self._spool.path(segment)
            size_bytes, sha256 = _digest(path)
        except FileNotFoundError:
            self._spool.drop(segment)
            raise GoneError(f"{path}: is gone; somebody has removed it from the spool") from None
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error.strerror or error}") from error
        for url in following_names(segment.url):
            try:
                self._call(storage.put, os.fspath(path), url)
            except AlreadyThereError:
                there = self._call(storage.read, url)
                if there is None or hashlib.sha256(there).hexdigest() != sha256:
                    continue
            self._spool.delivered(segment, url, size_bytes, sha256)
            return

    def _upload_index(self, *, takes_next_name: bool) -> None:
        """Make the index, or replace the earlier one of this recording."""
        document, local = self._index(), self._spool.folder / "index.json"
        try:
            local.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        except OSError as error:
            raise StorageError(f"{local}: cannot be written: {error.strerror or error}") from error
        replaces = self._index_done is not None
        while self._index_done != document:
            try:
                self._call(storage.put, os.fspath(local), self._index_url, replace=replaces)
                self._index_done = document
            except AlreadyThereError as error:
                if replaces:
                    raise StorageError(str(error)) from error
                replaces = self._spool.header["id"].encode() in (self._call(storage.read, self._index_url) or b"")
                if not replaces and not takes_next_name:
                    raise
                if not replaces:
                    self._index_url = next(self._index_urls)

    def _index(self) -> dict[str, Any]:
        spool = self._spool
        complete = spool.closed and not spool.waiting
        return index_document(spool.header, list(spool.segments.values()), spool.header["index"], complete=complete)

    def _call(self, function: Callable[..., Any], *args: str, **options: bool) -> Any:
        """Call a function of `storage`; return its result or raise its exception. `TooSlowError`: it hangs."""
        self._hanging = [thread for thread in self._hanging if thread.is_alive()]
        if len(self._hanging) >= _MAX_HANGING:
            raise TooSlowError(f"the storage hangs: {_MAX_HANGING} calls have not returned")
        call = partial(function, *args, **options, timeout_s=self._timeout_s * _CANCEL_FIRST)
        self._pending = answer = Future[Any]()

        def answer_it() -> None:
            with suppress(InvalidStateError):  # `close` has answered for it
                try:
                    answer.set_result(call())
                except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                    answer.set_exception(error)

        thread = threading.Thread(target=answer_it, name="tracekit-upload", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending; the client has a timeout as well
            return call()
        if wait([answer], self._timeout_s).done:
            return answer.result()
        self._hanging.append(thread)
        raise TooSlowError(f"the storage gave no answer within {self._timeout_s:g} s")


def _digest(path: Path) -> tuple[int, str]:
    """Return size and SHA-256 of a file."""
    with path.open("rb") as file:
        sha256 = hashlib.sha256()
        while piece := file.read(1 << 20):
            sha256.update(piece)
        return file.tell(), sha256.hexdigest()


class UploadingOutbox(Outbox):
    """Keeps files in a spool folder until the storage has them.

    Failed uploads are retried with growing pauses until the recording ends, except after a refusal of the storage
    (credentials, no such bucket). Remaining files stay in the spool, for ``tracekit upload``. Beyond ``spool_bytes``
    of waiting files the newest is removed, and its events are counted. For ``root`` and ``header`` see
    `Spool.create`.
    """

    def __init__(self, root: Path | None, header: Mapping[str, Any], spool_bytes: int) -> None:
        storage.check_protocol(header["index"])
        self._spool = Spool.create(root, header)
        super().__init__(self._spool.folder, packs=True)
        self._uploader = Uploader(self._spool, self._stop.is_set)
        self._spool_bytes = spool_bytes
        self._notices = Notices()
        self._failure: StorageError | None = None  # of the last try
        self._paused_until_ns = 0  # after a failure
        self._index_after_ns = 0

    def start(self) -> None:
        """Make a first write to the storage, in a few seconds at most, and start the thread.

        Raises:
            ConfigError: Another recording has written under this name.
        """
        error = self._uploader.upload(None, is_first=True)
        if isinstance(error, AlreadyThereError):
            self.close(0)
            raise ConfigError(
                f"{without_secrets(self._spool.header['index'])}: exists already, and tracekit never overwrites a trace; "
                "choose another name (with {run_id} or {attempt} in it), or remove what is there"
            )
        self._note(error, None)
        super().start()

    def place(self, name: str) -> Path:
        """Return a place in the spool."""
        return self._folder / self._spool.begin(name).file

    def discard(self, path: Path) -> None:
        """Forget a place after its file was removed or could not be made."""
        self._spool.drop(self._spool.segment_of(path))

    def send(self, path: Path, name: str, *, events: int, start_ns: int, end_ns: int) -> Path | None:
        """Queue the file for upload, or drop it if the spool is full."""
        del name
        if self._spool.finish(self._spool.segment_of(path), events, start_ns, end_ns, self._spool_bytes):
            self._wake.set()
        else:
            self.lost[FULL] += events
            self._notices.warn("full", _FULL_WARNING, self._folder, self._spool_bytes, self.lost[FULL])
        return None

    def close(self, timeout_s: float) -> None:
        """Upload the rest within that time; log the remaining files, and the command that uploads them."""
        self._spool.drop_unmade()  # the recording did not start
        self._spool.note("closed")
        self._paused_until_ns = 0  # later pauses count against the timeout
        super().close(timeout_s)
        left = self._spool.waiting
        self._spool.close()
        self.kept = [self._spool.path(segment) for segment in left]
        if not left and (not self._uploader.index_due or not self._spool.segments):
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        logger.warning(
            "tracekit: %s of %s could not be uploaded (%s) and %s kept in %s; to finish it: tracekit upload %s",
            counted(len(left), "file") if left else "the index",
            without_secrets(self._spool.header["index"]),
            self._failure or f"there was no time for it within {timeout_s:.3g} s",
            "are" if len(left) > 1 else "is",
            self._folder,
            shlex.quote(str(self._folder)),
        )

    # ---- on the thread of the outbox ----------------------------------------------------------------------------------

    def _step(self) -> float | None:
        if self._uploader.refusal is not None:
            return None
        now_ns = SYSTEM_CLOCK.monotonic_ns()
        if now_ns < self._paused_until_ns:
            return (self._paused_until_ns - now_ns) / 1e9
        segment = next((segment for segment in self._spool.waiting if segment.state == "waiting"), None)
        if segment is None:
            if not self._uploader.index_due:
                return None
            if now_ns < self._index_after_ns and not self._closing.is_set():
                return (self._index_after_ns - now_ns) / 1e9
        self._note(self._uploader.upload(segment), segment)
        return 0

    def _note(self, error: StorageError | None, segment: Segment | None) -> None:
        """Record the result of an upload; log a failure."""
        now_ns = SYSTEM_CLOCK.monotonic_ns()
        if error is None:
            self._failure = None
            if segment is None:
                self._index_after_ns = now_ns + round(INDEX_S * 1e9)
        elif isinstance(error, GoneError) and segment is not None:
            self.lost[GONE] += segment.events
            self._notices.warn("gone", "tracekit: %s", error)
        elif isinstance(error, RefusedError):
            self._failure = error
            logger.warning(_REFUSED_WARNING, error, self._folder)
        elif not self._stop.is_set():
            self._failure = error
            self._paused_until_ns = now_ns + round(self._uploader.pause_s * 1e9)
            self._notices.warn("failed", _FAILED_WARNING, error, self._folder)

    def _interrupt(self) -> None:
        self._uploader.close()
