"""The states of runs and ranks, and the rule that classifies a rank as recording, finished, cut or lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from tracekit.explain.results import Result
from tracekit.structs import Struct

if TYPE_CHECKING:
    from tracekit.traces.rank_head import OtherTrace
    from tracekit.traces.trace_store import Entry

State = Literal["recording", "finished", "cut", "lost"]
"""
- ``recording``: its process writes, as far as anybody can see.
- ``finished``: the recording has ended, and its file says so.
- ``cut``: the file has no end: the process was killed, or its machine is gone. It holds what was flushed.
- ``lost``: the file was removed.
"""

CUT_AFTER_NS: Final = 90_000_000_000
"""Time without a change after which a rank counts as cut, if its process cannot be seen from here.

A live process writes at least the readings of its clocks, every 60 s; half of that is added for file systems that show changes
late.
"""


def classify(
    *,
    there: bool,  # it has a file
    read: bool,  # the file was read to its end; large ones take several looks
    ended: bool,  # it has its summary, or the index of an object store says "complete"
    closed: bool,  # its newest file has the end of the array; files of a rotation have it too
    remote: bool,  # it is on an object store
    alive: bool | None,  # its process runs; None if that is unknown
    quiet_ns: int,  # time since the last growth
    cut_after_ns: int = CUT_AFTER_NS,  # the limit of that time
) -> tuple[State, str]:
    """Return the state of a rank, and the reason in words.

    The first that holds:

    1. No file: *lost*.
    2. The recording states its end: *finished*.
    3. Its process runs on this machine, or its files were not read to their end: *recording*, however quiet.
    4. Its process ran on this machine and is gone, or it was quiet for too long: *finished* if the file is closed, since
       handlers that write a file for each window have no summary when they end between two; else *cut*. On an object store
       every file is closed: *cut*.
    5. Else *recording*.
    """
    if not there:
        return "lost", "its file was removed"
    if ended:
        return "finished", "the recording has ended"
    if alive:
        return "recording", "its process runs"
    if not read:
        return "recording", "it has not been read to its end yet"
    gone = alive is False
    if gone or quiet_ns > cut_after_ns:
        if closed and not remote:
            return "finished", "its file is complete, and no other came"
        return "cut", "its process is gone" if gone else f"nothing came for {quiet_ns / 1e9:,.0f} s"
    return "recording", "it was written to lately"


class Step(NamedTuple):
    """A training step of a rank."""

    number: int  # the batch, counted through the run
    start_ns: int  # its start, ns since the epoch, by the clock of its host
    duration_ns: int  # the time between two calls of ``step``


class StageTime(Result, frozen=True, kw_only=True):
    """The part of the last steps that a stage took on the training thread."""

    name: str  # the name of its marker: "backward", or "backward > all_reduce" for a collective inside it
    total_ns: int  # the sum over these steps
    share: float  # the share of the time of these steps; above 1 if it reaches beyond their end
    waiting: bool  # true for a collective, in which a rank waits for the others


class RankStatus(Result, frozen=True, kw_only=True):
    """A rank as of the last look. Times are by the clock of its host, except ``quiet_ns``.

    Attributes:
        state: recording: its process writes. finished: the recording has ended. cut: its file has no end, as when the process
            is killed. lost: its file was removed.
        own_step_ns: The median without its share of collectives. Ranks that wait for each other all have the step time of the
            slowest; the slow one shows where nobody waits.
        doing: The open slices of the training thread, outermost first, as of its last flush. Short slices are written when they
            end and are not among them.
    """

    rank: int  # the rank
    state: State
    reason: str  # the reason for its state, in words
    path: str  # the file that it writes, or has written last
    files: int  # the number of its files: segments, and those of children and earlier attempts
    local_rank: int  # its number on its host
    world_size: int  # the number of ranks
    node: int  # the number of the host
    host: str  # the name of the host
    pid: int  # the process id
    attempt: int  # the number of restarts by the launcher
    run_id: str  # the name of the run
    iteration: int | None  # the training time that was written last; None before the first one
    epoch: int | None  # likewise
    batch: int | None  # the number of completed batches
    steps_seen: int  # the number of steps read in all looks together
    last_step_ns: int | None  # the duration of the last step; None before the first one
    median_step_ns: int | None  # the median of the last 64 steps
    own_step_ns: int | None
    stages: tuple[StageTime, ...]  # the stages of the last steps, longest first
    staged_ns: int  # the time of the steps in ``stages``
    waiting_ns: int  # the part of it in collectives
    doing: tuple[str, ...]
    evaluating: bool  # true if a slice named evaluation or validation is open
    evaluations: int  # the number of evaluations that were read
    counters: dict[str, float]  # the last value of each counter, by name, or by name and series
    lost_events: int  # the number of events that its files state as lost
    unreadable: int  # the number of places in them without a readable event
    size_bytes: int  # the size of its files
    skipped_bytes: int  # bytes that are never read, since they are from long before the first look or come too fast
    behind_bytes: int  # bytes that are not read yet
    start_ns: int  # the start of its recording, ns since the epoch
    written_ns: int  # the last change of its file, by the clock of the storage; 0 if unknown
    quiet_ns: int  # time since the last growth, by the clock of this machine
    unhealthy: bool  # true if it is cut or lost, or has lost data


class RankState(RankStatus, frozen=True, kw_only=True):
    """A rank with its steps."""

    steps: tuple[Step, ...]  # the last of its steps, at most 64, oldest first


class Slowest(Result, frozen=True, kw_only=True):
    """The rank whose steps take longest without its collectives."""

    rank: int  # the rank
    by_ns: int  # the difference of a step from the median of the others
    share: float  # the same as a share of that median
    stage: str  # the stage with the largest difference from the median of the others; empty if no stages are known


class RunStatus(Result, frozen=True, kw_only=True):
    """A run as of the last look.

    Attributes:
        state: Recording while any rank is; else cut or lost if any rank is; else finished. Missing ranks do not count.
    """

    run_id: str  # its name
    folder: str  # the folder or prefix of all its files
    state: State
    unhealthy: bool  # true if a rank is cut, lost or missing, or has lost data
    world_size: int  # the number of ranks that it should have
    missing: tuple[int, ...]  # ranks without any file, the first 1,000
    missing_count: int  # their number
    start_ns: int  # the start of its first recording, ns since the epoch
    step: int | None  # the batch of the furthest rank; None if unknown
    step_skew: int  # the number of batches between the first and the last recording rank
    median_step_ns: int | None  # the median of the ranks' median steps; None without steps
    slowest: Slowest | None  # the slowest rank; None if fewer than two have steps
    lost_events: int  # the number of events that its ranks state as lost


class RunState(RunStatus, frozen=True, kw_only=True):
    """A run with its ranks and files."""

    ranks: tuple[RankState, ...]  # the states of ranks that have or had a file, in order
    paths: tuple[str, ...]  # all its files


class ShownRun(RunStatus, frozen=True, kw_only=True):
    """A run with its ranks, as of the last look."""

    ranks: list[RankStatus]  # the ranks that have or had a file, in order


class LookDocument(Result, frozen=True, kw_only=True):
    """The runs below a folder at one moment, as ``tracekit top --json`` prints them on one line.

    Times are ns since the epoch, durations are ns.
    """

    format_version: int = 2
    time_ns: int  # the time by the clock of the machine that looked
    run: ShownRun | None  # the run that is shown, or null before the first one
    other_runs: list[RunStatus]  # the other runs. Only the ends of their files were read
    notes: list[str]  # sentences for the reader


class Look(Struct, frozen=True):
    """The runs below a folder at one moment."""

    time_ns: int  # the time, ns since the epoch, by the clock of this machine
    runs: tuple[RunState, ...]  # the runs, the newest first
    others: tuple[tuple[Entry, OtherTrace], ...]  # the traces of other tools and of earlier merges, by path
    notes: tuple[str, ...]  # sentences for the reader


def look_document(look: Look, shown: RunState | None) -> LookDocument:
    """Return the document of a look: one run with its ranks, the others without."""
    run = None
    if shown is not None:
        ranks = [RankStatus(**_fields(RankStatus, rank)) for rank in shown.ranks]
        run = ShownRun(**_fields(RunStatus, shown), ranks=ranks)
    return LookDocument(
        time_ns=look.time_ns,
        run=run,
        other_runs=[RunStatus(**_fields(RunStatus, other)) for other in look.runs if other is not shown],
        notes=list(look.notes),
    )


def _fields(kind: type[Result], result: Result) -> dict[str, Any]:
    return {name: getattr(result, name) for name in kind.fields()}
