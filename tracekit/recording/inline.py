"""Inline handlers: called on the recording thread, inside the marker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tracekit.handlers.mirrors.mirror import NOT_BEGUN, Mirror, Moment
from tracekit.recording.failures import FailureLimit
from tracekit.recording.one_step import outside_step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.clock import Timeline
    from tracekit.events import Timestamps
    from tracekit.handlers.base import TraceHandler
    from tracekit.recording.failures import Failures


class Named(Protocol):
    """A marker."""

    name: str
    categories: tuple[str, ...]


def observer_of(
    handlers: list[TraceHandler], timestamps: Timestamps, timeline: Timeline, failures: Failures
) -> InlineHandlers | None:
    """Return the observer that calls open inline handlers, or None if all of them are inactive."""
    telling = [handler for handler in handlers if not (isinstance(handler, Mirror) and handler.is_inactive)]
    return InlineHandlers(telling, timestamps, timeline, failures) if telling else None


class InlineHandlers:
    """Calls inline handlers on the recording thread. Disables a handler that fails ten times in a row."""

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
        self._clock, self._offset_ns = timeline.clock.monotonic_ns, timeline.offset_ns
        self._limits = {id(handler): FailureLimit(type(handler).__name__, failures) for handler in handlers}
        for mirror in self._mirrors:
            mirror.now = self._now

    def _tell(
        self, method: str, marker: Named, monotonic_ns: int, first: tuple[Any, ...] = (), last: tuple[Any, ...] = ()
    ) -> None:
        """Call a method of the handlers that are not mirrors; ``first`` and ``last`` are around its times."""
        for handler in self._handlers:
            timestamp, wall_ns = self._timestamps.at(monotonic_ns), monotonic_ns + self._offset_ns
            try:
                getattr(handler, method)(marker.name, marker.categories, *first, timestamp, wall_ns, *last)
            except Exception as error:  # noqa: BLE001 - a handler's failure must not reach training
                self._failed(handler, method, error)
            else:
                self._limits[id(handler)].succeeded()

    def _failed(self, handler: TraceHandler, method: str, error: Exception) -> None:
        limit = self._limits[id(handler)]
        limit.failed(method, error)
        if limit.is_reached:
            # New lists, because other threads may be iterating over the old ones.
            self._handlers = [other for other in self._handlers if other is not handler]
            self._mirrors = [other for other in self._mirrors if other is not handler]

    def _moment(self, monotonic_ns: int) -> Moment:
        return Moment(monotonic_ns, self._offset_ns, self._timestamps)

    def _now(self) -> Moment:
        return self._moment(self._clock())

    @outside_step
    def is_idle(self) -> bool:
        """Return True if all handlers are mirrors and none of them is listening."""
        if self._handlers:
            return False
        try:
            for mirror in self._mirrors:
                if mirror.is_listening():
                    return False
        except Exception:  # noqa: BLE001 - `begin` asks again and reports the error
            return False
        return True

    def _begin(self, mirror: Mirror, marker: Named, moment: Moment) -> Any:
        try:
            if mirror.is_listening():
                return mirror.begin(marker.name, marker.categories, moment)
        except Exception as error:  # noqa: BLE001 - see above
            self._failed(mirror, "begin", error)
        return NOT_BEGUN

    @outside_step
    def prepare(self, marker: Named) -> dict[Mirror, Any]:
        """Begin a slice in the tools with their own clock, before the time of its start is read."""
        return {mirror: self._begin(mirror, marker, self._now()) for mirror in self._mirrors if mirror.has_clock}

    @outside_step
    def begin(self, marker: Named, track: int, monotonic_ns: int, prepared: dict[Mirror, Any]) -> None:
        """Pass the start of a slice to the handlers."""
        self._tell("process_duration_event", marker, monotonic_ns, (True,))
        for mirror in self._mirrors:
            if not mirror.has_clock:
                prepared[mirror] = self._begin(mirror, marker, self._moment(monotonic_ns))
        for mirror, opened in prepared.items():
            mirror.keep((track, monotonic_ns, marker.name, marker.categories), opened)

    @outside_step
    def cancel(self, prepared: dict[Mirror, Any]) -> None:
        """End what `prepare` began, for a slice that is not recorded."""
        for mirror, opened in reversed(prepared.items()):
            try:
                if opened is not NOT_BEGUN:
                    mirror.end(opened, self._now(), None)
            except Exception as error:  # noqa: BLE001 - see above
                self._failed(mirror, "end", error)

    @outside_step
    def end(self, marker: Named, track: int, start_ns: int, monotonic_ns: int, exception: str | None) -> None:
        """Pass the end of a slice to the handlers."""
        for mirror in reversed(self._mirrors):
            try:
                if mirror.has_open:
                    key = (track, start_ns, marker.name, marker.categories)
                    mirror.slice_ends(key, self._moment(monotonic_ns), exception)
                    self._limits[id(mirror)].succeeded()
            except Exception as error:  # noqa: BLE001 - see above
                self._failed(mirror, "end", error)
        self._tell("process_duration_event", marker, monotonic_ns, (False,))

    @outside_step
    def instant(self, marker: Named, track: int, monotonic_ns: int) -> None:
        """Pass an instant to the handlers."""
        self._tell("process_instant_event", marker, monotonic_ns)
        for mirror in self._mirrors:
            try:
                if mirror.is_listening():
                    mirror.mark(marker.name, marker.categories, self._moment(monotonic_ns))
                    self._limits[id(mirror)].succeeded()
            except Exception as error:  # noqa: BLE001 - see above
                self._failed(mirror, "mark", error)

    @outside_step
    def counter(self, marker: Named, monotonic_ns: int, values: Mapping[str, float]) -> None:
        """Pass the values of a counter to the handlers."""
        self._tell("process_counter_event", marker, monotonic_ns, last=(values,))
