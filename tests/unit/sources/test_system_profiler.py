"""The system counters: units, rates, what is missing or goes away, and the thread's life."""

from __future__ import annotations

import os
import sys
import threading
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults.processes import wait_until
from tracekit.clock import Clock
from tracekit.errors import ConfigError, MissingExtraError
from tracekit.recording.schedule import ProfilerAction
from tracekit.sources import sampling
from tracekit.sources.system import SystemProfiler

SECOND_NS = 1_000_000_000
CpuTimes = namedtuple("CpuTimes", "user nice system idle iowait guest guest_nice")


class FakeRecorder:
    """Keeps what is recorded; ``enough`` is set when that many counters came."""

    def __init__(self, *, wanted: int = 0) -> None:
        self.action = ProfilerAction.ACTIVE
        self.counters: list[tuple[str, dict[str, float]]] = []
        self.categories: set[tuple[str, ...]] = set()
        self.failures: list[tuple[str, BaseException]] = []
        self.enough = threading.Event()
        self._wanted = wanted

    def marker(self, name: str, categories: Any = ()) -> Any:
        self.categories.add(tuple(categories))
        return SimpleNamespace(counter=lambda values: self._count(name, values))

    def _count(self, name: str, values: dict[str, float]) -> None:
        self.counters.append((name, values))
        if len(self.counters) >= self._wanted:
            self.enough.set()

    def report_failure(self, who: str, error: BaseException) -> None:
        self.failures.append((who, error))

    def values(self, name: str) -> list[dict[str, float]]:
        return [values for counter, values in self.counters if counter == name]


class FakePsutil:
    """What psutil offers, with numbers that a test sets."""

    def __init__(self) -> None:
        self.cpu = CpuTimes(user=0.0, nice=0.0, system=0.0, idle=0.0, iowait=0.0, guest=0.0, guest_nice=0.0)
        self.disk: Any = SimpleNamespace(read_bytes=0, write_bytes=0)
        self.nics = {"eth0": SimpleNamespace(bytes_recv=0, bytes_sent=0)}
        self.times = SimpleNamespace(user=0.0, system=0.0)
        self.process = SimpleNamespace(
            cpu_times=lambda: self.times,
            memory_info=lambda: SimpleNamespace(rss=4096),
            io_counters=lambda: SimpleNamespace(read_bytes=0, write_bytes=0),
            num_threads=lambda: 3,
            num_fds=lambda: 7,
        )

    def Process(self) -> Any:
        return self.process

    def cpu_count(self) -> int:
        return 4

    def cpu_times(self) -> CpuTimes:
        return self.cpu

    def virtual_memory(self) -> Any:
        return SimpleNamespace(used=1000, available=3000)

    def swap_memory(self) -> Any:
        return SimpleNamespace(used=0)

    def disk_io_counters(self, *, nowrap: bool) -> Any:
        assert nowrap is False
        return self.disk

    def net_io_counters(self, *, pernic: bool, nowrap: bool) -> dict[str, Any]:
        assert pernic is True
        assert nowrap is False
        return dict(self.nics)


class Bench:
    """A system profiler that is sampled by hand, on the test's own clock."""

    def __init__(self, psutil: Any = None, **groups: bool) -> None:
        self.now_ns = 5 * SECOND_NS
        self.psutil = FakePsutil() if psutil is None else psutil
        self.recorder = FakeRecorder()
        self.source = SystemProfiler(provider=self.psutil, clock=Clock(monotonic_ns=lambda: self.now_ns), **groups)
        self.counters = self.source.begin_sampling(self.recorder)  # type: ignore[arg-type]

    def sample(self, seconds: float = 0.0) -> None:
        self.now_ns += round(seconds * SECOND_NS)
        self.counters = self.source._sample(self.recorder, self.counters)  # type: ignore[arg-type]


def only(name: str) -> dict[str, bool]:
    return {group: group == name for group in ("process", "cpu", "memory", "disk", "network")}


def test_names_and_series_carry_their_units() -> None:
    bench = Bench()
    bench.sample()
    bench.sample(1)
    assert {name: sorted(bench.recorder.values(name)[-1]) for name, _ in bench.recorder.counters} == {
        "process cpu": ["percent"],
        "process memory": ["rss_bytes"],
        "process disk": ["read_bytes_per_s", "written_bytes_per_s"],
        "process threads": ["threads"],
        "process files": ["open_files"],
        "host cpu": ["percent"],
        "host memory": ["available_bytes", "used_bytes"],
        "host swap": ["used_bytes"],
        "host disk": ["read_bytes_per_s", "written_bytes_per_s"],
        "host network": ["received_bytes_per_s", "sent_bytes_per_s"],
    }
    assert bench.recorder.categories == {("system",)}
    assert bench.recorder.values("host memory") == [{"used_bytes": 1000, "available_bytes": 3000}] * 2


