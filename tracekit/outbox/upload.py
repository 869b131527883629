"""Upload: copies the segments of a spool, and the index, to the remote storage. Uploads are idempotent.

An existing object is never replaced. If it holds the same bytes, it counts as an earlier upload of this segment. Otherwise it
belongs to another writer, and the segment takes the next name.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, Final

from tracekit import storage
from tracekit.errors import StorageError
from tracekit.formats.segment_index import index_document
from tracekit.naming import following_names
from tracekit.outbox.pack import pack
from tracekit.outbox.spool import digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.formats.segment_index import Segment
    from tracekit.outbox.caller import Caller
    from tracekit.outbox.spool import Spool

_INDEX_FILE: Final = "index.json"
_CANCEL_FIRST: Final = 0.9  # the client times out a little before its thread is abandoned


class GoneError(StorageError):
    """The file to upload is no longer in the spool."""


class Uploader:
    """Uploads the files of a spool; every request has a timeout. Used by one thread.

    Args:
        spool: The spool.
        caller: Makes the requests.
    """

    def __init__(self, spool: Spool, caller: Caller) -> None:
        self._spool = spool
        self._caller = caller
        self._index_url: str | None = None  # URL of the index of this recording
        self._index_taken = 0  # number of index names that other recordings have taken
        self._index_done: dict[str, Any] | None = None

    @property
    def index_due(self) -> bool:
        """True if the last uploaded index is out of date."""
        return self._index_done != self._index()

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
        """Upload the index; replace the earlier one of this recording.

        Raises:
            StorageError: as for `deliver`.
        """
        for number, url in enumerate(following_names(self._spool.header["index"])):
            if number >= self._index_taken and self._put_index(url, timeout_s):
                return

    def claim_index(self, timeout_s: float) -> None:
        """Upload the first index, to test that the storage is reachable and writable.

        Raises:
            AlreadyThereError: Another recording has that name.
            StorageError: as for `deliver`.
        """
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
