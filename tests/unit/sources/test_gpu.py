"""The GPU counters, by a stand-in for nvidia-ml-py: units, which GPU, what is not offered, errors; see also test_gpu_counters."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tracekit import ConfigError, GPUProfiler, MissingExtraError, ProfilerAction
from tracekit.clock import Clock
from tracekit.sources.gpu import visible_devices

SECOND_NS = 1_000_000_000
LOST, NOT_SUPPORTED, NO_DRIVER, UNKNOWN = 15, 3, 9, 999


class NVMLError(Exception):
    """nvidia-ml-py's: its ``value`` is NVML's code."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class FakeNvml:
    """What nvidia-ml-py offers of a host of some GPUs; ``errors`` says which function fails for which GPU."""

    NVMLError = NVMLError
    NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_FOUND = 2, 3, 6
    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_FUNCTION_NOT_FOUND = 15, 13
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 197, 198
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139
    nvmlMemory_v2 = 0x02000028

    def __init__(self, *uuids: str, name: str = "H100") -> None:
        self.uuids = uuids or ("GPU-aa00-1", "GPU-bb00-2")
        self.names = [name] * len(self.uuids)
        self.errors: dict[tuple[str, Any], int] = {}
        self.fields = {197: 0, 198: 0, 138: 0, 139: 0}
        self.calls: list[str] = []

    def _check(self, function: str, handle: Any = None) -> None:
        self.calls.append(function)
        ways = ((function, handle), (function, "any"), ("any", handle))
        code = next((self.errors[way] for way in ways if way in self.errors), 0)
        if code:
            raise NVMLError(code)

    def nvmlInit(self) -> None:
        self._check("nvmlInit")

    def nvmlShutdown(self) -> None:
        self._check("nvmlShutdown")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return self.uuids[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.uuids and not uuid.startswith("MIG-"):
            raise NVMLError(self.NVML_ERROR_NOT_FOUND)
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:
        return self.names[self.uuids.index(handle)] if handle in self.uuids else "MIG"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        self._check("utilization", handle)
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> Any:
        self._check("memory" if version is None else "memory v2", handle)
        return SimpleNamespace(total=100, used=30 if version is None else 20, free=70)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        self._check("power", handle)
        return 350_250

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        self._check("clocks", handle)
        return {1: 1980, 2: 2619}[kind]

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        self._check("temperature", handle)
        return 41

    def nvmlDeviceGetTemperatureV(self, handle: str, sensor: int) -> int:
        self._check("temperature v", handle)
        return 42

    def nvmlDeviceGetPcieThroughput(self, handle: str, which: int) -> int:
        self._check("pcie", handle)
        return {0: 3, 1: 4}[which]

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[Any]) -> list[Any]:
        self._check("fields", handle)
        values = []
        for field in fields:
            number, scope = field if isinstance(field, tuple) else (field, 0)
            code = self.errors.get(("field", number), 0)
            assert (scope == 0xFFFFFFFF) is (number in (138, 139))
            values.append(SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(ullVal=self.fields[number])))
        return values


class Bench:
    """A GPU profiler that is sampled by hand, on the test's own clock."""

    def __init__(self, nvml: Any = None, *, local_rank: int = 0, **options: Any) -> None:
        self.now_ns = 5 * SECOND_NS
        self.nvml = nvml or FakeNvml()
        self.action = ProfilerAction.ACTIVE
        self.process = SimpleNamespace(local_rank=local_rank)
        self.failures: list[str] = []
        self.sampled: dict[str, dict[str, float]] = {}
        self.source = GPUProfiler(provider=self.nvml, clock=Clock(monotonic_ns=lambda: self.now_ns), **options)
        self.counters = self.source.begin_sampling(self)  # type: ignore[arg-type]

    def marker(self, name: str, categories: Any = ()) -> Any:
        assert tuple(categories) == ("gpu",)
        return SimpleNamespace(counter=lambda values: self.sampled.__setitem__(name, values))

    def report_failure(self, who: str, error: BaseException) -> None:
        self.failures.append(f"{who}: {error}")

    def sample(self, seconds: float = 0.0) -> dict[str, dict[str, float]]:
        self.now_ns += round(seconds * SECOND_NS)
        self.sampled = {}
        self.counters = self.source._sample(self, self.counters)  # type: ignore[arg-type]
        return self.sampled

    @property
    def handles(self) -> list[str]:
        """The GPUs that are read."""
        self.nvml.errors = {}
        read: list[str] = []
        self.nvml.nvmlDeviceGetPowerUsage = lambda handle: read.append(handle) or 0
        self.sample()
        return read


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


