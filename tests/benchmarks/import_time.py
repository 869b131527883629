"""Measure the time of ``import tracekit``, and count the heavy modules that it imports.

Each import runs in a fresh interpreter without ``site``, because ``.pth`` files may import modules.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.measure import Spread, on_one_cpu
from tests.benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.measure import Effort

NAME = "import"
USUAL = "import logging, json, dataclasses, threading"
HEAVY = ("torch", "fsspec", "psutil")
"""What the import must not bring along."""
OTHERS = ("asyncio", "jsonschema", "msgspec", "numpy", "orjson", "perfetto", "rich")
"""What is told as well."""

TIMED = """
import sys, time
start = time.perf_counter_ns()
{statement}
took = time.perf_counter_ns() - start
print(took, *(name for name in {names} if name in sys.modules))
"""


def rows(effort: Effort) -> Iterator[Row]:
    """Time the import, and what every program that records imports, in the imports of everyday programs."""
    what_users_need = "from tracekit import JSONTraceHandler, Profiler"
    with on_one_cpu():
        yield from _rows("import tracekit", effort, bound=2.0)
        yield from _rows(what_users_need, effort, bound=None)


def _rows(statement: str, effort: Effort, bound: float | None) -> Iterator[Row]:
    ratios, times, modules = [], [], set()
    for _ in range(effort.imports):
        usual_ns, _ = _import(USUAL)
        took_ns, imported = _import(statement)
        ratios.append(took_ns / usual_ns)
        times.append(took_ns)
        modules |= imported
    took = f"{Spread.of(times).median / 1e6:.1f} ms"
    yield Row(NAME, statement, Spread.of(ratios), " x logging, json ...", at_most=bound, remarks=took)
    heavy = sorted(modules.intersection(HEAVY))
    rest = sorted(modules.intersection(OTHERS))
    left_alone = [name for name in (*HEAVY, *OTHERS) if name not in modules]
    remarks = f"not imported: {', '.join(left_alone)}" + (f"; imported: {', '.join(heavy + rest)}" if modules else "")
    what = f"heavy modules ({', '.join(HEAVY)}) it imports"
    yield Row(NAME, what, Spread.of([float(len(heavy))]), at_most=0, remarks=remarks)


def _import(statement: str) -> tuple[int, set[str]]:
    """Return how long an import takes in ns, and which of the modules above it brings along."""
    root = Path(__file__).resolve().parents[2]
    places = os.pathsep.join([str(root), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    finished = subprocess.run(
        [sys.executable, "-S", "-c", TIMED.format(statement=statement, names=HEAVY + OTHERS)],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=True,
    )
    took, *modules = finished.stdout.split()
    return int(took), set(modules)
