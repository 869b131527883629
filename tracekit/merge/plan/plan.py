"""MergePlan: the decisions that a merge makes before it writes, and the units that it divides the work into.

A unit is all inputs of one group of ranks, which are rewritten one after the other into one part of the output. Pids are
``rank * stride + 1, + 2 ...``. Each input has a namespace of ids that follows from its rank and its place within it, so that
merging in steps gives the ids of merging at once, for inputs of different ranks.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from tracekit.errors import MergeError
from tracekit.formats.merged_head import MERGED_KEY, Accounts, RankOfPid, merge_decisions
from tracekit.formats.trace_event import Raw, encode_json
from tracekit.structs import Struct, field
from tracekit.wording import consecutive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracekit.formats.json.window import Finding
    from tracekit.formats.merged_head import RankClock
    from tracekit.merge.align.collective_sets import AddedEvent
    from tracekit.merge.align.domains import ClockMap
    from tracekit.merge.align.placement import Placement
    from tracekit.merge.plan.titles import Process, RankOrder
    from tracekit.merge.scan.input import Head, Input
    from tracekit.merge.selection.event_filter import EventFilter

_STRIDE: Final = 100_000
_PIDS: Final = 2**32

NAMESPACE: Final = 10**10
"""Ids of namespace n are moved by n * NAMESPACE: room for CUPTI's 32-bit ids, readable, and below 2**53 for 900,000."""

DIRECT_IDS: Final = NAMESPACE // 2
"""Ids from here on, and those that are not numbers, are numbered in the order in which they come, from here on."""

_PLACES: Final = 8  # how many inputs of a rank have ids below 2**53, for up to 112,000 ranks


class IdSpace(Struct, frozen=True):
    """Where the ids of an input go."""

    namespace: int = -1  # the number of its namespace; -1 keeps the ids
    prefix: str = ""  # the text before the ids of async events
    # New numbers for namespaces of an earlier merge that others use.
    moved: dict[int, int] = field(default_factory=dict)


class Layout(Struct, frozen=True):
    """The numbers of pids and ids, and the units."""

    stride: int  # the distance between the pids of two ranks
    ranks: list[tuple[int, int]]  # the ranks, as (first, last) of each row of them
    places: dict[str, int]  # the number of namespaces of ids of each rank with more than one, by the rank as text
    units: list[list[int]]  # the inputs by number, together those that share a rank
    ids: list[IdSpace]  # by input
    collective_flows: int = 0

    @property
    def rank_count(self) -> int:
        """The maximal number of ranks."""
        return _PIDS // self.stride


def stride_for(inputs: list[Input]) -> int:
    """Return how far apart the pids of two ranks are."""
    highest, stride = max((max(item.ranks) for item in inputs), default=0), _STRIDE
    while stride > 1 and (highest + 1) * stride > _PIDS:
        stride //= 10
    if (highest + 1) * stride > _PIDS or stride < 10:
        raise MergeError(f"rank {highest} does not fit: process ids end at {_PIDS - 1}; give ranks below {_PIDS // 10}")
    return stride


def passes(item: Input, stride: int) -> bool:
    """Return True if pids, tids, ids and names of a merged trace can stay as they are in a separate unit."""
    if item.kind != "merged" or item.form == "pftrace":  # whose names are those of nested rows, without an order
        return False
    return isinstance(item.rank_of_pid, RankOfPid) and item.rank_of_pid.stride == stride


def lay_out(inputs: list[Input]) -> Layout:
    """Lay out a merge."""
    stride = stride_for(inputs)
    count = _PIDS // stride
    taken: dict[int, int] = {}
    ids: dict[int, IdSpace] = {}
    for number, item in enumerate(inputs):  # first, so that they keep their ids
        if item.kind == "merged":
            ids[number] = IdSpace(moved=_keep(item, taken, count))
    for number, item in enumerate(inputs):
        if item.kind != "merged":
            place = taken.get(item.rank, 0)
            taken[item.rank] = place + 1
            namespace = namespace_of(item.rank, place, count)
            ids[number] = IdSpace(namespace, f"{namespace * NAMESPACE}:" if place else "")
    ranks = sorted({rank for item in inputs for rank in item.ranks})
    places = {str(rank): taken[rank] for rank in ranks if taken.get(rank, 1) != 1}
    return Layout(stride, consecutive(ranks), places, units_of(inputs), [ids[number] for number in range(len(inputs))])


def _keep(item: Input, taken: dict[int, int], count: int) -> dict[int, int]:
    """Reserve the namespaces of an earlier merge; return other numbers for those that are taken."""
    header = item.head().header
    if not isinstance(item.rank_of_pid, RankOfPid):  # they were numbered by input
        inputs, first = header[MERGED_KEY].get("inputs"), taken.get(item.rank, 0)
        numbers = range(len(inputs) if isinstance(inputs, list) else 1)
        taken[item.rank] = first + max(len(numbers), 1)
        return {number: namespace_of(item.rank, first + number, count) for number in numbers}
    moved: dict[int, int] = {}
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
    stated = found if isinstance(found, dict) else {}
    return {rank: places for rank, places in stated.items() if type(places) is int and 0 < places < 10**6}


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


