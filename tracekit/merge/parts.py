"""Units of work of a merge: an input is scanned, and later rewritten into its part of the output, anywhere and in any order.

Parts are files in a scratch folder beside the output, which all workers must reach. They are joined in the order of the
inputs, so that the output is the same to the byte whoever made them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter, deque
from concurrent.futures import BrokenExecutor, Future, wait
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar
from uuid import uuid4

from tracekit.errors import MergeError, StorageError
from tracekit.formats.trace_reader import TraceReader, decode_run
from tracekit.merge.lanes import assign_lanes
from tracekit.merge.outputs.output import packed
from tracekit.merge.patch import Patcher
from tracekit.merge.plain import TextPatcher
from tracekit.merge.scan import scan
from tracekit.storage import atomic_write, basename, is_remote, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

    from tracekit.merge.clocks.collective_events import Added
    from tracekit.merge.lanes import Moves
    from tracekit.merge.namespaces import InputMap, RankTrack
    from tracekit.merge.outputs.output import Part
    from tracekit.merge.plain import PlainRuns
    from tracekit.merge.scan import InputScan
    from tracekit.merge.selection.event_filter import EventFilter

__all__ = ["PartInput", "PartJob", "PartResult", "Rewriter", "Workshop"]

_Result = TypeVar("_Result")

_STOP: Final = "stop"
_COPY_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class PartInput:
    """What is to be done with one input.

    Attributes:
        number: Its place among all inputs.
        path: The input as it is opened.
        shown: The input as it may be printed.
        target: Where everything goes.
        id_args: See `Patcher`.
        epoch_only: See `Patcher`.
        events: How many events the first pass found.
        plain: Which runs need not be decoded again.
        size_bytes: Size of the unpacked input.
        chosen: What leaves out what is not selected; None where everything is taken.
        added: Events of the merge itself that follow those of the input, if there are any.
    """

    number: int
    path: str
    shown: str
    target: InputMap
    id_args: bool
    epoch_only: bool
    events: int
    plain: PlainRuns
    size_bytes: int
    chosen: EventFilter | None
    added: Added | None = None


@dataclass(frozen=True, slots=True)
class PartJob:
    """One part of the output. It can be pickled.

    Attributes:
        inputs: What goes into it, in this order; see `Output.units`.
        part: The encoder of the output.
        separator: What stands before every piece.
        output: The name of the output, which says whether it is packed.
    """

    inputs: list[PartInput]
    part: Part
    separator: bytes
    output: str


@dataclass(slots=True)
class PartResult:
    """What became of the events of one input: see the attributes of `Patcher`.

    Attributes:
        left_out: How many were left out on request, by reason.
    """

    written: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, int] = field(default_factory=dict)


class Rewriter:
    """The second pass over one input. Iterate it once, to its end; then `result` is complete.

    Args:
        item: The input.
        progress: Called with the number of the input, and of its unpacked bytes read so far.

    Raises:
        MergeError: The file changed since it was scanned.
        StorageError: It cannot be read any more.
    """

    def __init__(self, item: PartInput, progress: Callable[[int, int], None] | None = None) -> None:
        self._item = item
        self._progress = progress
        self._patcher = Patcher(item.target, id_args=item.id_args, epoch_only=item.epoch_only)

    def __iter__(self) -> Iterator[bytes]:
        item, seen = self._item, 0
        try:
            with TraceReader(item.path) as reader:
                for events, text in self._patched(reader, item):
                    seen += events
                    if text:
                        yield text
                    if self._progress is not None:
                        self._progress(item.number, reader.bytes_read)
                    if seen >= item.events:
                        break
            if item.added is not None and item.added.text:
                self._patcher.written.update(item.added.phases)
                yield item.added.text
        except (KeyError, ValueError) as error:
            raise MergeError(f"{item.shown}: the file changed while it was merged; merge it again") from error
        if seen != item.events:
            raise MergeError(f"{item.shown}: the file changed while it was merged; merge it again")

    @property
    def result(self) -> PartResult:
        """What became of the events."""
        patcher, chosen = self._patcher, self._item.chosen
        left_out = {} if chosen is None else chosen.left_out(patcher.dropped)
        return PartResult(patcher.written, patcher.dropped, patcher.repaired, left_out)

    def _patched(self, reader: TraceReader, item: PartInput) -> Iterator[tuple[int, bytes]]:
        """Yield how many events a run has, and how they go into the merged trace."""
        patcher, chosen, left = self._patcher, item.chosen, item.events
        if chosen is not None:
            for events in reader.runs():
                part = events[:left]
                left -= len(part)
                yield len(part), patcher.patch(chosen.of_ranks(part), chosen.judge_run)
            return
        text_patcher = TextPatcher(patcher, item.plain)
        for number, run in enumerate(reader.runs_or_text(item.plain.is_plain)):
            patched = text_patcher.patch(run, number) if isinstance(run, bytes) else None
            if patched is None:
                events = decode_run(run) if isinstance(run, bytes) else run
                # A trace that is still being recorded may have grown since it was scanned.
                events = events[:left]
                left -= len(events)
                yield len(events), patcher.patch(events)
            else:
                count_of_run = sum(item.plain.phases(number).values())
                left -= count_of_run
                yield count_of_run, patched


def write_part(
    job: PartJob, file: BinaryIO, progress: Callable[[int, int], None] | None = None
) -> dict[int, PartResult]:
    """Write what some inputs add to the output; a packed part is a gzip member of its own.

    Args:
        job: The inputs and their way.
        file: Where to write.
        progress: Called with the number of an input, and of its unpacked bytes read so far.

    Returns:
        What became of the events of each input, by its number.

    Raises:
        MergeError: A file changed since it was scanned.
        StorageError: One cannot be read any more.
    """
    results = {}
    with packed(job.output, file) as sink:
        for item in job.inputs:
            rewriter = Rewriter(item, progress)
            for text in rewriter:
                piece = job.part.encode(item.number, text)
                if piece:
                    sink.write(job.separator)
                    sink.write(piece)
            results[item.number] = rewriter.result
        for piece in job.part.finish():
            sink.write(job.separator)
            sink.write(piece)
    return results


class Workshop:
    """A scratch folder, and the work that an executor does in it. Use it in a ``with``, from one thread.

    Args:
        output: The output; a local one has the folder beside it.
        executor: Who works; None: whoever asks, when asked.

    Raises:
        StorageError: The folder cannot be made.
    """

    def __init__(self, output: str, executor: Executor | None) -> None:
        self._output = output
        self._executor = executor
        self._futures: list[Future[Any]] = []
        self._folder = Path(tempfile.gettempdir()) if is_remote(output) else Path(output.removeprefix("file://")).parent
        self._name = basename(output)
        self._scans = count()
        self._shown = without_secrets(output)

    def __enter__(self) -> Workshop:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(dir=self._folder, prefix=f".{self._name}.", suffix=".parts"))
        except OSError as error:
            raise StorageError(f"{self._shown}: cannot be written: {error.strerror or error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        # What runs looks for this file now and then; what it still writes must not meet a folder that is being deleted.
        with contextlib.suppress(OSError):
            (self._folder / _STOP).touch()
        for future in self._futures:
            future.cancel()
        wait(self._futures)
        shutil.rmtree(self._folder, ignore_errors=True)

    def scratch(self, name: str) -> str:
        """Return the path of a file of the folder."""
        return str(self._folder / name)

    def scanner(self, paths: list[str]) -> Callable[[str, Callable[[int], None] | None], InputScan]:
        """Begin to scan files.

        Returns:
            What returns the result for one of them, and raises what `scan` raises, or MergeError when its worker died.
        """
        scratches = {path: self.scratch(f"slices-{next(self._scans)}") for path in paths}
        if self._executor is None:
            return lambda path, progress: scan(path, progress, scratches[path])
        return self._scanned({path: self._submit(_scan_job, path, scratch) for path, scratch in scratches.items()})

    def _scanned(
        self, futures: dict[str, Future[InputScan]]
    ) -> Callable[[str, Callable[[int], None] | None], InputScan]:
        """Return what waits for the scan of one of the files that workers are at."""

        def result(path: str, progress: Callable[[int], None] | None) -> InputScan:
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
        return atomic_write(self._output, overwrite=overwrite)

    def append_parts(
        self, jobs: list[PartJob], file: BinaryIO, progress: Callable[[int, int], None] | None
    ) -> list[PartResult]:
        """Write all parts to a file, in their order.

        Args:
            jobs: The parts.
            file: The output.
            progress: Called with the number of an input, and of its unpacked bytes that are dealt with.

        Returns:
            What became of the events of each input, in the order of the inputs.

        Raises:
            MergeError: A file changed since it was scanned, or a worker died.
            StorageError: An input cannot be read any more, or a part cannot be written.
        """
        results: dict[int, PartResult] = {}
        if self._executor is None:
            for job in jobs:
                results |= write_part(job, file, progress)
        else:
            names = [self.scratch(f"part-{number}") for number in range(len(jobs))]
            futures = deque(self._submit(_part_job, job, name) for job, name in zip(jobs, names, strict=True))
            for job, name in zip(jobs, names, strict=True):
                written = self._result(futures.popleft())
                results.update(written)
                append_file(name, file)
                os.unlink(name)
                if progress is not None:
                    progress(job.inputs[-1].number, job.inputs[-1].size_bytes)
        return [results[number] for number in sorted(results)]

    def _submit(self, function: Callable[..., _Result], *args: object) -> Future[_Result]:
        assert self._executor is not None
        try:
            future = self._executor.submit(function, *args)
        except BrokenExecutor as error:
            raise _died(error) from error
        self._futures.append(future)
        return future

    @staticmethod
    def _result(future: Future[_Result]) -> _Result:
        try:
            return future.result()
        except BrokenExecutor as error:
            raise _died(error) from error


def _died(error: BrokenExecutor) -> MergeError:
    return MergeError(
        f"a worker of the merge ended before its work was done, perhaps killed for want of memory; nothing was written "
        f"({error}); try fewer workers"
    )


def _scan_job(path: str, scratch: str) -> InputScan:
    # A file of its own: an executor may try again what a lost worker, which may yet write, had begun.
    return scan(path, _stopper(scratch), f"{scratch}.{uuid4().hex}")


def _part_job(job: PartJob, name: str) -> dict[int, PartResult]:
    stopper = _stopper(name)
    try:
        with Path(name).open("wb") as file:
            return write_part(job, file, lambda _, done_bytes: stopper(done_bytes))
    except OSError as error:
        raise StorageError(f"{without_secrets(job.output)}: cannot be written: {error.strerror or error}") from error


def _stopper(path: str) -> Callable[[int], None]:
    """Return what ends the work when the merge that wants it has ended."""
    stop = os.path.join(os.path.dirname(path), _STOP)  # noqa: PTH118, PTH120 - called for every piece

    def check(_: int) -> None:
        if os.path.exists(stop):  # noqa: PTH110
            raise MergeError("the merge was ended")

    return check


def append_file(path: str, file: BinaryIO) -> None:
    """Copy a file to the end of another one, within the kernel where that can do it."""
    with Path(path).open("rb") as part:
        if hasattr(os, "copy_file_range"):
            file.flush()
            with contextlib.suppress(OSError):
                # Not on every file system. What is copied until an error counts: both files have moved on.
                while os.copy_file_range(part.fileno(), file.fileno(), _COPY_BYTES):
                    pass
        shutil.copyfileobj(part, file, 1 << 20)
