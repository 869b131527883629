"""Megatron's report of the sums of timers, line by line as it writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LOG_OPTIONS", "min_max", "sums_text"]

LOG_OPTIONS = ("max", "minmax", "all")

_NAME_WIDTH = 48
_MS = 1e6


def min_max(sums: Mapping[int, Mapping[str, int]], name: str) -> tuple[int, int] | None:
    """Return the smallest and the largest sum of a timer, ns, of the ranks that have used it; None where nobody has."""
    found = [timers[name] for timers in sums.values() if timers.get(name, 0) > 0]
    return (min(found), max(found)) if found else None


def sums_text(
    sums: Mapping[int, Mapping[str, int]], names: Sequence[str], option: str, normalizer: float = 1.0
) -> str | None:
    """Return Megatron's report.

    The lines are Megatron's, but for one thing: the header says the unit of what stands below it, so with a normalizer N it
    says "(ms / N)" instead of "(ms)".

    Args:
        sums: For each rank, ns by name.
        names: Which timers, in this order.
        option: "max" (the slowest rank's), "minmax", or "all" (every rank's).
        normalizer: What to divide by, such as the number of iterations.

    Returns:
        The text, without a newline at its end; None where there is nothing to report.
    """
    unit = "ms" if normalizer == 1 else f"ms / {normalizer:g}"
    scale = _MS * normalizer
    lines = []
    for name in names:
        extremes = min_max(sums, name)
        if extremes is None:
            continue
        low, high = extremes[0] / scale, extremes[1] / scale
        if option == "all":
            lines.append(f"  {name}:")
            lines += [
                f"     rank {rank:2d}: {sums[rank][name] / scale:.2f}"
                for rank in sorted(sums)
                if sums[rank].get(name, 0) > 0
            ]
        else:
            value = f"{high:.2f}" if option == "max" else f"({low:.2f}, {high:.2f})"
            lines.append(f"    {name + ' ':.<{_NAME_WIDTH}}: {value}")
    if not lines:
        return None
    title = {"max": "max time across ranks", "minmax": "(min, max) time across ranks", "all": "times across ranks"}
    return "\n".join([f"{title[option]} ({unit}):", *lines])
