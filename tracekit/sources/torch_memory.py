"""Counters of torch's CUDA allocator, read between two batches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from tracekit.recording.schedule import ProfilerAction
from tracekit.recording.source import Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.recording.marker import Marker
    from tracekit.recording.source import Recorder

CATEGORIES: Final = ("gpu", "memory")

_POOLS: Final = ("allocated_bytes", "active_bytes", "reserved_bytes", "inactive_split_bytes")
_EVENTS: Final = {"alloc_retries": "num_alloc_retries", "ooms": "num_ooms"}


class TorchMemoryProfiler(Source):
    """Records the memory of torch's CUDA allocator at the start of every recorded batch.

    ======================= ============================================================================================
    counter                 series
    ======================= ============================================================================================
    ``torch memory``        ``allocated_bytes`` (by tensors), ``active_bytes`` (also what streams still use),
                            ``reserved_bytes`` (from the driver), ``inactive_split_bytes`` (lost to fragmentation)
    ``torch memory peak``   the same: the highest value of each since the process began, or since the last reset
    ``torch allocator``     ``alloc_retries``, ``ooms``: since the previous sample, the number of times that the cache was emptied
                            to find room, and the number of failed allocations
    ======================= ============================================================================================

    It reads the existing statistics of the allocator on the training thread, and waits for no device. A sample takes about 40 us,
    27 of them in torch. It does not initialise CUDA: the counters begin when training has done that. Without torch or a GPU, it
    does nothing. The device is the current one of the training thread.

    Args:
        reset_peaks: Reset the peaks after each sample, so that each covers one batch. This changes the result of
            ``torch.cuda.max_memory_allocated()`` for the rest of the program.
    """

    def __init__(self, *, reset_peaks: bool = False) -> None:
        self._reset_peaks = reset_peaks
        self._counters: tuple[Marker, Marker, Marker] | None = None
        self._events: dict[str, int] = {}

    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        """Take the first sample, if CUDA is already in use."""
        current, peak, events = (
            recorder.marker(name, CATEGORIES) for name in ("torch memory", "torch memory peak", "torch allocator")
        )
        self._counters = current, peak, events
        self._events = {}
        self._sample(action)

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        """Take a sample between two batches."""
        self._sample(action)

    def close(self) -> None:
        """Release the counters of the recorder."""
        self._counters = None

    def _sample(self, action: ProfilerAction) -> None:
        cuda = _initialised_cuda()
        counters = self._counters
        if counters is None or cuda is None or action is ProfilerAction.SKIP:
            return
        # The allocator returns the nested form; ``memory_stats`` sorts and flattens it, which takes longer.
        stats = cuda.memory_stats_as_nested_dict()
        if not stats:
            return
        current, peak, allocator = counters
        current.counter(_bytes(stats, "current"))
        peak.counter(_bytes(stats, "peak"))
        events = {series: int(stats[key]) for series, key in _EVENTS.items() if key in stats}
        grown = {
            series: max(0, count - self._events[series]) for series, count in events.items() if series in self._events
        }
        self._events = events
        if grown:
            allocator.counter(grown)
        if self._reset_peaks:
            cuda.reset_peak_memory_stats()


def _bytes(stats: Mapping[str, Any], which: str) -> dict[str, float]:
    return {pool: stats[pool]["all"][which] for pool in _POOLS if pool in stats}


def _initialised_cuda() -> Any:
    """Return ``torch.cuda`` if the program already uses it, else None; neither imports torch nor initialises CUDA."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None
