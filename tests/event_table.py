"""An event table in memory, for tests of questions about it."""

from __future__ import annotations

from typing import Any

import duckdb

__all__ = ["EventTable"]

_COLUMNS = {
    "file": "INTEGER",
    "rank": "INTEGER",
    "pid": "BIGINT",
    "tid": "BIGINT",
    "process": "VARCHAR",
    "category": "VARCHAR",
    "name": "VARCHAR",
    "phase": "VARCHAR",
    "start_ns": "BIGINT",
    "duration_ns": "BIGINT",
    "id": "BIGINT",
    "correlation": "BIGINT",
    "stream": "BIGINT",
    "device": "BIGINT",
    "bytes": "BIGINT",
    "args": "VARCHAR",
}


class EventTable:
    """A table ``events`` to which a test adds rows; columns that it leaves out are NULL."""

    def __init__(self) -> None:
        self._connection = duckdb.connect()
        self._connection.execute(f"CREATE TABLE events ({', '.join(' '.join(item) for item in _COLUMNS.items())})")
        self._connection.execute("CREATE VIEW event_args AS SELECT file, id, args FROM events WHERE args IS NOT NULL")
        self._events = 0
        self._waiting: list[Any] = []

    def add(self, **values: Any) -> None:
        """Add an event."""
        self._events += 1
        row = {"file": 0, "rank": 0, "pid": 0, "tid": 0, "phase": "X", "id": self._events, **values}
        self._waiting += [row.get(name) for name in _COLUMNS]

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement's result."""
        return self._ask(sql).fetchall()

    def columns(self, sql: str) -> dict[str, Any]:
        """Return the columns of a statement's result as arrays."""
        return self._ask(sql).fetchnumpy()

    def derive(self, name: str, sql: str, **_: Any) -> None:
        """Create a table."""
        self._ask(f"CREATE OR REPLACE TEMP TABLE {name} AS {sql}")

    def _ask(self, sql: str) -> duckdb.DuckDBPyConnection:
        step = 500 * len(_COLUMNS)
        for at in range(0, len(self._waiting), step):
            values = self._waiting[at : at + step]
            row = f"({', '.join('?' * len(_COLUMNS))})"
            self._connection.execute(
                f"INSERT INTO events VALUES {', '.join([row] * (len(values) // len(_COLUMNS)))}", values
            )
        self._waiting.clear()
        return self._connection.execute(sql)
