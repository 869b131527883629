"""Counters of the process and of its host, read with psutil: CPU, memory, disk and network."""

from __future__ import annotations

import logging
import math
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_seconds
from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.errors import ConfigError, MissingExtraError
from tracekit.recording.schedule import ProfilerAction
from tracekit.recording.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.recording.source import Recorder

__all__ = ["SystemProfiler"]

CATEGORIES: Final = ("system",)
JOIN_SECONDS: Final = 2.0
"""How long `SystemProfiler.close` waits for a sample that is under way; one takes about a millisecond."""

logger = logging.getLogger("tracekit")


class SystemProfiler(Source):
    """Records what the process and its host use, as counter tracks.

    ===================== ======================================================= ================================
    counter               series                                                  argument
    ===================== ======================================================= ================================
    ``process cpu``       ``percent``: 100 is one core in use all the time        ``process``
    ``process memory``    ``rss_bytes``                                           ``process``
    ``process disk``      ``read_bytes_per_s``, ``written_bytes_per_s``           ``process``
    ``process threads``   ``threads``                                             ``process``
    ``process files``     ``open_files``                                          ``process``
    ``host cpu``          ``percent``: 100 is every core in use all the time      ``cpu``
    ``host memory``       ``used_bytes``, ``available_bytes``                     ``memory``
    ``host swap``         ``used_bytes``                                          ``memory``
    ``host disk``         ``read_bytes_per_s``, ``written_bytes_per_s``           ``disk``
    ``host network``      ``received_bytes_per_s``, ``sent_bytes_per_s``          ``network``
    ===================== ======================================================= ================================

    A rate is what a counter grew by between two samples, over the monotonic time between them, so a window shorter than
    ``interval`` has none. Its first sample after a pause is only a base. A counter that went back (it wrapped, or its
    device went away) gives no value for that interval; what this operating system does not offer is left out.
    ``host network`` is the sum over all interfaces but the loopback one.

    Sampling runs on one thread of its own, "tracekit-system", while the schedule's action is not SKIP; the training
    thread only sets an event. One sample takes about 0.6 ms on Linux, so the default costs 0.1 % of one core. In a
    forked child there is no sampling.

    Args:
        interval: Seconds between samples, above 0.
        process: Record this process.
        cpu: Record the host's CPU use.
        memory: Record the host's memory and swap.
        disk: Record the host's disk traffic.
        network: Record the host's network traffic.
        provider: What offers psutil's functions, for tests; psutil itself where None.
        clock: The clock that rates are measured by.

    Raises:
        ConfigError: ``interval`` is not a number above 0, or nothing is to be recorded.
        MissingExtraError: psutil is not installed.
    """

    def __init__(
        self,
        interval: float = 0.5,
        *,
        process: bool = True,
        cpu: bool = True,
        memory: bool = True,
        disk: bool = True,
        network: bool = True,
        provider: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_seconds("SystemProfiler: interval", interval)
        if not (process or cpu or memory or disk or network):
            raise ConfigError("SystemProfiler: nothing is left to record; leave one of its arguments True")
        self._interval_ns = max(1, round(interval * 1e9))
        self._provider = _import_psutil() if provider is None else provider
        self._clock = clock
        self._groups = {"process": process, "cpu": cpu, "memory": memory, "disk": disk, "network": network}
        self._counters: list[_Counter] = []
        self._recorder: Recorder | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._closing = False
        self._pid = -1

    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        """Start the sampling thread."""
        self._recorder = recorder
        self._pid = os.getpid()
        self._counters = _counters(self._provider, self._groups)
        self._closing = False
        self._wake.set()
        self._thread = threading.Thread(target=self._run, args=(recorder,), name="tracekit-system", daemon=True)
        self._thread.start()

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        """Wake the thread where recording begins, so that a window starts with a sample."""
        if finished is ProfilerAction.SKIP and action is not ProfilerAction.SKIP:
            self._wake.set()

    def close(self) -> None:
        """Stop the thread and wait for it, at most two seconds."""
        thread, recorder, self._thread = self._thread, self._recorder, None
        if thread is None or recorder is None or os.getpid() != self._pid:
            # In a forked child the thread is gone, and the event may have been forked with its lock held.
            return
        self._closing = True
        self._wake.set()
        thread.join(JOIN_SECONDS)
        if thread.is_alive():
            error = TimeoutError(f"a sample did not end within {JOIN_SECONDS:g} s; its thread is left behind")
            recorder.report_failure("SystemProfiler", error)

    def _run(self, recorder: Recorder) -> None:
        # Samples lie on a grid from the start on, so that the time a sample takes does not make them drift.
        start_ns = self._clock.monotonic_ns()
        while True:
            passed_ns = (self._clock.monotonic_ns() - start_ns) % self._interval_ns
            self._wake.wait((self._interval_ns - passed_ns) / 1e9)
            self._wake.clear()
            if self._closing:
                return
            self._sample(recorder)

    def _sample(self, recorder: Recorder) -> None:
        """Read every counter once and record it; called on the sampling thread."""
        if recorder.action is ProfilerAction.SKIP:
            for counter in self._counters:
                counter.base = None
            return
        self._counters = [counter for counter in self._counters if self._record(recorder, counter)]

    def _record(self, recorder: Recorder, counter: _Counter) -> bool:
        """Read and record one counter; return whether it is worth another try."""
        try:
            values = counter.sample(self._clock.monotonic_ns())
            if values:
                recorder.marker(counter.name, categories=CATEGORIES).counter(values)
        except (AttributeError, NotImplementedError) as error:
            logger.debug("tracekit: psutil offers no %s here: %s", counter.name, error)
            return False
        except Exception as error:  # noqa: BLE001 - whatever the reading of one counter throws, the others go on
            counter.base = None
            recorder.report_failure(f"SystemProfiler ({counter.name})", error)
        return True


@dataclass(slots=True)
class _Counter:
    """One counter track.

    Attributes:
        name: The track's name.
        read: Returns the present values by (device, series); the devices of a series are added up.
        rate: Whether the values only grow, and their growth per second is recorded.
        base: The last time in ns and values, where ``rate``.
        limit: Values above are the error of the readings, and cut.
    """

    name: str
    read: Callable[[], Mapping[tuple[str, str], float]]
    rate: bool = False
    limit: float = math.inf
    base: tuple[int, Mapping[tuple[str, str], float]] | None = None

    def sample(self, now_ns: int) -> dict[str, float]:
        """Return the values by series, or nothing where there is no base yet.

        Args:
            now_ns: Monotonic time.
        """
        values = self.read()
        if not self.rate:
            return {series: value for (_, series), value in values.items()}
        base, self.base = self.base, (now_ns, values)
        if base is None:
            return {}
        elapsed_ns = now_ns - base[0]
        if elapsed_ns <= 0:
            return {}
        rates: dict[str, float] = {}
        for key, value in values.items():
            before = base[1].get(key)
            # Not there before: its whole history would count as growth. Less than before: it wrapped or began again.
            if before is None or value < before:
                continue
            rates[key[1]] = rates.get(key[1], 0.0) + (value - before) * 1e9 / elapsed_ns
        return {series: min(rate, self.limit) for series, rate in rates.items()}


def _counters(psutil: Any, groups: Mapping[str, bool]) -> list[_Counter]:
    """Return the counters of the chosen groups; none is read yet."""
    counters: list[_Counter] = []
    if groups["process"]:
        process = psutil.Process()
        counters += [
            _Counter("process cpu", lambda: _process_cpu(process), rate=True),
            _Counter("process memory", lambda: _pick(process.memory_info(), rss="rss_bytes")),
            _Counter("process disk", lambda: _disk(process.io_counters()), rate=True),
            _Counter("process threads", lambda: {("", "threads"): process.num_threads()}),
            # On Windows, handles stand for much more than files, and are left out.
            _Counter("process files", lambda: {("", "open_files"): process.num_fds()}),
        ]
    if groups["cpu"]:
        counters.append(_Counter("host cpu", lambda: _host_cpu(psutil), rate=True, limit=100.0))
    if groups["memory"]:
        counters += [
            _Counter(
                "host memory",
                lambda: _pick(psutil.virtual_memory(), used="used_bytes", available="available_bytes"),
            ),
            _Counter("host swap", lambda: _pick(psutil.swap_memory(), used="used_bytes")),
        ]
    if groups["disk"]:
        # nowrap=False: psutil's own repair of wrapped counters hides them behind a cache shared by the whole process.
        counters.append(_Counter("host disk", lambda: _disk(psutil.disk_io_counters(nowrap=False)), rate=True))
    if groups["network"]:
        counters.append(_Counter("host network", lambda: _network(psutil), rate=True))
    return counters


def _pick(values: object, **series: str) -> dict[tuple[str, str], float]:
    """Return those attributes of psutil's tuple that are there, under the names of their series."""
    found = {name: getattr(values, attribute, None) for attribute, name in series.items()}
    return {("", name): value for name, value in found.items() if value is not None}


def _disk(values: object) -> dict[tuple[str, str], float]:
    # psutil returns None where the host has no disks.
    return _pick(values, read_bytes="read_bytes_per_s", write_bytes="written_bytes_per_s")


def _network(psutil: Any) -> dict[tuple[str, str], float]:
    totals: dict[tuple[str, str], float] = {}
    for name, values in psutil.net_io_counters(pernic=True, nowrap=False).items():
        if name in ("lo", "lo0") or name.startswith("Loopback"):
            continue  # every byte of it would count as sent and as received
        totals[name, "received_bytes_per_s"] = values.bytes_recv
        totals[name, "sent_bytes_per_s"] = values.bytes_sent
    return totals


def _process_cpu(process: Any) -> dict[tuple[str, str], float]:
    times = process.cpu_times()
    return {("", "percent"): (times.user + times.system) * 100}


def _host_cpu(psutil: Any) -> dict[tuple[str, str], float]:
    # psutil.cpu_percent keeps its last reading for the whole process: calling it here would spoil the user's own calls.
    times = psutil.cpu_times()
    # Linux counts the time of guests in user and nice as well; waiting for I/O is idle.
    not_busy = ("idle", "iowait", "guest", "guest_nice")
    busy = sum(times) - sum(getattr(times, name, 0.0) for name in not_busy)
    return {("", "percent"): busy * 100 / (psutil.cpu_count() or 1)}


def _import_psutil() -> Any:
    try:
        import psutil
    except ImportError:
        raise MissingExtraError("psutil", "system", "SystemProfiler") from None
    return psutil
