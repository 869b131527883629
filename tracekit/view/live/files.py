"""The files below a folder or URL, the recording processes that they belong to, and whether these run on this machine."""

from __future__ import annotations

import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.errors import StorageError
from tracekit.processors import boot_id
from tracekit.structs import Struct
from tracekit.traces.rank_head import HEAD_BYTES, MAX_HEAD_BYTES, Head, Index, OtherTrace, lost_in, read_head
from tracekit.traces.trace_store import MAX_FILES, Entry, Part, TraceStore
from tracekit.view.live.tail import FileTail

if TYPE_CHECKING:
    from tracekit.clock import Clock
    from tracekit.view.live.progress import ProgressTracker

_REMOTE_LIST_NS: Final = 5_000_000_000
_MAX_REMOTE_HEADS: Final = 512
_MAX_NOTES: Final = 5


class RecordingProcess:
    """The files of one process, read in the order of their times."""

    def __init__(self, make_tracker: Callable[[], ProgressTracker]) -> None:
        self._make_tracker = make_tracker
        self.files: list[FileTail] = []  # in order
        self.tracker = make_tracker()  # its progress
        self.changed_ns = -1 << 62  # the time of the last change, by the monotonic clock of this machine
        self.last_read = -1  # the number of the look that has read it last
        self.runs: bool | None = None  # true if it ran on this machine when the last look began; None if unknown
        self.seen_alive = False  # it was ever seen running
        self.vanished = False  # the file that it wrote is gone
        self.is_followed = False  # all of it is read, and not only its end
        self._has_begun = False
        self._removed: deque[FileTail] = deque(maxlen=8)  # their packed files may come

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
        return max((file.entry.written_ns - file.from_ns for file in self.files[-8:]), default=0)

    def add(self, file: FileTail) -> None:
        """Add a file; earlier ones first."""
        self.vanished = False
        path = file.entry.path
        others = [own for own in self.files if own.entry.path != path]
        plain = next((own for own in [*others, *self._removed] if f"{own.entry.path}.gz" == path), None)
        if plain is not None:
            file.continue_from(plain)
        elif file.from_ns < 0:  # nothing is in it yet
            file.from_ns = others[-1].from_ns + 1 if others else file.head.start_ns
        self.files = sorted([*(own for own in others if own is not plain), file], key=lambda own: own.from_ns)
        if plain is None and self._has_begun and file is not self.newest:
            file.skip()  # it is older than the events that were read

    def remove(self, file: FileTail) -> None:
        """Record that a file is gone. The last one stays in the states."""
        self.vanished = file is self.newest
        self._removed.append(file)
        if len(self.files) > 1:
            self.files.remove(file)

    def restart(self) -> None:
        """Forget its progress, to read more of it."""
        self.tracker, self._has_begun = self._make_tracker(), False
        for file in self.files:
            file.restart()
        self._removed.clear()

    def keep_up(self, window_bytes: int, max_unread_bytes: int) -> None:
        """Skip all but ``window_bytes`` at the end, if more is unread (once it has begun: more than ``max_unread_bytes``)."""
        limit_bytes = max_unread_bytes if self._has_begun else window_bytes
        self._has_begun = True
        if self.unread_bytes <= limit_bytes:
            return
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
        self.tracker.take(file.take(part, data), file.head.base_ns)


class Machine:
    """This machine, and the processes that can be seen from here.

    Process ids are reused, and containers count their own. So a process *runs* only if host, boot, id and start time are those of
    the recording.
    """

    def __init__(self) -> None:
        self._host = socket.gethostname()
        self._boot_id = boot_id()

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


class KnownFile(Struct):
    """A file with a head that was read."""

    entry: Entry  # the list entry of the file at that time
    what: Head | Index | OtherTrace | str | None  # its head; None if it is not a trace, a sentence if it cannot be read
    read: tuple[RecordingProcess, FileTail] | None = None  # its process and its content, if it is read


