"""Clocks of real ranks: what comes out is true, and a rank that is missing, dies or hangs does no harm."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import Child, Remains, opened, opens, read_trace
from tracekit import ClockSync, JSONTraceHandler, Profiler, merge_traces, validate_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.perfetto import Engine

pytest.importorskip("torch", reason="torch is not installed")

SYNC = "tracekit"
"""How ranks compare their clocks; ``"barrier"`` is the bad way, by barriers of the group that training uses."""

HEAD = """
import datetime, torch.distributed as dist
from tracekit import ClockSync, Source, TraceHandler
from tracekit.clock import Clock

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

class Tells(TraceHandler):
    def clock_offset(self, offset):
        say(f"offset {offset.error_ns}")

class Barrier(Source):
    def open(self, recorder, action):
        dist.barrier()
    def step(self, finished, action):
        dist.barrier()
    def close(self):
        dist.barrier()

def join():
    seconds = 100 if os.environ["SYNC"] == "tracekit" else 5  # the bad way hangs for so long
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))

def clocked(sources=None, **options):
    good = os.environ["SYNC"] == "tracekit"
    sources = (ClockSync(0.2) if good else Barrier()) if sources is None else sources
    return record("t{rank}.json", Tells(), sources=sources, rank=rank, world_size=world, run_id="run", **options)
"""


@contextlib.contextmanager
def ranks(program: str, folder: Path, count: int) -> Iterator[list[Child]]:
    with contextlib.ExitStack() as stack:
        # Kept until the end: nobody else is given it meanwhile, and a store may listen on it all the same.
        reserved = stack.enter_context(socket.socket())
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        environment = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(reserved.getsockname()[1]),
            "WORLD_SIZE": str(count),
            "SYNC": SYNC,
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # torch shows a stack of C++ for every store that is gone
        }
        yield [
            stack.enter_context(Child(HEAD + program, folder, environment={**environment, "RANK": str(rank)}))
            for rank in range(count)
        ]


def offsets(remains: Remains) -> list[dict[str, Any]]:
    return [event["args"] for event in remains.events if event["name"] == "tracekit_clock_offset"]


# The process group comes after the recording began, and goes before it ends.
TRUE = """
import torch

def listening():
    mine = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            mine.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            pass
    table = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}")]
    return sum(line[3] == "0A" and f"socket:[{line[9]}]" in mine for line in table)

clock = Clock()
if rank == 2:  # as if on another host: its clocks are ahead, and run 2000 ppm faster
    began = time.perf_counter_ns()
    def monotonic():
        return 7_500_000_000 + began + (time.perf_counter_ns() - began) * 1_002_000 // 1_000_000
    clock = Clock(wall_ns=lambda: monotonic() + 1_795_000_000_000_000_000, monotonic_ns=monotonic)
    say(f"began {began}")
from tracekit.sources import clock_exchange
clock_exchange.ANSWER_S = clock_exchange.PATIENCE_S = 60.0  # this machine may be busy
seen = []
Tells.clock_offset = lambda self, offset: seen.append(offset)
profiler = clocked(clock=clock)
with profiler.marker("before"):
    join()
before = listening()
total, agreed = torch.ones(1), torch.zeros(1)
deadline = time.monotonic() + 60
while not agreed and time.monotonic() < deadline:
    with profiler.marker("step"):
        dist.all_reduce(total)  # training's own traffic
    assert total.item() == world, total
    total.fill_(1.0)
    # Until everybody but the reference has been measured six times, and the bound of its drift says something: the longer
    # the run, the smaller it is, also where a busy machine has long round trips.
    says = len(seen) >= 6 and min(offset.drift_error_ppb for offset in seen[1:]) < 1_900_000
    agreed = torch.tensor([float(rank == 0 or says)])
    dist.all_reduce(agreed, dist.ReduceOp.MIN)
    time.sleep(0.01)
