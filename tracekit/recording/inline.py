"""Inline handlers: called on the recording thread, inside the marker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.handlers.base import TraceHandler
from tracekit.recording.marker import Marker, MarkerObserver

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.clock import Timeline
    from tracekit.events import Timestamps
    from tracekit.recording.failures import Failures

__all__ = ["InlineHandlers", "WithoutEvents"]


class WithoutEvents(TraceHandler):
    """Stands for an inline handler at the writer: passes everything on but the events, which it has had already."""

    def __init__(self, handler: TraceHandler) -> None:
        for method in (
            "ending",
            "losses",
            "flush",
            "close",
            "process_chrome_json_trace_file",
            "batch_start",
            "batch_end",
            "epoch_start",
            "epoch_end",
            "window_end",
            "clock_anchor",
            "clock_offset",
            "summary",
        ):
            setattr(self, method, getattr(handler, method))

    def process_events(self, batch: Any) -> None:
        """Drop them."""


class InlineHandlers(MarkerObserver):
    """Calls inline handlers on the recording thread."""

    def __init__(
        self,
        handlers: list[TraceHandler],
        timestamps: Timestamps,
        timeline: Timeline,
        failures: Failures,
    ) -> None:
        self._handlers = handlers
        self._timestamps = timestamps
        self._offset_ns = timeline.offset_ns
        self._failures = failures

    def _call(self, method: str, *args: Any) -> None:
        for handler in self._handlers:
            try:
                getattr(handler, method)(*args)
            except Exception as error:  # noqa: BLE001 - a handler's failure must not reach training
                self._failures.report(f"{type(handler).__name__}.{method}", error)

    def _slice(self, marker: Marker, monotonic_ns: int, is_start: bool) -> None:
        timestamp = self._timestamps.at(monotonic_ns)
        wall_ns = monotonic_ns + self._offset_ns
        self._call("process_duration_event", marker.name, marker.categories, is_start, timestamp, wall_ns)

    def begin(self, marker: Marker, track: int, monotonic_ns: int) -> None:
        """A slice starts."""
        self._slice(marker, monotonic_ns, is_start=True)

    def end(self, marker: Marker, track: int, monotonic_ns: int, label: int) -> None:
        """A slice ends."""
        self._slice(marker, monotonic_ns, is_start=False)

    def instant(self, marker: Marker, track: int, monotonic_ns: int) -> None:
        """An instant was recorded."""
        timestamp = self._timestamps.at(monotonic_ns)
        self._call("process_instant_event", marker.name, marker.categories, timestamp, monotonic_ns + self._offset_ns)

    def counter(self, marker: Marker, monotonic_ns: int, values: Mapping[str, float]) -> None:
        """A counter was recorded."""
        timestamp, wall_ns = self._timestamps.at(monotonic_ns), monotonic_ns + self._offset_ns
        self._call("process_counter_event", marker.name, marker.categories, timestamp, wall_ns, values)
