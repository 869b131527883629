"""GPU time: wait for the device, or read CUDA events later.

Timing never imports torch: where nobody has imported it, nothing runs on a GPU.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_choice
from tracekit.errors import MissingExtraError
from tracekit.notices import WarnOnce

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE_MODES: Final = ("host", "synchronize", "events")
# Intervals that the device has not finished. Its own queue holds about a thousand launches, so this means it hangs.
_MAX_PENDING: Final = 4096


def cuda_available() -> Any:
    """Return ``torch.cuda`` if torch has been imported and finds a device, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return cuda if cuda is not None and cuda.is_available() else None
    except (AttributeError, RuntimeError):
        return None  # half imported, or without a driver


def _cuda_in_use() -> Any:
    """Return ``torch.cuda`` if this process has used a device, else None."""
    cuda = cuda_available()
    return cuda if cuda is not None and cuda.is_initialized() else None


def device_mode(asked: str | None, warn: Callable[[object, str], None]) -> str:
    """Return the time that a timer measures: "host", "synchronize" or "events".

    None is "host", with a hint when CUDA is in use. ``warn`` logs a warning once, by its subject and its text.
    """
    mode = asked or "host"
    check_choice("Timers: device", mode, DEVICE_MODES)
    if mode == "events" and cuda_available() is None:
        warn("events", "there is no CUDA device, so the timers measure the time of the host")
        return "host"
    if asked is None and _cuda_in_use() is not None:
        warn(
            "host",
            "they measure the time of the Python code, which does not wait for the GPU. For the GPU's own time give "
            'device="events", for Megatron\'s way (wait for the GPU at both ends) device="synchronize"; device="host" is '
            "as it is now.",
        )
    return mode


def synchronize() -> None:
    """Wait until the current device has finished all its work. Returns immediately where CUDA is not in use."""
    if (cuda := _cuda_in_use()) is not None:
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
    cuda = _cuda_in_use()
    return torch.tensor(rows, dtype=torch.float64, device="cpu" if cuda is None else cuda.current_device())


class DeviceEvents:
    """Measures the device's own time between the start and the stop of a timer by CUDA events, without waiting.

    `begin` and `end` put an event each on the current stream. Once the device has passed both, `finished` returns the time
    between them. Calls during the capture of a CUDA graph are not measured, since they do not run then. Thread-safe.
    """

    __slots__ = ("_cuda", "_free", "_lock", "_pending", "_warn")

    def __init__(self, name: str, cuda: Any) -> None:
        self._cuda = cuda
        self._pending: deque[tuple[Any, Any]] = deque()
        self._free: deque[Any] = deque(maxlen=64)
        self._lock = threading.Lock()
        self._warn = WarnOnce(f"tracekit: timer {name!r} does not measure some calls on the device: ")

    def begin(self) -> Any:
        """Put an event on the stream and return it, or None if this call cannot be measured."""
        try:
            if self._cuda.is_current_stream_capturing():
                return self._skip("a CUDA graph is being captured")
            return self._record()
        except Exception as error:  # noqa: BLE001 - no failure of the driver reaches the training
            return self._skip(str(error))

    def end(self, began: Any) -> None:
        """Put the second event on the stream; ``began`` is the event that `begin` returned."""
        if began is None:
            return
        try:
            if len(self._pending) >= _MAX_PENDING:
                self._free.append(began)
                self._skip(f"{_MAX_PENDING} calls wait for the device")
                return
            self._pending.append((began, self._record()))
        except Exception as error:  # noqa: BLE001 - see above
            self._skip(str(error))

    def finished(self) -> list[int]:
        """Return the durations that the device has finished since the last time, in ns and in order. Does not wait."""
        durations: list[int] = []
        with self._lock:
            while self._pending:
                began, ended = self._pending[0]
                try:
                    if not (ended.query() and began.query()):
                        break
                    durations.append(max(round(began.elapsed_time(ended) * 1e6), 0))  # CUDA returns milliseconds
                    self._free.extend((began, ended))
                except Exception as error:  # noqa: BLE001 - see above
                    self._skip(str(error))
                self._pending.popleft()
        return durations

    def after_fork_in_child(self) -> None:
        """Replace the lock, which another thread of the parent may have held."""
        self._lock = threading.Lock()

    def _record(self) -> Any:
        try:
            event = self._free.pop()
        except IndexError:
            event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def _skip(self, reason: str) -> None:
        self._warn("skipped", reason.partition("\n")[0])
