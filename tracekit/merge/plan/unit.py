"""MergePlan: the decisions that a merge makes before it writes, and the units that it divides the work into.

A unit is all inputs of one group of ranks, which are rewritten one after the other into one part of the output.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tracekit.formats.merged_head import Accounts, truncate_header
from tracekit.formats.trace_event import encode_json
from tracekit.merge.input import Head
from tracekit.storage import printable_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracekit.formats.json.window import Finding
    from tracekit.formats.merged_head import RankClock
    from tracekit.merge.align.clock_map import ClockMap
    from tracekit.merge.align.collective_sets import AddedEvent
    from tracekit.merge.align.placement import Placement
    from tracekit.merge.input import Input
    from tracekit.merge.plan.layout import Layout
    from tracekit.merge.plan.titles import Process
    from tracekit.merge.rank_order import RankOrder
    from tracekit.merge.selection.event_filter import EventFilter


class Part(Protocol):
    """The form of the events of a unit in the output.

    An output is a head, which describes the whole merge, then the events, then a tail. A part knows nothing of the others and
    can be pickled, so parts may be written anywhere and at any time, as long as they are joined in order.
    """

    is_text: bool
    """Whether the output is the text of the events itself, which can be patched, and has a table of stack frames."""

    def encoder(self, folder: str) -> PartEncoder:
        """Return a new encoder; ``folder`` is that of scratch files."""


class PartEncoder(Protocol):
    """Encodes the events of a unit."""

    def encode(self, events: bytes) -> bytes:
        """Return what the next events add to the output."""

    def close(self, processes: Sequence[Process], closing: Callable[..., bytes]) -> Iterable[bytes]:
        """Return what follows the events of the unit. For ``closing`` see `UnitRewriter.closing`."""


@dataclass(frozen=True, slots=True)
class UnitInput:
    """An input and the facts that its rewriting needs. It can be pickled.

    Attributes:
        warp: The correction of a drifting clock, in the time of the file.
        namespace: The number of the namespace of its ids; -1 keeps them.
        moved_namespaces: New numbers for namespaces of an earlier merge that others use.
        start_ns: When it begins in the merged trace, about.
        tables: The description that the merged trace keeps of each input: (rank, kind, JSON).
    """

    number: int
    source: Input
    shift_ns: int
    warp: ClockMap | None
    namespace: int
    prefix: str
    moved_namespaces: dict[int, int]
    start_ns: int
    tables: list[tuple[int, str, bytes]] = field(default_factory=list)
    chosen: EventFilter | None = None
    added: Sequence[AddedEvent] = ()
    clocks: Sequence[RankClock] = ()

    @property
    def id_args(self) -> bool:
        """True if ``correlation`` and ``External id`` in ``args`` tie events together."""
        return self.source.kind in ("torch", "merged")


@dataclass(frozen=True, slots=True)
class UnitJob:
    """A unit and how it is written. It can be pickled.

    Attributes:
        output: The name of the output, which says whether it is packed.
        args: Which arguments are kept: 0 all, 1 ids, 2 none.
        snap_ns: The maximum overlap on a GPU stream that is removed by shortening the earlier slice.
    """

    inputs: list[UnitInput]
    stride: int
    part: Part
    output: str
    args: int = 0
    ranks: dict[int, tuple[int, str]] = field(default_factory=dict)
    snap_ns: int = 0


@dataclass(slots=True)
class InputResult:
    """The counts and findings of one rewritten input.

    ``read`` and ``written`` count events by phase, the others by reason or kind.

    Attributes:
        stack_frames: The stack frames that the events name: the JSON text of each by its id in the merged trace.
    """

    read: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, int] = field(default_factory=dict)
    repairs: list[Finding] = field(default_factory=list)
    drops: list[Finding] = field(default_factory=list)
    accounts: Accounts = field(default_factory=Accounts)
    stack_frames: dict[str, bytes] = field(default_factory=dict)
    bytes_read: int = 0
    clock_events: int = 0


@dataclass(slots=True)
class UnitResult:
    """The result of rewriting a unit.

    Attributes:
        twice: True if the unit was rewritten twice, as its output could not be patched.
    """

    inputs: dict[int, InputResult] = field(default_factory=dict)
    titles: dict[int, list[str]] = field(default_factory=dict)
    moved: int = 0
    added: int = 0
    twice: bool = False
    snapped: int = 0
    largest_snap_ns: int = 0


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The plan of a merge.

    Attributes:
        inputs: In the order of the output.
        args: Which arguments are kept: 0 all, 1 ids, 2 none.
        snap_ns: The maximum overlap on a GPU stream that is removed by shortening the earlier slice.
    """

    inputs: list[Input]
    placement: Placement
    layout: Layout
    ranks: RankOrder
    filters: list[EventFilter | None]
    added: list[list[AddedEvent]]
    clocks: dict[int, list[RankClock]]
    args: int = 0
    snap_ns: int = 0

    def job(self, unit: list[int], part: Part, output: str) -> UnitJob:
        """Return the job of rewriting a unit."""
        ranks = {rank for number in unit for rank in self.inputs[number].ranks}
        shown = {rank: (self.ranks.places[rank], self.ranks.text(rank)) for rank in sorted(ranks)}
        inputs = list(map(self._input, unit))
        return UnitJob(inputs, self.layout.stride, part, output, self.args, shown, self.snap_ns)

    def _input(self, number: int) -> UnitInput:
        item, layout, placement = self.inputs[number], self.layout, self.placement
        head = Head({}, {}, {}) if item.passes else item.head()
        tables = item.tables
        if item.kind != "merged":
            tables = [(item.rank, item.kind, encode_json(_description(item, head)))]
        return UnitInput(
            number=number,
            source=item.with_head(Head({}, {}, head.processes)),
            shift_ns=placement.shifts_ns[number],
            warp=placement.warps[number],
            namespace=layout.namespaces[number],
            prefix=layout.prefixes[number],
            moved_namespaces=layout.moved_namespaces[number],
            start_ns=placement.time_ns(number, item.first_ns or 0),
            tables=tables,
            chosen=self.filters[number],
            added=self.added[number],
            clocks=self.clocks.get(number, ()),
        )


def _description(item: Input, head: Head) -> dict[str, Any]:
    header, left_out = truncate_header(head.header)
    return {
        "file": printable_name(item.path),
        "kind": item.kind,
        "rank": item.rank,
        "host": item.host,
        "header": header,
        "metadata": head.metadata,
        **({"header_left_out": left_out} if left_out else {}),
    }
