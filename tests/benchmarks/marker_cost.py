"""What one marker costs the thread that uses it, beside the peers. On one CPU; nothing is written meanwhile."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.benchmarks import peers
from tests.benchmarks.measure import compare, on_one_cpu, two_clock_reads
from tests.benchmarks.pure_python import beside, bound
from tests.benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.benchmarks.measure import Effort, Loop

NAME = "marker"
CLOCK = " x two clock reads"
NULL = " x nullcontext"

_TRACEKIT: list[tuple[str, Any, float, str]] = [
    ("with marker:", peers.reused_marker, bound(0.9, 3.8), CLOCK),
    ('with profiler.marker("x"):', peers.marker_by_name, bound(1.1, 4.3), CLOCK),
    ("with marker: (no profiler)", peers.idle_marker, 1.2, NULL),
    ("with marker: (SKIP)", peers.skipped_marker, 1.2, NULL),
    ("marker.instant()", peers.marker_instant, bound(0.6, 4.5), CLOCK),
    ("marker.counter(values)", peers.marker_counter, bound(0.6, 7.0), CLOCK),
    ('marker.counter({"loss": value})', peers.marker_counter_of_new_values, bound(0.6, 7.0), CLOCK),
]
_PEERS: list[tuple[str, Any]] = [
    ("VizTracer log_event", peers.viztracer_event),
    ("VizTracer add_instant", peers.viztracer_instant),
    ("torch record_function, profiler on", partial(peers.record_function, on=True)),
    ("torch record_function, profiler off", partial(peers.record_function, on=False)),
    ("torch _RecordFunctionFast, profiler on", partial(peers.record_function_fast, on=True)),
    ("torch _RecordFunctionFast, profiler off", partial(peers.record_function_fast, on=False)),
    ("nvtx.annotate, no tool attached", peers.nvtx_annotate),
    ("Lightning SimpleProfiler.profile", peers.lightning_profiler),
    ("OpenTelemetry span, BatchSpanProcessor", peers.opentelemetry_span),
]


def rows(effort: Effort) -> Iterator[Row]:
    """Measure tracekit's markers, then the peers."""
    yield from beside(own_rows(effort), __name__, effort)
    with on_one_cpu():
        null_context = peers.null_context()
        for what, reference in (
            ("contextlib.nullcontext", null_context),
            ('{"loss": value} alone', peers.new_values()),
        ):
            compared = compare(reference, two_clock_reads, effort)
            yield Row(NAME, what, compared.ratio, CLOCK, remarks=_ns(compared.operation_ns))
        for what, open_subject in _PEERS:
            yield _row(what, open_subject, two_clock_reads, effort, CLOCK)


def own_rows(effort: Effort) -> Iterator[Row]:
    """Measure tracekit's markers."""
    with on_one_cpu():
        null_context = peers.null_context()
        for what, open_subject, at_most, unit in _TRACEKIT:
            yield _row(what, open_subject, null_context if unit is NULL else two_clock_reads, effort, unit, at_most)


def _row(
    what: str, open_subject: Callable[[], Any], reference: Loop, effort: Effort, unit: str, at_most: float | None = None
) -> Row:
    try:
        with open_subject() as subject:
            compared = compare(subject.loop, reference, effort, subject.reset)
    except ImportError as error:
        return Row(NAME, what, None, remarks=f"not installed ({error.name})")
    return Row(NAME, what, compared.ratio, unit, at_most=at_most, remarks=_ns(compared.operation_ns))


def _ns(value: float) -> str:
    return f"{value:.0f} ns"
