"""Catalog: which files there are below a place, and whose rank traces they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracekit.errors import StorageError
from tracekit.watching.files import TraceFile
from tracekit.watching.heads import HEAD_BYTES, MOST_HEAD_BYTES, Head, Index, lost_in, read_head
from tracekit.watching.places import MOST_FILES, Entry, Part
from tracekit.watching.recording import WatchedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.clock import Clock
    from tracekit.watching.places import Place
    from tracekit.watching.tally import Tally

__all__ = ["Catalog", "KnownFile"]

_REMOTE_LIST_NS: Final = 5_000_000_000
_REMOTE_HEADS: Final = 512
_MOST_NOTES: Final = 5


@dataclass(slots=True)
class KnownFile:
    """A file that was met.

    Attributes:
        entry: As it was listed when its head was read.
        what: What its head says; None for what is no rank trace, a text for what cannot be read.
        process: Of which process it is read; None where it is not.
        file: The file, if it is read.
    """

    entry: Entry
    what: Head | Index | str | None
    process: WatchedProcess | None = None
    file: TraceFile | None = None


class Catalog:
    """The files below a place. Dumps of flight recorders, and the traces of children, are known and not read.

    Args:
        place: The place.
        make_tally: Makes the tally of a process.
        clock: The clocks.
        max_bytes: How much of heads may be read at once.

    Attributes:
        files: What was met, by path.
        processes: The processes that recorded, by run, rank and process.
        version: Changes with each of the two.
    """

    def __init__(self, place: Place, make_tally: Callable[[], Tally], clock: Clock, max_bytes: int) -> None:
        self.files: dict[str, KnownFile] = {}
        self.processes: dict[tuple[object, ...], WatchedProcess] = {}
        self.version = 0
        self._place = place
        self._make_tally = make_tally
        self._clock = clock
        self._most_heads = _REMOTE_HEADS if place.remote else max(1, max_bytes // HEAD_BYTES)
        self._listed_ns: int | None = None
        self._first = True
        self._left = 0  # files of which not even the head was read yet
        self._full = False

    def update(self, now_ns: int) -> None:
        """List the files, and read the heads of new ones; an object store is listed every 5 s at most.

        Args:
            now_ns: Monotonic time.

        Raises:
            StorageError: The place is not there, or cannot be listed.
        """
        if self._place.remote and self._listed_ns is not None and now_ns - self._listed_ns < _REMOTE_LIST_NS:
            return
        entries = self._place.entries()
        self._listed_ns = now_ns
        self._full = len(entries) >= MOST_FILES
        new = []
        losses: list[tuple[TraceFile, Part]] = []
        for entry in entries:
            known = self.files.get(entry.path)
            if known is None or self._is_another(known, entry):
                new.append(entry)
            elif known.file is not None and known.process is not None:
                before, known.file.entry = known.file.entry, entry
                if (entry.size_bytes, entry.written_ns) != (before.size_bytes, before.written_ns):
                    known.process.changed_ns = now_ns
                    # The line of losses is kept right in place, while the file cannot grow.
                    if entry.size_bytes == before.size_bytes and known.file.head.loss is not None:
                        losses.append((known.file, Part(entry.path, *known.file.head.loss)))
        listed = {entry.path for entry in entries}
        # Before the old names go: of a packed file, the plain one says how far it was read.
        self._take_heads(new, now_ns)
        for path in [path for path in self.files if path not in listed]:
            self._forget(path)
        for (file, _), line in zip(losses, self._place.read([part for _, part in losses]), strict=True):
            if isinstance(line, bytes):
                file.lost_events = max(file.lost_events, lost_in(line))
        self._first = False

    def meet_again(self, process: WatchedProcess) -> None:
        """Forget a process; its files are met as new ones by the next `update`."""
        self.version += 1
        self.files = {path: known for path, known in self.files.items() if known.process is not process}
        self.keep(own for own in self.processes.values() if own is not process)

    def keep(self, processes: Iterable[WatchedProcess]) -> None:
        """Forget all other processes, of which no file is left."""
        kept = set(map(id, processes))
        self.processes = {key: process for key, process in self.processes.items() if id(process) in kept}

    def notes(self) -> Iterator[str]:
        """Yield what a reader should know, as sentences."""
        refused = Counter(known.what for known in self.files.values() if isinstance(known.what, str))
        yield from (text for text, _ in refused.most_common(_MOST_NOTES))
        if len(refused) > _MOST_NOTES:
            yield f"{len(refused):,} files cannot be read in all"
        if self._left:
            yield f"{self._left:,} files have not been looked at yet"
        if self._full:
            yield f"there are more than {MOST_FILES:,} files; only so many are looked at"

    def _is_another(self, known: KnownFile, entry: Entry) -> bool:
        before = known.entry
        if entry.identity != before.identity:
            return True
        if known.file is not None or (entry.size_bytes, entry.written_ns) == (before.size_bytes, before.written_ns):
            return False
        # A file that was no trace, or could not be read, may have become one.
        return before.size_bytes < HEAD_BYTES or self._place.remote or isinstance(known.what, str)

    def _take_heads(self, entries: list[Entry], now_ns: int) -> None:
        """Read the heads of new files, the newest first, as many as a look may."""
        entries.sort(key=lambda entry: (-entry.written_ns, entry.path))
        self._left = max(0, len(entries) - self._most_heads)
        found: list[tuple[Entry, Head]] = []
        for entry, what in self._heads(entries[: self._most_heads]):
            self._forget(entry.path)
            self.files[entry.path] = KnownFile(entry, what)
            self.version += 1
            if isinstance(what, Head) and not what.child and not what.dump:
                found.append((entry, what))
        found.sort(key=lambda pair: (pair[1].first_ns or 0, pair[0].written_ns, pair[0].path))
        for entry, head in found:
            self._add(entry, head, now_ns)

    def _heads(self, entries: list[Entry]) -> Iterator[tuple[Entry, Head | Index | str | None]]:
        at_once = self._place.at_once
        for first in range(0, len(entries), at_once):
            batch = entries[first : first + at_once]
            parts = [Part(entry.path, 0, min(entry.size_bytes, HEAD_BYTES)) for entry in batch]
            for entry, data in zip(batch, self._place.read(parts), strict=True):
                if isinstance(data, StorageError):
                    yield entry, str(data)
                    continue
                packed = entry.path.endswith(".gz")
                what = read_head(data, packed=packed)
                if isinstance(what, int):  # so much is needed to tell
                    (more,) = self._place.read([Part(entry.path, 0, min(entry.size_bytes, MOST_HEAD_BYTES))])
                    what = None if isinstance(more, StorageError) else read_head(more, packed=packed)
                yield entry, None if isinstance(what, int) else what

    def _add(self, entry: Entry, head: Head, now_ns: int) -> None:
        key = (head.run_id, head.rank, head.process)
        process = self.processes.get(key)
        if process is None:
            process = self.processes[key] = WatchedProcess(self._make_tally)
        changed_ns = now_ns
        if self._first and entry.written_ns:
            # Of what was before the first look, the storage's own clock tells, however right it is.
            changed_ns -= max(0, self._clock.wall_ns() - entry.written_ns)
        process.changed_ns = max(changed_ns, process.changed_ns)
        known = self.files[entry.path]
        known.process, known.file = process, TraceFile(entry, head)
        process.add(known.file)

    def _forget(self, path: str) -> None:
        """Note that a file is gone, or is another one now."""
        known = self.files.pop(path, None)
        if known is None:
            return
        self.version += 1
        if known.file is not None and known.process is not None and known.file in known.process.files:
            known.process.remove(known.file)
