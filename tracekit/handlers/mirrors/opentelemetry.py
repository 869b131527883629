"""OpenTelemetry: tracekit's slices as spans. Uses only the API; the user chooses the SDK and the destination of spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.handlers.mirrors.mirror import Mirror
from tracekit.imports import import_extra
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.handlers.base import Recording
    from tracekit.handlers.mirrors.mirror import Moment
    from tracekit.timestamp import Timestamp

_KEY: Final = "tracekit-span"  # key of a context for the slice that made it


class OpenTelemetryMirror(Mirror):
    """Shows slices as OpenTelemetry spans, and instants as events of the span that they happen in.

    The parent of a slice is the current span at its start: the span of the enclosing slice, or a span of the user. While the
    slice runs, its span is the current one, so spans and headers of other instrumentation belong to it. Each thread and each
    asyncio task has its own current span, as always in OpenTelemetry.

    Attributes of spans: ``tracekit.run_id``, ``tracekit.rank``, ``tracekit.categories`` (where there are any), and the training
    time at the start: ``tracekit.iteration``, ``tracekit.epoch``, ``tracekit.batch``, ``tracekit.sample``, ``tracekit.token``.
    A slice that an exception has ended has the status ERROR and an event "exception" with ``exception.type``. Times are those
    of tracekit's trace. An instant outside of any span is a span of length zero. A span that is open when the profiler
    stops is ended then, with the attribute ``tracekit.unfinished``. The SDK decides about sampling and export.

    Args:
        tracer_provider: The provider of the spans; None uses the global provider of the process.

    Raises:
        MissingExtraError: opentelemetry-api is not installed.
    """

    has_clock = False

    def __init__(self, tracer_provider: Any = None) -> None:
        super().__init__()
        needed = "otel", "OpenTelemetryMirror", "opentelemetry-api"
        self._context = import_extra("opentelemetry.context", *needed)
        self._trace = import_extra("opentelemetry.trace", *needed)
        self._tracer = self._trace.get_tracer("tracekit", __version__, tracer_provider)
        self._identity: dict[str, Any] = {}
        self._last: tuple[Timestamp | None, dict[str, Any]] = None, {}

    def open(self, recording: Recording) -> None:
        """Record the run id and the rank for the attributes of spans."""
        process = recording.process
        self._identity = {"tracekit.run_id": process.run_id, "tracekit.rank": process.rank}

    def begin(self, name: str, categories: Sequence[str], moment: Moment) -> _Spanned:
        """Start a span, and make it the current one."""
        outer = self._context.get_current()
        span = self._tracer.start_span(
            name, outer, attributes=self._attributes(categories, moment), start_time=moment.wall_clock_time_ns
        )
        spanned = _Spanned(span, outer)
        context = self._trace.set_span_in_context(span, outer)
        self._context.attach(self._context.set_value(_KEY, spanned, context))
        return spanned

    def end(self, opened: _Spanned, moment: Moment, exception: str | None) -> None:
        """End a span, and restore the span that was current before it."""
        span = opened.span
        if exception is not None:
            span.add_event("exception", {"exception.type": exception}, moment.wall_clock_time_ns)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, exception))
        span.end(moment.wall_clock_time_ns)
        self._restore(opened)

    def leave(self, opened: _Spanned, moment: Moment) -> None:
        """End a span that is unfinished."""
        opened.span.set_attribute("tracekit.unfinished", True)
        self.end(opened, moment, None)

    def mark(self, name: str, categories: Sequence[str], moment: Moment) -> None:
        """Add an event to the current span."""
        attributes = self._attributes(categories, moment)
        span = self._trace.get_current_span()
        if span.get_span_context().is_valid:
            span.add_event(name, attributes, moment.wall_clock_time_ns)
        else:
            span = self._tracer.start_span(name, attributes=attributes, start_time=moment.wall_clock_time_ns)
            span.end(moment.wall_clock_time_ns)

    def _attributes(self, categories: Sequence[str], moment: Moment) -> dict[str, Any]:
        timestamp = moment.timestamp
        known, attributes = self._last
        if known is not timestamp:  # all slices of a batch share one timestamp
            attributes = {
                **self._identity,
                "tracekit.iteration": int(timestamp.iteration),
                "tracekit.epoch": int(timestamp.epoch),
                "tracekit.batch": int(timestamp.batch),
                "tracekit.sample": int(timestamp.sample),
                "tracekit.token": int(timestamp.token),
            }
            self._last = timestamp, attributes
        return {**attributes, "tracekit.categories": tuple(categories)} if categories else attributes

    def _restore(self, opened: _Spanned) -> None:
        """Restore the context from before the slices that have ended.

        Attach the earlier context instead of using a token: a token is valid only in the context that made it, and a slice may
        end elsewhere. Do nothing unless the current span belongs to a slice that has ended.
        """
        opened.ended = True
        current = context = self._context.get_current()
        while (
            (inner := context.get(_KEY)) is not None
            and inner.ended
            and self._trace.get_current_span(context) is inner.span
        ):
            context = inner.outer
        if context is not current:
            self._context.attach(context)


@dataclass(eq=False, slots=True)
class _Spanned:
    """The span of a slice, and the context at its start."""

    span: Any
    outer: Any
    ended: bool = False
