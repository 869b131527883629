"""The result of a recorded cell: its timeline as an SVG that needs nothing else, and a table of its markers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tracekit.events import Event, Instant, SliceBegin, SliceEnd, Track
from tracekit.explain.text import duration, share, table
from tracekit.markup import html_lines, html_table, plain
from tracekit.structs import Struct
from tracekit.traces.pairs import OpenSlices
from tracekit.view.report.axes import TIMES, axis
from tracekit.view.report.drawing import CATEGORIES, cut

_WIDTH: Final = 960
_LABEL_WIDTH: Final = 150
_ROW: Final = 18
_AXIS: Final = 24
_MAX_ROWS: Final = 15
_COLUMNS: Final = ("marker", "count", "total", "mean", "longest", "of the cell")
_MAX_DEPTH: Final = 12
_CHARACTER: Final = 6.6  # the width of a letter at 11 px, about


class Span(NamedTuple):
    """A slice with its nesting depth. Times are ns since the epoch; an instant has no duration."""

    name: str
    track: Track
    start_ns: int
    end_ns: int
    depth: int

    @property
    def duration_ns(self) -> int:
        """The time from its start to its end."""
        return self.end_ns - self.start_ns


class MarkerTotal(Struct, frozen=True):
    """All slices of one name."""

    name: str
    count: int
    total_ns: int
    longest_ns: int


def spans_of(events: Iterable[Event]) -> list[Span]:
    """Return the slices of events that are in order on every track, by their starts; open ones end with the last event."""
    begun: dict[Track, OpenSlices[SliceBegin]] = {}
    spans: list[Span] = []
    last_ns = 0

    def add(event: SliceBegin | Instant, end_ns: int, depth: int) -> None:
        spans.append(Span(event.label.name, event.track, event.wall_clock_time_ns, end_ns, depth))

    for event in events:
        now_ns = event.wall_clock_time_ns
        last_ns = max(last_ns, now_ns)
        if isinstance(event, SliceBegin):
            begun.setdefault(event.track, OpenSlices()).begin(None, None, event)
        elif isinstance(event, SliceEnd):
            start = begun[event.track].end(None, None) if event.track in begun else None
            if start is not None:
                add(start, now_ns, len(begun[event.track]))
        elif isinstance(event, Instant):
            add(event, now_ns, len(begun.get(event.track, ())))
    for left in begun.values():
        for depth, start in enumerate(left.slices):
            add(start, max(last_ns, start.wall_clock_time_ns), depth)
    return sorted(spans, key=lambda span: (span.start_ns, span.depth))


def totals(spans: Sequence[Span]) -> list[MarkerTotal]:
    """Add up the slices of each name; the name with the longest total time comes first."""
    durations: dict[str, list[int]] = {}
    for span in spans:
        durations.setdefault(span.name, []).append(span.duration_ns)
    found = [MarkerTotal(name, len(each), sum(each), max(each)) for name, each in durations.items()]
    return sorted(found, key=lambda total: (-total.total_ns, total.name))


class RecordedCell:
    """A recorded cell: its slices (the cell itself is one), the number of lost events, and the trace that was written, if any.

    Notebooks show it as HTML, terminals as text.
    """

    def __init__(self, spans: Sequence[Span], *, lost: int = 0, file: str | None = None) -> None:
        whole_ns = max((span.end_ns for span in spans), default=0) - min((span.start_ns for span in spans), default=0)
        found = totals(spans)
        self._spans = spans
        self._rows = [
            (
                total.name,
                f"{total.count:,}",
                duration(total.total_ns),
                duration(total.total_ns / total.count),
                duration(total.longest_ns),
                share(total.total_ns / (whole_ns or 1)),
            )
            for total in found[:_MAX_ROWS]
        ]
        self._notes = [f"{len(found) - _MAX_ROWS:,} more markers took less"] if len(found) > _MAX_ROWS else []
        if lost:
            self._notes.append(f"{lost:,} events were lost")
        if file is not None:
            self._notes.append(f"the trace is in {file}; look at it with: tracekit open {file}")

    def _repr_html_(self) -> str:
        picture = timeline_svg(self._spans, "Timeline of the cell")
        return f"<div>{picture}{html_table('Where the time went', _COLUMNS, self._rows)}{html_lines(self._notes)}</div>"

    def __repr__(self) -> str:
        return "\n".join([*table(_COLUMNS, self._rows), *self._notes])


def timeline_svg(spans: Sequence[Span], title: str) -> str:
    """Draw slices, each track below the other, with a scale in time; of very many, the longest."""
    tracks: dict[Track, list[Span]] = {}
    for span in spans:
        tracks.setdefault(span.track, []).append(span)
    rows = sorted(tracks.values(), key=lambda each: (each[0].track.sort_index, each[0].start_ns))[:24]
    fitting = [span for row in rows for span in row if span.depth < _MAX_DEPTH]
    drawn = set(map(id, sorted(fitting, key=lambda span: -span.duration_ns)[:2000]))
    start = min((span.start_ns for span in spans), default=0)
    length = max(1, max((span.end_ns for span in spans), default=0) - start)
    scale = (_WIDTH - _LABEL_WIDTH) / length
    # The longest have different colours.
    names = [total.name for total in totals(spans)]
    colours = {name: CATEGORIES[number % len(CATEGORIES)] for number, name in enumerate(names)}
    parts: list[str] = []
    top = _AXIS
    for row in rows:
        parts.append(f'<text x="4" y="{top + 13}">{plain(_cut(row[0].track.name, _LABEL_WIDTH - 8))}</text>')
        for span in row:
            if id(span) in drawn:
                x = _LABEL_WIDTH + (span.start_ns - start) * scale
                parts.append(_bar(span, x, top, scale, colours[span.name]))
        top += _ROW * (1 + min(_MAX_DEPTH - 1, max(span.depth for span in row))) + 4
        parts.append(f'<line x1="0" x2="{_WIDTH}" y1="{top - 2}" y2="{top - 2}" stroke="currentColor" opacity=".2"/>')
    left = len(spans) - len(drawn)
    note = "" if not left else f"{left:,} of {len(spans):,} slices are not drawn: the shortest and the deepest"
    if not spans:
        note = "nothing was recorded"
    if note:
        parts.append(f'<text x="{_LABEL_WIDTH}" y="{top + 14}" font-style="italic">{note}</text>')
        top += _ROW
    about = (
        f"Slices: {len(spans):,}. Tracks: {len(tracks):,}. Time: {duration(length)}. "
        f"Longest first: {_cut(', '.join(names[:100]), 1500)}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + 4}" width="100%" role="img" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="currentColor" style="max-width:{_WIDTH}px">'
        f"<title>{plain(title)}</title><desc>{plain(about)}</desc>{_axis(length, top)}{''.join(parts)}</svg>"
    )


def _axis(length_ns: int, bottom: int) -> str:
    lines = []
    for time_ns, words in axis(0, length_ns, TIMES).ticks:
        if time_ns <= length_ns:
            x = _LABEL_WIDTH + (_WIDTH - _LABEL_WIDTH) * time_ns / length_ns
            lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{bottom}" stroke="currentColor" opacity=".25"/>')
            if x < _WIDTH - 50:  # a number at the right end would be cut
                lines.append(f'<text x="{x + 3:.1f}" y="13">{words}</text>')
    return "".join(lines)


def _bar(span: Span, x: float, top: int, scale: float, colour: str) -> str:
    y = top + _ROW * span.depth
    width = max(1.0, span.duration_ns * scale)
    words = f"{span.name}: {duration(span.duration_ns)}"
    label = _cut(span.name, width - 6)
    text = f'<text x="{x + 3:.2f}" y="{y + 12}" fill="#111">{plain(label)}</text>' if label else ""
    return (
        f'<g><title>{plain(words)}</title><rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 2}" '
        f'rx="2" fill="{colour}" stroke="#444" stroke-width=".4"/>{text}</g>'
    )


def _cut(text: str, width: float) -> str:
    """Return as much of a text as fits into some pixels; nothing rather than a letter or two."""
    letters = int(width / _CHARACTER)
    return cut(text, letters) if letters > 3 or len(text) <= letters else ""
