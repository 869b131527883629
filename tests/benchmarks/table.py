"""The table: one row for each thing that was measured, for the terminal, the documentation and other programs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.benchmarks.measure import Spread

HEAD = ("what", "measured", "must reach", "", "remarks")


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        benchmark: The benchmark it comes from.
        what: The name of the figure.
        measured: The figures; None if it could not be measured, and ``remarks`` says why.
        unit: The unit, written directly behind a number.
        at_most: The bound that must not be exceeded.
        at_least: The bound that must be reached. Neither: for comparison only.
        remarks: Further remarks.
    """

    benchmark: str
    what: str
    measured: Spread | None
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    remarks: str = ""

    @property
    def met(self) -> bool | None:
        """True if the bound is reached; None without a bound or a figure."""
        if self.measured is None:
            return None
        if self.at_most is not None:
            return self.measured.median <= self.at_most
        return self.measured.median >= self.at_least if self.at_least is not None else None

    def cells(self) -> tuple[str, ...]:
        """Return the row as texts."""
        return (self.what, self._measured(), self._bound(), self._verdict(), self.remarks)

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return {**dataclasses.asdict(self), "met": self.met}

    def _measured(self) -> str:
        if self.measured is None:
            return "-"
        median, low, high = (number(value) for value in (self.measured.median, self.measured.low, self.measured.high))
        return f"{median}{self.unit}" if low == high else f"{median}{self.unit} ({low} to {high})"

    def _bound(self) -> str:
        if self.at_most is not None:
            return f"at most {number(self.at_most)}{self.unit}"
        return f"at least {number(self.at_least)}{self.unit}" if self.at_least is not None else ""

    def _verdict(self) -> str:
        if self.met is None or self.measured is None:
            return ""
        if self.met:
            return "met"
        bound = self.at_most if self.at_most is not None else self.at_least
        assert bound is not None
        by = abs(self.measured.median - bound)
        return f"missed by {by / abs(bound):.0%}" if bound else f"missed by {number(by)}{self.unit}"


def number(value: float) -> str:
    """Write a number with three digits that count."""
    if value == int(value) and abs(value) < 100_000:
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def as_text(rows: Iterable[Row]) -> str:
    """Lay the rows out in columns for a terminal."""
    lines = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in lines
    )


def as_markdown(rows: Iterable[Row]) -> str:
    """Return the table for the documentation."""
    lines = [HEAD, ("---",) * len(HEAD), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def between_markers(document: str, markers: tuple[str, str], text: str) -> str:
    """Return a document with ``text`` in place of the lines between two markers.

    Raises:
        ValueError: It does not hold both lines, once each and in this order.
    """
    begin, end = markers
    before, found, rest = document.partition(f"{begin}\n")
    _, closed, after = rest.partition(f"\n{end}\n")
    if not found or not closed or begin in rest or end in after:
        raise ValueError(f"the document must hold the lines {begin} and {end}, once each and in this order")
    return f"{before}{begin}\n{text}\n{end}\n{after}"
