"""Outbox: delivers the finished files of a handler to their final places, so that recording never waits for it."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.storage import name_temporary, temporary_file

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK_BYTES: Final = 1 << 20
GONE: Final = "events of files that were removed"
_LAST_S: Final = 0.5

logger = logging.getLogger("tracekit")


def pack(plain: Path, packed: Path, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Replace a file by its packed copy. zlib releases the interpreter lock while it works.

    The same content gives the same bytes. ``stopped`` is called between two pieces; True stops the packing. Return
    False then; the plain file is unchanged.

    Raises:
        OSError: Packing failed, or another file has the name of the copy; the plain file still exists, unless somebody
            has removed it meanwhile.
    """
    import gzip  # here: most recordings pack nothing

    descriptor, temporary = temporary_file(packed.parent, packed.name)
    try:
        # Level 1: a fifth of the time of the default for a quarter more bytes.
        with (
            os.fdopen(descriptor, "wb") as raw,
            plain.open("rb") as source,
            gzip.GzipFile("", "wb", 1, raw, mtime=0) as out,
        ):
            os.fchmod(descriptor, os.fstat(source.fileno()).st_mode & 0o777)
            while piece := source.read(_CHUNK_BYTES):
                if stopped():
                    return False
                out.write(piece)
        name_temporary(temporary, packed)
    finally:
        Path(temporary).unlink(missing_ok=True)
    try:
        os.unlink(plain)
    except FileNotFoundError:
        packed.unlink(missing_ok=True)  # a file that a user has removed must not come back
        raise
    return True


class Outbox:
    """Packs finished local files on a separate thread; without ``packs`` it leaves them as they are.

    A subclass may deliver them elsewhere. The thread that writes the files calls the methods. Relative names are in
    ``folder``, independent of later changes of the current folder.
    """

    def __init__(self, folder: Path, *, packs: bool) -> None:
        self.lost: Counter[str] = Counter()  # number of events in finished files, by reason
        self.kept: list[Path] = []  # files that could not be delivered; complete after `close`
        self._folder = folder
        self._packs = packs
        self._queue: deque[tuple[Path, str, int]] = deque()  # plain file, name, size
        self._arrived: deque[tuple[Path, str]] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracekit-outbox", daemon=True)

    def start(self) -> None:
        """Start the thread, if files are to be packed."""
        if self._packs:
            # Not at the end: some Python versions start no threads while the interpreter shuts down.
            self._thread.start()

    def place(self, name: str) -> Path:
        """Return the path for writing the plain file of a name."""
        return self._folder / (name.removesuffix(".gz") if self._packs else name)

    def send(self, path: Path, name: str, *, events: int, start_ns: int, end_ns: int) -> Path | None:
        """Take a finished file; never waits. Return the path if it is the final place of the file, else None.

        ``start_ns`` and ``end_ns`` limit the time that the file covers, in ns since the epoch.
        """
        del events, start_ns, end_ns
        if not self._packs:
            return path
        try:
            size_bytes = path.stat().st_size
        except OSError:
            size_bytes = 0
        self._queue.append((path, name, size_bytes))
        self._wake.set()
        return None

    def discard(self, path: Path) -> None:
        """Forget a place after its file was removed or could not be made."""

    @property
    def waiting(self) -> tuple[int, int]:
        """Number of files that are not packed yet, and their size in bytes."""
        queue = list(self._queue)
        return len(queue), sum(size_bytes for _, _, size_bytes in queue)

    def arrived(self) -> list[tuple[Path, str]]:
        """Return path and name of each file that was packed, or could not be, since the last call."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def close(self, timeout_s: float) -> None:
        """Let the thread deliver the rest within this time; files that do not fit into it stay plain."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._stop.set()
        self._interrupt()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_S)  # to clean up
        left = [plain for plain, _, _ in list(self._queue)]
        self.kept += left
        if left:
            logger.warning("tracekit: there was no time to pack %s; kept plain", ", ".join(map(str, left)))

    # ---- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            is_closing = self._closing.is_set()
            pause_s = self._step()
            if pause_s is None and is_closing:
                return
            self._wake.wait(pause_s)
            self._wake.clear()

    def _step(self) -> float | None:
        """Do a piece of work; return the time until the next one in seconds, or None if none is planned."""
        if not self._queue:
            return None
        plain, name, _ = self._queue[0]
        packed = self._folder / name
        try:
            if not pack(plain, packed, self._stop.is_set):
                return None
            self._arrived.append((packed, name))
        except OSError as error:
            if plain.exists():
                self.kept.append(plain)
                self._arrived.append((plain, name))
                logger.warning("tracekit: %s cannot be packed (%s); kept plain", plain, error.strerror or error)
        self._queue.popleft()
        return 0

    def _interrupt(self) -> None:
        """End the wait of the current step, if it waits."""
