"""Parts of the output, written by workers and appended to the output by the merging process.

Workers of this machine or with a shared file system write parts to the scratch folder. Workers that share only an object store
with this process write objects with a prefix beside the output, ``.NAME.RANDOM.parts/``. While the object ``open`` exists the
merge goes on; a worker that misses it removes what it wrote. If the merging process is killed, the prefix remains until someone
or a lifecycle rule of the bucket removes it, because no other process can detect that its owner is gone. No object there has
the name of a trace, so a merge of the folder ignores them.

An executor may repeat the work of a lost worker. Each attempt writes another part.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast
from uuid import uuid4

from tracekit.errors import MergeError, StorageError
from tracekit.storage import basename, exists, explained, filesystem_of, is_remote, open_read, put, remove_all, upload
from tracekit.structs import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

_OPEN: Final = "open"
_ENDED: Final = "ended"
_COPY_BYTES: Final = 1 << 30
_PIECE_BYTES: Final = 1 << 20


def part_store(output: str, executor: Executor, folder: str) -> PartStore:
    """Return the place where workers write parts.

    The storage of a remote output is all that workers of other machines share with this process.
    """
    if not is_remote(output) or isinstance(executor, ProcessPoolExecutor):
        return PartStore(folder)
    return PartStore(f"{output.rpartition('/')[0]}/.{basename(output)}.{uuid4().hex[:12]}.parts/")


class PartStore(Struct, frozen=True):
    """The parts of one merge. Use it in a ``with``. Can be pickled.

    Attributes:
        place: The scratch folder, which its owner removes; or the common prefix of all objects, which are removed at
            the end.
    """

    place: str

    @property
    def is_remote(self) -> bool:
        """True if parts are objects."""
        return is_remote(self.place)

    @property
    def check_s(self) -> float:
        """How often workers call `check`."""
        return 5.0 if self.is_remote else 0.2

    def __enter__(self) -> PartStore:
        if self.is_remote:
            with tempfile.NamedTemporaryFile() as empty:
                put(empty.name, self.place + _OPEN)
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_remote:
            with contextlib.suppress(StorageError):
                _end_uploads(self.place)
                remove_all(self.place)

    def end(self) -> None:
        """Make `check` raise for all workers."""
        with contextlib.suppress(OSError, StorageError):
            if self.is_remote:
                remove_all(self.place + _OPEN)
            else:
                Path(self.place, _ENDED).touch()

    def check(self) -> None:
        """Raise MergeError if the merge has ended."""
        if not exists(self.place + _OPEN) if self.is_remote else Path(self.place, _ENDED).exists():
            raise MergeError("the merge was ended")

    @contextlib.contextmanager
    def create(self) -> Iterator[tuple[BinaryIO, str]]:
        """Open a new file for a part, yield it with the name of the part, and upload it if parts are objects."""
        part = os.path.join(self.place, f"part.{uuid4().hex}")  # noqa: PTH118 - an object, too
        if not self.is_remote:
            with Path(part).open("w+b") as file:
                yield file, part
            return
        with tempfile.NamedTemporaryFile(prefix="tracekit-merge-") as scratch:
            yield cast("BinaryIO", scratch), part
            scratch.flush()
            self._upload(scratch.name, part)

    def _upload(self, local: str, url: str) -> None:
        try:
            upload(local, url)
            self.check()
        except StorageError as error:
            # Not as StorageError: the input is not to blame, and must not be left out.
            raise MergeError(f"the scratch space of the merge cannot be written: {error}") from error
        except MergeError:
            # The end of the merge may have removed all parts before this one was there.
            remove_all(url)
            raise

    def append(self, part: str, file: BinaryIO) -> None:
        """Append a part to a file, and remove it."""
        if self.is_remote:
            with open_read(part) as source:
                while piece := _read(source, part):
                    file.write(piece)
        else:
            _append_file(part, file)
        remove_all(part)


def _append_file(path: str, file: BinaryIO) -> None:
    """Append a file to another one, inside the kernel where it can copy."""
    with Path(path).open("rb") as part:
        if hasattr(os, "copy_file_range"):
            file.flush()
            with contextlib.suppress(OSError):
                # Some file systems refuse. The copy below goes on where this one stopped: both files have moved on.
                while os.copy_file_range(part.fileno(), file.fileno(), _COPY_BYTES):
                    pass
        shutil.copyfileobj(part, file, _PIECE_BYTES)


def _read(source: BinaryIO, url: str) -> bytes:
    try:
        return source.read(_PIECE_BYTES)
    except Exception as error:
        raise explained(url, error, "be read") from error


def _end_uploads(prefix: str) -> None:
    """Remove unfinished uploads of lost workers, which S3 keeps and charges for."""
    filesystem, inner = filesystem_of(prefix)
    if not hasattr(filesystem, "call_s3"):
        return
    bucket, key, _ = filesystem.split_path(inner)
    try:
        while found := filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/").get("Uploads"):
            for upload in found:
                filesystem.call_s3(
                    "abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )
    except Exception as error:
        raise explained(prefix, error, "be cleaned up") from error
