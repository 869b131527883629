"""RankTrace: writes the rank trace of one process (see `tracekit.formats.rank_trace`), in one file or several."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_path, check_whole
from tracekit.clock import SYSTEM_CLOCK
from tracekit.errors import ConfigError, StorageError
from tracekit.events import earliest
from tracekit.formats.chrome_writer import ChromeEncoder
from tracekit.formats.rank_trace import (
    BASE_TIME_KEY,
    CLOCK_ANCHOR_EVENT,
    CLOCK_OFFSET_EVENT,
    CLOCK_STEP_EVENT,
    FORMAT_VERSION,
    LOSS_EVENT,
    LOST_EVENTS_KEY,
    METADATA_EVENT,
    SUMMARY_EVENT,
    base_time_ns,
    index_name,
)
from tracekit.handlers.gap import CarriedSlices, Gap, count_events, newest_ns, span_ns
from tracekit.handlers.live_file import LiveFile, NameTakenError, check_mode, make_folder
from tracekit.handlers.rotation import Retention, Rotation
from tracekit.naming import FileName, shown
from tracekit.notices import Notices
from tracekit.outbox.outbox import GONE, Outbox
from tracekit.storage import PRIVATE_MODE, basename, is_remote
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracekit.arguments import StrPath
    from tracekit.clock import Anchor, ClockOffset, ClockStep
    from tracekit.distributed import ProcessInfo
    from tracekit.events import EventBatch
    from tracekit.handlers.base import Recording, Summary
    from tracekit.timestamp import Timestamp

DEFAULT_SPOOL_BYTES: Final = 2 << 30
TRUNCATED: Final = "events of files that were truncated"
UNWRITTEN: Final = "events that could not be written"
_IDENTITY: Final = ("run_id", "rank", "local_rank", "world_size", "node", "host", "pid", "attempt")
_LOSS_BYTES: Final = 120  # of the line with the number of lost events; it has room for any number
_LONGEST_S: Final = 9.0  # for deliveries without a call of `RankTrace.ending`
_MOST_PENDING: Final = 1000  # lines of metadata while a file cannot be written
_MOST_WAITING: Final = 64  # without a file: the next window may come in a week
_SHARE: Final = 0.9  # of the time for the end of the recording; the rest is for the steps before and after
_SUMMARY_BYTES: Final = 1000  # approximate size of the last lines of a recording
# About 250 kB. Pieces of 2 MB fragment the memory of the handler's thread, up to 65 MB.
_WRITTEN_AT_ONCE: Final = 2_048


@dataclass(slots=True)
class Segment:
    """One file of a rank trace.

    Attributes:
        name: Its final path or URL.
        file: The local file that is written.
        loss_at: Position of the line with the number of lost events.
        events: Number of written events; a slice counts at its finish.
        lost_events: Number of events that could not be written, except those of the current gap.
        start_ns: Start of the first event, ns since the epoch; 0 before the first event.
        end_ns: End of the time that the file covers, ns since the epoch.
        since: Monotonic and training time when its events begin; None before the first, and without a rotation.
        begun_ns: When the first events came, on the clock of this machine.
    """

    name: str
    file: LiveFile
    loss_at: int
    events: int = 0
    lost_events: int = 0
    start_ns: int = 0
    end_ns: int = 0
    since: tuple[int, Timestamp] | None = None
    begun_ns: int = 0


class RankTrace:
    """Writes a rank trace: a segment, or several one after another. Every segment opens and merges by itself.

    While writing fails, events are lost and counted. When writing resumes, a ``tracekit.gap`` instant reports the
    number of lost events and their time range, and the missing starts and finishes of long slices are written. The
    head of the file has the number of lost events in addition, in case the disk stays full.

    `write` begins the segments that it needs. `write_whole` writes one segment.

    Args:
        name: The template of the file names.
        rotation: When to begin a new segment; None never does.
        retention: When to remove finished segments.
        spool: For remote names: the folder for files that wait for upload; None is the default.
        spool_bytes: Maximum size of these files.
        mode: Mode of local files.
    """

    def __init__(
        self,
        name: FileName,
        *,
        rotation: Rotation | None = None,
        retention: Retention | None = None,
        spool: StrPath | None = None,
        spool_bytes: int = DEFAULT_SPOOL_BYTES,
        mode: int = PRIVATE_MODE,
    ) -> None:
        self._is_remote = is_remote(name.template)
        self._mode = PRIVATE_MODE if self._is_remote else check_mode(mode)
        self._retention = retention or Retention()
        if self._retention and self._is_remote:
            raise ConfigError(
                f"file name {shown(name.template)}: num_traces_to_keep and max_total_bytes are for local files, since what was "
                "uploaded stays; spool_bytes= limits what waits for its upload"
            )
        check_whole("spool_bytes", spool_bytes)
        self.paths: list[str] = []
        """The files that were begun and not removed, the newest last."""
        self._name = name
        self._rotation = rotation
        self._spool = None if spool is None else Path(check_path("spool", spool))
        self._spool_bytes = spool_bytes
        self._outbox = Outbox(Path(), packs=False)  # until `open`
        self._notices = Notices()
        self._deadline_ns: int | None = None
        self._number = 0  # of the next file
        self._used: set[str] = set()  # every name that was given, including names of files that are gone
        self._begun_at: list[tuple[str, int]] = []  # each file, and the batch that it begins with
        self.segment: Segment | None = None
        """The file that is being written."""
        self._tables: EventBatch | None = None  # an empty batch: labels, tracks and timestamps for late events
        self._open_slices = CarriedSlices()
        self._delivered_ns = 0  # every event up to this time was delivered
        self._cut_ns: int | None = None  # end of the last segment; None if its open slices were not cut there
        self._gap = Gap()  # events that the segment lacks; without one, that the next segment reports
        self._pending: list[bytes] = []  # lines to write before the next events
        self._offset: tuple[str, Mapping[str, Any]] | None = None  # the newest
        self._lost: Counter[str] = Counter()  # by reason, except in the current segment

    # ---- the recording ------------------------------------------------------------------------------------------------

    def open(self, recording: Recording) -> None:
        """Make the folder of local files; start a thread for packing and uploading, if they are needed.

        Raises:
            ConfigError: Two ranks or attempts would have the same name.
            StorageError: Nothing can be written there.
        """
        process, base_ns = recording.process, base_time_ns(recording.anchor.wall_ns)
        self._recording = recording
        self.timestamp = recording.timestamp
        """The training time in the name of the newest segment."""
        self._base_ns = base_ns
        self._encoder = ChromeEncoder(process.pid, base_ns)
        self._name.check(process)
        path = self._name.format(process, recording.timestamp)
        if self._is_remote:
            from tracekit.outbox.upload import UploadingOutbox  # here: local files need none

            index = FileName(index_name(self._name.template)).format(process, recording.timestamp)
            header = {name: getattr(process, name) for name in ("run_id", "rank", "attempt", "pid")}
            self._outbox = UploadingOutbox(self._spool, {**header, "index": index}, self._spool_bytes)
        else:
            make_folder(Path(path).parent, path, self._mode)
            self._outbox = Outbox(Path.cwd(), packs=self._name.template.endswith(".gz"))
        self._outbox.start()

    def ending(self, timeout_s: float) -> None:
        """Record that the recording ends now, and the time remaining. Called from any thread."""
        self._deadline_ns = SYSTEM_CLOCK.monotonic_ns() + round(timeout_s * _SHARE * 1e9)

    def close(self, summary: Summary | None = None) -> bool:
        """Complete the trace, and deliver the finished files within the time for the end of the recording.

        Returns:
            True if a segment was being written.
        """
        self._repair()
        if was_writing := self.segment is not None:
            counts = None
            if summary is not None:
                # Remove old files first, so that the summary counts them.
                self.make_room(coming=1, coming_bytes=_SUMMARY_BYTES)
                counts = dataclasses.asdict(summary)
                counts["dropped"] = {**counts["dropped"], **self.losses()}
                if self._retention.removed["files"]:
                    counts["removed"] = self._retention.removed
            self.finish(counts)
        now_ns = SYSTEM_CLOCK.monotonic_ns()
        remaining_s = _LONGEST_S if self._deadline_ns is None else (self._deadline_ns - now_ns) / 1e9
        self._outbox.close(max(0.0, remaining_s))
        self.make_room()
        return was_writing

    # ---- what was written ---------------------------------------------------------------------------------------------

    @property
    def lost_events(self) -> int:
        """Number of events that the current segment lacks because they could not be written."""
        lost = 0 if self.segment is None else self.segment.lost_events
        return lost + self._gap.events + self._gap.late_events

    @property
    def kept(self) -> list[str]:
        """Local paths of files that could not be packed or uploaded; complete when the recording has ended."""
        return [os.fspath(path) for path in self._outbox.kept]

    @property
    def location(self) -> str:
        """URL or local path of the current segment or, without one, of the next."""
        if self.segment is not None:
            return self.segment.name if self._is_remote else os.fspath(self.segment.file.path)
        return self._name.format(self._recording.process, self.timestamp)

    def losses(self) -> Mapping[str, int]:
        """Return how many events could not be kept, by reason."""
        unwritten = 0 if self.segment is None else self.lost_events
        return dict(Counter(self._outbox.lost) + self._lost + Counter({UNWRITTEN: unwritten}))

    def files_of(self, first_batch: int, last_batch: int) -> list[str]:
        """Return the paths that hold the delivered events of a range of batches. Thread-safe."""
        found = [path for path, begun in self._begun_at if first_batch <= begun <= last_batch]
        earlier = [path for path, begun in self._begun_at if begun < first_batch]
        if earlier and not self._name.per_window:
            found.insert(0, earlier[-1])
        return [path for path in found if path in self.paths]

    # ---- events -------------------------------------------------------------------------------------------------------

    def write(self, batch: EventBatch) -> None:
        """Write a batch, to a new segment if one is due, or count it as lost. Raises nothing for a storage that fails."""
        self._repair()
        last_ns = newest_ns(batch.records) if self._rotation is not None else batch.cut_ns
        if self.segment is None or self._is_full(self.segment, last_ns, batch):
            # The first batch names its file; it began when this batch's first event happened.
            self._begin_next(batch.timestamps.at(earliest(batch.records)), batch)
        self._open_slices.follow(batch.records)
        self._tables = dataclasses.replace(batch, records=())
        # A start may be delivered after events with later times.
        self._delivered_ns = max(last_ns, batch.cut_ns, self._delivered_ns)
        segment = self.segment
        if segment is None:
            self._lost[UNWRITTEN] += count_events(batch)
            self._gap.extend(count_events(batch), *span_ns(batch))
            return
        if not segment.events:
            segment.begun_ns = SYSTEM_CLOCK.monotonic_ns()
        if self._rotation is not None and segment.since is None:
            segment.since = last_ns, batch.timestamps.at(last_ns)
        self.write_events(batch)
        if self._retention:
            self.make_room()

    def write_events(self, batch: EventBatch, *, count: bool = True) -> None:
        """Write a batch to the current segment, or count it as lost.

        The end and start where a slice is cut in two do not count as events.
        """
        segment = self.segment
        assert segment is not None
        for piece in batch.pieces(_WRITTEN_AT_ONCE):
            late = self._late(piece) if self._gap or self._pending else b""
            try:
                segment.file.write(late + self._encoder.encode(piece))
            except OSError as error:
                self._gap.add(piece, count=count)
                self._tables = dataclasses.replace(piece, records=())
                self._encoder.restart()  # the lost data may include thread names
                self._tell_losses(segment)
                self._notices.warn(
                    "failed",
                    "tracekit: %s cannot be written (%s); events are lost and counted until it can be (%d so far)",
                    segment.file.path,
                    error.strerror or error,
                    self.lost_events,
                )
            else:
                segment.events += (count_events(piece) if count else 0) + self._gap.late_events
                segment.lost_events += self._gap.events
                self._gap = Gap()
                self._pending.clear()
                if late:
                    self._tell_losses(segment)
            if piece and not segment.start_ns:
                segment.start_ns, segment.end_ns = span_ns(piece)
            if piece.cut_ns:
                segment.end_ns = max(segment.end_ns, piece.cut_ns + piece.offset_ns)

    def write_metadata(self, name: str, args: Mapping[str, Any]) -> None:
        """Write a metadata event, now or as soon as that is possible."""
        self._repair()
        self._pending.append(self._encoder.metadata(name, args))
        del self._pending[: -_MOST_PENDING if self.segment else -_MOST_WAITING]
        self._write_pending()

    def write_offset(self, offset: ClockOffset) -> None:
        """Write the offset of this process's clock to another's, also to every later segment."""
        self._offset = offset_metadata(offset)
        self._repair()
        if self.segment is not None:
            self.write_metadata(*self._offset)

    def _write_pending(self) -> None:
        if self.segment and self._pending:
            with contextlib.suppress(OSError):  # tried again before the next events
                self.segment.file.write(b"".join(self._pending))
                self._pending.clear()

    def _late(self, batch: EventBatch) -> bytes:
        """Return the late data: metadata, the gap, and the starts and finishes of long slices."""
        late = self._encoder.encode(dataclasses.replace(batch, records=self._gap.late))
        return b"".join(self._pending) + self._gap.encode(self._recording.process.pid, self._base_ns) + late

    def _tell_losses(self, segment: Segment) -> None:
        segment.file.overwrite(segment.loss_at, self._loss_line(self.lost_events))

    # ---- segments -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Begin a removed or truncated file again, and let no remote segment wait too long for more events."""
        self._repair()
        segment, tables = self.segment, self._tables
        if segment is not None and segment.events and tables is not None and self._is_old(segment):
            self._begin_next(tables.timestamps.at(self._delivered_ns), tables)
        if self._retention:
            self.make_room()

    def end_window(self, wall_clock_time_ns: int) -> bool:
        """Complete the segment if every recording window has a separate one. Return True if it was completed."""
        self._repair()
        if not self._name.per_window or self.segment is None:
            return False
        self._end_segment(wall_clock_time_ns - self._recording.anchor.offset_ns)
        return True

    def begin(self, timestamp: Timestamp, tables: EventBatch | None = None, *, first: bool = False) -> Segment:
        """Begin a segment. The first one is refused if its name is taken; later ones take the next number.

        Raises:
            ConfigError: The name is taken.
            StorageError: The file cannot be made.
        """
        segment = self._make(timestamp, first=first)
        if self.segment is not None:
            self._end_segment(self._delivered_ns)
        self._start(segment, timestamp, tables)
        return segment

    def write_whole(
        self, timestamp: Timestamp, metadata: Iterable[tuple[str, Mapping[str, Any]]], batches: Iterable[EventBatch]
    ) -> Segment:
        """Write a segment of these events. Raises as `begin`, and StorageError if it was spoiled while it was written."""
        segment = self.begin(timestamp)
        self._pending += [self._encoder.metadata(name, args) for name, args in metadata]
        for batch in batches:
            self.write_events(batch)
        is_spoiled = segment.file.gone or segment.file.truncated
        self.finish()
        if is_spoiled:
            self.paths.remove(segment.name)
            self._used.discard(segment.name)
            raise StorageError(f"{segment.file.path}: was removed, replaced or truncated while it was written")
        self.make_room()
        return segment

    def finish(self, summary: Mapping[str, Any] | None = None) -> Segment:
        """Complete the current segment, and send it to its final place. Raises nothing for a storage that fails."""
        segment = self.segment
        assert segment is not None
        if self._tables is not None and (self._gap or self._pending):
            self.write_events(self._tables, count=False)
        self._write_pending()
        segment.file.finish(b"" if summary is None else self._encoder.metadata(SUMMARY_EVENT, summary))
        segment.lost_events = self.lost_events
        self._lost[UNWRITTEN] += segment.lost_events
        self.segment, self._gap = None, Gap()
        self._pending.clear()
        here = self._outbox.send(
            segment.file.path, segment.name, events=segment.events, start_ns=segment.start_ns, end_ns=segment.end_ns
        )
        if here is not None:
            self._retention.add(here, segment.name)
        return segment

    def make_room(self, *, coming: int = 0, coming_bytes: int = 0) -> None:
        """Remove the oldest files beyond the limits, before ``coming`` files are finished; see `Retention.make_room`."""
        waiting, waiting_bytes = self._outbox.waiting
        for path, name in self._outbox.arrived():
            self._retention.add(path, name)
        live_bytes = None if self.segment is None else self.segment.file.size_bytes + coming_bytes
        if waiting:
            coming, live_bytes = coming + waiting, (live_bytes or 0) + waiting_bytes
        for name in self._retention.make_room(coming=coming, live_bytes=live_bytes):
            if name in self.paths:
                self.paths.remove(name)

    def _is_full(self, segment: Segment, last_ns: int, batch: EventBatch) -> bool:
        """Return True if a batch that ends at this time goes to a new file."""
        if self._rotation is None or segment.since is None:
            return False
        since_ns, since = segment.since
        return self._rotation.due(segment.file.size_bytes, last_ns - since_ns, since, batch.timestamps.at(last_ns))

    def _is_old(self, segment: Segment) -> bool:
        """Return True if a segment has waited long enough for more events: a crash of this machine would lose it."""
        if self._rotation is None or self._rotation.limit_ns is None or not self._is_remote:
            return False
        return SYSTEM_CLOCK.monotonic_ns() - segment.begun_ns >= self._rotation.limit_ns

    def _begin_next(self, timestamp: Timestamp, tables: EventBatch | None) -> None:
        """Continue in a new file, or in the old one, if any, when no new file can be made."""
        try:
            self.begin(timestamp, tables)
        except (ConfigError, StorageError) as error:
            consequence = "the old one is written on" if self.segment else "events are lost and counted"
            self._notices.warn(
                "refused", "tracekit: no new trace file can be made (%s); %s until it can", error, consequence
            )

    def _make(self, timestamp: Timestamp, *, first: bool) -> Segment:
        head = self._head()
        for number, name in self._name.alternatives(self._recording.process, timestamp, self._number):
            if name in self._used:
                continue
            path = self._outbox.place(name)
            try:
                if not self._is_remote and os.path.lexists(path.parent / basename(name)):
                    raise NameTakenError(path.parent / basename(name))  # the packed one
                file = LiveFile(path, head + self._loss_line(0), name, self._mode)
            except (ConfigError, StorageError) as error:
                self._outbox.discard(path)
                if first or not isinstance(error, NameTakenError):
                    raise
                continue
            self._number = number + 1
            self._used.add(name)
            self.paths.append(name)
            return Segment(name, file, len(head))
        raise ConfigError(f"file name {shown(self._name.template)}: every number of it is taken")

    def _start(self, segment: Segment, timestamp: Timestamp, tables: EventBatch | None) -> None:
        """Write the state that a segment needs from earlier ones: the gap, the metadata and the open slices."""
        self.segment, self.timestamp = segment, timestamp
        self._begun_at = [(name, begun) for name, begun in self._begun_at if name != segment.name]
        self._begun_at.append((segment.name, int(timestamp.batch)))
        self._encoder.restart()
        if self._gap:
            self._pending.insert(0, self._gap.encode(self._recording.process.pid, self._base_ns))
            self._gap = Gap()
        if self._offset is not None:  # every file merges by itself
            self._pending.append(self._encoder.metadata(*self._offset))
        resumed = self._open_slices.begins(self._cut_ns)
        if resumed and tables is not None:
            self.write_events(dataclasses.replace(tables, records=resumed), count=False)
        self._write_pending()

    def _end_segment(self, cut_ns: int) -> None:
        """Complete a segment before the next one begins: end its open slices at the time of the cut."""
        self._cut_ns = cut_ns
        ended = self._open_slices.ends(cut_ns)
        if ended and self._tables is not None:
            self.write_events(dataclasses.replace(self._tables, records=ended), count=False)
        self.finish()
        self.make_room()

    def _repair(self) -> None:
        """Begin a file again that somebody has truncated in place or removed; count its events as lost."""
        segment = self.segment
        if segment is None:
            return
        truncated = segment.file.truncated
        if not truncated and not segment.file.gone:
            return
        self._lost[TRUNCATED if truncated else GONE] += segment.events
        self._lost[UNWRITTEN] += self.lost_events
        self._notices.warn(
            "truncated" if truncated else "removed",
            "tracekit: %s was %s while it was written; its events (%d) are counted as lost, and %s",
            segment.file.path,
            "truncated" if truncated else "removed or replaced",
            segment.events,
            "it begins again" if truncated else "a new one is begun",
        )
        self.segment, self._gap, self._cut_ns = None, Gap(), None
        if segment.events:
            self._gap.extend(segment.events, segment.start_ns, segment.end_ns)
        tables = self._tables
        now = self._recording.timestamp if tables is None else tables.timestamps.at(self._delivered_ns)
        if truncated:
            head = self._head()
            segment.file.restart(head + self._loss_line(0))
            self._start(Segment(segment.name, segment.file, len(head)), now, tables)
            return
        segment.file.abandon()
        self._outbox.discard(segment.file.path)
        self._used.discard(segment.name)
        self.paths.remove(segment.name)
        if not self._name.per_window:
            self._begin_next(now, tables)

    def _head(self) -> bytes:
        """Return the first lines of a file, which name its process."""
        process, anchor, encode = self._recording.process, self._recording.anchor, self._encoder.metadata
        # To distinguish processes with the same pid, and a child from the main process of its rank.
        which = {"start_ticks": process.start_ticks, "parent_pid": process.parent_pid, "worker": process.worker}
        metadata = {
            "format_version": FORMAT_VERSION,
            "tracekit_version": __version__,
            **{name: getattr(process, name) for name in _IDENTITY},
            "rank_source": process.source,
            "counts": self._recording.counts,
            "boot_id": process.boot_id,
            BASE_TIME_KEY: self._base_ns,
            "clock": dataclasses.asdict(anchor),
            **{name: value for name, value in which.items() if value is not None},
        }
        head = b"[\n" + encode(METADATA_EVENT, metadata) + encode("process_name", {"name": _title(process)})
        return head + encode("process_sort_index", {"sort_index": process.rank})

    def _loss_line(self, lost_events: int) -> bytes:
        line = self._encoder.metadata(LOSS_EVENT, {LOST_EVENTS_KEY: lost_events})
        return line.removesuffix(b"}},\n").ljust(_LOSS_BYTES) + b"}},\n"


def trace_name(filename: StrPath, number: str) -> FileName:
    """Return the template of a JSON trace, which may have a field ``number``; refuse other endings."""
    name = check_path("filename", filename)
    template = FileName(name, number)
    if not name.endswith((".json", ".json.gz")):
        raise ConfigError(f"file name {shown(name)}: a JSON trace must end with .json or .json.gz")
    return template


def clock_metadata(anchor: Anchor, step: ClockStep | None) -> list[tuple[str, dict[str, int]]]:
    """Return the metadata events (name and args) for a reading of the clocks."""
    events = [(CLOCK_ANCHOR_EVENT, dataclasses.asdict(anchor))]
    if step is not None:
        events.append((CLOCK_STEP_EVENT, dataclasses.asdict(step)))
    return events


def offset_metadata(offset: ClockOffset) -> tuple[str, dict[str, Any]]:
    """Return the metadata event (name and args) for the offset of this process's clock to another's."""
    return CLOCK_OFFSET_EVENT, dataclasses.asdict(offset)


def _title(process: ProcessInfo) -> str:
    attempt = f"attempt {process.attempt}" if process.attempt else ""
    return " · ".join(filter(None, (f"rank {process.rank}", attempt, process.child)))
