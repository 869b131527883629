"""RankFile: one file of a rank trace (see `tracekit.formats.rank_trace`). LiveFile: the file, which opens at any moment."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NoReturn

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this system
    fcntl = None  # type: ignore[assignment]

from tracekit.errors import ConfigError, StorageError
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
)
from tracekit.handlers.gap import Gap, count_events, span_ns
from tracekit.notices import Notices
from tracekit.storage import PRIVATE_MODE, make_folders, temporary_file
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracekit.clock import Anchor, ClockOffset, ClockStep
    from tracekit.distributed import ProcessInfo
    from tracekit.events import EventBatch
    from tracekit.handlers.base import Recording

_MOST_LATE: Final = 1000
_WRITTEN_AT_ONCE: Final = (
    2_048  # events: about 250 kB. Pieces of 2 MB fragment the memory of the handler's thread, up to 65 MB
)
_IDENTITY: Final = ("run_id", "rank", "local_rank", "world_size", "node", "host", "pid", "attempt")
_LOSS_BYTES: Final = 120  # of the line with the number of lost events; it has room for any number


class NameTakenError(ConfigError):
    """A file of that name exists, and tracekit never overwrites a trace."""


class LiveFile:
    """A local file that is whole after every write.

    Written with ``os.write`` to a descriptor that nothing else uses, without a buffer that a fork could write twice.
    After a short or failed write it is cut back to the last whole record, because a tear in the middle makes the file
    unreadable. Opened with ``O_APPEND``: if somebody truncates the file, the next write must not leave a hole of NUL
    bytes. The file never exists without ``head``, its first records; ``name`` is for messages.

    Raises:
        NameTakenError: The path exists.
        StorageError: The file cannot be made.
    """

    def __init__(self, path: Path, head: bytes, name: str, mode: int = PRIVATE_MODE) -> None:
        self.path = path
        make_folder(path.parent, name, mode)
        if os.path.lexists(path):
            raise name_taken(path)
        self._good_bytes = 0
        self._torn = False
        self._head = b""  # records to write first, in a file that begins again
        self._descriptor = -1
        try:
            self._create(head, mode)
        except FileExistsError:
            raise name_taken(path) from None
        except OSError as error:
            raise StorageError(f"{name}: cannot be written: {error.strerror or error}") from error

    def _create(self, head: bytes, mode: int) -> None:
        # Under a temporary name first, so that nobody ever sees a file without its metadata. A link, unlike a rename, does not
        # replace a file that somebody else made meanwhile.
        self._descriptor, temporary = temporary_file(self.path.parent, self.path.name)
        try:
            os.fchmod(self._descriptor, mode)  # exactly this mode, independent of the umask
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, os.O_APPEND)
            self.write(head)
            try:
                os.link(temporary, self.path)
            except OSError:
                if self.path.exists():
                    raise
                os.rename(temporary, self.path)  # a file system without links
        except OSError:
            os.close(self._descriptor)
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    @property
    def size_bytes(self) -> int:
        """Size of the complete records, in bytes."""
        return self._good_bytes

    @property
    def gone(self) -> bool:
        """True if somebody has removed or replaced the file, so that nobody can read later writes."""
        try:
            return not os.path.samestat(self.path.stat(), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # another problem of the storage; the next write reports it
            return False

    @property
    def truncated(self) -> bool:
        """True if somebody has truncated the file in place, as logrotate does with ``copytruncate``."""
        try:
            return os.fstat(self._descriptor).st_size < self._good_bytes
        except OSError:
            return False

    def restart(self, head: bytes) -> None:
        """Empty the file, and begin it again with other first records, now or with the next write."""
        self._good_bytes, self._torn, self._head = 0, True, head
        with contextlib.suppress(OSError):
            self.write(b"")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self.path}: a file that is being written cannot be sent to another process")

    def write(self, data: bytes) -> None:
        """Append whole records; on an OSError none of them is in the file."""
        if self._torn:
            self._cut_back()
        data = self._head + data
        view = memoryview(data)
        try:
            while view:
                written = os.write(self._descriptor, view)
                if not written:
                    raise OSError(errno.EIO, "nothing was written")
                view = view[written:]
        except OSError:
            self._torn = True
            with contextlib.suppress(OSError):  # retried before the next write
                self._cut_back()
            raise
        self._good_bytes += len(data)
        self._head = b""

    def _cut_back(self) -> None:
        if os.fstat(self._descriptor).st_size > self._good_bytes:  # ftruncate would extend a shorter file
            os.ftruncate(self._descriptor, self._good_bytes)
        self._torn = False

    def overwrite(self, offset: int, data: bytes) -> None:
        """Replace bytes that are already in the file. Works even on a full disk; raises nothing."""
        with contextlib.suppress(OSError):
            if os.fstat(self._descriptor).st_size < offset:
                return  # truncated meanwhile; a hole would read as NUL bytes
            # With O_APPEND, pwrite on Linux ignores the offset and appends.
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_APPEND)
            try:
                os.pwrite(self._descriptor, data, offset)
            finally:
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags)

    def finish(self, lines: bytes) -> None:
        """Write the last lines, close the array, and close the file. Raises nothing."""
        try:
            self.write(lines)
            # Perfetto accepts a comma before the bracket, but JSON does not.
            self.overwrite(self._good_bytes - len(b",\n"), b"\n]\n")
        except OSError:
            pass  # Perfetto reads the file without its end
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def name_taken(path: Path) -> NameTakenError:
    """Return the error that refuses a name."""
    return NameTakenError(
        f"{path}: exists already, and tracekit never overwrites a trace; choose another name "
        "(with {run_id} or {attempt} in it), or remove the file"
    )


def check_mode(mode: int) -> int:
    """Return a file mode with which the user can read and write the files; refuse others."""
    if isinstance(mode, bool) or not isinstance(mode, int) or mode & ~0o666 or mode & PRIVATE_MODE != PRIVATE_MODE:
        shown = oct(mode) if isinstance(mode, int) else repr(mode)
        raise ConfigError(f"mode must say who may read and write the files, such as 0o600, 0o640 or 0o664, not {shown}")
    return mode


def make_folder(folder: Path, path: str, mode: int = PRIVATE_MODE) -> None:
    """Make the folder of a trace if it does not exist; by default for the user alone (mode 0700).

    Users who may read the files by ``mode`` may also list and enter the folder. ``path`` is for the error message.

    Raises:
        StorageError: The folder cannot be made or written to.
    """
    try:
        make_folders(folder, mode)
        if not folder.is_dir():
            raise NotADirectoryError(20, "its folder is not a folder")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "its folder may not be written to")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}") from error


class RankFile:
    """Writes one file of a rank trace. The file names its process, and opens and merges by itself.

    While writing fails, events are lost and counted. When writing resumes, a ``tracekit.gap`` instant reports the
    number of lost events and their time range, and the missing starts and finishes of long slices are written. The
    head of the file has the number of lost events in addition, in case the disk stays full.

    ``name`` is the final path or URL of the file, ``path`` the local path that is written. A file that somebody
    truncated begins again in the same place.

    Raises:
        NameTakenError: The file exists already.
        StorageError: The file cannot be made.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        recording: Recording,
        mode: int = PRIVATE_MODE,
        *,
        truncated: RankFile | None = None,
    ) -> None:
        process, anchor = recording.process, recording.anchor
        self.name = name
        self.path = path
        self.events = 0
        """Number of written events; a slice counts at its finish."""
        self.start_ns = 0
        """Start of the first event, ns since the epoch; 0 before the first event."""
        self.end_ns = 0
        """End of the time that the file covers, ns since the epoch."""
        self._gap = Gap()
        self._lost_before = 0
        self._tables: EventBatch | None = None  # an empty batch, to write late events at the end
        self._late_metadata: deque[bytes] = deque(maxlen=_MOST_LATE)
        self._notices = Notices()
        self._error = ""
        self._pid = process.pid
        self._base_ns = base_time_ns(anchor.wall_ns)
        self._encoder = ChromeEncoder(process.pid, self._base_ns)
        head = b"[\n" + self._encoder.metadata(
            METADATA_EVENT,
            {
                "format_version": FORMAT_VERSION,
                "tracekit_version": __version__,
                **{name: getattr(process, name) for name in _IDENTITY},
                "rank_source": process.source,
                "counts": recording.counts,
                "boot_id": process.boot_id,
                BASE_TIME_KEY: self._base_ns,
                "clock": _anchor(anchor),
                **_which_process(process),
            },
        )
        head += self._encoder.metadata("process_name", {"name": _title(process)})
        head += self._encoder.metadata("process_sort_index", {"sort_index": process.rank})
        self._loss_at = len(head)
        head += self._loss_line()
        if truncated is None:
            self._file = LiveFile(path, head, name, mode)
        else:
            self._file = truncated._file  # noqa: SLF001 - the same class
            self._file.restart(head)

    @property
    def lost_events(self) -> int:
        """Number of events that could not be written and are not in the file."""
        return self._lost_before + self._gap.events + self._gap.late_events

    @property
    def size_bytes(self) -> int:
        """Size of the file so far, before compression."""
        return self._file.size_bytes

    @property
    def gone(self) -> bool:
        """True if somebody has removed or replaced the file."""
        return self._file.gone

    @property
    def truncated(self) -> bool:
        """True if somebody has truncated the file in place."""
        return self._file.truncated

    def write_events(self, batch: EventBatch, *, count: bool = True) -> None:
        """Write a batch, or count it as lost. Raises nothing for a storage that fails.

        The end and start where a slice is cut in two do not count as events.
        """
        for piece in batch.pieces(_WRITTEN_AT_ONCE):
            self._write_piece(piece, count=count)

    def _write_piece(self, batch: EventBatch, *, count: bool) -> None:
        late = self._late(batch) if self._gap or self._late_metadata else b""
        if self._write(late + self._encoder.encode(batch)):
            self.events += count_events(batch) if count else 0
            if late:
                self._made_up()
        else:
            self._gap.add(batch, count=count)
            self._tables = dataclasses.replace(batch, records=())
            self._encoder.restart()  # the lost data may include thread names
            self._tell_losses()
            self._notices.warn(
                "failed",
                "tracekit: %s cannot be written (%s); events are lost and counted until it can be (%d so far)",
                self.path,
                self._error,
                self.lost_events,
            )
        if batch and not self.start_ns:
            self.start_ns, self.end_ns = span_ns(batch)
        if batch.cut_ns:
            self.end_ns = max(self.end_ns, batch.cut_ns + batch.offset_ns)

    def write_gap(self, gap: Gap) -> None:
        """Report events that were lost before this file."""
        data = gap.encode(self._pid, self._base_ns)
        if data and not self._write(data):
            self._late_metadata.append(data)

    def write_metadata(self, name: str, args: Mapping[str, Any]) -> None:
        """Write a metadata event, now or when writing resumes."""
        data = self._encoder.metadata(name, args)
        if not self._write(data):
            self._late_metadata.append(data)

    def finish(self, summary: Mapping[str, Any] | None = None) -> None:
        """Complete the file, the last one of a recording with the counts of its events. Raises nothing."""
        if self._tables is not None and (self._gap or self._late_metadata):
            self.write_events(self._tables, count=False)
        self._file.finish(b"" if summary is None else self._encoder.metadata(SUMMARY_EVENT, summary))

    def abandon(self) -> None:
        """Close the file as it is, after somebody has removed it."""
        self._file.abandon()

    def _write(self, data: bytes) -> bool:
        try:
            self._file.write(data)
        except OSError as error:
            self._error = error.strerror or str(error)
            return False
        return True

    def _late(self, batch: EventBatch) -> bytes:
        """Return the late data: metadata, the gap, and the starts and finishes of long slices."""
        late = self._encoder.encode(dataclasses.replace(batch, records=self._gap.late))
        return b"".join(self._late_metadata) + self._gap.encode(self._pid, self._base_ns) + late

    def _made_up(self) -> None:
        self.events += self._gap.late_events
        self._lost_before += self._gap.events
        self._gap = Gap()
        self._late_metadata.clear()
        self._tell_losses()

    def _tell_losses(self) -> None:
        self._file.overwrite(self._loss_at, self._loss_line())

    def _loss_line(self) -> bytes:
        line = self._encoder.metadata(LOSS_EVENT, {LOST_EVENTS_KEY: self.lost_events})
        return line.removesuffix(b"}},\n").ljust(_LOSS_BYTES) + b"}},\n"


