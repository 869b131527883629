"""Megatron's report of the sums of timers, line by line as it writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Sums = Mapping[int, Mapping[str, int]]

_TITLES: Final = {
    "max": "max time across ranks",
    "minmax": "(min, max) time across ranks",
    "all": "times across ranks",
}
LOG_OPTIONS: Final = tuple(_TITLES)

_NAME_WIDTH: Final = 48
_MS: Final = 1e6


def names_of(sums: Mapping[int, Mapping[str, object]], names: Sequence[str] | None = None) -> list[str]:
    """Return the names asked for, or, for None, those of the lowest rank and then those that only others have."""
    if names is None:
        names = [name for rank in sorted(sums) for name in sums[rank]]
    return list(dict.fromkeys(names))


def min_max(sums: Sums, name: str) -> tuple[int, int] | None:
    """Return the smallest and the largest sum of a timer, ns, of the ranks that have used it; None where nobody has."""
    found = [timers[name] for timers in sums.values() if timers.get(name, 0) > 0]
    return (min(found), max(found)) if found else None


def sums_text(sums: Sums, names: Sequence[str], option: str, normalizer: float = 1.0) -> str | None:
    """Return Megatron's report.

    The lines are Megatron's, but for one thing: the header gives the unit of the values, so with a normalizer N it is
    "(ms / N)" instead of "(ms)".

    Args:
        sums: For each rank, ns by name.
        names: Timers to report, in this order.
        option: "max" (the slowest rank's), "minmax", or "all" (every rank's).
        normalizer: Divisor, such as the number of iterations.

    Returns:
        The text, without a newline at its end; None where there is nothing to report.
    """
    scale = _MS * normalizer
    lines = []
    for name in names:
        extremes = min_max(sums, name)
        if extremes is None:
            continue
        low, high = extremes[0] / scale, extremes[1] / scale
        if option == "all":
            used = {rank: sums[rank][name] for rank in sorted(sums) if sums[rank].get(name, 0) > 0}
            lines.append(f"  {name}:")
            lines += [f"     rank {rank:2d}: {sum_ns / scale:.2f}" for rank, sum_ns in used.items()]
        else:
            value = f"{high:.2f}" if option == "max" else f"({low:.2f}, {high:.2f})"
            lines.append(f"    {name + ' ':.<{_NAME_WIDTH}}: {value}")
    unit = "ms" if normalizer == 1 else f"ms / {normalizer:g}"
    return "\n".join([f"{_TITLES[option]} ({unit}):", *lines]) if lines else None
