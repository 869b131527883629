"""Tables and documents that questions derive from the events, kept in the cache so that the next question finds them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.table.build import FACTS
from tracekit.table.cache import key_of
from tracekit.table.database import Database, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.table.cache import TableCache

_DOCUMENT: Final = "document.json"


class RunDatabase(Database):
    """A connection to the event table of a run, for statements of tracekit itself.

    Args:
        scratch: A private folder for what exceeds the memory.
        cache: The cache of derived tables.
        source: Identifies the events; empty to keep no derived tables.
        args: Returns the tables of arguments.
    """

    def __init__(self, scratch: Path, cache: TableCache, source: str, args: Callable[[], Sequence[Path]]) -> None:
        super().__init__(scratch, Limits())
        self._cache = cache
        self._source = source
        self._args = args
        self._has_args = False
        self._keys: dict[str, str] = {}

    def add_args(self) -> None:
        """Create the view ``event_args``: by file and id, the arguments of events with `has_key_args`, and perhaps of others."""
        if not self._has_args:
            source = self.read_parquet(self._args())
            self.run(f"CREATE VIEW event_args AS SELECT file_index AS file, id, args FROM {source}")
            self._has_args = True

    def derive(
        self, name: str, sql: str, *, before: Sequence[str] = (), of: Sequence[str] = (), args: bool = False
    ) -> None:
        """Create a table from a query, or find it in the cache.

        Args:
            name: Its name.
            sql: The query. The key of the cache holds its text.
            before: Statements to run first, unless the table is in the cache.
            of: The derived tables that the query or the statements read.
            args: True if they read ``event_args``.
        """

        def prepare() -> None:
            if args:
                self.add_args()
            for statement in before:
                self.run(statement)

        def build(folder: Path) -> None:
            prepare()
            self.write_parquet(sql, folder / "table.parquet")

        if not self.keeps:
            prepare()
            self.run(f"CREATE OR REPLACE TEMP TABLE {name} AS {sql}")
            return
        folder = self._entry(([self._keys[one] for one in of], *before, sql), build)
        self._keys[name] = folder.name
        self.run(f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT * FROM {self.read_parquet([folder / 'table.parquet'])}")

    @property
    def keeps(self) -> bool:
        """True if the cache keeps what is derived."""
        return bool(self._source)

    def keep(self, key: Sequence[object], make: Callable[[], bytes]) -> bytes:
        """Return a document on the events, or find it in the cache. Only for a connection that `keeps`.

        Its key holds everything else that the document depends on, but for the code of tracekit.
        """
        folder = self._entry((_code_state(), *key), lambda folder: (folder / _DOCUMENT).write_bytes(make()))
        return (folder / _DOCUMENT).read_bytes()

    def _entry(self, parts: Sequence[object], build: Callable[[Path], object]) -> Path:
        """Return the folder of an entry of these events, which is built if it is not there."""

        def fill(folder: Path) -> None:
            build(folder)
            (folder / FACTS).write_text("{}", encoding="ascii")

        key = key_of(self._source, *parts)
        return self._cache.find(key) or self._cache.add(key, fill)


def _code_state() -> list[tuple[str, int]]:
    """Return the times of the modules that answer questions: a document must not survive a change of them."""
    package = Path(__file__).parents[1]
    below = (path for folder in ("explain", "formats", "table", "traces") for path in (package / folder).rglob("*.py"))
    return sorted((str(path), path.stat().st_mtime_ns) for path in (*package.glob("*.py"), *below))