def test_series_carry_their_units_and_rates_are_rates() -> None:
    bench = Bench()
    first = bench.sample()
    assert first == {
        "gpu utilization": {"percent": 97, "memory_percent": 40},
        "gpu memory": {"used_bytes": 20, "free_bytes": 70},
        "gpu power": {"watts": 350.25},
        "gpu clocks": {"sm_mhz": 1980, "memory_mhz": 2619},
        "gpu temperature": {"celsius": 41},
    }, "a rate needs two samples"
    bench.nvml.fields = {197: 500, 198: 1000, 138: 1, 139: 2}
    second = bench.sample(0.5)
    assert second["gpu pcie"] == {"received_bytes_per_s": 2000.0, "sent_bytes_per_s": 1000.0}
    assert second["gpu nvlink"] == {"received_bytes_per_s": 4096.0, "sent_bytes_per_s": 2048.0}
    bench.nvml.fields = {197: 0, 198: 2000, 138: 1, 139: 2}
    assert bench.sample(1)["gpu pcie"] == {"received_bytes_per_s": 1000.0}, "one that wrapped has no rate"
    assert bench.failures == []


def test_what_is_not_offered_is_left_out_or_read_otherwise() -> None:
    nvml = FakeNvml()
    nvml.errors = {
        ("utilization", "any"): NOT_SUPPORTED,
        ("memory v2", "any"): nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        ("temperature", "any"): nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        ("field", 197): NOT_SUPPORTED,
        ("field", 139): NOT_SUPPORTED,
    }
    bench = Bench(nvml)
    for _ in range(2):
        sampled = bench.sample(1)
        assert set(sampled) == {"gpu memory", "gpu power", "gpu clocks", "gpu temperature", "gpu pcie"}
        assert sampled["gpu memory"] == {"used_bytes": 30, "free_bytes": 70}
        assert sampled["gpu temperature"] == {"celsius": 42}
        assert sampled["gpu pcie"] == {"received_bytes_per_s": 4000, "sent_bytes_per_s": 3000}
    assert bench.failures == []
    before = len(nvml.calls)
    bench.sample(1)
    asked = ["memory", "power", "clocks", "clocks", "temperature v", "pcie", "pcie"]
    assert nvml.calls[before:] == asked, "what is not offered is not asked for again"


def test_a_mig_instance_has_its_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5")
    nvml = FakeNvml()
    nvml.errors = {("any", "MIG-5"): NOT_SUPPORTED}
    nvml.errors |= {(name, "MIG-5"): 0 for name in ("memory", "memory v2")}
    bench = Bench(nvml)
    assert bench.sample() == {"gpu memory": {"used_bytes": 20, "free_bytes": 70}}
    assert bench.failures == []


