"""The files of one recording process, and its presence on this machine."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tracekit.traces.rank_head import Head
    from tracekit.traces.trace_store import Part
    from tracekit.view.live.progress import ProgressTracker
    from tracekit.view.live.tail import FileTail

_MAX_PACES: Final = 8
_MAX_REMOVED: Final = 8


class RecordingProcess:
    """The files of one process, read in the order of their times.

    Args:
        make_tracker: Makes the tracker of its progress.

    Attributes:
        files: Its files, in order.
        tracker: Its progress.
        changed_ns: The time of the last change, by the monotonic clock of this machine.
        last_read: The number of the look that has read it last.
        runs: True if it ran on this machine when the last look began; None if unknown.
        seen_alive: True if it was ever seen running.
        vanished: True if the file that it wrote is gone.
        is_followed: True if all of it is read, and not only its end.
    """

    def __init__(self, make_tracker: Callable[[], ProgressTracker]) -> None:
        self._make_tracker = make_tracker
        self.files: list[FileTail] = []
        self.tracker = make_tracker()
        self.changed_ns = -1 << 62
        self.last_read = -1
        self.runs: bool | None = None
        self.seen_alive = self.vanished = self.is_followed = False
        self._result: dict[str, Any] | None = None
        self._has_begun = False
        self._removed: deque[FileTail] = deque(maxlen=_MAX_REMOVED)  # their packed files may come

    @property
    def newest(self) -> FileTail:
        """The file that is written, or was written last."""
        return self.files[-1]

    @property
    def unread_bytes(self) -> int:
        """The number of bytes to read."""
        return sum(file.unread_bytes for file in self.files)

    @property
    def skipped_bytes(self) -> int:
        """The number of bytes that are never read."""
        return sum(file.skipped_bytes for file in self.files)

    @property
    def lost_events(self) -> int:
        """The number of lost events in its files; see `tracekit.formats.merged_head`."""
        accounts = self.tracker.accounts
        if accounts.summary is not None:
            dropped = accounts.summary.get("dropped")
            counts = dropped.values() if isinstance(dropped, dict) else ()
            return sum(count for count in counts if isinstance(count, int) and not isinstance(count, bool))
        return max(accounts.gap_events, sum(file.lost_events for file in self.files))

    @property
    def has_ended(self) -> bool:
        """True if the recording states its end."""
        return self.tracker.accounts.summary is not None and self.newest.closed

    @property
    def pace_ns(self) -> int:
        """The longest time between the start and the upload of its last files, on an object store."""
        return max((file.entry.written_ns - file.from_ns for file in self.files[-_MAX_PACES:]), default=0)

    def result(self) -> dict[str, Any]:
        """Return its progress; see `ProgressTracker.result`."""
        if self._result is None:
            self._result = self.tracker.result()
        return self._result

    def add(self, file: FileTail) -> None:
        """Add a file; earlier ones first."""
        self.vanished, self._result = False, None
        path = file.entry.path
        self.files = [own for own in self.files if own.entry.path != path]
        plain = next((own for own in [*self.files, *self._removed] if f"{own.entry.path}.gz" == path), None)
        if plain is not None:
            file.continue_from(plain)
            self.files = [own for own in self.files if own is not plain]
        elif file.from_ns < 0:  # nothing is in it yet
            file.from_ns = self.newest.from_ns + 1 if self.files else file.head.start_ns
        self.files = sorted([*self.files, file], key=_start_ns)
        if plain is None and self._has_begun and file is not self.newest:
            file.skip()  # it is older than the events that were read

    def remove(self, file: FileTail) -> None:
        """Note that a file is gone. The last one stays in the states."""
        self._result = None
        self.vanished = file is self.newest
        self._removed.append(file)
        if len(self.files) > 1:
            self.files.remove(file)

    def restart(self) -> None:
        """Forget its progress, to read more of it."""
        self.tracker, self._result, self._has_begun = self._make_tracker(), None, False
        for file in self.files:
            file.restart()
        self._removed.clear()

    def keep_up(self, window_bytes: int, max_unread_bytes: int) -> None:
        """Skip all but ``window_bytes`` at the end, if more is unread (once it has begun: more than ``max_unread_bytes``)."""
        if self.unread_bytes <= (max_unread_bytes if self._has_begun else window_bytes):
            self._has_begun = True
            return
        self._has_begun = True
        left, skipped = window_bytes, False
        for file in reversed(self.files):
            unread = file.unread_bytes
            if unread and left <= 0:
                file.skip()
                skipped = True
            elif unread > left:
                skipped = file.skip_to_last(left) or skipped
            left -= unread
        if skipped:
            self.tracker.jump()

    def next_part(self) -> tuple[FileTail, Part] | None:
        """Return the part to read next; None if nothing is new."""
        return next(((file, part) for file in self.files if (part := file.next_part()) is not None), None)

    def take(self, file: FileTail, part: Part, data: bytes) -> None:
        """Take the bytes of a part; raise ChangedError if the file is another one."""
        self._result = None
        self.tracker.take(file.take(part, data), file.head.base_ns)


class Machine:
    """This machine, and the processes that can be seen from here.

    Process ids are reused, and containers count their own. So a process *runs* only if host, boot, id and start time are those of
    the recording.
    """

    def __init__(self) -> None:
        self._host = socket.gethostname()
        self._boot_id = _text("/proc/sys/kernel/random/boot_id")

    def is_process_alive(self, head: Head) -> bool | None:
        """Return True if the process of a recording runs here; None if it recorded elsewhere."""
        if not self._boot_id or head.host != self._host or head.boot_id != self._boot_id or head.start_ticks is None:
            return None
        # The name in parentheses may hold anything; the state follows it, and the start time is the 20th field.
        fields = _text(f"/proc/{head.pid}/stat").rpartition(")")[2].split()
        return len(fields) > 19 and fields[0] not in "ZX" and fields[19] == str(head.start_ticks)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _start_ns(file: FileTail) -> int:
    return file.from_ns
