"""Build the entry of a rank trace that has grown from an earlier entry and the new bytes; see `tracekit.table.growth`."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from tracekit import core
from tracekit.table.columns import FileFacts, new_columns, read_columns
from tracekit.table.growth import Growth, Part, link_part, load_growth
from tracekit.table.plain_columns import COLUMNS, PlainColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from tracekit.core import _merge
    from tracekit.table.database import Database

TEXTS: Final = {
    "events": ("category", "name", "process_group"),
    "counters": ("name", "series"),
    "flows": ("phase", "category", "name"),
    "args": ("args",),
}
"""The columns of each table that are texts."""

_CHUNK_ROWS: Final = 1_000_000
_SLICE: Final = ord("X")
_NESTED: Final = ("depth", "parent", "self_ns", "step_index")


class ArrowTable:
    """A table that Arrow consumers can read any number of times. Asking for its schema calls and reads nothing.

    Needs the compiled core. ``columns`` returns finished columns with the unread table. It is called from any thread when the
    consumer asks a stream for its first batch. Consumers replace an error by one of their own type.
    """

    def __init__(self, name: str, columns: Callable[[], _merge.Columns]) -> None:
        self._name = name
        self._columns = columns

    def __arrow_c_schema__(self) -> object:
        """Return the schema as a capsule."""
        assert core.merge is not None
        return core.merge.arrow_schema(self._name)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a stream of batches as a capsule; a requested schema is ignored, as the protocol allows."""
        del requested_schema
        assert core.merge is not None
        return core.merge.arrow_stream(self._name, self._columns)


def rows_of(table: str, folder: Path, parts: list[Part]) -> str:
    """Return a statement for the rows of parts, with the column ``id`` and all columns of the table."""
    kinds = {name: "VARCHAR" if name in TEXTS[table] else "BIGINT" for name in COLUMNS[table]}
    kinds |= {"value": "DOUBLE"} if table == "counters" else {}
    number = "row_number" if table == "flows" else "id"  # flows have a column id
    nulls = ", ".join(f"NULL::{kind} AS {name}" for name, kind in kinds.items())
    pieces = [f"SELECT 0::BIGINT AS {number}, {nulls} WHERE false"]
    for part in parts:
        path = str(folder / part.name).replace("'", "''")
        pieces.append(
            f"SELECT file_row_number + {part.first_row} AS {number}, * FROM read_parquet('{path}') "
            f"WHERE file_row_number < {part.rows}"
        )
    return " UNION ALL BY NAME ".join(pieces)


def write_columns(database: Database, columns: _merge.Columns | PlainColumns, table: str, path: Path) -> None:
    """Write a table of columns as Parquet."""
    used = columns.used()[table] or COLUMNS[table]
    if not isinstance(columns, PlainColumns):
        database.write_arrow(ArrowTable(table, lambda: columns), path, used)
        return
    places = [COLUMNS[table].index(column) for column in used]
    types = {column: float if column == "value" else str if column in TEXTS[table] else int for column in used}
    database.write_rows(([row[at] for at in places] for row in columns.rows(table)), types, path)


def nest_slices(database: Database, folder: Path, tracks: int) -> None:
    """Nest the slices of the table ``to_nest``, into the table ``nesting`` with place, depth, parent (a place) and self_ns.

    ``to_nest`` has the columns place (from 0 on), track, start_ns and duration_ns; outer slices come before the slices that they
    enclose.
    """
    columns = new_columns(str(folder))
    for track in range(tracks):
        columns.track(b"0", b"%d" % track)
    ((slices,),) = database.run("SELECT count(*) FROM to_nest")
    for first in range(0, slices, _CHUNK_ROWS):
        found = database.columns(
            "SELECT track, start_ns, duration_ns FROM to_nest "
            f"WHERE place >= {first} AND place < {first + _CHUNK_ROWS} ORDER BY place"
        )
        columns.add_slices(*(values.astype("int64").tobytes() for values in found.values()))
    columns.finish(array("q", [0] * tracks).tobytes(), b"")
    path = folder / "nesting.parquet"
    write_columns(database, columns, "events", path)
    rows = rows_of("events", folder, [Part(path.name, 0, slices)])
    database.run(f"CREATE OR REPLACE TEMP TABLE nesting AS SELECT id AS place, depth, parent, self_ns FROM ({rows})")
    path.unlink()


def replaced(names: Collection[str], alias: str) -> str:
    """Return the columns of events, in order: some of them those of the table ``n``, where that has a row."""
    return ", ".join(
        f"CASE WHEN n.id IS NULL THEN {alias}.{name} ELSE n.{name} END AS {name}"
        if name in names
        else f"{alias}.{name}"
        for name in COLUMNS["events"]
    )


