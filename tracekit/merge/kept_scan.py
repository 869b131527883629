"""What a merge keeps of a first pass: a few numbers in memory, everything else on a shelf until it is its turn.

A trace has dozens of threads, names and declared devices; a thousand traces of ranks would take tens of MB for what is
needed once, when the input is planned, described or rewritten.
"""

from __future__ import annotations

from collections import Counter
from sys import intern
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.formats.kineto import rank_of_header
from tracekit.formats.losses import Accounts
from tracekit.formats.rank_trace import COMPOSER_RANK_EVENT
from tracekit.formats.stack_frames import STACK_FRAMES
from tracekit.merge.clocks.kept_collectives import KeptCollectives
from tracekit.merge.identities import IDENTITY_KEYS
from tracekit.merge.told import kept_of_header

if TYPE_CHECKING:
    from tracekit.collectives.parts import Collective
    from tracekit.formats.trace_reader import Finding
    from tracekit.merge.clocks.kept_collectives import KeptByRank
    from tracekit.merge.input_scan import InputScan, ProcessScan
    from tracekit.merge.plain_runs import PlainRuns
    from tracekit.merge.shelf import Shelf

__all__ = ["Findings", "Head", "KeptScan"]

_TOLD: Final = (*IDENTITY_KEYS, "clock")
_PHASES: Final[dict[tuple[str, ...], tuple[str, ...]]] = {}
_MOST_PHASES: Final = 1000


class Head(NamedTuple):
    """What an input says about itself: see `InputScan`."""

    header: dict[str, Any]
    metadata: dict[str, Any]


class Findings(NamedTuple):
    """What was found broken, and what the file tells of losses: see `InputScan`."""

    repairs: list[Finding]
    drops: list[Finding]
    accounts: Accounts


