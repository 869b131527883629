"""A plot as an SVG that is as wide as the page: shapes are stretched, and text is not.

Positions along the width are percents, those along the height pixels. To the left of 0 is room for labels. Colours are classes
of ``static/plots.css``, which has light and dark ones, so that a page can forbid style attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from tracekit.markup import plain, visible

if TYPE_CHECKING:
    from tracekit.view.report.axes import Axis

# The colours of the style sheet: after Okabe and Ito, lighter. Dark letters can be read on each of them.
CATEGORIES: Final = ("#7cc0ee", "#f0ac3c", "#55c2a0", "#e3a6cb", "#ece069", "#f1946a", "#8fa9e6", "#c9b18f")
LINE_PX: Final = 20
"""From a line of text to the next."""


def cut(text: str, most: int) -> str:
    """Return as much of a text as so many letters hold, and a sign where it is cut."""
    text = visible(text[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"


class Drawing:
    """A drawing, from top to bottom; ``top`` is the position of the next element in pixels.

    ``about`` is the description for screen readers; ``wide_labels`` on the left need more room than a number.
    """

    def __init__(self, title: str, about: str, *, wide_labels: bool = False) -> None:
        self.top = 4.0
        self._title, self._about = title, about
        self._wide = wide_labels
        self._parts: list[str] = []

    def svg(self) -> str:
        """Return the whole picture."""
        height = f"{self.top + 2:.0f}"
        return (
            f'<svg class="tk-plot{" tk-wide" if self._wide else ""}" xmlns="http://www.w3.org/2000/svg" role="img" width="100%" '
            f'height="{height}"><title>{plain(cut(self._title, 200))}</title><desc>{plain(cut(self._about, 1500))}</desc>'
            f"{''.join(self._parts)}</svg>"
        )

    def text(
        self, x_percent: float, y: float, words: str, *, anchor: str = "start", kind: str = "", shift: int = 0
    ) -> None:
        """Write words, escaped and not cut, on the base line ``y``; ``shift`` is in pixels to the right, ``kind`` the classes."""
        class_ = f' class="{kind}"' if kind else ""
        move = f' dx="{shift}"' if shift else ""
        ends = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self._parts.append(f'<text x="{_short(x_percent)}%" y="{_short(y)}"{move}{ends}{class_}>{plain(words)}</text>')

    def label(self, y: float, words: str) -> None:
        """Write words to the left of the drawing."""
        self.text(0, y, words, anchor="end", kind="tk-soft", shift=-8)

    def box(
        self,
        x_percent: float,
        y: float,
        width_percent: float,
        height: float,
        kind: str,
        *,
        tip: str = "",
        label: str = "",
    ) -> None:
        """Draw a rectangle with a tooltip and a label, which is cut off where it does not fit; ``kind`` is its classes."""
        place = f'x="{_short(x_percent)}%" y="{_short(y)}" width="{_short(width_percent)}%" height="{_short(height)}"'
        tip = f"<title>{plain(tip)}</title>" if tip else ""
        if label:
            self._parts.append(
                f'<svg {place}><rect width="100%" height="100%" class="{kind}">{tip}</rect>'
                f'<text x="50%" y="{_short(height / 2 + 4)}" text-anchor="middle" class="tk-key">{plain(label)}</text></svg>'
            )
        else:
            self._parts.append(f'<rect {place} class="{kind}">{tip}</rect>')

    def stretched(self, height: float, width: float, paths: Iterable[tuple[str, str]]) -> None:
        """Draw paths (classes and data) of an own scale, which is stretched to the whole width, from the top on."""
        drawn = "".join(f'<path class="{kind}" d="{data}"/>' for kind, data in paths if data)
        self._parts.append(
            f'<svg y="{_short(self.top)}" width="100%" height="{_short(height)}" viewBox="0 0 {_short(width)} {_short(height)}" '
            f'preserveAspectRatio="none">{drawn}</svg>'
        )

    def grid(self, axis: Axis, height: float) -> None:
        """Draw the lines and labels of a vertical scale, from the top on."""
        for value, label in axis.ticks:
            y = self.top + height * (1 - axis.at(value))
            self._parts.append(f'<line x2="100%" y1="{_short(y)}" y2="{_short(y)}" class="tk-grid"/>')
            self.label(y + 4, label)

    def ticks(self, ticks: Sequence[tuple[float, str]], name: str) -> None:
        """Write the labels of the horizontal scale, each with its share of the width, and its name; moves on."""
        y = self.top + 19
        self.label(y, name)
        for share, label in ticks:
            anchor = "start" if share < 0.02 else "end" if share > 0.98 else "middle"
            self.text(100 * share, y, label, anchor=anchor, kind="tk-soft")
        self.top = y + 12

    def note(self, words: str) -> None:
        """Write a line of words; moves on."""
        self.text(0, self.top + 14, words, kind="tk-soft")
        self.top += LINE_PX

    def legend(self, entries: Iterable[tuple[str, str, str, str]]) -> None:
        """Write a line for each entry: its classes, a letter or "", the meaning, and a figure or ""; moves on."""
        for kind, key, label, figure in entries:
            y = self.top + LINE_PX - 6
            shape = (
                f'<line x1="0" x2="18" y1="{_short(y - 4)}" y2="{_short(y - 4)}" class="{kind}"/>'
                if "tk-line" in kind
                else f'<rect width="18" height="14" y="{_short(y - 11)}" rx="2" class="{kind}"/>'
            )
            letter = f'<text x="9" y="{_short(y)}" text-anchor="middle" class="tk-key">{plain(key)}</text>'
            self._parts.append(shape + (letter if key else ""))
            words = plain(label)
            # A separate area cuts off text that would overlap the figure.
            self._parts.append(
                f'<svg x="0" y="{_short(y - 14)}" width="{74 if figure else 100}%" height="{LINE_PX}">'
                f'<text x="26" y="14">{words}<title>{words}</title></text></svg>'
            )
            if figure:
                self.text(100, y, figure, anchor="end", kind="tk-figure")
            self.top += LINE_PX


def line_path(points: Sequence[tuple[float, float]], width: float) -> str:
    """Return the data of a line through points; of a single one, a line of that width there."""
    if len(points) == 1:
        x, y = points[0]
        return f"M{_short(x - width / 2)} {_short(y)}h{_short(width)}"
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points)


def band_path(upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]], width: float) -> str:
    """Return the data of the area between two lines with the same places; between single points, of that width."""
    if len(upper) == 1:
        (x, top), (_, bottom) = upper[0], lower[0]
        left, right = x - width / 2, x + width / 2
        upper, lower = [(left, top), (right, top)], [(left, bottom), (right, bottom)]
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in [*upper, *reversed(lower)]) + "Z"


def _short(value: float) -> str:
    """Return a number with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