assert listening() == before, "a socket listens"
say("measured")
hear()
dist.destroy_process_group()
say("left")
hear()
profiler.stop()
"""


def test_offset_drift_and_bound_are_true_and_training_s_own_traffic_is_left_alone(
    tmp_path: Path, engine: Engine
) -> None:
    with ranks(TRUE, tmp_path, 3) as children:
        began_ns = int(children[2].hear("began"))
        for child in children:
            child.hear("measured")
        for child in reversed(children):  # rank 0 keeps the store: it is the last to leave
            child.tell()
            child.hear("left")
        for child in children:
            child.tell()
        assert [(child.end(), child.errors) for child in children] == [(0, "")] * 3
    traces = [read_trace(tmp_path / f"t{rank}.json") for rank in range(3)]
    for remains in traces:
        assert remains.closed
        opens(engine, remains)
        assert validate_trace(str(remains.path)).counts == {}
    reference, neighbour, foreign = map(offsets, traces)
    assert [(found["offset_ns"], found["error_ns"]) for found in reference] == [(0, 0)]
    # One host and one boot share the monotonic clock, so that the true offset is known: 0.
    anchors_ns = sum(remains.metadata["clock"]["error_ns"] for remains in traces[:2])
    for found in neighbour:
        # The wall clocks are read once each, and slewed meanwhile.
        assert abs(found["offset_ns"]) <= found["error_ns"] + anchors_ns + 50_000
        assert abs(found["monotonic_offset_ns"]) <= found["error_ns"]
        assert found["drift_ppb"] is None or abs(found["drift_ppb"]) <= found["drift_error_ppb"]
    for found in foreign:
        # Its clock shows 7.5 s + began + 1.002 * (true - began).
        true_ns = began_ns + (found["monotonic_ns"] - 7_500_000_000 - began_ns) * 1_000_000 // 1_002_000
        assert abs(found["monotonic_ns"] + found["monotonic_offset_ns"] - true_ns) <= found["error_ns"] + 2
        assert found["drift_ppb"] is None or abs(found["drift_ppb"] + 1_996_008) <= found["drift_error_ppb"] + 2
    for found in (*neighbour, *foreign):
        assert (found["reference_rank"], found["reference_boot_id"]) == (0, traces[0].metadata["boot_id"])
        assert found["error_ns"] < 20_000_000
    merge_traces(str(tmp_path / "merged.json"), [str(remains.path) for remains in traces[:2]], strict=True)
    merged = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    assert [event["args"] for event in merged if event["name"] == "tracekit_clock_offset"] == [*reference, *neighbour]


MISSING = """
from tracekit.sources import clock_exchange
clock_exchange.ANSWER_S = clock_exchange.PATIENCE_S = 3600.0  # a step that waits for a rank would take an hour
join()
if rank == 1:
    profiler = clocked(sources=())  # has no ClockSync at all
else:
    profiler = clocked()
say("started")
hear()
for _ in range(50):
    with profiler.marker("step"):
        time.sleep(0.002)
    profiler.step()
say("stepped")
hear()  # rank 0 keeps the store: it is the last to stop
profiler.stop()
os._exit(0)
"""


def test_a_rank_that_has_none_keeps_nobody_waiting(tmp_path: Path, engine: Engine) -> None:
    with ranks(MISSING, tmp_path, 3) as children:
        for child in children:
            assert child.hear("started") == ""
        assert int(children[2].hear("offset")) > 0
        for child in children:
            child.tell()
        for child in children:
            child.hear("stepped")
        for rank, child in reversed(list(enumerate(children))):
            child.tell()
            assert child.end() == 0
            remains = read_trace(tmp_path / f"t{rank}.json")
            assert (remains.count("XB", "step"), remains.closed) == (50, True)
            opens(engine, remains)
        assert "no clock was compared with that of rank 1\n" in children[0].errors
        assert "tracekit" not in children[1].errors + children[2].errors


DIES = """
join()
profiler = clocked()
while True:
    profiler.step()
    with profiler.marker("step"):
        if hear() == "stop":
            break
    say("alive")
profiler.stop()
say("stopped")
os._exit(0)
"""


def test_ranks_that_die_or_hang_take_nobody_with_them(tmp_path: Path, engine: Engine) -> None:
    with ranks(DIES, tmp_path, 4) as children:
        if SYNC == "tracekit":
            for child in children[1:]:
                child.hear("offset")
        children[1].kill()
        children[2].signal(signal.SIGSTOP)
        for child in (children[0], children[3]):
            child.tell()
            child.hear("alive")
        for _ in range(5):  # goes on being measured, after one wait for the one that hangs at most
            children[3].hear("offset")
        children[0].kill()
        # Rank 0 kept the store: nobody can be asked any more, and that is said once.
        for _ in range(3):
            children[3].tell()
            children[3].hear("alive")
        children[3].tell("stop")
        children[3].hear("stopped")
        assert children[3].end() == 0
        assert children[3].errors.count("tracekit") <= 1, children[3].errors
        remains = read_trace(tmp_path / "t3.json")
        assert remains.closed
        opens(engine, remains)
        assert len(offsets(remains)) >= 6
        opened(engine, tmp_path / "t0.json")


PARTING = """
from tracekit.sources import clock_sync
clock_sync.PARTING_S = 60.0  # this machine may be busy
join()
profiler = clocked()
hear()
profiler.stop()
os._exit(0)
"""


@pytest.mark.slow
def test_a_rank_that_ends_a_little_after_rank_0_says_nothing_of_it(tmp_path: Path) -> None:
    with ranks(PARTING, tmp_path, 2) as (first, second):
        second.hear("offset")
        first.tell()
        assert first.end() == 0
        time.sleep(1)  # this is the fault: it ends that much later, and has asked in vain
        second.tell()
        assert second.end() == 0
        assert "tracekit" not in second.errors


def test_it_does_nothing_in_a_run_of_one_rank(tmp_path: Path) -> None:
    with Profiler(JSONTraceHandler(tmp_path / "t.json"), sources=ClockSync(0.2), rank=0, world_size=1):
        pass
    assert offsets(read_trace(tmp_path / "t.json")) == []
