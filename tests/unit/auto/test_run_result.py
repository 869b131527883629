"""What `tracekit run` makes of notes and traces."""

from __future__ import annotations

import gzip
import json
import sys
from typing import TYPE_CHECKING

import pytest

from tracekit.auto.configuration import options_of_process
from tracekit.auto.notes import OPTIONS_VARIABLE, note, read_notes
from tracekit.auto.options import RunOptions
from tracekit.cli.run_result import RecordedRun, has_new_files, plan_merge, summary_sentences

if TYPE_CHECKING:
    from pathlib import Path


def test_options_come_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    options = RunOptions(folder="a", steps=(2, 5), ranks=(0, 3), shapes=True, flight_recorder=2.5)
    monkeypatch.setenv(OPTIONS_VARIABLE, options.to_json())
    assert options_of_process() == options
    newer = json.dumps({**json.loads(options.to_json()), "unknown": 1})
    monkeypatch.setenv(OPTIONS_VARIABLE, newer)
    assert options_of_process() == options
    monkeypatch.delenv(OPTIONS_VARIABLE)
    assert options_of_process().merged == "traces/{run_id}/merged-{attempt}.json.gz"


def test_notes_are_read_again_exclusive_ones_once_and_cost_nothing_where_nobody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OPTIONS_VARIABLE, raising=False)
    assert note("rank-0-0", {}, exclusive=True)
    monkeypatch.setenv(OPTIONS_VARIABLE, RunOptions(notes=str(tmp_path / "absent")).to_json())
    assert note("python")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(OPTIONS_VARIABLE, RunOptions(notes=str(tmp_path)).to_json())
    assert note("python")
    assert note("rank-0-0", {"pid": 1}, exclusive=True)
    assert not note("rank-0-0", {"pid": 2}, exclusive=True)
    assert note("recorded-1", {"rank": 0})
    assert note("recorded-1", {"rank": 1})
    (tmp_path / "failed-2").write_text("no JSON")
    expected = {"python": None, "rank-0-0": {"pid": 1}, "recorded-1": {"rank": 1}, "failed-2": "no JSON"}
    assert read_notes(tmp_path) == expected


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["/usr/bin/python3.12", "-I", "train.py"], "started with -I"),
        (["python", "-u", "-uE", "train.py"], "started with -E"),
        (["python", "-S", "-c", "pass"], "python was started with -S"),
        (["torchrun", "train.py"], "no Python process has seen the variables"),
        (["python", "train.py", "-S"], "has seen the variables"),
        (["python", "-c", "-I"], "has seen the variables"),
        (["env", "-i", "python", "train.py"], "env -i removes PYTHONPATH"),
    ],
)
def test_the_reason_comes_from_a_failure_or_the_command(command: list[str], reason: str) -> None:
    assert reason in RecordedRun({}).why_nothing(command)
    assert RecordedRun({"failed-1": {"error": "StorageError: full"}}).why_nothing(command) == "StorageError: full"


def test_traces_of_processes_without_notes_are_found(tmp_path: Path) -> None:
    """As where the folder for temporary files is full, or the ranks ran on other machines."""
    trace = tmp_path / "rank0.json"
    assert not has_new_files(str(tmp_path), 0)
    trace.write_text("[]")
    written_ns = trace.stat().st_mtime_ns
    assert has_new_files(str(tmp_path), written_ns)
    assert not has_new_files(str(tmp_path), written_ns + 1)


def test_losses_of_all_processes_are_added() -> None:
    notes = {
        "recorded-1": {"rank": 0, "world_size": 2, "steps": 3, "lost": {"events": 2}, "removed_bytes": 5_000_000},
        "recorded-2": {"rank": 1, "world_size": 2, "steps": 5, "lost": {"events": 3}},
        "recorded-3": {"own_profiler": True},
    }
    run = RecordedRun(notes)
    assert (run.ranks, run.world_size, run.steps) == ([0, 1], 2, 5)
    assert list(run.losses()) == ["Lost or failed: 5 events.", "The oldest 5.0 MB were removed, because of --limit."]


def test_a_trace_that_is_too_large_loses_arguments_first_and_then_steps(tmp_path: Path) -> None:
    rank, torch = tmp_path / "rank0.json", tmp_path / "torch-rank0.json.gz"
    rank.write_bytes(bytes(400))
    torch.write_bytes(gzip.compress(bytes(1000)))
    files = [str(rank), str(torch)]
    assert plan_merge(files, 10, 1400) == plan_merge(files, 10, 5000)
    assert plan_merge(files, 10, 1400).reason == ""
    fewer = plan_merge(files, 10, 1000)
    assert (fewer.args, fewer.select) == ("ids", None)
    assert "merged with --args ids" in fewer.reason
    last = plan_merge(files, 10, 450)
    assert last.args == "ids"
    assert last.select is not None
    assert last.select.steps == (5, None)
    assert "only the steps from 5 on" in last.reason
    assert plan_merge(files[:1], None, 100).select is None


def test_a_summary_without_its_packages_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    trace = tmp_path / "merged.json"
    trace.write_text('[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1}]')
    (sentence,) = summary_sentences(str(trace))
    assert sentence == f"For a summary: pip install 'tracekit-ml[explain]', then tracekit summary {trace}"
