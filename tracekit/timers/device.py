"""How a timer measures what runs on a GPU: by waiting for it, or by events on its stream that are read later.

Timing never imports torch: where nobody has imported it, nothing runs on a GPU that it could be asked about.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DeviceEvents",
    "check_device_mode",
    "cuda_available",
    "cuda_in_use",
    "device_mode",
    "synchronize",
    "tensor",
    "warn_once",
]

logger = logging.getLogger("tracekit")

_DEVICE_MODES: Final = ("host", "synchronize", "events")

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


_warned: Final[set[object]] = set()
"""Warnings of this process about timers that belong to no `Timers`."""


def warn_once(about: object, message: str) -> None:
    """Log a warning once in this process."""
    if about not in _warned:
        _warned.add(about)
        logger.warning("tracekit: timers: %s", message)


def check_device_mode(mode: str) -> str:
    """Return the mode.

    Raises:
        ConfigError: There is no such mode.
    """
    if mode not in _DEVICE_MODES:
        raise ConfigError(f"Timers: device must be one of {', '.join(map(repr, _DEVICE_MODES))}, not {mode!r}")
    return mode


def device_mode(asked: str | None, warn: Callable[[str, str], None]) -> str:
    """Return the time that a timer measures: "host", "synchronize" or "events".

    Args:
        asked: The mode that the caller asks for; None is "host", with a hint when CUDA is in use.
        warn: Logs a warning; called with its subject and its text.

    Raises:
        ConfigError: There is no such mode.
    """
    mode = check_device_mode(asked or "host")
    if mode == "events" and cuda_available() is None:
        warn("events", "there is no CUDA device, so the timers measure the time of the host")
        return "host"
    if asked is None and cuda_in_use() is not None:
        warn(
            "host",
            "they measure the time of the Python code, which does not wait for the GPU. For the GPU's own time give "
            'device="events", for Megatron\'s way (wait for the GPU at both ends) device="synchronize"; device="host" is '
            "as it is now.",
        )
    return mode


def synchronize() -> None:
    """Wait until the current device has done everything that was given to it; without CUDA there is nothing to wait for."""
    cuda = cuda_in_use()
    if cuda is not None:
        cuda.synchronize()


def tensor(rows: list[list[float]]) -> Any:
    """Return a torch tensor of 64-bit floats, on the current CUDA device if CUDA is in use.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch", "A tensor of the timers of all ranks") from error
    cuda = cuda_in_use()
    return torch.tensor(rows, dtype=torch.float64, device="cpu" if cuda is None else cuda.current_device())


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
