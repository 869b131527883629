"""The files below a folder or URL, and the recording processes that they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracekit.errors import StorageError
from tracekit.traces.rank_head import HEAD_BYTES, MAX_HEAD_BYTES, Head, Index, OtherTrace, lost_in, read_head
from tracekit.traces.trace_store import MAX_FILES, Entry, Part, TraceStore
from tracekit.view.live.processes import RecordingProcess
from tracekit.view.live.tail import FileTail

if TYPE_CHECKING:
    from tracekit.clock import Clock
    from tracekit.view.live.progress import ProgressTracker

_REMOTE_LIST_NS: Final = 5_000_000_000
_MAX_REMOTE_HEADS: Final = 512
_MAX_NOTES: Final = 5


@dataclass(slots=True)
class KnownFile:
    """A file with a head that was read.

    Attributes:
        what: Its head; None for a file that is not a trace, a sentence for a file that cannot be read.
    """

    entry: Entry  # the list entry of the file at that time
    what: Head | Index | OtherTrace | str | None
    process: RecordingProcess | None = None  # its process; None if it is not read
    file: FileTail | None = None  # the file, if it is read


class FileCatalog:
    """The files below a folder or URL. Dumps of flight recorders and the traces of children are listed and not read.

    Args:
        store: The folder or URL.
        make_tracker: Makes the tracker of a process.
        clock: The clocks.
        max_bytes: The maximum number of bytes of heads to read in one update.

    Attributes:
        files: The files, by path.
        processes: The recording processes, by run, rank and process.
        version: Changes with each of the two.
    """

    def __init__(
        self, store: TraceStore, make_tracker: Callable[[], ProgressTracker], clock: Clock, max_bytes: int
    ) -> None:
        self.files: dict[str, KnownFile] = {}
        self.processes: dict[tuple[object, ...], RecordingProcess] = {}
        self.version = 0
        self._store = store
        self._make_tracker = make_tracker
        self._clock = clock
        self._max_heads = _MAX_REMOTE_HEADS if store.remote else max(1, max_bytes // HEAD_BYTES)
        self._listed_ns: int | None = None
        self._is_first = True
        self._waiting = 0  # files with heads that are not read yet
        self._is_full = False

    def update(self, now_ns: int) -> None:
        """List the files and read the heads of new ones; list an object store every 5 s at most.

        Raises:
            StorageError: The folder is missing or cannot be listed.
        """
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
            elif known.file is not None and known.process is not None:
                before, known.file.entry = known.file.entry, entry
                if (entry.size_bytes, entry.written_ns) != (before.size_bytes, before.written_ns):
                    known.process.changed_ns = now_ns
                    # A writer that cannot append overwrites the line of losses.
                    if entry.size_bytes == before.size_bytes and known.file.head.loss is not None:
                        losses.append((known.file, Part(entry.path, *known.file.head.loss)))
        listed = {entry.path for entry in entries}
        # Before old names go: a packed file continues where the plain one ended.
        self._read_heads(new, now_ns)
        for path in [path for path in self.files if path not in listed]:
            self._forget(path)
        for (file, _), line in zip(losses, self._store.read([part for _, part in losses]), strict=True):
            if isinstance(line, bytes):
                file.lost_events = max(file.lost_events, lost_in(line))
        self._is_first = False

    def reread(self, process: RecordingProcess) -> None:
        """Forget a process; the next update finds its files as new ones."""
        self.version += 1
        self.files = {path: known for path, known in self.files.items() if known.process is not process}
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
        if known.file is not None or (entry.size_bytes, entry.written_ns) == (before.size_bytes, before.written_ns):
            return False
        # It may have become a trace.
        return before.size_bytes < HEAD_BYTES or self._store.remote or isinstance(known.what, str)

    def _read_heads(self, entries: list[Entry], now_ns: int) -> None:
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
            self._add(entry, head, now_ns)

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

    def _add(self, entry: Entry, head: Head, now_ns: int) -> None:
        key = (head.run_id, head.rank, head.process)
        process = self.processes.get(key)
        if process is None:
            process = self.processes[key] = RecordingProcess(self._make_tracker)
        changed_ns = now_ns
        if self._is_first and entry.written_ns:
            # The last change before the first look is only known by the clock of the storage.
            changed_ns -= max(0, self._clock.wall_ns() - entry.written_ns)
        process.changed_ns = max(changed_ns, process.changed_ns)
        known = self.files[entry.path]
        known.process, known.file = process, FileTail(entry, head)
        process.add(known.file)

    def _forget(self, path: str) -> None:
        """Note that a file is gone, or is another one now."""
        known = self.files.pop(path, None)
        if known is None:
            return
        self.version += 1
        if known.file is not None and known.process is not None and known.file in known.process.files:
            known.process.remove(known.file)
