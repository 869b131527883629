"""DuckDB, the engine of the event table: the only module that imports ``duckdb``."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tracekit.arguments import MAX_SECONDS
from tracekit.errors import MissingExtraError, QueryError
from tracekit.structs import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

T = TypeVar("T")

# No comments: what follows must be the statement that the engine explains.
_EXPLAIN: Final = re.compile(r"\s*explain\b(?:\s+analyze\b)?(?:\s*\([\w\s,]*\))?", re.IGNORECASE)
_ALLOWED: Final = frozenset({"SELECT", "EXPLAIN"})
# Operators of a plan that do more than read.
_EFFECT: Final = re.compile("COPY|INSERT|UPDATE|DELETE|MERGE_INTO|JSON_EXECUTE")
_BATCH_ROWS: Final = 10_000
_STOP_S: Final = 3.0  # for the engine to stop when it is interrupted
_FIRST_MEMORY_BYTES: Final = 350 * 10**6
"""Memory that tracekit's own statements get at first. They all use the disk beyond it, except aggregates that keep values."""

_TYPES: Final = {int: "BIGINT", float: "DOUBLE", str: "VARCHAR", bool: "BOOLEAN"}


class Limits(Struct, frozen=True):
    """The limits of a query."""

    seconds: float = 600.0  # the maximum time
    rows: int = 1_000_000  # the maximum number of rows of the result
    memory_bytes: int = 2 * 10**9  # the maximum memory of the engine; it uses the disk beyond it where it can
    threads: int | None = None  # the maximum number of threads; None for all processors


def check_available() -> None:
    """Check that the engine is installed.

    Raises:
        MissingExtraError: It is not.
    """
    try:
        import duckdb  # noqa: F401 - found
    except ImportError as error:
        raise MissingExtraError("the package duckdb", "explain", "the event table") from error


