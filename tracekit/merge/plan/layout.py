"""Lay out the output of a merge: group the inputs to rewrite together, and number pids and ids.

Pids are ``rank * stride + 1, + 2 ...``. Each input has a namespace of ids that follows from its rank and its place within
it, so that merging in steps gives the ids of merging at once, for inputs of different ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import MergeError
from tracekit.formats.merged_head import MERGED_KEY, RankOfPid, merge_decisions
from tracekit.wording import consecutive

if TYPE_CHECKING:
    from tracekit.merge.input import Input

_STRIDE: Final = 100_000
_PIDS: Final = 2**32

NAMESPACE: Final = 10**10
"""Ids of namespace n are moved by n * NAMESPACE: room for CUPTI's 32-bit ids, readable, and below 2**53 for 900,000."""

DIRECT_IDS: Final = NAMESPACE // 2
"""Ids from here on, and those that are not numbers, are numbered in the order in which they come, from here on."""

_PLACES: Final = 8
"""How many inputs of a rank have ids below 2**53, for up to 112,000 ranks."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The numbers of pids and ids, and the units.

    Attributes:
        stride: The distance between the pids of two ranks.
        ranks: The ranks, as (first, last) of each row of them.
        places: The number of namespaces of ids of each rank with more than one, by the rank as text.
        units: The inputs by number, together those that share a rank.
        namespaces: For each input the number of its namespace; -1 for one that keeps its ids.
        moved_namespaces: For an earlier merge, new numbers for the namespaces that others use.
        prefixes: For each input what is written before the ids of async events.
    """

    stride: int
    ranks: list[tuple[int, int]]
    places: dict[str, int]
    units: list[list[int]]
    namespaces: list[int]
    moved_namespaces: list[dict[int, int]]
    prefixes: list[str]
    collective_flows: int = 0

    @property
    def rank_count(self) -> int:
        """The maximal number of ranks."""
        return _PIDS // self.stride


def stride_for(inputs: list[Input]) -> int:
    """Return how far apart the pids of two ranks are."""
    highest = max((max(item.ranks) for item in inputs), default=0)
    stride = _STRIDE
    while stride > 1 and (highest + 1) * stride > _PIDS:
        stride //= 10
    if (highest + 1) * stride > _PIDS or stride < 10:
        raise MergeError(f"rank {highest} does not fit: process ids end at {_PIDS - 1}; give ranks below {_PIDS // 10}")
    return stride


def passes(item: Input, stride: int) -> bool:
    """Return True if pids, tids, ids and names of a merged trace can stay as they are in a separate unit."""
    ranks = item.rank_of_pid
    return item.kind == "merged" and isinstance(ranks, RankOfPid) and ranks.stride == stride


def lay_out(inputs: list[Input]) -> Layout:
    """Lay out a merge."""
    stride = stride_for(inputs)
    count = _PIDS // stride
    taken: dict[int, int] = {}
    namespaces = [-1] * len(inputs)
    moved: list[dict[int, int]] = [{} for _ in inputs]
    prefixes = [""] * len(inputs)
    for number, item in enumerate(inputs):
        if item.kind == "merged":
            moved[number] = _keep(item, taken, count)
    for number, item in enumerate(inputs):
        if item.kind != "merged":
            place = taken.get(item.rank, 0)
            taken[item.rank] = place + 1
            namespaces[number] = namespace_of(item.rank, place, count)
            prefixes[number] = f"{namespaces[number] * 10**10}:" if place else ""
    ranks = sorted({rank for item in inputs for rank in item.ranks})
    return Layout(
        stride=stride,
        ranks=consecutive(ranks),
        places={str(rank): taken[rank] for rank in ranks if taken.get(rank, 1) != 1},
        units=units_of(inputs),
        namespaces=namespaces,
        moved_namespaces=moved,
        prefixes=prefixes,
    )


def _keep(item: Input, taken: dict[int, int], count: int) -> dict[int, int]:
    """Reserve the namespaces of an earlier merge; return other numbers for those that are taken."""
    header = item.head().header
    moved: dict[int, int] = {}
    if not isinstance(item.rank_of_pid, RankOfPid):  # they were numbered by input
        inputs = header[MERGED_KEY].get("inputs")
        first = taken.get(item.rank, 0)
        for number in range(len(inputs) if isinstance(inputs, list) else 1):
            moved[number] = namespace_of(item.rank, first + number, count)
        taken[item.rank] = first + max(len(moved), 1)
        return moved
    places = _places(header)
    before = _PIDS // item.rank_of_pid.stride
    for rank in sorted(item.ranks):
        first, needed = taken.get(rank, 0), places.get(str(rank), 1)
        for place in range(needed):
            old, new = namespace_of(rank, place, before), namespace_of(rank, first + place, count)
            if old != new:
                moved[old] = new
        taken[rank] = first + needed
    return moved


def _places(header: dict[str, Any]) -> dict[str, int]:
    found = merge_decisions(header).get("places")
    return (
        {rank: places for rank, places in found.items() if type(places) is int and 0 < places < 10**6}
        if isinstance(found, dict)
        else {}
    )


def units_of(inputs: list[Input]) -> list[list[int]]:
    """Return the inputs by number, together those that share a rank, in the order of their first."""
    unit_of = list(range(len(inputs)))

    def find(number: int) -> int:
        while unit_of[number] != number:
            number = unit_of[number]
        return number

    first_of: dict[int, int] = {}
    for number, item in enumerate(inputs):
        for rank in item.ranks:
            one, other = sorted((find(number), find(first_of.setdefault(rank, number))))
            unit_of[other] = one
    units: dict[int, list[int]] = {}
    for number in range(len(inputs)):
        units.setdefault(find(number), []).append(number)
    return list(units.values())


def namespace_of(rank: int, place: int, ranks: int) -> int:
    """Return the number of the namespace of an input; it does not depend on the inputs of other ranks."""
    return rank * _PLACES + place if place < _PLACES else ranks * _PLACES + (place - _PLACES) * (ranks + 1) + rank


def namespace_of_collectives(ranks: int) -> int:
    """Return the number of the namespace of the arrows that a merge draws; no input has it."""
    return namespace_of(ranks, _PLACES, ranks)
