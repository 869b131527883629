"""Outbox: owns the finished files of a handler and brings each to where it belongs, so that recording never waits for that.

There are three: for plain local files there is nothing to do; `PackingOutbox` packs local ``.gz`` files; `UploadingOutbox`
uploads. The last two have a thread of their own, which is started when the recording starts and not when it ends, because at
the end of the interpreter some Pythons start no more.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from tracekit.outbox.pack import StoppedError, pack

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["GONE", "BackgroundOutbox", "Outbox", "PackingOutbox"]

logger = logging.getLogger("tracekit")

GONE: Final = "events of files that were removed"

_LAST_S: Final = 0.5


class Outbox:
    """The outbox of plain local files, which are where they belong as soon as they are written.

    Threads: everything is called by the thread that writes the files, and `start` by the one that starts the profiler.

    Args:
        folder: What relative names are relative to, whatever the current folder is later.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def lost(self) -> Mapping[str, int]:
        """How many events of finished files are lost, by reason."""
        return {}

    @property
    def kept(self) -> list[Path]:
        """Files that have not arrived where they belong, when it is closed."""
        return []

    def start(self) -> None:
        """Get ready.

        Raises:
            ConfigError: The names cannot be had.
            StorageError: Nothing can be kept here.
        """

    def place(self, name: str) -> Path:
        """Return where the file of that name is to be written, plain."""
        return self._folder / name

    def send(self, path: Path, name: str, *, events: int, start_ns: int, end_ns: int) -> Path | None:
        """Take a finished file; never waits.

        Args:
            path: What `place` has returned.
            name: Its name.
            events: How many it holds.
            start_ns: From when on, ns since the epoch.
            end_ns: Until when.

        Returns:
            Where it is, if it is already where it belongs and stays there.
        """
        del name, events, start_ns, end_ns
        return path

    def discard(self, path: Path) -> None:
        """Forget a place in which no file could be made."""

    @property
    def waiting(self) -> tuple[int, int]:
        """How many files on this machine are still on their way, and how many bytes they take."""
        return 0, 0

    def arrived(self) -> list[tuple[Path, str]]:
        """Return the files that have come to rest on this machine since the last call, each with its name."""
        return []

    def close(self, timeout_s: float) -> None:
        """Bring out the rest, but return after this time at the latest; log what is left behind and how to go on."""


class BackgroundOutbox(Outbox):
    """One that works on a thread of its own. A subclass says what a step of the work is."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracekit-outbox", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Let the thread finish its work, for so long at most."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._stop.set()
        self._interrupt()
        if self._thread.is_alive():
            self._thread.join(_LAST_S)  # to clean up

    def _interrupt(self) -> None:
        """End what a step of the work waits for."""

    def _step(self) -> float | None:
        """Do a piece of work; return how long to pause before the next one, or None if there is nothing to do."""
        raise NotImplementedError

    def _idle_s(self) -> float | None:
        """Return after which time there will be something to do."""
        return None

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            pause_s = self._step()
            if pause_s:
                # The end of the recording cuts a pause short, once; the pauses after it are part of what it may take.
                (self._stop if self._closing.is_set() else self._closing).wait(pause_s)
            elif pause_s is None:
                if self._closing.is_set():
                    return
                self._wake.wait(self._idle_s())


class PackingOutbox(BackgroundOutbox):
    """Packs finished local files whose names end with ``.gz``. Until then they are there plain, without that ending."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._waiting: deque[tuple[Path, str, int]] = deque()  # plain file, name, size
        self._arrived: deque[tuple[Path, str]] = deque()
        self._kept: list[Path] = []

    @property
    def kept(self) -> list[Path]:
        """Files that could not be packed."""
        return self._kept

    @property
    def waiting(self) -> tuple[int, int]:
        """How many files are not packed yet, and their size."""
        waiting = list(self._waiting)
        return len(waiting), sum(size_bytes for _, _, size_bytes in waiting)

    def place(self, name: str) -> Path:
        """Return the name without its ``.gz``."""
        return super().place(name.removesuffix(".gz"))

    def send(self, path: Path, name: str, *, events: int, start_ns: int, end_ns: int) -> Path | None:
        """Have it packed."""
        del events, start_ns, end_ns
        try:
            size_bytes = path.stat().st_size
        except OSError:
            size_bytes = 0
        self._waiting.append((path, name, size_bytes))
        self._wake.set()
        return None

    def arrived(self) -> list[tuple[Path, str]]:
        """Return what has been packed, or never will be, since the last call."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def close(self, timeout_s: float) -> None:
        """Pack the rest; what there is no time for stays plain."""
        super().close(timeout_s)
        left = list(self._waiting)
        if left:
            self._kept += [plain for plain, _, _ in left]
            logger.warning(
                "tracekit: there was no time to pack %s; kept plain", ", ".join(str(plain) for plain, _, _ in left)
            )

    def _step(self) -> float | None:
        if not self._waiting:
            return None
        plain, name, _ = self._waiting[0]
        packed = self._folder / name
        try:
            if pack(plain, packed, self._stop.is_set):
                self._arrived.append((packed, name))
        except StoppedError:
            return None
        except OSError as error:
            self._kept.append(plain)
            self._arrived.append((plain, name))
            logger.warning("tracekit: %s cannot be packed (%s); kept plain", plain, error.strerror or error)
        self._waiting.popleft()
        return 0
