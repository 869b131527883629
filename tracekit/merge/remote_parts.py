"""The work of machines that share nothing but a remote storage.

The scratch folder is a prefix beside the output, ``.NAME.RANDOM.parts/``. A worker puts there, each as an object that appears
whole: the times of slices that it found in an input, the lanes that it gave the slices of a rank, and the part of the
output that an input becomes. What travels back to the machine that plans is small: no times, and no events. Many parts are
joined by the workers first, so that where the storage can join objects (S3) the events pass through no single machine.
Elsewhere they pass through the planning machine in a stream.

Work can be repeated, as when a worker is lost: each try writes objects of its own, and only those of the try that counts
are used. While an object named ``open`` is there, the merge goes on; a worker that finds it gone takes away what it wrote.

When the process that plans is killed, nobody removes the prefix: no other process can tell from objects whether it still
runs. It stays, and in S3 unfinished uploads below it, until someone removes it or a lifecycle rule of the bucket does. None of
its objects is named as a trace, so that a merge of the folder does not read them.
"""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast
from uuid import uuid4

from tracekit.errors import MergeError, StorageError
from tracekit.joined_object import end_uploads, joined_write, joins_by_itself
from tracekit.merge.lanes import all_stay, assign_lanes
from tracekit.merge.namespaces import Track
from tracekit.merge.parts import write_part
from tracekit.merge.scan import scan
from tracekit.merge.workshop import Workshop
from tracekit.storage import basename, download, exists, is_remote, put, remove_all, upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor, Future

    from tracekit.joined_object import JoinedObject
    from tracekit.merge.input_scan import InputScan
    from tracekit.merge.lanes import Moves, Slices
    from tracekit.merge.namespaces import InputMap, RankTrack
    from tracekit.merge.parts import PartJob, PartResult
    from tracekit.spill import Run

__all__ = ["RemoteWorkshop", "workshop_for"]

_CHECK_S: Final = 5.0
_JOIN_PARTS: Final = 64
"""How many parts a worker joins. S3 takes 10,000 parts, so 640,000 inputs are possible."""
_TRAVEL_ROWS: Final = 4
"""So few rows of a run travel themselves: they are smaller than the name of a file."""


def workshop_for(output: str, executor: Executor | None) -> Workshop:
    """Return where a merge is worked on.

    Workers of a remote output share its storage, unless they are known to be of this machine.
    """
    remote = is_remote(output) and executor is not None and not isinstance(executor, ProcessPoolExecutor)
    return (RemoteWorkshop if remote else Workshop)(output, executor)


@dataclass(frozen=True, slots=True)
class _Stored:
    """An object with what a worker made."""

    url: str
    size: int


@dataclass(frozen=True, slots=True)
class _Scratch:
    """The prefix, as workers see it. It can be pickled."""

    prefix: str

    @property
    def marker(self) -> str:
        return f"{self.prefix}open"

    def new(self, name: str) -> str:
        """Return a name for an object of one try."""
        return f"{self.prefix}{name}.{uuid4().hex}"

    def check(self) -> None:
        """Raise what ends the work of a merge that has ended."""
        if not exists(self.marker):
            raise MergeError("the merge was ended")

    def checker(self) -> Callable[[int], None]:
        """Return what checks now and then."""
        due = time.monotonic() + _CHECK_S

        def check(_: int) -> None:
            nonlocal due
            if time.monotonic() >= due:
                self.check()
                due = time.monotonic() + _CHECK_S

        return check

    def put(self, local: str, url: str) -> _Stored:
        """Put a file there, unless the merge has ended."""
        size = Path(local).stat().st_size
        try:
            upload(local, url)
            self.check()
        except StorageError as error:
            # Not as StorageError: the input is not to blame, and must not be left out.
            raise MergeError(f"the scratch space of the merge cannot be written: {error}") from error
        except MergeError:
            # Who ended the merge may have looked for objects to remove before this one was there.
            remove_all(url)
            raise
        return _Stored(url, size)