def clock_metadata(anchor: Anchor, step: ClockStep | None) -> list[tuple[str, dict[str, int]]]:
    """Return the metadata events (name and args) for a reading of the clocks."""
    events = [(CLOCK_ANCHOR_EVENT, _anchor(anchor))]
    if step is not None:
        events.append((CLOCK_STEP_EVENT, dataclasses.asdict(step)))
    return events


def offset_metadata(offset: ClockOffset) -> tuple[str, dict[str, Any]]:
    """Return the metadata event (name and args) for the offset of this process's clock to another's."""
    return CLOCK_OFFSET_EVENT, dataclasses.asdict(offset)


def _title(process: ProcessInfo) -> str:
    attempt = f"attempt {process.attempt}" if process.attempt else ""
    return " · ".join(filter(None, (f"rank {process.rank}", attempt, process.child)))


def _which_process(process: ProcessInfo) -> dict[str, Any]:
    """Return the values that distinguish processes with the same pid, and a child from the main process of its rank."""
    values = {"start_ticks": process.start_ticks, "parent_pid": process.parent_pid, "worker": process.worker}
    return {name: value for name, value in values.items() if value is not None}


def _anchor(anchor: Anchor) -> dict[str, int]:
    return {"wall_ns": anchor.wall_ns, "monotonic_ns": anchor.monotonic_ns, "error_ns": anchor.error_ns}
