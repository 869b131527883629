"""Input: one file to merge, with its rank, processes and clock.

The header and metadata of a trace take kilobytes, those of a thousand traces tens of MB. A few numbers stay in memory, the rest
goes to a scratch file.
"""

from __future__ import annotations

import os
import re
from collections import deque
from contextlib import closing
from sys import intern
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.errors import MergeError
from tracekit.formats.merged_head import merge_decisions
from tracekit.formats.rank_trace import (
    CLOCK_OFFSET_EVENT,
    CLOCK_STEP_EVENT,
    COMPOSER_SYNC_ERROR_EVENT,
    COMPOSER_SYNC_EVENT,
)
from tracekit.formats.trace_event import decode_dict, decode_text
from tracekit.formats.trace_stream import open_trace
from tracekit.storage import basename, is_remote, modified_ns, printable_name, size_bytes
from tracekit.structs import Struct, astuple, field, replace
from tracekit.traces.process_identity import IDENTITY_KEYS, ProcessIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracekit.formats.xprof import ProfileStart
    from tracekit.merge.execute.scratch import ScratchStore
    from tracekit.traces.labels import Labels
    from tracekit.traces.process_identity import KnownProcess

_KIND_ORDER: Final = {"tracekit": 0, "torch": 1, "chrome": 2, "flight recorder": 2, "xprof": 2, "merged": 3}
_CLOCK_WORDS: Final = {"tracekit": (b'"tracekit_clock_',), "chrome": (b'"clock_sync_',)}
_MAX_US: Final = 2**62 // 1000
_TIMES: Final = re.compile(rb'"ts"\s*:\s*"?(\d+)')
_MAX_TIME_BYTES: Final = 64


class FileStamp(NamedTuple):
    """A file at one moment, to detect a later change; all fields are 0 if nothing is known.

    The inode of a remote file is 0.
    """

    size_bytes: int = 0
    modified_ns: int = 0
    inode: int = 0

    @property
    def limit_bytes(self) -> int | None:
        """The size to read, since a trace that is still recorded grows meanwhile. None reads all."""
        return self.size_bytes or None

    def differs(self, now: FileStamp) -> bool:
        """Return True if a file was replaced or rewritten since; it may have grown."""
        is_other = self.inode != now.inode or now.size_bytes < self.size_bytes
        is_rewritten = now.size_bytes == self.size_bytes and now.modified_ns != self.modified_ns
        return self.size_bytes > 0 and (is_other or is_rewritten)


def stamp_of(path: str) -> FileStamp:
    """Return the current stamp of a file."""
    if is_remote(path):
        return FileStamp(size_bytes(path) or 0, modified_ns(path) or 0)
    try:
        found = os.stat(path)  # noqa: PTH116 - a thousand of them
    except OSError:
        return FileStamp()
    return FileStamp(found.st_size, found.st_mtime_ns, found.st_ino)


class Head(NamedTuple):
    """The header of an input, and its processes."""

    # The keys next to ``traceEvents`` of an earlier merge; only ``distributedInfo`` of another input.
    header: dict[str, Any]
    # The parts of header and metadata that the merged trace keeps, as JSON; empty for an earlier merge.
    kept: tuple[bytes, ...]
    # The name, label and category of the processes that were seen, by ``pid``.
    processes: dict[Any, tuple[str | None, str, bytes]]


class ClockEvents(NamedTuple):
    """Clock events of one input."""

    offsets: Sequence[dict[str, Any]] = ()  # the ``args`` of each measurement of another rank's clock, in a rank trace
    # Steps of the wall clock in ns, each with its monotonic time, in a rank trace.
    steps: Sequence[tuple[int, int]] = ()
    # Time at which a rank left each of Composer's barriers, in us since the epoch, and the error bound in us.
    barriers: Sequence[tuple[int, ...]] = ()


