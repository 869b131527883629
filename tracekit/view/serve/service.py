"""Answer the questions of the pages: the runs, their summaries, comparisons, merged traces and captures."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.errors import TracekitError
from tracekit.explain.step_times import StepSeries, step_points
from tracekit.explain.text import duration, share
from tracekit.table.tables import EventTables
from tracekit.view.open.ui import PerfettoUI, TimelinePart
from tracekit.view.report.plots import step_time_plot
from tracekit.view.serve.captures import Capture, Captures
from tracekit.view.serve.catalog import Catalog, Inputs
from tracekit.view.serve.explain import compare, explain
from tracekit.view.serve.jobs import DONE, FAILED, Job, Jobs
from tracekit.view.serve.store import Store, Tags, merge_into
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.view.serve.runs import Run

_UNASKED_BYTES: Final = 1_000_000_000
"""Limit of summaries that are made without a request: some ten seconds of CPU time for the first one."""
_UNASKED_REMOTE_BYTES: Final = 32_000_000
_FRESH_NS: Final = 60_000_000_000
"""How long the summary of a run that goes on is shown before it is made again."""
_MAX_RANKS: Final = 256
_MAX_TRACK: Final = 200


class MergedTrace(NamedTuple):
    """The merged trace of a run or a capture, or the state of its merge."""

    run: Run
    link: str  # the address of its page
    part: str  # the title of that page
    title: str  # the title of the trace
    path: Path
    ready: Mapping[str, Any] | None  # the report of the merge; None before the trace is there
    stale: bool  # true if the run has gone on since
    job: Job | None  # the merge, while it is under way or if it has failed
    busy: bool
    notes: tuple[str, ...]


class _Summary(NamedTuple):
    """A summary that was begun, the key of its inputs, and the last one before that is done."""

    key: str
    job: Job
    before: _Summary | None

    @property
    def done(self) -> _Summary | None:
        """The last one that is done."""
        return self._replace(before=None) if self.job.state == DONE else self.before


class Service:
    """The one place where pages ask. Any thread may use it; each method may wait for the storage."""

    def __init__(self, root: str, store: Store, ui: PerfettoUI, *, may_capture: bool = False) -> None:
        self.catalog = Catalog(root)
        self.ui = ui
        self.may_capture = may_capture
        self.tags = Tags(store.folder / "tags.json")
        self._store = store
        self._jobs = Jobs()
        self._captures = Captures()
        self._lock = threading.Lock()
        self._summaries: dict[str, _Summary] = {}  # by run: the one that was begun last
        self._merging: dict[str, str] = {}  # by page: the key that was asked for last

    def close(self) -> None:
        """End all work, and wait for its end."""
        self._jobs.close()
        self._captures.close()

    def comparison(self, first: str, second: str) -> tuple[Run, Run, Job] | None:
        """Return two runs and the job that compares them; None where a run is not there; raise if one has no traces."""
        before, after = self.catalog.find(first), self.catalog.find(second)
        if before is None or after is None:
            return None
        for run in (before, after):
            if not run.files:
                raise TracekitError(f"{run.name}: there is no trace to compare yet")
        ours, theirs = self.catalog.inputs(before), self.catalog.inputs(after)
        return before, after, self._jobs.start(("compare", ours.key, theirs.key), compare, ours.names, theirs.names)

    # ---- the page of a run ----------------------------------------------------------------------------------------------

    def run_page(self, run: str) -> dict[str, Any] | None:
        """Return the values of the page of a run; None for an unknown id."""
        found = self.catalog.find(run)
        if found is None:
            return None
        inputs = self.catalog.inputs(found) if found.files else None
        job = None if inputs is None else self._summary(found, inputs)
        summary = self._summaries.get(found.id)
        done = None if summary is None else summary.done
        explained, age = None, ""
        if inputs is not None and done is not None:
            explained = done.job.result
            if done.key != inputs.key:
                step = "" if explained.steps is None else f", step {explained.steps:,}"
                age = f"As of {(time.monotonic_ns() - done.job.ended_ns) / 1e9:,.0f} s ago{step}"
        others = [one for one in self.catalog.runs()[0] if one.files and one.id != found.id]
        return {
            "run": found,
            "ranks": found.ranks[:_MAX_RANKS],
            "more_ranks": max(0, len(found.ranks) - _MAX_RANKS),
            "sentences": _sentences(found),
            "live": _live_plot(found) if found.lives or explained is None else "",
            "explained": explained,
            "age": age,
            "summary_job": job,
            "busy": job is not None and job.state != FAILED,
            "notes": () if inputs is None else inputs.notes,
            "others": others[:200],
            # The usual baseline is the run before.
            "baseline": next((one.id for one in others if one.start_s < found.start_s), ""),
            "tags": self.tags.all().get(found.id, ()),
        }

    def begin_summary(self, run: Run, inputs: Inputs | None = None) -> Job:
        """Begin the summary of a run, however long that takes."""
        inputs = inputs or self.catalog.inputs(run)
        job = self._jobs.start(("summary", run.id, inputs.key), explain, inputs.names, again=True)
        with self._lock:
            before = self._summaries.pop(run.id, None)
            self._summaries[run.id] = _Summary(inputs.key, job, None if before is None else before.done)
            if len(self._summaries) > 64:
                del self._summaries[next(iter(self._summaries))]
        return job

    def _summary(self, run: Run, inputs: Inputs) -> Job | None:
        """Return the job that makes the summary or has failed to; begin it where that does not take long."""
        begun = self._summaries.get(run.id)
        for known in () if begun is None else filter(None, (begun, begun.done)):
            job = known.job
            if not job.ended:
                return job
            if known.key == inputs.key or time.monotonic_ns() - job.ended_ns < _FRESH_NS:
                return None if job.state == DONE else job
        limit = _UNASKED_REMOTE_BYTES if self.catalog.remote else _UNASKED_BYTES
        return None if inputs.bytes > limit else self.begin_summary(run, inputs)

    # ---- merged traces --------------------------------------------------------------------------------------------------

    def begin_merge(self, run: str, capture: str | None = None) -> MergedTrace | None:
        """Begin to merge a run, or one of its captures, unless that is done; None where there is no such.

        Raises TracekitError if there is nothing to merge, or too much work waits.
        """
        found = self._inputs_of(run, capture)
        if found is None:
            return None
        of_run, inputs, link = found
        if not inputs.names:
            raise TracekitError(f"{of_run.name}: it holds no trace to merge")
        with self._lock:
            self._merging[link] = inputs.key
        if self._store.find(inputs.key) is None:
            self._store.make_room(inputs.key)
            path = self._store.path(inputs.key)
            job = self._jobs.start(("merge", inputs.key), merge_into, path, inputs.names, again=True)
            if job.state == FAILED:
                raise TracekitError(job.error)
        return self._merged(of_run, inputs, link, capture)

    def merged(self, run: str, capture: str | None = None) -> MergedTrace | None:
        """Return the merged trace of a run, or of one of its captures; None where there is no such."""
        found = self._inputs_of(run, capture)
        return None if found is None else self._merged(*found, capture)

    def part(self, made: MergedTrace, chosen: Mapping[str, str]) -> TimelinePart | None:
        """Return the part of a merged trace that the fields of a page choose; None if they are empty.

        They are ``from`` and ``to`` in seconds after its start, and ``track``. Raises TracekitError if the times are wrong.
        """
        first, last, track = (chosen.get(name, "").strip() for name in ("from", "to", "track"))
        if not first and not last:
            return TimelinePart(track=track[:_MAX_TRACK]) if track else None
        if made.ready is not None and made.ready["too_big"]:
            raise TracekitError("the trace is too large to be shown in part")
        with EventTables([str(made.path)]) as tables:
            start_ns, end_ns = tables.facts[0]["span"]
        if start_ns is None:
            raise TracekitError("the trace has no event with a time")
        try:
            from_ns = start_ns + round(float(first or 0) * 1e9)
            to_ns = min(end_ns, start_ns + round(float(last) * 1e9)) if last else end_ns
        except (ValueError, OverflowError):
            raise TracekitError("the times must be numbers of seconds") from None
        if not start_ns <= from_ns < to_ns:
            length_s = (end_ns - start_ns) / 1e9
            raise TracekitError(f"from must be before to, and both within the {length_s:.6g} s of the trace")
        return TimelinePart(from_ns, to_ns, track[:_MAX_TRACK])

    def _inputs_of(self, run: str, capture: str | None) -> tuple[Run, Inputs, str] | None:
        found = self.catalog.find(run)
        if found is None or (capture is None and not found.files):
            return None
        if capture is None:
            return found, self.catalog.inputs(found), f"{found.link}/trace"
        own = next((one for one in self._captures.of(found.id) if one.id == capture and one.files), None)
        # The ranks name the files, which may be anything.
        return None if own is None else (found, self.catalog.inputs_of(own.files), f"{found.link}/captures/{own.id}")

    def _merged(self, run: Run, inputs: Inputs, link: str, capture: str | None) -> MergedTrace:
        with self._lock:
            asked = self._merging.get(link, inputs.key)
        # A run that has gone on during the merge has other inputs; show what was asked for all the same.
        key = inputs.key if self._store.find(inputs.key) is not None else asked
        job = self._jobs.find(("merge", key))
        busy = job is not None and not job.ended
        ready = None if busy else self._store.find(key)
        if ready is not None:
            self._store.make_room(key)
        return MergedTrace(
            run=run,
            link=link,
            part="Timeline" if capture is None else "Captured timeline",
            title=run.id if capture is None else f"{run.id}-capture",
            path=self._store.path(key),
            ready=ready,
            stale=ready is not None and key != inputs.key,
            # A trace that was removed counts as never merged.
            job=job if busy or (job is not None and job.state == FAILED) else None,
            busy=busy,
            notes=inputs.notes,
        )

    # ---- captures -------------------------------------------------------------------------------------------------------

    def begin_capture(self, run: Run, steps: int, ranks: tuple[int, ...] | None) -> None:
        """Ask a run to record; raise TracekitError where no rank would do it."""
        if not self.may_capture or run.control is None:
            raise TracekitError(f"{run.name}: nobody listens for a request to record")
        self._captures.start(run.id, run.control, steps=steps, ranks=ranks)

    def captures_of(self, run: Run) -> list[tuple[Capture, list[str]]]:
        """Return the captures of a run that were asked for here, the newest first, with their files outside of the root."""
        return [
            (one, [file for file in one.files if not self.catalog.holds(file)]) for one in self._captures.of(run.id)
        ]


def _sentences(run: Run) -> tuple[str, ...]:
    """Return what the ends of the files say: the present activity, such as an evaluation after the steps, and the slow rank."""
    if run.watched is None:
        return ()
    found = []
    open_slices = Counter(" > ".join(rank.doing) for rank in run.watched.ranks if rank.doing)
    for names, count in open_slices.most_common(1):
        after = "" if run.step is None else f" after step {run.step:,}"
        found.append(f"{'Now' if run.lives else 'Last'}{after}: {names}, on {counted(count, 'rank')}.")
    slowest = run.watched.slowest
    if slowest is not None and slowest.share >= 0.02:
        where = f", most of it in {slowest.stage}" if slowest.stage else ""
        more = f"{duration(slowest.by_ns)} a step more than the median rank ({share(slowest.share)})"
        found.append(f"Lately rank {slowest.rank} takes longest for itself: {more}{where}.")
    return tuple(found)


def _live_plot(run: Run) -> str:
    ranks = [rank for rank in (() if run.watched is None else run.watched.ranks) if rank.steps]
    points = step_points(
        [
            StepSeries(rank.rank, [step.number for step in rank.steps], [step.duration_ns for step in rank.steps])
            for rank in ranks
        ]
    )
    return step_time_plot(points, ranks=len(ranks), title="Latest steps") if points else ""
