"""Measure the time that a marker and its peers take from the calling thread, on one CPU, without writing."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.benchmarks import peers
from tests.benchmarks.measure import compare, on_one_cpu, two_clock_reads
from tests.benchmarks.pure_python import beside, bound
from tests.benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.benchmarks.measure import Effort

NAME = "marker"
CLOCK = " x two clock reads"
NULL = " x nullcontext"

_OWN: list[tuple[str, Any, float, str]] = [
    ("with marker:", partial(peers.own, "with marker: pass"), bound(0.9, 3.8), CLOCK),
    ('with profiler.marker("x"):', partial(peers.own, 'with profiler.marker("x"): pass'), bound(1.1, 4.3), CLOCK),
    ("with marker: (no profiler)", peers.idle_marker, 1.2, NULL),
    ("with marker: (SKIP)", peers.skipped_marker, 1.2, NULL),
    *(
        (statement, partial(peers.own, statement), at_most, CLOCK)
        for statement, at_most in (
            ("marker.instant()", bound(0.6, 4.5)),
            ("marker.counter(values)", bound(0.6, 7.0)),
            ('marker.counter({"loss": value})', bound(0.6, 7.0)),
        )
    ),
]
_PEERS: list[tuple[str, Any]] = [
    ("contextlib.nullcontext", lambda: contextlib.nullcontext(peers.Subject(_NULL_CONTEXT))),
    ('{"loss": value} alone', partial(peers.own, '{"loss": value}')),
    ("VizTracer log_event", partial(peers.viztracer_event, 'with tracer.log_event("x"): pass')),
    ("VizTracer add_instant", partial(peers.viztracer_event, 'tracer.add_instant("x")')),
    *(
        (f"torch {kind}, profiler {'on' if on else 'off'}", partial(peers.torch_range, kind, on=on))
        for kind in ("record_function", "_RecordFunctionFast")
        for on in (True, False)
    ),
    ("nvtx.annotate, no tool attached", peers.nvtx_annotate),
    ("Lightning SimpleProfiler.profile", peers.lightning_profiler),
    ("OpenTelemetry span, BatchSpanProcessor", peers.opentelemetry_span),
]
_NULL_CONTEXT = peers.entering(contextlib.nullcontext())


def rows(effort: Effort) -> Iterator[Row]:
    """Measure tracekit's markers, then the peers."""
    yield from beside(own_rows(effort), __name__, effort)
    with on_one_cpu():
        for what, open_subject in _PEERS:
            yield _row(what, open_subject, effort, CLOCK)


def own_rows(effort: Effort) -> Iterator[Row]:
    """Measure tracekit's markers."""
    with on_one_cpu():
        for what, open_subject, at_most, unit in _OWN:
            yield _row(what, open_subject, effort, unit, at_most)


def _row(what: str, open_subject: Callable[[], Any], effort: Effort, unit: str, at_most: float | None = None) -> Row:
    reference = _NULL_CONTEXT if unit == NULL else two_clock_reads
    try:
        with open_subject() as subject:
            compared = compare(subject.loop, reference, effort, subject.reset)
    except ImportError as error:
        return Row(NAME, what, None, remarks=f"not installed ({error.name})")
    return Row(NAME, what, compared.ratio, unit, at_most=at_most, remarks=f"{compared.operation_ns:.0f} ns")
