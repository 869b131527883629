"""Tests of the tables that questions derive from the events of large runs, and the cache keeps."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import diff_traces, find_stragglers, summarize_traces, wording
from tracekit.cli import main
from tracekit.explain import run_report, summary
from tracekit.explain.run_report import report_run
from tracekit.formats import merged_head
from tracekit.table import tables
from tracekit.table.cache import FOLDER_VARIABLE
from tracekit.table.derived import RunDatabase

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from tracekit.explain.run import Run
    from tracekit.explain.run_report import RunReport


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a cache of the test, which also keeps what small runs derive."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(tables, "MIN_DERIVED_EVENTS", 1)
    return tmp_path / "cache"


@pytest.fixture
def traces(tmp_path: Path) -> list[str]:
    """Write the traces of two ranks with markers, kernels, launches, collectives and memory."""
    paths = []
    for rank in range(2):
        events = [event for step in range(12) for event in _step(rank, step)]
        document = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
        path = tmp_path / f"rank{rank}.json"
        path.write_text(json.dumps(document))
        paths.append(str(path))
    return paths


def _step(rank: int, step: int) -> list[dict[str, Any]]:
    start = 1000 * step
    sizes = {"In msg nelems": 10, "Out msg nelems": 10, "Group size": 2}
    group = {"Collective name": "allreduce", "dtype": "Float", **sizes}
    launch = {"correlation": step + 1}
    kernel = {"stream": 7, "device": 0}
    slices: list[tuple[str, str, int, int, int, dict[str, Any]]] = [
        (f"ProfilerStep#{step}", "user_annotation", 0, 1000, 1, {}),
        ("train", "user_annotation", 1, 900, 1, {}),
        ("forward", "user_annotation", 5, 300 + 100 * rank, 1, {}),
        ("cudaLaunchKernel", "cuda_runtime", 10, 5, 1, launch),
        ("gemm", "kernel", 20, 200, 7, kernel | launch),
        ("ncclDevKernel_AllReduce_Sum", "kernel", 600, 90 - 50 * rank, 7, kernel | group),
    ]
    memory = {"Total Allocated": step, "Total Reserved": 64, "Bytes": 1, "Device Type": 1, "Device Id": 0}
    return [
        {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "pid": 1, "tid": 1, "ts": start, "args": memory},
        *(
            {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": tid, "ts": start + at, "dur": dur, "args": args}
            for name, cat, at, dur, tid, args in slices
        ),
    ]


def answers(traces: list[str], capsys: pytest.CaptureFixture[str], inside: tuple[str, ...] = ()) -> list[object]:
    """Return the answers to all questions about two ranks."""
    main(["gpu", "--json", *traces])
    return [
        summarize_traces(traces, inside=inside),
        find_stragglers(traces, inside=inside),
        diff_traces(traces, rank_a=0, rank_b=1, inside=inside),
        report_run(traces, inside=inside),
        json.loads(capsys.readouterr().out),
    ]


def test_answers_are_equal_with_derived_tables_new_ones_and_none(
    traces: list[str], cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = answers(traces, capsys)
    entries = sorted(cache.iterdir())
    assert answers(traces, capsys) == first
    assert sorted(cache.iterdir()) == entries
    monkeypatch.setattr(tables, "MIN_DERIVED_EVENTS", 10_000)
    assert answers(traces, capsys) == first
    assert sorted(cache.iterdir()) == entries


def test_second_question_does_not_scan_the_events(
    traces: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = answers(traces, capsys)
    statements: list[str] = []
    for name in ("run", "columns", "iterate"):
        own = getattr(RunDatabase, name)

        def noted(self: RunDatabase, sql: str, own: Callable[..., Any] = own) -> Any:
            statements.append(sql)
            return own(self, sql)

        monkeypatch.setattr(RunDatabase, name, noted)
    assert answers(traces, capsys) == first
    asked = [sql for sql in statements if not sql.lstrip().startswith("CREATE")]
    assert asked
    assert [sql for sql in asked if re.search(r"\b(events|slice)\b(?! FROM)", sql)] == []


def test_report_is_kept_for_the_same_events_names_and_paths(
    tmp_path: Path, traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = report_run(traces)
    made: list[list[str]] = []
    make = run_report._report

    def noted(run: Run) -> RunReport:
        made.append([path for path, _ in run.files])
        return make(run)

    monkeypatch.setattr(run_report, "_report", noted)
    assert report_run(traces) == first
    assert made == []
    assert report_run(traces, inside=["train"]) != first
    renamed = [str(tmp_path / f"of_rank{rank}.json") for rank in range(2)]
    for old, new in zip(traces, renamed, strict=True):
        os.rename(old, new)
    assert [file.file for file in report_run(renamed).summary.files] == renamed
    assert made == [traces, renamed]


@pytest.mark.parametrize("module", [summary, merged_head, wording], ids=lambda module: module.__name__)
def test_report_is_made_again_after_a_change_of_code_that_it_depends_on(
    traces: list[str], monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    made: list[None] = []
    make = run_report._report
    monkeypatch.setattr(run_report, "_report", lambda run: (made.append(None), make(run))[1])
    report_run(traces)
    report_run(traces)
    assert len(made) == 1
    look = Path.stat

    def changed(path: Path, **options: Any) -> Any:
        state = look(path, **options)
        return SimpleNamespace(st_mtime_ns=1) if path == Path(str(module.__file__)) else state

    monkeypatch.setattr(Path, "stat", changed)
    report_run(traces)
    assert len(made) == 2


def test_each_choice_of_options_has_an_answer_of_its_own(
    traces: list[str], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = summarize_traces(traces)
    inside = summarize_traces(traces, inside=["train"])
    assert [stage.name for stage in plain.ranks[0].stages] == ["train"]
    assert inside.ranks[0].stages[0].name == "forward"
    assert summarize_traces(traces) == plain
    assert answers(traces, capsys, ("train",))[0] == inside
    kept = len(list(cache.glob("*/document.json")))
    choices: list[dict[str, Any]] = [{}, {"at_least": 0.5}, {"sure": 0.5}, {"inside": ["train"]}]
    for options in choices * 2:
        find_stragglers(traces, **options)
    assert len(list(cache.glob("*/document.json"))) == kept + 3  # that inside of train was there


def test_recording_that_has_not_ended_keeps_no_derived_tables(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text('[\n{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 5},\n')
    summarize_traces([str(path)])
    assert list(cache.glob("*/table.parquet")) == []
    assert list(cache.glob("*/document.json")) == []
    path.write_text('[\n{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 5}\n]\n')
    summarize_traces([str(path)])
    assert list(cache.glob("*/table.parquet")) != []
