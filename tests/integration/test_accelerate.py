"""Loops with a real Accelerator, recorded by one line; on one process, and the example on two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.scripts import run_script
from tracekit import merge_traces

if TYPE_CHECKING:
    from tests.perfetto import Engine

SCRIPT = Path(__file__).with_name("accelerate_runs.py")

pytestmark = pytest.mark.slow


def run(folder: Path, *command: str) -> str:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    # -W: the warnings of accelerate are its own; tracekit warns by its log.
    return run_script(folder, "-W", "ignore", *command, TRACEKIT_RUN_ID="example").stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder in which the loops have left their traces, and what they saw."""
    folder = tmp_path_factory.mktemp("accelerate")
    return folder, json.loads(run(folder, str(SCRIPT)))


@pytest.mark.parametrize("name", ["whole", "global, prepared before"])
def test_one_line_records_every_part_of_the_loop_and_leaves_everything_as_it_was(
    runs: tuple[Path, Any], name: str
) -> None:
    seen = runs[1][name]
    assert seen["slices"] == {
        "dataloader": 2 * (6 + 1) + 2 * (2 + 1),  # each pass also waits for its end
        "forward": 12,
        "backward": 12,
        "clip gradients": 12,
        "optimizer": 6,
        "batch": 6,
        "eval forward": 4,
        "fetch": 4,  # of the evaluations, whose loader has no worker
        "collate": 4,
        "read": 44,  # of the evaluations; the training's are in the trace of its worker
    }
    assert seen["time"] == [2, 6, 44, 44 * 4, 0]  # of the evaluations nothing is counted
    assert seen["failures"] == {}
    assert seen["left"] == {"hooks": 0, "class": False, "methods": []}


def test_the_trace_opens_with_the_workers_of_the_data_loader(runs: tuple[Path, Any], engine: Engine) -> None:
    folder = runs[0]
    report = merge_traces(str(folder / "merged.json"), [str(folder / "loop")])
    assert {"rank 0", "rank 0 · worker 0"} <= set(report.ranks[0].processes)
    with engine.load(folder / "merged.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name = 'read'") == 44 + 44


@pytest.mark.parametrize(
    ("name", "time", "batches"),
    [
        # 5 batches of 4: a step after 2, one after 4 in the next pass; the fifth waits for a step.
        ("broken off", [0, 2, 16, 64, 2], 2),
        ("resumed", [2, 6, 44, 176, 0], 3),
        ("resumed within", [2, 6, 44, 176, 0], 5),  # what is left of an epoch after batches that were skipped
    ],
)
def test_the_training_time_of_an_epoch_that_is_broken_off_or_resumed(
    runs: tuple[Path, Any], name: str, time: list[int], batches: int
) -> None:
    seen = runs[1][name]
    assert seen["time"] == time
    assert seen["slices"]["batch"] == seen["slices"]["optimizer"] == batches
    if name == "resumed":
        assert seen["saved"] == seen["slices"]["load checkpoint"] == 1
        assert seen["first batch"] == 3


def test_of_loaders_that_are_read_side_by_side_one_has_the_steps_and_the_epochs(runs: tuple[Path, Any]) -> None:
    assert runs[1]["side by side"] == {
        "zip": [1, 2, 22, 88, 0],
        "within": [1, 6, 22, 88, 0],
        # The batch of 11 was read for the first step, as far as is known.
        "held": [1, 6, 11 + 22, (11 + 22) * 4, 0],
    }


def test_copies_freed_models_and_exceptions_do_no_harm(runs: tuple[Path, Any]) -> None:
    seen = runs[1]
    assert seen["copied"] == {"forward": 1, "own methods": True, "needs tracekit": False}
    assert seen["prepared again"] == {"not recorded": 0, "an address came twice": True}
    assert seen["failing"] == [0, {}], "no slice is left open"


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two ranks have left their traces, and what each of them has counted."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    folder = tmp_path_factory.mktemp("ranks")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    run(folder, *torchrun, str(SCRIPT.with_name("two_rank_runs.py")))
    return folder


def test_the_example_on_two_processes_is_one_timeline(two_ranks: Path, engine: Engine) -> None:
    merge_traces(str(two_ranks / "merged.json"), [str(two_ranks / "traces" / "example")])
    with engine.load(two_ranks / "merged.json") as trace:
        assert trace.errors() == []
        by_name = "select name, count(*) from slice where category is null or category != 'clock' group by name"
        counts = dict(trace.rows(by_name))
        assert trace.scalar("select count(distinct upid) from thread_track join thread using (utid)") == 2
    each_batch = dict.fromkeys(("fetch", "collate", "forward", "backward"), 32)
    assert counts == {"dataloader": 36, **each_batch, "optimizer": 16, "batch": 16}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_trainer_counts_its_own_samples_or_those_of_both_ranks_as_it_was_told(two_ranks: Path, rank: int) -> None:
    seen = json.loads((two_ranks / f"rank{rank}-counts.json").read_text())
    # 20 samples of 6 tokens, made even: 12 for each rank in each epoch, in steps of two batches of 4.
    assert seen == {"rank": [2, 4, 24, 24 * 6], "global": [2, 4, 48, 48 * 6]}
