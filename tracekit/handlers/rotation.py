"""The limits of a rank trace of several files: Rotation begins a new file, Retention removes the oldest."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.arguments import check_seconds, check_whole
from tracekit.errors import ConfigError, TimeError
from tracekit.timestamp import Time, TimeUnit, ensure_time

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.timestamp import Timestamp

logger = logging.getLogger("tracekit")


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
        self._files: deque[tuple[Path, str, int]] = deque()
        self._total_bytes = 0
        self.removed = {"files": 0, "bytes": 0}

    def __bool__(self) -> bool:
        """Return True if there is a limit."""
        return self._keep is not None or self._max_total_bytes is not None

    def add(self, path: Path, name: str) -> None:
        """Add a finished file, the newest, and its name."""
        if not self:
            return
        try:
            size_bytes = path.stat().st_size
        except OSError:  # somebody has removed it
            return
        self._files.append((path, name, size_bytes))
        self._total_bytes += size_bytes

    def make_room(self, *, coming: int = 0, live_bytes: int | None = None) -> list[str]:
        """Remove the oldest files until the limits hold, but never the newest. Return the names of removed files; raise nothing.

        ``coming`` files are about to be finished. ``live_bytes`` is the size of the file that is being written, if
        there is one.
        """
        gone = []
        spared = 1 if live_bytes is None else 0
        while len(self._files) > spared and (
            (self._keep is not None and len(self._files) + coming > self._keep)
            or (self._max_total_bytes is not None and self._total_bytes + (live_bytes or 0) > self._max_total_bytes)
        ):
            path, name, size_bytes = self._files.popleft()
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
            gone.append(name)
        return gone
