"""The peers, and tracekit, as loops that can be timed. Opening a peer that is not installed raises ImportError.

MosaicML Composer is left out: it cannot be installed together with this torch.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tracekit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.benchmarks.measure import Loop

NEVER_S = 3600.0
"""A flush interval so long that the writer stays out of what is measured."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Something to be timed.

    Attributes:
        loop: Does it so many times.
        reset: Empties what the loop has filled; called outside the time.
    """

    loop: Loop
    reset: Callable[[], object] | None = None


def loop_of(statement: str, **names: Any) -> Loop:
    """Return a loop that runs a statement in a function, with values for its names."""
    lines = (
        f"def outer({', '.join(names)}):",
        " def loop(count):",
        "  for _ in repeat(None, count):",
        f"   {statement}",
        " return loop",
    )
    made: dict[str, Any] = {}
    exec("from itertools import repeat\n" + "\n".join(lines), made)
    loop: Loop = made["outer"](**names)
    return loop


def entering(context: Any) -> Loop:
    """Return a loop that enters and leaves one and the same context manager."""
    return loop_of("with context: pass", context=context)


def making(make: Callable[[str], Any]) -> Loop:
    """Return a loop that makes a context manager by name, enters and leaves it."""
    return loop_of('with make("x"): pass', make=make)


@contextlib.contextmanager
def recording() -> Iterator[tracekit.Profiler]:
    """Record without handlers, the writer standing still."""
    with tracekit.Profiler(flush_interval=NEVER_S) as profiler:
        yield profiler


@contextlib.contextmanager
def own(statement: str) -> Iterator[Subject]:
    """A statement with a ``profiler``, a ``marker`` of it, ``values`` of a counter or one ``value``."""
    with recording() as profiler:
        names = {"profiler": profiler, "marker": profiler.marker("x"), "values": {"loss": 0.5}, "value": 0.5}
        yield Subject(loop_of(statement, **names), profiler.flush)


@contextlib.contextmanager
def idle_marker() -> Iterator[Subject]:
    """``with marker:`` while no profiler is active."""
    yield Subject(entering(tracekit.marker("benchmark")))


@contextlib.contextmanager
def skipped_marker() -> Iterator[Subject]:
    """``with marker:`` while the schedule says SKIP."""
    with tracekit.Profiler(schedule=lambda _: tracekit.ProfilerAction.SKIP, flush_interval=NEVER_S) as profiler:
        yield Subject(entering(profiler.marker("x")))


@contextlib.contextmanager
def viztracer(**options: Any) -> Iterator[Any]:
    """A tracer that takes the events that it is asked to, and traces no function."""
    tracer = importlib.import_module("viztracer").VizTracer(verbose=0, **options)
    tracer.start()
    tracer.pause()
    try:
        yield tracer
    finally:
        tracer.stop()
        tracer.clear()
        # VizTracer 1.1.1 leaves its hook for threads behind: every thread that is started later would be traced, and the
        # threads of tracekit would take twice as long.
        threading.setprofile(None)  # type: ignore[arg-type]


@contextlib.contextmanager
def viztracer_event(statement: str) -> Iterator[Subject]:
    """A statement with a ``tracer``."""
    with viztracer() as tracer:
        yield Subject(loop_of(statement, tracer=tracer), tracer.clear)


@contextlib.contextmanager
def torch_range(kind: str, *, on: bool) -> Iterator[Subject]:
    """A ``record_function`` or ``_RecordFunctionFast`` while torch.profiler is on or off."""
    torch = importlib.import_module("torch")
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with profile if on else contextlib.nullcontext():
        yield Subject(making(torch_maker(kind)))


def torch_maker(kind: str) -> Callable[[str], Any]:
    """Return what makes ranges of torch."""
    torch = importlib.import_module("torch")
    made: Callable[[str], Any] = getattr(torch._C._profiler if kind.startswith("_") else torch.profiler, kind)
    return made


@contextlib.contextmanager
def nvtx_annotate() -> Iterator[Subject]:
    """``with nvtx.annotate("x"):``; without a tool of NVIDIA attached it records nothing."""
    yield Subject(making(importlib.import_module("nvtx").annotate))


@contextlib.contextmanager
def lightning_profiler() -> Iterator[Subject]:
    """``with SimpleProfiler().profile("x"):``; it keeps durations, not times."""
    profiler = importlib.import_module("pytorch_lightning.profilers").SimpleProfiler()
    yield Subject(making(profiler.profile), profiler.recorded_durations.clear)


@contextlib.contextmanager
def opentelemetry_span() -> Iterator[Subject]:
    """``with tracer.start_as_current_span("x"):``, exported in batches to nowhere."""
    trace = importlib.import_module("opentelemetry.sdk.trace")
    export = importlib.import_module("opentelemetry.sdk.trace.export")

    class Nowhere(export.SpanExporter):  # type: ignore[misc, name-defined]
        def export(self, spans: Any) -> Any:
            return export.SpanExportResult.SUCCESS

    provider = trace.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(export.BatchSpanProcessor(Nowhere()))
    try:
        yield Subject(making(provider.get_tracer("benchmark").start_as_current_span))
    finally:
        provider.shutdown()
