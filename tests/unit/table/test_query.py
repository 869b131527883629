"""Queries on the event table: views, the cache, and statements that are refused."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import tracekit
from tracekit.errors import ConfigError, QueryError, StorageError, TraceFormatError
from tracekit.table import jobs
from tracekit.table.cache import TableCache, file_key, open_cache
from tracekit.table.database import Limits
from tracekit.table.schema import TABLES
from tracekit.table.shared_threads import SharedThreads
from tracekit.table.tables import EventTables

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("duckdb")

BASE = 1_700_000_000_000_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRACEKIT_CACHE", str(folder))
    return folder


def x(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def write_torch(path: Path, events: list[dict[str, Any]], rank: int = 0, base: int = BASE) -> Path:
    header = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "baseTimeNanoseconds": base}
    path.write_text(json.dumps({**header, "traceEvents": events}))
    return path


def write_rank_trace(path: Path, events: list[dict[str, Any]], rank: int = 0, base: int = BASE) -> Path:
    metadata = {"ph": "M", "name": "tracekit_metadata", "pid": 1, "tid": 1}
    metadata["args"] = {"rank": rank, "baseTimeNanoseconds": base, "host": f"host{rank}"}
    path.write_text(json.dumps([metadata, *events]))
    return path


STEPS = [
    x("ProfilerStep#4", 0, 10, "user_annotation"),
    x("launch", 8, 1, "cuda_runtime", correlation=5),
    x("ProfilerStep#5", 10, 10, "user_annotation"),
    x("kernel_a", 12, 3, "kernel", tid=7, correlation=5, stream=7, device=0),
    x("kernel_b", 16, 3, "kernel", tid=7, correlation=6, stream=7, device=0),
]


def ask(paths: Any, sql: str, **options: Any) -> list[tuple[Any, ...]]:
    limits = options.pop("limits", None)
    with EventTables([str(path) for path in (paths if isinstance(paths, list) else [paths])], **options) as tables:
        return tables.query(sql, limits)[1]


def test_views_have_the_documented_columns(tmp_path: Path) -> None:
    path = write_torch(tmp_path / "t.json", STEPS)
    with EventTables([str(path)]) as tables:
        for table, (_, columns) in TABLES.items():
            found = tables.query(f"SELECT column_name, column_type FROM (DESCRIBE {table})")[1]
            assert found == [(column.name, column.kind) for column in columns]


def test_event_on_a_device_belongs_to_the_step_of_its_launch(tmp_path: Path) -> None:
    path = write_torch(tmp_path / "t.json", STEPS)
    rows = ask(path, "SELECT name, step FROM events WHERE category IN ('kernel', 'cuda_runtime') ORDER BY start_ns")
    assert rows == [("launch", 4), ("kernel_a", 4), ("kernel_b", 5)]
    assert ask(path, "SELECT rank, step, start_ns, duration_ns, batch FROM steps") == [
        (0, 4, BASE, 10_000, None),
        (0, 5, BASE + 10_000, 10_000, None),
    ]


def test_torch_trace_has_the_batches_and_training_times_of_its_rank(tmp_path: Path) -> None:
    state = {"iteration": 0, "epoch": 2, "batch": 40, "sample": 320, "token": 999}
    stamp = {"ph": "M", "name": "tracekit_timestamp", "pid": 1, "tid": 1, "ts": 0, "args": state}
    batches = [x("batch", 0, 9, "training loop", epoch=2, batch=40), x("batch", 10, 9, "training loop", batch=41)]
    rank_trace = write_rank_trace(tmp_path / "rank0.json", [stamp, *batches])
    # Its base is one microsecond later, and its own steps have other numbers.
    torch = write_torch(tmp_path / "torch.json", STEPS, base=BASE + 1000)
    rows = ask(
        [rank_trace, torch],
        "SELECT name, step, epoch, batch, sample, token, iteration FROM events WHERE category = 'kernel' ORDER BY 1",
    )
    assert rows == [("kernel_a", None, *[None] * 5), ("kernel_b", 41, 2, 41, 320, 999, 0)]
    assert ask([rank_trace, torch], "SELECT step, sample FROM steps ORDER BY step") == [(40, 320), (41, 320)]
    # Without the rank trace it has its own.
    assert ask(torch, "SELECT step FROM events WHERE name = 'kernel_b'") == [(5,)]


def test_step_that_an_evaluation_overlaps_is_marked(tmp_path: Path) -> None:
    steps = [x("batch", 10 * number, 9, "training loop", batch=number) for number in range(5)]
    evaluations = [x("evaluation", 12, 3, "t"), x("validation", 29, 1, "t"), x("evaluation", 35, 20, "a")]
    path = write_rank_trace(tmp_path / "rank0.json", [*steps, *evaluations])
    torch = write_torch(tmp_path / "torch.json", STEPS)
    for paths in (path, [path, torch]):
        assert ask(paths, "SELECT step, evaluation FROM steps ORDER BY step") == [
            *((0, False), (1, True), (2, False), (3, True), (4, True))
        ]


def test_slices_of_one_thread_in_several_files_nest_together(tmp_path: Path) -> None:
    markers = [x("batch", 0, 100, "training loop", batch=0), x("forward", 10, 50, ""), x("loader", 70, 5, "", tid=3)]
    # The base is 2 µs later. Another thread, another process and an equal slice are in it too.
    operators = [x("mm", 18, 20), x("bmm", 20, 5), x("mm", 68, 5, tid=4), x("forward", 8, 50)]
    paths = [
        write_rank_trace(tmp_path / "z.json", markers),
        write_torch(tmp_path / "a.json", [*operators, {**x("mm", 20, 1), "pid": 7}], base=BASE + 2000),
        write_torch(tmp_path / "b.json", [x("alone", 1000, 5)]),
        write_torch(tmp_path / "c.json", [x("mm", 20, 20)], 1),
    ]
    sql = (
        "SELECT e.file, e.name, e.pid, e.tid, e.depth, e.self_ns, p.name, e.parent_file FROM events e LEFT JOIN events p "
        "ON p.file = e.parent_file AND p.id = e.parent ORDER BY e.file, e.id"
    )
    assert ask(paths, sql) == [
        (0, "mm", 1, 1, 3, 15_000, "forward", 0),
        (0, "bmm", 1, 1, 4, 5_000, "mm", 0),
        (0, "mm", 1, 4, 0, 5_000, None, None),
        (0, "forward", 1, 1, 2, 30_000, "forward", 3),
        (0, "mm", 7, 1, 0, 1_000, None, None),
        (1, "alone", 1, 1, 0, 5_000, None, None),
        (2, "mm", 1, 1, 0, 20_000, None, None),
        (3, "batch", 1, 1, 0, 50_000, None, None),
        (3, "forward", 1, 1, 1, 0, "batch", 3),
        (3, "loader", 1, 3, 0, 5_000, None, None),
    ]


def begin_or_end(phase: str, name: str, ts: int) -> dict[str, Any]:
    return {"ph": phase, "name": name, "pid": 1, "tid": 1, "ts": ts}


def test_slices_with_equal_times_nest_in_the_order_of_their_begins(tmp_path: Path) -> None:
    # A whole slice encloses those of begins and ends, wherever it stands; whole slices keep their order.
    events = [
        *(begin_or_end("B", name, 0) for name in "abc"),
        *(begin_or_end("E", name, 9) for name in "cba"),
        x("x", 20, 9),
        *(begin_or_end("B", name, 20) for name in "de"),
        x("y", 20, 9),
        *(begin_or_end("E", name, 29) for name in "ed"),
    ]
    path = write_torch(tmp_path / "t.json", events)
    sql = "SELECT e.name, e.depth, p.name FROM events e LEFT JOIN events p ON e.parent = p.id ORDER BY e.start_ns, e.depth"
    assert ask(path, sql) == [  # as in Perfetto's engine
        *(("a", 0, None), ("b", 1, "a"), ("c", 2, "b")),
        *(("x", 0, None), ("y", 1, "x"), ("d", 2, "y"), ("e", 3, "d")),
    ]


def test_ids_that_are_no_numbers_get_numbers(tmp_path: Path) -> None:
    free = 3 * 2**30
    found = {
        ("main", "a"): (free, free),
        ("main", 7): (free, 7),
        ("main", "b"): (free, free + 1),
        (1, "a"): (1, free),
        ("loader", free): (free + 1, free),
        ("loader", "a"): (free + 1, free + 1),
        ("5", "6"): (5, 6),
        (1, 2**70): (1, free + 1),
    }
    events = [{**x(f"{number}", number, 1), "pid": pid, "tid": tid} for number, (pid, tid) in enumerate(found)]
    path = write_torch(tmp_path / "t.json", events)
    assert ask(path, "SELECT pid, tid FROM events ORDER BY id") == list(found.values())
    assert ask(path, "SELECT process, thread FROM events WHERE id = 2") == [("main", "b")]


def test_ranks_start_at_their_base_times(tmp_path: Path) -> None:
    paths = [write_torch(tmp_path / f"{rank}.json", [x("a", rank, 1)], rank, BASE + rank) for rank in (0, 3)]
    assert ask(paths, "SELECT rank, start_ns, end_ns, events, damage FROM ranks") == [
        (0, BASE, BASE + 1000, 1, None),
        (3, BASE + 3 + 3000, BASE + 3 + 4000, 1, None),
    ]
    assert ask(paths, "SELECT rank, start_ns FROM events ORDER BY rank") == [(0, BASE), (3, BASE + 3003)]


def test_merged_trace_has_the_ranks_and_steps_of_its_inputs(tmp_path: Path) -> None:
    paths = [write_torch(tmp_path / f"{rank}.json", STEPS, rank) for rank in (0, 1)]
    merged = tmp_path / "merged.json"
    tracekit.merge_traces(str(merged), list(map(str, paths)))
    sql = "SELECT rank, name, step, duration_ns, self_ns, depth FROM events WHERE phase = 'X' ORDER BY ALL"
    assert ask(merged, sql) == ask(paths, sql)
    assert ask(merged, "SELECT rank, step FROM steps ORDER BY ALL") == [(0, 4), (0, 5), (1, 4), (1, 5)]
    assert ask(merged, "SELECT rank, events FROM ranks ORDER BY rank")[-1][0] == 1
    with EventTables([str(tmp_path)]) as tables:
        assert tables.query(sql)[1] == ask(paths, sql)
        assert [note.rpartition("/")[2] for note in tables.notes] == [
            "merged.json is left out: it is the result of a merge; name it to read it"
        ]
    merged.with_name("merged2.json").write_bytes(merged.read_bytes())
    with pytest.raises(ConfigError, match="name one"):
        ask(tmp_path / "merged*", sql)


def test_trace_of_jax_has_the_rank_and_the_clock_of_its_anchors(tmp_path: Path) -> None:
    args = {"wall_ns": str(BASE + 10_001), "rank": "3", "host": "gpu7"}
    events = [
        {"ph": "M", "name": "process_name", "pid": 701, "args": {"name": "/host:CPU"}},
        {"ph": "X", "name": "tracekit_clock_anchor", "pid": 701, "tid": 1, "ts": 10, "dur": 0.002, "args": args},
    ]
    path = tmp_path / "process0-gpu7.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert ask(path, "SELECT rank, host, start_ns FROM ranks") == [(3, "gpu7", BASE + 10_000)]


def test_files_without_a_rank_get_free_ones(tmp_path: Path) -> None:
    write_torch(tmp_path / "a.json", STEPS, 1)
    (tmp_path / "b.json").write_text(json.dumps([x("a", 1, 1)]))
    (tmp_path / "c.json").write_text("{}")
    with EventTables([str(tmp_path)]) as tables:
        assert tables.query("SELECT rank FROM ranks ORDER BY rank")[1] == [(0,), (1,)]
        assert [note.partition(": ")[0].rpartition("/")[2] for note in tables.notes] == [
            "c.json is left out",
            "b.json does not state its rank; it is called rank 0",
        ]


def test_arguments_are_read_only_if_the_query_has_them(tmp_path: Path, cache: Path) -> None:
    path = write_torch(tmp_path / "t.json", STEPS)
    assert ask(path, "SELECT count(*), max(name) FROM events") == [(5, "launch")]
    assert list(cache.glob("*/args.parquet")) == []
    assert ask(path, "SELECT args->>'$.stream' FROM events WHERE name = 'kernel_a'") == [("7",)]
    assert len(list(cache.glob("*/args.parquet"))) == 1
    assert len(ask(path, "FROM events")[0]) == len(TABLES["events"][1])


def test_arguments_of_a_file_that_changed_since_are_refused(tmp_path: Path) -> None:
    path = write_torch(tmp_path / "t.json", STEPS)
    with EventTables([str(path)]) as tables:
        tables.query("SELECT count(*) FROM events")
        write_torch(path, STEPS[:2])
        with pytest.raises(StorageError, match="changed while it was read"):
            tables.query("SELECT args FROM events")


# The cache.


def test_second_question_reads_no_trace_and_nests_no_shared_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [
        write_rank_trace(tmp_path / "0.json", [x("forward", 0, 9)]),
        write_torch(tmp_path / "1.json", [x("mm", 1, 2)]),
    ]
    sql = "SELECT name, depth, self_ns FROM events ORDER BY depth"
    assert ask(paths, sql) == [("forward", 0, 7000), ("mm", 1, 2000)]
    monkeypatch.setattr(SharedThreads, "build", None)
    monkeypatch.setattr(jobs, "build_entry", None)
    assert ask(paths, sql) == [("forward", 0, 7000), ("mm", 1, 2000)]


def test_several_processes_build_the_same_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write_torch(tmp_path / f"{rank}.json", [*STEPS, x("a", rank, 1)], rank) for rank in range(3)]
    (tmp_path / "bad.json").write_text("{}")
    sql = "SELECT * EXCLUDE (args) FROM events ORDER BY ALL"
    alone = ask(paths, sql, cache=False)
    monkeypatch.setattr(jobs, "_MIN_BYTES", 0)
    assert ask(paths, sql, workers=2) == alone
    assert ask(tmp_path, sql, cache=False, workers=2) == alone
    monkeypatch.setattr(jobs, "start_method", lambda: "spawn")
    monkeypatch.setattr("tracekit.worker_processes.start_method", lambda: "spawn")
    assert ask(paths, sql, cache=False, workers=2) == alone
    # Without being asked to, a library must not import the main module of its user again.
    monkeypatch.setattr("tracekit.worker_processes.process_pool", None)
    assert ask(paths, sql, cache=False) == alone


def test_changed_file_and_damaged_entry_are_read_again(tmp_path: Path, cache: Path) -> None:
    path = write_torch(tmp_path / "t.json", STEPS)
    assert ask(path, "SELECT count(*) FROM events") == [(5,)]
    (facts,) = cache.glob("*/facts")
    facts.write_text("{")
    assert ask(path, "SELECT count(*) FROM events") == [(5,)]
    assert facts.stat().st_size > 1
    facts.unlink()  # as by a process that was killed while it removed the entry
    assert ask(path, "SELECT count(*) FROM events") == [(5,)]
    key = file_key(str(path))
    write_torch(path, STEPS[:3])
    assert file_key(str(path)) != key
    assert ask(path, "SELECT count(*) FROM events") == [(3,)]


def test_cache_is_private_and_no_cache_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    path = write_torch(tmp_path / "t.json", STEPS)
    ask(path, "SELECT 1", cache=False)
    assert not cache.exists()
    ask(path, "SELECT 1")
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(entry.stat().st_mode) == 0o700 for entry in cache.iterdir())
    kept = sorted(file.name for entry in cache.iterdir() for file in entry.iterdir())
    tables = ["counters", "events", "flows", "key_args", "steps", "tracks"]
    assert kept == sorted(["facts", *(f"{table}.parquet" for table in tables)])


def test_cache_removes_what_was_not_used_for_longest(tmp_path: Path) -> None:
    cache = TableCache(tmp_path / "small", max_bytes=250)
    for number in range(4):
        entry = cache.add(str(number), lambda folder: (folder / "facts").write_text(" " * 100))
        os.utime(entry, (number, number))
    assert cache.find("0") is None
    cache.trim()
    assert [number for number in range(4) if (tmp_path / "small" / str(number)).exists()] == [2, 3]


def test_entry_that_cannot_be_built_leaves_nothing_and_one_that_was_built_first_stays(tmp_path: Path) -> None:
    cache = TableCache(tmp_path / "small")

    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise TraceFormatError("t.json", "broken")

    def come_second(folder: Path) -> None:
        (folder / "facts").write_text("second")
        other = tmp_path / "small" / "key"
        other.mkdir()
        (other / "facts").write_text("first")

    with pytest.raises(TraceFormatError):
        cache.add("key", fail)
    assert list((tmp_path / "small").iterdir()) == []
    assert (cache.add("key", come_second) / "facts").read_text() == "first"
    assert len(list((tmp_path / "small").iterdir())) == 1


def test_cache_that_cannot_be_created_is_an_error_with_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(StorageError, match="TRACEKIT_CACHE"), open_cache():
        pass
    monkeypatch.setenv("TRACEKIT_CACHE_BYTES", "lots")
    with pytest.raises(ConfigError, match="TRACEKIT_CACHE_BYTES"), open_cache():
        pass


# Refused statements.

_WITH = r"more than read \((COPY|DELETE)\)|A CTE needs a SELECT"  # the latter before DuckDB 2
REFUSED = {
    "COPY events TO '{folder}/x.csv'": "type COPY",
    "COPY events TO '{parquet}' (FORMAT parquet, USE_TMP_FILE false)": "type COPY",
    "EXPLAIN COPY events TO '{folder}/x.csv'": "type COPY",
    "EXPLAIN ANALYZE COPY events TO '{parquet}' (FORMAT parquet, USE_TMP_FILE false)": "type COPY",
    "EXPLAIN (ANALYZE, FORMAT json) COPY events TO '{folder}/x.csv'": "type COPY",
    "EXPLAIN (ANALYZE /*) SELECT 1 --*/) COPY events TO '{parquet}' (USE_TMP_FILE false)": "cannot be run",
    "/* /* */ EXPLAIN SELECT 1 --*/ EXPLAIN ANALYZE COPY events TO '{parquet}' (USE_TMP_FILE false)": "a comment before",
    "WITH x AS (COPY events TO '{parquet}' (FORMAT parquet, USE_TMP_FILE false)) SELECT 1": _WITH,
    "EXPLAIN ANALYZE WITH x AS (COPY events TO '{parquet}' (FORMAT parquet, USE_TMP_FILE false)) SELECT 1": _WITH,
    "WITH x AS (DELETE FROM files RETURNING *) FROM x": _WITH,
    "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))": r"more than read \(JSON_EXECUTE\)",
    "FROM query('FROM json_execute_serialized_sql(json_serialize_sql(''SELECT 1''))')": "more than read",
    "EXPLAIN /**/ ANALYZE COPY events TO '{parquet}' (USE_TMP_FILE false)": "cannot be run",
    "ATTACH '{folder}/x.db'": "type ATTACH",
    "INSTALL httpfs": "type LOAD",
    "LOAD json": "type LOAD",
    "SET threads = 1": "type SET",
    "PRAGMA database_list": "type PRAGMA",
    "CREATE TABLE t (a INTEGER)": "type CREATE",
    "CALL pragma_version()": "type CALL",
    "SELECT 1; SELECT 2": "2 statements",
    "": "0 statements",
    "SELEC": "syntax error",
    "SELECT nope FROM events": "nope",
    "SELECT * FROM read_text('/etc/passwd')": "disabled by configuration",
    "SELECT * FROM '/etc/passwd'": "passwd",
    "SELECT * FROM read_csv('{folder}/*')": "disabled by configuration",
    "SELECT * FROM glob('/etc/*')": "disabled by configuration",
    "SELECT * FROM EventTables": "EventTables",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_query_that_does_more_than_select_is_refused(tmp_path: Path, cache: Path, sql: str) -> None:
    path = write_torch(tmp_path / "t.json", STEPS)
    ask(path, "SELECT 1")
    (parquet,) = cache.glob("*/events.parquet")
    before = parquet.read_bytes()
    files = sorted(tmp_path.rglob("*"))
    with pytest.raises(QueryError, match=REFUSED[sql]) as refused:
        ask(path, sql.format(folder=tmp_path, parquet=parquet))
    assert "\n" not in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == files
    assert parquet.read_bytes() == before


@pytest.mark.parametrize(
    "sql",
    ["DESCRIBE events", "EXPLAIN SELECT 1", "explain analyze select 1", "-- a\nSELECT 1", "FROM ranks", "VALUES (1)"],
)
def test_query_that_reads_is_run(tmp_path: Path, sql: str) -> None:
    assert ask(write_torch(tmp_path / "t.json", STEPS), sql)


def test_query_that_exceeds_a_limit_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_torch(tmp_path / "t.json", STEPS)
    endless = "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE a.range + b.range < 0"
    with pytest.raises(QueryError, match=r"longer than 0\.2 s"):
        ask(path, endless, limits=Limits(seconds=0.2))
    with pytest.raises(QueryError, match="more than 4 rows"):
        ask(path, "SELECT name FROM events", limits=Limits(rows=4))
    assert len(ask(path, "SELECT name FROM events", limits=Limits(rows=5, seconds=1e300))) == 5
    with pytest.raises(QueryError, match="the event table needs more memory than 1 MB"):
        ask(path, "SELECT 1", limits=Limits(memory_bytes=10**6))
    with pytest.raises(QueryError, match=r"more memory than 50 MB; allow more \(--max-memory\)"):
        ask(path, "SELECT list(range) FROM range(100000000)", limits=Limits(memory_bytes=50_000_000))
    monkeypatch.setattr("tracekit.table.database._STOP_S", 0.01)
    with pytest.raises(QueryError, match=r"longer than 0\.01 s"):  # the engine does not interrupt a constant
        ask(path, "SELECT list_sum(range(10000000))", limits=Limits(seconds=0.01))
    (late,) = [thread for thread in threading.enumerate() if thread.name == "tracekit query"]
    late.join()


# Relations.


def test_read_events_returns_rows_and_converts_them(tmp_path: Path) -> None:
    path = write_torch(tmp_path / "t.json", STEPS)
    with tracekit.read_events(path) as relation:
        assert "args" not in relation.columns
        assert len(relation.rows()) == 5
        arrow = pytest.importorskip("pyarrow")
        assert relation.arrow().num_rows == 5
        assert arrow.table(relation).column("name").to_pylist()[0] == "ProfilerStep#4"
    with tracekit.read_events([path], args=True) as relation:
        assert json.loads(dict(zip(relation.columns, relation.rows()[1], strict=True))["args"]) == {"correlation": 5}


@pytest.mark.parametrize(("method", "package"), [("df", "pandas"), ("pl", "polars"), ("arrow", "pyarrow")])
def test_conversion_without_its_package_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, package: str
) -> None:
    path = write_torch(tmp_path / "t.json", STEPS)
    monkeypatch.setitem(sys.modules, package, None)
    with tracekit.read_events(path) as relation, pytest.raises(ConfigError, match=f"pip install {package}"):
        getattr(relation, method)()
