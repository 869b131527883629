"""Sinks that append to a local file: CSV and JSON lines, one record a timer and rank."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.arguments import check_path
from tracekit.errors import ConfigError, StorageError
from tracekit.statistics import DurationStatistics
from tracekit.storage import PRIVATE_MODE, is_remote, make_folders
from tracekit.timers.sinks.sink import numbers, records

if TYPE_CHECKING:
    from tracekit.arguments import StrPath
    from tracekit.timers.table import TimerTable

__all__ = ["CSVSink", "JSONLinesSink"]

_COLUMNS = ("step", "timer", "rank", *numbers(DurationStatistics()))


class _FileSink:
    """Appends text to a file. Each write opens and closes it, so that it is complete after each, and rotating it is safe."""

    def __init__(self, path: StrPath) -> None:
        name = check_path("path", path)
        if is_remote(name):
            raise ConfigError(f"{type(self).__name__} appends to a local file, which {name} is not")
        self._path = Path(name)

    def _append(self, text: str) -> None:
        if not text:
            return
        try:
            make_folders(self._path.parent)
            with open(self._path, "a", encoding="utf-8", newline="", opener=_private) as file:
                file.write(text)
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written: {error.strerror or error}") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE_MODE)


class CSVSink(_FileSink):
    """Appends to a CSV file: a head, then one line a timer and rank.

    The columns are ``step``, ``timer``, ``rank`` ("all" for all ranks together) and the numbers; times are in seconds, as their
    names say (``mean_s``).

    Args:
        path: The file. One that is there is continued.

    Raises:
        ConfigError: It is a URL.
        StorageError: It has other columns, or cannot be written.
    """

    def write(self, table: TimerTable, step: int) -> None:
        """Write a table."""
        text = io.StringIO()
        lines = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
        rows = records(table, step)
        if rows and self._is_new():
            lines.writeheader()
        lines.writerows(rows)
        self._append(text.getvalue())

    def _is_new(self) -> bool:
        try:
            with self._path.open(encoding="utf-8", newline="") as file:
                head = file.readline()
        except FileNotFoundError:
            return True
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"{self._path}: cannot be read: {error}") from error
        if head and head.strip() != ",".join(_COLUMNS):
            raise StorageError(
                f"{self._path}: its first line is not the head of a table of timers; choose another file"
            )
        return not head


class JSONLinesSink(_FileSink):
    """Appends to a file of JSON objects, one a line for each timer and rank, with the keys that are the columns of `CSVSink`.

    Args:
        path: The file. One that is there is continued.

    Raises:
        ConfigError: It is a URL.
        StorageError: It cannot be written.
    """

    def write(self, table: TimerTable, step: int) -> None:
        """Write a table."""
        self._append("".join(json.dumps(record) + "\n" for record in records(table, step)))
