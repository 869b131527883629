"""Counters of NVIDIA GPUs, read with nvidia-ml-py: utilisation, memory, power, clocks, temperature, PCIe and NVLink."""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING, Any, Final, Literal

from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.errors import ConfigError
from tracekit.imports import import_extra
from tracekit.sources.sampling import SampledCounter, SamplingSource, pick

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.recording.source import Recorder

logger = logging.getLogger("tracekit")

_NOT_OFFERED: Final = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
)
_GONE: Final = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED", "NVML_ERROR_UNINITIALIZED")
_ALL_LINKS: Final = 0xFFFFFFFF  # scope of a field: the sum over a device's NVLinks
_TRAFFIC: Final = ("received_bytes_per_s", "sent_bytes_per_s")
_INDEX: Final = re.compile(r"\s*\+?(\d+)")


class GPUProfiler(SamplingSource):
    """Records utilisation, memory, power and traffic of the rank's GPU as counter tracks.

    ====================== ================================================================================
    counter                series
    ====================== ================================================================================
    ``gpu utilization``    ``percent``: share of time with a running kernel; ``memory_percent``: share of time
                           with memory reads or writes
    ``gpu memory``         ``used_bytes``, ``free_bytes``: of all processes on it
    ``gpu power``          ``watts``
    ``gpu clocks``         ``sm_mhz``, ``memory_mhz``
    ``gpu temperature``    ``celsius``
    ``gpu pcie``           ``received_bytes_per_s``, ``sent_bytes_per_s``: by the GPU
    ``gpu nvlink``         ``received_bytes_per_s``, ``sent_bytes_per_s``: by the GPU, over all its links
    ====================== ================================================================================

    Counters that a GPU does not offer are left out: a MIG instance, for example, only has memory. Without a driver or a GPU
    for this rank, nothing is recorded, and one line in the log has the reason. If a GPU is lost, its counters end with one
    report, and the others go on.

    The GPU of a rank is the one of its local rank among those that ``CUDA_VISIBLE_DEVICES`` shows, or the only one that it
    shows. Numbers in this variable follow the order of the PCI bus, as with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. The default
    order of CUDA differs only if the GPUs of a host do; then the log has a warning. A UUID needs no order.

    Rates are the growth of a counter of the GPU between two samples. GPUs before Hopper do not count PCIe traffic; for those,
    NVML measures it for 20 ms at each sample. Utilisation is the driver's average over its last sample period, up to a second.

    Sampling runs on a separate thread, "tracekit-gpu", while the schedule's action is not SKIP. It makes no CUDA context and
    waits for no device. A forked child does not sample.

    Args:
        interval: Seconds between samples, above 0.
        devices: Numbers of GPUs in CUDA's order in this process ([0, 1]), or ``"all"`` visible ones; several are named
            "gpu 0 power", "gpu 1 power". None is the GPU of this rank.
        provider: Object with nvidia-ml-py's functions, for tests; None uses ``pynvml``.
        clock: The clock for rates.

    Raises:
        ConfigError: ``interval`` is not a number above 0, or ``devices`` names no devices.
        MissingExtraError: nvidia-ml-py is not installed.
    """

    categories = ("gpu",)
    thread_name = "tracekit-gpu"

    def __init__(
        self,
        interval: float = 1.0,
        *,
        devices: Sequence[int] | Literal["all"] | None = None,
        provider: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(interval, clock)
        self._devices = _checked(devices)
        self._nvml = import_extra("pynvml", "gpu", "GPUProfiler", "nvidia-ml-py") if provider is None else provider
        self._initialised = False

    def begin_sampling(self, recorder: Recorder) -> list[SampledCounter]:
        """Find the GPUs. This does not run on the training thread, because NVML can take long to wake a GPU."""
        nvml = self._nvml
        try:
            nvml.nvmlInit()
            self._initialised = True
            found = self._find(recorder.process.local_rank)
        except (nvml.NVMLError, LookupError) as error:
            logger.warning("tracekit: no GPU counters: %s", error)
            return []
        several = self._devices is not None and len(found) > 1
        counters: list[SampledCounter] = []
        for number, handle in found.items():
            counters += _counters(nvml, handle, f"gpu {number}" if several else "gpu")
        return counters

    def end_sampling(self) -> None:
        """Release NVML."""
        if self._initialised:
            self._initialised = False
            self._nvml.nvmlShutdown()

    def is_not_offered(self, error: Exception) -> bool:
        """Return True if an error means that this GPU, driver or nvidia-ml-py has no such counter."""
        return super().is_not_offered(error) or self._is_one_of(error, _NOT_OFFERED)

    def is_gone(self, error: Exception) -> bool:
        """Return True if an error means that the GPU is lost."""
        return self._is_one_of(error, _GONE)

    def _is_one_of(self, error: Exception, names: Sequence[str]) -> bool:
        codes = {getattr(self._nvml, name, None) for name in names}
        return isinstance(error, self._nvml.NVMLError) and getattr(error, "value", None) in codes

    def _find(self, local_rank: int) -> dict[int, Any]:
        """Return the handles of the chosen GPUs, by CUDA's number. LookupError, NVMLError: there is no such GPU."""
        nvml = self._nvml
        visible = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
        if visible is None:
            visible = list(range(nvml.nvmlDeviceGetCount()))
            if not visible:
                raise LookupError("this host has no GPU")
        if not visible:
            raise LookupError("CUDA_VISIBLE_DEVICES shows this process none")
        if self._devices == "all":
            chosen = list(range(len(visible)))
        elif self._devices is not None:
            chosen = list(self._devices)
        else:
            chosen = [0 if len(visible) == 1 else local_rank]
        missing = [number for number in chosen if number >= len(visible)]
        if missing:
            whose = f"local rank {local_rank}" if self._devices is None else "devices"
            raise LookupError(f"{whose} names GPU {missing[0]}, and this process sees {len(visible)}")
        found = {number: self._handle(visible[number]) for number in chosen}
        if any(isinstance(visible[number], int) for number in chosen):
            self._say_if_order_is_unsure()
        for number, handle in found.items():
            logger.info("tracekit: GPU %d is %s (%s)", number, nvml.nvmlDeviceGetName(handle), visible[number])
        return found

    def _handle(self, device: int | str) -> Any:
        nvml = self._nvml
        if isinstance(device, int):
            return nvml.nvmlDeviceGetHandleByIndex(device)
        try:
            return nvml.nvmlDeviceGetHandleByUUID(device)
        except nvml.NVMLError:
            # CUDA also accepts the beginning of a UUID.
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                if nvml.nvmlDeviceGetUUID(handle).startswith(device):
                    return handle
        raise LookupError(f"CUDA_VISIBLE_DEVICES names {device}, which NVML does not find")

    def _say_if_order_is_unsure(self) -> None:
        nvml = self._nvml
        if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
            return
        names = {
            nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount())
        }
        if len(names) > 1:
            logger.warning(
                "tracekit: this host has GPUs of several kinds (%s), which CUDA may number otherwise than the PCI bus; the "
                "GPU counters may be those of another GPU unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set",
                ", ".join(sorted(names)),
            )


