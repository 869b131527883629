"""Show a run as a table that fits a screen: of many ranks, the unhealthy and the slowest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tracekit.explain.text import duration, shortened, table
from tracekit.structs import Struct
from tracekit.wording import counted, rank_spans, size_words

if TYPE_CHECKING:
    from tracekit.view.live.states import Look, RankState, RunState

_SAME: Final = 0.02  # smaller differences are noise
_STATES: Final = {"lost": 0, "cut": 1, "recording": 2, "finished": 3}
_QUIET_NS: Final = 5_000_000_000
_QUIET_STEPS: Final = 5
_MAX_OTHERS: Final = 3
_NARROW: Final = 60
_HOST: Final = 16
_COUNTER: Final = 16

_KEYS: Final[dict[str, Callable[[RankState], tuple[Any, ...]]]] = {
    "auto": lambda rank: (not rank.unhealthy, -(rank.own_step_ns or 0), rank.rank),
    "rank": lambda rank: (rank.rank,),
    "slowest": lambda rank: (-(rank.own_step_ns or 0), rank.rank),
    "step": lambda rank: (-1 if rank.batch is None else rank.batch, rank.rank),
    "state": lambda rank: (_STATES[rank.state], rank.rank),
    "lost": lambda rank: (-(rank.lost_events + rank.unreadable), rank.rank),
    "quiet": lambda rank: (rank.state == "finished", -rank.quiet_ns, rank.rank),
}
ORDERS: Final = tuple(_KEYS)
"""The orders of ranks: ``auto`` is by rank if all fit, else the unhealthy and then the slowest."""


class RunTable(Struct, frozen=True):
    """A table with the lines around it. Names are as in the traces: escape them before printing."""

    title: list[str]  # the lines above
    head: tuple[str, ...]  # the headings; the last column is text, aligned to the left
    rows: list[tuple[str, ...]]  # the cells
    marks: list[str]  # "bad", "slow", "done" or "" for each row
    below: list[str]  # the lines below

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield each line with its mark, or "head" or "below"."""
        yield from ((line, "") for line in self.title)
        if self.rows:
            numbers = table(self.head[:-1], [row[:-1] for row in self.rows], left=0)
            width = max(map(len, numbers))
            texts = [self.head[-1], *(row[-1] for row in self.rows)]
            for line, text, mark in zip(numbers, texts, ["head", *self.marks], strict=True):
                yield f"{line.ljust(width)}  {text}".rstrip(), mark
        yield from ((line, "below") for line in self.below)


def run_table(
    look: Look,
    run: RunState,
    *,
    width: int,  # the maximum length of a line; 40 at least
    height: int | None,  # the maximum number of lines
    order: str = "auto",  # one of `ORDERS`
    counters: Sequence[str] = (),
) -> RunTable:
    """Return one run of a look as a table. Without named counters, it shows the first whose name contains "loss"."""
    title = [*_title(look, run), ""]
    if height is not None and height < 10:
        title = title[:1]
    below = _below(look, run)
    if height is not None:  # notes must not push out the ranks
        below = below[: max(0, height - len(title) - 5)]
    room = len(run.ranks) if height is None else max(1, height - len(title) - len(below) - 1)
    ranks = sorted(run.ranks, key=_KEYS["rank" if order == "auto" and len(run.ranks) <= room else order])
    left = len(ranks) > room
    shown = ranks[: max(1, room - 1)] if left else ranks
    if left:
        below.insert(0, _rest(run, len(ranks) - len(shown)))
    columns = _columns(run, shown, width, counters or _loss_counter(run))
    head = tuple(name for name, _ in columns)
    cells = [[cell(rank) for rank in shown] for _, cell in columns]
    used = 2 + sum(max(map(len, (name, *column))) + 2 for name, column in zip(head, cells, strict=True))
    room_for_text = max(5, width - used)
    rows = [
        (*row, _cut(_text(rank, room_for_text), room_for_text))
        for rank, row in zip(shown, zip(*cells, strict=True), strict=True)
    ]
    slowest = run.slowest.rank if run.slowest is not None and run.slowest.share >= _SAME else None
    return RunTable(
        title=[_cut(line, width) for line in title],
        head=(*head, _cut("stages of a step", room_for_text)),
        rows=rows,
        marks=[_mark(rank, slowest) for rank in shown],
        below=[_cut(line, width) for line in below],
    )


def _title(look: Look, run: RunState) -> list[str]:
    size = f"{len(run.ranks):,} of {run.world_size:,} ranks" if run.missing_count else counted(len(run.ranks), "rank")
    age = f", began {_span(look.time_ns - run.start_ns)} ago" if 0 < run.start_ns < look.time_ns else ""
    steps = "no step yet" if run.step is None else f"step {run.step:,}"
    if run.step_skew > 1:
        steps += f" (the last rank is {run.step_skew:,} behind)"
    if run.median_step_ns:
        steps += f", {duration(run.median_step_ns)} a step, {1e9 / run.median_step_ns:,.3g} a second"
    lines = [f"{shortened(run.run_id)}: {run.state}, {size}{age}", steps]
    slowest = run.slowest
    if slowest is not None and slowest.share < _SAME:
        lines.append(f"slowest: rank {slowest.rank}, but all take about the same time")
    elif slowest is not None:
        where = f", in {shortened(slowest.stage, 32)}" if slowest.stage else ""
        more = f"{duration(slowest.by_ns)} a step more than the others ({slowest.share:.0%})"
        lines.append(f"slowest: rank {slowest.rank}, {more}{where}")
    return lines


