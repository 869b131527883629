"""The events of traces as a relation that other packages read."""

from __future__ import annotations

import contextlib
import importlib
import os
import weakref
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError
from tracekit.markup import html_table
from tracekit.table.database import Limits
from tracekit.table.tables import EventTables

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN_ROWS: Final = 20


class Relation:
    """Rows that are read when they are converted. Close it, or let it go; from one thread at a time.

    Any consumer of the Arrow PyCapsule interface reads it directly, such as ``polars.DataFrame(relation)``.
    """

    def __init__(self, tables: EventTables, sql: str, limits: Limits) -> None:
        with contextlib.ExitStack() as opening:
            opening.enter_context(tables)
            database, statement = opening.enter_context(tables.connection(sql, limits))
            self._relation = database.relation(statement)
            stack = opening.pop_all()
        self.notes = tables.notes
        # At exit too: threads of the engine must have ended before the interpreter does.
        self._close = weakref.finalize(self, stack.close)

    def close(self) -> None:
        """Close the connection."""
        self._close()

    def __enter__(self) -> Relation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._relation.columns)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows as tuples."""
        return list(self._relation.fetchall())

    def __str__(self) -> str:
        return str(self._relation)

    def _repr_html_(self) -> str:
        rows = self._relation.limit(_SHOWN_ROWS).fetchall()
        cells = [["" if value is None else str(value) for value in row] for row in rows]
        return html_table(f"the first {len(rows)} rows", self.columns, cells, left=len(self.columns))

    def df(self) -> Any:
        """Return a ``pandas.DataFrame``."""
        return self._convert("df", "pandas")

    def pl(self) -> Any:
        """Return a ``polars.DataFrame``."""
        return self._convert("pl", "polars")

    def arrow(self) -> Any:
        """Return a ``pyarrow.Table``."""
        return self._convert("arrow", "pyarrow")

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a stream of batches as a capsule."""
        return self._relation.__arrow_c_stream__(requested_schema)

    def _convert(self, method: str, package: str) -> Any:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(f".{method}() needs {package}: pip install {package}") from error
        return getattr(self._relation, {"arrow": "to_arrow_table"}.get(method, method))()


def read_events(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, args: bool = False, cache: bool = True
) -> Relation:
    """Read the events of traces as rows; `tracekit.table.schema` documents the columns.

    Args:
        paths: Files, folders, globs or URLs: traces of tracekit, torch.profiler or others, or a merged trace.
        args: Read the column ``args`` too, which reads the traces a second time.
        cache: Keep the tables in the cache of the user, so that the next call is fast.

    Returns:
        A relation with ``df()``, ``pl()``, ``arrow()`` and ``rows()``.

    Raises:
        MissingExtraError: DuckDB is not installed.
        ConfigError: No trace is named.
        StorageError: A file cannot be read, or the cache cannot be written.
        TraceFormatError: A named file, or every file, is not a trace.
    """
    patterns = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    tables = EventTables([os.fspath(pattern) for pattern in patterns], cache=cache)
    return Relation(tables, f"SELECT *{'' if args else ' EXCLUDE (args)'} FROM events", Limits())
