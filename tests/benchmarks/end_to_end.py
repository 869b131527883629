"""Measure the whole cost of a slice, from the marker to the file, as the CPU time of all threads of the process.

Slices are recorded back to back, which is the hardest case: the writer thread competes for the interpreter lock all the
time. The peers take turns with tracekit, each with as many slices as it can hold.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tracekit
from tests.benchmarks import peers
from tests.benchmarks.measure import Spread, count_for, time_of, two_clock_reads
from tests.benchmarks.pure_python import beside, bound
from tests.benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.benchmarks.measure import Effort

NAME = "end-to-end"
ROUNDS = 9
AT_A_TIME = 10_000


def rows(effort: Effort) -> Iterator[Row]:
    """Measure the whole way to the file in clock reads, then how many times as much the peers take."""
    own, others = _rows(effort, peers_too=True)
    yield from beside(own, __name__, effort)
    yield from others


def own_rows(effort: Effort) -> list[Row]:
    """Measure tracekit's way to the file alone."""
    return _rows(effort, peers_too=False)[0]


def _rows(effort: Effort, *, peers_too: bool) -> tuple[list[Row], list[Row]]:
    slices = effort.file_slices
    # torch keeps more than a kilobyte a slice, and writes for long.
    contenders: dict[str, tuple[Callable[[Path, int], float], int]] = {
        "unit": (clock_reads, slices),
        "tracekit": (tracekit_file, slices),
        "steady": (partial(tracekit_file, at_a_time=AT_A_TIME), slices),
    }
    if peers_too:
        contenders |= {
            "VizTracer": (viztracer_file, slices),
            "record_function": (partial(torch_file, "record_function"), slices // 4),
            "_RecordFunctionFast": (partial(torch_file, "_RecordFunctionFast"), slices // 4),
        }
    costs: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    for _ in range(min(ROUNDS, effort.rounds)):
        for name, (write, count) in contenders.items():
            if name in missing:
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    costs.setdefault(name, []).append(write(Path(folder) / "trace.json", count))
                except ImportError as error:
                    missing[name] = f"not installed ({error.name})"

    def row(what: str, above: str, below: str, unit: str, **limit: float) -> Row:
        if above in missing:
            return Row(NAME, what, None, unit, remarks=missing[above], **limit)
        ratios = [one / other for one, other in zip(costs[above], costs[below], strict=True)]
        remarks = f"{Spread.of(costs[above]).median:.0f} ns a slice"
        return Row(NAME, what, Spread.of(ratios), unit, remarks=remarks, **limit)

    clock, own = " x two clock reads", " x tracekit"
    rows_of_tracekit = [
        row("record, encode and write a slice, all CPU", "tracekit", "unit", clock, at_most=bound(2.5, 10.0)),
        row(f"the same, flushed every {AT_A_TIME:,} slices", "steady", "unit", clock),
    ]
    if not peers_too:
        return rows_of_tracekit, []
    return rows_of_tracekit, [
        row("VizTracer log_event and save", "VizTracer", "tracekit", own, at_least=2.5),
        row("torch record_function and export", "record_function", "tracekit", own, at_least=10.0),
        row("torch _RecordFunctionFast and export", "_RecordFunctionFast", "tracekit", own),
    ]


def clock_reads(_path: Path, _slices: int) -> float:
    """Return what two clock reads cost at this moment."""
    return time_of(two_clock_reads, count_for(two_clock_reads, 50_000_000))


def tracekit_file(path: Path, slices: int, at_a_time: int | None = None) -> float:
    """Record to a JSONTraceHandler; ``at_a_time`` has the recording thread wait for the writer every so many slices."""
    handler = tracekit.JSONTraceHandler(path.parent / "rank{rank}.json")
    with _cpu_time(slices) as cost, tracekit.Profiler(handler, rank=0) as profiler:
        loop = peers.entering(profiler.marker("x"))
        for _ in range(0, slices, at_a_time or slices):
            loop(min(at_a_time or slices, slices))
            if at_a_time is not None:
                profiler.flush()
    assert profiler.stats.slices == slices
    _check(path.parent / "rank0.json", slices)
    return cost.ns


def viztracer_file(path: Path, slices: int) -> float:
    """Record with VizTracer and have it write its JSON."""
    with _cpu_time(slices) as cost, peers.viztracer(tracer_entries=slices + 1000) as tracer:
        peers.making(tracer.log_event)(slices)
        tracer.stop()
        tracer.save(str(path))
    _check(path, slices)
    return cost.ns


def torch_file(kind: str, path: Path, slices: int) -> float:
    """Record with torch.profiler and have it write its JSON."""
    torch = importlib.import_module("torch")
    with _cpu_time(slices) as cost:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            peers.making(peers.torch_maker(kind))(slices)
        profiler.export_chrome_trace(str(path))
    _check(path, slices)
    return cost.ns


class _Cost:
    ns = 0.0


@contextmanager
def _cpu_time(slices: int) -> Any:
    """Measure the CPU time of all threads of this process, for each slice."""
    cost, start = _Cost(), time.process_time_ns()
    yield cost
    cost.ns = (time.process_time_ns() - start) / slices


def _check(path: Path, slices: int) -> None:
    """A file without the slices would cost nothing."""
    assert path.stat().st_size > 50 * slices, f"{path.name} is too small for {slices} slices"