def _below(look: Look, run: RunState) -> list[str]:
    lines = []
    if run.missing_count:
        unnamed = run.missing_count - len(run.missing)
        lines.append(f"lost: no file of {rank_spans(run.missing)}{f' and {unnamed:,} more' if unnamed else ''}")
    if run.lost_events:
        lines.append(f"data lost: {counted(run.lost_events, 'event')}; see tracekit merge or tracekit recover")
    unreadable = sum(rank.unreadable for rank in run.ranks)
    if unreadable:
        lines.append(f"data lost: {counted(unreadable, 'place')} in the files cannot be read")
    behind = sum(rank.behind_bytes for rank in run.ranks)
    skipped = [rank for rank in run.ranks if rank.skipped_bytes]
    if behind:
        lines.append(f"note: {size_words(behind)} have not been read yet; the next looks read them")
    if skipped:
        total = size_words(sum(rank.skipped_bytes for rank in skipped))
        lines.append(f"note: of {counted(len(skipped), 'rank')} only the end was read; {total} were skipped")
    lines += [f"note: {note}" for note in look.notes]
    others = [other for other in look.runs if other is not run]
    if others:
        named = ", ".join(f"{shortened(other.run_id, 24)} ({other.state})" for other in others[:_MAX_OTHERS])
        more = f" and {len(others) - _MAX_OTHERS:,} more" if len(others) > _MAX_OTHERS else ""
        lines.append(f"other runs: {named}{more}; see --run")
    return lines


def _rest(run: RunState, count: int) -> str:
    states = [rank.state for rank in run.ranks]
    counts = ", ".join(f"{states.count(state):,} {state}" for state in _STATES if state in states)
    return f"and {counted(count, 'rank')} more; of all: {counts}"


def _loss_counter(run: RunState) -> list[str]:
    names = sorted({name for rank in run.ranks for name in rank.counters if "loss" in name.lower()}, key=len)
    return names[:1]


def _columns(
    run: RunState, shown: Sequence[RankState], width: int, counters: Sequence[str]
) -> list[tuple[str, Callable[[RankState], str]]]:
    wide, has_lost = width >= _NARROW, any(rank.lost_events or rank.unreadable for rank in shown)
    columns: list[tuple[bool, str, Callable[[RankState], str]]] = [
        (True, "rank", lambda rank: str(rank.rank)),
        (width >= 110 and len({rank.host for rank in run.ranks}) > 1, "host", lambda rank: shortened(rank.host, _HOST)),
        (True, "state", lambda rank: rank.state),
        (wide and any(rank.epoch for rank in run.ranks), "epoch", lambda rank: _words(rank.epoch, "{:,}".format)),
        (True, "step", lambda rank: _words(rank.batch, "{:,}".format)),
        (wide, "last", lambda rank: _words(rank.last_step_ns, duration)),
        (True, "median", lambda rank: _words(rank.median_step_ns, duration)),
        (wide and any(rank.waiting_ns for rank in run.ranks), "own", lambda rank: _words(rank.own_step_ns, duration)),
        *((wide, shortened(name, _COUNTER), partial(_counter, name)) for name in counters),
        (has_lost, "lost", lambda rank: f"{rank.lost_events + rank.unreadable:,}"),
    ]
    return [(name, cell) for is_shown, name, cell in columns if is_shown]


def _counter(name: str, rank: RankState) -> str:
    return _words(rank.counters.get(name), "{:,.4g}".format)


def _words(value: Any, show: Callable[[Any], str]) -> str:
    return "-" if value is None else show(value)


def _text(rank: RankState, width: int) -> str:
    """Return the stages of a rank, or the place where it is quiet."""
    if rank.state in ("cut", "lost"):
        where = f", in {' > '.join(rank.doing)}" if rank.doing else ""
        return f"{rank.reason}{where}"
    typical = rank.median_step_ns or 0
    if rank.state == "recording" and rank.quiet_ns > max(_QUIET_NS, _QUIET_STEPS * typical):
        where = f" in {' > '.join(rank.doing)}" if rank.doing else ""
        return f"quiet for {_span(rank.quiet_ns)}{where}"
    text = f"in evaluation {rank.evaluations + 1:,}" if rank.evaluating else ""
    for stage in rank.stages:
        following = f"{text}{', ' if text else ''}{shortened(stage.name, 24)} {stage.share:.0%}"
        if len(following) > width or stage.share < 0.005:
            break
        text = following
    return text


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _mark(rank: RankState, slowest: int | None) -> str:
    if rank.unhealthy:
        return "bad"
    if rank.state == "finished":
        return "done"
    return "slow" if rank.rank == slowest else ""


def _span(ns: int) -> str:
    seconds = ns // 1_000_000_000
    for unit, name, below in ((86_400, "d", "h"), (3600, "h", "min"), (60, "min", "s")):
        if seconds >= unit:
            part = seconds % unit // {"h": 3600, "min": 60, "s": 1}[below]
            return f"{seconds // unit} {name} {part} {below}"
    return f"{seconds} s"
