"""Inline handlers: called on the recording thread, inside the marker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.handlers.base import TraceHandler
from tracekit.handlers.mirrors.mirror import Mirror, Moment
from tracekit.recording.marker import Marker, MarkerObserver

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.clock import Timeline
    from tracekit.events import Timestamps
    from tracekit.recording.failures import Failures

__all__ = ["InlineHandlers", "WithoutEvents", "observer_of"]


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


def observer_of(
    handlers: list[TraceHandler], timestamps: Timestamps, timeline: Timeline, failures: Failures
) -> InlineHandlers | None:
    """Return what calls inline handlers, once they are open; None where none of them has anybody to tell."""
    telling = [handler for handler in handlers if not (isinstance(handler, Mirror) and handler.is_deaf)]
    return InlineHandlers(telling, timestamps, timeline, failures) if telling else None


class InlineHandlers(MarkerObserver):
    """Calls inline handlers on the recording thread."""

    def __init__(
        self,
        handlers: list[TraceHandler],
        timestamps: Timestamps,
        timeline: Timeline,
        failures: Failures,
    ) -> None:
        self._mirrors = [handler for handler in handlers if isinstance(handler, Mirror)]
        self._handlers = [handler for handler in handlers if not isinstance(handler, Mirror)]
        self._timestamps = timestamps
        self._offset_ns = timeline.offset_ns
        self._failures = failures

    def _call(self, handler: TraceHandler, method: str, *args: Any) -> None:
        try:
            getattr(handler, method)(*args)
        except Exception as error:  # noqa: BLE001 - a handler's failure must not reach training
            self._failures.report(f"{type(handler).__name__}.{method}", error)

    def _moment(self, monotonic_ns: int) -> Moment:
        return Moment(monotonic_ns, self._offset_ns, self._timestamps)

    def _slice(self, marker: Marker, monotonic_ns: int, is_start: bool) -> None:
        if self._handlers:
            timestamp, wall_ns = self._timestamps.at(monotonic_ns), monotonic_ns + self._offset_ns
            for handler in self._handlers:
                self._call(
                    handler, "process_duration_event", marker.name, marker.categories, is_start, timestamp, wall_ns
                )

    def is_idle(self) -> bool:
        """Tell whether there are but mirrors, and none of them listens."""
        if self._handlers:
            return False
        try:
            for mirror in self._mirrors:
                if mirror.is_listening():
                    return False
        except Exception:  # noqa: BLE001 - `begin` will ask again, and report it
            return False
        return True

    def begin(self, marker: Marker, track: int, monotonic_ns: int) -> None:
        """A slice starts."""
        self._slice(marker, monotonic_ns, is_start=True)
        for mirror in self._mirrors:
            try:
                if mirror.is_listening():
                    key = (track, monotonic_ns, marker.name)
                    mirror.slice_begins(key, marker.name, marker.categories, self._moment(monotonic_ns))
            except Exception as error:  # noqa: BLE001 - see above
                self._failures.report(f"{type(mirror).__name__}.begin", error)

    def end(self, marker: Marker, track: int, start_ns: int, monotonic_ns: int, exception: str | None) -> None:
        """A slice ends."""
        for mirror in reversed(self._mirrors):
            try:
                if mirror.has_open:
                    mirror.slice_ends((track, start_ns, marker.name), self._moment(monotonic_ns), exception)
            except Exception as error:  # noqa: BLE001 - see above
                self._failures.report(f"{type(mirror).__name__}.end", error)
        self._slice(marker, monotonic_ns, is_start=False)

    def instant(self, marker: Marker, track: int, monotonic_ns: int) -> None:
        """An instant was recorded."""
        for handler in self._handlers:
            timestamp, wall_ns = self._timestamps.at(monotonic_ns), monotonic_ns + self._offset_ns
            self._call(handler, "process_instant_event", marker.name, marker.categories, timestamp, wall_ns)
        for mirror in self._mirrors:
            try:
                if mirror.is_listening():
                    mirror.mark(marker.name, marker.categories, self._moment(monotonic_ns))
            except Exception as error:  # noqa: BLE001 - see above
                self._failures.report(f"{type(mirror).__name__}.mark", error)

    def counter(self, marker: Marker, monotonic_ns: int, values: Mapping[str, float]) -> None:
        """A counter was recorded."""
        for handler in self._handlers:
            timestamp, wall_ns = self._timestamps.at(monotonic_ns), monotonic_ns + self._offset_ns
            self._call(handler, "process_counter_event", marker.name, marker.categories, timestamp, wall_ns, values)
