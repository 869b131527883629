"""GPU time: wait for the device, or read CUDA events later.

Timing never imports torch: where nobody has imported it, nothing runs on a GPU.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_choice
from tracekit.imports import import_extra
from tracekit.notices import WarnOnce

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE_MODES: Final = ("host", "synchronize", "events")
# Intervals that the device has not finished. Its own queue holds about a thousand launches, so this means it hangs.
_MAX_PENDING: Final = 4096
# Intervals between two looks at the device, of several calls of the driver each; a report looks also.
_LOOK_EVERY: Final = 64
_HINT: Final = (
    "they measure the time of the Python code, which does not wait for the GPU. For the GPU's own time give "
    'device="events", for Megatron\'s way (wait for the GPU at both ends) device="synchronize"; device="host" is '
    "as it is now."
)


def cuda(*, in_use: bool = False) -> Any:
    """Return ``torch.cuda`` if torch has been imported and finds a device (that this process has used), else None."""
    found = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        usable = found is not None and found.is_available() and (not in_use or found.is_initialized())
    except (AttributeError, RuntimeError):  # half imported, or without a driver
        return None
    return found if usable else None


def device_mode(asked: str | None, warn: Callable[[object, str], None]) -> str:
    """Return the time that a timer measures: "host", "synchronize" or "events"."""
    mode = asked or "host"
    check_choice("Timers: device", mode, DEVICE_MODES)
    if mode == "events" and cuda() is None:
        warn("events", "there is no CUDA device, so the timers measure the time of the host")
        return "host"
    if asked is None and cuda(in_use=True) is not None:
        warn("host", _HINT)
    return mode


def synchronize() -> None:
    """Wait until the current device has finished all its work. Returns immediately where CUDA is not in use."""
    if (used := cuda(in_use=True)) is not None:
        used.synchronize()


def tensor(rows: list[list[float]]) -> Any:
    """Return a torch tensor of 64-bit floats, on the current CUDA device if CUDA is in use."""
    torch = import_extra("torch", "torch", "A tensor of the timers of all ranks")
    used = cuda(in_use=True)
    return torch.tensor(rows, dtype=torch.float64, device="cpu" if used is None else used.current_device())


class DeviceEvents:
    """Measures the device's own time by two CUDA events on the current stream, without waiting.

    Calls during the capture of a CUDA graph are not measured, since they do not run then. Threads may `begin` and `end` calls
    concurrently; one at a time calls `finished`. No failure of the driver reaches the training.
    """

    def __init__(self, name: str) -> None:
        self._cuda = cuda()
        self._pending: deque[tuple[Any, Any]] = deque()
        self._free: deque[Any] = deque(maxlen=4 * _LOOK_EVERY)
        self._warn = WarnOnce(f"tracekit: timer {name!r} does not measure some calls on the device: ")

    def begin(self) -> Any:
        """Put an event on the stream and return it; None if this call cannot be measured."""
        try:
            if self._cuda.is_current_stream_capturing():
                return self._skip("a CUDA graph is being captured")
            try:
                event = self._free.pop()
            except IndexError:
                event = self._cuda.Event(enable_timing=True)
            event.record()
        except Exception as error:  # noqa: BLE001 - see above
            return self._skip(error)
        return event

    def end(self, began: Any) -> bool:
        """Put the second event on the stream; ``began`` is the first. Return True when `finished` is due."""
        if began is None:
            return False
        if len(self._pending) >= _MAX_PENDING:
            self._free.append(began)
            self._skip(f"{_MAX_PENDING} calls wait for the device")
        elif (ended := self.begin()) is not None:
            self._pending.append((began, ended))
        return len(self._pending) % _LOOK_EVERY == 0

    def finished(self) -> list[int]:
        """Return the durations that the device has finished since the last time, in ns and in order. Does not wait."""
        durations: list[int] = []
        while self._pending:
            began, ended = self._pending[0]
            try:
                if not (ended.query() and began.query()):
                    break
                durations.append(max(round(began.elapsed_time(ended) * 1e6), 0))  # CUDA returns milliseconds
                self._free.extend((began, ended))
            except Exception as error:  # noqa: BLE001 - see above
                self._skip(error)
            self._pending.popleft()
        return durations

    def _skip(self, reason: object) -> None:
        self._warn("skipped", str(reason).partition("\n")[0])
