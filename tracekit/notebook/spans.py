"""What a cell recorded, as spans of time that can be drawn and added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.events import Instant, SliceBegin, SliceEnd

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.events import Event, Track

__all__ = ["MarkerTotal", "Span", "spans_of", "totals"]


@dataclass(frozen=True, slots=True)
class Span:
    """One slice. Times are ns since the epoch.

    Attributes:
        name: Of its marker.
        track: Where it stands.
        start_ns: When it started, and
        end_ns: when it finished, or the last event was, if it did not.
        depth: How many slices it stands in.
    """

    name: str
    track: Track
    start_ns: int
    end_ns: int
    depth: int

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


def spans_of(events: Iterable[Event]) -> list[Span]:
    """Return the slices among events that are in order on every track, in the order of their starts."""
    begun: dict[Track, list[SliceBegin]] = {}
    spans: list[Span] = []
    last_ns = 0
    for event in events:
        last_ns = max(last_ns, event.wall_clock_time_ns)
        if isinstance(event, SliceBegin):
            begun.setdefault(event.track, []).append(event)
        elif isinstance(event, SliceEnd) and begun.get(event.track):
            start = begun[event.track].pop()
            spans.append(_span(start, event.wall_clock_time_ns, len(begun[event.track])))
        elif isinstance(event, Instant):
            spans.append(
                Span(
                    event.label.name,
                    event.track,
                    event.wall_clock_time_ns,
                    event.wall_clock_time_ns,
                    len(begun.get(event.track, ())),
                )
            )
    for left in begun.values():
        spans += [_span(start, max(last_ns, start.wall_clock_time_ns), depth) for depth, start in enumerate(left)]
    return sorted(spans, key=lambda span: (span.start_ns, span.depth))


def _span(start: SliceBegin, end_ns: int, depth: int) -> Span:
    return Span(start.label.name, start.track, start.wall_clock_time_ns, end_ns, depth)


@dataclass(frozen=True, slots=True)
class MarkerTotal:
    """All slices of one name."""

    name: str
    count: int
    total_ns: int
    longest_ns: int


def totals(spans: Sequence[Span]) -> list[MarkerTotal]:
    """Add up the slices of each name; the name that took longest comes first."""
    durations: dict[str, list[int]] = {}
    for span in spans:
        durations.setdefault(span.name, []).append(span.duration_ns)
    found = [MarkerTotal(name, len(each), sum(each), max(each)) for name, each in durations.items()]
    return sorted(found, key=lambda total: (-total.total_ns, total.name))
