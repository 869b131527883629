"""A heat map: rows by columns, with a shade for each cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from tracekit.explain.text import shortened
from tracekit.view.report.axes import PERCENTS, TIMES, Units, round_ticks, words
from tracekit.view.report.drawing import Drawing, cut

LEVELS: Final = 8
DIVERGING_LEVELS: Final = 9
"""The shades of the style sheet: from little to much, and from less over alike to more."""
MOST_ROWS: Final = 64
MOST_COLUMNS: Final = 250
_LABEL_PX: Final = 14
_LEAST_SPAN: Final = 0.1
_LEAST: Final = 1e-9
_LEAST_SHARE: Final = 0.005  # smaller differences between ranks are of no interest
_BEYOND: Final = 2  # shades beyond the bulk of the values

Cells: TypeAlias = "Sequence[Sequence[float | None]]"


def heat_map(
    values: Cells,  # of each row; None where a value is missing
    *,
    rows: Sequence[str],  # the label of each row
    columns: Sequence[str],  # the label of each column
    row_name: str,  # of one, such as "rank"
    column_name: str,  # of one, such as "step"
    title: str,
    about: str,  # for screen readers
    diverging: bool = False,  # shares around 0, which is the middle of the shades, of rows with names; else times of numbers
) -> str:
    """Draw a heat map. Beyond 64 rows or 250 columns, neighbours are drawn as one with the largest of their values."""
    cells, by_rows = _grouped(values, MOST_ROWS)
    columns_of_cells, by_columns = _grouped(list(zip(*cells, strict=True)), MOST_COLUMNS)
    cells = list(zip(*columns_of_cells, strict=True))
    known = sorted(value for row in cells for value in row if value is not None)
    grouped = [
        f"{size:,} {name}s are one cell: the largest of their values"
        for size, name in ((by_rows, row_name), (by_columns, column_name))
        if size > 1
    ]
    drawing = Drawing(title, " ".join([about, *grouped]), wide_labels=diverging)
    row_labels = [_together(rows, at, by_rows) for at in range(len(cells))]
    column_labels = [_together(columns, at, by_columns) for at in range(len(cells[0]))]
    limits = _limits_around_zero(known) if diverging else _limits(known)
    shade, units = ("d", PERCENTS) if diverging else ("s", TIMES)
    width, pixel = len(cells[0]), _row_height(len(cells))
    drawing.label(drawing.top + 10, row_name)
    drawing.top += 18
    paths: dict[str, list[str]] = {}
    for y, row in enumerate(cells):
        for x, length, level in _stretches(row, limits):
            kind = "tk-cell tk-none" if level is None else f"tk-cell tk-{shade}{level}"
            paths.setdefault(kind, []).append(f"M{x} {y * pixel}h{length}v{pixel}h-{length}z")
    height = len(cells) * pixel
    drawing.stretched(height, width, [(kind, "".join(data)) for kind, data in sorted(paths.items())])
    every = -(-_LABEL_PX // pixel)
    for y, label in enumerate(row_labels):
        if not y % every:
            shown = shortened(cut(label, 500), 18 if diverging else 9)
            drawing.label(drawing.top + y * pixel + min(pixel, _LABEL_PX) / 2 + 4, shown)
    single = width * len(cells) <= 1000
    for y, (label, row) in enumerate(zip(row_labels, cells, strict=True)):
        for x, value in enumerate(row if single else ()):
            told = "nothing recorded" if value is None else words(value, units)
            tip = f"{row_name} {cut(label, 60)}, {column_name} {cut(column_labels[x], 60)}: {told}"
            drawing.box(100 * x / width, drawing.top + y * pixel, 100 / width, pixel, "tk-tip", tip=tip)
        own = [(value, x) for x, value in enumerate(row) if value is not None]
        if not single and own:
            most, x = max(own)
            tip = f"{row_name} {cut(label, 60)}: at most {words(most, units)}, at {column_name} {cut(column_labels[x], 60)}"
            drawing.box(0, drawing.top + y * pixel, 100, pixel, "tk-tip", tip=tip)
    drawing.top += height
    every = max(1, int(round_ticks(0, width, 5)[0]))
    ticks = [((at + 0.5) / width, cut(column_labels[at].partition("–")[0], 9)) for at in range(0, width, every)]
    drawing.ticks(ticks, column_name)
    _scale(drawing, limits, shade, units, any(value is None for row in cells for value in row))
    for note in grouped:
        drawing.note(note)
    return drawing.svg()


def _grouped(rows: Cells, most: int) -> tuple[Cells, int]:
    """Return neighbouring rows as one, with the value that is furthest from 0, and how many rows became one."""
    size = max(1, -(-len(rows) // most))
    groups = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [[_furthest(column) for column in zip(*group, strict=True)] for group in groups], size


def _furthest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), key=abs, default=None)


def _together(labels: Sequence[str], at: int, size: int) -> str:
    own = labels[at * size : (at + 1) * size]
    return own[0] if len(own) == 1 else f"{own[0]}–{own[-1]}"


def _row_height(rows: int) -> int:
    return 22 if rows <= 12 else 14 if rows <= 24 else 8 if rows <= 48 else 6


def _limits(known: Sequence[float]) -> list[float]:
    """Return the limits of the shades: linear for the bulk of the values, then in equal ratios up to the largest."""
    low, bulk, most = known[len(known) // 50], known[-1 - len(known) // 20], known[-1]
    # Noise must not look like a pattern, and a single slow rank must.
    bulk = max(bulk, low + max(abs(low) * _LEAST_SPAN, _LEAST))
    linear = LEVELS - 1 - _BEYOND if most > bulk else LEVELS
    limits = [low + (bulk - low) * at / linear for at in range(1, min(linear, LEVELS - 1) + 1)]
    beyond = [
        low + (bulk - low) * ((most - low) / (bulk - low)) ** (at / (_BEYOND + 1)) for at in range(1, _BEYOND + 1)
    ]
    return limits + beyond if most > bulk else limits


def _limits_around_zero(known: Sequence[float]) -> list[float]:
    """Return the limits of the shades in equal ratios, from the bulk of the values to the largest, on both sides of 0."""
    sizes = sorted(map(abs, known))
    most = max(sizes[-1], 4 * _LEAST_SHARE)
    bulk = min(max(sizes[(len(sizes) - 1) * 9 // 10], _LEAST_SHARE), most / 4)
    count = DIVERGING_LEVELS // 2
    above = [bulk * (most / bulk) ** (at / count) for at in range(count)]
    return [*(-limit for limit in reversed(above)), *above]


def _stretches(row: Sequence[float | None], limits: Sequence[float]) -> list[tuple[int, int, int | None]]:
    """Return where the cells of one shade begin, how many follow each other, and the shade."""
    found: list[tuple[int, int, int | None]] = []
    for x, value in enumerate(row):
        level = None if value is None else sum(value >= limit for limit in limits)
        if found and found[-1][2] == level:
            found[-1] = found[-1][0], found[-1][1] + 1, level
        else:
            found.append((x, 1, level))
    return found


def _scale(drawing: Drawing, limits: Sequence[float], shade: str, units: Units, gaps: bool) -> None:
    """Draw which shade is what; moves on."""
    width = 100 / (len(limits) + 1)
    for level in range(len(limits) + 1):
        drawing.box(width * level, drawing.top + 4, width, 12, f"tk-cell tk-{shade}{level}")
    if shade == "d":
        drawing.text(50, drawing.top + 30, words(0, units), anchor="middle", kind="tk-soft")
    for at in (0, len(limits) - 1) if shade == "d" else (1, 3, 5):
        drawing.text(width * (at + 1), drawing.top + 30, words(limits[at], units), anchor="middle", kind="tk-soft")
    drawing.top += 36
    if gaps:
        drawing.legend([("tk-none", "", "nothing recorded", "")])
