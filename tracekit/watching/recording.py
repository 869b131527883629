"""WatchedProcess: what one process has recorded, in one file or in many, one after the other."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from tracekit.watching.files import TraceFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.watching.places import Part
    from tracekit.watching.tally import Tally, TallyResult

__all__ = ["WatchedProcess"]

_PACES: Final = 8
_REMEMBERED: Final = 8


class WatchedProcess:
    """The files of one process, read in the order of their times; see `TraceFile` and `Tally`.

    Args:
        make_tally: Makes a tally.

    Attributes:
        files: Its files, in order.
        tally: What they add up to.
        changed_ns: When a change was seen last, by the monotonic clock of this machine.
        served: The number of the look in which it was read last.
        runs: Whether its process ran on this machine when the last look began; None where that is not known.
        seen_alive: Whether it was seen running at all.
        vanished: Whether the file that was written is gone.
        whole: Whether it is read whole, as far as that can be, not its end only.
        result: What the tally says, if it was asked since the last change.
    """

    def __init__(self, make_tally: Callable[[], Tally]) -> None:
        self._make_tally = make_tally
        self.files: list[TraceFile] = []
        self.tally = make_tally()
        self.changed_ns = -1 << 62
        self.served = -1
        self.runs: bool | None = None
        self.seen_alive = False
        self.vanished = False
        self.whole = False
        self.result: TallyResult | None = None
        self._begun = False
        self._gone: deque[TraceFile] = deque(maxlen=_REMEMBERED)  # of which packed ones may come

    @property
    def newest(self) -> TraceFile:
        """The file that is written, or was written last."""
        return self.files[-1]

    @property
    def unread_bytes(self) -> int:
        """How much there is to read."""
        return sum(file.unread_bytes for file in self.files)

    @property
    def skipped_bytes(self) -> int:
        """How much was passed over."""
        return sum(file.skipped_bytes for file in self.files)

    @property
    def lost_events(self) -> int:
        """How many events its files say that they lack; the rule is that of `tracekit.formats.losses`."""
        summary = self.tally.accounts.summary
        if summary is not None:
            dropped = summary.get("dropped")
            counts = dropped.values() if isinstance(dropped, dict) else ()
            return sum(count for count in counts if isinstance(count, int) and not isinstance(count, bool))
        return max(self.tally.accounts.gap_events, sum(file.lost_events for file in self.files))

    @property
    def ended(self) -> bool:
        """Whether the recording says that it has ended."""
        return self.tally.accounts.summary is not None and self.newest.closed

    @property
    def pace_ns(self) -> int:
        """How long it takes to fill a file, on an object store, where it is there when it is full."""
        return max((file.entry.written_ns - file.from_ns for file in self.files[-_PACES:]), default=0)

    def tell(self) -> TallyResult:
        """Return what the tally says."""
        if self.result is None:
            self.result = self.tally.result()
        return self.result

    def add(self, file: TraceFile) -> None:
        """Take in a file that was found; of several, the earliest first."""
        self.vanished = False
        self.result = None
        self.files = [own for own in self.files if own.entry.path != file.entry.path]
        plain = next((own for own in [*self.files, *self._gone] if f"{own.entry.path}.gz" == file.entry.path), None)
        if plain is not None:
            file.go_on_from(plain)
            file.from_ns = plain.from_ns
            self.files = sorted([*(own for own in self.files if own is not plain), file], key=_begin)
            return
        if file.from_ns < 0:  # nothing is in it yet
            file.from_ns = self.newest.from_ns + 1 if self.files else file.head.start_ns
        self.files.append(file)
        self.files.sort(key=_begin)
        if self._begun and file is not self.newest:
            file.pass_over()  # it is older than what was read already

    def remove(self, file: TraceFile) -> None:
        """Note that a file is gone. The last one stays, so that it can be told of."""
        self.result = None
        self.vanished = file is self.newest
        self._gone.append(file)
        if len(self.files) > 1:
            self.files.remove(file)

    def begin_again(self) -> None:
        """Forget what was read, to read more of it."""
        self.tally = self._make_tally()
        self.result = None
        begins = [file.from_ns for file in self.files]
        self.files = [TraceFile(file.entry, file.head) for file in self.files]
        for file, begin in zip(self.files, begins, strict=True):
            file.from_ns = begin
        self._gone.clear()
        self._begun = False

    def keep_up(self, window_bytes: int, most_unread_bytes: int) -> None:
        """Pass over what is too much to read.

        Args:
            window_bytes: How much of the end is read then.
            most_unread_bytes: How much may be unread, once it was begun.
        """
        if self.unread_bytes <= (most_unread_bytes if self._begun else window_bytes):
            self._begun = True
            return
        self._begun = True
        left = window_bytes
        skipped = False
        for file in reversed(self.files):
            unread = file.unread_bytes
            if not unread:
                continue
            if left <= 0:
                file.pass_over()
                skipped = True
            elif unread > left:
                skipped = file.skip_to_last(left) or skipped
            left -= unread
        if skipped:
            self.tally.jump()

    def next_part(self) -> tuple[TraceFile, Part] | None:
        """Return what to read next; None when there is nothing new."""
        for file in self.files:
            part = file.next_part()
            if part is not None:
                return file, part
        return None

    def take(self, file: TraceFile, part: Part, data: bytes) -> None:
        """Take in what was read.

        Raises:
            ChangedError: The file is another than it was.
        """
        self.result = None
        self.tally.take(file.take(part, data), file.head.base_ns)


def _begin(file: TraceFile) -> int:
    return file.from_ns
