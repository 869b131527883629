"""The benchmark runs from end to end, with counts so small that no figure means anything: none is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # a minute and more on a quiet machine

ROOT = Path(__file__).resolve().parents[2]

BENCHMARKS = ROOT / "tests" / "benchmarks"

BOUNDED_ROWS = [
    "with marker:",
    'with profiler.marker("x"):',
    "with marker: (no profiler)",
    "with marker: (SKIP)",
    "marker.instant()",
    'marker.counter({"loss": value})',
    "with marker: on 4 threads, one marker",
    "record, encode and write a slice, all CPU",
    "VizTracer log_event and save",
    "torch record_function and export",
    "memory while streaming 0.003 million slices",
    "collections while recording 2,000 slices",
    "mean step of a torch training loop",
    "98th percentile of the step",
    "import tracekit",
]

BOUNDED_ROWS_OF_MERGING = [
    "model of torch, every time shifted, --align wall",
    "model of torch, every time shifted, --align auto",
    "gzip in, gzip out",
    "pftrace out",
    "pure Python",
    "the same in 2 processes",
    "CPU time for each of 8 ranks of 40 kB",
    "JSON in, JSON out, beside sglang's logic",
    "beside Composer's logic",
    "most memory, JSON",
    "most memory, 2 processes",
    "memory for 10 x the input",
    "memory for 8 ranks",
    "open files for 8 ranks",
    "time a rank for 8 ranks",
]
MAY_BE_MISSING = ("not built", "not installed (")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """What one run of every benchmark prints, and the rows that it writes."""
    path = tmp_path_factory.mktemp("bench") / "rows.json"
    finished = bench("recording", "--slices", "3000", "--json", str(path))
    assert finished.returncode == 0, finished.stderr
    return finished.stdout, json.loads(path.read_text())["rows"]


def test_every_promise_has_a_row_with_its_bound(everything: tuple[str, list[dict[str, Any]]]) -> None:
    bounded = [row["what"] for row in everything[1] if row["at_most"] is not None or row["at_least"] is not None]
    assert [what for what in BOUNDED_ROWS if what not in bounded] == []


def test_every_row_is_measured_or_names_the_package_that_is_missing(
    everything: tuple[str, list[dict[str, Any]]],
) -> None:
    for row in everything[1]:
        if row["measured"] is None:
            assert row["remarks"].startswith("not installed ("), row
            assert "tracekit" not in row["remarks"]
            assert row["met"] is None
        else:
            assert row["measured"]["low"] <= row["measured"]["median"] <= row["measured"]["high"], row


def test_the_printed_table_has_every_row(everything: tuple[str, list[dict[str, Any]]]) -> None:
    printed, rows = everything
    assert [row["what"] for row in rows if row["what"] not in printed] == []


@pytest.fixture(scope="module")
def merging(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder that one run of the merge half has written its documentation to, and its rows."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("merging")
    (folder / "traces").mkdir()
    (folder / "README.md").write_bytes((BENCHMARKS / "README.md").read_bytes())
    rows = folder / "rows.json"
    finished = bench("merge", "--write", str(folder), "--folder", str(folder / "traces"), "--json", str(rows))
    assert finished.returncode == 0, finished.stderr
    return folder, json.loads(rows.read_text())["rows"]


def test_every_promise_of_merging_has_a_row_with_its_bound(merging: tuple[Path, list[dict[str, Any]]]) -> None:
    bounded = [row["what"] for row in merging[1] if row["at_most"] is not None or row["at_least"] is not None]
    assert [what for what in BOUNDED_ROWS_OF_MERGING if what not in bounded] == []


def test_every_merge_is_measured_or_says_why_not(merging: tuple[Path, list[dict[str, Any]]]) -> None:
    for row in merging[1]:
        if row["measured"] is None:
            assert row["remarks"].startswith(MAY_BE_MISSING), row
        else:
            assert 0 <= row["measured"]["low"] <= row["measured"]["median"] <= row["measured"]["high"], row
    assert any(row["measured"] for row in merging[1])


def test_the_table_and_the_plot_of_merging_are_written_and_nothing_else_is_changed(
    merging: tuple[Path, list[dict[str, Any]]],
) -> None:
    folder, rows = merging
    before, after = (path.read_text() for path in (BENCHMARKS / "README.md", folder / "README.md"))
    begin, end = "<!-- merge table: begin -->", "<!-- merge table: end -->"
    assert before.partition(begin)[0] == after.partition(begin)[0]
    assert before.partition(end)[2] == after.partition(end)[2]
    table = after.partition(begin)[2].partition(end)[0]
    assert [row["what"] for row in rows if f"| {row['what']} |" not in table] == []
    assert "`scripts/bench --quick merge" in table
    assert "](merge_growth.svg)" in table
    plot = (folder / "merge_growth.svg").read_text()
    assert plot.startswith("<?xml")
    assert all(text in plot for text in ("input, unpacked, MB", "ranks, small files", "time, s", "most memory, MB"))
    assert len(plot) < 60_000


def test_the_traces_are_removed_in_the_end(merging: tuple[Path, list[dict[str, Any]]]) -> None:
    assert list((merging[0] / "traces").iterdir()) == []


def test_part_of_a_table_is_not_written_to_the_documentation() -> None:
    finished = bench("merge", "--only", "merge-growth", "--write")
    assert finished.returncode == 2
    assert "--write wants the whole table" in finished.stderr


def test_a_folder_without_the_documentation_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    finished = bench("merge", "--write", str(tmp_path))
    assert finished.returncode == 2
    assert "README.md" in finished.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_one_benchmark_is_run_alone_and_printed_for_the_documentation() -> None:
    finished = bench("--only", "import", "--markdown")
    assert finished.returncode == 0, finished.stderr
    table = [line for line in finished.stdout.splitlines() if line.startswith("|")]
    assert table[0].startswith("| what | measured | must reach |")
    assert {line.count("|") for line in table} == {table[0].count("|")}
    assert any("import tracekit" in line for line in table)
    assert not any("marker" in line for line in table)


def test_an_unknown_benchmark_is_refused_with_the_names_there_are() -> None:
    finished = bench("--only", "speed")
    assert finished.returncode == 2
    assert "training-loop" in finished.stderr
