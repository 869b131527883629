"""UploadingOutbox: spools files for a remote storage, and uploads each when it is finished."""

from __future__ import annotations

import logging
import shlex
import threading
from typing import TYPE_CHECKING, Any, Final

from tracekit.clock import SYSTEM_CLOCK
from tracekit.errors import ConfigError, StorageError
from tracekit.notices import Notices
from tracekit.outbox.outbox import GONE, Outbox, StoppedError
from tracekit.outbox.spool import Spool
from tracekit.outbox.upload import GoneError, Pace, Retry, Uploader
from tracekit.storage import AlreadyThereError, RefusedError, TooSlowError, check_protocol, without_secrets
from tracekit.wording import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


logger = logging.getLogger("tracekit")

DEFAULT_RETRY: Final = Retry()
_REASON_CHARACTERS: Final = 300
FULL: Final = "events of files beyond the size of the spool"


class UploadingOutbox(Outbox):
    """Keeps files in a spool folder until the storage has them.

    Failed uploads are retried with growing pauses until the recording ends, except after a refusal of the storage
    (credentials, no such bucket). Remaining files stay in the spool, for ``tracekit upload``. Beyond ``spool_bytes``
    of waiting files the newest is removed, and its events are counted. For ``root`` and ``header`` see
    `Spool.create`.
    """

    def __init__(
        self, root: Path | None, header: Mapping[str, Any], spool_bytes: int, retry: Retry | None = None
    ) -> None:
        check_protocol(header["index"])
        self._spool = Spool.create(root, header)
        super().__init__()
        self._retry = retry or DEFAULT_RETRY
        self._pace = Pace(self._retry)
        self._spool_bytes = spool_bytes
        self._url = without_secrets(header["index"])
        self._notices = Notices()
        self._refusal: StorageError | None = None
        self._trouble: StorageError | None = None  # the last failure; None after a success
        self._claimed = threading.Event()  # the first try is over
        self._taken: AlreadyThereError | None = None
        self._index_after_ns = 0
        self._uploader = Uploader(self._spool)

    def start(self) -> None:
        """Start the thread, and wait a few seconds for the result of the first write to the storage.

        Raises:
            ConfigError: Another recording has written under this name.
        """
        super().start()
        self._claimed.wait(self._retry.warm_up_s)
        if self._taken is not None:
            self.close(self._retry.warm_up_s)
            raise ConfigError(
                f"{self._taken}, and tracekit never overwrites a trace; choose another name (with {{run_id}} or {{attempt}} "
                "in it), or remove what is there"
            )

    def place(self, name: str) -> Path:
        """Return a place in the spool."""
        return self._spool.folder / self._spool.begin(name).file

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
            self._notices.warn(
                "full",
                "tracekit: the spool %s holds spool_bytes (%d) of files that could not be uploaded; newer ones are dropped "
                "(%d events so far) until it is smaller",
                self._spool.folder,
                self._spool_bytes,
                self.lost[FULL],
            )
        return None

    def close(self, timeout_s: float) -> None:
        """Upload the rest within that time; log the remaining files, and the command that uploads them."""
        self._spool.drop_unmade()  # the recording did not start
        self._spool.end()
        super().close(timeout_s)
        left = self._spool.waiting
        self._spool.close()
        self.kept = [self._spool.path(segment) for segment in left]
        if not left and (not self._uploader.index_due or not self._spool.segments):
            self._spool.remove()
            return
        what = f"{len(left)} file{'s' * (len(left) != 1)}" if left else "the index"
        logger.warning(
            "tracekit: %s of %s could not be uploaded (%s) and %s kept in %s; to finish it: %s",
            what,
            self._url,
            self._refusal or self._trouble or f"there was no time for it within {timeout_s:.3g} s",
            "are" if len(left) > 1 else "is",
            self._spool.folder,
            upload_command(self._spool.folder),
        )

    def _interrupt(self) -> None:
        self._uploader.close()

    # ---- on the thread of the outbox ----------------------------------------------------------------------------------

    def _step(self) -> float | None:
        if self._refusal is not None:
            return None
        finished = self._spool.finished
        try:
            if not self._claimed.is_set():
                self._claim()
            elif finished:
                self._uploader.deliver(finished[0], self._pace.answer_s, self._stop.is_set)
            elif self._index_is_due():
                self._uploader.deliver_index(self._pace.answer_s)
                self._index_after_ns = self._next_index_ns()
            else:
                return None
        except StoppedError:
            return None
        except GoneError as error:
            self._spool.drop(finished[0])
            self.lost[GONE] += finished[0].events
            self._notices.warn("gone", "tracekit: %s", error)
        except RefusedError as error:
            self._refusal = error
            logger.warning(
                "tracekit: the storage refuses (%s), which is not tried again; recording goes on into %s",
                error,
                self._spool.folder,
            )
            return None
        except StorageError as error:
            return self._failed(error)
        except Exception as error:  # noqa: BLE001 - a storage client may raise any exception; the thread must continue
            return self._failed(StorageError(one_line(f"{type(error).__name__}: {error}", _REASON_CHARACTERS)))
        else:
            self._pace.succeeded()
            self._trouble = None
        return 0

    def _claim(self) -> None:
        try:
            self._uploader.claim_index(self._retry.warm_up_s)
            self._index_after_ns = self._next_index_ns()
        except AlreadyThereError as error:
            self._taken = self._refusal = error
        finally:
            self._claimed.set()

    def _failed(self, error: StorageError) -> float:
        if self._stop.is_set():
            return 0
        self._trouble = error
        pause_s = self._pace.failed(too_slow=isinstance(error, TooSlowError))
        self._notices.warn(
            "trouble",
            "tracekit: an upload failed (%s); it is tried again, and until then the files are in %s",
            error,
            self._spool.folder,
        )
        return pause_s

    def _index_is_due(self) -> bool:
        if not self._uploader.index_due:
            return False
        return self._closing.is_set() or SYSTEM_CLOCK.monotonic_ns() >= self._index_after_ns

    def _next_index_ns(self) -> int:
        return SYSTEM_CLOCK.monotonic_ns() + round(self._retry.index_s * 1e9)

    def _idle_s(self) -> float | None:
        if self._refusal is not None or not self._uploader.index_due:
            return None
        return max(0.0, (self._index_after_ns - SYSTEM_CLOCK.monotonic_ns()) / 1e9)


def upload_command(folder: Path) -> str:
    """Return the command that uploads the remaining files of a spool."""
    return f"tracekit upload {shlex.quote(str(folder))}"
