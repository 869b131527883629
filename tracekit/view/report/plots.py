"""Plots of a run as SVG, for a page of HTML with ``static/plots.css``.

Every name is escaped and cut, and no plot grows with its data beyond some 300 kB: what is too much is put together so that no
peak is lost, and the plot says how. All of them work without scripts and without style attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from tracekit.explain.step_times import StepPoint, reduced_steps
from tracekit.explain.text import duration
from tracekit.view.report.axes import TIMES, Units, axis, round_ticks, words
from tracekit.view.report.drawing import CATEGORIES, Drawing, band_path, cut, line_path
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.explain.counters import CounterTime

_MOST_POINTS: Final = 300  # of one line; as many as a screen has room for
_HEIGHT: Final = 220
_WIDE: Final = 1000
_BAR: Final = 26
_LETTER_PERCENT: Final = 3.5
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def step_time_plot(points: Sequence[StepPoint], *, ranks: int, title: str = "Step time") -> str:
    """Draw how long each step took: a line for the median of the ranks, and a band from the fastest to the slowest."""
    shown = reduced_steps(points, _MOST_POINTS)
    slowest = max(shown, key=lambda point: point.slowest_ns)
    middle = sorted(point.median_ns for point in shown)[len(shown) // 2]
    lowest = min(point.fastest_ns for point in shown)
    log = lowest > 0 and slowest.slowest_ns > 8 * middle
    scale = axis(lowest if log else 0, slowest.slowest_ns, TIMES, log=log)
    together = len(shown) < len(points)
    banded = ranks > 1 or together
    about = (
        f"{counted(ranks, 'rank')}, steps {shown[0].first:,} to {shown[-1].last:,}. The median step takes {duration(middle)}; "
        f"the slowest is step {slowest.slowest_step:,} on rank {slowest.slowest_rank:,} with {duration(slowest.slowest_ns)}."
    )
    drawing = Drawing(title, about)
    drawing.top = 12
    drawing.grid(scale, _HEIGHT)

    def place(at: int, value: float) -> tuple[float, float]:
        return _WIDE * (at + 0.5) / len(shown), _HEIGHT * (1 - scale.at(value))

    bands, slow, line = [], [], []
    width = _WIDE / len(shown)
    for first, last in _runs(shown):
        upper = [place(at, shown[at].slowest_ns) for at in range(first, last)]
        lower = [place(at, shown[at].fastest_ns) for at in range(first, last)]
        line.append(line_path([place(at, shown[at].median_ns) for at in range(first, last)], width))
        if banded:
            bands.append(band_path(upper, lower, width))
            slow.append(line_path(upper, width))
    paths = [("tk-band", "".join(bands)), ("tk-line tk-second", "".join(slow)), ("tk-line", "".join(line))]
    drawing.stretched(_HEIGHT, _WIDE, paths)
    for at, point in enumerate(shown):
        tip = _step_tip(point, ranks)
        drawing.box(100 * at / len(shown), drawing.top, 100 / len(shown), _HEIGHT, "tk-tip", tip=tip)
    if slowest.slowest_ns > 1.5 * sorted(point.slowest_ns for point in shown)[len(shown) // 2]:
        x, y = place(shown.index(slowest), slowest.slowest_ns)
        anchor, shift = ("start", 8) if x < _WIDE / 2 else ("end", -8)
        where = f", rank {slowest.slowest_rank:,}" if ranks > 1 else ""
        label = f"step {slowest.slowest_step:,}{where}: {duration(slowest.slowest_ns)}"
        drawing.text(100 * x / _WIDE, drawing.top + y + 4, label, anchor=anchor, shift=shift)
    drawing.top += _HEIGHT
    drawing.ticks(_step_ticks(shown), "step")
    if banded:
        one, of = ("step", "step") if ranks == 1 else ("rank", "of the ranks")
        entries = [("tk-line", f"median {of}"), ("tk-line tk-second", f"slowest {one}")]
        entries.append(("tk-band", f"from the fastest to the slowest {one}"))
        drawing.legend((kind, "", meaning, "") for kind, meaning in entries)
    if together:
        each = -(-len(points) // len(shown))
        drawing.note(f"each point: {each:,} steps")
    if log:
        drawing.note("the scale of time is logarithmic")
    return drawing.svg()


def _runs(points: Sequence[StepPoint]) -> list[tuple[int, int]]:
    """Return the runs of consecutive steps: between recording windows, no line is drawn."""
    typical = sorted(after.first - before.last for before, after in pairwise(points))
    gap = 2 * typical[len(typical) // 2] if typical else 1
    cuts = [at for at in range(1, len(points)) if points[at].first - points[at - 1].last > gap]
    return list(zip([0, *cuts], [*cuts, len(points)], strict=True))


def _step_tip(point: StepPoint, ranks: int) -> str:
    which, at = f"step {point.first:,}", f"rank {point.slowest_rank:,}"
    if point.first == point.last and ranks == 1:
        return f"{which}: {duration(point.slowest_ns)}"
    if point.first != point.last:
        which = f"steps {point.first:,} to {point.last:,}"
        at = f"step {point.slowest_step:,}{f' of {at}' if ranks > 1 else ''}"
    return (
        f"{which}: median {duration(point.median_ns)}, fastest {duration(point.fastest_ns)}, "
        f"slowest {duration(point.slowest_ns)} ({at})"
    )


def _step_ticks(points: Sequence[StepPoint]) -> list[tuple[float, str]]:
    """Return round step numbers where steps follow each other, else those of some points."""
    first, last = points[0].first, points[-1].last
    if len(_runs(points)) == 1 and last > first:
        _, values = round_ticks(first, last, 5)
        found = {}
        for value in values:
            at = next((at for at, point in enumerate(points) if point.first <= value <= point.last), None)
            if at is not None:
                found[at] = f"{value:,.0f}"
        if len(found) > 1:
            return [((at + 0.5) / len(points), label) for at, label in found.items()]
    chosen = sorted({round(at * (len(points) - 1) / 4) for at in range(5)})
    return [((at + 0.5) / len(points), f"{points[at].first:,}") for at in chosen]


class Bar(NamedTuple):
    """A bar of `stacked_bars`: one time in ns for each name, 0 if it is missing, and the remaining time."""

    label: str
    parts: Sequence[float]
    rest: float = 0


def stacked_bars(bars: Sequence[Bar], names: Sequence[str], *, title: str, rest: str = "not recorded") -> str:
    """Draw what sums consist of: a bar each, of parts with a letter and a colour; the legend has the values of the first bar.

    Beyond eight, the names with the smallest sums are one part; ``rest`` names the rest of a bar.
    """
    whole = max(sum(bar.parts) + bar.rest for bar in bars)
    if not whole > 0:
        why = "nothing was recorded that could be drawn"
        drawing = Drawing(title, why)
        drawing.note(why)
        return drawing.svg()
    sums = [sum(bar.parts[at] for bar in bars) for at in range(len(names))]
    longest = sorted(range(len(names)), key=lambda at: (-sums[at], at))[: len(CATEGORIES)]
    kept = [at for at in sorted(longest) if sums[at] > 0]
    first = bars[0]
    total = sum(first.parts) + first.rest or 1
    others = len([at for at in range(len(names)) if at not in kept and sums[at] > 0])
    # The class, the letter and the name of each part, and its value in each bar.
    parts = [
        (f"tk-c{number}", _LETTERS[number], names[at], [bar.parts[at] for bar in bars])
        for number, at in enumerate(kept)
    ]
    if others:
        values = [sum(bar.parts) - sum(bar.parts[at] for at in kept) for bar in bars]
        parts.append(("tk-others", _LETTERS[len(kept)], f"{counted(others, 'other')}, together", values))
    if any(bar.rest > 0 for bar in bars):
        parts.append(("tk-rest", "", rest, [max(0.0, bar.rest) for bar in bars]))
    about = f"{first.label}: " + ", ".join(f"{cut(name, 60)} {words(values[0], TIMES)}" for _, _, name, values in parts)
    drawing = Drawing(title, about)
    for at, bar in enumerate(bars):
        drawing.label(drawing.top + _BAR / 2 + 4, cut(bar.label, 9))
        x = 0.0
        for kind, letter, name, values in parts:
            width = 100 * values[at] / whole
            if width > 0:
                tip = f"{cut(bar.label, 60)}: {cut(name, 120)} {words(values[at], TIMES)}"
                shown = letter if width > _LETTER_PERCENT else ""
                drawing.box(x, drawing.top, width, _BAR - 4, kind, tip=tip, label=shown)
            x += width
        drawing.top += _BAR
    _time_ticks(drawing, whole)
    drawing.legend(
        (kind, letter, cut(name, 120), f"{words(values[0], TIMES)} · {values[0] / total:.1%}")
        for kind, letter, name, values in parts
    )
    return drawing.svg()


def line_plot(times: Sequence[CounterTime], label: str, *, title: str, units: Units) -> str:
    """Draw a counter over time, with the band from the least to the most of its values."""
    low, high = min(time.low for time in times), max(time.high for time in times)
    start_ns, last = times[0].time_ns, times[-1]
    # A scale from 0 shows sizes; without 0, a nearly constant value is not a flat line.
    scale = axis(low if low < 0 or low > 0.8 * high else 0, high, units)
    length_ns = (last.time_ns - start_ns) or 1
    about = (
        f"{cut(label, 80)}: from {words(low, units)} to {words(high, units)}, {words(last.median, units)} at the end"
    )
    drawing = Drawing(title, about)
    drawing.top = 12
    height = _HEIGHT * 0.7
    drawing.grid(scale, height)

    def places(values: Sequence[float]) -> list[tuple[float, float]]:
        xs = [_WIDE * (time.time_ns - start_ns) / length_ns for time in times]
        return [(x, height * (1 - scale.at(value))) for x, value in zip(xs, values, strict=True)]

    upper, lower = places([time.high for time in times]), places([time.low for time in times])
    band = band_path(upper, lower, 4) if upper != lower else ""
    line = line_path(places([time.median for time in times]), 8)
    drawing.stretched(height, _WIDE, [("tk-band", band), ("tk-line", line)])
    drawing.top += height
    _time_ticks(drawing, length_ns)
    drawing.legend([("tk-line", "", cut(label, 120), "")])
    return drawing.svg()


def _time_ticks(drawing: Drawing, length_ns: float) -> None:
    ticks = axis(0, length_ns, TIMES).ticks
    drawing.ticks([(value / length_ns, label) for value, label in ticks if value <= length_ns * 1.0001], "time")
