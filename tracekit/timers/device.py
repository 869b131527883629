"""How a timer measures what runs on a GPU: by waiting for it, or by events on its stream that are read later.

torch is never imported: where nobody has imported it, nothing runs on a GPU that it could be asked about.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from typing import Any, Final

__all__ = ["DEVICE_MODES", "DeviceEvents", "cuda_available", "cuda_in_use", "synchronize"]

logger = logging.getLogger("tracekit")

DEVICE_MODES: Final = ("host", "synchronize", "events")

_MOST_PENDING: Final = 4096
"""Intervals that the device has not finished. Its own queue holds about a thousand launches, so this means it hangs."""


def cuda_available() -> Any:
    """Return ``torch.cuda`` if torch has been imported and finds a device, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return cuda if cuda is not None and cuda.is_available() else None
    except (AttributeError, RuntimeError):
        return None  # half imported, or without a driver


def cuda_in_use() -> Any:
    """Return ``torch.cuda`` if this process has used a device, else None."""
    cuda = cuda_available()
    return cuda if cuda is not None and cuda.is_initialized() else None


def synchronize() -> None:
    """Wait until the current device has done everything that was given to it; without CUDA there is nothing to wait for."""
    cuda = cuda_in_use()
    if cuda is not None:
        cuda.synchronize()


class DeviceEvents:
    """The device's own time between the start and the stop of a timer, by CUDA events: nothing ever waits for it.

    `begin` and `end` put an event each on the current stream. Once the device has passed both, `finished` hands over what lies
    between them. Calls during the capture of a CUDA graph are not measured, since they do not run then.

    Thread-safe.

    Args:
        name: The timer's.
        cuda: ``torch.cuda``.
    """

    __slots__ = ("_cuda", "_free", "_lock", "_name", "_pending", "_told", "unmeasured")

    def __init__(self, name: str, cuda: Any) -> None:
        self._name = name
        self._cuda = cuda
        self._pending: deque[tuple[Any, Any]] = deque()
        self._free: deque[Any] = deque(maxlen=64)
        self._lock = threading.Lock()
        self._told = False
        self.unmeasured = 0
        """Calls whose device time is not known: captured ones, failed ones, and those that a hanging device kept waiting."""

    def begin(self) -> Any:
        """Put an event on the stream and return it; None where this call cannot be measured."""
        try:
            if self._cuda.is_current_stream_capturing():
                return self._give_up("a CUDA graph is being captured")
            return self._record()
        except Exception as error:  # noqa: BLE001 - whatever the driver throws, training goes on
            return self._give_up(str(error))

    def end(self, began: Any) -> None:
        """Put the second event on the stream; ``began`` is what `begin` returned."""
        if began is None:
            return
        try:
            if len(self._pending) >= _MOST_PENDING:
                self._free.append(began)
                self._give_up(f"{_MOST_PENDING} calls wait for the device")
                return
            self._pending.append((began, self._record()))
        except Exception as error:  # noqa: BLE001 - see above
            self._give_up(str(error))

    def finished(self) -> list[int]:
        """Return the durations that the device has finished since the last time, in ns and in order. Does not wait."""
        done: list[int] = []
        with self._lock:
            while self._pending:
                began, ended = self._pending[0]
                try:
                    if not (ended.query() and began.query()):
                        break
                    duration_ns = round(began.elapsed_time(ended) * 1e6)  # milliseconds
                except Exception as error:  # noqa: BLE001 - see above
                    self._pending.popleft()
                    self._give_up(str(error))
                    continue
                self._pending.popleft()
                self._free.extend((began, ended))
                done.append(max(duration_ns, 0))
        return done

    def after_fork_in_child(self) -> None:
        """In a forked child, without the thread that may have held the lock."""
        self._lock = threading.Lock()

    def _record(self) -> Any:
        try:
            event = self._free.pop()
        except IndexError:
            event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def _give_up(self, reason: str) -> None:
        self.unmeasured += 1
        if not self._told:
            self._told = True
            logger.warning(
                "tracekit: timer %r does not measure some calls on the device: %s",
                self._name,
                reason.partition("\n")[0],
            )
