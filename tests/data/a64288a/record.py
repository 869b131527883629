"""Records the corpus of this folder; see README.md. Run it with the tracekit of commit a64288a, in an empty folder.

Each folder that it makes holds the inputs of one merge; ``merged`` holds what a64288a made of them.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

from tracekit import FlightRecorder, JSONTraceHandler, Profiler, SystemProfiler, TorchProfiler, cyclic_schedule
from tracekit.cli import main as tracekit
from tracekit.clock import ClockOffset
from tracekit.distributed import ProcessInfo
from tracekit.testing import FakeClock, record_sample

WALL_NS = 1_795_300_000_000_000_000
MS = 1_000_000


def process(rank: int, *, host: str = "node-a", attempt: int = 0, **more: Any) -> ProcessInfo:
    """Return a rank of two, the same on every machine."""
    return ProcessInfo(
        run_id="a64288a",
        rank=rank,
        local_rank=rank,
        world_size=2,
        node=0,
        host=host,
        pid=4711 + rank + 10 * attempt,
        attempt=attempt,
        boot_id=f"boot of {host}",
        source="torchrun",
        start_ticks=1234 + 100 * attempt,
        **more,
    )


def clock_of(number: int) -> FakeClock:
    """Return a clock of one host, which starts later for each number."""
    return FakeClock(wall_ns=WALL_NS + number * 20 * MS, monotonic_ns=(5000 + number * 20) * MS, tick_ns=1000)


def profiler_of(*handlers: Any, rank: int = 0, time: FakeClock | None = None, **options: Any) -> Profiler:
    """Make a profiler on a clock that is set."""
    who = {key: options.pop(key) for key in ("host", "attempt") if key in options}
    time = time or clock_of(rank)
    return Profiler(handlers, clock=time.clock, process=process(rank, **who), **{"flush_interval": 3600, **options})


def train(profiler: Profiler, time: FakeClock, batches: int = 4, epochs: int = 1) -> None:
    """Run a small training loop; each batch flushes inside of a slice."""
    for _ in range(epochs):
        for batch in profiler.iterate(range(batches), "dataloader"):
            with profiler.marker("forward", categories=("model", "compute")):
                time.advance(2 * MS)
                profiler.flush()
                with profiler.marker("layer"), profiler.marker("layer"):
                    time.advance(MS)
            with profiler.marker("backward"):
                time.advance(3 * MS)
            profiler.marker("training").counter({"loss": 1 / (batch + 1), "lr": 0.01})
            profiler.step(samples=4, tokens=128)
        profiler.next_epoch()


def in_thread(target: Any, name: str) -> None:
    """Run a function in a thread with a name, and wait for it."""
    thread = threading.Thread(target=target, name=name)
    thread.start()
    thread.join()


def everything() -> None:
    """Record all kinds of events, on two ranks: one plain, one packed; and the sample of each later format version."""
    for rank, name in enumerate(["rank{rank}.json", "rank{rank}.json.gz"]):
        time = clock_of(rank)
        with profiler_of(JSONTraceHandler(f"everything/{name}"), rank=rank, time=time) as profiler:
            train(profiler, time, epochs=2)
            beginning = profiler.marker("checkpoint", record_instant_on_start=True, record_instant_on_finish=True)
            beginning.start()

            def work(profiler: Profiler = profiler, time: FakeClock = time) -> None:
                marker = profiler.marker("work", categories=("cpu", "io"))
                for _ in range(3):
                    with marker, marker:
                        time.advance(MS)
                    profiler.marker("done").instant()

            in_thread(work, "reader 0")
            in_thread(work, "reader 1")
            beginning.finish()

            async def task(number: int, profiler: Profiler = profiler) -> None:
                with profiler.marker(f"task {number}"):
                    for _ in range(3):
                        async with profiler.marker("await"):
                            await asyncio.sleep(0)

            async def tasks(task: Any = task) -> None:
                await asyncio.gather(*(task(number) for number in range(3)))

            asyncio.run(tasks())

            @profiler.marker("generated")
            def generated() -> Any:
                yield from range(3)

            for _ in generated():
                time.advance(MS)
            try:
                with profiler.marker("fails"):
                    raise ArithmeticError("what was wrong")
            except ArithmeticError:
                pass
            for odd in ('quote "q"', "back\\slash", "line\nbreak", "ünï 😀", "nul\x00", "", "x" * 300):
                with profiler.marker(odd, categories=[odd, "a,b"]):
                    time.advance(1)
                profiler.marker(odd).counter({"a": 1, "é": 2.5, "none": float("nan")})
            Path("everything/companion.json").write_text('{"traceEvents": []}', encoding="utf-8")
            profiler.record_chrome_json_trace_file("everything/companion.json")
            never = profiler.marker("never finished")
            never.start()
    Path("everything/companion.json").unlink()
    time = clock_of(0)
    with profiler_of(JSONTraceHandler("private/rank{rank}.json"), time=time, private=True) as profiler:
        train(profiler, time)
    Path("sample").mkdir()
    record_sample(JSONTraceHandler("sample/whole.json"), folder=Path("sample"))


def segments() -> None:
    """Record runs that go to several files: by size, by window, and packed."""
    name = "rotated/rank{rank}-part{part:04d}.json"
    for rank in range(2):
        time = clock_of(rank)
        handler = JSONTraceHandler(name + ".gz" * rank, rotate_bytes=3000)
        with profiler_of(handler, rank=rank, time=time) as profiler, profiler.marker("run"):
            train(profiler, time, batches=9)
    for rank in range(2):
        time = clock_of(rank)
        schedule = cyclic_schedule(wait=1, warmup=1, active=2, repeat=2)
        handler = JSONTraceHandler("windows/rank{rank}-batch{batch}.json")
        with profiler_of(handler, rank=rank, time=time, schedule=schedule) as profiler:
            train(profiler, time, batches=9)
    for rank in range(2):
        time = clock_of(rank)
        handler = JSONTraceHandler(
            "kept/rank{rank}-part{part:02d}.json", rotate_every="2ba", num_traces_to_keep=2, mode=0o640
        )
        with profiler_of(handler, rank=rank, time=time) as profiler, profiler.marker("run"):
            train(profiler, time, batches=9)


def uploaded() -> None:
    """Record to an object store, with a spool that is left behind because one file could not be uploaded."""
    import fsspec

    store = fsspec.filesystem("memory")
    for rank in range(2):
        time = clock_of(rank)
        handler = JSONTraceHandler("memory://bucket/uploaded/rank{rank}.json", rotate_bytes=3000, spool="spools")
        with profiler_of(handler, rank=rank, time=time) as profiler, profiler.marker("run"):
            train(profiler, time, batches=6)
    store.get("/bucket/uploaded", "uploaded", recursive=True)
    time = clock_of(0)
    handler = JSONTraceHandler("memory://bucket/spooled/rank{rank}.json", rotate_bytes=3000, spool="spools")
    with profiler_of(handler, time=time) as profiler, profiler.marker("run"):
        train(profiler, time, batches=6)
        profiler.flush()
        (spool,) = Path("spools").iterdir()
        shutil.copytree(spool, "spooled")
    shutil.rmtree("spools")


def flight_recorder() -> None:
    """Dump what a FlightRecorder keeps: when asked, at an exception, and at the end."""
    for rank in range(2):
        time = clock_of(rank)
        handler = FlightRecorder("dumps/rank{rank}-dump{dump:03d}.json", seconds=0.03, on_close=True)
        profiler = profiler_of(handler, rank=rank, time=time)
        try:
            with profiler, profiler.marker("run"):
                train(profiler, time, batches=9)
                handler.dump("asked for")
                with profiler.marker("hangs here"):
                    profiler.flush()
                    profiler.flush()
                raise ArithmeticError
        except ArithmeticError:
            pass


def clocks() -> None:
    """Record two hosts with measured clock offsets, drift and steps; and two attempts of one rank."""
    for rank in range(2):
        time = FakeClock(wall_ns=WALL_NS + rank * 900 * MS, monotonic_ns=(7 + 3 * rank) * 1000 * MS, tick_ns=1000)
        handler = JSONTraceHandler("clocks/rank{rank}.json")
        with profiler_of(handler, rank=rank, time=time, host=f"node-{rank}") as profiler:
            for number in range(3):
                if rank:
                    profiler.record_clock_offset(
                        ClockOffset(
                            monotonic_ns=time.monotonic_ns,
                            offset_ns=-900 * MS + number * 1000,
                            monotonic_offset_ns=-3000 * MS + number * 1000,
                            error_ns=5000 + number,
                            round_trips=16,
                            reference_rank=0,
                            reference_boot_id="boot of node-0",
                            drift_ppb=50_000 if number else None,
                            drift_error_ppb=2000 if number else None,
                        )
                    )
                train(profiler, time)
                profiler.flush()
            if rank:
                time.wall_ns += 5000 * MS
                profiler.flush()
                train(profiler, time)
                time.suspend(1000 * MS)
                profiler.flush()
            train(profiler, time)
    for attempt in range(2):
        time = clock_of(attempt)
        handler = JSONTraceHandler("attempts/rank{rank}-attempt{attempt}.json")
        with profiler_of(handler, time=time, attempt=attempt) as profiler:
            train(profiler, time)


def crashes() -> None:
    """Record until the process is killed inside of slices, and until the disk is full; cut what was whole."""
    Path("crashes").mkdir()
    child = os.fork()
    if child == 0:
        time = clock_of(0)
        profiler = profiler_of(JSONTraceHandler("crashes/killed-rank{rank}.json"), time=time)
        profiler.start()
        train(profiler, time)
        for name in ("epoch", "forward", "layer"):
            profiler.marker(name).start()
        profiler.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    time = clock_of(1)
    with (
        profiler_of(JSONTraceHandler("crashes/cut-rank{rank}.json"), rank=1, time=time) as profiler,
        profiler.marker("run"),
    ):
        train(profiler, time)
    whole = Path("crashes/cut-rank1.json").read_bytes()
    at = whole.rindex(b'"backward"')
    Path("crashes/cut-rank1.json").write_bytes(whole[:at])
    Path("damaged").mkdir()
    packed = gzip.compress(whole, mtime=0)
    Path("damaged/torn.json.gz").write_bytes(packed[: len(packed) * 2 // 3])
    middle = whole.index(b"\n", len(whole) // 2) + 1
    Path("damaged/hole.json").write_bytes(whole[:middle] + bytes(500) + whole[middle + 200 :])
    Path("full").mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    time = clock_of(0)
    with profiler_of(JSONTraceHandler("full/rank{rank}.json"), time=time) as profiler:
        train(profiler, time)
        resource.setrlimit(resource.RLIMIT_FSIZE, (Path("full/rank0.json").stat().st_size + 300, limits[1]))
        with profiler.marker("across"):
            train(profiler, time)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            profiler.flush()
        train(profiler, time)


def loader() -> None:
    """Record a loop with two data loader workers, which have their own traces, on real clocks."""
    import torch

    import tracekit

    class Numbers(torch.utils.data.Dataset[torch.Tensor]):
        def __getitem__(self, index: int) -> torch.Tensor:
            with tracekit.marker("read"):
                return torch.tensor(float(index))

        def __len__(self) -> int:
            return 12

    handler = JSONTraceHandler("loader/rank{rank}.json")
    with Profiler(handler, sources=SystemProfiler(interval=0.05), process=process(0)) as profiler:
        for _ in profiler.iterate(torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2)):
            with profiler.marker("forward"):
                pass
            profiler.step(samples=2)


TORCHRUN = "from record import train_with_torch; train_with_torch()"


def train_with_torch() -> None:
    """Train on this rank of a gloo run, with torch.profiler and markers."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method="file://" + os.environ["MEET"], rank=int(os.environ["RANK"]), world_size=2
    )
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters())
    who = process(rank)
    pid = os.getpid()
    real = ProcessInfo(**{name: getattr(who, name) for name in who.__slots__} | {"pid": pid})
    with Profiler(
        JSONTraceHandler("torch/rank{rank}.json"),
        cyclic_schedule(warmup=1, active=2, repeat=1),
        sources=[TorchProfiler("torch/torch-rank{rank}-{batch}.json.gz")],
        process=real,
    ) as profiler:
        for _ in range(4):
            with profiler.marker("forward"):
                loss = model(torch.ones(2, 4)).sum()
            with profiler.marker("backward"):
                loss.backward()
            optimizer.step()
            profiler.step(samples=2)
        profiler.next_epoch()
    dist.barrier()
    dist.destroy_process_group()


