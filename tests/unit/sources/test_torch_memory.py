"""torch's allocator counters, by a stand-in for ``torch.cuda``: there is no GPU in these tests."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tracekit import MemoryTraceHandler, Profiler, ProfilerAction, TorchMemoryProfiler

POOLS = ("allocated_bytes", "active_bytes", "reserved_bytes", "inactive_split_bytes")


class FakeCuda:
    """``torch.cuda``, with numbers that a test sets."""

    def __init__(self) -> None:
        self.initialised = True
        self.current = 100
        self.peak = 150
        self.retries = 3
        self.ooms = 1
        self.resets = 0
        self.fails = False

    def is_initialized(self) -> bool:
        return self.initialised

    def memory_stats_as_nested_dict(self) -> dict[str, Any]:
        if self.fails:
            raise RuntimeError("CUDA error")
        pools = {pool: {"all": {"current": self.current + at, "peak": self.peak + at}} for at, pool in enumerate(POOLS)}
        return {**pools, "num_alloc_retries": self.retries, "num_ooms": self.ooms, "segment": {"all": {"current": 1}}}

    def reset_peak_memory_stats(self) -> None:
        self.resets += 1
        self.peak = self.current


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    found = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=found))
    return found


def recorded(memory: MemoryTraceHandler) -> list[tuple[str, dict[str, float]]]:
    return [(counter.label.name, dict(counter.values)) for counter in memory.counters]


@pytest.mark.parametrize("reset", [False, True], ids=["peaks of the run", "peaks of each batch"])
def test_each_batch_has_what_is_held_its_peak_and_what_went_wrong_since_the_last(cuda: FakeCuda, reset: bool) -> None:
    memory = MemoryTraceHandler()
    with Profiler(memory, sources=[TorchMemoryProfiler(reset_peaks=reset)], rank=0) as profiler:
        cuda.current, cuda.peak, cuda.retries = 200, 400, 5
        profiler.step()
    held = [dict(zip(POOLS, range(start, start + 4), strict=True)) for start in (100, 150, 200, 400)]
    assert recorded(memory) == [
        ("torch memory", held[0]),
        ("torch memory peak", held[1]),
        ("torch memory", held[2]),
        ("torch memory peak", held[3]),
        ("torch allocator", {"alloc_retries": 2, "ooms": 0}),
    ]
    assert {counter.label.categories for counter in memory.counters} == {("gpu", "memory")}
    assert cuda.resets == 2 * reset


def test_nothing_is_read_in_skip_nor_before_cuda_is_in_use(cuda: FakeCuda) -> None:
    memory = MemoryTraceHandler()
    cuda.initialised = False
    plan = [ProfilerAction.ACTIVE, ProfilerAction.SKIP, ProfilerAction.ACTIVE, ProfilerAction.ACTIVE]
    with Profiler(memory, sources=[TorchMemoryProfiler()], schedule=lambda at: plan[int(at.batch)], rank=0) as profiler:
        profiler.step()
        cuda.initialised = True
        profiler.step()
        profiler.step()
    batches = [int(counter.timestamp.batch) for counter in memory.counters if counter.label.name == "torch memory"]
    assert batches == [2, 3]


@pytest.mark.parametrize("torch", ["without torch", "on the CPU"])
def test_without_a_device_there_are_no_counters_and_nothing_fails(torch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch == "on the CPU":
        found = pytest.importorskip("torch", reason="torch is not installed")
        if found.cuda.is_initialized():
            pytest.skip("a test has used CUDA")
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    memory = MemoryTraceHandler()
    with Profiler(memory, sources=[TorchMemoryProfiler()], rank=0) as profiler:
        profiler.step()
    assert ("torch" in sys.modules) is (torch == "on the CPU")
    assert (memory.counters, profiler.stats.failures) == ([], {})


def test_what_torch_throws_is_reported_and_ends_the_source(cuda: FakeCuda, caplog: pytest.LogCaptureFixture) -> None:
    cuda.fails = True
    with Profiler(sources=[TorchMemoryProfiler()], rank=0) as profiler:
        profiler.step()
    assert profiler.stats.failures == {"TorchMemoryProfiler": 1}
    assert "CUDA error" in caplog.text
