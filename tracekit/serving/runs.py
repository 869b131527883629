"""Runs and their ranks as the pages show them, from what was seen of them."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracekit.wording import counted, number_spans

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.serving.control import ListeningRun
    from tracekit.watching import RankState, RunState

__all__ = ["RankRow", "Run", "waiting_run", "watched_run"]

_ORDER: Final = ("recording", "listening", "finished", "cut", "lost")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_SLUG: Final = 60


@dataclass(frozen=True, slots=True)
class RankRow:
    """A rank, or several that are not there: state "recording", "listening", "finished", "cut" or "lost"."""

    name: str
    state: str
    why: str
    step: int | None = None
    step_time_ns: int | None = None
    changed_s: float = 0.0
    host: str = ""
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """A run.

    Attributes:
        id: What it is called in addresses: letters, digits, dots and dashes, and another one for each run.
        name: What people call it.
        folder: Where its files are; empty where it has none yet.
        files: The files that its ranks wrote.
        shared: Whether files of other runs lie below the same folder.
        ranks: Its ranks.
        states: How many of them are in which state.
        watched: What was seen of it; None before it has written anything.
        control: Its control folder; None where nobody has listened.
        listens: Whether a rank waits for a request to record.
        problem: What is wrong with it; empty for nothing.
    """

    id: str
    name: str
    folder: str
    files: tuple[str, ...]
    ranks: tuple[RankRow, ...]
    states: tuple[tuple[str, int], ...]
    rank_words: str
    step: int | None
    step_time_ns: int | None
    changed_s: float
    start_s: float
    bytes: int
    shared: bool = False
    watched: RunState | None = None
    control: Path | None = None
    listens: bool = False
    problem: str = ""

    @property
    def link(self) -> str:
        """Its address."""
        return f"/runs/{self.id}"


def watched_run(state: RunState, name: str, *, shared: bool, listening: ListeningRun | None) -> Run:
    """Return a run that has written something.

    Args:
        state: What was seen of it.
        name: What people call it.
        shared: Whether files of other runs lie below its folder.
        listening: What its control folder says; None without one.
    """
    rows = [_row(rank) for rank in state.ranks]
    if state.missing_count:
        ranks = f"{number_spans(state.missing)}{' …' if state.missing_count > len(state.missing) else ''}"
        rows.append(RankRow(ranks, "lost", "no file of it is there"))
    counts: Counter[str] = Counter(rank.state for rank in state.ranks)
    counts["lost"] += state.missing_count
    return Run(
        id=_id(name, state.run_id, state.folder),
        name=name,
        folder=state.folder,
        files=state.paths,
        ranks=tuple(rows),
        states=tuple((one, counts[one]) for one in _ORDER if counts[one]),
        rank_words=_rank_words(len(state.ranks), state.world_size),
        step=state.step,
        step_time_ns=state.median_step_ns,
        changed_s=max((rank.written_ns for rank in state.ranks), default=0) / 1e9,
        start_s=state.start_ns / 1e9,
        bytes=sum(rank.size_bytes for rank in state.ranks),
        shared=shared,
        watched=state,
        control=None if listening is None else listening.control,
        listens=listening is not None and listening.listens,
        problem=_losses(state),
    )


def waiting_run(one: ListeningRun, name: str) -> Run:
    """Return a run that waits to be told to record, and has written nothing.

    Args:
        one: What its control folder says.
        name: What people call it.
    """
    rows = tuple(
        RankRow(
            name=f"{status.rank:,}",
            state="listening" if listens else "lost",
            why="it records when it is asked to" if listens else "it has ended, and recorded nothing",
            step=status.batch,
            step_time_ns=None if status.step_seconds is None else round(status.step_seconds * 1e9),
            host=status.host,
        )
        for status, listens in one.ranks
    )
    counts = Counter(row.state for row in rows)
    times = sorted(row.step_time_ns for row in rows if row.step_time_ns)
    return Run(
        id=_id(name, one.run_id, os.fspath(one.folder)),
        name=name,
        folder="",
        files=(),
        ranks=rows,
        states=tuple((state, counts[state]) for state in _ORDER if counts[state]),
        rank_words=_rank_words(len(rows), max((status.world_size for status, _ in one.ranks), default=0)),
        step=max((row.step or 0 for row in rows), default=None),
        step_time_ns=times[len(times) // 2] if times else None,
        changed_s=one.changed_s,
        start_s=one.changed_s,
        bytes=0,
        control=one.control,
        listens=one.listens,
    )


def _row(rank: RankState) -> RankRow:
    return RankRow(
        name=f"{rank.rank:,}",
        state=rank.state,
        why=rank.reason,
        step=rank.batch,
        step_time_ns=rank.median_step_ns,
        changed_s=rank.written_ns / 1e9,
        host=rank.host,
        lost=rank.lost_events,
    )


def _losses(state: RunState) -> str:
    parts = []
    if state.lost_events:
        parts.append(f"{state.lost_events:,} events were lost while it was recorded")
    if unreadable := sum(rank.unreadable for rank in state.ranks):
        parts.append(f"{unreadable:,} lines of its files are no events")
    return "; ".join(parts)


def _rank_words(count: int, world_size: int) -> str:
    return f"{count:,} of {world_size:,} ranks" if count != world_size else counted(count, "rank")


def _id(name: str, run_id: str, folder: str) -> str:
    slug = _UNFIT.sub("-", name).strip("-.")[:_LONGEST_SLUG]
    digest = hashlib.sha256(f"{run_id}\0{folder}".encode("utf-8", "replace")).hexdigest()[:8]
    return f"{slug}-{digest}" if slug else digest
