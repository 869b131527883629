"""What the first pass over an input finds out: values that go from who scans to who plans, also between processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.losses import Accounts
from tracekit.formats.rank_trace import BASE_TIME_KEY
from tracekit.merge.lanes import Slices

if TYPE_CHECKING:
    from collections import Counter

    from tracekit.collectives.parts import Collective
    from tracekit.formats.trace_reader import Finding
    from tracekit.formats.xprof import ProfileStart
    from tracekit.merge.plain_runs import PlainRuns

__all__ = ["EPOCH_NS", "NAMED_METADATA", "InputScan", "ProcessScan", "ThreadScan"]

EPOCH_NS: Final = 10**18
"""Times from here on (September 2001) are ns since the epoch; smaller ones count from some start."""

NAMED_METADATA: Final = frozenset(
    {"process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"}
)
"""Metadata that the merge writes anew for every process and thread."""


@dataclass(slots=True)
class ThreadScan:
    """A thread, stream or other track of a process: its name and order as declared, and its slices."""

    name: str | None = None
    sort_index: int | None = None
    used: bool = False
    category: bytes = b""
    slices: Slices = field(default_factory=Slices)

    def __reduce__(self) -> tuple[Any, ...]:
        # In half the time that a pickle of names and values takes.
        return ThreadScan, (self.name, self.sort_index, self.used, self.category, self.slices)


@dataclass(slots=True)
class ProcessScan:
    """A ``pid`` of the input.

    Attributes:
        name: From ``process_name``.
        label: From ``process_labels``: "CPU", "GPU 3".
        used: Whether it has any event that is not metadata.
        threads: Its threads by ``tid`` as it stands in the file.
        thread_keys: What a ``tid`` stands for that an earlier merge has given: the original one, and which lane of it.
    """

    name: str | None = None
    label: str = ""
    sort_index: int | None = None
    used: bool = False
    threads: dict[Any, ThreadScan] = field(default_factory=dict)
    thread_keys: dict[Any, tuple[int | str, int]] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcessScan, (self.name, self.label, self.sort_index, self.used, self.threads, self.thread_keys)


@dataclass(slots=True)
class InputScan:
    """What the first pass found out about one input.

    Attributes:
        path: The file, as the user may see it.
        kind: "tracekit" (a rank trace), "torch" (torch.profiler), "merged" (an earlier merge), "xprof" (XLA's profiler, as of
            JAX), "flight recorder" (of torch), "chrome" (anything else).
        header: The keys beside ``traceEvents``.
        metadata: ``args`` of ``tracekit_metadata``, empty where there is none.
        companions: Names of further trace files of the same process.
        processes: By ``pid`` as it stands in the file. Spellings that mean the same (absent, null, 0) share one value.
        phases: How many events of each phase were read.
        lowest_ns: The earliest time, in the file's own time; None when no event has a time.
        highest_ns: The latest start.
        epoch_lowest_ns: The earliest of the times that count from the epoch, or None.
        decimals: Whether times have decimals.
        bytes_read: Size of the unpacked input.
        clock_offsets: ``args`` of what a rank trace says of another rank's clock.
        clock_steps: By how many ns its wall clock was set, and when on the monotonic clock.
        composer_ranks: The ranks that a trace of Composer states; more than one in Composer's own merge.
        barriers: When this rank left each of Composer's barriers, us since the epoch, and the bound in us.
        collectives: Some collectives of each rank of an earlier merge; those of any other input under None.
        plain: Which runs need not be decoded again.
        accounts: What it tells of losses while it was recorded.
        profile: Of a trace of XLA's profiler, when it began and whose it is; None for others.
    """

    path: str
    kind: str
    form: str
    header: dict[str, Any]
    metadata: dict[str, Any]
    companions: list[str]
    processes: dict[Any, ProcessScan]
    phases: Counter[str]
    lowest_ns: int | None
    highest_ns: int | None
    epoch_lowest_ns: int | None
    decimals: bool
    bytes_read: int
    plain: PlainRuns
    repairs: list[Finding]
    drops: list[Finding]
    accounts: Accounts = field(default_factory=Accounts)
    clock_offsets: list[dict[str, Any]] = field(default_factory=list)
    clock_steps: list[tuple[int, int]] = field(default_factory=list)
    composer_ranks: tuple[int, ...] = ()
    barriers: list[tuple[int, int]] = field(default_factory=list)
    collectives: dict[int | None, list[Collective]] = field(default_factory=dict)
    profile: ProfileStart | None = None

    @property
    def base_ns(self) -> int | None:
        """What the times of the file are relative to: ns since the epoch (0 for epoch times), None when it is unknown."""
        base = self.metadata.get(BASE_TIME_KEY, self.header.get(BASE_TIME_KEY))
        viztracer = self.header.get("viztracer_metadata")
        if base is None and isinstance(viztracer, dict):
            base = viztracer.get(BASE_TIME_KEY)
        if base is None and self.profile is not None:
            base = self.profile.start_ns
        if isinstance(base, str) and base.isdecimal():
            base = int(base)
        # Python-written files may say 1.7e18; a double holds that to 256 ns and Kineto's bases are whole seconds.
        if isinstance(base, float):
            base = round(base / 1e9) * 10**9
        if isinstance(base, int) and not isinstance(base, bool) and 0 < base < 2**63:
            return base
        return 0 if self.epoch_lowest_ns is not None else None

    @property
    def generation(self) -> str:
        """How the times of the file are written, in words for the report."""
        if self.base_ns is None:
            return "times without a base"
        if self.profile is not None and self.profile.start_ns == self.base_ns:
            return f"times relative to the start of the profile, from {self.profile.source}"
        if self.base_ns > 0:
            return f"times relative to {BASE_TIME_KEY}"
        return "epoch times with decimals" if self.decimals else "epoch times in whole microseconds"

    @property
    def start_ns(self) -> int | None:
        """When the first event happens, ns since the epoch; None when the file's clock is unknown or it holds no times."""
        base = self.base_ns
        if base is None:
            return None
        lowest = self.epoch_lowest_ns if base == 0 else self.lowest_ns
        return None if lowest is None else base + lowest
