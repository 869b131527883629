"""The example of timers runs, and its trace loads in Perfetto's engine."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import validate_trace

if TYPE_CHECKING:
    from tests.perfetto import Engine

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "timers.py"


def test_the_example_reports_and_its_trace_loads(tmp_path: Path, engine: Engine) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "(min, max) time across ranks (ms / 10):"
    assert [line.split()[0] for line in lines[1:3]] == ["forward-backward", "optimizer"]
    assert [line.split()[:2] for line in lines[4:]] == [["forward-backward", "10"], ["optimizer", "10"]]
    with (tmp_path / "timers.csv").open(newline="") as file:
        rows = [(row["step"], row["timer"], row["count"]) for row in csv.DictReader(file)]
    assert rows[:3] == [("1", "forward-backward", "1"), ("1", "optimizer", "1"), ("2", "forward-backward", "1")]
    assert len(rows) == 20
    (trace,) = (tmp_path / "traces").glob("*/rank0.json")
    assert validate_trace(str(trace)).counts == {}
    with engine.load(trace) as loaded:
        assert loaded.errors() == []
        counts = dict(loaded.rows("select name, count(*) from slice where category = 'timer' group by name"))
        assert counts == {"forward-backward": 10, "optimizer": 10}
