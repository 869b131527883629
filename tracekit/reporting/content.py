"""What a page consists of, as values: the template puts them into HTML, and knows of nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from tracekit.analysis.text import shortened
from tracekit.markup import visible
from tracekit.wording import counted, rank_spans

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Answer", "Figure", "Name", "Section", "Table", "Words", "bounded", "more", "which_ranks"]

_LONGEST: Final = 60
_LONGEST_WHOLE: Final = 300
_UNFOLDED: Final = 24
_MOST_SPANS: Final = 8


@dataclass(frozen=True, slots=True)
class Name:
    """A name as it stands in a trace, whatever it holds; it is shown cut, and as a piece of its own.

    Attributes:
        full: The name.
        width: How many letters are shown.
        stands_out: Whether it is to stand out of the words around it.
    """

    full: str
    width: int = _LONGEST
    stands_out: bool = True

    @property
    def shown(self) -> str:
        """What is shown of it."""
        return shortened(visible(self.full), self.width) or "(no name)"

    @property
    def whole(self) -> str:
        """What is told when one points at it; empty where it is shown whole."""
        return "" if len(self.full) <= self.width else shortened(visible(self.full), _LONGEST_WHOLE)


Words: TypeAlias = "str | Name | Sequence[str | Name]"
"""A sentence or a cell: tracekit's own words, and names in between."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        caption: What it tells.
        head: The headings of its columns.
        rows: Its rows; the first cell of each is the row's heading.
        more: What is not in it; empty where all is.
        text: Which columns hold words and not figures, counted from 1.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Words]]
    more: str = ""
    text: Sequence[int] = (1,)

    @property
    def folded(self) -> bool:
        """Whether it is so long that it is closed at first."""
        return len(self.rows) > _UNFOLDED


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot.

    Attributes:
        caption: What it shows.
        svg: The plot.
        table: Its numbers; None where a table beside it has them.
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
        words: What it says, a paragraph each.
        figures: Its plots.
        tables: Its tables.
        small: Whether the plots may stand beside each other.
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
        question: What it answers.
        state: "good", "look" (something is to be looked at) or "unknown".
        words: The answer.
        key: The section that tells more.
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
    """Return what to say of items beyond so many; empty where there are no more."""
    return more(len(items) - most, word)


def more(count: int, word: str) -> str:
    """Return what to say of so many that are not shown."""
    return f"and {counted(count, word)} more: see tracekit summary --json" if count > 0 else ""


def which_ranks(ranks: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 0–2, 5"; of many, the first few and how many there are."""
    return rank_spans(ranks, dash="–", most=_MOST_SPANS)
