"""Look at the runs below a folder or URL repeatedly; each look reads only the new bytes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator
from typing import Final

from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.errors import StorageError
from tracekit.storage import without_secrets
from tracekit.traces.rank_head import Index
from tracekit.traces.trace_store import Part, open_place
from tracekit.view.live.files import FileCatalog, Machine, RecordingProcess
from tracekit.view.live.progress import ProgressTracker
from tracekit.view.live.runs import RunFiles, group_runs, run_state
from tracekit.view.live.stages import Labels
from tracekit.view.live.states import CUT_AFTER_NS, Look, RankState, RunState, classify
from tracekit.view.live.tail import PIECE_BYTES, ChangedError, FileTail

MAX_BYTES: Final = 16 << 20
"""The default maximum number of bytes of one look, which take about a second."""

_WINDOW_BYTES: Final = 8 << 20  # read of a recording that existed before the first look, or grows too fast
_MIN_WINDOW_BYTES: Final = 64 << 10
_TAIL_BYTES: Final = 16 << 10  # read of runs that nobody follows
_PACKED_WORTH: Final = 8  # a byte of gzip is as much work as so many plain ones
_MAX_SLICES: Final = (256, 16_384)  # of a step; the limits for many and for few processes
_MAX_ALL_SLICES: Final = 2_000_000
_SURELY_QUIET_NS: Final = 5_000_000_000
_HEAD_FIELDS: Final = ("rank", "local_rank", "world_size", "node", "host", "pid", "attempt", "run_id", "start_ns")


class Watch:
    """Looks at the rank traces below a folder or URL.

    Each look lists the files, reads the heads of new ones, and of the others the new whole records. Bytes per look and memory are
    bounded: a recording that grows by more is continued at its end (`RankState.skipped_bytes`). An object store is listed every
    5 s at most. Use it from one thread at a time. It has no thread and no open file. Raises ConfigError if the root is a file,
    StorageError if the storage is unknown.
    """

    def __init__(
        self,
        root: str,  # a folder or URL with one run or many
        *,
        max_bytes: int = MAX_BYTES,  # of a look, about; at least 1 MiB
        inside: Collection[str] = (),  # names of markers to ignore, so that the slices inside them are the stages
        cut_after_s: float = CUT_AFTER_NS / 1e9,  # time without a change after which a recording counts as cut
        confined: bool = False,  # ignore symbolic links that lead out of the root
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = open_place(root, confined=confined)
        self._max_bytes = max(max_bytes, PIECE_BYTES)
        self._cut_after_ns = round(cut_after_s * 1e9)
        self._clock = clock
        self._machine = Machine()
        self._sees_processes = False
        self._labels = Labels(inside)
        self._catalog = FileCatalog(self._store, self._make_tracker, clock, self._max_bytes)
        self._looks = 0
        self._errors: Counter[str] = Counter()
        self._grouped: tuple[int, list[RunFiles]] = (-1, [])
        self._complete: set[tuple[str, int, int, int]] = set()  # recordings that are complete by their index

    def look(self, follow: Collection[str] | None = None) -> Look:
        """Look at the runs; raise StorageError if the folder is missing or cannot be listed.

        Runs with the names ``follow`` (None: all) are read whole, and only the ends of the others.
        """
        self._looks += 1
        self._errors.clear()
        # Before the files: they hold everything of a process that is gone now.
        for process in self._catalog.processes.values():
            if not process.has_ended:
                process.runs = self._machine.is_process_alive(process.newest.head)
        now_ns = self._clock.monotonic_ns()
        self._catalog.update(now_ns)
        self._read(follow)
        runs = [self._run_state(run, now_ns) for run in self._runs()]
        runs.sort(key=lambda run: (-run.start_ns, run.run_id, run.folder))
        return Look(self._clock.wall_ns(), tuple(runs), tuple(self._catalog.others()), tuple(self._notes()))

    def _make_tracker(self) -> ProgressTracker:
        least, most = _MAX_SLICES
        share = _MAX_ALL_SLICES // max(1, len(self._catalog.processes))
        return ProgressTracker(self._labels, max(least, min(most, share)))

    # Reading.

    def _read(self, follow: Collection[str] | None) -> None:
        budget = self._max_bytes
        queue = self._to_read(follow, budget)
        while queue and budget > 0:
            batch: list[tuple[RecordingProcess, FileTail, Part]] = []
            while queue and len(batch) < self._store.at_once and budget > 0:
                process = queue.popleft()
                process.last_read = self._looks
                following = process.next_part()
                if following is not None:
                    file, part = following
                    batch.append((process, file, part))
                    budget -= (part.end - part.start) * (_PACKED_WORTH if file.packed else 1)
            read = self._store.read([part for _, _, part in batch])
            for (process, file, part), data in zip(batch, read, strict=True):
                if isinstance(data, StorageError):
                    self._errors[str(data)] += 1
                    continue
                try:
                    process.take(file, part, data)
                except ChangedError:
                    self._catalog.reread(process)
                    continue
                if process.unread_bytes:
                    queue.append(process)

    def _to_read(self, follow: Collection[str] | None, budget: int) -> deque[RecordingProcess]:
        """Return the processes with new bytes, those first that were not read for longest."""
        waiting = []
        unread_bytes = 0
        for key, process in self._catalog.processes.items():
            is_followed = follow is None or key[0] in follow
            if is_followed and not process.is_followed and process.skipped_bytes:
                process.restart()
            process.is_followed = process.is_followed or is_followed
            if unread := process.unread_bytes:
                unread_bytes += unread
                waiting.append((process, is_followed))
        share = max(_MIN_WINDOW_BYTES, budget // max(1, len(waiting)))
        for process, is_followed in waiting:
            if is_followed:
                most = _WINDOW_BYTES if unread_bytes > budget else 1 << 62
                process.keep_up(min(_WINDOW_BYTES, share), most)
            else:
                process.keep_up(_TAIL_BYTES, 4 * _TAIL_BYTES)
        return deque(process for process, _ in sorted(waiting, key=lambda pair: pair[0].last_read))

    # Results.

    def _runs(self) -> list[RunFiles]:
        catalog = self._catalog
        if self._grouped[0] != catalog.version:
            self._grouped = catalog.version, group_runs(catalog)
            self._complete = {
                (what.run_id, what.rank, what.attempt, what.pid)
                for what in (known.what for known in catalog.files.values())
                if isinstance(what, Index) and what.complete
            }
        return self._grouped[1]

    def _run_state(self, run: RunFiles, now_ns: int) -> RunState:
        ranks = []
        for rank, processes in sorted(run.ranks.items()):
            lost_before = sum(process.lost_events for process in processes[:-1]) + run.children_lost[rank]
            files = sum(len(process.files) for process in processes)
            ranks.append(self._rank_state(processes[-1], lost_before, files, now_ns))
        return run_state(run, ranks)

    def _rank_state(self, process: RecordingProcess, lost_before: int, files: int, now_ns: int) -> RankState:
        newest = process.newest
        head = newest.head
        quiet_ns = max(0, now_ns - process.changed_ns)
        ended = process.has_ended or (head.run_id, head.rank, head.attempt, head.pid) in self._complete
        state, reason = classify(
            there=not process.vanished,
            read=not process.unread_bytes,
            ended=ended,
            closed=newest.closed,
            remote=self._store.remote,
            alive=None if ended else self._is_alive(process, quiet_ns),
            quiet_ns=quiet_ns,
            cut_after_ns=max(self._cut_after_ns, 3 * process.pace_ns if self._store.remote else 0),
        )
        progress = process.tracker.result()
        if state == "finished":
            progress = {**progress, "doing": (), "evaluating": False}
        lost_events = process.lost_events + lost_before
        unreadable = sum(file.unreadable for file in process.files)
        return RankState(
            state=state,
            reason=reason,
            path=without_secrets(newest.entry.path),
            files=files,
            lost_events=lost_events,
            unreadable=unreadable,
            size_bytes=sum(file.entry.size_bytes for file in process.files),
            skipped_bytes=process.skipped_bytes,
            behind_bytes=process.unread_bytes,
            written_ns=newest.entry.written_ns,
            quiet_ns=quiet_ns,
            unhealthy=state in ("cut", "lost") or bool(lost_events or unreadable),
            **{name: getattr(head, name) for name in _HEAD_FIELDS},
            **progress,
        )

    def _is_alive(self, process: RecordingProcess, quiet_ns: int) -> bool | None:
        if process.runs is None:  # new in this look; the next one says if it is gone
            process.runs = self._machine.is_process_alive(process.newest.head) or None
        if process.runs:
            process.seen_alive = self._sees_processes = True
            return True
        # A process in a container may have another pid here, unless other processes of this machine are seen.
        is_gone = process.seen_alive or (self._sees_processes and quiet_ns >= _SURELY_QUIET_NS)
        return False if process.runs is False and is_gone else None

    def _notes(self) -> Iterator[str]:
        yield from self._catalog.notes()
        yield from (text for text, _ in self._errors.most_common(5))
        if self._labels.refused:
            yield self._labels.note
