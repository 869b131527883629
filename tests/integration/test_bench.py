"""The benchmark runs from end to end, with counts so small that no figure means anything: none is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

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


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """What one run of every benchmark prints, and the rows that it writes."""
    path = tmp_path_factory.mktemp("bench") / "rows.json"
    finished = bench("--slices", "3000", "--json", str(path))
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
