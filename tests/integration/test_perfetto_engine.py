"""Perfetto's engine answers as the tests that rely on it expect, and its failures are seen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.perfetto import Engine, LoadError, QueryError

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, *slices: tuple[str, float, float]) -> Path:
    place = {"ph": "X", "pid": 1, "tid": 1}
    path.write_text(json.dumps([{**place, "name": name, "ts": ts, "dur": dur} for name, ts, dur in slices]))
    return path


def test_rows_of_many_batches_hold_numbers_texts_and_nulls(engine: Engine, tmp_path: Path) -> None:
    names = [f"slice {number}" for number in range(50_000)]
    slices = [(name, 10 * number + 0.001, 5) for number, name in enumerate(names)]
    with engine.load(write(tmp_path / "t.json", *slices)) as trace:
        assert [name for (name,) in trace.rows("select name from slice order by ts")] == names
        assert trace.scalar("select min(ts) from slice") == 1
        assert trace.rows("select null, 1.5, 'ü', 9007199254740993, x'00ff', ''") == [
            (None, 1.5, "ü", 9007199254740993, b"\x00\xff", "")
        ]
        assert trace.rows("select 1 where 0") == []
        assert trace.errors() == []


def test_what_the_engine_drops_is_in_the_errors_of_that_trace_only(engine: Engine, tmp_path: Path) -> None:
    bad, good = write(tmp_path / "bad.json", ("a", 0, 10), ("b", 5, 10)), write(tmp_path / "good.json", ("c", 0, 10))
    with engine.load(bad) as trace:
        assert trace.errors() == [("slice_drop_overlapping_complete_event", None, "error", 1)]
        with engine.load(good) as other:
            assert other.errors() == []
    with engine.load(good) as trace:
        assert trace.rows("select name from slice") == [("c",)]
        assert trace.errors() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2},',
            "trace file is incomplete",
        ),
        ("this is not a trace", r"(?i)unknown trace type"),
        ('[{"ph": "C", "name": "loss", "pid": 1, "ts": 1, "args": {"value": NaN}}]', "did not finish in time"),
    ],
    ids=["cut", "no trace", "read for ever"],
)
def test_a_trace_that_the_engine_refuses_is_an_error_and_the_next_one_loads(
    engine: Engine, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(LoadError, match=words) as caught:
        engine.load(tmp_path / "bad.json", timeout_s=3)
    assert str(tmp_path / "bad.json") in str(caught.value)
    with engine.load(write(tmp_path / "good.json", ("a", 0, 1))) as trace:
        assert trace.scalar("select count(*) from slice") == 1


def test_a_wrong_query_says_what_is_wrong_and_the_trace_stays_usable(engine: Engine, tmp_path: Path) -> None:
    with engine.load(write(tmp_path / "t.json", ("a", 0, 1))) as trace:
        with pytest.raises(QueryError, match="no such column: nope"):
            trace.rows("select nope from slice")
        with pytest.raises(QueryError, match="expected one value"):
            trace.scalar("select name, ts from slice")
        assert trace.scalar("select count(*) from slice") == 1
    with pytest.raises(QueryError, match="closed"):
        trace.rows("select 1")
