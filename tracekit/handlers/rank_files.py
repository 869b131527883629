"""RankFiles: the files of one handler, from their names to their final places."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_path, check_whole
from tracekit.clock import SYSTEM_CLOCK
from tracekit.errors import ConfigError, StorageError
from tracekit.formats.segment_index import index_name
from tracekit.handlers.live_file import PRIVATE_MODE, NameTakenError, check_mode, make_folder, name_taken
from tracekit.handlers.rank_file import RankFile
from tracekit.naming import FileName, shown
from tracekit.outbox.outbox import Outbox, PackingOutbox
from tracekit.storage import basename, is_remote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.arguments import StrPath
    from tracekit.handlers.base import Recording
    from tracekit.handlers.rotation import Retention
    from tracekit.timestamp import Timestamp

DEFAULT_SPOOL_BYTES: Final = 2 << 30
_LONGEST_S: Final = 10.0  # without a call of `RankFiles.ending`
_SHARE: Final = 0.9  # of the time for the end of the recording; the rest is for the steps before and after


class RankFiles:
    """The files of one handler: gives each file a free name, and removes the oldest files beyond the limits.

    Args:
        name: Template of the file names.
        retention: Limits on the files to keep.
        spool: Remote storage only: the folder for files that wait for upload; None uses the default.
        spool_bytes: Maximum size of the files in the spool.
        mode: Mode of local files.

    Attributes:
        paths: The files that were begun and not removed, the newest last.
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
        elif name.endswith(".gz"):
            self.outbox = PackingOutbox(Path.cwd())
        else:
            self.outbox = Outbox(Path.cwd())
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
        """Make the next file.

        Args:
            recording: The recording of the file.
            timestamp: The training time, for the file name.
            first: Refuse a name that is taken, instead of trying the next.

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
    """Return the template of a JSON trace, which may have a field ``number``.

    Raises:
        ConfigError: The template is wrong, or lacks the ending of a JSON trace.
    """
    name = check_path("filename", filename)
    template = FileName(name, number)
    if not name.endswith((".json", ".json.gz")):
        raise ConfigError(f"file name {shown(name)}: a JSON trace must end with .json or .json.gz")
    return template
