"""Measure the same rows in pure Python.

They come from a separate process with ``TRACEKIT_PURE_PYTHON=1``, because a marker gets its core when tracekit is imported.
Its figures are ratios to other measurements of that process, so that both can be compared.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.benchmarks.measure import Effort, Spread
from tests.benchmarks.table import Row
from tracekit import core

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["beside", "bound"]


def bound(compiled: float, pure: float) -> float:
    """Return the bound for this process."""
    return pure if core.record is None else compiled


def beside(rows: Iterable[Row], benchmark: str, effort: Effort) -> Iterator[Row]:
    """Yield the rows of tracekit, each with the same row in pure Python behind it, unless this process is pure Python.

    Args:
        rows: The rows of this process.
        benchmark: The module with the function ``own_rows``.
        effort: The counts and sizes.
    """
    if core.record is None:
        yield from rows
        return
    pure: dict[str, Row] | None = None
    for row in rows:
        yield row
        if pure is None:
            pure = _in_pure_python(benchmark, effort)
        if row.what in pure:
            yield dataclasses.replace(pure[row.what], what=f"{row.what} (pure Python)")


def _in_pure_python(benchmark: str, effort: Effort) -> dict[str, Row]:
    finished = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.pure_python", benchmark, json.dumps(dataclasses.asdict(effort))],
        env=os.environ | {"TRACEKIT_PURE_PYTHON": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {row.what: row for row in map(_row, json.loads(finished.stdout))}


def _row(values: dict[str, Any]) -> Row:
    measured = values["measured"] and Spread(**values["measured"])
    return Row(**{**{field.name: values[field.name] for field in dataclasses.fields(Row)}, "measured": measured})


def main() -> None:
    """Measure the rows of one benchmark and print them as JSON."""
    benchmark = importlib.import_module(sys.argv[1])
    effort = Effort(**json.loads(sys.argv[2]))
    print(json.dumps([row.as_json() for row in benchmark.own_rows(effort)]))


if __name__ == "__main__":
    main()
