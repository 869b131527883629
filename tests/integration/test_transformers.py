"""transformers' real Trainer with tracekit's callback, on a tiny model that is made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.scripts import run_script
from tracekit import merge_traces

if TYPE_CHECKING:
    from tests.perfetto import Engine

SCRIPT = Path(__file__).with_name("transformers_runs.py")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder in which the runs have left their traces, and what they saw."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate, which the Trainer needs, is not installed")
    folder = tmp_path_factory.mktemp("transformers")
    offline = {"HF_HUB_OFFLINE": "1", "TRACEKIT_RUN_ID": "example"}
    # -W: the warnings of transformers are its own; tracekit warns by its log.
    done = run_script(folder, "-W", "ignore", SCRIPT, **offline)
    return folder, {**json.loads(done.stdout), "stderr": done.stderr}


def test_every_part_of_the_training_is_a_slice_and_the_steps_are_the_trainers(runs: tuple[Path, Any]) -> None:
    seen = runs[1]["training"]["rank"]
    assert seen["slices"] == {
        "train": 1,
        "epoch": 2,
        "batch": 6,
        "dataloader": 10,
        "training step": 10,
        "forward": 10,
        "backward": 10,
        "optimizer": 6,
        "evaluation": 3,
        "eval forward": 3,
        "save": 3,
    }
    assert {"epoch": 2, "batch": 6, "sample": 40, "token": 240, "batch_in_epoch": 0}.items() <= seen[
        "timestamp"
    ].items()
    assert (seen["failures"], seen["stopped"], seen["as before"]) == ({}, True, [True, True])


def test_the_trace_opens_with_the_workers_of_the_data_loader_beside_the_rank(
    runs: tuple[Path, Any], engine: Engine
) -> None:
    folder = runs[0]
    report = merge_traces(str(folder / "merged.json"), [str(folder / "traces" / "rank")])
    assert {"rank 0", "rank 0 · worker 0"} <= set(report.ranks[0].processes)
    with engine.load(folder / "merged.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name = 'read'") == 40
        parents = trace.rows(
            "select distinct slice.name, parent.name from slice join slice parent on slice.parent_id = parent.id "
            "where slice.name in ('training step', 'forward', 'backward', 'optimizer', 'evaluation', 'save', 'eval forward', "
            "'epoch')"
        )
    # The last evaluation and the last checkpoint of an epoch come after its end.
    assert set(parents) - {("save", "train"), ("evaluation", "train"), ("save", "epoch"), ("evaluation", "epoch")} == {
        ("training step", "epoch"),
        ("forward", "training step"),
        ("backward", "training step"),
        ("optimizer", "epoch"),
        ("eval forward", "evaluation"),
        ("epoch", "train"),
    }


def test_a_resumed_run_goes_on_from_the_training_time_in_the_checkpoint(runs: tuple[Path, Any]) -> None:
    seen = runs[1]["training"]
    assert all(seen[name]["first batch"] == 4 for name in ("resumed", "resumed global", "resumed without"))
    assert seen["resumed"]["timestamp"] == seen["rank"]["timestamp"]
    assert (seen["resumed"]["slices"]["forward"], seen["resumed"]["slices"]["batch"]) == (3, 2)
    # Where the checkpoint counts otherwise, the numbers come from the size of the batches.
    for name in ("resumed global", "resumed without"):
        assert {"epoch": 2, "batch": 6, "token": 240}.items() <= seen[name]["timestamp"].items()
    assert seen["resumed global"]["timestamp"]["sample"] == 40  # from the checkpoint
    assert seen["resumed without"]["timestamp"]["sample"] == 4 * 8 + 8 + 4  # 4 steps of 2 batches of 4; one was shorter


def test_samples_and_tokens_are_counted_once_in_every_kind_of_training(runs: tuple[Path, Any]) -> None:
    seen = runs[1]
    assert seen["training"]["global"]["seen by the trainer"] == [6, 240], (
        "tokens of all ranks are the trainer's own count"
    )
    twice, resumed = seen["twice"]  # a loss that calls the model twice
    found = [
        run["timestamp"] for run in (seen["training"]["global"], seen["compiled"], seen["replicas"], twice, resumed)
    ]
    assert [(time["sample"], time["token"]) for time in found] == [
        *[(40, 240)] * 3,
        (20, 120),
        # In the first epoch of a resumed run the batches cannot be looked at: the one of 4 passes for two.
        (40 + 4, 240 + 24),
    ]
    assert twice["slices"]["forward"] == 10


def test_copies_replicas_and_compiled_models_are_left_alone(runs: tuple[Path, Any]) -> None:
    copied, replicas, compiled = (runs[1][name] for name in ("averaged", "replicas", "compiled"))
    assert (copied["timestamp"]["batch"], copied["slices"]["forward"], copied["failures"]) == (2, 4, {})
    assert (replicas["failures"], replicas["slices"]["training step"]) == ({}, 10)
    assert not {"forward", "backward"} & set(replicas["slices"])
    assert (compiled["graph breaks"], compiled["slices"]["training step"]) == (0, 10)
    assert "forward" not in compiled["slices"]


def test_an_exception_in_training_reaches_the_handlers_and_a_later_training_is_recorded(
    runs: tuple[Path, Any], engine: Engine
) -> None:
    folder, seen = runs
    assert seen["failing"] == {
        "raised": "the model fails",
        "told": "RuntimeError('the model fails')",
        "batches": [1, 6],
        "forward": 4 + 10 + 4,
        "open": 3,  # "train", "epoch" and "training step"; the trace marks them so
    }
    with engine.load(folder / "failing.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name = 'train'") == 3


def test_a_training_with_a_profiler_that_has_ended_goes_on_without_it_and_says_so(runs: tuple[Path, Any]) -> None:
    assert runs[1]["second"] == 1
    assert "tracekit: this training is not recorded" in runs[1]["stderr"]


def test_the_example_opens(runs: tuple[Path, Any], engine: Engine) -> None:
    folder, seen = runs
    (path,) = seen["example"]
    with engine.load(folder / path) as trace:
        assert trace.errors() == []
        counts = dict(trace.rows("select name, count(*) from slice group by name"))
    assert {"train": 1, "epoch": 2, "batch": 10, "forward": 20, "evaluation": 2, "save": 2}.items() <= counts.items()
