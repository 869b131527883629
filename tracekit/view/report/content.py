"""The parts of a page as values, which the template puts into HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from tracekit.explain.text import shortened
from tracekit.markup import visible
from tracekit.structs import Struct
from tracekit.wording import counted, rank_spans

UNFOLDED_ROWS: Final = 24


class Name(Struct, frozen=True):
    """A name from a trace. It is shown shortened, and isolated from the text around it."""

    full: str  # the name
    width: int = 60  # the number of letters that are shown
    stands_out: bool = True  # true if it is emphasized

    @property
    def shown(self) -> str:
        """The shortened name."""
        return shortened(visible(self.full), self.width) or "(no name)"

    @property
    def whole(self) -> str:
        """The tooltip; empty if the name is not shortened."""
        return "" if len(self.full) <= self.width else shortened(visible(self.full), 300)


Words: TypeAlias = "str | Name | Sequence[str | Name]"
"""A sentence or a cell: tracekit's own words, and names in between."""


class Table(NamedTuple):
    """A table; the first cell of a row is its heading."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Words]]
    more: str = ""  # the rows that are left out, in words; empty for none
    text: Sequence[int] = (1,)  # the columns of words, counted from 1

    @property
    def folded(self) -> bool:
        """True if it is long, and closed at first."""
        return len(self.rows) > UNFOLDED_ROWS


class Figure(NamedTuple):
    """A plot as SVG, and a table of its numbers unless another table has them."""

    caption: str
    svg: str
    table: Table | None = None


class Section(NamedTuple):
    """A part of the page: its anchor, heading, paragraphs, plots (``small``: next to each other) and tables."""

    key: str
    title: str
    words: Sequence[Words] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    small: bool = False


class Answer(NamedTuple):
    """An answer at the top of the page: "good", "look" (something is to be looked at) or "unknown"; ``key`` has the details."""

    question: str
    state: str
    words: Words
    key: str

    @property
    def label(self) -> str:
        """The state in a word, so that no colour is needed."""
        return {"good": "fine", "look": "look here"}.get(self.state, "not known")


def more(count: int, word: str, where: str = ": see tracekit summary --json") -> str:
    """Return the sentence on a number of items that are not shown; an empty text for 0."""
    return f"and {counted(count, word)} more{where}" if count > 0 else ""


def which_ranks(ranks: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 0–2, 5"; of many, the first few and how many there are."""
    return rank_spans(ranks, dash="–", most=8)
