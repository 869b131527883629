"""F4: the workers of a torch DataLoader leave traces of their own, however they start and however they end.

A worker notes every item, when its markers have ended, in a file of its own that the test holds against its trace.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.faults import Tally, processes, read_trace
from tests.faults.test_kills import ROUNDING_NS
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

pytest.importorskip("torch", reason="torch is not installed")

TRAIN = """
import multiprocessing, os, pathlib, sys, time
import torch, tracekit
import torch.utils.data._utils
import tracekit.recording.profiler
from torch.utils.data import DataLoader, Dataset
from tests.faults.child import note_deliveries
from tests.faults.tally import Tally
from tests.faults.writers import make_writer
from tracekit.recording.profiler import active_profiler

class Items(Dataset):
    def __init__(self, held, count=32, seconds=0.005):
        self.held, self.count, self.seconds = held, count, seconds
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        if not os.path.exists(f"tally-{os.getpid()}"):
            note_deliveries(active_profiler()._handlers[0], Tally(f"tally-{os.getpid()}"))
        with tracekit.marker("item"), self.held:
            pass
        time.sleep(self.seconds)
        with open(f"items-{os.getpid()}", "a") as evidence:
            evidence.write("item\\n")
        return index

def own_init(number):
    pathlib.Path(f"own-{os.getpid()}").write_text(str(number))

def terminate(worker, terminate=multiprocessing.process.BaseProcess.terminate):
    print("a worker hangs", file=sys.stderr)
    terminate(worker)

