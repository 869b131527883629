"""Export the tables of a file as Arrow streams, without pyarrow: any consumer of the Arrow PyCapsule interface reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit import core
from tracekit.table.columns import FileFacts, read_columns
from tracekit.table.growth import Growth

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.core import _merge
    from tracekit.table.steps import Step

_TABLES: Final = ("events", "counters", "flows")


class FileTables:
    """The tables of one file. The file is read when a table is first read, and again when the same table is read again.

    Needs the compiled core. Thread-safe as long as one table is read at a time.

    Args:
        path: File or URL.
        folder: The folder of the scratch file; the system's folder for temporary files if None.
        keeps_args: Provide the table ``args`` too.
        given_steps: See `read_columns`.
        progress: Called with the number of unpacked bytes read so far.

    Attributes:
        reads: The number of times that the file was read.
        growth: The state from which the tables can be extended.
        error: The error of the last read, which Arrow consumers replace by their own.
    """

    def __init__(
        self,
        path: str,
        *,
        folder: str | None = None,
        keeps_args: bool = False,
        given_steps: Callable[[FileFacts], list[Step]] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.reads = 0
        self.error: Exception | None = None
        self._path = path
        self._folder = folder
        self._keeps_args = keeps_args
        self._given_steps = given_steps
        self._progress = progress
        self._columns: _merge.Columns | None = None
        self._facts: FileFacts | None = None
        self._taken: set[str] = set()
        self.growth = Growth()

    @property
    def facts(self) -> FileFacts:
        """The facts of the file; reads it if it was not read."""
        if self._facts is None:
            self._read()
        assert self._facts is not None
        return self._facts

    def table(self, name: str) -> ArrowTable:
        """Return a table: "events", "counters", "flows" or "args"."""
        return ArrowTable(self, name)

    def take(self, name: str) -> _merge.Columns:
        """Return columns in which a table has not been read."""
        try:
            if self._columns is None or name in self._taken:
                self._read()
        except Exception as error:
            self.error = error
            raise
        self._taken.add(name)
        assert self._columns is not None
        return self._columns

    def _read(self) -> None:
        self._columns = None
        self.growth = Growth()
        columns, self._facts = read_columns(
            self._path,
            folder=self._folder,
            keeps_args=self._keeps_args,
            given_steps=self._given_steps,
            progress=self._progress,
            growth=self.growth,
        )
        self.reads += 1
        self._taken.clear()
        assert core.merge is not None
        assert isinstance(columns, core.merge.Columns)
        self._columns = columns


class ArrowTable:
    """A table that Arrow consumers can read, any number of times. Asking for its schema reads nothing.

    Args:
        tables: The tables of the file.
        name: The table.
    """

    def __init__(self, tables: FileTables, name: str) -> None:
        self._tables = tables
        self._name = name

    def __arrow_c_schema__(self) -> object:
        """Return the schema as a capsule."""
        assert core.merge is not None
        return core.merge.arrow_schema(self._name)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a stream of batches as a capsule; a requested schema is ignored, as the protocol allows."""
        del requested_schema
        assert core.merge is not None
        return core.merge.arrow_stream(self._name, lambda: self._tables.take(self._name))


class ColumnsTable:
    """A table of columns that are filled; it can be read once.

    Args:
        columns: The columns.
        name: The table.
    """

    def __init__(self, columns: _merge.Columns, name: str) -> None:
        self._columns = columns
        self._name = name

    def __arrow_c_schema__(self) -> object:
        """Return the schema as a capsule."""
        assert core.merge is not None
        return core.merge.arrow_schema(self._name)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a stream of batches as a capsule."""
        del requested_schema
        assert core.merge is not None
        return core.merge.arrow_stream(self._name, lambda: self._columns)
