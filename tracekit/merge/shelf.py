"""Values that are needed one at a time: they lie in a file of their own, so that a thousand inputs take little memory.

The file has no name where the system has such files, so that nothing is left of it, however the process ends.
"""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from tracekit.errors import MergeError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Shelf"]

_LENGTH_BITS: Final = 40


class Shelf:
    """A scratch file of values. Use it in a ``with``, from one thread.

    Args:
        folder: Where the file is made; the system's place for such files if None.

    Raises:
        MergeError: It cannot be made.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder or tempfile.gettempdir()
        self._end = 0
        try:
            file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - closed with the shelf
        except OSError as error:
            raise self._failed(error) from error
        self._file = cast("BinaryIO", file)

    def __enter__(self) -> Shelf:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def put(self, value: object) -> int:
        """Lay down a value; returns its place.

        Raises:
            MergeError: The file cannot be written.
        """
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        try:
            self._file.seek(self._end)
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._failed(error) from error
        place = self._end << _LENGTH_BITS | len(data)
        self._end += len(data)
        return place

    def get(self, place: int) -> Any:
        """Return a copy of the value of a place.

        Raises:
            MergeError: The file cannot be read.
        """
        data = bytearray(place & ((1 << _LENGTH_BITS) - 1))
        try:
            self._file.seek(place >> _LENGTH_BITS)
            left = memoryview(data)
            while left:
                read = self._file.readinto(left)  # type: ignore[attr-defined]  # a raw file
                if not read:
                    raise OSError(errno.EIO, "it ends too early")
                left = left[read:]
        except OSError as error:
            raise self._failed(error, "read") from error
        return pickle.loads(data)  # noqa: S301 - nobody else can write there

    def _failed(self, error: OSError, what: str = "written") -> MergeError:
        # Not as StorageError: the input is not to blame, and must not be left out.
        return MergeError(
            f"{self._folder}: cannot be {what}: {error.strerror or os.strerror(error.errno or 0)}; "
            "what does not fit into memory is kept there"
        )
