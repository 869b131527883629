"""Results in notebooks and terminals: text and HTML from the fields of any result."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from tracekit.explain.results import Result
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path


class Part(Result, frozen=True, kw_only=True):
    rank: int | None
    name: str
    total_ns: int
    size_bytes: int = 0
    share: float | None = None


class Whole(Result, frozen=True, kw_only=True):
    step_ns: int
    parts: tuple[Part, ...] = ()
    best: Part | None = None
    notes: tuple[str, ...] = ()
    counts: dict[str, int] = {}  # noqa: RUF012 - msgspec copies it


def parts(number: int) -> tuple[Part, ...]:
    return tuple(
        Part(rank=rank, name=f"<b>{rank}", total_ns=1_500_000, size_bytes=10**6, share=0.25) for rank in range(number)
    )


def test_result_as_text_has_a_table_for_each_list_with_units_in_the_cells() -> None:
    whole = Whole(step_ns=20_000_000, parts=parts(1_050), notes=("a note",), counts={"x": 1})
    lines = str(whole).splitlines()
    assert lines[:5] == ["step: 20.0 ms", "a note", "counts: x 1", "", "parts"]
    assert lines[5].split() == ["name", "rank", "total", "size", "share"]
    assert lines[6].split() == ["<b>0", "0", "1.50", "ms", "1.0", "MB", "25.0%"]
    assert str(whole).count("<b>") == 20
    assert lines[-1].strip() == "and 1,030 more"
    assert "best: total: 1.50 ms" in str(Whole(step_ns=1, best=parts(1)[0]))


def test_result_as_html_is_well_formed_and_escapes_names() -> None:
    page = Whole(step_ns=1, parts=parts(30), notes=("<script>",))._repr_html_()
    tree = ET.fromstring(page)
    heads = [head.text for head in tree.iter("th") if head.get("scope") == "col"]
    assert heads == ["name", "rank", "total", "size", "share"]
    assert len(list(tree.iter("tr"))) == 21
    assert "<script>" not in page
    assert "and 10 more" in page


def test_merge_report_is_shown_as_its_lines(tmp_path: Path) -> None:
    event = {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [event]}))
    report = merge_traces(str(tmp_path / "<b>.json"), [str(tmp_path / "rank0.json")])
    assert str(report).splitlines() == report.lines()
    assert "merged 1 file" in str(report)
    assert "&lt;b&gt;.json" in report._repr_html_()


def test_relation_is_shown_as_a_table_of_its_first_rows(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    from tracekit.table.relation import read_events

    events = [{"ph": "X", "name": f"<b>{at}", "pid": 1, "tid": 1, "ts": at, "dur": 1} for at in range(50)]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    with read_events(tmp_path / "rank0.json", cache=False) as relation:
        tree = ET.fromstring(relation._repr_html_())
        assert "duration_ns" in [head.text for head in tree.iter("th")]
        assert len(list(tree.iter("tr"))) == 21
        assert "50 rows" in str(relation)
        assert len(relation.rows()) == 50, "all rows are there still"