class FileCatalog:
    """The files below a folder or URL. Dumps of flight recorders and the traces of children are listed and not read.

    One update reads at most ``max_bytes`` of heads.
    """

    def __init__(
        self, store: TraceStore, make_tracker: Callable[[], ProgressTracker], clock: Clock, max_bytes: int
    ) -> None:
        self.files: dict[str, KnownFile] = {}  # by path
        self.processes: dict[tuple[object, ...], RecordingProcess] = {}  # by run, rank and process
        self.version = 0  # changes with each of the two
        self._store = store
        self._make_tracker = make_tracker
        self._clock = clock
        self._max_heads = _MAX_REMOTE_HEADS if store.remote else max(1, max_bytes // HEAD_BYTES)
        self._listed_ns: int | None = None
        self._waiting = 0  # files with heads that are not read yet
        self._is_full = False

    def update(self, now_ns: int) -> None:
        """List the files and read the heads of new ones; list an object store every 5 s at most. Raises StorageError."""
        is_first = self._listed_ns is None
        if self._store.remote and self._listed_ns is not None and now_ns - self._listed_ns < _REMOTE_LIST_NS:
            return
        entries = self._store.entries()
        self._listed_ns = now_ns
        self._is_full = len(entries) >= MAX_FILES
        new = []
        losses: list[tuple[FileTail, Part]] = []
        for entry in entries:
            known = self.files.get(entry.path)
            if known is None or self._is_another(known, entry):
                new.append(entry)
            elif known.read is not None:
                process, file = known.read
                before, file.entry = file.entry, entry
                if entry != before:
                    process.changed_ns = now_ns
                    # A writer that cannot append overwrites the line of losses.
                    if entry.size_bytes == before.size_bytes and file.head.loss is not None:
                        losses.append((file, Part(entry.path, *file.head.loss)))
        listed = {entry.path for entry in entries}
        # Before old names go: a packed file continues where the plain one ended.
        self._read_heads(new, now_ns, is_first=is_first)
        for path in [path for path in self.files if path not in listed]:
            self._forget(path)
        for (file, _), line in zip(losses, self._store.read([part for _, part in losses]), strict=True):
            if isinstance(line, bytes):
                file.lost_events = max(file.lost_events, lost_in(line))

    def reread(self, process: RecordingProcess) -> None:
        """Forget a process; the next update finds its files as new ones."""
        self.version += 1
        self.files = {
            path: known for path, known in self.files.items() if known.read is None or known.read[0] is not process
        }
        self.keep(own for own in self.processes.values() if own is not process)

    def keep(self, processes: Iterable[RecordingProcess]) -> None:
        """Forget all other processes."""
        kept = set(map(id, processes))
        self.processes = {key: process for key, process in self.processes.items() if id(process) in kept}

    def others(self) -> list[tuple[Entry, OtherTrace]]:
        """Return the traces of other tools and of earlier merges, by path."""
        return [
            (known.entry, known.what) for _, known in sorted(self.files.items()) if isinstance(known.what, OtherTrace)
        ]

    def notes(self) -> Iterator[str]:
        """Yield sentences for the reader."""
        refused = Counter(known.what for known in self.files.values() if isinstance(known.what, str))
        yield from (text for text, _ in refused.most_common(_MAX_NOTES))
        if len(refused) > _MAX_NOTES:
            yield f"{len(refused):,} files cannot be read in all"
        if self._waiting:
            yield f"{self._waiting:,} files have not been looked at yet"
        if self._is_full:
            yield f"there are more than {MAX_FILES:,} files; the others are ignored"

    def _is_another(self, known: KnownFile, entry: Entry) -> bool:
        before = known.entry
        if entry.identity != before.identity:
            return True
        if known.read is not None or entry == before:
            return False
        # It may have become a trace.
        return before.size_bytes < HEAD_BYTES or self._store.remote or isinstance(known.what, str)

    def _read_heads(self, entries: list[Entry], now_ns: int, *, is_first: bool) -> None:
        """Read the heads of new files, up to the limit; the newest first."""
        entries.sort(key=lambda entry: (-entry.written_ns, entry.path))
        self._waiting = max(0, len(entries) - self._max_heads)
        found: list[tuple[Entry, Head]] = []
        for entry, what in self._heads(entries[: self._max_heads]):
            self._forget(entry.path)
            self.files[entry.path] = KnownFile(entry, what)
            self.version += 1
            if isinstance(what, Head) and not what.child and not what.dump:
                found.append((entry, what))
        found.sort(key=lambda pair: (pair[1].first_ns or 0, pair[0].written_ns, pair[0].path))
        for entry, head in found:
            key = (head.run_id, head.rank, head.process)
            if key not in self.processes:
                self.processes[key] = RecordingProcess(self._make_tracker)
            process, file = self.processes[key], FileTail(entry, head)
            changed_ns = now_ns
            if is_first and entry.written_ns:
                # The last change before the first look is only known by the clock of the storage.
                changed_ns -= max(0, self._clock.wall_ns() - entry.written_ns)
            process.changed_ns = max(changed_ns, process.changed_ns)
            self.files[entry.path].read = process, file
            process.add(file)

    def _heads(self, entries: list[Entry]) -> Iterator[tuple[Entry, Head | Index | OtherTrace | str | None]]:
        for first in range(0, len(entries), self._store.at_once):
            batch = entries[first : first + self._store.at_once]
            parts = [Part(entry.path, 0, min(entry.size_bytes, HEAD_BYTES)) for entry in batch]
            for entry, data in zip(batch, self._store.read(parts), strict=True):
                if isinstance(data, StorageError):
                    yield entry, str(data)
                    continue
                packed = entry.path.endswith(".gz")
                what = read_head(data, packed=packed)
                if isinstance(what, int):  # more bytes are needed
                    (more,) = self._store.read([Part(entry.path, 0, min(entry.size_bytes, MAX_HEAD_BYTES))])
                    what = None if isinstance(more, StorageError) else read_head(more, packed=packed)
                yield entry, None if isinstance(what, int) else what

    def _forget(self, path: str) -> None:
        """Record that a file is gone, or is another one now."""
        known = self.files.pop(path, None)
        if known is not None:
            self.version += 1
            if known.read is not None and known.read[1] in known.read[0].files:
                known.read[0].remove(known.read[1])