class Input(Struct):
    """One input of a merge, as `tracekit.merge.scan.probe.probe` finds it. It can be pickled until `keep` is called."""

    path: str
    shown: str  # the path without secrets
    # "tracekit" (a rank trace), "torch" (torch.profiler), "merged" (an earlier merge), "xprof" (XLA's profiler, as of
    # JAX), "flight recorder" (of torch), "chrome" (anything else).
    kind: str
    form: str  # "array" or "object", or the form of a file that is not JSON
    stamp: FileStamp
    whole: bool  # True if all of the file was read, so that the times are exact
    has_end: bool
    digest: int
    bytes_read: int
    companions: tuple[str, ...]  # names of further trace files of the same process
    composer_ranks: tuple[int, ...]  # the ranks that a trace of Composer states; more than one in Composer's own merge
    profile: ProfileStart | None  # start and process of a trace of XLA's profiler; None for others
    # The base of the times of the file, ns since the epoch: 0 for epoch times, None if it is unknown.
    base_ns: int | None
    generation: str  # description of the times in the file, for the report
    first_ns: int | None  # the earliest valid time that was seen, in the file's own time; None when no event has a time
    highest_ns: int | None
    # The identity of the process that tracekit wrote into a rank trace or a torch trace, or that a trace of XLA's
    # profiler states. Only keys that distinguish processes, clocks and hosts.
    identity: dict[str, Any]
    host: str | None  # the host's name, if the file states it
    rank_inside: tuple[int, str] | None  # see `tracekit.traces.inputs.rank_inside`
    labels: Labels  # the parallelism labels of that rank
    # Backend and size of the distributed run; None where the header has no ``distributedInfo``.
    run: dict[str, Any] | None
    devices: tuple[bytes, ...]  # the entries of ``deviceProperties``, as JSON
    # The real process ids that were seen, each with the name of the process.
    named_pids: tuple[tuple[int, str | None], ...]
    rank_of_pid: Mapping[Any, int]
    header_left_out: tuple[str, ...]
    _head: Head | tuple[int, int]
    rank: int = -1
    rank_source: str = ""
    processes: dict[int, KnownProcess] = field(default_factory=dict)
    # For an earlier merge that is merged with further inputs of its ranks, what its inputs say about themselves: (rank,
    # kind, JSON).
    tables: list[tuple[int, str, bytes]] = field(default_factory=list)
    passes: bool = False  # True for an earlier merge that keeps its pids, tids, ids and names
    unwanted_ranks: frozenset[int] = frozenset()
    _clock_events: ClockEvents | None = None
    _store: ScratchStore | None = None

    @property
    def name(self) -> str:
        """Its printable name, without folders."""
        return printable_name(self.path)

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """The first and the last start of an event in ns since the epoch, or in its own time if its clock is unknown."""
        base_ns, first_ns = self.base_ns or 0, self.first_ns
        return None if first_ns is None else (base_ns + first_ns, base_ns + max(first_ns, self.highest_ns or first_ns))

    @property
    def start_ns(self) -> int | None:
        """Time of the first event in ns since the epoch. None if the file's clock is unknown or it has no times."""
        return None if self.base_ns is None or self.first_ns is None else self.base_ns + self.first_ns

    def keep(self, store: ScratchStore) -> Input:
        """Move the head to a scratch file, and share equal strings with other inputs. Return the input."""
        self._store = store
        self._head = store.put(tuple(self._head))
        self.devices = store.one_of_equals(self.devices)
        self.identity = {key: _shared(value) for key, value in self.identity.items()}
        self.host = _shared(self.host)
        self.named_pids = tuple((pid, _shared(name)) for pid, name in self.named_pids)
        self.header_left_out = tuple(map(intern, self.header_left_out))
        return self

    def head(self) -> Head:
        """Return the header, and the processes. Not in a worker that rewrites."""
        if isinstance(self._head, Head):
            return self._head
        assert self._store is not None
        return Head(*self._store.get(self._head))

    def __reduce__(self) -> tuple[type[Input], tuple[Any, ...]]:
        # The scratch file stays in its process.
        return Input, astuple(replace(self, _store=None))

    def check_unchanged(self) -> None:
        """Raise MergeError if the file is not what it was when it was scanned; it may have grown."""
        if self.stamp.differs(stamp_of(self.path)):
            raise self.changed()

    def changed(self) -> MergeError:
        """Return the error for a file that is not what it was when it was scanned."""
        return MergeError(f"{self.shown}: the file changed while it was merged; merge it again")

    def read_end(self) -> None:
        """Read a trace to its end if the scan has not seen its last events, and set its latest time."""
        if not self.has_end:
            with closing(open_trace(self.path, self.stamp.limit_bytes)) as stream:
                deque(self.note_end(iter(stream.read, b"")), maxlen=0)

    def note_end(self, pieces: Iterator[bytes], progress: Callable[[int], None] | None = None) -> Iterator[bytes]:
        """Yield the pieces of the whole trace, and set its latest time, to the microsecond, at the end."""
        last: deque[bytes] = deque(maxlen=2)
        tail, size_bytes = b"", 0
        for piece in pieces:
            size_bytes += len(piece)
            text = tail + piece  # a time may lie across the end of a piece
            if b'"ts"' in text:  # keys of any length may follow the events
                last.append(text)
            tail = text[-_MAX_TIME_BYTES:]
            if progress is not None:
                progress(size_bytes)
            yield piece
        self.bytes_read = max(self.bytes_read, size_bytes)
        if not self.has_end:
            self.has_end = True
            times = [time for text in last for time in _TIMES.findall(text)]
            latest_ns = (max(map(int, times)) + 1) * 1000 if times else 0
            self.highest_ns = max(latest_ns, self.highest_ns or 0) or None

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks of its events."""
        if self.kind != "merged":
            return frozenset({self.rank})
        return frozenset(self.rank_of_pid.values()) - self.unwanted_ranks or frozenset({self.rank})

    def rank_of(self, pid: Any) -> int:
        """Return the rank of a process, by its pid in the file."""
        return self.rank_of_pid.get(pid, self.rank)

    @property
    def names_hosts(self) -> bool:
        """True if the host of any of its processes is known."""
        if self.host or any(known.host for known in self.processes.values()):
            return True
        return self.kind == "merged" and merge_decisions(self.head().header).get("hosts") is True

    @property
    def pids(self) -> frozenset[int]:
        """The real process ids that it recorded."""
        return frozenset(pid for pid, _ in self.named_pids)

    @property
    def clock_events(self) -> ClockEvents:
        """Its clock events. The first use reads them from the file."""
        if self._clock_events is None:
            has_any = self.kind == "tracekit" or self.composer_ranks
            self._clock_events = _read_clock_events(self.path, self.kind) if has_any else ClockEvents()
        return self._clock_events

    @property
    def order(self) -> tuple[Any, ...]:
        """The sort key of the output; it does not depend on the order of the arguments."""
        start_ns = self.start_ns or self.first_ns or 0
        return self.rank, _KIND_ORDER[self.kind], start_ns, basename(self.path), self.path

    def process_identity(self, pid: int) -> ProcessIdentity:
        """Return the identity of a process, by its pid as it ran: of a rank trace or a trace of torch."""
        own: dict[str, Any] = {key: self.identity[key] for key in IDENTITY_KEYS if key in self.identity}
        if self.host is not None:
            own.setdefault("host", self.host)
        clock = self.identity.get("clock")
        wall_ns = clock.get("wall_ns") if isinstance(clock, dict) else None
        began_ns = max(wall_ns if isinstance(wall_ns, int) else self.start_ns or 0, 0)
        name = dict(self.named_pids).get(pid) or ""
        companions = frozenset(map(basename, self.companions))
        return ProcessIdentity(self.rank, pid, own, name, self.kind == "tracekit", began_ns, companions, self.shown)


def _read_clock_events(path: str, kind: str) -> ClockEvents:
    from tracekit.traces.collectives.search import find_events  # most merges do not need it

    offsets: list[dict[str, Any]] = []
    steps: list[tuple[int, int]] = []
    numbers: dict[str, list[int]] = {COMPOSER_SYNC_EVENT: [], COMPOSER_SYNC_ERROR_EVENT: []}
    for event in find_events(path, _CLOCK_WORDS[kind]):
        name, args = decode_text(event.name), decode_dict(event.args)
        if event.ph != "M":
            continue
        if name == CLOCK_OFFSET_EVENT:
            offsets.append(args)
        elif name == CLOCK_STEP_EVENT:
            step_ns, monotonic_ns = args.get("step_ns"), args.get("monotonic_ns")
            if isinstance(step_ns, int) and isinstance(monotonic_ns, int):
                steps.append((step_ns, monotonic_ns))
        elif name in numbers and type(args.get("value")) is int and 0 <= args["value"] < _MAX_US:
            numbers[name].append(args["value"])
    return ClockEvents(offsets, steps, list(zip(*numbers.values(), strict=False)))


def _shared(value: Any) -> Any:
    """Return one object for equal strings: the ranks of a host have many of them in common."""
    return intern(value) if type(value) is str else value
