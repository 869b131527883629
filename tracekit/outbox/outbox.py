"""Outbox: delivers the finished files of a handler to their final places, so that recording never waits for it.

`LocalOutbox` leaves plain files where they are and packs those with names in ``.gz``; `UploadingOutbox` uploads. The thread
starts with the recording and not at its end, because some Python versions start no threads while the interpreter shuts down.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from tracekit.storage import temporary_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_CHUNK_BYTES: Final = 1 << 20
GONE: Final = "events of files that were removed"
_LAST_S: Final = 0.5


class StoppedError(Exception):
    """Packing was stopped; the plain file is unchanged."""


def pack(plain: Path, packed: Path, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Replace a file by its packed copy. zlib releases the interpreter lock while it works.

    The same content gives the same bytes. ``stopped`` is called between two pieces; True stops the packing. Return
    False if somebody has removed the plain file meanwhile.

    Raises:
        StoppedError: ``stopped`` returned True.
        OSError: Packing failed, or another file has the name of the copy; the plain file still exists.
    """
    import gzip  # here: most recordings pack nothing

    temporary = ""
    try:
        with plain.open("rb") as source:
            descriptor, temporary = temporary_file(packed.parent, packed.name)
            # Level 1: a fifth of the time of the default for a quarter more bytes.
            with os.fdopen(descriptor, "wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as out:
                os.fchmod(descriptor, os.fstat(source.fileno()).st_mode & 0o777)
                while piece := source.read(_CHUNK_BYTES):
                    if stopped():
                        raise StoppedError
                    out.write(piece)
        _link(temporary, packed)
    except FileNotFoundError:
        if plain.exists():
            raise
        return False
    finally:
        if temporary:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    try:
        os.unlink(plain)
    except FileNotFoundError:
        packed.unlink(missing_ok=True)  # a file that a user has removed must not come back
        return False
    return True


def _link(temporary: str, packed: Path) -> None:
    """Give a file its final name without replacing another file, unlike a rename."""
    try:
        os.link(temporary, packed)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if packed.exists():
            raise
        os.rename(temporary, packed)


logger = logging.getLogger("tracekit")


class Outbox:
    """Works on a separate thread, one step of a subclass at a time. The thread that writes the files calls its methods.

    Attributes:
        lost: Number of lost events in finished files, by reason.
        kept: Files that were not delivered when the outbox was closed.
    """

    def __init__(self) -> None:
        self.lost: Counter[str] = Counter()
        self.kept: list[Path] = []
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracekit-outbox", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            ConfigError: Another recording has written under these names.
        """
        self._thread.start()

    def place(self, name: str) -> Path:
        """Return the path for writing the plain file of a name."""
        raise NotImplementedError

    def send(self, path: Path, name: str, *, events: int, start_ns: int, end_ns: int) -> Path | None:
        """Take a finished file; never waits. Return the path if it is the final place of the file, else None.

        ``start_ns`` and ``end_ns`` limit the time that the file covers, in ns since the epoch.
        """
        raise NotImplementedError

    def discard(self, path: Path) -> None:
        """Forget a place after its file was removed or could not be made."""

    @property
    def waiting(self) -> tuple[int, int]:
        """Number of local files that are not delivered yet, and their size in bytes."""
        return 0, 0

    def arrived(self) -> list[tuple[Path, str]]:
        """Return the path and name of each file that reached its final local place since the last call."""
        return []

    def close(self, timeout_s: float) -> None:
        """Let the thread deliver the rest within this time."""
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


class LocalOutbox(Outbox):
    """Packs finished local files, which until then exist plain; without ``packs`` it leaves all as they are.

    Relative names are in ``folder``, independent of later changes of the current folder.
    """

    def __init__(self, folder: Path, *, packs: bool) -> None:
        super().__init__()
        self._folder = folder
        self._packs = packs
        self._waiting: deque[tuple[Path, str, int]] = deque()  # plain file, name, size
        self._arrived: deque[tuple[Path, str]] = deque()

    def start(self) -> None:
        """Start the thread, if files are to be packed."""
        if self._packs:
            super().start()

    def place(self, name: str) -> Path:
        """Return the name without its ``.gz``."""
        return self._folder / (name.removesuffix(".gz") if self._packs else name)

    def send(self, path: Path, name: str, *, events: int, start_ns: int, end_ns: int) -> Path | None:
        """Queue the file for packing."""
        del events, start_ns, end_ns
        if not self._packs:
            return path
        try:
            size_bytes = path.stat().st_size
        except OSError:
            size_bytes = 0
        self._waiting.append((path, name, size_bytes))
        self._wake.set()
        return None

    @property
    def waiting(self) -> tuple[int, int]:
        """Number of files that are not packed yet, and their size in bytes."""
        waiting = list(self._waiting)
        return len(waiting), sum(size_bytes for _, _, size_bytes in waiting)

    def arrived(self) -> list[tuple[Path, str]]:
        """Return the files that were packed, or failed to pack, since the last call."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def close(self, timeout_s: float) -> None:
        """Pack the rest; files that do not fit into the time stay plain."""
        super().close(timeout_s)
        left = [plain for plain, _, _ in list(self._waiting)]
        self.kept += left
        if left:
            logger.warning("tracekit: there was no time to pack %s; kept plain", ", ".join(map(str, left)))

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
            self.kept.append(plain)
            self._arrived.append((plain, name))
            logger.warning("tracekit: %s cannot be packed (%s); kept plain", plain, error.strerror or error)
        self._waiting.popleft()
        return 0
