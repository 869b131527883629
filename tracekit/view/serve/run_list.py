"""The list of runs: search, filters, order and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

if TYPE_CHECKING:
    from tracekit.view.serve.runs import Run

PER_PAGE: Final = 200
ORDERS: Final = {"newest": "newest", "name": "name", "step_time": "step time", "step": "last step", "size": "size"}
"""The orders of the list, and their names on the page."""

# Runs without a value come last.
_KEYS: Final[Mapping[str, Callable[[Run], Any]]] = {
    "name": lambda run: run.name.casefold(),
    "step_time": lambda run: -(run.step_time_ns or 0),
    "step": lambda run: -(run.step or 0),
    "size": lambda run: -run.bytes,
}
_MAX_TEXT: Final = 200


@dataclass(frozen=True, slots=True)
class RunQuery:
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


@dataclass(frozen=True, slots=True)
class RunList:
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
