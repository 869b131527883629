"""The result of a recorded cell: a picture of its timeline and a table of its markers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.explain.text import duration, share, table
from tracekit.markup import html_lines, html_table
from tracekit.view.notebook.timeline import timeline_svg, totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.view.notebook.timeline import Span

_MAX_ROWS: Final = 15
_COLUMNS: Final = ("marker", "count", "total", "mean", "longest", "of the cell")


class RecordedCell:
    """A recorded cell. Notebooks show it as HTML, terminals as text.

    Args:
        spans: Its slices; the cell itself is one of them.
        lost: The number of lost events.
        file: The trace that was written, if any.
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
