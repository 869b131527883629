"""Composer's real Trainer with tracekit, beside Composer's own profiler."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.composer_library import composer_library
from tests.perfetto.install import UnavailableError
from tests.scripts import run_script
from tracekit import merge_traces, validate_trace

if TYPE_CHECKING:
    from tests.perfetto import Engine

SCRIPT = Path(__file__).with_name("composer_runs.py")
ROOT = SCRIPT.parents[2]

# Every test asks for the engine, also where it does not need it: so continuous integration fails where this would skip.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("engine")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder in which the runs have left their traces, and what they saw."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("torchmetrics", reason="torchmetrics, which Composer needs, is not installed")
    try:
        library = composer_library()
    except UnavailableError as error:
        pytest.skip(f"Composer: {error}")
    folder = tmp_path_factory.mktemp("composer")
    path = f"{ROOT}{os.pathsep}{library}"
    # -W: the warnings of Composer are its own; tracekit warns by its log.
    done = run_script(folder, "-W", "ignore", SCRIPT, PYTHONPATH=path)
    return folder, json.loads(done.stdout)


@pytest.mark.parametrize("handler", ["tracekit", "composer's handler"])
def test_a_handler_and_a_profiler_see_under_tracekit_what_they_see_under_composer(
    runs: tuple[Path, Any], handler: str
) -> None:
    theirs, ours = runs[1]["handlers"]["composer"], runs[1]["handlers"][handler]
    for events in (ours["events"], theirs["events"]):
        # Composer never ends it in a run that has no iterations; tracekit ends it before the fit.
        events.pop("event/iteration B", None)
        events.pop("event/iteration E", None)
    assert ours == theirs
    assert ours["events"]["event/forward B"] == ours["events"]["event/forward E"] == 16
    assert ours["batches"][-1][:4] == [1, 8, 64, 320]


def test_a_script_of_composer_gets_its_windows_in_files_that_open(runs: tuple[Path, Any], engine: Engine) -> None:
    folder, seen = runs
    assert seen["windows"] == {"run_id": "named", "failures": {}}
    window = folder / "windows" / "ep0-ba0-rank0.json"
    assert validate_trace(str(window)).counts == {}
    with engine.load(window) as trace:
        assert trace.errors() == []
        counts = dict(trace.rows("select name, count(*) from slice where name glob 'event/*' group by name"))
    # Batch 1 warms up, batch 2 is active and saved: Composer itself has only the finishes of that one.
    assert {"event/batch": 2, "event/train_batch": 2, "event/forward": 4, "event/backward": 4}.items() <= counts.items()
    report = merge_traces(str(folder / "merged.json"), [str(folder / "windows")])
    assert report.complete
    with engine.load(folder / "merged.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name glob 'ProfilerStep#*'") == 2


def test_the_callback_takes_over_composers_time_and_every_pair_of_events(
    runs: tuple[Path, Any], engine: Engine
) -> None:
    folder, seen = runs
    first = seen["callback"]["first"]
    assert first["agrees"]
    assert {"epoch": 1, "batch": 6, "sample": 48, "token": 240, "batch_in_epoch": 2}.items() <= first[
        "timestamp"
    ].items()
    assert first["slices"] == {
        "event/load": 1,
        "event/fit": 1,
        "event/iteration": 1,
        "event/epoch": 2,
        "event/dataloader": 7,
        "batch": 6,
        "event/batch": 6,
        "event/train_batch": 6,
        "event/forward": 12,
        "event/loss": 12,
        "event/backward": 12,
        "event/eval_all": 2,
        "event/eval": 2,
        "event/eval_batch": 8,
        "event/eval_forward": 8,
    }
    assert (first["failures"], first["left open"], first["stopped"]) == ({}, 0, True)
    with engine.load(folder / "first.json") as trace:
        assert trace.errors() == []
        parents = dict(
            trace.rows(
                "select distinct slice.name, parent.name from slice join slice parent on slice.parent_id = parent.id "
                "where slice.name in ('event/forward', 'event/train_batch', 'event/batch', 'event/epoch')"
            )
        )
    assert parents == {
        "event/forward": "event/train_batch",
        "event/train_batch": "event/batch",
        "event/batch": "event/epoch",
        "event/epoch": "event/iteration",
    }


def test_a_resumed_run_counts_on_also_by_rank_and_with_epochs_in_iterations(runs: tuple[Path, Any]) -> None:
    resumed, rank = runs[1]["callback"]["resumed"], runs[1]["callback"]["rank"]
    assert (resumed["agrees"], resumed["first batch"]) == (True, 6)
    assert {"epoch": 3, "batch": 12, "sample": 96, "token": 480}.items() <= resumed["timestamp"].items()
    assert resumed["epochs"] == [[8, 12]], "Composer reports no start of the epoch that is resumed"
    # Nor the end of the last iteration, nor that of the waits for the batches that are passed over.
    assert runs[1]["callback"]["own markers"] == [0, 0]
    # One rank of one: its own numbers are those of all, counted in its batches from the checkpoint's on.
    assert (rank["agrees"], rank["failures"]) == (True, {})
    assert {"batch": 8, "sample": 64, "token": 320}.items() <= rank["timestamp"].items()


@pytest.mark.parametrize(("kind", "running"), [("its own", False), ("given", True)])
def test_an_exception_in_training_closes_what_is_open_and_a_given_profiler_is_left_to_its_owner(
    runs: tuple[Path, Any], engine: Engine, kind: str, running: bool
) -> None:
    folder, seen = runs
    assert seen["failing"][kind] == {
        "error": "RuntimeError('the model fails')",
        "open": 0,
        "forward": 5,
        "running": running,
    }
    with engine.load(folder / f"failing {kind}.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where dur < 0") == 0


def test_a_pass_that_is_begun_again_stands_beside_the_first_and_not_inside(runs: tuple[Path, Any]) -> None:
    batch, forward = "event/train_batch", "event/forward"
    (begin,) = [n for n, name in enumerate(runs[1]["retried"]) if name == f"+{batch}"][:1]
    assert runs[1]["retried"][begin : begin + 8] == [
        *(f"+{batch}", f"+{forward}", f"-{forward}", f"-{batch}"),
        *(f"+{batch}", f"+{forward}", f"-{forward}", f"-{batch}"),
    ]


def test_the_example_opens(runs: tuple[Path, Any], engine: Engine) -> None:
    folder, seen = runs
    merge_traces(str(folder / "example.json"), [str((folder / seen["example"][0]).parent)])
    with engine.load(folder / "example.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name = 'event/batch'") == 2 * 5
        assert trace.scalar("select count(*) from slice where name glob 'ProfilerStep#*'") == 2 * 4
