"""The parts of a page as values, which the template puts into HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from tracekit.explain.text import shortened
from tracekit.markup import visible
from tracekit.wording import counted, rank_spans

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST: Final = 60
_LONGEST_WHOLE: Final = 300
_UNFOLDED: Final = 24
_MOST_SPANS: Final = 8


@dataclass(frozen=True, slots=True)
class Name:
    """A name from a trace. It is shown shortened, and isolated from the text around it.

    Attributes:
        full: The name.
        width: The number of letters that are shown.
        stands_out: True if it is emphasized.
    """

    full: str
    width: int = _LONGEST
    stands_out: bool = True

    @property
    def shown(self) -> str:
        """The shortened name."""
        return shortened(visible(self.full), self.width) or "(no name)"

    @property
    def whole(self) -> str:
        """The tooltip; empty if the name is not shortened."""
        return "" if len(self.full) <= self.width else shortened(visible(self.full), _LONGEST_WHOLE)


Words: TypeAlias = "str | Name | Sequence[str | Name]"
"""A sentence or a cell: tracekit's own words, and names in between."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        caption: The figures.
        head: The headings of its columns.
        rows: Its rows; the first cell of each is the row's heading.
        more: The rows that are left out, in words; empty for none.
        text: The columns of words, counted from 1.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Words]]
    more: str = ""
    text: Sequence[int] = (1,)

    @property
    def folded(self) -> bool:
        """True if it is long, and closed at first."""
        return len(self.rows) > _UNFOLDED


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot.

    Attributes:
        caption: Its caption.
        svg: The plot.
        table: Its numbers; None if another table has them.
    """

    caption: str
    svg: str
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page.

    Attributes:
        key: Its anchor.
        title: Its heading.
        words: Its paragraphs.
        figures: Its plots.
        tables: Its tables.
        small: True if plots may be next to each other.
    """

    key: str
    title: str
    words: Sequence[Words] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    small: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer at the top of the page.

    Attributes:
        question: The question.
        state: "good", "look" (something is to be looked at) or "unknown".
        words: The answer.
        key: The section with details.
    """

    question: str
    state: str
    words: Words
    key: str

    @property
    def label(self) -> str:
        """The state in a word, so that no colour is needed."""
        return {"good": "fine", "look": "look here"}.get(self.state, "not known")


def bounded(items: Sequence[object], most: int, word: str) -> str:
    """Return the sentence on items beyond a number; empty if there are no more."""
    return more(len(items) - most, word)


def more(count: int, word: str) -> str:
    """Return the sentence on a number of items that are not shown."""
    return f"and {counted(count, word)} more: see tracekit summary --json" if count > 0 else ""


def which_ranks(ranks: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 0–2, 5"; of many, the first few and how many there are."""
    return rank_spans(ranks, dash="–", most=_MOST_SPANS)