class RemoteWorkshop(Workshop):
    """A scratch prefix on the output's storage, and the work that an executor does there."""

    planned_together = 256

    def __init__(self, output: str, executor: Executor | None) -> None:
        super().__init__(output, executor)
        parent = output.rpartition("/")[0]
        self._scratch = _Scratch(f"{parent}/.{basename(output)}.{uuid4().hex[:12]}.parts/")

    def __enter__(self) -> RemoteWorkshop:
        with tempfile.NamedTemporaryFile() as empty:
            put(empty.name, self._scratch.marker)
        return self

    def __exit__(self, *_: object) -> None:
        # Work that has not begun ends when it finds the marker gone.
        with suppress(StorageError):
            remove_all(self._scratch.marker)
        wait(self._futures)
        with suppress(StorageError):
            end_uploads(self._scratch.prefix)
            remove_all(self._scratch.prefix)

    @property
    def local_folder(self) -> str | None:
        """None: it is on the storage."""
        return None

    def scanner(self, paths: list[str]) -> Callable[[str, Callable[[int], None] | None], InputScan]:
        """Begin to scan files."""
        return self._scanned((path, self._submit(_scan_job, path, self._scratch)) for path in paths)

    def assign_lanes(self, tracks: list[RankTrack]) -> list[list[Moves | None]]:
        """Do what `tracekit.merge.lanes.assign_lanes` does, for every track; a rank is a piece of work."""
        found: list[list[Moves | None]] = [[None for _ in parts] for _, parts in tracks]
        ranks: dict[int, list[int]] = {}
        for number, (rank, parts) in enumerate(tracks):
            if not all_stay(parts):
                ranks.setdefault(rank, []).append(number)
        futures = [
            (numbers, self._submit(_lanes_job, [tracks[number][1] for number in numbers], self._scratch))
            for numbers in ranks.values()
        ]
        for numbers, future in futures:
            assigned: list[list[Moves | None]] = self._result(future)
            for number, moves in zip(numbers, assigned, strict=True):
                found[number] = moves
        return found

    @contextmanager
    def writing(self, *, overwrite: bool) -> Iterator[BinaryIO]:
        """Open the output, which the storage joins where it can."""
        with joined_write(self._output, self._scratch.new("joined"), overwrite=overwrite) as joined:
            yield cast("BinaryIO", joined)

    def append_parts(
        self, jobs: Iterable[PartJob], file: BinaryIO, progress: Callable[[int, int], None] | None
    ) -> Iterator[dict[int, PartResult]]:
        """Write the parts of all inputs to the output, in their order."""
        joined = cast("JoinedObject", file)
        by_itself = joins_by_itself(self._output)
        group: list[_Stored] = []
        joins: list[Future[_Stored]] = []
        begun = ((job.inputs[-1], self._submit(_part_job, job, self._scratch)) for job in jobs)
        for last, future in self._ahead(begun):
            written, part = self._result(future)
            if not by_itself:
                joined.append(part.url, part.size)
            elif len(group) == _JOIN_PARTS:
                joins.append(self._submit(_join_job, group, self._scratch))
                group = [part]
            else:
                group.append(part)
            if progress is not None:
                progress(last.number, last.size_bytes)
            yield written
        if joins:  # a few parts need not be joined before
            joins.append(self._submit(_join_job, group, self._scratch))
            group = []
        for whole in (*map(self._result, joins), *group):
            joined.append(whole.url, whole.size)


# ---- what workers do --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Desk:
    """A folder of this machine, for one piece of work."""

    folder: str
    fetched: dict[str, str] = field(default_factory=dict)

    def file(self, name: str) -> str:
        return os.path.join(self.folder, name)  # noqa: PTH118

    def fetch(self, run: Run) -> Run:
        """Return a run whose file is here."""
        if run.path and run.path not in self.fetched:
            local = self.file(f"fetched-{len(self.fetched)}")
            try:
                download(run.path, local)
            except StorageError as error:
                raise MergeError(f"the scratch space of the merge cannot be read: {error}") from error
            self.fetched[run.path] = local
        return run.moved(self.fetched.get(run.path, ""))


@contextmanager
def _desk(scratch: _Scratch) -> Iterator[_Desk]:
    scratch.check()
    with tempfile.TemporaryDirectory(prefix="tracekit-merge-") as folder:
        yield _Desk(folder)


def _scan_job(path: str, scratch: _Scratch) -> InputScan:
    with _desk(scratch) as desk:
        local, url = desk.file("slices"), scratch.new("slices")
        found = scan(path, scratch.checker(), local)
        for process in found.processes.values():
            for thread in process.threads.values():
                # Several spellings of one id share an object; to do this again changes nothing.
                slices = thread.slices
                slices.whole = [run.store(local, _TRAVEL_ROWS).moved(url) for run in slices.whole]
                slices.pairs = [run.store(local, _TRAVEL_ROWS).moved(url) for run in slices.pairs]
        if Path(local).exists():
            scratch.put(local, url)
        return found


def _lanes_job(tracks: list[list[tuple[Slices, int]]], scratch: _Scratch) -> list[list[Moves | None]]:
    with _desk(scratch) as desk:
        local, url = desk.file("lanes"), scratch.new("lanes")
        found = []
        for parts in tracks:
            here = [(_with_runs(slices, desk.fetch), shift) for slices, shift in parts]
            moves = assign_lanes(here, local)
            found.append(
                [part and _with_moves(part, lambda run: run.store(local, _TRAVEL_ROWS).moved(url)) for part in moves]
            )
        if Path(local).exists():
            scratch.put(local, url)
        return found


def _part_job(job: PartJob, scratch: _Scratch) -> tuple[dict[int, PartResult], _Stored]:
    with _desk(scratch) as desk:
        local = desk.file("part")
        inputs = [replace(item, target=_with_map(item.target, desk.fetch)) for item in job.inputs]
        checker = scratch.checker()
        with Path(local).open("wb") as file:
            result = write_part(replace(job, inputs=inputs), file, lambda _, done_bytes: checker(done_bytes))
        return result, scratch.put(local, scratch.new("part"))


def _join_job(parts: list[_Stored], scratch: _Scratch) -> _Stored:
    scratch.check()
    url = scratch.new("group")
    with joined_write(url, scratch.new("joined")) as joined:
        for part in parts:
            joined.append(part.url, part.size)
        scratch.check()
    return _Stored(url, sum(part.size for part in parts))


def _with_runs(slices: Slices, change: Callable[[Run], Run]) -> Slices:
    found = copy(slices)
    found.whole = [change(run) for run in slices.whole]
    found.pairs = [change(run) for run in slices.pairs]
    return found


def _with_moves(moves: Moves, change: Callable[[Run], Run]) -> Moves:
    return replace(moves, events=moves.events and change(moves.events), starts=moves.starts and change(moves.starts))


def _with_map(target: InputMap, change: Callable[[Run], Run]) -> InputMap:
    processes: dict[Any, tuple[int, dict[Any, int | Track]]] = {}
    for raw, (pid, tids) in target.processes.items():
        processes[raw] = (
            pid,
            {
                tid: replace(track, moves=_with_moves(track.moves, change)) if isinstance(track, Track) else track
                for tid, track in tids.items()
            },
        )
    return replace(target, processes=processes)