def with_torch() -> None:
    """Record two ranks of a gloo run."""
    environment = {
        **os.environ,
        "MEET": str(Path("meet").absolute()),
        "PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "KINETO_LOG_LEVEL": "6",
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": "2",
    }
    ranks = [
        subprocess.Popen([sys.executable, "-c", TORCHRUN], env={**environment, "RANK": str(rank)}) for rank in range(2)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0]
    Path("meet").unlink(missing_ok=True)
    for path in Path("torch").glob("*.json.gz"):
        data = gzip.decompress(path.read_bytes()).replace(os.uname().nodename.encode(), b"node-a")
        path.write_bytes(gzip.compress(data, mtime=0))


def merged() -> None:
    """Merge, trim, convert and recover the rest."""
    Path("merged").mkdir()
    data = Path(__file__).parent.parent
    gloo = [str(data / f"torch_2.13_gloo/plain_rank{rank}_step4.json.gz") for rank in range(2)]
    merge = ["merge", "-q", "-o"]
    for args, code in (
        ([*merge, "merged/everything.json", "everything"], 0),
        ([*merge, "merged/rotated.json.gz", "rotated"], 0),
        ([*merge, "merged/clocks.pftrace", "clocks"], 0),
        ([*merge, "merged/clocks.json.gz", "clocks"], 0),
        ([*merge, "merged/attempts.json.gz", "attempts"], 0),
        ([*merge, "merged/loader.json.gz", "loader"], 0),
        ([*merge, "merged/torch.json.gz", "torch", "--collective-flows"], 0),
        ([*merge, "merged/torch.pftrace.gz", "torch"], 0),
        ([*merge, "merged/torch-rank1.json.gz", "torch", "--ranks", "1"], 0),
        ([*merge, "merged/gloo.json.gz", *gloo, "--collective-flows"], 0),
        ([*merge, "merged/flight.json.gz", *map(str, sorted((data / "flight_recorder").iterdir()))], 0),
        ([*merge, "merged/windows.tar", "windows"], 0),
        ([*merge, "merged/torch.zip", "torch"], 0),
        ([*merge, "merged/crashes.json", "crashes"], 3),
        (["trim", "-q", "-o", "merged/everything-trimmed.json.gz", "merged/everything.json", "--steps", "1:3"], 0),
        (["convert", "-q", "merged/everything.json", "merged/everything.pftrace.gz"], 0),
        (["recover", "-q", "crashes/killed-rank0.json", "-o", "merged/killed.json"], 0),
    ):
        found = tracekit(args)
        assert found == code, (args, found)


def pack(folder: Path, output: Path) -> None:
    """Pack a folder, the same to the byte each time."""

    def same(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with (
        output.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.add(path, path.relative_to(folder.parent), filter=partial(same))


def main() -> None:
    """Record into the current folder, and pack each set."""
    if any(Path().iterdir()):
        sys.exit("run this in an empty folder")
    os.environ["TRACEKIT_QUIET"] = "1"
    for record in (everything, segments, uploaded, flight_recorder, clocks, crashes, loader, with_torch, merged):
        record()
    for folder in sorted(path for path in Path().iterdir() if path.is_dir()):
        pack(folder, Path(f"{folder}.tar.gz"))


if __name__ == "__main__":
    main()