def disk(read: int, written: int) -> SimpleNamespace:
    return SimpleNamespace(read_bytes=read, write_bytes=written)


def nics(*names: str, received: int, sent: int) -> dict[str, SimpleNamespace]:
    return {name: SimpleNamespace(bytes_recv=received, bytes_sent=sent) for name in names}


IDLE = CpuTimes(user=0.0, nice=0.0, system=0.0, idle=0.0, iowait=0.0, guest=0.0, guest_nice=0.0)
LOOPBACKS = ("lo", "lo0", "Loopback Pseudo-Interface 1")
RATES: dict[str, tuple[str, list[tuple[float, Any]], list[dict[str, float]]]] = {
    "growth over the time between two samples": (
        "host disk",
        [(0, disk(0, 0)), (0.5, disk(1000, 50)), (4, disk(1000, 450))],
        [
            {"read_bytes_per_s": 2000.0, "written_bytes_per_s": 100.0},
            {"read_bytes_per_s": 0.0, "written_bytes_per_s": 100.0},
        ],
    ),
    "none of a counter that went back, which is the next base": (
        "host disk",
        [(0, disk(2**32 - 1, 0)), (1, disk(5, 8)), (1, disk(6, 8))],
        [{"written_bytes_per_s": 8.0}, {"read_bytes_per_s": 1.0, "written_bytes_per_s": 0.0}],
    ),
    "none of two samples at one moment": ("host disk", [(0, disk(0, 0)), (0, disk(1, 1))], []),
    "percent of one core": (
        "process cpu",
        [(0, SimpleNamespace(user=0.0, system=0.0)), (2, SimpleNamespace(user=2.0, system=1.0))],
        [{"percent": 150.0}],
    ),
    # Of 4 cores in 2 s: 3 s of user time, of which 1 s for guests, 1 s system, the rest idle or waiting.
    "percent of all cores, of which waiting ones are idle": (
        "host cpu",
        [(0, IDLE), (2, IDLE._replace(user=3.0, system=1.0, idle=3.0, iowait=1.0, guest=1.0))],
        [{"percent": 50.0}],
    ),
    "never above 100 percent": ("host cpu", [(0, IDLE), (1, IDLE._replace(user=4.04))], [{"percent": 100.0}]),
    "interfaces added up without the loopback": (
        "host network",
        [
            (0, nics("eth0", "eth1", *LOOPBACKS, received=0, sent=0)),
            (1, nics("eth0", "eth1", *LOOPBACKS, received=100, sent=10)),
        ],
        [{"received_bytes_per_s": 200.0, "sent_bytes_per_s": 20.0}],
    ),
    "interfaces that come and go": (
        "host network",
        [
            (0, nics("eth0", received=0, sent=0) | nics("usb0", received=10**12, sent=10**12)),
            (1, nics("eth0", received=100, sent=10) | nics("eth9", received=10**12, sent=10**12)),
        ],
        [{"received_bytes_per_s": 100.0, "sent_bytes_per_s": 10.0}],
    ),
}
SOURCES = {"host disk": "disk", "process cpu": "times", "host cpu": "cpu", "host network": "nics"}


@pytest.mark.parametrize("name", RATES)
def test_a_rate_is(name: str) -> None:
    counter, samples, expected = RATES[name]
    bench = Bench(**only("process" if counter == "process cpu" else counter.removeprefix("host ")))
    for seconds, reading in samples:
        setattr(bench.psutil, SOURCES[counter], reading)
        bench.sample(seconds)
    assert bench.recorder.values(counter) == expected


def test_a_host_without_disks_or_interfaces_has_no_such_counters() -> None:
    bench = Bench(process=False, cpu=False, memory=False)
    bench.psutil.disk = None
    bench.psutil.nics = {}
    bench.sample()
    bench.sample(1)
    assert bench.recorder.counters == []
    assert bench.recorder.failures == []


def test_what_the_operating_system_does_not_offer_is_left_out_silently() -> None:
    psutil = FakePsutil()
    del psutil.process.io_counters, psutil.process.num_fds
    psutil.virtual_memory = lambda: SimpleNamespace(used=1)  # type: ignore[method-assign]
    bench = Bench(psutil, cpu=False, disk=False, network=False)
    bench.sample()
    assert [name for name, _ in bench.recorder.counters] == [
        "process memory",
        "process threads",
        "host memory",
        "host swap",
    ]
    assert bench.recorder.values("host memory") == [{"used_bytes": 1}]
    assert bench.recorder.failures == []


