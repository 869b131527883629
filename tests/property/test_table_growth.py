"""A rank trace that grows gives the same tables as the whole file, and only its new bytes are read."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Barrier
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests import both_cores
from tests.bad_traces import METADATA
from tests.examples import examples
from tests.property.test_table_properties import begins_and_ends, overlapping_slices
from tests.watched import record, train
from tracekit.table import growth
from tracekit.table.build import LIMITS, build_entry, extend_entry, read_facts
from tracekit.table.cache import TableCache
from tracekit.table.database import Database
from tracekit.table.extend import rows_of
from tracekit.table.growth import Part, load_growth
from tracekit.table.jobs import Job, build_all
from tracekit.table.tables import EventTables
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

duckdb = pytest.importorskip("duckdb")

MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(30))
SAME = ("path", "rank", "host", "base_ns", "has_batches", "rows", "damage", "unusable", "account", "span")


def rank_trace(random: Random) -> bytes:
    """Return a rank trace with one event per line, some of them out of order."""
    events: list[dict[str, Any]] = []
    while len(events) < 150:
        more = random.choice([begins_and_ends, overlapping_slices])(random)
        shift = random.choice([0, 500, 5000])
        for event in more:
            if isinstance(event.get("args"), dict):
                event["args"].pop("correlation", None)
            if "ts" in event:
                event["ts"] += shift
        events += more
    head = {"ph": "M", "name": "tracekit_metadata", "pid": 1, "tid": 1, "args": METADATA}
    return b"[\n" + b",\n".join(json.dumps(event).encode() for event in [head, *events]) + b"\n]\n"


def tables_of(folder: Path) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return the rows of all tables of an entry, and its facts."""
    facts = read_facts(folder)
    rows = {}
    with duckdb.connect() as connection:
        for name in ("events", "counters", "flows"):
            parts = [Part(*part) for part in facts["parts"].get(name, [(f"{name}.parquet", 0, 1 << 62)])]
            number = "row_number" if name == "flows" else "id"
            rows[name] = connection.execute(f"FROM ({rows_of(name, folder, parts)}) ORDER BY {number}").fetchall()
        for name in ("tracks", "steps"):
            rows[name] = connection.execute(f"FROM read_parquet('{folder}/{name}.parquet')").fetchall()
    return rows, {name: facts[name] for name in SAME}


def build_whole(path: Path, folder: Path) -> None:
    """Build an entry of a whole file."""
    with Database(folder, LIMITS) as database:
        build_entry(str(path), folder, database)


def whole_tables_of(path: Path, scratch: Path) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Build an entry of a whole file; return its tables."""
    folder = scratch / "whole"
    folder.mkdir()
    build_whole(path, folder)
    return tables_of(folder)


def grow(path: Path, data: bytes, cuts: list[int], scratch: Path) -> Path:
    """Write a file in steps, extend its entry after each, and return the last one."""
    previous: Path | None = None
    for number, cut in enumerate(cuts):
        path.write_bytes(data[:cut])
        folder = scratch / f"{number}"
        folder.mkdir()
        if previous is None or not extend_entry(str(path), previous, folder):
            build_whole(path, folder)
        previous = folder
    assert previous is not None
    return previous


@MANY
@given(seed=st.integers(0, 2**64), steps=st.integers(1, 6), is_pure=st.booleans())
@example(seed=1652, steps=5, is_pure=False)  # a step without a length
def test_a_file_that_grows_has_the_same_rows_as_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: int, is_pure: bool
) -> None:
    random = Random(seed)
    folder = tmp_path_factory.mktemp("grows")
    data = rank_trace(random)
    first = data.index(b",\n") + 200
    cuts = sorted(random.randrange(first, len(data)) for _ in range(steps))
    cuts.append(random.choice([len(data), len(data) - 3, random.randrange(cuts[-1], len(data))]))
    path = folder / "rank0.json"
    with both_cores.pure() if is_pure else mock.patch.object(growth, "_PIECE_BYTES", random.choice([1000, 1 << 18])):
        assert tables_of(grow(path, data, cuts, folder)) == whole_tables_of(path, folder)


def build(cache: TableCache, path: Path, **options: Any) -> Path:
    (found,) = build_all(cache, [Job(str(path))], lambda share, what: None, **options)
    assert isinstance(found, Path)
    return found


def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the sizes of the reads of new bytes."""
    sizes: list[int] = []
    real = growth.NewBytes.read

    def read(self: growth.NewBytes) -> bytes:
        piece = real(self)
        sizes.append(len(piece))
        return piece

    monkeypatch.setattr(growth.NewBytes, "read", read)
    return sizes


def test_only_the_new_bytes_of_a_recording_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = reads(monkeypatch)
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "cache"))
    clock = FakeClock()
    path = tmp_path / "run" / "rank0.json"
    query = (
        "SELECT name, count(*), sum(self_ns), max(depth), count(step), max(id) FROM events GROUP BY name ORDER BY name"
    )
    with record(tmp_path, clock=clock) as profiler:
        for number in range(12):
            before = path.stat().st_size if number else 0
            train(profiler, clock, 50)
            profiler.marker("loss").counter({"loss": number})
            profiler.flush()
            sizes.clear()
            with EventTables([str(path)]) as tables:
                found = tables.query(query)
                loss = tables.query("SELECT count(*), max(value) FROM counters")[1]
                parts = len(tables.facts[0]["parts"].get("events", []))
            assert loss == [(number + 1, number)]
            assert parts <= 6
            if number:
                new = path.stat().st_size - before
                assert new <= sum(sizes) <= new + 1000
            with EventTables([str(path)], cache=False) as tables:
                assert tables.query(query) == found


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b'"rank":0', b'"rank":7', 1) + b'{"ph":"i","name":"x","pid":1,"tid":1,"ts":1.000},\n',
    ],
    ids=["truncated", "another beginning"],
)
def test_a_file_that_was_not_only_extended_is_built_anew(
    tmp_path: Path, change: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = reads(monkeypatch)
    clock = FakeClock()
    path = tmp_path / "rank0.json"
    with record(tmp_path, clock=clock) as profiler:
        train(profiler, clock, 20)
        path.write_bytes((tmp_path / "run" / "rank0.json").read_bytes())
    cache = TableCache(tmp_path / "cache")
    build(cache, path)
    path.write_bytes(change(path.read_bytes()))
    found = build(cache, path)
    assert tables_of(found) == whole_tables_of(path, tmp_path)
    assert sizes == []
    assert load_growth(found, str(path)) is not None


def test_two_builders_of_a_grown_file_make_one_whole_entry(tmp_path: Path) -> None:
    clock = FakeClock()
    cache = TableCache(tmp_path / "cache")
    path = tmp_path / "run" / "rank0.json"
    with record(tmp_path, clock=clock) as profiler:
        train(profiler, clock, 20)
        build(cache, path)
        train(profiler, clock, 20)
        both = Barrier(2)

        def build_at_once(_: int) -> Path:
            both.wait(60)
            return build(cache, path, workers=1)

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(build_at_once, range(2))
        assert tables_of(first) == whole_tables_of(path, tmp_path)
    assert first == second == cache.latest(str(path))
    assert not [entry for entry in (tmp_path / "cache").iterdir() if entry.name.startswith("building-")]
