"""Timers of two real ranks (gloo): both ways to the table of all ranks agree, and what hangs with Megatron's does not here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.scripts import run_script
from tracekit.statistics import DurationStatistics
from tracekit.timers import read_timers

if TYPE_CHECKING:
    from pathlib import Path

# Each rank has a clock of its own that only it moves, so that what it measures is known to the nanosecond.
SCRIPT = """
import json, logging, sys
import torch.distributed as dist
from tracekit import JSONTraceHandler, Profiler, Timers
from tracekit.testing import FakeClock

MS = 1_000_000
logging.basicConfig(format="%(message)s", stream=sys.stderr)
dist.init_process_group("gloo")
rank = dist.get_rank()
clock = FakeClock()
timers = Timers(2, "minmax", clock=clock.clock, timeout=60)
with Profiler(JSONTraceHandler("traces/rank{rank}.json"), clock=clock.clock) as profiler:
    names = ["forward", "backward"] if rank else ["backward", "forward"]
    for step in range(1, 5):
        for name in names:
            with timers(name, barrier=True):
                clock.advance((step + 10 * rank) * MS)
                if name == "forward":
                    profiler.flush()
        if rank == 1:
            with timers("only on 1"):
                clock.advance(7)
        timers.log(["only on 1"])
    assert timers.get_global_min_max_time(["forward"]) == {"forward": (0.01, 0.05)}
    table = timers.gather(rank=None)
    assert timers.gather(rank=1 - rank, lifetime=True) is None

# What hangs there: a report that one rank does not make, a barrier where one rank's level switches the timer off.
hasty = Timers(2 - rank, "max", clock=clock.clock, timeout=0.2)
if rank == 0:
    hasty("x").set_elapsed(1)
    hasty.log(rank=0)
    hasty.get_all_timers_string()
for _ in range(2):
    with hasty("off on 1", 2, barrier=True):
        pass
for other, found in table.ranks.items():
    json.dump({name: stats.to_dict() for name, stats in found.items()}, open(f"table-{rank}-{other}.json", "w"))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that a run of two ranks has written to, and what it printed."""
    pytest.importorskip("torch", reason="torch is not installed")
    folder = tmp_path_factory.mktemp("timers")
    (folder / "script.py").write_text(SCRIPT)
    done = run_script(folder, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py")
    return folder, done.stdout + done.stderr


def test_the_store_and_the_traces_give_the_same_table(run: tuple[Path, str]) -> None:
    folder, _ = run

    def table(reader: int, rank: int) -> dict[str, DurationStatistics]:
        stored = json.loads((folder / f"table-{reader}-{rank}.json").read_text())
        return {name: DurationStatistics.from_dict(found) for name, found in stored.items()}

    tables = [{rank: table(reader, rank) for rank in (0, 1)} for reader in (0, 1)]
    assert tables[0] == tables[1]
    found = read_timers(folder / "traces")
    assert found.ranks == tables[0]
    assert [found.of("forward")[rank].total_ns for rank in (0, 1)] == [10_000_000, 50_000_000]
    assert found.slowest("backward") == 1


def test_ranks_that_do_not_come_are_named_and_nothing_hangs(run: tuple[Path, str]) -> None:
    """T3."""
    error = run[1]
    assert error.count("    only on 1 ......................................: (0.00, 0.00)") == 4, "by the last rank"
    assert error.count("rank 1 did not report within 0.2 s") == 1
    assert error.count("timer 'off on 1' has level 2 and is off on rank 1") == 1
    assert "timed out" not in error, "torch's own waiting, which cannot be interrupted, is not used"


COMPILED = """
import torch
from tracekit import MemoryTraceHandler, Profiler, Timers

timers = Timers(2, "max")
with timers("inside"):
    pass

@torch.compile(backend="eager")
def model(x):
    with timers("inside"):
        x = x * 2
    return x + 1

memory = MemoryTraceHandler()
with Profiler(memory, record_batches=False):
    results = [model(torch.ones(2) + number).tolist() for number in range(3)]
print(results, timers.snapshot().of("inside")[0].count, len(memory.slices))
"""


@pytest.mark.slow
def test_a_timer_in_a_compiled_function_measures_every_call_and_breaks_the_graph(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    done = run_script(tmp_path, "-c", COMPILED)
    assert done.stdout == "[[3.0, 3.0], [5.0, 5.0], [7.0, 7.0]] 4 3\n"
