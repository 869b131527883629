"""RankFile: one file of a rank trace, from its head to its end (see `tracekit.formats.rank_trace` for its form).

`RankFiles` are those of one handler.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import TYPE_CHECKING, Any

from tracekit.errors import ConfigError
from tracekit.formats.chrome_writer import ChromeEncoder
from tracekit.formats.rank_trace import (
    BASE_TIME_KEY,
    CLOCK_ANCHOR_EVENT,
    CLOCK_OFFSET_EVENT,
    CLOCK_STEP_EVENT,
    FORMAT_VERSION,
    METADATA_EVENT,
    SUMMARY_EVENT,
    base_time_ns,
)
from tracekit.handlers.live_file import LiveFile, NameTakenError
from tracekit.naming import FileName
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracekit.clock import Anchor, ClockOffset, ClockStep
    from tracekit.events import EventBatch
    from tracekit.handlers.base import Recording
    from tracekit.handlers.rotation import Retention
    from tracekit.timestamp import Timestamp

__all__ = ["RankFile", "RankFiles", "clock_metadata", "offset_metadata", "trace_name"]

logger = logging.getLogger("tracekit")


class RankFile:
    """Writes one file of a rank trace, which says by itself whose it is, and opens and merges by itself.

    Args:
        path: Path or URL.
        recording: Whose it is, and what its times are relative to.

    Raises:
        NameTakenError: The file exists already.
        StorageError: It cannot be made.
    """

    def __init__(self, path: str, recording: Recording) -> None:
        process, anchor = recording.process, recording.anchor
        self.path = path
        self.events = 0
        """How many events were written."""
        self.lost_events = 0
        """How many could not be written."""
        self._warned = False
        self._encoder = ChromeEncoder(process.pid, base_time_ns(anchor.wall_ns))
        head = b"[\n" + self._encoder.metadata(
            METADATA_EVENT,
            {
                "format_version": FORMAT_VERSION,
                "tracekit_version": __version__,
                "run_id": process.run_id,
                "rank": process.rank,
                "local_rank": process.local_rank,
                "world_size": process.world_size,
                "node": process.node,
                "host": process.host,
                "pid": process.pid,
                "attempt": process.attempt,
                "rank_source": process.source,
                "boot_id": process.boot_id,
                BASE_TIME_KEY: base_time_ns(anchor.wall_ns),
                "clock": _anchor(anchor),
            },
        )
        head += self._encoder.metadata("process_name", {"name": f"rank {process.rank}"})
        head += self._encoder.metadata("process_sort_index", {"sort_index": process.rank})
        self._file = LiveFile(path, head)

    @property
    def size_bytes(self) -> int:
        """Size of the file so far, before compression."""
        return self._file.size_bytes

    def write_events(self, batch: EventBatch, *, count: bool = True) -> None:
        """Write a batch, or count it as lost. Raises nothing for a storage that fails.

        Args:
            batch: The events.
            count: Whether they count as events; the ends and starts where a slice is cut in two do not.
        """
        written = self._write(self._encoder.encode(batch))
        if written:
            self.events += len(batch) if count else 0
        else:
            self.lost_events += len(batch) if count else 0
            self._encoder.restart()  # names of threads may have been among what was lost

    def write_metadata(self, name: str, args: Mapping[str, Any]) -> None:
        """Write a metadata event."""
        self._write(self._encoder.metadata(name, args))

    def finish(self, summary: Mapping[str, Any] | None = None) -> Path | None:
        """Complete the file; compress and upload it where its name asks for it. Raises nothing.

        Args:
            summary: What was recorded and lost, for the last file of a recording.

        Returns:
            The local file that remains; None when it was uploaded.
        """
        return self._file.finish(b"" if summary is None else self._encoder.metadata(SUMMARY_EVENT, summary))

    def _write(self, data: bytes) -> bool:
        try:
            self._file.write(data)
        except OSError as error:
            if not self._warned:
                self._warned = True
                logger.warning(
                    "tracekit: %s cannot be written (%s); events are lost and counted until it can",
                    self.path,
                    error.strerror or error,
                )
            return False
        return True


class RankFiles:
    """The files of one handler: gives each a name that nobody has taken, and removes the oldest where there are limits.

    Args:
        name: Their names.
        retention: How many are kept.

    Attributes:
        paths: The files that were begun and not removed again, the newest last.
    """

    def __init__(self, name: FileName, retention: Retention) -> None:
        self.paths: list[str] = []
        self._name = name
        self._retention = retention
        self._number = 0
        self._used: set[str] = set()  # every name that was given, also to files that are gone

    def begin(self, recording: Recording, timestamp: Timestamp, *, first: bool = False) -> RankFile:
        """Make the next file.

        Args:
            recording: Whose it is.
            timestamp: The training time, for its name.
            first: Refuse a name that is taken, instead of going on to the next.

        Raises:
            ConfigError: The name is taken.
            StorageError: It cannot be made.
        """
        for number, path in self._name.alternatives(recording.process, timestamp, self._number):
            if path in self._used:
                continue
            try:
                file = RankFile(path, recording)
            except NameTakenError:
                if first:
                    raise
                continue
            self._number = number + 1
            self._used.add(path)
            self.paths.append(path)
            return file
        raise ConfigError(f"file name {self._name.template!r}: every number of it is taken")

    def finish(self, file: RankFile, summary: Mapping[str, Any] | None = None) -> None:
        """Complete a file. Raises nothing."""
        local = file.finish(summary)
        if local is not None:
            self._retention.add(local)

    def make_room(self, *, coming: int = 0, live_bytes: int | None = None) -> None:
        """Remove the oldest files beyond the limits; see `Retention.make_room`."""
        for path in self._retention.make_room(coming=coming, live_bytes=live_bytes):
            if os.fspath(path) in self.paths:  # a local copy of what could not be uploaded is not
                self.paths.remove(os.fspath(path))


def trace_name(filename: str | os.PathLike[str], number: str) -> FileName:
    """Return the template of a JSON trace, which may have a field ``number``.

    Raises:
        ConfigError: It is wrong, or does not end as a JSON trace does.
    """
    name = os.fspath(filename)
    template = FileName(name, number)
    if not name.endswith((".json", ".json.gz")):
        raise ConfigError(f"file name {name!r}: a JSON trace must end with .json or .json.gz")
    return template


def clock_metadata(anchor: Anchor, step: ClockStep | None) -> list[tuple[str, dict[str, int]]]:
    """Return the metadata events, name and args, that tell of a reading of the clocks."""
    events = [(CLOCK_ANCHOR_EVENT, _anchor(anchor))]
    if step is not None:
        events.append((CLOCK_STEP_EVENT, dataclasses.asdict(step)))
    return events


def offset_metadata(offset: ClockOffset) -> tuple[str, dict[str, Any]]:
    """Return the metadata event, name and args, that tells how this process's clock stands to another's."""
    return CLOCK_OFFSET_EVENT, dataclasses.asdict(offset)


def _anchor(anchor: Anchor) -> dict[str, int]:
    return {"wall_ns": anchor.wall_ns, "monotonic_ns": anchor.monotonic_ns, "error_ns": anchor.error_ns}