@pytest.mark.parametrize(
    ("visible", "local_rank", "devices", "expected"),
    [
        (None, 1, None, ["GPU-bb00-2"]),
        ("1", 0, None, ["GPU-bb00-2"]),
        ("1", 5, None, ["GPU-bb00-2"]),  # a launcher that shows each rank its own
        ("1,0", 0, None, ["GPU-bb00-2"]),
        ("1,0", 1, None, ["GPU-aa00-1"]),
        ("GPU-bb00-2", 0, None, ["GPU-bb00-2"]),
        ("GPU-b", 0, None, ["GPU-bb00-2"]),
        ("1,0", 1, "all", ["GPU-bb00-2", "GPU-aa00-1"]),
        (None, 1, [0], ["GPU-aa00-1"]),
        ("MIG-1,MIG-2", 1, None, ["MIG-2"]),
    ],
)
def test_the_gpu_is_the_one_that_cuda_gives_the_rank(
    visible: str | None, local_rank: int, devices: Any, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    bench = Bench(local_rank=local_rank, devices=devices)
    assert bench.handles == expected
    numbers = {name.partition(" power")[0] for name in bench.sampled if "power" in name}
    assert numbers == ({"gpu 0", "gpu 1"} if devices == "all" else {"gpu"}), "several are numbered as CUDA does"


@pytest.mark.parametrize(
    ("visible", "local_rank", "devices", "driver", "reason"),
    [
        ("", 0, None, 0, "CUDA_VISIBLE_DEVICES shows this process none"),
        ("-1", 0, None, 0, "CUDA_VISIBLE_DEVICES shows this process none"),
        (None, 2, None, 0, "local rank 2 names GPU 2, and this process sees 2"),
        (None, 0, [0, 7], 0, "devices names GPU 7, and this process sees 2"),
        ("GPU-cc", 0, None, 0, "CUDA_VISIBLE_DEVICES names GPU-cc, which NVML does not find"),
        (None, 0, None, NO_DRIVER, "NVML error 9"),
    ],
)
def test_no_gpu_for_this_rank_means_no_counters_and_one_line(
    visible: str | None,
    local_rank: int,
    devices: Any,
    driver: int,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = FakeNvml()
    nvml.errors = {("nvmlInit", None): driver}
    bench = Bench(nvml, local_rank=local_rank, devices=devices)
    assert (bench.sample(), bench.failures) == ({}, [])
    bench.source.end_sampling()
    assert caplog.messages == [f"tracekit: no GPU counters: {reason}"]
    assert not driver or "nvmlShutdown" not in nvml.calls


def test_a_lost_gpu_takes_its_counters_with_it_and_is_reported_once() -> None:
    bench = Bench(devices="all")
    assert len(bench.sample()) == 10
    bench.nvml.errors = {("any", "GPU-aa00-1"): LOST}
    for _ in range(2):
        assert {name.split(" ")[1] for name in bench.sample(1)} == {"1"}
    assert bench.failures == ["GPUProfiler (gpu 0 utilization): NVML error 15"]


def test_an_error_that_passes_costs_its_sample_alone() -> None:
    bench = Bench()
    bench.sample()
    bench.nvml.errors = {("power", "any"): UNKNOWN, ("fields", "any"): UNKNOWN}
    assert "gpu power" not in bench.sample(1)
    bench.nvml.errors = {}
    bench.nvml.fields = {197: 10**9, 198: 10**9, 138: 0, 139: 0}
    third = bench.sample(1)
    assert third["gpu power"] == {"watts": 350.25}
    assert "gpu pcie" not in third, "the growth of the time that was not seen is not put on one interval"
    assert [failure.split(":")[0] for failure in bench.failures] == [
        f"GPUProfiler (gpu {name})" for name in ("power", "pcie", "nvlink")
    ]


def test_gpus_of_several_kinds_whose_order_is_unsure_are_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nvml = FakeNvml()
    nvml.names = ["A100", "T4"]
    Bench(nvml)
    assert "GPUs of several kinds (A100, T4)" in caplog.text
    caplog.clear()
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    Bench(nvml)
    assert caplog.text == ""


def test_devices_that_are_none_and_a_missing_nvidia_ml_py_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[Any] = [[], [-1], [True], ["0"], "first", 0, 1.5]
    for devices in wrong:
        with pytest.raises(ConfigError, match="GPUProfiler: devices must be"):
            GPUProfiler(devices=devices, provider=FakeNvml())
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingExtraError, match=r"GPUProfiler needs nvidia-ml-py: pip install 'tracekit-ml\[gpu\]'"):
        GPUProfiler()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", []),
        ("0", [0]),
        (" 1 , 0 ", [1, 0]),
        ("0,-1,1", [0]),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,x,1", [0]),
        ("1x,2", [1, 2]),
        ("0,0", []),
        ("GPU-aa,GPU-bb", ["GPU-aa", "GPU-bb"]),
        ("GPU-aa,1", ["GPU-aa"]),
        ("1,GPU-aa", [1]),
        ("MIG-GPU-aa/1/0", ["MIG-GPU-aa/1/0"]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(value: str | None, expected: list[int | str] | None) -> None:
    assert visible_devices(value) == expected
