"""What the pages show and start: the runs, what is made of them, and captures."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.analysis.step_times import RankSteps, step_points
from tracekit.analysis.text import duration, share
from tracekit.errors import TracekitError
from tracekit.reporting.plots import step_time_plot
from tracekit.serving.captures import Captures
from tracekit.serving.catalog import Catalog
from tracekit.serving.explain import explain
from tracekit.serving.jobs import DONE, FAILED, Jobs
from tracekit.serving.store import Store, merge_into

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracekit.serving.captures import Capture
    from tracekit.serving.catalog import Inputs
    from tracekit.serving.explain import Explained
    from tracekit.serving.jobs import Job
    from tracekit.serving.runs import Run
    from tracekit.viewing.ui import PerfettoUI

__all__ = ["Made", "RunView", "Service"]

_BY_ITSELF_BYTES: Final = 256_000_000
"""A summary of so much is made without being asked for; it takes some ten seconds."""
_BY_ITSELF_REMOTE_BYTES: Final = 32_000_000
_AGAIN_NS: Final = 60_000_000_000
"""How long a summary of a run that goes on is good enough."""
_MOST_EXPLAINED: Final = 64
_SLOWER: Final = 0.02


@dataclass(frozen=True, slots=True)
class RunView:
    """What the page of a run shows.

    Attributes:
        run: The run.
        lives: Whether it may change by itself.
        sentences: What is known without reading all of it.
        live: A plot of the latest steps; empty where there are none.
        explained: Where the time goes; None while nobody has worked that out.
        age: Of what moment that is; empty where it is of now.
        job: What works it out, or failed to; None for none.
        busy: Whether it was under way when this was made; it may have ended since.
        notes: What the reader should know.
    """

    run: Run
    lives: bool
    sentences: tuple[str, ...]
    live: str
    explained: Explained | None
    age: str
    job: Job | None
    busy: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """A merged trace, or what becomes one.

    Attributes:
        run: Whose.
        link: The address of its page.
        part: What the page is called.
        title: What the trace is called.
        path: Where it is, or will be.
        ready: What the merge said; None before it is there.
        stale: Whether the run has gone on since.
        job: The merge that is under way, or failed; None for none.
        busy: Whether it was under way when this was made; it may have ended since.
        notes: What the reader should know.
    """

    run: Run
    link: str
    part: str
    title: str
    path: Path
    ready: Mapping[str, Any] | None
    stale: bool
    job: Job | None
    busy: bool
    notes: tuple[str, ...] = ()


class Service:
    """The one place where pages ask. Any thread may use it; each method may wait for the storage.

    Args:
        root: A folder or URL of runs.
        store: Where merged traces are kept.
        ui: Who shows them.
        may_capture: Whether running jobs may be asked to record.

    Raises:
        ConfigError: The root is a file.
        StorageError: Its storage is not known.
    """

    def __init__(self, root: str, store: Store, ui: PerfettoUI, *, may_capture: bool = False) -> None:
        self.catalog = Catalog(root)
        self.ui = ui
        self.may_capture = may_capture
        self._store = store
        self._jobs = Jobs()
        self._captures = Captures()
        self._lock = threading.Lock()
        # By run: of which state of it, and the job; the last one that was begun, and the last one that ended well.
        self._latest: dict[str, tuple[str, Job]] = {}
        self._explained: dict[str, tuple[str, Job]] = {}
        self._merging: dict[str, str] = {}  # by page: the key that was asked for last

    def close(self) -> None:
        """End all that is under way, and wait until it is gone."""
        self._jobs.close()
        self._captures.close()

    def run(self, run: str) -> Run | None:
        """Return the run of an id; None where there is none."""
        return self.catalog.find(run)

    # ---- where the time goes --------------------------------------------------------------------------------------------

    def view(self, run: str) -> RunView | None:
        """Return what the page of a run shows."""
        found = self.catalog.find(run)
        if found is None:
            return None
        lives = found.listens or any(name == "recording" for name, _ in found.states)
        inputs = self.catalog.inputs(found) if found.files else None
        job, explained, age = None, None, ""
        if inputs is not None:
            job = self._summary(found, inputs)
            with self._lock:
                known = self._explained.get(found.id)
            if known is not None:
                explained = known[1].result
                if known[0] != inputs.key:
                    ago_s = (time.monotonic_ns() - known[1].ended_ns) / 1e9
                    age = f"As of {ago_s:,.0f} s ago" + (
                        "" if explained.steps is None else f", step {explained.steps:,}"
                    )
        return RunView(
            run=found,
            lives=lives,
            sentences=_sentences(found),
            live=_live_plot(found) if lives or explained is None else "",
            explained=explained,
            age=age,
            job=job,
            busy=job is not None and job.state != FAILED,
            notes=() if inputs is None else inputs.notes,
        )

    def begin_summary(self, run: str) -> Run | None:
        """Begin to work out where the time of a run goes, however long that takes; return the run."""
        found = self.catalog.find(run)
        if found is not None and found.files:
            self._begin(found, self.catalog.inputs(found))
        return found

    def _begin(self, run: Run, inputs: Inputs) -> Job:
        job = self._jobs.start(("summary", run.id, inputs.key), explain, inputs.names, again=True)
        with self._lock:
            self._latest[run.id] = (inputs.key, job)
            for table in (self._latest, self._explained):
                while len(table) > _MOST_EXPLAINED:
                    del table[next(iter(table))]
        return job

    def _summary(self, run: Run, inputs: Inputs) -> Job | None:
        """Return the job that works out where the time of a run goes, and begin it where that does not take long."""
        with self._lock:
            latest = self._latest.get(run.id)
            if latest is not None and latest[1].state == DONE:
                self._explained[run.id] = latest
            known = self._explained.get(run.id)
        for found in (latest, known):
            if found is None:
                continue
            key, job = found
            if not job.ended:
                return job
            if key == inputs.key or time.monotonic_ns() - job.ended_ns < _AGAIN_NS:
                return None if job.state == DONE else job
        most = _BY_ITSELF_REMOTE_BYTES if self.catalog.remote else _BY_ITSELF_BYTES
        return None if inputs.bytes > most else self._begin(run, inputs)

    # ---- merged traces --------------------------------------------------------------------------------------------------

    def begin_merge(self, run: str, capture: str | None = None) -> Made | None:
        """Begin to merge a run, or one of its captures, unless that is done; return what is known of it.

        Raises:
            TracekitError: There is nothing to merge, or too much is being done already.
        """
        found = self._inputs_of(run, capture)
        if found is None:
            return None
        of_run, inputs, link = found
        if not inputs.names:
            raise TracekitError(f"{of_run.name}: there is no trace that could be merged")
        with self._lock:
            self._merging[link] = inputs.key
        if self._store.find(inputs.key) is None:
            self._store.make_room(inputs.key)
            self._jobs.forget(("merge", inputs.key))
            job = self._jobs.start(("merge", inputs.key), merge_into, self._store.path(inputs.key), inputs.names)
            if job.state == FAILED:
                raise TracekitError(job.error)
        return self._made(of_run, inputs, link, capture)

    def merged(self, run: str, capture: str | None = None) -> Made | None:
        """Return what is known of the merged trace of a run, or of one of its captures; None where there is no such."""
        found = self._inputs_of(run, capture)
        return None if found is None else self._made(*found, capture)

    def _inputs_of(self, run: str, capture: str | None) -> tuple[Run, Inputs, str] | None:
        found = self.catalog.find(run)
        if found is None:
            return None
        if capture is None:
            if not found.files:
                return None
            return found, self.catalog.inputs(found), f"{found.link}/trace"
        own = next((one for one in self._captures.of(found.id) if one.id == capture and one.files), None)
        if own is None:
            return None
        # The files are those that the ranks name, and that may be anything.
        return found, self.catalog.inputs_of(own.files), f"{found.link}/captures/{own.id}"

    def _made(self, run: Run, inputs: Inputs, link: str, capture: str | None) -> Made:
        with self._lock:
            asked = self._merging.get(link, inputs.key)
        # While it is merged, a run that goes on has become another one; what was asked for is shown all the same.
        key = inputs.key if self._store.find(inputs.key) is not None else asked
        job = self._jobs.find(("merge", key))
        busy = job is not None and not job.ended
        ready = None if busy else self._store.find(key)
        if ready is not None:
            self._store.make_room(key)
        return Made(
            run=run,
            link=link,
            part="Timeline" if capture is None else "Captured timeline",
            title=run.id if capture is None else f"{run.id}-capture",
            path=self._store.path(key),
            ready=ready,
            stale=ready is not None and key != inputs.key,
            # What was merged and is no longer kept is as if it had never been.
            job=job if busy or (job is not None and job.state == FAILED) else None,
            busy=busy,
            notes=inputs.notes,
        )

    # ---- captures -------------------------------------------------------------------------------------------------------

    def begin_capture(self, run: Run, steps: int, ranks: tuple[int, ...] | None) -> None:
        """Ask a run to record.

        Raises:
            TracekitError: It would be in vain.
        """
        if not self.may_capture or run.control is None:
            raise TracekitError(f"{run.name}: nobody listens for a request to record")
        self._captures.start(run.id, run.control, steps=steps, ranks=ranks)

    def captures_of(self, run: Run) -> list[tuple[Capture, list[str]]]:
        """Return the captures of a run that were asked for here, the newest first, with the files that lie elsewhere."""
        return [
            (one, [file for file in one.files if not self.catalog.holds(file)]) for one in self._captures.of(run.id)
        ]


def _sentences(run: Run) -> tuple[str, ...]:
    slowest = None if run.watched is None else run.watched.slowest
    if slowest is None or slowest.share < _SLOWER:
        return ()
    where = f", most of it in {slowest.stage}" if slowest.stage else ""
    more = f"{duration(slowest.by_ns)} a step more than the median rank ({share(slowest.share)})"
    return (f"Lately rank {slowest.rank} takes longest for itself: {more}{where}.",)


def _live_plot(run: Run) -> str:
    ranks = () if run.watched is None else run.watched.ranks
    points = step_points(
        [
            RankSteps(rank.rank, [step.number for step in rank.steps], [step.duration_ns for step in rank.steps])
            for rank in ranks
        ]
    )
    return (
        step_time_plot(points, ranks=len([rank for rank in ranks if rank.steps]), title="Latest steps")
        if points
        else ""
    )
