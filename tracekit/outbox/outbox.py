"""Outbox: delivers the finished files of a handler to their final places, so that recording never waits for it.

There are three: `Outbox` does nothing for plain local files, `PackingOutbox` packs local ``.gz`` files, and `UploadingOutbox`
uploads. The last two have a separate thread each. It starts with the recording and not at its end, because some Python
versions start no threads while the interpreter shuts down.
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

logger = logging.getLogger("tracekit")

GONE: Final = "events of files that were removed"

_LAST_S: Final = 0.5


class Outbox:
    """The outbox of plain local files, which are written directly to their final places.

    Threads: the thread that writes the files calls all methods.

    Args:
        folder: Base of relative names, independent of later changes of the current folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def lost(self) -> Mapping[str, int]:
        """Number of lost events in finished files, by reason."""
        return {}

    @property
    def kept(self) -> list[Path]:
        """Files that were not delivered when the outbox was closed."""
        return []

    def start(self) -> None:
        """Get ready.

        Raises:
            ConfigError: Another recording has written under these names.
            StorageError: The files cannot be kept on this machine.
        """

    def place(self, name: str) -> Path:
        """Return the path for writing the plain file of a name."""
        return self._folder / name

    def send(self, path: Path, name: str, *, events: int, start_ns: int, end_ns: int) -> Path | None:
        """Take a finished file; never waits.

        Args:
            path: The path from `place`.
            name: Name of the file.
            events: Number of events in the file.
            start_ns: Start of the first event, ns since the epoch.
            end_ns: End of the time that the file covers, ns since the epoch.

        Returns:
            The path, if it is the final place of the file; else None.
        """
        del name, events, start_ns, end_ns
        return path

    def discard(self, path: Path) -> None:
        """Forget a place after its file was removed or could not be made."""

    @property
    def waiting(self) -> tuple[int, int]:
        """Number of files on this machine that are not delivered yet, and their size in bytes."""
        return 0, 0

    def arrived(self) -> list[tuple[Path, str]]:
        """Return the path and name of each file that reached its final place on this machine since the last call."""
        return []

    def close(self, timeout_s: float) -> None:
        """Deliver the rest within this time; log the files that remain, and how to continue."""


class BackgroundOutbox(Outbox):
    """An outbox that works on a separate thread. A subclass implements one step of the work."""

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
        """Let the thread finish its work within this time."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._stop.set()
        self._interrupt()
        if self._thread.is_alive():
            self._thread.join(_LAST_S)  # to clean up

    def _interrupt(self) -> None:
        """End the wait of the current step, if it waits."""

    def _step(self) -> float | None:
        """Do a piece of work; return how long to pause before the next one, or None if there is nothing to do."""
        raise NotImplementedError

    def _idle_s(self) -> float | None:
        """Return the time until the next work in seconds, or None if none is planned."""
        return None

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            pause_s = self._step()
            if pause_s:
                # The end of the recording cuts the current pause short. Later pauses count against its timeout.
                (self._stop if self._closing.is_set() else self._closing).wait(pause_s)
            elif pause_s is None:
                if self._closing.is_set():
                    return
                self._wake.wait(self._idle_s())


class PackingOutbox(BackgroundOutbox):
    """Packs finished local files with names that end with ``.gz``. Until then they exist plain, without that ending."""

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
        """Number of files that are not packed yet, and their size in bytes."""
        waiting = list(self._waiting)
        return len(waiting), sum(size_bytes for _, _, size_bytes in waiting)

    def place(self, name: str) -> Path:
        """Return the name without its ``.gz``."""
        return super().place(name.removesuffix(".gz"))

    def send(self, path: Path, name: str, *, events: int, start_ns: int, end_ns: int) -> Path | None:
        """Queue the file for packing."""
        del events, start_ns, end_ns
        try:
            size_bytes = path.stat().st_size
        except OSError:
            size_bytes = 0
        self._waiting.append((path, name, size_bytes))
        self._wake.set()
        return None

    def arrived(self) -> list[tuple[Path, str]]:
        """Return the files that were packed, or failed to pack, since the last call."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def close(self, timeout_s: float) -> None:
        """Pack the rest; files that do not fit into the time stay plain."""
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
