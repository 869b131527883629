"""One object on a remote storage out of many, without their bytes passing through this machine where that can be.

S3 copies parts of objects into a new object by itself (multipart upload with UploadPartCopy); each part but the last must
have 5 MiB, so shorter pieces are fetched and sent. Other storages get the pieces in a stream. Memory is bounded either way, and
the object appears under its name whole or not at all.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import StorageError
from tracekit.storage import explained, filesystem_of, refuse_existing

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["JoinedObject", "end_uploads", "joined_write", "joins_by_itself"]

_MIN_PART_BYTES: Final = 5 << 20  # S3's limit for every part but the last
_SEND_BYTES: Final = 16 << 20
_COPY_BYTES: Final = 1 << 30  # S3 copies up to 5 GiB at once; shorter copies run side by side
_COPIES: Final = 8
_READ_BYTES: Final = 8 << 20


def joins_by_itself(url: str) -> bool:
    """Tell whether the storage can join objects without sending their bytes anywhere."""
    filesystem, _ = filesystem_of(url)
    protocols = (filesystem.protocol,) if isinstance(filesystem.protocol, str) else filesystem.protocol
    return "s3" in protocols and hasattr(filesystem, "call_s3")


@contextlib.contextmanager
def joined_write(url: str, scratch: str, *, overwrite: bool = True) -> Iterator[JoinedObject]:
    """Give an object to add to, which appears under ``url`` when the block ends without an error.

    Args:
        url: The object.
        scratch: The name of an object on the same storage, for what a storage needs that cannot join; it is removed.
        overwrite: Whether an object that is there may be replaced.

    Raises:
        StorageError: It cannot be written, or is there and ``overwrite`` is False.
    """
    with _explained(url):
        way = _CopiedObject(url) if joins_by_itself(url) else _StreamedObject(url, scratch)
    try:
        yield JoinedObject(url, way)
        if not overwrite:
            refuse_existing(url)
        with _explained(url):
            way.finish()
    except BaseException:
        # Whatever goes wrong now, what went wrong before is to be told.
        with contextlib.suppress(Exception):
            way.abort()
        raise


@contextlib.contextmanager
def _explained(url: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        raise explained(url, error, "be written") from error


def end_uploads(prefix: str) -> None:
    """Remove what uploads that were never finished have left below a prefix: S3 keeps it, unseen, until told otherwise.

    Raises:
        StorageError: The storage refused or could not be reached.
    """
    if not joins_by_itself(prefix):
        return
    filesystem, inner = filesystem_of(prefix)
    bucket, key, _ = filesystem.split_path(inner)
    with _explained(prefix):
        while found := filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/").get("Uploads"):
            for upload in found:
                filesystem.call_s3(
                    "abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )


class JoinedObject:
    """An object that is being put together. Use it from one thread.

    Args:
        url: The object.
        way: How it is done.
    """

    def __init__(self, url: str, way: _CopiedObject | _StreamedObject) -> None:
        self._url = url
        self._way = way

    def write(self, data: bytes) -> int:
        """Add bytes.

        Raises:
            StorageError: They cannot be written.
        """
        with _explained(self._url):
            return self._way.write(data)

    def append(self, url: str, size: int) -> None:
        """Add the content of another object of the same storage, which must stay until the end.

        Args:
            url: The object.
            size: Its size in bytes.

        Raises:
            StorageError: It cannot be read, or not be written.
        """
        with _explained(self._url):
            self._way.append(url, size)


class _CopiedObject:
    """An S3 multipart upload."""

    def __init__(self, url: str) -> None:
        self._filesystem, self._inner = filesystem_of(url)
        bucket, key, _ = self._filesystem.split_path(self._inner)
        self._object = {"Bucket": bucket, "Key": key}
        self._upload: dict[str, Any] = {}
        self._buffer = bytearray()
        self._parts = 0
        self._sent: list[dict[str, Any]] = []
        self._copies: list[tuple[int, Future[Any]]] = []
        self._pool = ThreadPoolExecutor(_COPIES, thread_name_prefix="tracekit-join")

    def write(self, data: bytes) -> int:
        self._buffer += data
        if len(self._buffer) >= _SEND_BYTES:
            self._send()
        return len(data)

    def append(self, url: str, size: int) -> None:
        _, inner = filesystem_of(url)
        # What is too short to be a part of its own is filled up from the object, or holds the whole object.
        fetched = max(0, _MIN_PART_BYTES - len(self._buffer)) if self._buffer else 0
        if size - fetched < _MIN_PART_BYTES:
            fetched = size
        if fetched:
            self.write(self._filesystem.cat_file(inner, start=0, end=fetched))
        if fetched == size:
            return
        self._begin()
        if self._buffer:
            self._send()
        count = -(-(size - fetched) // _COPY_BYTES)
        edges = [fetched + (size - fetched) * number // count for number in range(count + 1)]
        bucket, key, _ = self._filesystem.split_path(inner)
        for start, end in pairwise(edges):
            self._parts += 1
            options = {
                "CopySource": {"Bucket": bucket, "Key": key},
                "CopySourceRange": f"bytes={start}-{end - 1}",
                "PartNumber": self._parts,
            }
            self._copies.append((self._parts, self._pool.submit(self._call, "upload_part_copy", **options)))

    def _call(self, method: str, **options: Any) -> Any:
        return self._filesystem.call_s3(method, **self._object, **self._upload, **options)

    def _begin(self) -> None:
        if not self._upload:
            self._upload = {"UploadId": self._call("create_multipart_upload")["UploadId"]}

    def _send(self) -> None:
        self._begin()
        self._parts += 1
        answer = self._call("upload_part", PartNumber=self._parts, Body=bytes(self._buffer))
        self._sent.append({"PartNumber": self._parts, "ETag": answer["ETag"]})
        self._buffer.clear()

    def finish(self) -> None:
        if not self._parts:
            self._pool.shutdown()
            self._filesystem.pipe_file(self._inner, bytes(self._buffer))
            return
        if self._buffer:
            self._send()
        for number, copy in self._copies:
            self._sent.append({"PartNumber": number, "ETag": copy.result()["CopyPartResult"]["ETag"]})
        self._sent.sort(key=lambda part: int(part["PartNumber"]))
        self._call("complete_multipart_upload", MultipartUpload={"Parts": self._sent})
        self._upload = {}
        self._pool.shutdown()
        self._filesystem.invalidate_cache(self._inner)

    def abort(self) -> None:
        # A copy that ends after the upload was aborted would leave a part that is paid for.
        self._pool.shutdown(cancel_futures=True)
        if self._upload:
            self._call("abort_multipart_upload")


class _StreamedObject:
    """An object that is written from end to end under a name of its own, and then moved."""

    def __init__(self, url: str, scratch: str) -> None:
        self._filesystem, self._inner = filesystem_of(url)
        _, self._scratch = filesystem_of(scratch)
        self._file = self._filesystem.open(self._scratch, "wb")

    def write(self, data: bytes) -> int:
        return int(self._file.write(data))

    def append(self, url: str, size: int) -> None:
        del size
        _, inner = filesystem_of(url)
        with self._filesystem.open(inner, "rb") as part:
            while piece := part.read(_READ_BYTES):
                self._file.write(piece)

    def finish(self) -> None:
        self._file.close()
        self._filesystem.mv(self._scratch, self._inner)

    def abort(self) -> None:
        self._file.close()
        self._filesystem.rm_file(self._scratch)