class KeptScan:
    """What the first pass found out about one input: see `InputScan` for what is not said here.

    What is a method or can be set is read from the shelf, and written to it.

    Attributes:
        identity: What tracekit wrote about the process, in a rank trace or (by its torch source) into a torch trace; of a
            trace of XLA's profiler, what that or tracekit tells. Only what processes, clocks and hosts are told apart by.
        own_rank: The rank that ``metadata`` states.
        composer_ranks: The ranks that a trace of Composer states; more than one in Composer's own merge.
        stated_rank: The rank that the header, or Composer's metadata, states, and the key that says so.
        host_name: Kineto's name of the host.
        named_pids: The real process ids that it recorded, each with the name of the process.
        collectives: Some collectives of each rank of an earlier merge; those of any other input under None.
        process_count: How many processes there are, with those that are only declared.
        has_stack_frames: Whether the header has a table of stack frames.
        header_left_out: What the header says and the merged trace does not keep.
    """

    __slots__ = (
        "_clocks", "_counts", "_findings", "_head", "_phases", "_shelf", "_tracks", "base_ns", "bytes_read",
        "collectives", "companions", "composer_ranks", "epoch_lowest_ns", "form", "generation", "has_stack_frames",
        "header_left_out", "highest_ns", "host_name", "identity", "kind", "lowest_ns", "named_pids", "own_rank", "path",
        "process_count", "profile", "stated_rank",
    )  # fmt: skip

    def __init__(self, scan: InputScan, shelf: Shelf) -> None:
        self._shelf = shelf
        self.path, self.kind, self.form, self.generation = scan.path, scan.kind, scan.form, scan.generation
        self.lowest_ns, self.highest_ns, self.epoch_lowest_ns = scan.lowest_ns, scan.highest_ns, scan.epoch_lowest_ns
        self.base_ns, self.bytes_read, self.profile = scan.base_ns, scan.bytes_read, scan.profile
        self.companions = tuple(scan.companions)
        if len(_PHASES) > _MOST_PHASES:
            _PHASES.clear()
        phases = tuple(scan.phases)
        self._phases, self._counts = _PHASES.setdefault(phases, phases), tuple(scan.phases.values())
        own = scan.header.get("tracekit")
        told = scan.metadata or (own if scan.kind == "torch" and isinstance(own, dict) else {})
        if scan.profile is not None:
            told = scan.profile.identity
        self.identity = {key: _shared(told[key]) for key in _TOLD if key in told}
        rank = scan.metadata.get("rank")
        self.own_rank: int | None = rank if isinstance(rank, int) else None
        self.composer_ranks = scan.composer_ranks
        self.stated_rank = rank_of_header(scan.header)
        if self.stated_rank is None and len(scan.composer_ranks) == 1:
            self.stated_rank = scan.composer_ranks[0], COMPOSER_RANK_EVENT
        self.host_name = _shared(scan.header.get("host_name"))
        self.named_pids = _named_pids(scan, self.identity.get("pid"))
        self.process_count = len(scan.processes)
        self.has_stack_frames = STACK_FRAMES in scan.header
        self.header_left_out = () if scan.kind == "merged" else tuple(map(intern, kept_of_header(scan.header)[1]))
        self._head = shelf.put(Head(scan.header, scan.metadata))
        self._tracks = shelf.put((scan.processes, scan.plain))
        clocks = scan.clock_offsets, scan.clock_steps, scan.barriers
        self._clocks = shelf.put(clocks) if any(clocks) else None
        self.collectives = self.put_collectives(scan.collectives)
        findings = Findings(scan.repairs, scan.drops, scan.accounts)
        self._findings = None if findings == _NOTHING_FOUND else shelf.put(findings)

    @property
    def phases(self) -> Counter[str]:
        """How many events of each phase were read."""
        return Counter(dict(zip(self._phases, self._counts, strict=True)))

    @property
    def phase_counts(self) -> list[tuple[str, int]]:
        """The same as pairs, in order."""
        return sorted(zip(self._phases, self._counts, strict=True))

    @property
    def events(self) -> int:
        """How many events were read."""
        return sum(self._counts)

    @property
    def start_ns(self) -> int | None:
        """When the first event happens, ns since the epoch; None when the file's clock is unknown or it holds no times."""
        if self.base_ns is None:
            return None
        lowest = self.epoch_lowest_ns if self.base_ns == 0 else self.lowest_ns
        return None if lowest is None else self.base_ns + lowest

    def head(self) -> Head:
        """Return what the file says about itself."""
        found: Head = self._shelf.get(self._head)
        return found

    def findings(self) -> Findings:
        """Return what is broken or lost."""
        found: Findings = _NOTHING_FOUND if self._findings is None else self._shelf.get(self._findings)
        return found

    def clock_offsets(self) -> list[dict[str, Any]]:
        """Return what a rank trace says of another rank's clock."""
        found: list[dict[str, Any]] = [] if self._clocks is None else self._shelf.get(self._clocks)[0]
        return found

    def clock_steps(self) -> list[tuple[int, int]]:
        """Return by how many ns its wall clock was set, and when on the monotonic clock."""
        found: list[tuple[int, int]] = [] if self._clocks is None else self._shelf.get(self._clocks)[1]
        return found

    def barriers(self) -> list[tuple[int, int]]:
        """Return when this rank left each of Composer's barriers, us since the epoch, and the bound in us."""
        found: list[tuple[int, int]] = [] if self._clocks is None else self._shelf.get(self._clocks)[2]
        return found

    def put_collectives(self, collectives: dict[int | None, list[Collective]]) -> KeptByRank:
        """Put collectives aside, by rank; returns what they are read with."""
        return tuple((rank, KeptCollectives(found, self._shelf)) for rank, found in collectives.items())

    def tracks(self) -> tuple[dict[Any, ProcessScan], PlainRuns]:
        """Return the processes, and which runs need not be decoded again."""
        found: tuple[dict[Any, ProcessScan], PlainRuns] = self._shelf.get(self._tracks)
        return found

    def put_processes(self, processes: dict[Any, ProcessScan]) -> None:
        """Put other processes in their place."""
        self._tracks = self._shelf.put((processes, self.tracks()[1]))


_NOTHING_FOUND: Final = Findings([], [], Accounts())


def _named_pids(scan: InputScan, own: Any) -> tuple[tuple[int, str | None], ...]:
    processes = scan.processes
    if isinstance(own, int):
        return ((own, processes[own].name if own in processes else None),)
    if scan.kind == "xprof":  # 701, 1, 2 ... on every host
        return ()
    return tuple(
        (raw, _shared(process.name))
        for raw, process in processes.items()
        if isinstance(raw, int) and raw > 0 and process.used and process.label in ("", "CPU") and process.threads
    )


def _shared(value: Any) -> Any:
    """Return one object for equal texts: ranks of a host say the same of it."""
    return intern(value) if type(value) is str else value
