"""The inputs of the merge benchmarks: ranks of any number and size, made in moments from real traces."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.grown_traces import grow, grow_rank, real_ranks
from tracekit import JSONTraceHandler, Profiler

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

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
        folder: The parent of the temporary folder; that of the system if None.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tracekit-bench-", dir=folder))
        """The temporary folder, for outputs too."""
        self._made: dict[tuple[Any, ...], Dataset] = {}

    def torch(self, total_bytes: int, ranks: int) -> Dataset:
        """Return traces of torch.profiler with this total size. Their bases differ, so that a merge rewrites every time."""

        def make(path: Path, rank: int) -> None:
            grow_rank(path, total_bytes // ranks, rank, ranks, base_later_s=1 + rank)

        return self._dataset(("torch", total_bytes, ranks), ranks, make)

    def rank_traces(self, total_bytes: int, ranks: int) -> Dataset:
        """Return rank traces of tracekit with one common base."""

        def make(path: Path, rank: int) -> None:
            record_rank(path, total_bytes // ranks, rank, ranks)

        return self._dataset(("rank", total_bytes, ranks), ranks, make)

    def grown(self, run: str, total_bytes: int, *, overlaps: float = 0.0) -> Dataset:
        """Return the traces of a real run, ``DLRM`` or ``GLOO``, made longer; see `tests.benchmarks.grown_traces`."""
        sources = real_ranks(run)

        def make(path: Path, rank: int) -> None:
            grow(sources[rank], path, total_bytes // len(sources), overlaps=overlaps)

        return self._dataset((run, total_bytes, overlaps), len(sources), make)

    def packed(self, dataset: Dataset) -> Dataset:
        """Return the same traces in gzip."""
        key = ("packed", dataset.paths)
        if key not in self._made:
            paths = tuple(path.with_name(f"{path.name}.gz") for path in dataset.paths)
            for path, target in zip(dataset.paths, paths, strict=True):
                with path.open("rb") as plain, gzip.open(target, "xb", 6) as file:
                    shutil.copyfileobj(plain, file, COPY_BYTES)
            self._made[key] = Dataset(paths, dataset.bytes)
        return self._made[key]

    def __enter__(self) -> Inputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder)

    def _dataset(self, key: tuple[Any, ...], ranks: int, make: Callable[[Path, int], None]) -> Dataset:
        if key not in self._made:
            folder = self.folder / f"inputs-{len(self._made)}"
            folder.mkdir()
            paths = tuple(folder / f"rank{rank}.json" for rank in range(ranks))
            for rank, path in enumerate(paths):
                make(path, rank)
            self._made[key] = Dataset(paths, sum(path.stat().st_size for path in paths))
        return self._made[key]


def record_rank(path: Path, size_bytes: int, rank: int, ranks: int) -> None:
    """Record a rank trace of about this size: nested slices, counters and instants."""
    handler = JSONTraceHandler(path.parent / "rank{rank}.json")  # a name without the rank is refused
    with Profiler(handler, rank=rank, world_size=ranks, run_id="bench", record_batches=False) as profiler:
        outer, middle, inner, loss, moment = map(profiler.marker, ("forward", "layer", "linear", "loss", "moment"))
        while path.stat().st_size < size_bytes:
            for number in range(min(2_000, size_bytes // 5_000)):
                with outer, middle, inner:
                    loss.counter({"loss": number / 7})
                moment.instant()
            profiler.flush()