def test_a_reading_that_fails_is_reported_and_the_other_counters_go_on() -> None:
    bench = Bench(**only("memory"))
    good = bench.psutil.virtual_memory
    bench.psutil.virtual_memory = lambda: (_ for _ in ()).throw(OSError("too many open files"))
    bench.sample()
    bench.psutil.virtual_memory = good
    bench.sample()
    assert [who for who, _ in bench.recorder.failures] == ["SystemProfiler (host memory)"]
    assert [name for name, _ in bench.recorder.counters] == ["host swap", "host memory", "host swap"]


def test_nothing_is_recorded_while_the_schedule_skips_and_rates_do_not_span_the_pause() -> None:
    bench = Bench(**only("disk"))
    bench.sample()
    bench.recorder.action = ProfilerAction.SKIP
    bench.psutil.disk = SimpleNamespace(read_bytes=10**9, write_bytes=10**9)
    bench.sample(1)
    bench.recorder.action = ProfilerAction.WARMUP
    bench.sample(1)
    assert bench.recorder.counters == []
    bench.sample(1)
    assert bench.recorder.values("host disk") == [{"read_bytes_per_s": 0.0, "written_bytes_per_s": 0.0}]


def test_the_thread_samples_from_the_real_psutil_and_is_joined() -> None:
    pytest.importorskip("psutil")
    recorder = FakeRecorder(wanted=30)
    source = SystemProfiler(interval=0.005)
    source.open(recorder, ProfilerAction.ACTIVE)  # type: ignore[arg-type]
    assert any(thread.name == "tracekit-system" and thread.daemon for thread in threading.enumerate())
    assert recorder.enough.wait(60)
    source.close()
    assert not any(thread.name == "tracekit-system" for thread in threading.enumerate())
    assert recorder.failures == []
    assert recorder.values("process memory")[0]["rss_bytes"] > 1_000_000
    assert all(value >= 0 for _, values in recorder.counters for value in values.values())


def test_a_window_that_begins_is_sampled_at_once() -> None:
    recorder = FakeRecorder(wanted=1)
    recorder.action = ProfilerAction.SKIP
    # The grid's next point is an hour away: only the wake-up can bring a sample.
    source = SystemProfiler(interval=3600, provider=FakePsutil())
    source.open(recorder, ProfilerAction.SKIP)  # type: ignore[arg-type]
    recorder.action = ProfilerAction.WARMUP
    source.step(ProfilerAction.SKIP, ProfilerAction.WARMUP)
    assert recorder.enough.wait(60)
    source.close()


def test_a_thread_that_was_left_behind_ends_though_the_source_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "JOIN_SECONDS", 0.01)
    psutil, hangs, go_on = FakePsutil(), threading.Event(), threading.Event()

    def hang() -> SimpleNamespace:
        hangs.set()
        assert go_on.wait(60)
        return SimpleNamespace(used=0)

    psutil.swap_memory = hang  # type: ignore[method-assign]
    source = SystemProfiler(interval=0.005, provider=psutil, **only("memory"))
    old, new = FakeRecorder(), FakeRecorder(wanted=6)
    source.open(old, ProfilerAction.ACTIVE)  # type: ignore[arg-type]
    assert hangs.wait(60)
    source.close()
    assert "is left behind" in str(old.failures[0][1])
    source.open(new, ProfilerAction.ACTIVE)  # type: ignore[arg-type]
    go_on.set()
    assert new.enough.wait(60)
    wait_until(lambda: sum(thread.name == "tracekit-system" for thread in threading.enumerate()) == 1)
    source.close()
    assert [name for name, _ in old.counters] == ["host memory", "host swap"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_closes_without_waiting_for_a_thread_that_it_does_not_have() -> None:
    recorder = FakeRecorder()
    source = SystemProfiler(interval=3600, provider=FakePsutil())
    source.open(recorder, ProfilerAction.ACTIVE)  # type: ignore[arg-type]
    # The worst moment to fork: the sampling thread holds the lock of the event.
    with source._wake._cond:
        child = os.fork()
        if child == 0:
            source.close()
            os._exit(17)
    source.close()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17


def test_wrong_arguments_and_a_missing_psutil_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SystemProfiler(provider=FakePsutil()).close()  # was never opened
    with pytest.raises(ConfigError, match="SystemProfiler: interval must be a number of seconds above 0"):
        SystemProfiler(interval=0, provider=FakePsutil())
    with pytest.raises(ConfigError, match="nothing is left to record"):
        SystemProfiler(**only("nothing"), provider=FakePsutil())
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(MissingExtraError, match=r"SystemProfiler needs psutil: pip install 'tracekit-ml\[system\]'"):
        SystemProfiler()
    monkeypatch.delitem(sys.modules, "psutil")
    (tmp_path / "psutil.py").write_text("raise ImportError('no libpsutil.so')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"psutil, which cannot be imported \(no libpsutil.so\): pip install"):
        SystemProfiler()
