"""Counters of the process and of its host, read with psutil: CPU, memory, disk and network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.errors import ConfigError
from tracekit.imports import import_extra
from tracekit.sources.sampling import SampledCounter, SamplingSource, pick

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.recording.source import Recorder


class SystemProfiler(SamplingSource):
    """Records the resource usage of the process and its host as counter tracks.

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

    A rate is the growth of a counter between two samples, divided by the monotonic time between them. So a window shorter than
    ``interval`` has no rates. The first sample after a pause is only a base. A counter that went back (it wrapped, or its
    device went away) gives no value for that interval. Counters that this operating system does not offer are left out.
    ``host network`` is the sum over all interfaces except loopback.

    Sampling runs on a separate thread, "tracekit-system", while the schedule's action is not SKIP; the training thread only
    sets an event. One sample takes about 0.6 ms on Linux, so the default costs 0.1 % of one core. A forked child does not
    sample.

    Args:
        interval: Seconds between samples, above 0.
        process: Record this process.
        cpu: Record the host's CPU use.
        memory: Record the host's memory and swap.
        disk: Record the host's disk traffic.
        network: Record the host's network traffic.
        provider: Object with psutil's functions, for tests; None uses psutil.
        clock: The clock for rates.

    Raises:
        ConfigError: ``interval`` is not a number above 0, or no group is chosen.
        MissingExtraError: psutil is not installed.
    """

    categories = ("system",)
    thread_name = "tracekit-system"

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
        super().__init__(interval, clock)
        if not (process or cpu or memory or disk or network):
            raise ConfigError("SystemProfiler: nothing is left to record; leave one of its arguments True")
        self._provider = import_extra("psutil", "system", "SystemProfiler") if provider is None else provider
        self._groups = {"process": process, "cpu": cpu, "memory": memory, "disk": disk, "network": network}

    def begin_sampling(self, recorder: Recorder) -> list[SampledCounter]:
        """Return the counters of the chosen groups."""
        return _counters(self._provider, self._groups)


def _counters(psutil: Any, groups: Mapping[str, bool]) -> list[SampledCounter]:
    """Return the counters of the chosen groups, without reading them."""
    process = psutil.Process()
    counters = {
        "process": [
            SampledCounter("process cpu", lambda: _process_cpu(process), rate=True),
            SampledCounter("process memory", lambda: pick(process.memory_info(), rss="rss_bytes")),
            SampledCounter("process disk", lambda: _disk(process.io_counters()), rate=True),
            SampledCounter("process threads", lambda: {"threads": process.num_threads()}),
            # On Windows, handles include much more than files, and are left out.
            SampledCounter("process files", lambda: {"open_files": process.num_fds()}),
        ],
        "cpu": [SampledCounter("host cpu", lambda: _host_cpu(psutil), rate=True, limit=100.0)],
        "memory": [
            SampledCounter(
                "host memory", lambda: pick(psutil.virtual_memory(), used="used_bytes", available="available_bytes")
            ),
            SampledCounter("host swap", lambda: pick(psutil.swap_memory(), used="used_bytes")),
        ],
        # nowrap=False: the repair of wrapped counters in psutil uses a cache that the whole process shares.
        "disk": [SampledCounter("host disk", lambda: _disk(psutil.disk_io_counters(nowrap=False)), rate=True)],
        "network": [SampledCounter("host network", lambda: _network(psutil), rate=True)],
    }
    return [counter for group, found in counters.items() if groups[group] for counter in found]


def _disk(values: object) -> dict[str, float]:
    # psutil returns None if the host has no disks.
    return pick(values, read_bytes="read_bytes_per_s", write_bytes="written_bytes_per_s")


def _network(psutil: Any) -> dict[str, float]:
    totals: dict[str, float] = {}
    for name, values in psutil.net_io_counters(pernic=True, nowrap=False).items():
        # The bytes of a loopback interface would count twice, as sent and as received.
        if name not in ("lo", "lo0") and not name.startswith("Loopback"):
            totals[f"{name}/received_bytes_per_s"] = values.bytes_recv
            totals[f"{name}/sent_bytes_per_s"] = values.bytes_sent
    return totals


def _process_cpu(process: Any) -> dict[str, float]:
    times = process.cpu_times()
    return {"percent": (times.user + times.system) * 100}


def _host_cpu(psutil: Any) -> dict[str, float]:
    # psutil.cpu_percent keeps its last reading for the whole process: calling it here would spoil the user's own calls.
    times = psutil.cpu_times()
    # Linux also counts the time of guests in user and nice; waiting for I/O is idle.
    not_busy = ("idle", "iowait", "guest", "guest_nice")
    busy = sum(times) - sum(getattr(times, name, 0.0) for name in not_busy)
    return {"percent": busy * 100 / (psutil.cpu_count() or 1)}
