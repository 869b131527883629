"""Sampling: counters that a thread reads at an interval, for the system and for GPUs."""

from __future__ import annotations

import logging
import math
import os
import threading
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from tracekit.arguments import check_seconds
from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.recording.schedule import ProfilerAction
from tracekit.recording.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.recording.source import Recorder

# Maximum time that `SamplingSource.close` waits for a running sample; a sample takes a few milliseconds at most
JOIN_SECONDS: Final = 2.0
logger = logging.getLogger("tracekit")


@dataclass(slots=True)
class SampledCounter:
    """One counter track.

    ``read`` returns the present values by series. Those of several "device/series" are added up for the series. A
    ``rate`` is the growth per second of values that only grow, up to ``limit``: higher values are reading errors.
    ``instead`` is the counter to sample if this one is not offered. If ``device`` goes away, all its counters end.
    ``base`` is the time in ns and the values of the last sample, if ``rate``.
    """

    name: str
    read: Callable[[], Mapping[str, float]]
    rate: bool = False
    limit: float = math.inf
    instead: SampledCounter | None = None
    device: str = ""
    base: tuple[int, Mapping[str, float]] | None = None

    def sample(self, now_ns: int) -> dict[str, float]:
        """Return the values by series at a monotonic time, or an empty dict if a rate has no base yet."""
        values = self.read()
        if not self.rate:
            return dict(values)
        base, self.base = self.base, (now_ns, values)
        if base is None or now_ns <= base[0]:
            return {}
        rates: dict[str, float] = {}
        for key, value in values.items():
            before = base[1].get(key)
            # Skip a new device, because its whole history would count as growth, and a counter that wrapped or restarted.
            if before is not None and value >= before:
                series = key.rpartition("/")[2]
                rates[series] = rates.get(series, 0.0) + (value - before) * 1e9 / (now_ns - base[0])
        return {series: min(rate, self.limit) for series, rate in rates.items()}


def pick(values: object, **series: str) -> dict[str, float]:
    """Return the existing attributes of an object, under the names of their series."""
    found = {name: getattr(values, attribute, None) for attribute, name in series.items()}
    return {name: value for name, value in found.items() if value is not None}


class SamplingSource(Source):
    """Records counters from a separate thread while the schedule's action is not SKIP.

    The training thread only sets an event. Samples are on a fixed time grid, so that the duration of a sample causes no drift.
    An exception in one counter is reported, and the others go on. A forked child does not sample.

    Args:
        interval: Seconds between samples, above 0.
        clock: The clock for rates.

    Raises:
        ConfigError: ``interval`` is not a number above 0.
    """

    categories: ClassVar[Sequence[str]]
    """Categories of the counters."""

    thread_name: ClassVar[str]

    steps_on_change = True

    def __init__(self, interval: float, clock: Clock = SYSTEM_CLOCK) -> None:
        check_seconds(f"{type(self).__name__}: interval", interval)
        self._interval_ns = max(1, round(interval * 1e9))
        self._clock = clock
        self._recorder: Recorder | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._pid = -1

    @abstractmethod
    def begin_sampling(self, recorder: Recorder) -> list[SampledCounter]:
        """Return the counters, without reading them. The first call on the sampling thread."""

    def end_sampling(self) -> None:
        """Release the resources of `begin_sampling`. The last call on the sampling thread."""

    def is_not_offered(self, error: Exception) -> bool:
        """Return True if an error means that this machine has no such counter."""
        return isinstance(error, (AttributeError, NotImplementedError))

    def is_gone(self, error: Exception) -> bool:
        """Return True if an error means that the device of the counter is gone for good."""
        return False

    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        """Start the sampling thread."""
        self._recorder = recorder
        self._pid = os.getpid()
        self._wake = threading.Event()  # a new one: a thread that was left behind keeps its own
        self._wake.set()
        args = recorder, self._wake
        self._thread = threading.Thread(target=self._run, args=args, name=self.thread_name, daemon=True)
        self._thread.start()

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        """Wake the thread when recording begins, so that a window starts with a sample."""
        if finished is ProfilerAction.SKIP and action is not ProfilerAction.SKIP:
            self._wake.set()

    def close(self) -> None:
        """Stop the thread and wait for it, at most two seconds."""
        thread, recorder, self._thread = self._thread, self._recorder, None
        if thread is None or recorder is None or os.getpid() != self._pid:
            # A forked child has no such thread, and the event may have been forked with its lock held.
            return
        self._wake.set()
        thread.join(JOIN_SECONDS)
        if thread.is_alive():
            error = TimeoutError(f"a sample did not end within {JOIN_SECONDS:g} s; its thread is left behind")
            recorder.report_failure(type(self).__name__, error)

    def _run(self, recorder: Recorder, wake: threading.Event) -> None:
        try:
            counters = self.begin_sampling(recorder)
            start_ns = self._clock.monotonic_ns()
            while counters:
                passed_ns = (self._clock.monotonic_ns() - start_ns) % self._interval_ns
                wake.wait((self._interval_ns - passed_ns) / 1e9)
                wake.clear()
                if self._thread is not threading.current_thread():  # closed, and perhaps opened again
                    return
                counters = self._sample(recorder, counters)
        except Exception as error:  # noqa: BLE001 - nothing else would report an exception of this thread
            recorder.report_failure(type(self).__name__, error)
        finally:
            try:
                self.end_sampling()
            except Exception as error:  # noqa: BLE001 - see above
                recorder.report_failure(type(self).__name__, error)

    def _sample(self, recorder: Recorder, counters: list[SampledCounter]) -> list[SampledCounter]:
        """Read every counter once and record it; return the counters to read next time."""
        if recorder.action is ProfilerAction.SKIP:
            for counter in counters:
                counter.base = None
            return counters
        gone: set[str] = set()
        kept: list[SampledCounter] = []
        for counter in counters:
            next_ = None if counter.device in gone else self._record(recorder, counter, gone)
            if next_ is not None:
                kept.append(next_)
        return [counter for counter in kept if counter.device not in gone]

    def _record(self, recorder: Recorder, counter: SampledCounter, gone: set[str]) -> SampledCounter | None:
        """Read and record one counter; return the counter to read next time, or None. Note its device if that is gone."""
        name = type(self).__name__
        try:
            values = counter.sample(self._clock.monotonic_ns())
            if values:
                recorder.marker(counter.name, categories=self.categories).counter(values)
        except Exception as error:  # noqa: BLE001 - any exception of one counter; the others go on
            counter.base = None
            if self.is_not_offered(error):
                logger.debug("tracekit: %s finds no %s here: %s", name, counter.name, error)
                return None if counter.instead is None else self._record(recorder, counter.instead, gone)
            recorder.report_failure(f"{name} ({counter.name})", error)
            if self.is_gone(error):
                gone.add(counter.device)
        return counter