def extend_tables(
    database: Database, path: str, previous: Path, folder: Path, progress: Callable[[int], None] | None
) -> tuple[FileFacts, Growth] | None:
    """Write the new parts of all tables, and link the others; return the facts and the state, None to build all anew."""
    growth = load_growth(previous, path)
    if growth is None:
        return None
    known, parts = growth.rows, growth.parts
    columns, facts = read_columns(path, folder=str(folder), progress=progress, growth=growth)
    if not growth.rows:
        return None
    growth.serial += 1
    for table in ("events", "counters", "flows"):
        new = folder / f"new-{table}.parquet"
        write_columns(database, columns, table, new)
        base, count = known[table], facts.rows[table]
        kept = [Part(part.name, part.first_row, min(part.rows, base - part.first_row)) for part in parts[table]]
        database.run(f"CREATE OR REPLACE TEMP VIEW old AS {rows_of(table, previous, kept)}")
        database.run(f"CREATE OR REPLACE TEMP VIEW new AS {rows_of(table, folder, [Part(new.name, base, count)])}")
        first = base
        if table == "events":
            nested = _nest_again(database, previous, folder, base, facts, growth)
            if nested is None:
                return None
            first = nested
        # Parts are merged, so that their number stays small: each has at least twice the rows of the next one.
        while kept and first - kept[-1].first_row <= 2 * (base + count - first):
            first = min(first, kept.pop().first_row)
        kept = [Part(part.name, part.first_row, min(part.rows, first - part.first_row)) for part in kept]
        for part in kept:
            link_part(previous / part.name, folder / part.name)
        added = Part(f"{table}-{growth.serial}.parquet", first, base + count - first)
        _write_part(database, table, first, folder / added.name)
        growth.parts[table] = [*kept, added]
        growth.rows[table] += base
        facts.rows[table] += base
        facts.columns[table] = list(COLUMNS[table])
        new.unlink()
    return facts, growth


def _nest_again(
    database: Database, previous: Path, folder: Path, base: int, facts: FileFacts, growth: Growth
) -> int | None:
    """Nest the new rows, with the old ones that they or new steps can change, into the table ``nested``.

    Returns the first row; None if the begins of a new and an old slice with equal times would have to be compared.
    """
    times = dict(database.run(f"SELECT track, min(start_ns) FROM new WHERE phase = {_SLICE} GROUP BY track"))
    changed_ns = _first_change_ns(database, previous, facts)
    if changed_ns is not None:
        times = {track: min(times.get(track, changed_ns), changed_ns) for track in range(len(growth.tracks))}
    source = "(SELECT NULL::BIGINT, NULL::BIGINT WHERE false)"
    crossing = list(times.items())
    while crossing:
        times.update(crossing)
        source = f"(VALUES {', '.join(f'({track}, {time_ns})' for track, time_ns in times.items())})"
        crossing = database.run(
            f"SELECT o.track, min(o.start_ns) FROM old o JOIN {source} t(track, time_ns) ON t.track = o.track WHERE "
            f"o.phase = {_SLICE} AND o.start_ns < t.time_ns AND o.start_ns + o.duration_ns > t.time_ns GROUP BY o.track"
        )
    database.run(
        "CREATE TEMP TABLE again AS SELECT o.id, o.track, phase, start_ns, duration_ns, depth FROM old o "
        f"JOIN {source} t(track, time_ns) ON t.track = o.track WHERE o.start_ns >= t.time_ns "
        "UNION ALL SELECT id, track, phase, start_ns, duration_ns, depth FROM new"
    )
    if database.run(
        f"SELECT 1 FROM again WHERE phase = {_SLICE} AND duration_ns > 0 GROUP BY track, start_ns, duration_ns "
        f"HAVING min(id) < {base} AND max(id) >= {base} LIMIT 1"
    ):
        return None
    database.run(
        # Of slices with equal times, the depths have the order of the begins.
        "CREATE TEMP TABLE to_nest AS SELECT row_number() OVER (ORDER BY start_ns, duration_ns DESC, depth, id) - 1 AS place, "
        f"id, track, start_ns, duration_ns FROM again WHERE phase = {_SLICE}"
    )
    nest_slices(database, folder, len(growth.tracks))
    ((least_ns,),) = database.run("SELECT min(start_ns) FROM again")
    spans = [
        f"({step.start_ns}, {step.end_ns}, {index})"
        for index, step in enumerate(facts.steps)
        # A step without a length starts with the next one; the join would take either.
        if least_ns is not None and step.end_ns > max(least_ns, step.start_ns)
    ]
    database.run(
        "CREATE TEMP TABLE nested AS "
        f"WITH step AS (SELECT * FROM (VALUES {', '.join(spans) or '(NULL, NULL, NULL)'}) s(first_ns, end_ns, step_index)) "
        "SELECT a.id, n.depth, p.id AS parent, n.self_ns, "
        "CASE WHEN a.start_ns < s.end_ns THEN s.step_index END AS step_index FROM again a "
        "ASOF LEFT JOIN step s ON a.start_ns >= s.first_ns LEFT JOIN to_nest own ON own.id = a.id "
        "LEFT JOIN nesting n ON n.place = own.place LEFT JOIN to_nest p ON p.place = n.parent"
    )
    first: int | None = database.run("SELECT min(id) FROM again")[0][0]
    return base if first is None else min(first, base)


def _first_change_ns(database: Database, previous: Path, facts: FileFacts) -> int | None:
    """Return the start of the first step that is new or has changed; None without such a step."""
    source = database.read_parquet([previous / "steps.parquet"])
    old = database.run(f"SELECT start_ns, end_ns FROM {source} ORDER BY step_index")
    new = [(step.start_ns, step.end_ns) for step in facts.steps]
    same = next((at for at, (one, other) in enumerate(zip(old, new)) if one != other), min(len(old), len(new)))  # noqa: B905
    return min((start for start, _ in [*old[same : same + 1], *new[same : same + 1]]), default=None)


def _write_part(database: Database, table: str, first: int, path: Path) -> None:
    number = "row_number" if table == "flows" else "id"
    values, join = ", ".join(f"u.{name}" for name in COLUMNS[table]), ""
    if table == "events":
        values, join = replaced(_NESTED, "u"), " LEFT JOIN nested n ON n.id = u.id"
    database.write_parquet(
        f"SELECT {values} FROM (SELECT * FROM old WHERE {number} >= {first} UNION ALL BY NAME "
        f"SELECT * FROM new) u{join} ORDER BY u.{number}",
        path,
    )
