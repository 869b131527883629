"""Items put in order with bounded memory: what is too much to hold lies sorted in a temporary file."""

from __future__ import annotations

import heapq
import marshal
import tempfile
from typing import IO, TYPE_CHECKING, Any, Final

from tracekit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SortedItems"]

_BLOCK_ITEMS: Final = 500
_ITEM_BYTES: Final = 250
"""What a tuple of some numbers takes in memory, beside the bytes in it."""


class SortedItems:
    """Tuples of integers and bytes, given in any order, read in ascending order as often as wanted.

    Not safe to use from several threads. Can be pickled while it is empty.

    Args:
        memory_bytes: How much is held in memory, about.
    """

    def __init__(self, memory_bytes: int = 16 << 20) -> None:
        self._memory_bytes = memory_bytes
        self._items: list[tuple[Any, ...]] = []
        self._held_bytes = 0
        self._file: IO[bytes] | None = None
        self._runs: list[list[tuple[int, int]]] = []

    def add(self, item: tuple[Any, ...], size_bytes: int) -> None:
        """Take an item.

        Args:
            item: The tuple; no two are equal.
            size_bytes: Of the bytes in it.

        Raises:
            StorageError: The temporary file cannot be written.
        """
        self._items.append(item)
        self._held_bytes += size_bytes + _ITEM_BYTES
        if self._held_bytes > self._memory_bytes:
            self._write()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Return the items in ascending order."""
        self._items.sort()
        if not self._runs:
            return iter(self._items)
        return heapq.merge(*(self._read(run) for run in self._runs), self._items)

    def close(self) -> None:
        """Forget everything."""
        self._items = []
        self._runs = []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self) -> None:
        self._items.sort()
        run = []
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="tracekit-")  # noqa: SIM115 - open as long as this object
            for start in range(0, len(self._items), _BLOCK_ITEMS):
                block = marshal.dumps(self._items[start : start + _BLOCK_ITEMS])
                run.append((self._file.tell(), len(block)))
                self._file.write(block)
        except OSError as error:
            raise StorageError(f"no room for temporary data in {tempfile.gettempdir()}: {error}") from error
        self._runs.append(run)
        self._items = []
        self._held_bytes = 0

    def _read(self, run: list[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
        file = self._file
        assert file is not None, "closed while it is read"
        for offset, size in run:
            file.seek(offset)
            yield from marshal.loads(file.read(size))  # noqa: S302 - what this object wrote itself, into a file without a name
