"""RankFiles: the files of one handler, from their names to their final places, and the limits that begin and remove them."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_path, check_seconds, check_whole
from tracekit.clock import SYSTEM_CLOCK
from tracekit.errors import ConfigError, StorageError, TimeError
from tracekit.formats.segment_index import index_name
from tracekit.handlers.rank_file import NameTakenError, RankFile, check_mode, make_folder, name_taken
from tracekit.naming import FileName, shown
from tracekit.outbox.outbox import LocalOutbox, Outbox
from tracekit.storage import PRIVATE_MODE, basename, is_remote
from tracekit.timestamp import Time, TimeUnit, ensure_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.arguments import StrPath
    from tracekit.handlers.base import Recording
    from tracekit.timestamp import Timestamp

logger = logging.getLogger("tracekit")
DEFAULT_SPOOL_BYTES: Final = 2 << 30
_LONGEST_S: Final = 10.0  # without a call of `RankFiles.ending`
_SHARE: Final = 0.9  # of the time for the end of the recording; the rest is for the steps before and after


@dataclass(frozen=True, slots=True)
class Rotation:
    """Limits that make a file full, None for no limit: its size before compression, the time of its events, the training."""

    limit_bytes: int | None = None
    limit_ns: int | None = None
    every: Time | None = None

    @classmethod
    def of(
        cls, rotate_bytes: int | None, rotate_seconds: float | None, rotate_every: Time | str | None
    ) -> Rotation | None:
        """Check the arguments of a handler; return None if it does not rotate."""
        if rotate_bytes is not None:
            check_whole("rotate_bytes", rotate_bytes)
        if rotate_seconds is not None:
            check_seconds("rotate_seconds", rotate_seconds)
        every = None
        if rotate_every is not None:
            try:
                every = ensure_time(rotate_every)
            except TimeError as error:
                raise ConfigError(f"rotate_every: {error}") from None
            if every.unit in (TimeUnit.SECOND, TimeUnit.DURATION) or every.value <= 0:
                raise ConfigError(
                    f"rotate_every must count epochs, batches, samples or tokens, such as '1ep' or '500ba', not "
                    f"{rotate_every!r}; rotate_seconds= goes by time"
                )
        if rotate_bytes is None and rotate_seconds is None and every is None:
            return None
        return cls(rotate_bytes, None if rotate_seconds is None else round(rotate_seconds * 1e9), every)

    def due(self, size_bytes: int, span_ns: int, since: Timestamp, now: Timestamp) -> bool:
        """Return True if a file is full; ``span_ns`` is the time, and ``since`` to ``now`` the training, of its events."""
        return (
            (self.limit_bytes is not None and size_bytes >= self.limit_bytes)
            or (self.limit_ns is not None and span_ns >= self.limit_ns)
            or (self.every is not None and now.get(self.every.unit) - since.get(self.every.unit) >= self.every)
        )


class Retention:
    """Removes the oldest finished files of this process beyond a number or a total size. Used by one thread.

    Files of other processes, of earlier attempts and of earlier runs are never touched. The file being written counts
    for the size. ``removed`` has the number of removed files and their bytes, for the summary.
    """

    def __init__(self, keep: int | None = None, max_total_bytes: int | None = None) -> None:
        if keep is not None:
            check_whole("num_traces_to_keep", keep)
        if max_total_bytes is not None:
            check_whole("max_total_bytes", max_total_bytes)
        self._keep = keep
        self._max_total_bytes = max_total_bytes
        self._files: deque[tuple[Path, int]] = deque()
        self._total_bytes = 0
        self.removed = {"files": 0, "bytes": 0}

    def __bool__(self) -> bool:
        """Return True if there is a limit."""
        return self._keep is not None or self._max_total_bytes is not None

    def add(self, path: Path) -> None:
        """Take in a finished file, the newest."""
        if not self:
            return
        try:
            size_bytes = path.stat().st_size
        except OSError:  # somebody has removed it
            return
        self._files.append((path, size_bytes))
        self._total_bytes += size_bytes

    def make_room(self, *, coming: int = 0, live_bytes: int | None = None) -> list[Path]:
        """Remove the oldest files until the limits hold, but never the newest. Return the removed files; raise nothing.

        ``coming`` files are about to be finished. ``live_bytes`` is the size of the file that is being written, if
        there is one.
        """
        gone = []
        spared = 1 if live_bytes is None else 0
        while len(self._files) > spared and (
            (self._keep is not None and len(self._files) + coming > self._keep)
            or (self._max_total_bytes is not None and self._total_bytes + (live_bytes or 0) > self._max_total_bytes)
        ):
            path, size_bytes = self._files.popleft()
            self._total_bytes -= size_bytes
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.warning("tracekit: %s should be removed and cannot be: %s", path, error.strerror or error)
                continue
            self.removed["files"] += 1
            self.removed["bytes"] += size_bytes
            gone.append(path)
        return gone


class RankFiles:
    """The files of one handler: gives each file a free name, and removes the oldest files beyond the limits.

    ``paths`` are the files that were begun and not removed, the newest last. ``spool`` and ``spool_bytes`` are for a
    remote storage: the folder for files that wait for upload (None: the default), and their maximum size.
    """

    def __init__(
        self,
        name: FileName,
        retention: Retention,
        *,
        spool: StrPath | None = None,
        spool_bytes: int = DEFAULT_SPOOL_BYTES,
        mode: int = PRIVATE_MODE,
    ) -> None:
        self._mode = PRIVATE_MODE if is_remote(name.template) else check_mode(mode)
        if retention and is_remote(name.template):
            raise ConfigError(
                f"file name {shown(name.template)}: num_traces_to_keep and max_total_bytes are for local files, since what was "
                "uploaded stays; spool_bytes= limits what waits for its upload"
            )
        check_whole("spool_bytes", spool_bytes)
        self.paths: list[str] = []
        self.outbox: Outbox | None = None
        self._name = name
        self._retention = retention
        self._spool = None if spool is None else Path(check_path("spool", spool))
        self._spool_bytes = spool_bytes
        self._deadline_ns: int | None = None
        self._number = 0
        self._used: set[str] = set()  # every name that was given, including names of files that are gone
        self._name_at: dict[Path, str] = {}  # names of the finished files on this machine

    def open(self, recording: Recording) -> None:
        """Make the folder of local files; start a thread for packing and uploading, if they are needed.

        Raises:
            ConfigError: Two ranks or attempts would have the same name.
            StorageError: Nothing can be written there.
        """
        name, process = self._name.template, recording.process
        self._name.check(process)
        path = self._name.format(process, recording.timestamp)
        if not is_remote(path):
            make_folder(Path(path).parent, path, self._mode)
        if is_remote(name):
            from tracekit.outbox.remote import UploadingOutbox  # here: local files need none

            index = FileName(index_name(name)).format(process, recording.timestamp)
            header = {
                "run_id": process.run_id,
                "rank": process.rank,
                "attempt": process.attempt,
                "pid": process.pid,
                "index": index,
            }
            self.outbox = UploadingOutbox(self._spool, header, self._spool_bytes)
        else:
            self.outbox = LocalOutbox(Path.cwd(), packs=name.endswith(".gz"))
        self.outbox.start()

    @property
    def lost(self) -> Mapping[str, int]:
        """Number of lost events in finished files, by reason."""
        return {} if self.outbox is None else self.outbox.lost

    @property
    def kept(self) -> list[str]:
        """Local paths of files that could not be packed or uploaded; complete when the recording has ended."""
        return [] if self.outbox is None else [os.fspath(path) for path in self.outbox.kept]

    def begin(self, recording: Recording, timestamp: Timestamp, *, first: bool = False) -> RankFile:
        """Make the next file. The first one is refused if its name is taken; later ones take the next number.

        Raises:
            ConfigError: The name is taken.
            StorageError: The file cannot be made.
        """
        assert self.outbox is not None
        for number, name in self._name.alternatives(recording.process, timestamp, self._number):
            if name in self._used:
                continue
            path = self.outbox.place(name)
            try:
                if not is_remote(name) and os.path.lexists(path.parent / basename(name)):
                    raise name_taken(path.parent / basename(name))  # the packed one
                file = RankFile(name, path, recording, self._mode)
            except (ConfigError, StorageError) as error:
                self.outbox.discard(path)
                if first or not isinstance(error, NameTakenError):
                    raise
                continue
            self._number = number + 1
            self._used.add(name)
            self.paths.append(name)
            return file
        raise ConfigError(f"file name {shown(self._name.template)}: every number of it is taken")

    def finish(self, file: RankFile, summary: Mapping[str, Any] | None = None) -> None:
        """Complete a file, and send it to its final place. Raises nothing."""
        assert self.outbox is not None
        file.finish(summary)
        here = self.outbox.send(file.path, file.name, events=file.events, start_ns=file.start_ns, end_ns=file.end_ns)
        if here is not None:
            self._settled(here, file.name)

    def begin_again(self, file: RankFile, recording: Recording) -> RankFile:
        """Begin a file again that somebody has truncated, in the same place. Raises nothing."""
        return RankFile(file.name, file.path, recording, self._mode, truncated=file)

    def lose(self, file: RankFile) -> None:
        """Forget a file that somebody has removed; its name may be given again."""
        assert self.outbox is not None
        file.abandon()
        self.outbox.discard(file.path)
        self._used.discard(file.name)
        self._number = 0 if not self._name.numbered else self._number
        with contextlib.suppress(ValueError):
            self.paths.remove(file.name)

    def make_room(self, *, coming: int = 0, live_bytes: int | None = None) -> None:
        """Remove the oldest files beyond the limits; see `Retention.make_room`."""
        assert self.outbox is not None
        waiting, waiting_bytes = self.outbox.waiting
        for path, name in self.outbox.arrived():
            self._settled(path, name)
        if waiting:
            coming, live_bytes = coming + waiting, (live_bytes or 0) + waiting_bytes
        for path in self._retention.make_room(coming=coming, live_bytes=live_bytes):
            name = self._name_at.pop(path)
            if name in self.paths:
                self.paths.remove(name)

    def ending(self, timeout_s: float) -> None:
        """Note that the recording ends now, and the time remaining. Called from any thread."""
        self._deadline_ns = SYSTEM_CLOCK.monotonic_ns() + round(timeout_s * _SHARE * 1e9)

    def close(self) -> None:
        """Deliver the finished files, within the time for the end of the recording."""
        if self.outbox is None:
            return
        if self._deadline_ns is None:  # the recording has not started
            self.ending(_LONGEST_S)
        assert self._deadline_ns is not None
        self.outbox.close(max(0.0, (self._deadline_ns - SYSTEM_CLOCK.monotonic_ns()) / 1e9))
        self.make_room()

    def _settled(self, path: Path, name: str) -> None:
        self._name_at[path] = name
        self._retention.add(path)


def trace_name(filename: StrPath, number: str) -> FileName:
    """Return the template of a JSON trace, which may have a field ``number``; refuse other endings."""
    name = check_path("filename", filename)
    template = FileName(name, number)
    if not name.endswith((".json", ".json.gz")):
        raise ConfigError(f"file name {shown(name)}: a JSON trace must end with .json or .json.gz")
    return template
