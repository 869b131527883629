"""Changes between runs, as values and as lines; `TraceDiff.as_dict` is the JSON form (``schemas/diff.schema.json``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.explain.results import Result
from tracekit.explain.text import duration, section, shortened
from tracekit.wording import counted, rank_spans

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_SPANS: Final = 5

STEP: Final = "(step)"  # how whole steps are called among the markers


class Change(Result, frozen=True, kw_only=True):
    """A marker that both sides have.

    Attributes:
        before_ns, after_ns: Its mean time on each side, in a step that has it, on a rank that has it; without steps, of a slice.
        self_change_ns: Mean change of its time outside of inner slices: separates a cause from markers that only enclose it.
    """

    name: str  # its name; "(step)" for whole steps
    category: str  # its category
    before_ns: float
    after_ns: float
    self_change_ns: float
    count_before: float  # number of slices in a step; 1 without steps
    count_after: float  # number of slices in a step; 1 without steps
    ratio: float  # ``after_ns`` to ``before_ns``
    low: float  # limits of the true ratio, at the confidence asked for and for all markers together
    high: float  # limits of the true ratio, at the confidence asked for and for all markers together
    chance: float  # probability that any marker of equal runs would differ as much by chance
    share_of_step: float | None  # change of the mean step, as a share of the step before; null without steps
    lower_99: float  # lower 99 % limit of the true ratio of this marker alone
    resolution: float  # least slow-down of this marker alone that would be certain at 99 %, as a share
    waiting: bool  # true if the change is waiting for ranks that come late: a consequence, not a cause

    def is_slower_by(self, share: float) -> bool:
        """Return True if it is slower by more than a share, and slower at all with 99 % confidence."""
        return self.lower_99 > 1 and self.ratio - 1 > share


class Cause(Result, frozen=True, kw_only=True):
    """A stage that made the step longer or shorter, where ranks wait for each other."""

    stage: str  # its name
    change_ns: float  # change of the time that it adds to the step of all ranks; waiting adds nothing
    low_ns: float  # limits of the true change, at the confidence asked for and for all markers and stages together
    high_ns: float  # limits of the true change, at the confidence asked for and for all markers and stages together
    share_of_step: float  # the change as a share of the step before
    ranks: list[int]  # the ranks on which the stage itself has changed: where not all, those that come late
    of_ranks: int  # the number of ranks of the later run
    chance: float  # probability that any stage of equal runs would change as much by chance


class Presence(Result, frozen=True, kw_only=True):
    """A marker that only one side has."""

    name: str  # its name
    category: str  # its category
    count: int  # the number of slices
    total_ns: int  # the sum of their durations
    each_ns: float  # the same for a step; without steps, for a slice


class DiffSide(Result, frozen=True, kw_only=True):
    """One side of the comparison.

    Attributes:
        steps: The number of steps of each rank; 0 if single slices were compared. Of several earlier runs, the fewest.
    """

    files: list[str]  # the files that were read
    ranks: list[int]  # the ranks that were compared
    steps: int


class TraceDiff(Result, frozen=True, kw_only=True):
    """Changes from the earlier runs to the later one. All times are nanoseconds.

    Attributes:
        before, after: The earlier runs, and the later one.
        baselines: Number of earlier runs. With one, the limits do not hold the variation from run to run.
        step: Whole steps; null with fewer than five.
        causes: The stages that made the step longer or shorter, the largest change first; empty where nothing shows that ranks
            wait for each other.
        slower: Markers that became slower: whole steps, causes, others by their cost, and last those that only wait.
        faster: Markers that became faster.
        unchanged: The others that were compared.
        new: Markers that only the later run has.
        vanished: Markers that only the earlier runs have.
        notes: Gaps of the comparison, and their reasons.
    """

    format_version: int = 3
    before: DiffSide
    after: DiffSide
    baselines: int
    step: Change | None
    causes: list[Cause]
    slower: list[Change]
    faster: list[Change]
    unchanged: list[Change]
    new: list[Presence]
    vanished: list[Presence]
    notes: list[str]

    @property
    def compared(self) -> int:
        """Number of markers that were compared, whole steps among them."""
        return len(self.slower) + len(self.faster) + len(self.unchanged)

    def named(self, name: str) -> list[Change]:
        """Return the compared markers of this name, of any category."""
        return [change for change in (*self.slower, *self.faster, *self.unchanged) if change.name == name]

    def slower_by(self, share: float) -> list[Change]:
        """Return the markers that became slower by more than a share: 0.05 for 5 %."""
        return [change for change in self.slower if change.ratio - 1 > share]


def diff_lines(diff: TraceDiff, top: int) -> Iterator[str]:
    """Yield the lines of a difference."""
    for name, side in (("before", diff.before), ("after", diff.after)):
        runs = f"{counted(diff.baselines, 'run')}, " if name == "before" and diff.baselines > 1 else ""
        ranks = f"rank {side.ranks[0]}" if len(side.ranks) == 1 else counted(len(side.ranks), "rank")
        steps = counted(side.steps, "step") if side.steps else "no steps"
        yield f"{name}: {runs}{counted(len(side.files), 'file')}, {ranks}, {steps}"
    if diff.step is not None:
        step = diff.step
        yield f"step: {duration(step.before_ns)} -> {duration(step.after_ns)} ({_percent(step)})"
        yield f"  {_sight(diff, step)}"
    for cause in diff.causes[:top]:
        yield _cause(cause, diff)
    each = "a step" if diff.before.steps or diff.after.steps else "a slice"
    for title, found in (("slower", diff.slower), ("faster", diff.faster)):
        yield from _changes(title, [one for one in found if not one.waiting], each, top)
        yield from _changes(f"{title}, waiting for late ranks", [one for one in found if one.waiting], each, top)
    yield from _presences("new", diff.new, each, top)
    yield from _presences("gone", diff.vanished, each, top)
    yield ""
    if not diff.compared:
        yield "nothing could be compared: no marker has enough values on both sides"
    elif not diff.slower and not diff.faster:
        yield "no marker became slower or faster"
    if diff.compared:
        yield f"{counted(len(diff.unchanged), 'marker')} compared without a change that is sure"
    for note in diff.notes:
        yield f"note: {note}"


def gate_line(name: str, change: Change, share: float) -> str | None:
    """Return the line on a gate that fails or cannot be judged; None if it is passed."""
    what = "the step" if change.name == STEP else shortened(change.name)
    if change.is_slower_by(share):
        least = f"at least {change.lower_99 - 1:.1%} with 99% confidence"
        return f"{name}: {what} is {change.ratio - 1:.1%} slower, more than {_plain(share)}; {least}"
    if change.resolution > share:
        seen = f"a slow-down below {change.resolution:.1%}" if change.resolution < 1 else "any slow-down"
        return f"{name}: {what} cannot be judged: the noise hides {seen}, which is more than {_plain(share)}"
    return None


def _cause(cause: Cause, diff: TraceDiff) -> str:
    """Return the sentence on a cause: the stage, the ranks that come late in it, and where the others wait for them."""
    is_longer = cause.change_ns > 0
    least, most = sorted((abs(cause.low_ns), abs(cause.high_ns)))
    cost = f"{duration(abs(cause.change_ns))} a step {'longer' if is_longer else 'less'}"
    limits = f"({cause.share_of_step:+.1%} of it; {duration(least)} to {duration(most)})"
    line = f"cause: {shortened(cause.stage)} takes {cost} {limits}"
    if len(cause.ranks) == cause.of_ranks:
        return f"{line} on all ranks"
    who = rank_spans(cause.ranks, dash=" to ", most=_MAX_SPANS)
    waits = [one.name for one in (diff.slower if is_longer else diff.faster) if one.waiting]
    where = (
        f"; the others wait {'longer' if is_longer else 'less'} in {', '.join(map(shortened, waits))}" if waits else ""
    )
    come = "come" if is_longer and len(cause.ranks) > 1 else "comes" if is_longer else "came"
    return f"{line} on {who}, which {come} late{where}"


def _plain(share: float) -> str:
    return f"{100 * share:.3g}%"


def _sight(diff: TraceDiff, step: Change) -> str:
    """Return what the comparison of steps can show."""
    seen = (
        f"a slow-down of {step.resolution:.1%} would be certain"
        if step.resolution < 1
        else "the noise hides any change"
    )
    if diff.baselines > 1:
        return f"{seen}, with the variation between {diff.baselines} runs before"
    return f"{seen} within these runs"


def _percent(change: Change) -> str:
    return f"{change.ratio - 1:+.1%}, above {change.lower_99 - 1:+.1%} with 99% confidence"


def _changes(title: str, changes: list[Change], each: str, top: int) -> Iterator[str]:
    rows = [
        (
            shortened(change.name),
            shortened(change.category, 16),
            duration(change.before_ns),
            duration(change.after_ns),
            f"{change.ratio - 1:+.1%}",
            "-" if change.share_of_step is None else f"{change.share_of_step:+.1%}",
            f"{change.low - 1:+.1%} to {change.high - 1:+.1%}",
            "-" if change.name == STEP else duration(change.self_change_ns),
            f"{change.count_before:.4g} -> {change.count_after:.4g}",
        )
        for change in changes[:top]
    ]
    head = ("name", "category", "before", "after", "change", "of step", "limits", "of it self", "count")
    return section(f"{title} ({each})", head, rows, 2, _more(len(changes), top))


def _presences(title: str, found: list[Presence], each: str, top: int) -> Iterator[str]:
    rows = [
        (shortened(one.name), shortened(one.category, 16), f"{one.count:,}", duration(one.each_ns))
        for one in found[:top]
    ]
    return section(title, ("name", "category", "count", each), rows, 2, _more(len(found), top))


def _more(count: int, top: int) -> list[str]:
    return [f"  and {count - top:,} more; --top N shows N, --json all"] if count > top else []
