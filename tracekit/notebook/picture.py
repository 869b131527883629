"""The timeline as a picture: an SVG that stands by itself, whose names are text and never markup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.markup import plain
from tracekit.notebook.spans import totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.events import Track
    from tracekit.notebook.spans import Span

__all__ = ["duration_words", "timeline_svg"]

_WIDTH: Final = 960
_LABEL_WIDTH: Final = 150
_ROW: Final = 18
_AXIS: Final = 24
_MOST_SPANS: Final = 2000
_DEEPEST: Final = 12
_MOST_TRACKS: Final = 24
_TICKS: Final = 6
_CHARACTER: Final = 6.6  # the width of a letter at 11 px, about
# Light enough for dark text on them, in the order of how well they are told apart (after Okabe and Ito).
_COLOURS: Final = ("#8ecae6", "#ffd166", "#a8dadc", "#f4a261", "#b5e48c", "#cdb4db", "#ffafcc", "#d4d4aa")


def duration_words(ns: int) -> str:
    """Return a duration as people write it: "1.25 ms"."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if ns >= size:
            # From 999.5 on three digits would be written with an exponent.
            return f"{ns / size:.3g} {unit}" if 2 * ns < 1999 * size else f"{ns / size:,.0f} {unit}"
    return f"{ns} ns"


def timeline_svg(spans: Sequence[Span], title: str) -> str:
    """Draw slices, each track below the other, with a scale in time.

    Of very many the longest are drawn, and the picture says how many are not.

    Args:
        spans: What to draw; nothing gives a picture that says so.
        title: What the picture shows, for those who do not see it.
    """
    tracks: dict[Track, list[Span]] = {}
    for span in spans:
        tracks.setdefault(span.track, []).append(span)
    rows = sorted(tracks.values(), key=lambda each: (each[0].track.sort_index, each[0].start_ns))[:_MOST_TRACKS]
    fitting = [span for row in rows for span in row if span.depth < _DEEPEST]
    drawn = set(map(id, sorted(fitting, key=lambda span: -span.duration_ns)[:_MOST_SPANS]))
    start = min((span.start_ns for span in spans), default=0)
    length = max(1, max((span.end_ns for span in spans), default=0) - start)
    scale = (_WIDTH - _LABEL_WIDTH) / length
    # The longest have colours of their own.
    names = [total.name for total in totals(spans)]
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}
    parts: list[str] = []
    top = _AXIS
    for row in rows:
        parts.append(f'<text x="4" y="{top + 13}">{plain(_cut(row[0].track.name, _LABEL_WIDTH - 8))}</text>')
        for span in row:
            if id(span) in drawn:
                x = _LABEL_WIDTH + (span.start_ns - start) * scale
                parts.append(_bar(span, x, top, scale, colours[span.name]))
        top += _ROW * (1 + min(_DEEPEST - 1, max(span.depth for span in row))) + 4
        parts.append(f'<line x1="0" x2="{_WIDTH}" y1="{top - 2}" y2="{top - 2}" stroke="currentColor" opacity=".2"/>')
    left = len(spans) - len(drawn)
    note = "" if not left else f"{left:,} of {len(spans):,} slices are not drawn: the shortest and the deepest"
    if not spans:
        note = "nothing was recorded"
    if note:
        parts.append(f'<text x="{_LABEL_WIDTH}" y="{top + 14}" font-style="italic">{note}</text>')
        top += _ROW
    about = (
        f"Slices: {len(spans):,}. Tracks: {len(tracks):,}. Time: {duration_words(length)}. "
        f"Longest first: {_cut(', '.join(names[:100]), 1500)}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + 4}" width="100%" role="img" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="currentColor" style="max-width:{_WIDTH}px">'
        f"<title>{plain(title)}</title><desc>{plain(about)}</desc>{_axis(length, top)}{''.join(parts)}</svg>"
    )


def _axis(length_ns: int, bottom: int) -> str:
    step_ns = _round_step(length_ns)
    lines = []
    for time_ns in range(0, length_ns + 1, step_ns):
        x = _LABEL_WIDTH + (_WIDTH - _LABEL_WIDTH) * time_ns / length_ns
        # A number at the right end would be cut.
        number = f'<text x="{x + 3:.1f}" y="13">{duration_words(time_ns) if time_ns else "0"}</text>'
        lines.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{bottom}" stroke="currentColor" opacity=".25"/>'
            f"{number if x < _WIDTH - 50 else ''}"
        )
    return "".join(lines)


def _round_step(length_ns: int) -> int:
    """Return 1, 2 or 5 times a power of ten, of which the length holds at most `_TICKS`."""
    size = 1
    while True:
        for step in (size, 2 * size, 5 * size):
            if length_ns <= step * _TICKS:
                return step
        size *= 10


def _bar(span: Span, x: float, top: int, scale: float, colour: str) -> str:
    y = top + _ROW * span.depth
    width = max(1.0, span.duration_ns * scale)
    words = f"{span.name}: {duration_words(span.duration_ns)}"
    label = _cut(span.name, width - 6)
    text = f'<text x="{x + 3:.2f}" y="{y + 12}" fill="#111">{plain(label)}</text>' if label else ""
    return (
        f'<g><title>{plain(words)}</title><rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 2}" '
        f'rx="2" fill="{colour}" stroke="#444" stroke-width=".4"/>{text}</g>'
    )


def _cut(text: str, width: float) -> str:
    """Return as much of a text as fits into so many pixels; nothing rather than a letter or two."""
    most = int(width / _CHARACTER)
    if len(text) <= most:
        return text
    return text[: most - 1] + "…" if most > 3 else ""