def main(method, workers, writer, ways):
    # How long torch waits for a worker to end before it terminates it: long enough for any busy machine.
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 60.0
    multiprocessing.process.BaseProcess.terminate = terminate
    tracekit.recording.profiler.SHUTDOWN_TIMEOUT_S = 50.0  # of a worker, for the same reason
    if method == "forkserver":
        multiprocessing.set_forkserver_preload(["torch"])
    handler = make_writer(writer, "t.json")
    options = {"rank": 0, "record_batches": False, "shutdown_timeout": 50.0, **getattr(handler, "profiler_options", {})}
    profiler = tracekit.Profiler(handler, **options)
    items = Items(profiler.marker("held by the dataset"))
    def loader(items=items, **options):
        return DataLoader(items, batch_size=2, num_workers=workers, multiprocessing_context=method, **options)
    own = loader(worker_init_fn=profiler.worker_init_fn(own_init))
    profiler.start()
    if "exhaust" in ways:
        ended = loader(worker_init_fn=own_init)
        assert sum(len(batch) for batch in profiler.iterate(ended, "loader")) == 32
        assert ended.worker_init_fn is own_init
    if "own loop" in ways:
        assert sum(len(batch) for batch in own) == 32
    if "break" in ways:
        for number, batch in enumerate(profiler.iterate(loader(), "loader"), 1):
            if number == workers:  # each has had one
                break
    if "persistent" in ways:
        kept = loader(persistent_workers=True)
        for epoch in range(2):
            assert sum(len(batch) for batch in profiler.iterate(kept, "loader")) == 32
    print("ending", flush=True)
    if "exception" in ways:
        global iterator
        # Half a second for each worker, and the end comes with the last batch.
        many = loader(Items(items.held, 20 * workers, 0.025))
        iterator = profiler.iterate(many, "loader")
        for number, batch in enumerate(iterator, 1):
            if number == len(many):
                raise RuntimeError("mine")

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])
"""


def train(folder: Path, method: str, workers: int, ways: list[str]) -> None:
    """Run it, and check what it says. A worker that does not end by itself is terminated, and loses what it has not flushed."""
    script = folder / "train.py"
    script.write_text(TRAIN)
    few_cores = "ignore:This DataLoader will create"
    done = subprocess.run(
        [sys.executable, "-W", "default", "-W", few_cores, script, method, str(workers), processes.writer, *ways],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(processes.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "ending\n", done.stderr
    assert "a worker hangs" not in done.stderr
    assert done.returncode == (1 if "exception" in ways else 0), done.stderr
    if "exception" in ways:
        assert done.stderr.endswith("RuntimeError: mine\n")
        assert done.stderr.count("Traceback") == 1
        assert "tracekit:" not in done.stderr
        assert "Warning" not in done.stderr
    else:
        assert done.stderr == ""


def assert_nothing_is_lost(folder: Path, workers: int, *, may_be_killed: int) -> None:
    """Assert that the trace of each worker holds every item; of so many killed ones, every item that was delivered."""
    killed = 0
    traces = {int(path.stem.rpartition("-")[2]): path for path in folder.glob("t-worker*.json")}
    noted = {int(path.name.partition("-")[2]): len(path.read_text().splitlines()) for path in folder.glob("items-*")}
    assert len(noted) == workers
    assert traces.keys() == noted.keys()
    for pid, path in traces.items():
        remains = read_trace(path)
        if not remains.closed:
            killed += 1
            assert killed <= may_be_killed, f"worker {pid} did not end by itself"
            missing_ns = Tally(folder / f"tally-{pid}")[Tally.DELIVERED_NS] - remains.newest_ns
            assert missing_ns <= ROUNDING_NS, f"worker {pid} lost {missing_ns / 1e6:.3f} ms of what was delivered"
            continue
        assert remains.count("XE", "item") >= noted[pid], f"worker {pid} lost items"
        assert remains.count("XE", "held by the dataset") == remains.count("XE", "item")


def assert_merges(folder: Path, engine: Engine, generations: dict[str, int]) -> None:
    """Assert that the merged trace shows each worker as a process of the rank, with all that its file holds."""
    slices = sum(read_trace(path).count("XB") for path in folder.glob("t*.json"))
    report = merge_traces(str(folder / "merged.json"), [str(folder / "t*.json")], strict=True)
    assert report.complete
    with engine.load(folder / "merged.json") as trace:
        assert trace.errors() == []
        assert trace.rows("select count(*) from slice") == [(slices,)]
        shown = trace.rows("select pid, name from process where name is not null and pid > 0 order by name")
        assert sorted(pid for pid, _ in shown) == list(range(1, 1 + len(shown)))
        assert [name for _, name in shown] == [name for name in sorted(generations) for _ in range(generations[name])]
        fetches = trace.rows(
            "select distinct process.name from slice join thread_track on thread_track.id = track_id "
            "join thread using (utid) join process using (upid) where slice.name in ('fetch', 'item') order by 1"
        )
        assert [name for (name,) in fetches] == sorted(generations)[1:]


ALL_WAYS = ["exhaust", "own loop", "break", "persistent", "exception"]


@pytest.mark.parametrize(
    ("method", "workers", "ways"),
    [
        pytest.param("fork", 4, ALL_WAYS, id="fork"),
        *(
            pytest.param(method, 2, ways, id=f"{method}, {how}", marks=pytest.mark.slow)
            for method in ("spawn", "forkserver")
            for how, ways in (("ends in order", ["own loop", "break"]), ("ends with main", ["exhaust", *ALL_WAYS[3:]]))
        ),
    ],
)
def test_workers_record_whatever_becomes_of_them(
    tmp_path: Path, engine: Engine, method: str, workers: int, ways: list[str]
) -> None:
    train(tmp_path, method, workers, ways)
    # The workers of an iterator that is still open at the end of the main process are killed.
    still_open = {"persistent", "exception"} & set(ways)
    assert_nothing_is_lost(tmp_path, workers * len(ways), may_be_killed=workers * len(still_open))
    assert_merges(tmp_path, engine, {"rank 0": 1, **{f"rank 0 · worker {n}": len(ways) for n in range(workers)}})
    # The user's own function was called, in each worker of the two loaders that have one.
    own = sorted(int(path.read_text()) for path in tmp_path.glob("own-*"))
    assert own == sorted([*range(workers)] * len({"exhaust", "own loop"} & set(ways)))
