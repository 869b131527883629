"""Build the missing entries of the cache, in several processes where that pays."""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from tracekit.errors import StorageError, TraceFormatError
from tracekit.processors import start_method, usable_processors
from tracekit.storage import basename, is_remote, size_bytes
from tracekit.structs import Struct
from tracekit.table.build import LIMITS, build_entry, extend_entry, read_facts
from tracekit.table.cache import file_key
from tracekit.table.database import Database
from tracekit.table.growth import is_extendable
from tracekit.table.steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tracekit.table.cache import TableCache
    from tracekit.table.columns import FileFacts
    from tracekit.table.shared_threads import SharedThreads

_MIN_BYTES: Final = 64 * 1024 * 1024  # a process takes as long to start as some MB to read


class Job(Struct, frozen=True):
    """A file, and the steps of its rank that other files state.

    Attributes:
        steps: The number, start, end (ns since the epoch), evaluation and counts of each step; empty for those of the file.
    """

    path: str  # file or URL
    steps: tuple[tuple[int, ...], ...] = ()

    @property
    def paths(self) -> list[str]:
        """The file."""
        return [self.path]

    def has_versions(self) -> bool:
        """Return True for a local file without given steps."""
        return not (self.steps or is_remote(self.path))

    def key(self) -> str:
        """Return the key of the entry."""
        return file_key(self.path, *self.steps)

    def build(
        self,
        folder: Path,
        previous: Path | None,
        database: Callable[[], Database],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Build the entry; extend an earlier one if the file has only grown."""
        if previous is not None and extend_entry(self.path, previous, folder, progress):
            return
        build_entry(self.path, folder, database(), given_steps=self._given, progress=progress)

    def _given(self, facts: FileFacts) -> list[Step]:
        if facts.is_merged or facts.has_batches:
            return []
        base = facts.base_ns
        return [Step(0, row[0], row[1] - base, row[2] - base, bool(row[3]), tuple(row[4:])) for row in self.steps]


def build_all(
    cache: TableCache,
    jobs: Sequence[Job | SharedThreads],
    progress: Callable[[float, str], None],
    workers: int | None = None,
) -> list[Path | TraceFormatError]:
    """Return the folder of each entry, or why the file is not a trace; build those that are missing.

    Args:
        cache: The cache.
        jobs: The entries.
        progress: Called with the completed share, 0 to 1, and a description of the current work.
        workers: The maximum number of processes. None: one for each processor if they can be forked, else this one alone. Other
            processes import the main module again, which must not start its work then.
    """
    keys = [job.key() for job in jobs]
    found: list[Path | TraceFormatError | None] = [_find(cache, key) for key in keys]
    missing = [number for number, folder in enumerate(found) if folder is None]
    sizes = {number: sum(size_bytes(path) or 0 for path in jobs[number].paths) for number in missing}
    whole, done = sum(sizes.values()) or 1, 0
    if workers is None:
        workers = usable_processors() if start_method() == "fork" else 1
    workers = min(workers, len(missing))
    if workers > 1 and whole - max(sizes.values()) >= _MIN_BYTES:
        from concurrent.futures.process import BrokenProcessPool  # where there are workers

        from tracekit.worker_processes import process_pool

        # Large files first, so that none is left for the end.
        order = sorted(missing, key=lambda number: -sizes[number])
        # This process only waits.
        with process_pool(workers + 1) as pool:
            results = pool.map(_build_alone, [(cache, jobs[number], keys[number]) for number in order])
            try:
                for number, result in zip(order, results, strict=True):
                    done += sizes[number]
                    progress(done / whole, f"reading {basename(jobs[number].paths[0])}")
                    found[number] = result
            except BrokenProcessPool as error:
                raise StorageError(
                    "a process that read traces was killed, as when memory runs out; try again"
                ) from error
        missing = []
    with _one_database(cache) as database:
        for number in missing:
            name, size = basename(jobs[number].paths[0]), sizes[number]

            def advance(bytes_read: int, name: str = name, size: int = size, done: int = done) -> None:
                progress((done + min(bytes_read, size)) / whole, f"reading {name}")

            found[number] = _build((cache, jobs[number], keys[number]), database, advance)
            done += size
    return [folder for folder in found if folder is not None]


def _find(cache: TableCache, key: str) -> Path | None:
    """Return the folder of an entry; None if it is missing, or damaged, as after a crash of the machine."""
    folder = cache.find(key)
    if folder is None:
        return None
    try:
        read_facts(folder)
    except (OSError, ValueError):
        cache.remove(key)
        return None
    return folder


@contextmanager
def _one_database(cache: TableCache) -> Iterator[Callable[[], Database]]:
    """Yield a function that returns a database, which is opened once and closed at the end of the block.

    Opening and closing one takes as long as reading 10 MB of a trace.
    """
    with ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(Database(stack.enter_context(cache.scratch()), LIMITS)))


def _build_alone(work: tuple[TableCache, Job | SharedThreads, str]) -> Path | TraceFormatError:
    with _one_database(work[0]) as database:
        return _build(work, database)


def _build(
    work: tuple[TableCache, Job | SharedThreads, str],
    database: Callable[[], Database],
    progress: Callable[[int], None] | None = None,
) -> Path | TraceFormatError:
    cache, job, key = work
    has_versions = job.has_versions()
    previous = cache.latest(job.paths[0]) if has_versions else None
    try:
        found = cache.add(key, lambda folder: job.build(folder, previous, database, progress))
    except TraceFormatError as error:
        return error
    if has_versions and is_extendable(found):
        cache.set_latest(job.paths[0], key)
    return found