def _counters(nvml: Any, handle: Any, gpu: str) -> list[SampledCounter]:
    """Return the counters of a GPU, without reading them."""

    def utilization() -> Mapping[str, float]:
        return pick(nvml.nvmlDeviceGetUtilizationRates(handle), gpu="percent", memory="memory_percent")

    def memory(*version: int) -> Mapping[str, float]:
        return pick(nvml.nvmlDeviceGetMemoryInfo(handle, *version), used="used_bytes", free="free_bytes")

    def clocks() -> Mapping[str, float]:
        kinds = {"sm_mhz": nvml.NVML_CLOCK_SM, "memory_mhz": nvml.NVML_CLOCK_MEM}
        return {series: nvml.nvmlDeviceGetClockInfo(handle, kind) for series, kind in kinds.items()}

    def temperature() -> Mapping[str, float]:
        return {"celsius": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)}

    def temperature_v() -> Mapping[str, float]:
        return {"celsius": nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)}

    def pcie_now() -> Mapping[str, float]:
        kinds = (nvml.NVML_PCIE_UTIL_RX_BYTES, nvml.NVML_PCIE_UTIL_TX_BYTES)
        return dict(
            zip(_TRAFFIC, (nvml.nvmlDeviceGetPcieThroughput(handle, kind) * 1000 for kind in kinds), strict=True)
        )

    def pcie() -> Mapping[str, float]:
        return _traffic(nvml, handle, [nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES], 1)

    def nvlink() -> Mapping[str, float]:
        received, sent = nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
        return _traffic(nvml, handle, [(received, _ALL_LINKS), (sent, _ALL_LINKS)], 1024)

    def counter(name: str, read: Callable[[], Mapping[str, float]], **options: Any) -> SampledCounter:
        return SampledCounter(f"{gpu} {name}", read, device=gpu, **options)

    return [
        counter("utilization", utilization),
        # The second version counts the memory of processes; the first adds memory that the driver reserves.
        counter("memory", lambda: memory(nvml.nvmlMemory_v2), instead=counter("memory", memory)),
        counter("power", lambda: {"watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1000}),
        counter("clocks", clocks),
        counter("temperature", temperature, instead=counter("temperature", temperature_v)),  # NVML will drop the first
        counter("pcie", pcie, rate=True, instead=counter("pcie", pcie_now)),
        counter("nvlink", nvlink, rate=True),
    ]


def _traffic(nvml: Any, handle: Any, fields: list[Any], unit_bytes: int) -> dict[str, float]:
    """Return two counting fields of a GPU, received and sent, in bytes."""
    values = nvml.nvmlDeviceGetFieldValues(handle, fields)
    for value in values:
        if value.nvmlReturn:
            raise nvml.NVMLError(value.nvmlReturn)
    return dict(zip(_TRAFFIC, (value.value.ullVal * unit_bytes for value in values), strict=True))


def visible_devices(value: str | None) -> list[int | str] | None:
    """Return the devices that ``CUDA_VISIBLE_DEVICES`` shows a process, in CUDA's order; None if it shows all.

    The rules are those of the CUDA programming guide, "CUDA Environment Variables". A number is an index, a string a UUID or
    the beginning of one ("GPU-8932f937", "MIG-...", "MIG-GPU-.../1/0"). The first entry that is neither ends the list
    ("0,-1,1" shows only device 0), as does a UUID among numbers or a number among UUIDs. A duplicate entry makes the list empty.

    Args:
        value: The value of the variable, or None if it is not set.
    """
    if value is None:
        return None
    found: list[int | str] = []
    for entry in value.split(","):
        text = entry.strip()
        device: int | str
        if text.startswith(("GPU-", "MIG-")):
            device = text
        elif match := _INDEX.match(entry):  # CUDA reads a number as strtoul does: "1x" is 1
            device = int(match[1])
        else:
            break
        if found and type(device) is not type(found[0]):
            break
        if device in found:
            return []
        found.append(device)
    return found


def _checked(devices: object) -> Sequence[int] | Literal["all"] | None:
    if devices is None or devices == "all":
        return devices
    numbers = list(devices) if isinstance(devices, list | tuple | range) else []
    if not numbers or any(isinstance(number, bool) or not isinstance(number, int) or number < 0 for number in numbers):
        raise ConfigError(f'GPUProfiler: devices must be numbers from 0 on such as [0, 1], or "all", not {devices!r}')
    return numbers
