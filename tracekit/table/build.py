"""Build an entry of the cache: the tables of one file as Parquet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import StorageError, TraceFormatError, TracekitError
from tracekit.structs import astuple, replace, to_builtins
from tracekit.table.columns import FileFacts, TrackFacts, read_columns
from tracekit.table.database import Database, Limits
from tracekit.table.extend import extend_tables, write_columns
from tracekit.table.growth import Growth, Part
from tracekit.table.plain_columns import ALL_ARGS, KEY_ARGS
from tracekit.table.steps import COUNTS, Step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.core import _merge
    from tracekit.table.plain_columns import PlainColumns

FACTS: Final = "facts"
KEY_ARGS_FILE: Final = "key_args.parquet"  # the arguments of events with `has_key_args`. Files that may grow have none.
_TABLES: Final = ("events", "counters", "flows")
LIMITS: Final = Limits(memory_bytes=300 * 10**6, threads=1)  # the limits of the engine in a process that builds entries


def build_entry(
    path: str,
    folder: Path,
    database: Database,
    *,
    given_steps: Callable[[FileFacts], list[Step]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write the tables of a file. The database may serve other entries before and afterwards."""
    growth = Growth()
    columns, facts = _read(path, folder, given_steps=given_steps, progress=progress, growth=growth, keeps_args=KEY_ARGS)
    for name in _TABLES:
        write_columns(database, columns, name, folder / f"{name}.parquet")
    parts = {name: [Part(f"{name}.parquet", 0, facts.rows[name])] for name in _TABLES}
    if growth.rows and not facts.has_given_steps:
        growth.parts = parts
        growth.save(folder)
    else:
        write_columns(database, columns, "args", folder / KEY_ARGS_FILE)
    _finish(database, facts, folder, parts)


def extend_entry(path: str, previous: Path, folder: Path, progress: Callable[[int], None] | None = None) -> bool:
    """Write the tables of a file that has grown, from those of an earlier entry and its new bytes."""
    with Database(folder, LIMITS) as database:
        try:
            found = extend_tables(database, path, previous, folder, progress)
        except TraceFormatError:
            found = None
        if found is not None:
            facts, growth = found
            before = read_facts(previous)["span"]
            facts.span = _outer(facts.span[0], before[0], min), _outer(facts.span[1], before[1], max)
            growth.save(folder)
            _finish(database, facts, folder, growth.parts)
    if found is None:
        for left in folder.iterdir():
            left.unlink()
    return found is not None


def _outer(one: int | None, other: int | None, outer: Callable[[int, int], int]) -> int | None:
    return outer(one, other) if one is not None and other is not None else one if other is None else other


def _finish(database: Database, facts: FileFacts, folder: Path, parts: dict[str, list[Part]]) -> None:
    """Write the tracks, the steps and the facts of an entry with these parts."""
    _write_dimensions(database, facts, folder)
    document = to_builtins(replace(facts, tracks=[], steps=[]))
    # Name, first row and number of rows of each part.
    document["parts"] = {name: [astuple(part) for part in own] for name, own in parts.items()}
    (folder / FACTS).write_text(json.dumps(document), encoding="utf-8")


def build_args(path: str, folder: Path, name: str) -> None:
    """Write the arguments of the rows of a file, which is read again for them."""
    with Database(folder, LIMITS) as database:
        columns, _ = _read(path, folder, keeps_args=ALL_ARGS)
        write_columns(database, columns, "args", folder / name)


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the facts of an entry: those of `FileFacts` but for tracks and steps, and the ``parts`` of its tables."""
    found: dict[str, Any] = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    return found


def _read(path: str, folder: Path, **options: Any) -> tuple[_merge.Columns | PlainColumns, FileFacts]:
    """Read a file; see `read_columns`."""
    try:
        return read_columns(path, folder=str(folder), **options)
    except TracekitError:
        raise
    except OSError as error:
        raise StorageError(f"{folder}: the cache cannot be written: {error.strerror}") from error


def _write_dimensions(database: Database, facts: FileFacts, folder: Path) -> None:
    tracks = {"track": int, "pid": int, "tid": int, "process": str, "thread": str, "rank": int}
    rows = ((number, *astuple(track)) for number, track in enumerate(facts.tracks))
    database.write_rows(rows, tracks, folder / "tracks.parquet")
    steps: dict[str, type] = dict.fromkeys(("step_index", "rank", "step", "start_ns", "end_ns"), int)
    steps |= {"evaluation": bool, **dict.fromkeys(COUNTS, int)}
    database.write_rows(
        (
            (
                index,
                step.group if facts.is_merged else None,
                step.step,
                step.start_ns,
                step.end_ns,
                step.evaluation,
                *step.counts,
            )
            for index, step in enumerate(facts.steps)
        ),
        steps,
        folder / "steps.parquet",
    )


assert TrackFacts.__struct_fields__ == ("pid", "tid", "process", "thread", "rank")
