"""Sinks for TensorBoard, Weights & Biases and MLflow. Each takes the object that you have already, so that none is imported."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError
from tracekit.timers.sinks.sink import metrics

if TYPE_CHECKING:
    from tracekit.timers.table import TimerTable

__all__ = ["MLflowSink", "TensorBoardSink", "WandbSink"]

# What MLflow takes in the name of a metric.
_NOT_IN_MLFLOW: Final = re.compile(r"[^\w\-. /]")


class TensorBoardSink:
    """Writes to TensorBoard.

    Args:
        writer: A ``SummaryWriter`` of ``torch.utils.tensorboard`` or ``tensorboardX``.
        prefix: What stands before the names; see `tracekit.timers.metrics`.

    Raises:
        ConfigError: The writer is none.
    """

    def __init__(self, writer: Any, prefix: str = "timer") -> None:
        self._writer = _with("add_scalar", writer, "TensorBoardSink takes a SummaryWriter")
        self._prefix = prefix

    def write(self, table: TimerTable, step: int) -> None:
        """Write a table."""
        for name, value in metrics(table, self._prefix).items():
            self._writer.add_scalar(name, value, step)


class WandbSink:
    """Writes to Weights & Biases, all numbers of a step at once.

    Args:
        run: What ``wandb.init`` returns, or ``wandb`` itself.
        prefix: What stands before the names; see `tracekit.timers.metrics`.

    Raises:
        ConfigError: The run is none.
    """

    def __init__(self, run: Any, prefix: str = "timer") -> None:
        self._run = _with("log", run, "WandbSink takes a run of wandb")
        self._prefix = prefix

    def write(self, table: TimerTable, step: int) -> None:
        """Write a table."""
        found = metrics(table, self._prefix)
        if found:
            self._run.log(found, step=step)


class MLflowSink:
    """Writes to MLflow, all numbers of a step at once. Characters that MLflow refuses in a name become ``_``.

    Args:
        mlflow: The module ``mlflow``, with a run that is active or named here.
        prefix: What stands before the names; see `tracekit.timers.metrics`.
        run_id: Which run; None is the active one.

    Raises:
        ConfigError: It is not the module.
    """

    def __init__(self, mlflow: Any, prefix: str = "timer", *, run_id: str | None = None) -> None:
        self._mlflow = _with("log_metrics", mlflow, "MLflowSink takes the module mlflow")
        self._prefix = prefix
        self._run_id = run_id

    def write(self, table: TimerTable, step: int) -> None:
        """Write a table."""
        found = {_NOT_IN_MLFLOW.sub("_", name): value for name, value in metrics(table, self._prefix).items()}
        if found:
            self._mlflow.log_metrics(found, step=step, run_id=self._run_id)


def _with(method: str, given: Any, expected: str) -> Any:
    if not callable(getattr(given, method, None)):
        raise ConfigError(f"{expected}, which has {method}(); {given!r} has not")
    return given