class Encoder(Protocol):
    """Encodes the events of a unit for an output that is not their text."""

    def encode(self, events: bytes) -> bytes:
        """Return what the next events add to the output."""

    def close(self, processes: Sequence[Process], tables: bytes) -> Iterable[bytes]:
        """Return what follows the events of the unit, with the tables for a further merge."""


class UnitInput(Struct, frozen=True):
    """An input and the facts that its rewriting needs. It can be pickled."""

    number: int
    source: Input
    # The name, label and category of the processes that were seen, by ``pid``; see `Head`.
    seen: dict[Any, tuple[str | None, str, bytes]]
    shift_ns: int
    warp: ClockMap | None  # the correction of a drifting clock, in the time of the file
    ids: IdSpace
    start_ns: int  # when it begins in the merged trace, about
    # The description that the merged trace keeps of each input: (rank, kind, JSON).
    tables: list[tuple[int, str, bytes]] = field(default_factory=list)
    chosen: EventFilter | None = None
    added: Sequence[AddedEvent] = ()
    clocks: Sequence[RankClock] = ()

    @property
    def id_args(self) -> bool:
        """True if ``correlation`` and ``External id`` in ``args`` tie events together."""
        return self.source.kind in ("torch", "merged")


class UnitJob(Struct, frozen=True):
    """A unit and how it is written. It can be pickled."""

    inputs: list[UnitInput]
    stride: int
    # Makes an encoder with scratch files in a folder; None for JSON, which can be patched, and has a table of stack
    # frames.
    make_encoder: Callable[[str], Encoder] | None
    output: str  # the name of the output, which says whether it is packed
    args: int = 0  # which arguments are kept: 0 all, 1 ids, 2 none
    ranks: dict[int, tuple[int, str]] = field(default_factory=dict)
    snap_ns: int = 0  # the maximum overlap on a GPU stream that is removed by shortening the earlier slice


class InputResult(Struct):
    """The counts and findings of one rewritten input.

    ``read`` and ``written`` count events by phase, the others by reason or kind.
    """

    read: dict[str, int] = field(default_factory=partial(defaultdict, int))
    written: dict[str, int] = field(default_factory=partial(defaultdict, int))
    dropped: dict[str, int] = field(default_factory=partial(defaultdict, int))
    repaired: dict[str, int] = field(default_factory=partial(defaultdict, int))
    left_out: dict[str, int] = field(default_factory=partial(defaultdict, int))
    repairs: list[Finding] = field(default_factory=list)
    drops: list[Finding] = field(default_factory=list)
    accounts: Accounts = field(default_factory=Accounts)
    # The stack frames that the events name: the JSON text of each by its id in the merged trace.
    stack_frames: dict[str, bytes] = field(default_factory=dict)
    bytes_read: int = 0
    clock_events: int = 0


class UnitResult(Struct):
    """The result of rewriting a unit."""

    inputs: dict[int, InputResult] = field(default_factory=dict)
    titles: dict[int, list[str]] = field(default_factory=dict)
    moved: int = 0
    added: int = 0
    twice: bool = False  # True if the unit was rewritten twice, as its output could not be patched
    snapped: int = 0
    largest_snap_ns: int = 0


class MergePlan(Struct, frozen=True):
    """The plan of a merge."""

    inputs: list[Input]  # in the order of the output
    placement: Placement
    layout: Layout
    ranks: RankOrder
    filters: list[EventFilter | None]
    added: list[list[AddedEvent]]
    clocks: dict[int, list[RankClock]]
    args: int = 0  # which arguments are kept: 0 all, 1 ids, 2 none
    snap_ns: int = 0  # the maximum overlap on a GPU stream that is removed by shortening the earlier slice

    def job(self, unit: list[int], make_encoder: Callable[[str], Encoder] | None, output: str) -> UnitJob:
        """Return the job of rewriting a unit."""
        ranks = {rank for number in unit for rank in self.inputs[number].ranks}
        shown = {rank: (self.ranks.places[rank], self.ranks.text(rank)) for rank in sorted(ranks)}
        inputs = list(map(self._input, unit))
        return UnitJob(inputs, self.layout.stride, make_encoder, output, self.args, shown, self.snap_ns)

    def _input(self, number: int) -> UnitInput:
        item, placement = self.inputs[number], self.placement
        head, tables = None if item.passes else item.head(), item.tables
        if head is not None and item.kind != "merged":
            tables = [(item.rank, item.kind, encode_json(_description(item, head)))]
        return UnitInput(
            number=number,
            source=item,
            seen={} if head is None else head.processes,
            shift_ns=placement.shifts_ns[number],
            warp=placement.warps[number],
            ids=self.layout.ids[number],
            start_ns=placement.time_ns(number, item.first_ns or 0),
            tables=tables,
            chosen=self.filters[number],
            added=self.added[number],
            clocks=self.clocks.get(number, ()),
        )


def _description(item: Input, head: Head) -> dict[str, Any]:
    header, metadata = map(Raw, head.kept)
    left_out = {"header_left_out": item.header_left_out} if item.header_left_out else {}
    names = {"file": item.name, "kind": item.kind, "rank": item.rank, "host": item.host}
    return {**names, "header": header, "metadata": metadata, **left_out}
