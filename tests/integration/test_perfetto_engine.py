"""Perfetto's engine answers as the tests that rely on it expect, and its failures are seen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.perfetto import Engine, LoadError, QueryError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.perfetto import LoadedTrace
    from tests.real_traces import RealTraces

    Write = Callable[[object], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a text, or values as JSON, into a new file."""

    def write_file(content: object) -> Path:
        path = tmp_path / f"trace{len(list(tmp_path.iterdir()))}.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write_file


def complete(name: str, start_us: float, duration_us: float) -> dict[str, object]:
    return {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": start_us, "dur": duration_us, "args": {"x": 1.5}}


def slices(trace: LoadedTrace) -> list[tuple[object, ...]]:
    return trace.rows("select name, ts, dur from slice order by ts")


def test_rows_hold_numbers_texts_and_nulls(engine: Engine, write: Write) -> None:
    with engine.load(write([complete("a", 1.001, 2)])) as trace:
        assert slices(trace) == [("a", 1001, 2000)]
        assert trace.rows("select null, 1.5, 'ü', 9007199254740993, x'00ff', ''") == [
            (None, 1.5, "ü", 9007199254740993, b"\x00\xff", "")
        ]
        assert trace.rows("select 1 where 0") == []
        assert trace.scalar("select count(*) from slice") == 1
        assert trace.errors() == []


def test_rows_of_many_batches_all_arrive(engine: Engine, write: Write) -> None:
    with engine.load(write([complete(f"slice {i}", 10 * i, 5) for i in range(50_000)])) as trace:
        names = [name for (name,) in trace.rows("select name from slice order by ts")]
    assert names == [f"slice {i}" for i in range(50_000)]


def test_what_the_engine_drops_is_in_the_errors(engine: Engine, write: Write) -> None:
    with engine.load(write([complete("a", 0, 10), complete("b", 5, 10)])) as trace:
        assert trace.errors() == [("slice_drop_overlapping_complete_event", None, "error", 1)]


def test_nothing_of_one_trace_is_left_for_the_next(engine: Engine, write: Write) -> None:
    with engine.load(write([complete("a", 0, 10), complete("b", 5, 10)])):
        pass
    with engine.load(write([complete("c", 0, 10)])) as trace:
        assert [row[0] for row in slices(trace)] == ["c"]
        assert trace.errors() == []


def test_two_traces_may_be_open_at_once(engine: Engine, write: Write) -> None:
    with engine.load(write([complete("a", 0, 1)])) as first, engine.load(write([complete("b", 0, 1)])) as second:
        assert [slices(first)[0][0], slices(second)[0][0]] == ["a", "b"]


def test_a_cut_object_is_refused_with_the_engines_own_words(engine: Engine, write: Write) -> None:
    path = write('{"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2},')
    with pytest.raises(LoadError, match="JSON trace file is incomplete") as caught:
        engine.load(path)
    assert str(path) in str(caught.value)


def test_a_file_of_no_known_format_is_refused(engine: Engine, write: Write) -> None:
    with pytest.raises(LoadError, match=r"(?i)unknown trace type"):
        engine.load(write("this is not a trace"))


def test_a_trace_that_the_engine_never_ends_with_is_refused_and_the_next_one_loads(
    engine: Engine, write: Write
) -> None:
    endless = write('[{"ph": "C", "name": "loss", "pid": 1, "ts": 1, "args": {"value": NaN}}]')
    with pytest.raises(LoadError, match="did not finish in time"):
        engine.load(endless, timeout_s=3)
    with engine.load(write([complete("a", 0, 1)])) as trace:
        assert len(slices(trace)) == 1


def test_a_wrong_query_says_what_is_wrong_and_the_trace_stays_usable(engine: Engine, write: Write) -> None:
    with engine.load(write([complete("a", 0, 1)])) as trace:
        with pytest.raises(QueryError, match="no such column: nope"):
            trace.rows("select nope from slice")
        with pytest.raises(QueryError, match="expected one value"):
            trace.scalar("select name, ts from slice")
        assert len(slices(trace)) == 1
    with pytest.raises(QueryError, match="closed"):
        trace.rows("select 1")


def test_real_traces_load(engine: Engine, traces: RealTraces) -> None:
    with engine.load(traces / "torch_2.13_gloo" / "plain_rank0_step4.json.gz") as trace:
        assert trace.scalar("select count(*) from slice") > 0
