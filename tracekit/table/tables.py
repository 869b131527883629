"""The event table of some traces: their entries of the cache, and the views over them."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError, StorageError, TraceFormatError
from tracekit.storage import basename, without_secrets
from tracekit.structs import Struct, field
from tracekit.table.build import KEY_ARGS_FILE, build_args, read_facts
from tracekit.table.cache import open_cache
from tracekit.table.columns import Head, peek_head
from tracekit.table.database import Database, Limits, check_available
from tracekit.table.derived import RunDatabase
from tracekit.table.growth import Part
from tracekit.table.jobs import Job, build_all
from tracekit.table.plain_columns import COLUMNS
from tracekit.table.schema import TABLES
from tracekit.table.shared_threads import PARENT_MEMBER, Member, SharedThreads, nested_events
from tracekit.table.steps import COUNTS
from tracekit.traces.inputs import find_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MIN_DERIVED_EVENTS: Final = 500_000
"""The events of a run from which on the tables that questions derive from them are cached."""

_ARGS: Final = "args.parquet"
_PROBE: Final = "args_probe"


class _Entry(Struct):
    """A file with its tables."""

    path: str  # file or URL
    job: Job  # its entry, and the steps that it was given
    folder: Path  # the folder of the entry
    facts: dict[str, Any]  # see `read_facts`
    rank: int | None = None  # its rank, assumed where it states none; None for a merged trace
    nested: Path | None = None  # its events, if it shares threads with other files
    members: list[int] = field(default_factory=list)  # the numbers of those files, by that in ``parent_member``

    def parts(self, table: str) -> list[Part]:
        """Return the parts of a table."""
        if table == "events" and self.nested is not None:
            return [Part(str(self.nested), 0, 1 << 62)]
        return [Part(*part) for part in self.facts["parts"].get(table, [(f"{table}.parquet", 0, 1 << 62)])]


class EventTables:
    """The tables of `tracekit.table.schema` over traces. Use it as a context manager, from one thread at a time.

    Ranks are on the clock of their base times ("wall"): an event starts at the base time of its file plus its time in the
    file. A merged trace keeps the clock of the merge. If tracekit has recorded batches of a rank, they are the steps in all
    files of the rank.

    Args:
        patterns: Files, folders, globs or URLs.
        cache: False to build the tables in a temporary folder.
        progress: Called with the completed share, 0 to 1, and a description of the current work.
        workers: See `build_all`.

    Attributes:
        notes: Sentences about files that are left out or have an assumed rank.

    Raises:
        MissingExtraError: The engine is not installed.
        ConfigError: No trace is named.
        StorageError: A file cannot be read, or the cache cannot be written.
        TraceFormatError: A named file, or every file, is not a trace.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        *,
        cache: bool = True,
        progress: Callable[[float, str], None] | None = None,
        workers: int | None = None,
    ) -> None:
        check_available()
        self.notes: list[str] = []
        self._workers = workers
        self._progress = progress or (lambda share, what: None)
        self._entries: list[_Entry] = []
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self._cache = stack.enter_context(open_cache(keep=cache))
            self._open(find_traces(patterns))
            self._stack = stack.pop_all()

    def __enter__(self) -> EventTables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary folder, if there is one."""
        self._stack.close()

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The facts of each file by its number, with ``source``, as it is opened, and the rank that it has here."""
        return [{**entry.facts, "source": entry.path, "rank": entry.rank} for entry in self._entries]

    def query(self, sql: str, limits: Limits | None = None) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run one SELECT, DESCRIBE or EXPLAIN on a locked connection."""
        with self.connection(sql, limits or Limits()) as (database, statement):
            return database.query(statement)

    @contextlib.contextmanager
    def connection(self, sql: str, limits: Limits) -> Iterator[tuple[Database, str]]:
        """Open a locked connection for a query, and yield it with the checked statement."""
        with (
            tempfile.TemporaryDirectory(prefix="tracekit-query-") as scratch,
            Database(Path(scratch), limits) as database,
        ):
            yield database, self._prepare(database, sql)

    @contextlib.contextmanager
    def database(self) -> Iterator[RunDatabase]:
        """Open a connection with the views, for statements of tracekit itself; ``args`` of ``events`` are NULL."""
        with (
            tempfile.TemporaryDirectory(prefix="tracekit-query-") as scratch,
            RunDatabase(Path(scratch), self._cache, self._identity, self._key_args) as database,
        ):
            self._create_views(database)
            self._create_events(database, "none")
            yield database

    @property
    def _identity(self) -> str:
        """A text that identifies the events of a large run that has ended; empty for other runs."""
        if sum(entry.facts["rows"]["events"] for entry in self._entries) < MIN_DERIVED_EVENTS or any(
            entry.facts["account"]["is_cut"] for entry in self._entries
        ):
            return ""
        return repr(
            [(entry.folder.name, entry.rank, entry.nested and entry.nested.parent.name) for entry in self._entries]
        )

    def _key_args(self) -> list[Path]:
        """Return the tables with the arguments of events with `has_key_args`; some have those of all events."""
        for entry in self._entries:
            if not (entry.folder / KEY_ARGS_FILE).exists():
                self._add_args(entry)
        keys = [entry.folder / KEY_ARGS_FILE for entry in self._entries]
        return [key if key.exists() else key.with_name(_ARGS) for key in keys]

    def _prepare(self, database: Database, sql: str) -> str:
        """Create the views for a query, and lock the connection; return the statement."""
        statement, selected = database.check(sql)
        self._create_views(database)
        tables = ("events", "counters", "flows")
        paths = [entry.folder / part.name for entry in self._entries for name in tables for part in entry.parts(name)]
        # Some tables of arguments are not there yet. Nothing that a user wrote is planned before the lock.
        database.lock([*paths, *(entry.folder / _ARGS for entry in self._entries)])
        # Arguments are read from the traces only if the plan of the query has them.
        has_args = database.reads(selected, _PROBE, "args")
        for entry in self._entries if has_args else ():
            self._add_args(entry)
        self._create_events(database, "files" if has_args else "none")
        return statement

    # Entries.

    def _open(self, found: list[tuple[str, bool]]) -> None:
        own: list[tuple[str, bool, Head]] = []
        others: list[tuple[str, bool, Head]] = []
        left_out: list[TraceFormatError] = []
        for path, named in found:
            try:
                head = peek_head(path) if len(found) > 1 else Head()
            except TraceFormatError as error:
                if named:
                    raise
                left_out.append(error)
                continue
            if head.is_merged and not named:
                shown = without_secrets(path)
                self.notes.append(f"{shown} is left out: it is the result of a merge; name it to read it")
                continue
            (own if head.is_rank_trace else others).append((path, named, head))
        # Rank traces first: the other traces of a rank take their steps.
        left_out += self._take(own, {})
        left_out += self._take(others, self._steps_of_ranks() if others and self._entries else {})
        if not self._entries:
            raise left_out[0] if left_out else ConfigError("the only traces there are results of a merge; name one")
        self.notes += [f"{error.path} is left out: {error.reason}" for error in left_out]
        self._entries.sort(key=lambda entry: entry.path)
        self._assume_ranks()
        self._nest_shared_threads({path for path, *_ in own})

    def _nest_shared_threads(self, rank_traces: set[str]) -> None:
        """Replace the events of files that share threads by those of `SharedThreads`."""
        ranks: dict[int, list[int]] = {}
        for number in sorted(range(len(self._entries)), key=lambda at: self._entries[at].path not in rank_traces):
            rank = self._entries[number].rank
            if rank is not None:
                ranks.setdefault(rank, []).append(number)
        groups = [own for own in ranks.values() if len(own) > 1]
        jobs = []
        for own in groups:
            entries = [self._entries[number] for number in own]
            members = [Member(one.path, one.folder, one.parts("events"), one.facts["base_ns"]) for one in entries]
            jobs.append(SharedThreads(members))
        for own, folder in zip(groups, build_all(self._cache, jobs, self._progress, self._workers), strict=True):
            assert isinstance(folder, Path)
            for member, path in nested_events(folder).items():
                entry = self._entries[own[member]]
                entry.nested, entry.members = path, own
                entry.facts["columns"]["events"] = [*COLUMNS["events"], PARENT_MEMBER]

    def _take(
        self, files: list[tuple[str, bool, Head]], steps: dict[int | None, list[tuple[int, ...]]]
    ) -> list[TraceFormatError]:
        """Add the entries of files, and return why others are left out."""
        jobs = [Job(path, tuple(steps.get(head.rank, ()))) for path, _, head in files]
        results = build_all(self._cache, jobs, self._progress, self._workers)
        errors = []
        for (path, named, _), job, result in zip(files, jobs, results, strict=True):
            if not isinstance(result, TraceFormatError):
                self._entries.append(_Entry(path, job, result, read_facts(result)))
            elif named:
                raise result
            else:
                errors.append(result)
        return errors

    def _steps_of_ranks(self) -> dict[int | None, list[tuple[int, ...]]]:
        """Return the batches of each rank: number, start and end in ns since the epoch, evaluation, counts."""
        steps: dict[int | None, list[tuple[int, ...]]] = {}
        with self._cache.scratch() as scratch, Database(scratch, Limits(threads=1)) as database:
            for entry in self._entries:
                rank, base = entry.facts["rank"], entry.facts["base_ns"]
                if entry.facts["has_batches"] and rank is not None:
                    source = database.read_parquet([entry.folder / "steps.parquet"])
                    columns = f"step, start_ns + {base}, end_ns + {base}, evaluation, {', '.join(COUNTS)}"
                    found = database.run(f"SELECT {columns} FROM {source} ORDER BY step_index")
                    steps.setdefault(rank, []).extend(found)
        return steps

    def _add_args(self, entry: _Entry) -> None:
        """Add the arguments to an entry, if they are missing."""
        if (entry.folder / _ARGS).exists():
            return
        if entry.job.key() != entry.folder.name:
            raise StorageError(f"{entry.facts['path']}: the file changed while it was read; run the query again")
        self._progress(0.0, f"reading arguments of {basename(entry.path)}")
        with self._cache.scratch() as scratch:
            build_args(entry.path, scratch, _ARGS)
            os.replace(scratch / _ARGS, entry.folder / _ARGS)

    def _assume_ranks(self) -> None:
        """Give a rank to each file that states none."""
        taken = {entry.facts["rank"] for entry in self._entries}
        free = (rank for rank in itertools.count() if rank not in taken)
        for entry in self._entries:
            entry.rank = entry.facts["rank"]
            if entry.rank is not None or entry.facts["is_merged"]:
                continue
            entry.rank = next(free)
            if len(self._entries) > 1:
                self.notes.append(f"{entry.facts['path']} does not state its rank; it is called rank {entry.rank}")

    # Views.

    def _create_views(self, database: Database) -> None:
        self._create_dimensions(database)
        database.run(f"CREATE TABLE {_PROBE} AS SELECT 0 AS file, 0::BIGINT AS id, ''::VARCHAR AS args")
        self._create_events(database, "probe")
        own = {
            "file": "r.file_index",
            "time_ns": "r.time_ns + t.base_ns",
            "rank": "t.rank",
            "pid": "t.pid",
            "tid": "t.tid",
        }
        for name in ("counters", "flows"):
            database.run(
                f"CREATE VIEW {name} AS SELECT {_columns(name, own, 'r')} FROM {self._source(database, name)} r "
                "JOIN tracks t ON t.file = r.file_index AND t.track = r.track"
            )

    def _create_events(self, database: Database, args: str) -> None:
        """Create the view of events."""
        own = {
            "file": "e.file_index",
            "id": "e.file_row_number",
            "start_ns": "e.start_ns + t.base_ns",
            **{name: f"t.{name}" for name in ("rank", "pid", "tid", "process", "thread")},
            **{name: f"s.{name}" for name in ("step", *COUNTS)},
            "phase": "chr(e.phase::INTEGER)",
            "parent_file": self._parent_file(),
            "args": "NULL::VARCHAR" if args == "none" else "a.args",
        }
        join = ""
        if args != "none":
            files = database.read_parquet([entry.folder / _ARGS for entry in self._entries])
            source, file = (_PROBE, "file") if args == "probe" else (files, "file_index")
            join = f" LEFT JOIN {source} a ON a.{file} = e.file_index AND a.id = e.file_row_number"
        database.run(
            f"CREATE OR REPLACE VIEW events AS SELECT {_columns('events', own, 'e')} FROM {self._source(database, 'events')} e "
            "JOIN tracks t ON t.file = e.file_index AND t.track = e.track "
            f"LEFT JOIN file_steps s ON s.file = e.file_index AND s.step_index = e.step_index{join}"
        )

    def _parent_file(self) -> str:
        """Return an expression for the file of a parent."""
        own = "CASE WHEN e.parent IS NOT NULL THEN e.file_index END"
        if all(entry.nested is None for entry in self._entries):
            return own
        members = [entry.members for entry in self._entries]
        return f"coalesce(({members}::INTEGER[][])[(e.file_index + 1)::BIGINT][e.{PARENT_MEMBER} + 1], {own})"

    def _create_dimensions(self, database: Database) -> None:
        """Create the small tables: files, tracks and steps of files, and with them the views ``ranks`` and ``steps``."""
        values = []
        for number, entry in enumerate(self._entries):
            facts, base = entry.facts, entry.facts["base_ns"]
            span = (None if time is None else time + base for time in facts["span"])
            own = (number, facts["path"], entry.rank, facts["host"], base, facts["rows"]["events"], *span)
            cells = (*own, facts["damage"] or None, facts["has_given_steps"], facts["is_merged"])
            values.append(f"({', '.join(map(_literal, cells))})")
        names = "file, path, rank, host, base_ns, events, start_ns, end_ns, damage, has_given_steps, is_merged"
        # The type of the engine's file_index: a join of other types casts each row.
        database.run(
            f"CREATE TABLE files AS SELECT * REPLACE (file::UBIGINT AS file) FROM (VALUES {', '.join(values)}) v({names})"
        )
        times = "r.start_ns + f.base_ns AS start_ns, r.end_ns + f.base_ns AS end_ns"
        for table, name, order, hidden, columns in (
            ("tracks", "tracks", "track", "rank", "f.base_ns"),
            ("steps", "file_steps", "step_index", "rank, start_ns, end_ns", times),
        ):
            database.run(
                f"CREATE TABLE {name} AS SELECT f.file, r.* EXCLUDE ({hidden}), {columns}, "
                "CASE WHEN f.is_merged THEN r.rank ELSE f.rank END::INTEGER AS rank, f.has_given_steps "
                f"FROM {self._source(database, table)} r JOIN files f ON f.file = r.file_index ORDER BY f.file, r.{order}"
            )
        database.run(
            f"CREATE VIEW steps AS SELECT {_columns('steps', {'duration_ns': 's.end_ns - s.start_ns'}, 's')} "
            "FROM file_steps s WHERE NOT s.has_given_steps"
        )
        # A merged trace has a row for each rank, with the span of the file.
        database.run(
            f"CREATE VIEW ranks AS SELECT {_columns('ranks', {'rank': 't.rank'}, 'f')} FROM files f "
            "LEFT JOIN (SELECT DISTINCT file, rank FROM tracks) t ON t.file = f.file ORDER BY t.rank, f.file"
        )

    def _source(self, database: Database, name: str) -> str:
        """Return a table function that reads a table of all files; columns that no file has are missing."""
        found = {tuple(entry.facts["columns"].get(name, ())) for entry in self._entries}
        parts = [(number, part) for number, entry in enumerate(self._entries) for part in entry.parts(name)]
        paths = [self._entries[number].folder / part.name for number, part in parts]
        read = database.read_parquet(paths, by_name=len(found) > 1 or len(parts) > len(self._entries))
        absent = {column.name for column in TABLES.get(name, ("", ()))[1]} & set(COLUMNS.get(name, ()))
        absent -= set().union(*found)
        nulls = "".join(f", NULL AS {column}" for column in sorted(absent)) if any(found) else ""
        if len(parts) == len(self._entries):
            return f"(SELECT file_index, file_row_number, *{nulls} FROM {read})"
        places = ", ".join(f"({at}, {file}, {part.first_row}, {part.rows})" for at, (file, part) in enumerate(parts))
        return (
            f"(SELECT p.file AS file_index, r.number + p.first_row AS file_row_number, r.* EXCLUDE (part, number){nulls} "
            f"FROM (SELECT file_index AS part, file_row_number AS number, * FROM {read}) r "
            f"JOIN (VALUES {places}) p(part, file, first_row, row_count) ON p.part = r.part AND r.number < p.row_count)"
        )


def _columns(table: str, own: dict[str, str], alias: str) -> str:
    """Return the columns of a view: expressions for some, and those of a table for the others."""
    return ", ".join(
        f"({own.get(column.name, f'{alias}.{column.name}')})::{column.kind} AS {column.name}"
        for column in TABLES[table][1]
    )


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value)
