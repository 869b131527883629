"""What a recorded cell shows: a picture of its timeline and a small table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.markup import plain
from tracekit.notebook.picture import duration_words, timeline_svg
from tracekit.notebook.spans import totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.notebook.spans import Span

__all__ = ["RecordedCell"]

_MOST_ROWS: Final = 15
_COLUMNS: Final = ("marker", "count", "total", "mean", "longest", "of the cell")


class RecordedCell:
    """A cell that was recorded. Notebooks show it as HTML, terminals as text.

    Args:
        spans: Its slices; the cell itself is one of them.
        lost: How many events were lost.
        file: The trace that was written, if any.
    """

    def __init__(self, spans: Sequence[Span], *, lost: int = 0, file: str | None = None) -> None:
        self.spans = list(spans)
        self.lost = lost
        self.file = file

    def _rows(self) -> list[tuple[str, ...]]:
        whole_ns = max((span.end_ns for span in self.spans), default=0) - min(
            (span.start_ns for span in self.spans), default=0
        )
        return [
            (
                total.name,
                f"{total.count:,}",
                duration_words(total.total_ns),
                duration_words(round(total.total_ns / total.count)),
                duration_words(total.longest_ns),
                f"{100 * total.total_ns / (whole_ns or 1):.1f} %",
            )
            for total in totals(self.spans)
        ]

    def _notes(self, hidden: int) -> list[str]:
        notes = [f"{hidden:,} more markers took less"] if hidden else []
        if self.lost:
            notes.append(f"{self.lost:,} events were lost")
        if self.file is not None:
            notes.append(f"the trace is in {self.file}; look at it with: tracekit open {self.file}")
        return notes

    def _repr_html_(self) -> str:
        rows = self._rows()
        head = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
        body = "".join(
            f'<tr><th scope="row" style="text-align:left">{plain(name)}</th>'
            + "".join(f'<td style="text-align:right">{plain(cell)}</td>' for cell in cells)
            + "</tr>"
            for name, *cells in rows[:_MOST_ROWS]
        )
        notes = "".join(f"<p>{plain(note)}</p>" for note in self._notes(max(0, len(rows) - _MOST_ROWS)))
        return (
            f"<div>{timeline_svg(self.spans, 'Timeline of the cell')}"
            f"<table><caption>Where the time went</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"{notes}</div>"
        )

    def __repr__(self) -> str:
        rows = self._rows()
        shown = [_COLUMNS, *rows[:_MOST_ROWS]]
        widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
        lines = [
            "  ".join(
                [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
            )
            for row in shown
        ]
        return "\n".join([*lines, *self._notes(max(0, len(rows) - _MOST_ROWS))])
