"""The GPU counters through the real nvidia-ml-py, with a stand-in for the driver's library that is compiled here.

On a machine with an NVIDIA GPU, the last test reads that as well.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.native import compiled
from tests.scripts import ROOT, run_script
from tracekit import GPUProfiler, MemoryTraceHandler, Profiler

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

RUN = """
import json, logging, sys, threading
from tracekit import GPUProfiler, JSONTraceHandler, Profiler

class Profile(GPUProfiler):
    # Says when so many samples were taken.
    def __init__(self, samples, **options):
        super().__init__(0.01, **options)
        self.left, self.enough = samples, threading.Event()
    def _sample(self, recorder, counters):
        counters = super()._sample(recorder, counters)
        self.left -= 1
        if not self.left or not counters:
            self.enough.set()
        return counters

options = json.loads(sys.argv[1])
source = Profile(5, devices=options.get("devices"))
identity = {"rank": options.get("rank", 0), "local_rank": options.get("rank", 0), "world_size": 2}
with Profiler(JSONTraceHandler("rank{rank}.json"), sources=[source], flush_interval=0.05, **identity) as profiler:
    if options.get("gpus", 2) > 0:
        assert source.enough.wait(240)
print(json.dumps(profiler.stats.failures))
"""


def run(folder: Path, options: dict[str, Any] | None = None, **variables: str) -> tuple[dict[str, int], str]:
    """Record with the stand-in library; return the failures and what was logged."""
    library = folder / "lib"
    library.mkdir()
    compiled("nvml", library, "libnvidia-ml.so.1")
    variables = {"CUDA_VISIBLE_DEVICES": "0,1", "LD_LIBRARY_PATH": str(library), **variables}
    done = run_script(folder, "-c", RUN, json.dumps(options or {}), **variables)
    failures: dict[str, int] = json.loads(done.stdout)
    return failures, done.stderr


def counters(path: Path) -> dict[str, dict[str, float]]:
    """Return the last values of each counter."""
    return {event["name"]: event["args"] for event in json.loads(path.read_text("utf-8")) if event["ph"] == "C"}


def test_every_counter_of_the_ranks_gpu_comes_through_the_real_package(tmp_path: Path, engine: Engine) -> None:
    failures, said = run(tmp_path, {"rank": 1}, NVML_SHUTDOWN=str(tmp_path / "shut down"))
    assert (failures, said) == ({}, "")
    assert (tmp_path / "shut down").exists()
    last = counters(tmp_path / "rank1.json")
    rates = {name: last.pop(name) for name in ("gpu pcie", "gpu nvlink")}
    assert last == {
        "gpu utilization": {"percent": 51, "memory_percent": 20},
        "gpu memory": {"used_bytes": 2 << 30, "free_bytes": 78 << 30},
        "gpu power": {"watts": 300.25},
        "gpu clocks": {"sm_mhz": 1980, "memory_mhz": 2619},
        "gpu temperature": {"celsius": 40},
    }
    for series in rates.values():
        assert series["received_bytes_per_s"] == pytest.approx(2 * series["sent_bytes_per_s"])
        assert series["sent_bytes_per_s"] > 0
    with engine.load(tmp_path / "rank1.json") as trace:
        assert trace.errors() == []
        tracks = {name for (name,) in trace.rows("select distinct name from counter_track")}
    assert {"gpu power watts", "gpu clocks sm_mhz", "gpu nvlink sent_bytes_per_s"} <= tracks


def test_a_gpu_that_is_lost_is_reported_and_the_other_goes_on(tmp_path: Path) -> None:
    failures, said = run(tmp_path, {"devices": "all"}, CUDA_VISIBLE_DEVICES="GPU-1,GPU-0", NVML_LOST_AFTER="2")
    assert failures == {"Profile (gpu 0 utilization)": 1}
    assert "GPU is lost" in said
    events = json.loads((tmp_path / "rank0.json").read_text("utf-8"))
    counts = [sum(event["name"] == f"gpu {gpu} power" for event in events) for gpu in (0, 1)]
    assert counts[0] == 2
    assert counts[1] >= 5


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"NVML_GPUS": "-1"}, "Driver Not Loaded"),
        ({"LD_LIBRARY_PATH": ""}, "NVML Shared Library Not Found"),
    ],
)
def test_no_gpu_no_driver_and_no_library_mean_one_line(tmp_path: Path, variables: dict[str, str], reason: str) -> None:
    if "LD_LIBRARY_PATH" in variables and has_gpu():
        pytest.skip("this machine has the library")
    failures, said = run(tmp_path, {"gpus": 0}, **variables)
    assert failures == {}
    assert said == f"tracekit: no GPU counters: {reason}\n"
    assert counters(tmp_path / "rank0.json") == {}


@pytest.mark.slow
def test_the_example_runs_with_a_gpu_and_without(tmp_path: Path, engine: Engine) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    source = (ROOT / "examples" / "gpu_counters.py").read_text("utf-8")
    assert len(source.splitlines()) <= 30
    done = run_script(tmp_path, "-c", source)
    with engine.load(tmp_path / done.stdout.strip().rpartition(" ")[2]) as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name = 'forward'") == 20
        if not has_gpu():
            assert "tracekit: no GPU counters: NVML Shared Library Not Found" in done.stderr
            assert trace.scalar("select count(*) from counter") == 0


def has_gpu() -> bool:
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return False
    return bool(count)


@pytest.mark.skipif(not has_gpu(), reason="this machine has no NVIDIA GPU")
def test_a_real_gpu_has_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    memory = MemoryTraceHandler()
    source = GPUProfiler(0.05, devices=[0])
    with Profiler(memory, sources=[source], rank=0) as profiler:
        while len(memory.counters) < 20:
            profiler.flush()
    assert profiler.stats.failures == {}
    last = {counter.label.name: counter.values for counter in memory.counters}
    assert {"gpu utilization", "gpu memory"} <= set(last)
    assert last["gpu memory"]["free_bytes"] > 0  # an idle GPU uses no memory
