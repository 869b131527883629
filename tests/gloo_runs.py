"""Real runs of four ranks that exchange gradients with gloo, in each of which one rank is slow in one stage.

One start of the ranks makes many runs, each recorded by a profiler of its own. Where a run is told to be apart, each rank
is as on a host of its own: it records by clocks that stand seconds apart from those of the others, and exchanges with rank 0
how far.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

RANKS = 4
STEPS = 40
STAGES_MS = {"dataloader": 0.5, "forward": 1.5, "backward": 2.0, "optimizer": 0.7}

CHILD = """
import dataclasses, json, os, random, sys, threading, time
import torch
import torch.distributed as dist
from tracekit import ClockSync, JSONTraceHandler, Profiler, TraceHandler
from tracekit.clock import Clock
from tracekit.distributed import detect_process
from tracekit.sources import clock_exchange

clock_exchange.ANSWER_S = clock_exchange.PATIENCE_S = 60.0  # this machine may be busy
folder, rank, ranks, steps, stages = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5])
dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "store"), rank=rank, world_size=ranks)
torch.set_num_threads(1)
gradients = torch.ones(1000)
for run in json.loads(sys.argv[6]):
    chance = random.Random(f"{run['seed']} {rank}")

    def work(stage):
        length = stages[stage] * chance.uniform(0.8, 1.2)
        late = run["rank"] == rank and run["stage"] == stage and chance.random() < run["often"]
        time.sleep((length + late * run["delay_ms"]) / 1000)

    def exchange(profiler):
        with profiler.marker("all_reduce"):
            dist.all_reduce(gradients)

    handlers, options = [JSONTraceHandler(os.path.join(folder, run["name"], "rank{rank}.json"))], {}
    compared = threading.Event()
    if run["apart"]:
        class Tells(TraceHandler):
            def clock_offset(self, offset):
                compared.set()

        wall, monotonic = run["apart"][rank]
        handlers.append(Tells())
        here = detect_process(rank=rank, world_size=ranks)
        options = {
            "clock": Clock(lambda: time.time_ns() + wall, lambda: time.perf_counter_ns() + monotonic),
            "process": dataclasses.replace(here, host=f"host{rank}", boot_id=f"boot{rank}"),
            "sources": ClockSync(0.5),
        }
    else:
        compared.set()
        options = {"rank": rank}
    with Profiler(handlers, **options) as profiler:
        assert compared.wait(300)
        dist.barrier()
        for step in range(steps):
            for stage in stages:
                with profiler.marker(stage):
                    work(stage)
                    if stage == "backward" and run["nested"]:
                        exchange(profiler)
                if stage == "backward" and not run["nested"]:
                    exchange(profiler)
            profiler.step(samples=1)
    dist.barrier()
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Run:
    """A run, and what is wrong in it.

    Attributes:
        name: Of its folder.
        seed: What its noise comes from.
        rank: The slow one; -1 for none.
        stage: In which it is slow.
        delay_ms: By how much.
        often: In which share of the steps.
        nested: Whether gradients are exchanged inside of the backward pass.
        apart: By how many ns the wall clock and the monotonic clock of each rank are ahead; empty where they share a host.
    """

    name: str
    seed: int
    rank: int
    stage: str
    delay_ms: float = 0.0
    often: float = 1.0
    nested: bool = False
    apart: tuple[tuple[int, int], ...] = ()


def clocks_apart(seed: int) -> tuple[tuple[int, int], ...]:
    """Return by how much the clocks of each rank are ahead: the wall clock by up to 20 seconds, the other by any."""
    random = Random(seed)
    return tuple((random.randrange(-20 * 10**9, 20 * 10**9), random.randrange(10**15)) for _ in range(RANKS))


def drawn_runs(count: int, seed: int, *, apart: bool = False) -> list[Run]:
    """Return runs with one slow rank each, drawn by a seed; where they shall be ``apart``, every other one is so."""
    random = Random(seed)
    return [
        Run(
            name=f"run{number}",
            seed=random.randrange(1 << 30),
            rank=random.randrange(RANKS),
            stage=random.choice(list(STAGES_MS)),
            delay_ms=random.uniform(3.0, 6.0),
            often=random.choice([1.0, 1.0, 0.6]),
            nested=bool(number % 2),
            apart=clocks_apart(seed + number) if apart and number // 2 % 2 else (),
        )
        for number in range(count)
    ]


def record(folder: Path, runs: list[Run]) -> None:
    """Record runs; each leaves ``NAME/rank0.json`` and so on in the folder."""
    told = json.dumps([asdict(run) for run in runs])
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder), str(rank), str(RANKS), str(STEPS), json.dumps(STAGES_MS), told],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    errors = [process.communicate(timeout=800)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * RANKS, errors


def write_variation(recorded: list[list[dict[str, int]]], run: Run, folder: Path) -> None:
    """Write a recorded run as it would have been with one rank slow in one stage: the others wait for it in the exchange."""
    random = Random(run.seed)
    ready = [0] * RANKS
    at = [0] * RANKS
    events: list[list[dict[str, Any]]] = [
        [{"ph": "M", "name": "tracekit_metadata", "pid": rank, "tid": rank, "args": {"rank": rank, "pid": rank}}]
        for rank in range(RANKS)
    ]
    for step in range(STEPS):
        lengths = [dict(recorded[rank][step]) for rank in range(RANKS)]
        if random.random() < run.often and run.rank >= 0:
            lengths[run.rank][run.stage] += round(run.delay_ms * 1e6)
        before = ("dataloader", "forward", "backward")
        ready = [at[rank] + sum(lengths[rank][name] for name in before) for rank in range(RANKS)]
        over = max(ready) + min(own["all_reduce"] for own in lengths)
        for rank in range(RANKS):
            lengths[rank]["all_reduce"] = over - ready[rank]
            began = at[rank]
            place = {"ph": "X", "pid": rank, "tid": rank}
            for name in (*before, "all_reduce", "optimizer"):
                dur = lengths[rank][name]
                events[rank].append({**place, "name": name, "ts": at[rank] / 1000, "dur": dur / 1000})
                at[rank] += dur
            whole = {"name": "batch", "cat": "training loop", "args": {"batch": step}}
            events[rank].append({**place, **whole, "tid": 99, "ts": began / 1000, "dur": (at[rank] - began) / 1000})
    folder.mkdir()
    for rank in range(RANKS):
        (folder / f"rank{rank}.json").write_text(json.dumps(events[rank]))
