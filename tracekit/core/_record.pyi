"""What records pay for, in C: see record.c."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

class Records:
    """A sequence that looks like the flat list of records (see `tracekit.events`), and keeps each record in 32 bytes.

    The entries are integers of 64 bits, but for the values of a counter. Only whole records can be added and removed. A slice
    of whole records is `Records` too, any other a list. Thread-safe as a list is, under the interpreter lock.

    Raises:
        TypeError: An entry is no integer.
        OverflowError: One has more than 64 bits.
        ValueError: There are not four entries to each record.
        BufferError: Another thread reads them.
    """

    def __init__(self, entries: Any = (), /) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __delitem__(self, key: slice, /) -> None: ...
    def __add__(self, other: Any, /) -> Records: ...
    def __radd__(self, other: Any, /) -> Records: ...
    def __iadd__(self, entries: Any, /) -> Records: ...
    def extend(self, entries: Any, /) -> None:
        """Append records."""

    def index(self, value: Any, start: int = ..., stop: int = ..., /) -> int: ...
    def count(self, value: Any, /) -> int: ...
    def copy(self) -> list[Any]: ...
    def take(self, entries: int, /) -> Records:
        """Remove and return the first so many entries, or all where there are fewer; they count as held from now on."""

    max_rows: int
    """How many records may wait, those that are held included; 0: no limit. Set by `RecordBuffer.limit`, as the next four."""
    max_bytes: int
    held_rows: int
    held_bytes: int
    keep_before: int
    waits: int
    """Whether whoever records waits for room instead of being refused."""
    refused_rows: int
    """How many records were refused because of ``max_rows``."""
    refused_bytes: int
    """How many records were refused because of ``max_bytes``."""

    def is_full(self) -> bool:
        """Return whether another record is refused."""

    def size_bytes(self) -> int:
        """Return about how much memory the records take."""

    def count_kind(self, kind: int, /) -> int:
        """Return how many records are of a kind."""

    def places(self, kind: int, other: int = ..., /) -> list[int]:
        """Return the indices of the records of one or two kinds."""

    def odd_counters(self) -> list[int]:
        """Return the indices of the counters that hold something else than finite numbers below 2**63 by text."""

    def earliest(self) -> int:
        """Return the earliest time. Raises ValueError where there is none."""

    def has_start(self, since: int, track: int, /) -> bool:
        """Return whether a slice or an instant of this track starts at or after a time."""

    def find(self, start: int, track: int, /) -> int | None:
        """Return the index of the first record of this time and track that is no counter."""

    def overlapping(self, opened: list[int], /) -> set[int]:
        """Return the tracks on which slices overlap and do not nest; see `Lanes`. Releases the interpreter lock.

        Args:
            opened: Records of slices that come after these, in the order in which they end.
        """

class Encoder:
    """Writes the lines of events of one process. From one thread at a time (RuntimeError otherwise)."""

    def __init__(self, pid: int, /) -> None: ...
    def add_label(self, named: bytes, tail: bytes, /) -> None:
        """Add the label of the next number: what stands behind ``"name":``, and what behind the training time."""

    def add_track(self, tid: int, /) -> None:
        """Add the track of the next number."""

    def make_async(self, member: bytes, /) -> None:
        """Make the track that was added last one of async slices.

        Args:
            member: ``"id2":{...},``, of up to 31 bytes, as their lines have it.
        """

    def encode(
        self,
        records: Records,
        shift_ns: int,
        since: tuple[int, ...],
        moments: tuple[bytes, ...],
        encode_value: Callable[[Any], bytes],
        /,
    ) -> bytes | None:
        """Encode records. Releases the interpreter lock while it does.

        Args:
            records: The records.
            shift_ns: What to add to their times.
            since: From when on each training time holds, in order.
            moments: The training times, as they stand in arguments.
            encode_value: Encodes the values of a counter.

        Returns:
            The lines, or None when Python must encode them.
        """

class MarkerBase:
    """What of a marker is looked at for each event; the base of `Marker`."""

class BufferBase:
    """What of a buffer is looked at for each event; the base of `RecordBuffer`."""

class ProfilerBase:
    """What of a profiler is looked at for a marker by its name; the base of `Profiler`."""

def give_lookup(profilers: type[ProfilerBase], /) -> None:
    """Put a ``marker`` in C into a class of profilers.

    What it does not know, it asks of Python's, which becomes ``_marker_in_python``.
    """

def give_methods(state: Literal["idle", "recording", "shared"], markers: type[MarkerBase], /) -> None:
    """Put methods for a state of a marker into a class of markers. The class of "recording" is the one behind shared markers."""

def forget_threads() -> None:
    """Have every thread look up its track again."""
