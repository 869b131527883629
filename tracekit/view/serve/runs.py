"""Runs and their ranks as the pages show them, and the list of runs: search, filters, order and pages."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from tracekit.formats.kineto import rank_in_name
from tracekit.storage import basename
from tracekit.structs import Struct, asdict, replace
from tracekit.wording import counted, number_spans

if TYPE_CHECKING:
    from tracekit.traces.rank_head import OtherTrace
    from tracekit.traces.trace_store import Entry
    from tracekit.view.live import RunState
    from tracekit.view.serve.captures import ListeningRun

_ORDER: Final = ("recording", "listening", "finished", "cut", "lost")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")
PER_PAGE: Final = 200
ORDERS: Final = {"newest": "newest", "name": "name", "step_time": "step time", "step": "last step", "size": "size"}
"""The orders of the list, and their names on the page."""
_MAX_TEXT: Final = 200


class RankRow(Struct, frozen=True):
    """A rank, or several that are not there: state "recording", "listening", "finished", "cut" or "lost"."""

    name: str
    state: str
    why: str
    step: int | None = None
    step_time_ns: int | None = None
    changed_s: float = 0.0
    host: str = ""
    lost: int = 0


class Run(Struct, frozen=True):
    """A run."""

    id: str  # its unique name in addresses: letters, digits, dots and dashes
    name: str
    folder: str  # the folder of its files; empty before the first file
    ranks: tuple[RankRow, ...]
    states: tuple[tuple[str, int], ...]  # the number of ranks in each state
    rank_words: str
    changed_s: float
    start_s: float
    files: tuple[str, ...] = ()
    step: int | None = None
    step_time_ns: int | None = None
    bytes: int = 0
    shared: bool = False  # true if files of other runs are below the same folder
    watched: RunState | None = None  # read from its files; None before it has written, and for other tools
    control: Path | None = None  # its control folder; None if no rank has listened
    listens: bool = False  # true if a rank waits for a request to record
    problem: str = ""  # a sentence on damage and losses; empty for none

    @property
    def link(self) -> str:
        """Its address."""
        return f"/runs/{self.id}"

    @property
    def lives(self) -> bool:
        """True if it may change by itself."""
        return self.listens or any(name == "recording" for name, _ in self.states)


def watched_run(state: RunState, name: str, *, shared: bool, listening: ListeningRun | None) -> Run:
    """Return a run that has written something; ``listening`` is its control folder, if there is one."""
    rows = [
        RankRow(
            name=f"{rank.rank:,}",
            state=rank.state,
            why=rank.reason,
            step=rank.batch,
            step_time_ns=rank.median_step_ns,
            changed_s=rank.written_ns / 1e9,
            host=rank.host,
            lost=rank.lost_events,
        )
        for rank in state.ranks
    ]
    counts = Counter(row.state for row in rows)
    if state.missing_count:
        counts["lost"] += state.missing_count
        ranks = f"{number_spans(state.missing)}{' …' if state.missing_count > len(state.missing) else ''}"
        rows.append(RankRow(ranks, "lost", "no file of it is there"))
    problems = [f"{state.lost_events:,} events were lost while it was recorded"] if state.lost_events else []
    if unreadable := sum(rank.unreadable for rank in state.ranks):
        problems.append(f"{counted(unreadable, 'place')} in its files cannot be read")
    return _run(
        name,
        state.run_id,
        state.folder,
        rows,
        counts,
        files=state.paths,
        rank_words=_rank_words(len(state.ranks), state.world_size),
        step=state.step,
        step_time_ns=state.median_step_ns,
        start_s=state.start_ns / 1e9,
        bytes=sum(rank.size_bytes for rank in state.ranks),
        shared=shared,
        watched=state,
        control=None if listening is None else listening.control,
        listens=listening is not None and listening.listens,
        problem="; ".join(problems),
    )


def waiting_run(one: ListeningRun, name: str) -> Run:
    """Return a run that waits for a request to record, and has written nothing."""
    rows = [
        RankRow(
            name=f"{status.rank:,}",
            state="listening" if listens else "lost",
            why="it records when it is asked to" if listens else "it has ended, and recorded nothing",
            step=status.batch,
            step_time_ns=None if status.step_seconds is None else round(status.step_seconds * 1e9),
            host=status.host,
        )
        for status, listens in one.ranks
    ]
    run = _run(
        name,
        one.run_id,
        os.fspath(one.folder),
        rows,
        Counter(row.state for row in rows),
        rank_words=_rank_words(len(rows), max((status.world_size for status, _ in one.ranks), default=0)),
        step=max((row.step or 0 for row in rows), default=None),
        step_time_ns=median_high([row.step_time_ns for row in rows if row.step_time_ns] or [0]) or None,
        start_s=one.changed_s,
        control=one.control,
        listens=one.listens,
    )
    return replace(run, folder="", changed_s=one.changed_s)


def folder_run(folder: str, name: str, traces: Sequence[tuple[Entry, OtherTrace]], *, shared: bool) -> Run:
    """Return the traces of other tools in one folder as a run: torch.profiler, vLLM, sglang, JAX, or merged ones."""
    ranked = [
        (trace.rank if trace.rank is not None else rank_in_name(basename(entry.path)), entry) for entry, trace in traces
    ]
    ranked.sort(key=lambda pair: (pair[0] is None, pair[0] or 0, pair[1].path))
    ranks = {rank for rank, _ in ranked if rank is not None}
    rows = [
        RankRow(
            name=basename(entry.path) if rank is None else f"{rank:,}",
            state="finished",
            why=f"{basename(entry.path)}, a trace of another tool or an earlier merge",
            changed_s=entry.written_ns / 1e9,
        )
        for rank, entry in ranked
    ]
    return _run(
        name,
        "",
        folder,
        rows,
        Counter(finished=len(ranked)),
        files=tuple(entry.path for _, entry in ranked),
        rank_words=counted(len(ranks) or len(ranked), "rank" if ranks else "trace"),
        start_s=min(row.changed_s for row in rows),
        bytes=sum(entry.size_bytes for _, entry in ranked),
        shared=shared,
    )


def _run(name: str, run_id: str, folder: str, rows: Sequence[RankRow], counts: Counter[str], **values: Any) -> Run:
    slug = _UNFIT.sub("-", name).strip("-.")[:60]
    digest = hashlib.sha256(f"{run_id}\0{folder}".encode("utf-8", "replace")).hexdigest()[:8]
    return Run(
        id=f"{slug}-{digest}" if slug else digest,
        name=name,
        folder=folder,
        ranks=tuple(rows),
        states=tuple((state, counts[state]) for state in _ORDER if counts[state]),
        changed_s=max((row.changed_s for row in rows), default=0.0),
        **values,
    )


def _rank_words(count: int, world_size: int) -> str:
    return f"{count:,} of {world_size:,} ranks" if count != world_size else counted(count, "rank")


# Runs without a value come last.
_KEYS: Final[Mapping[str, Callable[[Run], Any]]] = {
    "name": lambda run: run.name.casefold(),
    "step_time": lambda run: -(run.step_time_ns or 0),
    "step": lambda run: -(run.step or 0),
    "size": lambda run: -run.bytes,
}


class RunQuery(Struct, frozen=True):
    """A query of the list; the names of the fields are those in the address."""

    q: str = ""  # words that the name, a tag or a host must contain; case does not matter
    state: str = ""  # a state that at least one rank must be in; empty for any
    tag: str = ""  # a tag that the run must have; empty for any
    order: str = "newest"  # one of `ORDERS`
    page: int = 1  # the number of the page, from 1

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> RunQuery:
        """Return the query in the address of a page; odd values count as if they were left out."""
        q, state, tag = (parameters.get(name, "")[:_MAX_TEXT].strip() for name in ("q", "state", "tag"))
        number, order = parameters.get("page", ""), parameters.get("order", "")
        page = int(number) if number.isascii() and number.isdecimal() and 0 < len(number) < 7 else 1
        return cls(q, state, tag, order if order in ORDERS else "newest", max(1, page))

    def address(self, **changes: Any) -> str:
        """Return the address of the same list with other values."""
        usual = asdict(RunQuery())
        left = {key: value for key, value in {**asdict(self), **changes}.items() if value != usual[key]}
        return f"/?{urlencode(left)}" if left else "/"


class RunList(Struct, frozen=True):
    """A page of the list: the query with a page that exists, its runs, and the numbers and labels of the whole list."""

    query: RunQuery
    runs: tuple[Run, ...]
    count: int
    total: int
    pages: int
    states: tuple[str, ...]
    tags: tuple[str, ...]


def list_runs(runs: Sequence[Run], query: RunQuery, tags: Mapping[str, Sequence[str]]) -> RunList:
    """Return a page of the list of all runs, which come with the newest first; tags are by the ids of runs."""
    words = query.q.casefold().split()

    def fits(run: Run) -> bool:
        own = tags.get(run.id, ())
        text = "\n".join((run.name, *own, *{rank.host for rank in run.ranks})).casefold() if words else ""
        in_state = not query.state or any(name == query.state for name, _ in run.states)
        return in_state and (not query.tag or query.tag in own) and all(word in text for word in words)

    found = [run for run in runs if fits(run)]
    if query.order in _KEYS:
        found.sort(key=_KEYS[query.order])
    pages = max(1, -(-len(found) // PER_PAGE))
    page = min(query.page, pages)
    return RunList(
        query=replace(query, page=page),
        runs=tuple(found[(page - 1) * PER_PAGE : page * PER_PAGE]),
        count=len(found),
        total=len(runs),
        pages=pages,
        states=tuple(sorted({name for run in runs for name, _ in run.states})),
        tags=tuple(sorted({tag for run in runs for tag in tags.get(run.id, ())})),
    )
