"""The hot path of recording, in C: see record.c."""

from collections.abc import Callable, Iterator
from typing import Any

class Records:
    """A sequence with the interface of the flat list of records (see `tracekit.events`). It keeps each record in 32 bytes.

    The entries are integers of 64 bits, except the values of a counter. Only whole records can be added and removed. A slice
    of whole records is also a `Records`; any other slice is a list. Thread-safe like a list, under the interpreter lock.

    Raises:
        TypeError: An entry is not an integer.
        OverflowError: An entry has more than 64 bits.
        ValueError: A record does not have four entries.
        BufferError: Another thread reads the records.
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
        """Remove and return at most this number of entries from the beginning; they count as held from now on."""

    max_rows: int
    """Maximum number of waiting records, including held ones; 0: no limit. Set by `RecordBuffer.limit`, like the next four."""
    max_bytes: int
    held_rows: int
    held_bytes: int
    keep_before: int
    waits: int
    """True if recording threads wait for room instead of losing the record."""
    refused_rows: int
    """Number of records that were refused because of ``max_rows``."""
    refused_bytes: int
    """Number of records that were refused because of ``max_bytes``."""

    def is_full(self) -> bool:
        """Return True if another record is refused."""

    def size_bytes(self) -> int:
        """Return the approximate memory of the records."""

    def count_kind(self, kind: int, /) -> int:
        """Return the number of records of a kind."""

    def places(self, kind: int, other: int = ..., /) -> list[int]:
        """Return the indices of the records of one or two kinds."""

    def odd_counters(self) -> list[int]:
        """Return the indices of the counters with other values than finite numbers below 2**63, or keys other than text."""

    def earliest(self) -> int:
        """Return the earliest time. Raise ValueError without records."""

    def has_start(self, since: int, track: int, /) -> bool:
        """Return True if a slice or an instant of this track starts at or after a time."""

    def find(self, start: int, track: int, /) -> int | None:
        """Return the index of the first slice with this start and track."""

    def overlapping(self, opened: list[int], /) -> set[int]:
        """Return the tracks on which slices overlap and do not nest; see `Lanes`. Releases the interpreter lock.

        Args:
            opened: Records of slices that come after these, in the order in which they end.
        """

class Encoder:
    """Writes the lines of events of one process. Use it from one thread at a time (RuntimeError otherwise)."""

    def __init__(self, pid: int, /) -> None: ...
    def add_label(self, named: bytes, tail: bytes, /) -> None:
        """Add the label of the next number: the text after ``"name":``, and the text after the training time."""

    def add_track(self, tid: int, /) -> None:
        """Add the track of the next number."""

    def make_async(self, member: bytes, /) -> None:
        """Make the last added track one of async slices.

        Args:
            member: ``"id2":{...},`` for the lines of its slices, up to 31 bytes.
        """

    def encode(
        self,
        records: Records,
        shift_ns: int,
        since: tuple[int, ...],
        moments: tuple[bytes, ...],
        dumps: Callable[[Any], bytes],
        encode_value: Callable[[Any], bytes],
        /,
    ) -> bytes | None:
        """Encode records. Releases the interpreter lock meanwhile.

        Args:
            records: The records.
            shift_ns: Added to their times.
            since: The first moment of each training time, in order.
            moments: The text of each training time in the arguments of events.
            dumps: Encodes the values of a counter, as `orjson.dumps` does.
            encode_value: Encodes values that ``dumps`` rejects or reports unlike a trace: NaN, long texts, backslashes.

        Returns:
            The lines, or None if Python must encode them.
        """

class MarkerBase:
    """The members of a marker that each event needs; the base of `Marker`."""

class BufferBase:
    """The members of a buffer that each event needs; the base of `RecordBuffer`."""

class BatchesBase:
    """The members of `Batches` that each step needs; its base."""

    buffer: Any
    expected: list[Any]
    has_begun: bool
    is_plain: bool
    is_posting: bool
    is_recorded: bool
    label: int
    log: list[Any]
    posted: Any
    start_ns: int
    timestamp: Any
    track: int

    def end_plain(self, samples: object, tokens: object, /) -> bool:
        """End the batch and expect the next one, if ``is_plain`` allows it.

        Returns:
            False, and nothing has changed, if Python must do it: a count is not an int of at least 0, a sum has more than
            64 bits, the buffer has no room, or the writer is late or posts start hooks.
        """

class ProfilerBase:
    """The members of a profiler for looking up a marker by its name; the base of `Profiler`."""

def give_lookup(profilers: type[ProfilerBase], /) -> None:
    """Put a ``marker`` method in C into a class of profilers.

    It passes unknown calls to the Python method, which becomes ``_marker_in_python``.
    """

def give_methods(state: int, markers: type[MarkerBase], /) -> None:
    """Put methods into a class of markers for its `MarkerState`: IDLE, RECORDING (also behind shared markers) or SHARED."""

def forget_threads() -> None:
    """Make every thread look up its track again."""
