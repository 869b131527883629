"""A difference as lines for a terminal; names stand in them as they are in the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.analysis.diff_report import STEP
from tracekit.analysis.text import duration, shortened, table
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.analysis.diff_report import Change, Presence, TraceDiff

__all__ = ["diff_lines"]


def diff_lines(diff: TraceDiff, top: int) -> Iterator[str]:
    """Yield the lines of a difference.

    Args:
        diff: What to show.
        top: How many markers of each kind.
    """
    for side, files, ranks, steps in zip(("before", "after"), diff.files, diff.ranks, diff.steps, strict=True):
        whose = f"rank {ranks[0]}" if len(ranks) == 1 else counted(len(ranks), "rank")
        yield f"{side}: {counted(len(files), 'file')}, {whose}, {counted(steps, 'step') if steps else 'no steps'}"
    if diff.step is not None:
        step = diff.step
        yield f"step: {duration(step.before_ns)} -> {duration(step.after_ns)} ({_percent(step)})"
    each = "a step" if any(diff.steps) else "a slice"
    yield from _changes("slower", diff.slower, each, top)
    yield from _changes("faster", diff.faster, each, top)
    yield from _presences("new", diff.new, each, top)
    yield from _presences("gone", diff.vanished, each, top)
    yield ""
    if not diff.compared:
        yield "nothing could be compared: no marker has enough values on both sides"
    elif not diff.slower and not diff.faster:
        yield "no marker became slower or faster"
    if diff.compared:
        yield f"{counted(diff.unchanged, 'marker')} compared without a change that is sure"
    for note in diff.notes:
        yield f"note: {note}"


def _percent(change: Change) -> str:
    return f"{change.ratio - 1:+.1%}, between {change.low - 1:+.1%} and {change.high - 1:+.1%}"


def _changes(title: str, changes: list[Change], each: str, top: int) -> Iterator[str]:
    if not changes:
        return
    yield ""
    yield f"{title} ({each})"
    rows = [
        (
            shortened(change.name),
            shortened(change.category, 16),
            duration(change.before_ns),
            duration(change.after_ns),
            f"{change.ratio - 1:+.1%}",
            f"{change.low - 1:+.1%} to {change.high - 1:+.1%}",
            "-" if change.name == STEP else duration(change.self_change_ns),
            f"{change.count_before:.4g} -> {change.count_after:.4g}",
        )
        for change in changes[:top]
    ]
    head = ("name", "category", "before", "after", "change", "95% sure", "of it self", "count")
    yield from table(head, rows, left=2)
    if len(changes) > top:
        yield f"  and {len(changes) - top:,} more; --top N shows N, --json all"


def _presences(title: str, found: list[Presence], each: str, top: int) -> Iterator[str]:
    if not found:
        return
    yield ""
    yield title
    rows = [
        (shortened(one.name), shortened(one.category, 16), f"{one.count:,}", duration(one.each_ns))
        for one in found[:top]
    ]
    yield from table(("name", "category", "count", each), rows, left=2)
    if len(found) > top:
        yield f"  and {len(found) - top:,} more; --top N shows N, --json all"
