"""The sinks for files and services: one table for all of them, and each of the services with its own library."""

from __future__ import annotations

import csv
import json
import os
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import ConfigError, StorageError, Timers
from tracekit.statistics import DurationStatistics
from tracekit.timers import CSVSink, JSONLinesSink, MLflowSink, TensorBoardSink, TimerTable, WandbSink, metrics

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000

ONE = TimerTable({0: {"forward": DurationStatistics([1 * MS, 3 * MS]), "unused": DurationStatistics()}})
TWO = TimerTable({0: {"forward": DurationStatistics([1 * MS, 3 * MS])}, 1: {"forward": DurationStatistics([8 * MS])}})


def test_metrics_name_their_units() -> None:
    """T6: there the writers get seconds, and the text milliseconds, without a word."""
    assert metrics(ONE) == {
        "timer/forward/count": 2,
        "timer/forward/total_s": 0.004,
        "timer/forward/mean_s": 0.002,
        "timer/forward/stdev_s": 0.001,
        "timer/forward/min_s": 0.001,
        "timer/forward/p50_s": 0.001,
        "timer/forward/p95_s": 0.003,
        "timer/forward/p99_s": 0.003,
        "timer/forward/max_s": 0.003,
    }
    across = metrics(TWO, prefix="run")
    assert across["run/forward/count"] == 3
    assert (across["run/forward/rank_total_min_s"], across["run/forward/rank_total_max_s"]) == (0.004, 0.008)
    assert across["run/forward/slowest_rank"] == 1


def test_csv_files_are_continued_and_other_tables_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "timers.csv"
    CSVSink(path).write(TimerTable({0: {}}), 0)
    assert not path.parent.exists(), "there was nothing to write"
    CSVSink(path).write(ONE, 1)
    CSVSink(str(path)).write(TWO, 2)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["timer"], row["rank"], row["count"], row["total_s"]) for row in rows] == [
        ("1", "forward", "all", "2", "0.004"),
        ("2", "forward", "all", "3", "0.012"),
        ("2", "forward", "0", "2", "0.004"),
        ("2", "forward", "1", "1", "0.008"),
    ]
    path.write_text("a,b\n1,2\n")
    with pytest.raises(StorageError, match="is not the head of a table of timers"):
        CSVSink(path).write(ONE, 1)
    assert path.read_text() == "a,b\n1,2\n"


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "timers.jsonl"
    for table, step in ((TWO, 5), (TimerTable({0: {}}), 6), (ONE, 7)):
        JSONLinesSink(path).write(table, step)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["step"], line["rank"], line["mean_s"]) for line in lines] == [
        (5, "all", 0.004), (5, 0, 0.002), (5, 1, 0.008), (7, "all", 0.002),
    ]  # fmt: skip


def test_lines_begin_behind_a_part_of_a_line_that_a_killed_process_left(tmp_path: Path) -> None:
    for sink in (CSVSink, JSONLinesSink):
        path = tmp_path / sink.__name__
        sink(path).write(ONE, 1)
        whole = path.read_text()
        path.write_text(whole[:-9])
        sink(path).write(TWO, 2)
        assert path.read_text().startswith(f"{whole[:-9]}\n")


def test_json_lines_go_to_a_pipe_as_well() -> None:
    read_end, write_end = os.pipe()
    JSONLinesSink(f"/dev/fd/{write_end}").write(ONE, 7)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        assert json.loads(pipe.read())["step"] == 7


@pytest.mark.parametrize("sink", [CSVSink, JSONLinesSink, TensorBoardSink, WandbSink, MLflowSink])
def test_sinks_refuse_what_they_cannot_write_to(sink: Any, tmp_path: Path) -> None:
    if sink not in {CSVSink, JSONLinesSink}:
        with pytest.raises(ConfigError, match="which has"):
            sink(None)
        return
    with pytest.raises(ConfigError, match="appends to a local file"):
        sink("s3://bucket/timers")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be"):
        sink(tmp_path / "file" / "timers").write(ONE, 1)


def test_tensorboard_gets_every_number(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TensorBoard's own imports
        tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
        accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        writer = tensorboard.SummaryWriter(str(tmp_path))
    timers = Timers(2, "max")
    timers("forward").set_elapsed(0.25)
    TensorBoardSink(writer).write(TWO, 3)
    timers.write(["forward"], writer, 4)
    writer.close()
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    found = {tag: (event.step, event.value) for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}
    assert found == {
        **{tag: (3, pytest.approx(value)) for tag, value in metrics(TWO).items()},
        "forward-time": (4, 0.25),
    }


@pytest.mark.slow
def test_wandb_gets_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    timers = Timers(2, "max")
    timers("forward").set_elapsed(0.25)
    timers("startup").set_elapsed(2)
    run = wandb.init(project="timers", dir=str(tmp_path), mode="offline")
    WandbSink(run).write(TWO, 3)
    WandbSink(run).write(TimerTable({0: {}}), 3)
    timers.write_to_wandb(["forward"], run, 4)
    timers.write(["forward", "startup"], run, 5)
    run.log({}, step=6)  # wandb's summary is of the steps before the one that goes on
    summary = dict(run.summary)
    run.finish()
    assert {name: summary[name] for name in metrics(TWO)} == metrics(TWO)
    assert (summary["forward-time"], summary["startup-time"]) == (0.25, 2.0)


@pytest.mark.slow
def test_mlflow_gets_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    # What the skinny package has without a database; the name of the metric has what MLflow refuses.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    table = TimerTable({0: {"forward (50 %)": DurationStatistics([MS])}})
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(tmp_path.as_uri())
    try:
        mlflow.set_experiment("timers")
        with mlflow.start_run() as run:
            MLflowSink(mlflow).write(table, 3)
        MLflowSink(mlflow, "later", run_id=run.info.run_id).write(ONE, 4)
        MLflowSink(mlflow).write(TimerTable({0: {}}), 5)
        found = mlflow.MlflowClient().get_run(run.info.run_id).data.metrics
    finally:
        mlflow.set_tracking_uri(before)
    assert found == {
        **{name.replace("(50 %)", "_50 __"): value for name, value in metrics(table).items()},
        **metrics(ONE, "later"),
    }
