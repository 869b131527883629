"""Watch: looks at the runs below a folder or URL, again and again, and reads only what is new."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tracekit.analysis.markers import Kind, Markers
from tracekit.clock import SYSTEM_CLOCK
from tracekit.errors import StorageError
from tracekit.storage import common_folder, is_remote, without_secrets
from tracekit.watching.catalog import Catalog
from tracekit.watching.files import PIECE_BYTES, ChangedError
from tracekit.watching.heads import Head, Index
from tracekit.watching.places import open_place
from tracekit.watching.processes import Machine
from tracekit.watching.runs import folder_of, run_keys, run_state
from tracekit.watching.states import CUT_AFTER_NS, Evidence, Look, RankState, RunState, judge
from tracekit.watching.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tracekit.analysis.markers import Label
    from tracekit.clock import Clock
    from tracekit.watching.files import TraceFile
    from tracekit.watching.places import Part
    from tracekit.watching.recording import WatchedProcess

__all__ = ["MAX_BYTES", "Watch"]

MAX_BYTES: Final = 32 << 20
"""How much one look reads, by default: what takes about half a second."""

_WINDOW_BYTES: Final = (
    8 << 20
)  # of a recording that was long there before the first look, and of one that grows too fast
_LEAST_WINDOW_BYTES: Final = 64 << 10
_TAIL_BYTES: Final = 16 << 10  # of a run that nobody follows
_NO_LIMIT: Final = 1 << 62
_PACKED_WORTH: Final = 8  # a byte of gzip is as much work as so many plain ones
_MOST_MARKERS: Final = 10_000
_ROWS: Final = (256, 16_384)
_ALL_ROWS: Final = 2_000_000
_SURELY_QUIET_NS: Final = 5_000_000_000
_MOST_NOTES: Final = 5


@dataclass(slots=True)
class _Run:
    """What belongs together.

    Attributes:
        run_id: Its name.
        folder: Where they are.
        paths: Its files.
        ranks: The processes of each rank, the newest last.
        children_lost: How many events the children of each rank have lost.
    """

    run_id: str
    folder: str = ""
    paths: list[str] = field(default_factory=list)
    ranks: dict[int, list[WatchedProcess]] = field(default_factory=lambda: defaultdict(list))
    children_lost: Counter[int] = field(default_factory=Counter)


class _Markers(Markers):
    """Names, of which some are looked through from the first time on that they are met."""

    def __init__(self, inside: Collection[str]) -> None:
        super().__init__(_MOST_MARKERS)
        self._inside = frozenset(inside)

    def __missing__(self, label: Label) -> int:
        number = super().__missing__(label)
        if self.table[number].name in self._inside:
            self.kinds[number] |= Kind.FRAME
        return number


class Watch:
    """Looks at the rank traces below a folder or URL.

    Each look lists the files, reads the first lines of new ones, and of the others what has been added: whole lines only. What
    is read at once is bounded, and so is what is kept; a recording that has grown by more than can be read is gone on with
    at its end, which the state says (`RankState.skipped_bytes`). An object store is listed every 5 s at most.

    Use it from one thread at a time. It has no thread and no open file of its own.

    Args:
        root: A folder, or a URL. It may be that of one run or of many.
        max_bytes: How much a look may read, about; 1 MiB at least.
        inside: Names of markers that enclose the stages of a step, and are to be looked through.
        cut_after_s: After which time without a change a recording counts as cut; see `CUT_AFTER_NS`.
        confined: Whether to pass over symbolic links to what is not below the root.
        clock: The clocks.

    Raises:
        ConfigError: The root is a file.
        StorageError: The storage is not known.
    """

    def __init__(
        self,
        root: str,
        *,
        max_bytes: int = MAX_BYTES,
        inside: Collection[str] = (),
        cut_after_s: float = CUT_AFTER_NS / 1e9,
        confined: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._place = open_place(root, confined=confined)
        self._max_bytes = max(max_bytes, PIECE_BYTES)
        self._cut_after_ns = round(cut_after_s * 1e9)
        self._clock = clock
        self._machine = Machine()
        self._sees_processes = False
        self._markers = _Markers(inside)
        self._catalog = Catalog(self._place, self._make_tally, clock, self._max_bytes)
        self._looks = 0
        self._errors: Counter[str] = Counter()
        self._grouped: tuple[int, list[_Run]] = (-1, [])
        self._complete: set[tuple[str, int, int, int]] = set()  # recordings whose index says so

    def look(self, follow: Collection[str] | None = None) -> Look:
        """Look at the runs.

        Args:
            follow: The names of the runs whose steps and stages are wanted; of others, only the end is read. None stands for
                all of them.

        Raises:
            StorageError: The place is not there, or cannot be listed.
        """
        self._looks += 1
        self._errors.clear()
        # Before the files: what a process that is gone by now has written is there.
        for process in self._catalog.processes.values():
            if not process.ended:
                process.runs = self._machine.runs(process.newest.head)
        now_ns = self._clock.monotonic_ns()
        self._catalog.update(now_ns)
        self._read(follow)
        runs = [self._run(run, now_ns) for run in self._runs()]
        runs.sort(key=lambda run: (-run.start_ns, run.run_id, run.folder))
        return Look(self._clock.wall_ns(), tuple(runs), tuple(self._notes()))

    def _make_tally(self) -> Tally:
        least, most = _ROWS
        return Tally(self._markers, max(least, min(most, _ALL_ROWS // max(1, len(self._catalog.processes)))))

    # ---- reading ----------------------------------------------------------------------------------------------------

    def _read(self, follow: Collection[str] | None) -> None:
        budget = self._max_bytes
        queue = self._wanting(follow, budget)
        while queue and budget > 0:
            batch: list[tuple[WatchedProcess, TraceFile, Part]] = []
            while queue and len(batch) < self._place.at_once and budget > 0:
                process = queue.popleft()
                process.served = self._looks
                following = process.next_part()
                if following is not None:
                    file, part = following
                    batch.append((process, file, part))
                    budget -= (part.end - part.start) * (_PACKED_WORTH if file.packed else 1)
            read = self._place.read([part for _, _, part in batch])
            for (process, file, part), data in zip(batch, read, strict=True):
                if self._give(process, file, part, data) and process.unread_bytes:
                    queue.append(process)

    def _wanting(self, follow: Collection[str] | None, budget: int) -> deque[WatchedProcess]:
        """Return the processes that have something new, those first that were not read for long."""
        wanting = []
        unread_bytes = 0
        for key, process in self._catalog.processes.items():
            wanted = follow is None or key[0] in follow
            if wanted and not process.whole and process.skipped_bytes:
                self._begin_again(process)
            process.whole = process.whole or wanted
            unread = process.unread_bytes
            if unread:
                unread_bytes += unread
                wanting.append((process, wanted))
        share = max(_LEAST_WINDOW_BYTES, budget // max(1, len(wanting)))
        for process, wanted in wanting:
            if wanted:
                most = _WINDOW_BYTES if unread_bytes > budget else _NO_LIMIT
                process.keep_up(min(_WINDOW_BYTES, share), most)
            else:
                process.keep_up(_TAIL_BYTES, 4 * _TAIL_BYTES)
        return deque(process for process, _ in sorted(wanting, key=lambda pair: pair[0].served))

    def _begin_again(self, process: WatchedProcess) -> None:
        """Read more of a process of which only the end was read."""
        process.begin_again()
        for file in process.files:
            known = self._catalog.files.get(file.entry.path)
            if known is not None:
                known.file = file

    def _give(self, process: WatchedProcess, file: TraceFile, part: Part, data: bytes | StorageError) -> bool:
        """Give a process what was read of it; return whether it can go on."""
        if isinstance(data, StorageError):
            self._errors[str(data)] += 1
            return False
        try:
            process.take(file, part, data)
        except ChangedError:
            self._catalog.meet_again(process)
            return False
        return True

    # ---- what comes out ---------------------------------------------------------------------------------------------

    def _runs(self) -> list[_Run]:
        """Return what belongs together; a run that was removed altogether is no run any more."""
        catalog = self._catalog
        if self._grouped[0] != catalog.version:
            heads = {path: known.what for path, known in catalog.files.items() if isinstance(known.what, Head)}
            apart = run_keys((path, head) for path, head in heads.items() if not head.child and not head.dump)
            runs: dict[tuple[str, str], _Run] = {}
            for path, head in sorted(heads.items()):
                run = runs.setdefault(_place_of(head, path, apart), _Run(head.run_id))
                run.paths.append(path)
                if head.child:
                    run.children_lost[head.rank] += head.lost_events
            for process in catalog.processes.values():
                newest = process.newest
                found = runs.get(_place_of(newest.head, newest.entry.path, apart))
                if found is not None:
                    found.ranks[newest.head.rank].append(process)
            kept = [run for run in runs.values() if run.ranks]
            for run in kept:
                # The server opens a local one, so its name must stay as it is.
                names = [without_secrets(path) if is_remote(path) else path for path in run.paths]
                run.folder = common_folder(names).removesuffix("/")
                for processes in run.ranks.values():
                    processes.sort(key=lambda own: (own.newest.head.attempt, own.newest.head.start_ns))
            catalog.keep(own for run in kept for processes in run.ranks.values() for own in processes)
            self._grouped = catalog.version, kept
            self._complete = {
                (what.run_id, what.rank, what.attempt, what.pid)
                for what in (known.what for known in catalog.files.values())
                if isinstance(what, Index) and what.complete
            }
        return self._grouped[1]

    def _run(self, run: _Run, now_ns: int) -> RunState:
        ranks = []
        for rank, processes in sorted(run.ranks.items()):
            lost_before = sum(process.lost_events for process in processes[:-1]) + run.children_lost[rank]
            files = sum(len(process.files) for process in processes)
            ranks.append(self._rank(processes[-1], lost_before, files, now_ns))
        return run_state(run.run_id, run.folder, ranks, run.paths)

    def _rank(self, process: WatchedProcess, lost_before: int, files: int, now_ns: int) -> RankState:
        newest = process.newest
        head = newest.head
        quiet_ns = max(0, now_ns - process.changed_ns)
        ended = process.ended or (head.run_id, head.rank, head.attempt, head.pid) in self._complete
        state, reason = judge(
            Evidence(
                there=not process.vanished,
                read=not process.unread_bytes,
                ended=ended,
                closed=newest.closed,
                remote=self._place.remote,
                alive=None if ended else self._is_alive(process, quiet_ns),
                quiet_ns=quiet_ns,
                cut_after_ns=max(self._cut_after_ns, 3 * process.pace_ns if self._place.remote else 0),
            )
        )
        told = process.tell()
        return RankState(
            rank=head.rank,
            state=state,
            reason=reason,
            path=without_secrets(newest.entry.path),
            files=files,
            local_rank=head.local_rank,
            world_size=head.world_size,
            node=head.node,
            host=head.host,
            pid=head.pid,
            attempt=head.attempt,
            run_id=head.run_id,
            iteration=told.iteration,
            epoch=told.epoch,
            batch=told.batch,
            steps_seen=told.steps_seen,
            steps=told.steps,
            median_step_ns=told.median_step_ns,
            stages=told.stages,
            staged_ns=told.staged_ns,
            waiting_ns=told.waiting_ns,
            doing=told.doing if state != "finished" else (),
            lost_events=process.lost_events + lost_before,
            unreadable=sum(file.unreadable for file in process.files),
            size_bytes=sum(file.entry.size_bytes for file in process.files),
            skipped_bytes=process.skipped_bytes,
            behind_bytes=process.unread_bytes,
            start_ns=head.start_ns,
            written_ns=newest.entry.written_ns,
            quiet_ns=quiet_ns,
        )

    def _is_alive(self, process: WatchedProcess, quiet_ns: int) -> bool | None:
        if process.runs is None:  # it was met just now; that it is gone is told by the next look
            process.runs = self._machine.runs(process.newest.head) or None
        if process.runs:
            process.seen_alive = self._sees_processes = True
            return True
        # It may run where its number is another one, in a container; but not if others of this machine are seen.
        surely = process.seen_alive or (self._sees_processes and quiet_ns >= _SURELY_QUIET_NS)
        return False if process.runs is False and surely else None

    def _notes(self) -> Iterator[str]:
        yield from self._catalog.notes()
        yield from (text for text, _ in self._errors.most_common(_MOST_NOTES))
        if self._markers.refused:
            yield f"there are more than {_MOST_MARKERS:,} names; the others count as one"


def _place_of(head: Head, path: str, apart: dict[str, bool]) -> tuple[str, str]:
    return head.run_id, folder_of(path) if apart.get(head.run_id) else ""