class Database:
    """A connection to a database in memory that reads Parquet files. Use it as a context manager, from one thread at a time.

    All methods raise `QueryError` if a statement is wrong or exceeds a limit, or the engine fails.

    Args:
        scratch: A private folder for what exceeds the memory.
        limits: The limits of memory and threads, and of each query.

    Raises:
        MissingExtraError: The engine is not installed.
    """

    def __init__(self, scratch: Path, limits: Limits) -> None:
        check_available()
        import duckdb

        self._limits = limits
        self._memory_bytes = min(limits.memory_bytes, _FIRST_MEMORY_BYTES)
        self._is_abandoned = False
        self._errors: tuple[type[Exception], ...] = (duckdb.Error,)
        self._out_of_memory: type[Exception] = duckdb.OutOfMemoryException
        config: dict[str, Any] = {
            "memory_limit": _memory(self._memory_bytes),
            "temp_directory": str(scratch),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,
        }
        if limits.threads is not None:
            config["threads"] = limits.threads
        self._connection = duckdb.connect(":memory:", config=config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, and wait for its threads."""
        if not self._is_abandoned:
            self._connection.close()

    # Statements of tracekit itself.

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        return list(self._ask(lambda: self._connection.execute(sql).fetchall()))

    def columns(self, sql: str) -> dict[str, Any]:
        """Run a statement and return its columns by name, as arrays of numpy, which must be installed."""
        return dict(self._ask(lambda: self._connection.execute(sql).fetchnumpy()))

    def iterate(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Run a statement and yield its rows; only some of them are in memory."""
        try:
            self._allow_all_memory()  # rows that were yielded cannot be asked for again
            result = self._connection.execute(sql)
            while rows := result.fetchmany(_BATCH_ROWS):
                yield from rows
        except self._errors as error:
            raise self._failure(error) from error

    def _ask(self, ask: Callable[[], T]) -> T:
        """Return an answer; ask again with all memory of the limits if the engine runs out of its first share."""
        try:
            try:
                return ask()
            except self._out_of_memory:
                if self._memory_bytes == self._limits.memory_bytes:
                    raise
                self._allow_all_memory()
                return ask()
        except self._errors as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> QueryError:
        if isinstance(error, self._out_of_memory):
            return QueryError(f"the event table needs more memory than {_memory(self._limits.memory_bytes)}")
        return QueryError(f"the event table cannot be used: {_first_line(error)}")

    def _allow_all_memory(self) -> None:
        self._memory_bytes = self._limits.memory_bytes
        self._connection.execute(f"SET memory_limit='{_memory(self._memory_bytes)}'")

    def write_parquet(self, sql: str, path: Path) -> None:
        """Write the rows of a query as Parquet, in their order."""
        self.run(f"COPY ({sql}) TO {_quoted(path)} (FORMAT parquet, {_PARQUET})")

    def write_arrow(self, table: object, path: Path, columns: Sequence[str] = ()) -> None:
        """Write a table, which any object with ``__arrow_c_stream__`` is, as Parquet. Rows keep their order."""
        self._connection.register("arrow_table", table)
        try:
            self.write_parquet(f"SELECT {', '.join(columns) or '*'} FROM arrow_table", path)
        finally:
            self._connection.unregister("arrow_table")

    def write_rows(self, rows: Iterator[Sequence[Any]], columns: Mapping[str, type], path: Path) -> None:
        """Write rows, with these names and types of columns, as Parquet. A file of JSON is written next to it meanwhile."""
        source = path.with_suffix(".json")
        with source.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")
        types = ", ".join(f"{name}: '{_TYPES[kind]}'" for name, kind in columns.items())
        read = f"read_json({_quoted(source)}, format='newline_delimited', columns={{{types}}})"
        self.write_parquet(f"SELECT * FROM {read}", path)
        source.unlink()

    def read_parquet(self, paths: Sequence[Path], *, by_name: bool = False) -> str:
        """Return a table function that reads Parquet files, for a statement."""
        return f"read_parquet([{', '.join(map(_quoted, paths))}]{', union_by_name=true' if by_name else ''})"

    def lock(self, paths: Sequence[Path]) -> None:
        """Refuse, from now on and for good, to open other files than some, to load extensions and to change settings."""
        self._allow_all_memory()  # a statement of a user is run once
        self.run(f"SET allowed_paths=[{', '.join(map(_quoted, paths))}]")
        self.run("SET enable_external_access=false")
        self.run("SET lock_configuration=true")

    # Statements of users.

    def check(self, sql: str) -> tuple[str, str]:
        """Return a statement of a user, and the SELECT in it; it must be one SELECT, DESCRIBE or EXPLAIN of these."""
        statement = selected = self._only_statement(sql)
        if statement.type.name == "EXPLAIN":
            match = _EXPLAIN.match(sql)
            if match is None:
                raise QueryError("the query has a comment before EXPLAIN; leave it out")
            selected = self._only_statement(sql[match.end() :])
            if selected.type.name != "SELECT":
                raise QueryError("the query explains something else than a SELECT")
        return str(statement.query), str(selected.query)

    def _only_statement(self, sql: str) -> Any:
        with self._explained():
            statements = self._connection.extract_statements(sql)
        if len(statements) != 1:
            raise QueryError(f"the query holds {len(statements)} statements; give one SELECT, DESCRIBE or EXPLAIN")
        if statements[0].type.name not in _ALLOWED:
            raise QueryError(
                f"the query is a statement of type {statements[0].type.name}; give one SELECT, DESCRIBE or EXPLAIN"
            )
        return statements[0]

    def reads(self, selected: str, table: str, column: str) -> bool:
        """Return True if the plan of a SELECT reads a column of a table; refuse a plan that does more than read.

        A SELECT can hold a COPY or an INSERT in a WITH clause, and a function that runs other statements. The plan shows both,
        wherever they stand.
        """
        plan = self._limited(lambda: self._connection.execute(f"EXPLAIN (FORMAT json) {selected}").fetchall())
        nodes = [node for _, text in plan for root in json.loads(text) for node in _nodes(root)]
        for node in nodes:
            if (match := _EFFECT.search(node["name"])) is not None:
                raise QueryError(f"the query does more than read ({match[0]}); give one SELECT, DESCRIBE or EXPLAIN")
        return any(_scans(node, table, column) for node in nodes)

    def query(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run a statement that was checked; return the names of the columns, and the rows."""

        def ask() -> tuple[list[str], list[tuple[Any, ...]]]:
            result = self._connection.execute(sql)
            return [column[0] for column in result.description or ()], result.fetchmany(self._limits.rows + 1)

        names, rows = self._limited(ask)
        self._check_count(len(rows))
        return names, rows

    def write_query(self, sql: str, path: Path, scratch: Path) -> None:
        """Run a statement that was checked, and write its rows as Parquet; ``scratch`` is a private folder."""

        def write() -> int:
            # This connection may be locked; the other one reads only the result.
            with Database(scratch, self._limits) as writer:
                writer.write_arrow(_Stream(self._connection, sql), path)
                return int(writer.run(f"SELECT count(*) FROM {self.read_parquet([path])}")[0][0])

        self._check_count(self._limited(write))

    def _limited(self, ask: Callable[[], T]) -> T:
        """Return an answer of the engine within the time limit, and give its errors the words for a user.

        The engine cannot interrupt a single function, such as ``range(300000000)`` in a constant. A thread that goes on is
        abandoned: it ends with the process.
        """
        answers: list[T] = []
        errors: list[Exception] = []

        def work() -> None:
            try:
                answers.append(ask())
            except Exception as error:  # noqa: BLE001 - the caller raises it
                errors.append(error)

        thread = threading.Thread(target=work, name="tracekit query", daemon=True)
        thread.start()
        try:
            thread.join(min(self._limits.seconds, MAX_SECONDS))
        finally:  # also at Ctrl-C
            is_late = self._is_abandoned = thread.is_alive()
            if is_late:
                self._connection.interrupt()
                thread.join(_STOP_S)
                self._is_abandoned = thread.is_alive()
        if is_late:
            raise QueryError(f"the query takes longer than {self._limits.seconds:g} s and was stopped")
        with self._explained():
            for error in errors:
                raise error
        return answers[0]

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Give errors of the engine the words for a user."""
        try:
            yield
        except self._out_of_memory as error:
            raise QueryError(
                f"the query needs more memory than {_memory(self._limits.memory_bytes)}; allow more (--max-memory), "
                "or ask for fewer rows or groups"
            ) from error
        except self._errors as error:
            raise QueryError(f"the query cannot be run: {_first_line(error)}") from error

    def _check_count(self, rows: int) -> None:
        if rows > self._limits.rows:
            raise QueryError(f"the result has more than {self._limits.rows:,} rows; add LIMIT, or raise --max-rows")

    def relation(self, sql: str) -> Any:
        """Return a statement that was checked as a relation of DuckDB, which runs when it is read."""
        with self._explained():
            return self._connection.sql(sql)


class _Stream:
    """The result of a query for another connection, which refuses relations of this one."""

    def __init__(self, connection: Any, sql: str) -> None:
        self._connection = connection
        self._sql = sql

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the result as a stream; the query runs when that is read."""
        return self._connection.sql(self._sql).__arrow_c_stream__(requested_schema)


_PARQUET: Final = "COMPRESSION snappy, PARQUET_VERSION v2, ROW_GROUP_SIZE 61440"  # smaller groups stay in the caches


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _memory(size_bytes: int) -> str:
    return f"{size_bytes // 10**6} MB"


def _first_line(error: Exception) -> str:
    # The rest shows the statement, with a caret below it.
    text = str(error).strip()
    return text.partition("\n\nLINE ")[0].replace("\n", " ")


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("children", ()):
        yield from _nodes(child)


def _scans(node: dict[str, Any], table: str, column: str) -> bool:
    info = node.get("extra_info", {})
    found = info.get("Projections", ())
    return str(info.get("Table", "")).rpartition(".")[2] == table and column in (
        [found] if isinstance(found, str) else found
    )
