"""Probe the inputs of a merge and write its units: in this process, and in workers next to it.

This process takes the first task left, the workers take batches from the end. So this process can write the result of each
of its tasks to its place in the output, and only the results of workers are copied. Without workers it does all tasks.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar

from tracekit.errors import MergeError, StorageError, TraceFormatError
from tracekit.merge.execute.scratch import ScratchFolder, ScratchStore, remove_stale
from tracekit.merge.rewrite.unit import write_unit
from tracekit.merge.scan.inputs import find_inputs
from tracekit.merge.scan.probe import probe
from tracekit.processors import start_method, usable_processors
from tracekit.storage import basename, is_remote, size_bytes, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Executor, Future

    from tracekit.merge.execute.part_store import PartStore
    from tracekit.merge.plan.plan import UnitJob, UnitResult
    from tracekit.merge.scan.input import Input
    from tracekit.worker_processes import ProcessPool

_Result = TypeVar("_Result")

_MAX_RUNNING: Final = 1024
"""Limit of batches in progress on an executor of unknown size. Each takes 10 to 30 kB here."""
_READ_SHARE: Final = 0.1
"""The share of reading in the progress of a merge."""
_GUESSED_BYTES: Final = 64_000_000
_MAX_WORKERS: Final = 8
"""Limit of processes by default: each takes about 45 MB, and all share the disk."""
_MIN_BYTES: Final = {"fork": 64_000_000, "spawn": 512_000_000}
"""The unpacked size from which a second process saves more than its start costs: some milliseconds, or half a second."""
_GZIP_RATIO: Final = 8
"""The ratio of unpacked to packed size of traces, about."""
_MAX_PROBES: Final = 64
_MAX_BATCH_BYTES: Final = 16 << 20


def fitting_pool(output: str, inputs: Sequence[str]) -> AbstractContextManager[ProcessPool | None]:
    """Start the processes that make a merge faster, for the duration of a ``with``: one per processor, none for small inputs.

    For programs that do not start their work when they are imported; see `tracekit.worker_processes.process_pool`.

    Returns:
        The executor; None if one process is as fast, if files are remote, or if no process can be started.
    """
    workers = _fitting_workers(output, inputs)
    if workers > 1:
        from tracekit.worker_processes import ProcessPool

        # A system that forbids processes, or the locks between them, can still merge.
        with suppress(OSError, NotImplementedError):
            return ProcessPool(workers)
    return nullcontext()


def _fitting_workers(output: str, inputs: Sequence[str]) -> int:
    if any(map(is_remote, (output, *inputs))):
        return 1
    paths = [path for path, _ in find_inputs(output, inputs)]
    unpacked = sum((size_bytes(path) or 0) * (_GZIP_RATIO if path.endswith(".gz") else 1) for path in paths)
    return min(len(paths), usable_processors(), _MAX_WORKERS) if unpacked >= _MIN_BYTES[start_method()] else 1


@contextmanager
def merge_executor(output: str, executor: Executor | None) -> Iterator[MergeExecutor]:
    """Make a scratch folder, and remove it at the end. Remove those of killed merges to the same output.

    The folder is next to a local output, else among this machine's temporary files.
    """
    parent = Path(tempfile.gettempdir()) if is_remote(output) else Path(output).parent
    remove_stale(parent, basename(output))
    try:
        scratch = ScratchFolder(parent, basename(output))
    except OSError as error:
        raise StorageError(f"{without_secrets(output)}: cannot be written: {error.strerror or error}") from error
    with ExitStack() as stack:
        folder = stack.enter_context(scratch)
        store = stack.enter_context(ScratchStore(folder))
        parts = None
        if executor is not None:
            from tracekit.merge.execute.part_store import part_store

            parts = stack.enter_context(part_store(output, executor, folder))
        yield stack.enter_context(MergeExecutor(folder, store, executor, parts))


class MergeExecutor:
    """Runs the tasks of a merge. Use it from one thread, in a ``with``, which ends when no worker works for this merge any more.

    Workers stop when ``parts`` says that the merge has ended. Without workers, ``max_running`` is 0.
    """

    def __init__(
        self, folder: str, store: ScratchStore, executor: Executor | None = None, parts: PartStore | None = None
    ) -> None:
        self.folder = folder
        self.store = store
        self.max_running = 0
        self._executor = executor
        self._parts = parts
        self._running: dict[Future[Any], range] = {}
        if executor is not None:
            from tracekit.worker_processes import ProcessPool

            self.max_running = executor.workers - 1 if isinstance(executor, ProcessPool) else _MAX_RUNNING

    def __enter__(self) -> MergeExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        if self._parts is not None:
            self._parts.end()
        if not self._running:
            return
        from concurrent.futures import wait  # loaded where there are workers

        for future in self._running:
            future.cancel()
        wait(self._running)

    def prober(self, paths: Sequence[str]) -> Callable[[str, Callable[[int], None] | None], Input]:
        """Return a function that probes these files, to be called once for each of them, in their order.

        It raises what `probe` raises, or MergeError if a worker died.
        """
        if not self.max_running:
            return probe
        report: Callable[[int], None] | None = None

        def here(number: int, poll: Callable[[], None]) -> Input | Exception:
            def tell(done_bytes: int) -> None:
                poll()
                if report is not None:
                    report(done_bytes)

            return _probed(paths[number], tell)

        def unpack(found: list[bytes]) -> Iterable[Input | Exception]:
            return map(pickle.loads, found)

        sizes = [1] * len(paths)
        results = self.share(sizes, _MAX_PROBES, here, _probe_all, paths.__getitem__, unpack, lambda _: None)

        def find(path: str, progress: Callable[[int], None] | None) -> Input:
            del path
            nonlocal report
            report = progress
            found = next(results)
            if isinstance(found, Exception):
                raise found
            if progress is not None:
                progress(found.bytes_read)
            return found

        return find

    def write_units(
        self, make_job: Callable[[int], UnitJob], sizes_bytes: Sequence[int], file: BinaryIO, progress: MergeProgress
    ) -> Iterator[UnitResult]:
        """Write all units to a file, in their order. Yield the result of each."""
        pack_behind = not self.max_running and usable_processors() > 1

        def here(unit: int, poll: Callable[[], None]) -> UnitResult:
            def tell(number: int, done_bytes: int) -> None:
                poll()
                progress.at(number, done_bytes)

            return write_unit(make_job(unit), file, self.folder, tell, pack_behind=pack_behind)

        def append(written: tuple[list[UnitResult], str]) -> list[UnitResult]:
            results, part = written
            assert self._parts is not None
            self._parts.append(part, file)
            return results

        return self.share(sizes_bytes, _MAX_BATCH_BYTES, here, _write_part, make_job, append, progress.add)

    def share(
        self,
        sizes: Sequence[int],
        max_size: int,
        here: Callable[[int, Callable[[], None]], _Result],
        on_worker: Callable[[list[Any], PartStore], Any],
        argument: Callable[[int], Any],
        results_of: Callable[[Any], Iterable[_Result]],
        finished: Callable[[int], None],
    ) -> Iterator[_Result]:
        """Do tasks 0 to n - 1 from both ends at the same time. Yield the result of each, in their order.

        Args:
            sizes: The size of each task.
            max_size: The limit of a batch.
            here: Does a task in this process, and calls the given function now and then to keep the workers busy.
            on_worker: Does a batch on a worker, from the arguments of its tasks.
            argument: Returns the argument of a task.
            results_of: Returns the results of the tasks of a batch from that of the worker.
            finished: Called with the size of a finished batch.
        """
        first, end, left = 0, len(sizes), sum(sizes)
        batches: list[range] = []  # in the order they were submitted: the last tasks first
        done: SimpleQueue[Future[Any]] = SimpleQueue()
        stored: dict[int, tuple[int, int]] = {}  # first task of a batch to the place of its result

        def submit() -> None:
            nonlocal end, left
            # Ever smaller batches, so that all end at about the same time.
            limit = min(max_size, left // (2 * (self.max_running + 1)))
            start, size = end - 1, sizes[end - 1]
            while start > first and size + sizes[start - 1] <= limit:
                start -= 1
                size += sizes[start]
            batch = range(start, end)
            end, left = start, left - size
            batches.append(batch)
            assert self._executor is not None
            assert self._parts is not None
            with _explained_deaths():
                future = self._executor.submit(on_worker, list(map(argument, batch)), self._parts)
            self._running[future] = batch
            future.add_done_callback(done.put)

        def receive() -> None:
            future = done.get()
            batch = self._running.pop(future)
            with _explained_deaths():
                stored[batch.start] = self.store.put(future.result())
            finished(sum(sizes[number] for number in batch))

        def poll() -> None:
            while not done.empty():
                receive()
            while first < end and len(self._running) < self.max_running:
                submit()

        while first < end:
            number = first
            first += 1
            left -= sizes[number]
            poll()
            yield here(number, poll)
        for batch in reversed(batches):
            while batch.start not in stored:
                receive()
            yield from results_of(self.store.get(stored.pop(batch.start)))


@contextmanager
def _explained_deaths() -> Iterator[None]:
    from concurrent.futures import BrokenExecutor  # loaded where there are workers

    try:
        yield
    except BrokenExecutor as error:
        raise MergeError(
            "a worker of the merge ended before its work was done, perhaps killed for want of memory; nothing was written "
            f"({error}); try fewer workers"
        ) from error


class MergeProgress:
    """Reports the progress of a merge. The share that is done never decreases while writing."""

    def __init__(self, report: Callable[[float, str], None] | None, paths: Sequence[str]) -> None:
        self._report = report
        self._numbers = {path: number for number, path in enumerate(paths)}
        self._items: Sequence[Input] = ()
        self._before = [0]
        self._done_bytes = self._by_workers_bytes = self._number = 0
        self._share = 0.0

    def read(self, path: str, done_bytes: int) -> None:
        """Report that so many bytes of an input are read."""
        if self._report is not None:
            # The unpacked size of a file is unknown: approach the end without reaching it.
            inside = done_bytes / (done_bytes + _GUESSED_BYTES)
            share = (self._numbers[path] + inside) / len(self._numbers)
            self._report(_READ_SHARE * share, f"reading {basename(path)}")

    def begin_writing(self, items: Sequence[Input]) -> None:
        """Take the inputs that are written."""
        self._items = items
        self._before = [0, *accumulate(item.bytes_read for item in items)]

    def at(self, number: int, done_bytes: int) -> None:
        """Report that all inputs before a number are written, and so many bytes of that one."""
        self._number, self._done_bytes = number, self._before[number] + done_bytes
        self._written()

    def add(self, size_bytes: int) -> None:
        """Report that workers have written more inputs, of this size."""
        self._by_workers_bytes += size_bytes
        self._written()

    def _written(self) -> None:
        if self._report is not None:
            share = min((self._done_bytes + self._by_workers_bytes) / (self._before[-1] or 1), 1.0)
            self._share = max(self._share, _READ_SHARE + (1 - _READ_SHARE) * share)
            self._report(self._share, f"writing {basename(self._items[self._number].path)}")


# What workers do.


def _probe_all(paths: list[str], parts: PartStore) -> list[bytes]:
    return [_pickled(_probed(path, _checker(parts))) for path in paths]


def _probed(path: str, progress: Callable[[int], None]) -> Input | Exception:
    try:
        progress(0)
        return probe(path, progress)
    except (TraceFormatError, StorageError, MergeError) as error:
        return error


def _pickled(found: Input | Exception) -> bytes:
    try:
        return pickle.dumps(found)
    except RecursionError:  # the header is nested too deeply
        return pickle.dumps(RecursionError())


def _write_part(jobs: list[UnitJob], parts: PartStore) -> tuple[list[UnitResult], str]:
    """Write units to a new part; return their results and the name of the part."""
    check = _checker(parts)
    check()
    try:
        with parts.create() as (file, part):
            folder = str(Path(file.name).parent)
            return [write_unit(job, file, folder, check) for job in jobs], part
    except OSError as error:
        shown = without_secrets(jobs[0].output)
        raise StorageError(f"{shown}: cannot be written: {error.strerror or error}") from error


def _checker(parts: PartStore) -> Callable[..., None]:
    """Return a progress callback that raises MergeError if the merge has ended: at the first call, then now and then."""
    due_s = 0.0

    def check(*_: int) -> None:
        nonlocal due_s
        if time.monotonic() >= due_s:
            parts.check()
            due_s = time.monotonic() + parts.check_s

    return check
