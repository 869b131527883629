"""External sorting: sort any number of items in bounded memory.

Items are collected until there are many, sorted, and stored as a *run*. Runs are read side by side and merged.
"""

from __future__ import annotations

import heapq
import marshal
import tempfile
from typing import IO, TYPE_CHECKING, Any, Final

from tracekit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_MEMORY_BYTES: Final = 16 << 20  # the limit of an `ExternalSort` in memory

_BLOCK_ITEMS: Final = 500
_ITEM_BYTES: Final = 250  # the memory of a tuple of some numbers, besides the bytes in it


class ExternalSort:
    """Tuples of integers and bytes, added in any order, read in ascending order as often as wanted.

    Not safe to use from several threads. ``folder`` is that of the scratch file, by default the system's for temporary files.
    ``memory_bytes`` is the approximate limit of the items in memory.
    """

    def __init__(self, folder: str | None = None, memory_bytes: int | None = None) -> None:
        self._folder = folder
        self._memory_bytes = MAX_MEMORY_BYTES if memory_bytes is None else memory_bytes
        self._items: list[tuple[Any, ...]] = []
        self._items_bytes = 0
        self._file: IO[bytes] | None = None
        self._runs: list[list[tuple[int, int]]] = []

    def add(self, item: tuple[Any, ...], size_bytes: int = 0) -> None:
        """Add an item.

        Raises:
            StorageError: The scratch file cannot be written.
        """
        self._items.append(item)
        self._items_bytes += size_bytes + _ITEM_BYTES
        if self._items_bytes > self._memory_bytes:
            self._store()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Return the items in ascending order."""
        self._items.sort()
        if not self._runs:
            return iter(self._items)
        return heapq.merge(*map(self._read, self._runs), self._items)

    def close(self) -> None:
        """Forget all items."""
        self._items = []
        self._runs = []
        if self._file is not None:
            self._file.close()
            self._file = None

    __del__ = close

    def _store(self) -> None:
        self._items.sort()
        run = []
        try:
            if self._file is None:
                # It has no name and is open as long as this object.
                self._file = tempfile.TemporaryFile(prefix="tracekit-", dir=self._folder)  # noqa: SIM115
            for start in range(0, len(self._items), _BLOCK_ITEMS):
                block = marshal.dumps(self._items[start : start + _BLOCK_ITEMS])
                run.append((self._file.tell(), len(block)))
                self._file.write(block)
        except OSError as error:
            folder = self._folder or tempfile.gettempdir()
            raise StorageError(f"no room for temporary data in {folder}: {error}") from error
        self._runs.append(run)
        self._items = []
        self._items_bytes = 0

    def _read(self, run: list[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
        file = self._file
        assert file is not None, "closed while it is read"
        for offset, size in run:
            file.seek(offset)
            yield from marshal.loads(file.read(size))  # noqa: S302 - this object wrote the file, which has no name
