"""The event table of a file as Arrow: lazy, readable again, and independent of the objects that made it."""

from __future__ import annotations

import gc
import json
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.table.columns import FileFacts, read_columns
from tracekit.table.extend import ArrowTable
from tracekit.table.plain_columns import ALL_ARGS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

duckdb = pytest.importorskip("duckdb")
pyarrow = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.core

EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 7, "tid": 7, "args": {"name": "python"}},
    {"ph": "X", "name": "child", "cat": "c", "pid": 7, "tid": 7, "ts": 12, "dur": 5.125},
    {"ph": "X", "name": "parent", "pid": 7, "tid": 7, "ts": 10, "dur": 10, "args": {"bytes": 5, "stream": -3}},
    {"ph": "i", "name": "mark", "pid": 7, "tid": "main", "ts": 11, "s": "t"},
    {"ph": "C", "name": "memory", "pid": 7, "tid": 7, "ts": 11, "args": {"used": 1.5, "what": "x"}},
    {"ph": "s", "name": "flow", "cat": "f", "id": 9, "pid": 7, "tid": 7, "ts": 11},
]


def tables_of(path: Path) -> tuple[Callable[[str], ArrowTable], list[FileFacts]]:
    """Return a function for the tables of a file, and a list that gets its facts each time that it is read."""
    reads: list[FileFacts] = []

    def read() -> Any:
        columns, facts = read_columns(str(path), keeps_args=ALL_ARGS)
        reads.append(facts)
        return columns

    return lambda name: ArrowTable(name, read), reads


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(EVENTS))
    return path


def test_file_is_read_once_for_each_use_and_not_for_its_schema(path: Path) -> None:
    tables, reads = tables_of(path)
    table = tables("events")
    schema = pyarrow.schema(table)
    assert schema.field("name").type == pyarrow.dictionary(pyarrow.int32(), pyarrow.utf8())
    capsule = table.__arrow_c_stream__()  # which is never read
    del capsule
    gc.collect()
    with duckdb.connect() as connection:
        connection.register("t", table)
        assert len(connection.execute("DESCRIBE t").fetchall()) == 16
        assert reads == []
        assert connection.execute("SELECT name, duration_ns FROM t ORDER BY start_ns").fetchall() == [
            *(("parent", 10_000), ("mark", None), ("child", 5_125))
        ]
    assert len(reads) == 1
    assert pyarrow.table(table) == pyarrow.table(table)
    assert len(reads) == 3


def test_rows_have_the_values_of_the_events(path: Path) -> None:
    tables, reads = tables_of(path)
    rows = {row["name"]: row for row in pyarrow.table(tables("events")).to_pylist()}
    assert {name: (row["depth"], row["parent"], row["self_ns"]) for name, row in rows.items()} == {
        "child": (1, 1, 5_125),
        "parent": (0, None, 4_875),
        "mark": (None, None, None),
    }
    assert (rows["parent"]["bytes"], rows["parent"]["stream"], rows["parent"]["category"]) == (5, -3, None)
    assert rows["mark"]["track"] != rows["child"]["track"]
    assert pyarrow.table(tables("counters")).to_pylist() == [
        {"track": 0, "name": "memory", "series": "used", "time_ns": 11_000, "value": 1.5}
    ]
    assert pyarrow.table(tables("flows")).to_pylist() == [
        {"track": 0, "phase": "s", "time_ns": 11_000, "category": "f", "name": "flow", "id": 9}
    ]
    assert pyarrow.table(tables("args")).to_pylist() == [{"id": 1, "args": '{"bytes": 5, "stream": -3}'}]
    assert [(track.pid, track.tid, track.process, track.thread) for track in reads[0].tracks] == [
        (7, 7, "python", None),
        (7, 3 * 2**30, "python", "main"),
    ]


def test_batches_outlive_the_stream_and_the_tables(path: Path) -> None:
    path.write_text(json.dumps([{**EVENTS[1], "ts": number, "name": f"n{number % 1000}"} for number in range(70_000)]))
    reader = pyarrow.RecordBatchReader.from_stream(tables_of(path)[0]("events"))
    batches = list(reader)
    del reader
    gc.collect()
    assert [batch.num_rows for batch in batches] == [65_536, 4_464]
    assert batches[1].column("name").to_pylist()[:2] == ["n536", "n537"]
    starts = batches[0].column("start_ns")
    del batches
    gc.collect()
    assert starts[65_535].as_py() == 65_535_000


def test_unreadable_file_is_an_error_of_the_consumer(path: Path) -> None:
    path.write_text("no trace")
    with pytest.raises(OSError, match="this is not a trace"):
        pyarrow.table(tables_of(path)[0]("events"))
