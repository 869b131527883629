"""The inputs of the merge benchmarks: ranks of any number and size, made in moments, the same for the same seed.

Nothing of a file is kept in memory but a few drawn steps, which take turns (see `tests.benchmarks.kineto_model`).
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, BinaryIO

from tests.benchmarks.grown_traces import grow, real_ranks
from tests.benchmarks.kineto_model import COMPUTE_STREAM, COPY_STREAM, GPUS, NCCL_STREAM, Rank, make_step
from tests.benchmarks.vocabulary import Vocabulary
from tracekit.clock import Anchor
from tracekit.distributed import ProcessInfo
from tracekit.events import COUNTER, INSTANT, WIDTH, EventBatch, Label, Timestamps, Track
from tracekit.formats.rank_trace import GRID_SECONDS
from tracekit.handlers.base import Recording, Summary
from tracekit.handlers.rank_trace import RankTrace, trace_name
from tracekit.timestamp import Timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

# 17 days into a quarter, where times have as many digits as in most traces.
BASE_S = 225 * GRID_SECONDS
START_S = BASE_S + 1_500_000
DRAWN_STEPS = 8
MOST_EVENTS = 800
"""Of a step of torch: it is about 250 kB then."""
EVENT_BYTES = 310
SLICE_BYTES = 125
BATCH_SLICES = 4096
COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Dataset:
    """Traces that are merged together.

    Attributes:
        paths: The files.
        bytes: Their size, unpacked.
    """

    paths: tuple[Path, ...]
    bytes: int

    @property
    def megabytes(self) -> float:
        """Their size, unpacked, in 10^6 bytes."""
        return self.bytes / 1e6


class Inputs:
    """Makes datasets in a temporary folder and keeps each for the run; use it in a ``with`` block.

    Args:
        seed: The same seed makes the same files.
        folder: Where the temporary folder is made; the system's place for such files if None.
    """

    def __init__(self, seed: int = 4, folder: Path | None = None) -> None:
        self._seed = seed
        self._folder = Path(tempfile.mkdtemp(prefix="tracekit-bench-", dir=folder))
        self._made: dict[tuple[Any, ...], Dataset] = {}

    @property
    def folder(self) -> Path:
        """The temporary folder, for outputs too."""
        return self._folder

    def torch(self, total_bytes: int, ranks: int, *, shifted: bool = True) -> Dataset:
        """Return traces of torch.profiler.

        Args:
            total_bytes: About how large they are together.
            ranks: How many.
            shifted: Whether each counts its times from a base of its own, so that a merge has to rewrite every time.
        """
        return self._dataset("torch", total_bytes, ranks, shifted)

    def rank_traces(self, total_bytes: int, ranks: int) -> Dataset:
        """Return rank traces of tracekit with one common base."""
        return self._dataset("rank", total_bytes, ranks, shifted=False)

    def grown(self, run: str, total_bytes: int, *, overlaps: float = 0.0) -> Dataset:
        """Return the traces of a real run, made longer; see `tests.benchmarks.grown_traces`.

        Args:
            run: ``DLRM`` or ``GLOO`` of that module.
            total_bytes: About how large they are together.
            overlaps: The share of slices that get one that overlaps them.
        """
        key = ("grown", run, total_bytes, overlaps)
        if key not in self._made:
            sources = real_ranks(run)
            folder = self._folder / f"grown-{len(self._made)}"
            folder.mkdir()
            paths = [folder / f"rank{number}.json" for number in range(len(sources))]
            for source, path in zip(sources, paths, strict=True):
                grow(source, path, total_bytes // len(sources), overlaps=overlaps)
            self._made[key] = Dataset(tuple(paths), sum(path.stat().st_size for path in paths))
        return self._made[key]

    def packed(self, dataset: Dataset) -> Dataset:
        """Return the same traces in gzip."""
        key = ("packed", dataset.paths)
        if key not in self._made:
            paths = []
            for path in dataset.paths:
                paths.append(path.with_name(f"{path.name}.gz"))
                with (
                    path.open("rb") as plain,
                    paths[-1].open("xb") as file,
                    gzip.GzipFile("", "wb", 6, file, 0) as packed,
                ):
                    shutil.copyfileobj(plain, packed, COPY_BYTES)
            self._made[key] = Dataset(tuple(paths), dataset.bytes)
        return self._made[key]

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self._folder)

    def __enter__(self) -> Inputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _dataset(self, kind: str, total_bytes: int, ranks: int, shifted: bool) -> Dataset:
        key = (kind, total_bytes, ranks, shifted)
        if key not in self._made:
            folder = self._folder / f"{kind}-{total_bytes}-{ranks}{'-shifted' * shifted}"
            folder.mkdir()
            paths = []
            for number in range(ranks):
                paths.append(folder / f"{kind}_rank{number}.json")
                if kind == "torch":
                    with paths[-1].open("xb") as file:
                        write_torch_rank(file, total_bytes // ranks, number, ranks, seed=self._seed, shifted=shifted)
                else:
                    write_rank_trace(paths[-1], total_bytes // ranks, number, ranks, seed=self._seed)
            self._made[key] = Dataset(tuple(paths), sum(path.stat().st_size for path in paths))
        return self._made[key]


def write_torch_rank(
    file: BinaryIO, size_bytes: int, number: int, ranks: int, *, seed: int, shifted: bool = True
) -> None:
    """Write what torch.profiler would write for one rank.

    Args:
        file: Where to.
        size_bytes: About how large it becomes; at least one step.
        number: The rank.
        ranks: The world's size.
        seed: What the drawing starts from.
        shifted: Whether its times are relative to a base that no other rank has.
    """
    base_s = BASE_S + (1 + number if shifted else 0)
    rank = Rank(number, ranks, (START_S - base_s) * 1_000_000)
    head, tail = _head(rank, base_s), _tail(rank)
    # Small files have small steps, so that they come near their size too.
    room = max(1, size_bytes - len(head) - len(tail))
    events = max(40, min(MOST_EVENTS, room // (10 * EVENT_BYTES)))
    drawn = min(DRAWN_STEPS, max(1, room // (events * EVENT_BYTES)))
    words = _vocabulary(seed)
    steps = [make_step(Random(f"{seed} {number} {variant}"), words, rank, events) for variant in range(drawn)]
    of_all = sum(len(part.of_step(0)) for step in steps for part in step)
    count = max(1, round(room * drawn / of_all))
    file.write(head)
    for position in range(len(steps[0])):
        file.writelines(steps[step % drawn][position].of_step(step) for step in range(count))
    file.write(tail)


def write_rank_trace(path: Path, size_bytes: int, number: int, ranks: int, *, seed: int) -> None:
    """Write a rank trace of tracekit: nested markers on two threads, counters and instants, by tracekit's own encoder."""
    process = ProcessInfo(
        run_id="bench",
        rank=number,
        local_rank=number % GPUS,
        world_size=ranks,
        node=number // GPUS,
        host="node0",
        pid=4000 + 3 * number,
        attempt=0,
        boot_id="boot",
        source="torchrun",
    )
    anchor = Anchor(wall_ns=START_S * 10**9, monotonic_ns=10**9, error_ns=50)
    random = Random(f"{seed} {number}")
    labels = [
        Label(f"{kind}_{index}", (kind,))
        for kind in ("forward", "backward", "data", "optimizer")
        for index in range(60)
    ]
    tracks = [Track(0, ""), Track(process.pid, "MainThread"), Track(process.pid + 1, "loader")]
    timestamps = Timestamps(Timestamp())
    trace = RankTrace(trace_name(path.parent / "{rank}.json", "part"))  # a name without the rank is refused
    trace.open(Recording(process, anchor, Timestamp()))
    segment = trace.begin(Timestamp())
    drawn = max(1, min(BATCH_SLICES, size_bytes // (8 * SLICE_BYTES)))
    records = _records(random, drawn, len(labels))
    start_ns = anchor.monotonic_ns
    batches = 0
    try:
        while segment.file.size_bytes < size_bytes:
            moved = _moved(records, start_ns)
            trace.write_events(EventBatch(moved, labels, tracks, timestamps, anchor.offset_ns))
            start_ns += drawn * 25_000
            batches += 1
    finally:
        counters, instants = (batches * records[2::WIDTH].count(kind) for kind in (COUNTER, INSTANT))
        trace.finish(asdict(Summary(segment.events - counters - instants, instants, counters, {}, {})))
    Path(segment.name).rename(path)


def _records(random: Random, count: int, labels: int) -> list[Any]:
    """Draw records that take turns on two threads: threes of nested slices, and now and then a counter or an instant."""
    records: list[Any] = []
    for position in range(0, count, 4):
        start = position * 25_000
        moments = sorted(random.sample(range(start, start + 90_000), 6))
        track = 1 + position // 4 % 2
        for depth in range(3):
            records += (random.randrange(labels), moments[depth], moments[5 - depth], track)
        if position % 16 == 0:
            records += (random.randrange(labels), start, COUNTER, {"loss": round(random.random(), 6)})
        else:
            records += (random.randrange(labels), start + 90_500, INSTANT, track)
    return records


def _moved(records: list[Any], by_ns: int) -> list[Any]:
    def move(position: int, value: Any) -> Any:
        if position == 1 or (position == 2 and value >= 0):
            return value + by_ns
        return value

    return [move(index % WIDTH, value) for index, value in enumerate(records)]


@cache
def _vocabulary(seed: int) -> Vocabulary:
    return Vocabulary.draw(Random(seed))


def _head(rank: Rank, base_s: int) -> bytes:
    devices = [{"id": gpu, "name": "Model GPU", "totalGlobalMem": 34_079_899_648, "numSms": 80} for gpu in range(GPUS)]
    world = list(range(rank.world_size))
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": rank.world_size, "ranks": world[:30]}]
    info = {"backend": "nccl", "rank": rank.number, "world_size": rank.world_size, "pg_count": 1, "pg_config": groups}
    lines = [
        '  "schemaVersion": 1,',
        f'  "deviceProperties": {json.dumps(devices)},',
        f'  "trace_id": "{rank.number:032X}",',
        f'  "distributedInfo": {json.dumps(info)},',
        '  "record_shapes": 1,\n  "with_stack": 1,\n  "profile_memory": 1,',
        '  "host_name": "node0",\n  "displayTimeUnit": "ms",',
        f'  "baseTimeNanoseconds": {base_s}000000000,',
    ]
    events = ",".join(_declared(rank))
    return ("{\n" + "\n".join(lines) + f'\n  "traceEvents": [{events}').encode()


def _declared(rank: Rank) -> Iterator[str]:
    """Yield the metadata events: every rank declares every GPU, used or not."""
    pid = rank.pid
    yield from _process(rank, pid, "CPU", pid)
    for gpu in range(GPUS):
        yield from _process(rank, gpu, f"GPU {gpu}", 5_000_000 + gpu)
    for tid in (pid, rank.autograd_tid):
        yield from _thread(rank, pid, tid, f"thread {tid} (python3)")
    for stream in (COMPUTE_STREAM, NCCL_STREAM, COPY_STREAM):
        yield from _thread(rank, rank.gpu, stream, f"stream {stream} ")


def _process(rank: Rank, pid: int, label: str, sort_index: int) -> Iterator[str]:
    yield _metadata(rank, "process_name", pid, 0, "name", "python3")
    yield _metadata(rank, "process_labels", pid, 0, "labels", label)
    yield _metadata(rank, "process_sort_index", pid, 0, "sort_index", sort_index)


def _thread(rank: Rank, pid: int, tid: int, name: str) -> Iterator[str]:
    yield _metadata(rank, "thread_name", pid, tid, "name", name)
    yield _metadata(rank, "thread_sort_index", pid, tid, "sort_index", tid)


def _metadata(rank: Rank, name: str, pid: int, tid: int, key: str, value: str | int) -> str:
    return (
        f'\n  {{\n    "ph": "M",\n    "name": "{name}",\n    "ts": {rank.start_us}.000,\n    "pid": {pid},\n    "tid": {tid},\n'
        f'    "args": {{\n      "{key}": {json.dumps(value)}\n    }}\n  }}'
    )


def _tail(rank: Rank) -> bytes:
    return f'\n  ],"traceName": "rank{rank.number}.json" }}\n'.encode()
