"""Numbers and tables as people read them."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from tracekit.wording import align_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_UNITS: Final = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_WIDEST: Final = 48

ENDS: Final = ("least", "median", "most", "on rank")  # the headings of `range_cells`


def duration(ns: float) -> str:
    """Return a time with three digits that count: "1.23 ms"."""
    for factor, unit in _UNITS:
        if abs(ns) >= factor * 0.9995:
            value = ns / factor
            digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
            return f"{value:,.{digits}f} {unit}"
    return f"{ns:.0f} ns"


def share(value: float | None) -> str:
    """Return a share as percents: "12.3%"; a dash for None."""
    return "-" if value is None else f"{value:.1%}"


def certainty(sure: float) -> str:
    """Return the probability that a finding is not due to chance, as percents: never "100.0%"."""
    return "more than 99.9%" if sure > 0.999 else share(sure)


def shortened(name: str, width: int = _WIDEST) -> str:
    """Return a name of at most this width: the beginning and the end of a long one, which distinguish C++ kernels."""
    if len(name) <= width:
        return name
    tail = width // 3
    return f"{name[: width - tail - 1]}…{name[-tail:]}"


def shortened_apart(names: Iterable[str], width: int) -> dict[str, str]:
    """Return `shortened` names; those that would look alike show the part where they differ instead of their ends."""
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        alike.setdefault(shortened(name, width), []).append(name)
    found: dict[str, str] = {}
    for short, group in alike.items():
        if len(group) == 1:
            found[group[0]] = short
            continue
        # The first and the last name in alphabetical order have the least in common.
        least, most = min(group), max(group)
        same = next((at for at, (one, other) in enumerate(zip(least, most, strict=False)) if one != other), len(least))
        start = width // 3
        rest = max(same - 3, start)
        found |= {name: f"{name[:start]}…{name[rest : rest + width - start - 1]}" for name in group}
    return found


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return the lines of a table."""
    return [f"  {line}" for line in align_columns((head, *rows), left)]


def section(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, after: Sequence[str] = ()
) -> Iterator[str]:
    """Yield an empty line, a title, a table and the lines after it; nothing without rows."""
    if rows:
        yield from ("", title, *table(head, rows, left), *after)


def range_cells(values: Sequence[tuple[float, int]], text: Callable[[float], str]) -> tuple[str, ...]:
    """Return the least, the median and the most of values with their ranks, and the rank with the most."""
    most, rank = max(values, key=lambda pair: (pair[0], -pair[1]))
    return text(min(values)[0]), text(median(value for value, _ in values)), text(most), "-" if rank < 0 else str(rank)
