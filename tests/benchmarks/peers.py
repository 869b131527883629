"""The peers, and tracekit, as loops that can be timed. What is not installed raises ImportError when it is opened.

MosaicML Composer is not among them: it cannot be installed beside this torch.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from dataclasses import dataclass
from itertools import repeat
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


def entering(context: Any) -> Loop:
    """Return a loop that enters and leaves one and the same context manager."""

    def loop(count: int) -> None:
        for _ in repeat(None, count):
            with context:
                pass

    return loop


def making(make: Callable[[str], Any]) -> Loop:
    """Return a loop that makes a context manager by name, enters and leaves it."""

    def loop(count: int) -> None:
        for _ in repeat(None, count):
            with make("x"):
                pass

    return loop


def null_context() -> Loop:
    """Return the loop of a context manager that does nothing."""
    return entering(contextlib.nullcontext())


# ---- tracekit -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def recording() -> Iterator[tracekit.Profiler]:
    """Record without handlers, the writer standing still."""
    with tracekit.Profiler(flush_interval=NEVER_S) as profiler:
        yield profiler


@contextlib.contextmanager
def reused_marker() -> Iterator[Subject]:
    """``with marker:``."""
    with recording() as profiler:
        yield Subject(entering(profiler.marker("x")), profiler.flush)


@contextlib.contextmanager
def marker_by_name() -> Iterator[Subject]:
    """``with profiler.marker("x"):``."""
    with recording() as profiler:

        def loop(count: int) -> None:
            for _ in repeat(None, count):
                with profiler.marker("x"):
                    pass

        yield Subject(loop, profiler.flush)


@contextlib.contextmanager
def marker_instant() -> Iterator[Subject]:
    """``marker.instant()``."""
    with recording() as profiler:
        marker = profiler.marker("x")

        def loop(count: int) -> None:
            for _ in repeat(None, count):
                marker.instant()

        yield Subject(loop, profiler.flush)


@contextlib.contextmanager
def marker_counter() -> Iterator[Subject]:
    """``marker.counter(values)`` with the values of the step before."""
    with recording() as profiler:
        marker, values = profiler.marker("x"), {"loss": 0.5}

        def loop(count: int) -> None:
            for _ in repeat(None, count):
                marker.counter(values)

        yield Subject(loop, profiler.flush)


@contextlib.contextmanager
def marker_counter_of_new_values() -> Iterator[Subject]:
    """``marker.counter({"loss": value})``, which makes a dictionary each time."""
    with recording() as profiler:
        marker, value = profiler.marker("x"), 0.5

        def loop(count: int) -> None:
            for _ in repeat(None, count):
                marker.counter({"loss": value})

        yield Subject(loop, profiler.flush)


def new_values() -> Loop:
    """Return a loop that makes the dictionary which a counter takes, and nothing else."""
    value = 0.5

    def loop(count: int) -> None:
        for _ in repeat(None, count):
            {"loss": value}  # noqa: B018

    return loop


@contextlib.contextmanager
def idle_marker() -> Iterator[Subject]:
    """``with marker:`` while no profiler is active."""
    yield Subject(entering(tracekit.marker("benchmark")))


@contextlib.contextmanager
def skipped_marker() -> Iterator[Subject]:
    """``with marker:`` while the schedule says SKIP."""
    with tracekit.Profiler(schedule=lambda _: tracekit.ProfilerAction.SKIP, flush_interval=NEVER_S) as profiler:
        yield Subject(entering(profiler.marker("x")))


# ---- VizTracer ------------------------------------------------------------------------------------------------------------


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
def viztracer_event() -> Iterator[Subject]:
    """``with tracer.log_event("x"):``."""
    with viztracer() as tracer:
        yield Subject(making(tracer.log_event), tracer.clear)


@contextlib.contextmanager
def viztracer_instant() -> Iterator[Subject]:
    """``tracer.add_instant("x")``."""
    with viztracer() as tracer:

        def loop(count: int) -> None:
            for _ in repeat(None, count):
                tracer.add_instant("x")

        yield Subject(loop, tracer.clear)


# ---- torch ----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _torch_profiler(*, on: bool) -> Iterator[Any]:
    torch = importlib.import_module("torch")
    if not on:
        yield torch
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield torch


@contextlib.contextmanager
def record_function(*, on: bool) -> Iterator[Subject]:
    """``with torch.profiler.record_function("x"):``."""
    with _torch_profiler(on=on) as torch:
        yield Subject(making(torch.profiler.record_function))


@contextlib.contextmanager
def record_function_fast(*, on: bool) -> Iterator[Subject]:
    """``with torch._C._profiler._RecordFunctionFast("x"):``."""
    with _torch_profiler(on=on) as torch:
        yield Subject(making(torch._C._profiler._RecordFunctionFast))


# ---- others ---------------------------------------------------------------------------------------------------------------


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
