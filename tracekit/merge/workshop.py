"""Where the work of a merge is done: by whoever asks, or by an executor, in a scratch folder beside the output.

The units of work are an input that is scanned, and one or more that are rewritten into a part of the output. All workers must
reach the inputs and the folder of the output.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import deque
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from io import BufferedWriter
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar
from uuid import uuid4

from tracekit.errors import MergeError, StorageError
from tracekit.merge.assembly import Assembly
from tracekit.merge.lanes import assign_lanes
from tracekit.merge.parts import write_part
from tracekit.merge.scan import scan
from tracekit.merge.scratch import Scratch, remove_left
from tracekit.merge.workers import ProcessPool
from tracekit.processors import usable_processors
from tracekit.storage import atomic_write, basename, is_remote, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

    from tracekit.merge.assembly import Task
    from tracekit.merge.input_scan import InputScan
    from tracekit.merge.lanes import Moves
    from tracekit.merge.namespaces import RankTrack
    from tracekit.merge.parts import PartJob, PartResult

__all__ = ["Workshop"]

_Result = TypeVar("_Result")
_Begun = TypeVar("_Begun")

_STOP: Final = "stop"
_IN_FLIGHT: Final = 4096
"""How many pieces of work are given out at a time, so that none of many workers waits; each takes 10 to 30 kB here."""
_IN_FLIGHT_HERE: Final = max(32, 4 * (os.cpu_count() or 1))
"""The same for processes of this machine, of which none is far."""
_COPY_BYTES: Final = 1 << 30


class Workshop:
    """A scratch folder, and the work that an executor does in it. Use it in a ``with``, from one thread.

    The folder is this process's, whoever works in it: where it is killed, the next merge to the same output removes the folder,
    with the parts of all workers and the output as far as it was written; see `tracekit.merge.scratch`.

    Args:
        output: The output; a local one has the folder beside it, a remote one in this machine's place for temporary files.
        executor: Who works; None: whoever asks, when asked.

    Attributes:
        in_flight: How many pieces of work are given out at a time.
        planned_together: Tracks of so many inputs are given to `assign_lanes` at a time.

    Raises:
        StorageError: The folder cannot be made.
    """

    planned_together = 1

    def __init__(self, output: str, executor: Executor | None) -> None:
        self._output = output
        self._executor = executor
        self._futures: set[Future[Any]] = set()
        self.in_flight = _IN_FLIGHT_HERE if isinstance(executor, ProcessPoolExecutor) else _IN_FLIGHT
        if isinstance(executor, ProcessPool):
            self.in_flight = max(_IN_FLIGHT_HERE, 4 * executor.workers)
        self._folder: Scratch | None = None
        self._parent = Path(tempfile.gettempdir()) if is_remote(output) else Path(output).parent
        self._name = basename(output)
        self._scans = count()
        self._shown = without_secrets(output)

    def __enter__(self) -> Workshop:
        remove_left(self._parent, self._name)
        try:
            self._folder = Scratch(self._parent, self._name)
        except OSError as error:
            raise StorageError(f"{self._shown}: cannot be written: {error.strerror or error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        # What runs looks for this file now and then; what it still writes must not meet a folder that is being deleted.
        with contextlib.suppress(OSError):
            Path(self.scratch(_STOP)).touch()
        for future in self._futures:
            future.cancel()
        wait(self._futures)
        if self._folder is not None:
            self._folder.remove()

    @property
    def local_folder(self) -> str | None:
        """The scratch folder, where this machine has it."""
        return None if self._folder is None else str(self._folder.path)

    def scratch(self, name: str) -> str:
        """Return the path of a file of the folder."""
        return os.path.join(self.local_folder or "", name)  # noqa: PTH118 - called for every input

    def scanner(self, paths: list[str]) -> Callable[[str, Callable[[int], None] | None], InputScan]:
        """Begin to scan files.

        Returns:
            What returns the result for one of them, and raises what `scan` raises, or MergeError when its worker died.
        """
        if self._executor is None:
            return lambda path, progress: scan(path, progress, self.scratch(f"slices-{next(self._scans)}"))
        return self._scanned(
            (path, self._submit(_scan_job, path, self.scratch(f"slices-{next(self._scans)}"))) for path in paths
        )

    def _scanned(
        self, begun: Iterator[tuple[str, Future[InputScan]]]
    ) -> Callable[[str, Callable[[int], None] | None], InputScan]:
        """Return what waits for the scan of one of the files, while workers are at the next ones."""
        futures: dict[str, Future[InputScan]] = {}

        def result(path: str, progress: Callable[[int], None] | None) -> InputScan:
            while path not in futures or len(futures) < self.in_flight:
                following = next(begun, None)
                if following is None:
                    break
                futures[following[0]] = following[1]
            found = self._result(futures.pop(path))
            if progress is not None:
                progress(found.bytes_read)
            return found

        return result

    def assign_lanes(self, tracks: list[RankTrack]) -> list[list[Moves | None]]:
        """Do what `tracekit.merge.lanes.assign_lanes` does, for every track."""
        return [assign_lanes(parts, self.scratch("lanes")) for _, parts in tracks]

    def writing(self, *, overwrite: bool) -> AbstractContextManager[BinaryIO]:
        """Open the output for its parts; see `atomic_write`."""
        return atomic_write(self._output, overwrite=overwrite, folder=self.local_folder)

    def append_parts(
        self, jobs: Iterable[PartJob], file: BinaryIO, progress: Callable[[int, int], None] | None
    ) -> Iterator[dict[int, PartResult]]:
        """Write all parts to a file, in their order.

        Args:
            jobs: The parts.
            file: The output.
            progress: Called with the number of an input, and of its unpacked bytes that are dealt with.

        Yields:
            After each part, or some, what became of the events of their inputs, by their numbers.

        Raises:
            MergeError: A file changed since it was scanned, or a worker died.
            StorageError: An input cannot be read any more, or a part cannot be written.
        """
        if self._executor is None:
            pack_behind = usable_processors() > 1
            for job in jobs:
                yield write_part(job, file, progress, pack_behind=pack_behind)
            return
        if isinstance(self._executor, ProcessPool):
            left = iter(jobs)
            while some := list(islice(left, self.in_flight)):
                yield self._write_in_place(some, file, progress, self._executor.workers)
            return
        begun = (
            (job.inputs[-1], self._submit(_file_job, job, name))
            for job, name in zip(jobs, map(self.scratch, map("part-{}".format, count())), strict=False)
        )
        for last, future in self._ahead(begun):
            written, name = self._result(future)
            append_file(name, file)
            os.unlink(name)
            if progress is not None:
                progress(last.number, last.size_bytes)
            yield written

    def _ahead(self, begun: Iterator[_Begun]) -> Iterator[_Begun]:
        """Yield what was begun, in that order, when so many others are begun after it as may be in flight."""
        waiting: deque[_Begun] = deque()
        for some in begun:
            waiting.append(some)
            if len(waiting) == self.in_flight:
                yield waiting.popleft()
        yield from waiting

    def _write_in_place(
        self,
        jobs: list[PartJob],
        file: BinaryIO,
        progress: Callable[[int, int], None] | None,
        workers: int,
    ) -> dict[int, PartResult]:
        """Have processes of this machine write the parts into the output themselves; see `tracekit.merge.assembly`."""
        file.flush()
        assembly = Assembly(len(jobs), file.tell())
        results: dict[int, PartResult] = {}
        running: dict[Future[Any], Task] = {}
        sizes = [sum(item.size_bytes for item in job.inputs) for job in jobs]
        done_bytes = 0
        while True:
            while len(running) < workers and (task := assembly.next()) is not None:
                name = self.scratch(f"part-{task.number}")
                if task.made:
                    future: Future[Any] = self._submit(_copy_job, name, file.name, task.at, self._shown)
                else:
                    path = name if task.at is None else file.name
                    future = self._submit(_part_job, jobs[task.number], path, task.at, name)
                running[future] = task
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                found = self._result(future)
                if task.made:
                    continue
                written, size = found
                results.update(written)
                assembly.made(task.number, size)
                done_bytes += sizes[task.number]
                if progress is not None:
                    # As if the inputs were done in their order: before the last one of this part are those of the parts
                    # before, and the others of this part.
                    last = jobs[task.number].inputs[-1]
                    before_bytes = sum(sizes[: task.number + 1]) - last.size_bytes
                    progress(last.number, done_bytes - before_bytes)
        file.seek(assembly.at)
        return results

    def _submit(self, function: Callable[..., _Result], *args: object) -> Future[_Result]:
        assert self._executor is not None
        try:
            future = self._executor.submit(function, *args)
        except BrokenExecutor as error:
            raise _died(error) from error
        self._futures.add(future)
        return future

    def _result(self, future: Future[_Result]) -> _Result:
        try:
            found = future.result()
        except BrokenExecutor as error:
            raise _died(error) from error
        self._futures.discard(future)
        return found


def _died(error: BrokenExecutor) -> MergeError:
    return MergeError(
        f"a worker of the merge ended before its work was done, perhaps killed for want of memory; nothing was written "
        f"({error}); try fewer workers"
    )


def _scan_job(path: str, scratch: str) -> InputScan:
    # A file of its own: an executor may try again what a lost worker, which may yet write, had begun.
    return scan(path, _stopper(scratch), f"{scratch}.{uuid4().hex}")


def _part_job(job: PartJob, path: str, at: int | None, name: str) -> tuple[dict[int, PartResult], int]:
    """Write a part into the output from a place on, or into a file of its own.

    Args:
        job: The part.
        path: The output, or that file.
        at: Where in the output.
        name: A path in the scratch folder.

    Returns:
        What became of the events of each input, and the size of the part in bytes.
    """
    stopper = _stopper(name)
    with _told_of(job.output), _open_at(path, at) as file:
        results = write_part(job, file, lambda _, done_bytes: stopper(done_bytes))
        return results, file.tell() - (at or 0)


def _file_job(job: PartJob, name: str) -> tuple[dict[int, PartResult], str]:
    """Write a part into a file of its own; returns what became of the events of each input, and the name of the file."""
    # Of its own for each try, as that of a scan.
    path = f"{name}.{uuid4().hex}"
    written, _ = _part_job(job, path, None, name)
    return written, path


def _copy_job(name: str, path: str, at: int, shown: str) -> None:
    """Copy a part into the output, and remove its file."""
    with _told_of(shown), _open_at(path, at) as file:
        append_file(name, file)
    os.unlink(name)


def _open_at(path: str, at: int | None) -> BinaryIO:
    """Open a new file to write, or one that is there from a place on."""
    if at is None:
        return Path(path).open("wb")
    file = BufferedWriter(Path(path).open("r+b", buffering=0))  # noqa: SIM115 - closed by the caller
    file.seek(at)
    return file


@contextlib.contextmanager
def _told_of(output: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{without_secrets(output)}: cannot be written: {error.strerror or error}") from error


def _stopper(path: str) -> Callable[[int], None]:
    """Return what ends the work when the merge that wants it has ended."""
    stop = os.path.join(os.path.dirname(path), _STOP)  # noqa: PTH118, PTH120 - called for every piece

    def check(_: int) -> None:
        if os.path.exists(stop):  # noqa: PTH110
            raise MergeError("the merge was ended")

    return check


def append_file(path: str, file: BinaryIO) -> None:
    """Copy a file to where another one stands, within the kernel where that can do it."""
    with Path(path).open("rb") as part:
        if hasattr(os, "copy_file_range"):
            file.flush()
            with contextlib.suppress(OSError):
                # Not on every file system. What is copied until an error counts: both files have moved on.
                while os.copy_file_range(part.fileno(), file.fileno(), _COPY_BYTES):
                    pass
        shutil.copyfileobj(part, file, 1 << 20)
