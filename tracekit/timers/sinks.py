"""Sinks for tables of timers: text, files, and the services for experiments, none of which is imported."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tracekit.arguments import check_path
from tracekit.errors import ConfigError, StorageError
from tracekit.storage import PRIVATE_MODE, is_remote, make_folders
from tracekit.timers.table import NUMBERS, numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.arguments import StrPath
    from tracekit.timers.table import TimerTable

_COLUMNS: Final = ("step", "timer", "rank", *NUMBERS)
_NOT_IN_MLFLOW: Final = re.compile(r"[^\w\-. /]")  # characters that MLflow refuses in the name of a metric


class Sink(Protocol):
    """Takes the same table as any other sink; give one `TimerTable` to as many as you like."""

    def write(self, table: TimerTable, step: int) -> None:
        """Write a table.

        Args:
            table: From `Timers.snapshot`, `Timers.gather` or `read_timers`.
            step: The training step that it belongs to.
        """


def metrics(table: TimerTable, prefix: str = "timer") -> dict[str, float]:
    """Return a table as numbers by name, such as ``timer/forward/mean_s``.

    Those of several ranks are of all calls together. They also have the totals of the fastest and the slowest rank, and the
    number of the slowest: ``rank_total_min_s``, ``rank_total_max_s``, ``slowest_rank``.
    """
    found: dict[str, float] = {}
    for name in table.names:
        fastest, slowest = table.fastest(name), table.slowest(name)
        if fastest is None or slowest is None:
            continue
        values = numbers(table.across(name))
        if len(table.ranks) > 1:
            values["rank_total_min_s"] = table.of(name)[fastest].total_ns / 1e9
            values["rank_total_max_s"] = table.of(name)[slowest].total_ns / 1e9
            values["slowest_rank"] = slowest
        found.update({f"{prefix}/{name}/{key}": value for key, value in values.items()})
    return found


class TextSink:
    """Passes the table as text, with its units, to a function.

    Args:
        output: Called with the text, such as ``print``; None logs it at level INFO as "tracekit.timers".
    """

    def __init__(self, output: Callable[[str], object] | None = None) -> None:
        self._output = logging.getLogger("tracekit.timers").info if output is None else output

    def write(self, table: TimerTable, step: int) -> None:
        """Write a table."""
        self._output(f"timers at step {step}:\n{table.text()}")


class _FileSink(ABC):
    """Appends text to a file. Each write opens and closes it, so that it is complete after each, and rotating it is safe."""

    def __init__(self, path: StrPath) -> None:
        name = check_path("path", path)
        if is_remote(name):
            raise ConfigError(f"{type(self).__name__} appends to a local file, which {name} is not")
        self._path = Path(name)

    def write(self, table: TimerTable, step: int) -> None:
        """Write a table."""
        records = [
            {"step": step, "timer": row.timer, "rank": "all" if row.rank is None else row.rank}
            | numbers(row.statistics)
            for row in table.rows()
        ]
        if not records:
            return
        text = self._text(records)
        try:
            make_folders(self._path.parent)
            with open(self._path, "a", encoding="utf-8", newline="", opener=_private) as file:
                file.write("\n" + text if _is_torn(self._path) else text)
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written: {error.strerror or error}") from error

    @abstractmethod
    def _text(self, records: list[dict[str, Any]]) -> str:
        """Return what to append to the file."""


def _is_torn(path: Path) -> bool:
    """Return True if a file ends within a line, as a killed process leaves it."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE_MODE)


class CSVSink(_FileSink):
    """Appends to a CSV file: a head, then one line a timer and rank.

    The columns are ``step``, ``timer``, ``rank`` ("all" for all ranks together) and the numbers; times are in seconds, as their
    names say (``mean_s``).

    Args:
        path: The file. An existing one is continued.

    Raises:
        ConfigError: It is a URL.
        StorageError: It has other columns, or cannot be written.
    """

    def _text(self, records: list[dict[str, Any]]) -> str:
        head = ""
        try:
            with suppress(FileNotFoundError), self._path.open(encoding="utf-8", newline="") as file:
                head = file.readline()
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"{self._path}: cannot be read: {error}") from error
        if head and head.strip() != ",".join(_COLUMNS):
            raise StorageError(
                f"{self._path}: its first line is not the head of a table of timers; choose another file"
            )
        text = io.StringIO()
        lines = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
        if not head:
            lines.writeheader()
        lines.writerows(records)
        return text.getvalue()


class JSONLinesSink(_FileSink):
    """Appends to a file of JSON objects, one a line for each timer and rank, with the keys that are the columns of `CSVSink`.

    The argument and the errors are those of `CSVSink`; it continues any file.
    """

    def _text(self, records: list[dict[str, Any]]) -> str:
        return "".join(json.dumps(record) + "\n" for record in records)


class TensorBoardSink:
    """Writes to TensorBoard.

    Args:
        writer: A ``SummaryWriter`` of ``torch.utils.tensorboard`` or ``tensorboardX``.
        prefix: Prefix of the names; see `tracekit.timers.metrics`.

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
    """Writes to Weights & Biases, all numbers of a step in one call.

    Args:
        run: The run that ``wandb.init`` returns, or ``wandb`` itself.
        prefix: Prefix of the names; see `tracekit.timers.metrics`.

    Raises:
        ConfigError: The run is none.
    """

    def __init__(self, run: Any, prefix: str = "timer") -> None:
        self._run = _with("log", run, "WandbSink takes a run of wandb")
        self._prefix = prefix

    def write(self, table: TimerTable, step: int) -> None:
        """Write a table."""
        if found := metrics(table, self._prefix):
            self._run.log(found, step=step)


class MLflowSink:
    """Writes to MLflow, all numbers of a step in one call. Characters that MLflow refuses in a name become ``_``.

    Args:
        mlflow: The module ``mlflow``, with a run that is active or named here.
        prefix: Prefix of the names; see `tracekit.timers.metrics`.
        run_id: Id of the run; None is the active one.

    Raises:
        ConfigError: It is not the module.
    """

    def __init__(self, mlflow: Any, prefix: str = "timer", *, run_id: str | None = None) -> None:
        self._mlflow = _with("log_metrics", mlflow, "MLflowSink takes the module mlflow")
        self._prefix = prefix
        self._run_id = run_id

    def write(self, table: TimerTable, step: int) -> None:
        """Write a table."""
        if found := {_NOT_IN_MLFLOW.sub("_", name): value for name, value in metrics(table, self._prefix).items()}:
            self._mlflow.log_metrics(found, step=step, run_id=self._run_id)


def _with(method: str, given: Any, expected: str) -> Any:
    if not callable(getattr(given, method, None)):
        raise ConfigError(f"{expected}, which has {method}(); {given!r} has not")
    return given
