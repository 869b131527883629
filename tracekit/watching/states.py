"""What a look at a run gives: values, and the rule by which a rank is recording, finished, cut or lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = [
    "CUT_AFTER_NS",
    "Evidence",
    "Look",
    "RankState",
    "RunState",
    "Slowest",
    "StageTime",
    "State",
    "Step",
    "judge",
]

State = Literal["recording", "finished", "cut", "lost"]
"""
- ``recording``: its process writes, as far as anybody can tell.
- ``finished``: the recording has ended, and the file says so.
- ``cut``: it ended without its end: the process was killed, or its machine is gone. What was flushed is in the file.
- ``lost``: there is no file: of a rank that the world size promises, or one that somebody removed.
"""

CUT_AFTER_NS: Final = 90_000_000_000
"""How long a file that nobody has ended may stay as it is before its rank counts as cut, where only the file can tell.

A recording that goes well writes every 0.2 s, but only when something happens: a compilation, a checkpoint, or a schedule that
waits writes nothing. What a live process writes in any case are the readings of its clocks, every 60 s; half of that is for
file systems that show a change late (NFS keeps what it knows of a file for up to 60 s, but not across an ``open``, and a file
that grows is opened). A rank whose process can be asked, since it runs on this machine, is not waited for.
"""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a recording, for `judge`.

    Attributes:
        there: Whether it has a file.
        read: Whether that was read to its end; where there is much, that takes several looks.
        ended: It says itself that it has ended: the summary is there, or the index of an object store says "complete".
        closed: Its newest file has the end of the array; files of a rotation have it as well.
        remote: It is on an object store, where every file is closed before it is there.
        alive: Whether its process runs; None where that cannot be told.
        quiet_ns: How long nothing was seen to grow.
        cut_after_ns: How long that may take.
    """

    there: bool
    read: bool
    ended: bool
    closed: bool
    remote: bool
    alive: bool | None
    quiet_ns: int
    cut_after_ns: int = CUT_AFTER_NS


def judge(evidence: Evidence) -> tuple[State, str]:
    """Return the state of a rank, and the reason in words.

    In this order, the first that holds:

    1. No file: *lost*.
    2. The recording says that it has ended: *finished*. Nothing else does; a closed file may be one of many.
    3. Its process runs on this machine: *recording*, however quiet. A long step is no fault. The same as long as its files were
       not read to their end.
    4. Its process ran on this machine and is gone, or nothing has come for `CUT_AFTER_NS`: *finished* where the file is closed,
       since handlers that make a file for each window have no summary when they end between two; else *cut*. On an object
       store every file is closed, so that says nothing there: *cut*.
    5. Else *recording*.
    """
    if not evidence.there:
        return "lost", "its file was removed"
    if evidence.ended:
        return "finished", "the recording has ended"
    if evidence.alive:
        return "recording", "its process runs"
    if not evidence.read:
        return "recording", "it has not been read to its end yet"
    gone = evidence.alive is False
    if gone or evidence.quiet_ns > evidence.cut_after_ns:
        if evidence.closed and not evidence.remote:
            return "finished", "its file is complete, and no other came"
        if gone:
            return "cut", "its process is gone"
        return "cut", f"nothing came for {evidence.quiet_ns / 1e9:,.0f} s"
    return "recording", "it was written to lately"


@dataclass(frozen=True, slots=True)
class Step:
    """A training step of a rank.

    Attributes:
        number: The batch, counted through the run.
        start_ns: When it began, ns since the epoch, by the clock of its host.
        duration_ns: How long it took: the time between two calls of ``step``.
    """

    number: int
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class StageTime:
    """How much of the last steps a stage took, on the training thread; what a stage is, see `tracekit.analysis.stages`.

    Attributes:
        name: Of its marker: "backward", or "backward > all_reduce" for a collective inside of it.
        total_ns: In all of these steps together.
        share: Of the time of these steps, 0 to 1 (more, where it reaches beyond their end).
        waiting: It is a collective: there a rank waits for the others.
    """

    name: str
    total_ns: int
    share: float
    waiting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """A rank as of the last look. Times by the clock of the rank's host, but `quiet_ns`.

    Attributes:
        rank: The rank.
        state: See `State`.
        reason: Why that is its state, in words.
        path: The file that it writes, or has written last; empty without one.
        files: How many files there are of it: segments, and those of children and earlier attempts.
        local_rank: Its number on its host.
        world_size: Of how many ranks.
        node: Number of the host.
        host: Name of the host.
        pid: Its process.
        attempt: How often the launcher had restarted it.
        run_id: Name of the run.
        iteration: The training time that was written last; None before there was one.
        epoch: Likewise.
        batch: Likewise: how many batches are done.
        steps_seen: How many steps were read, in all looks together.
        steps: The last of them, at most 64, oldest first.
        median_step_ns: The median of these; None before there was one.
        stages: What the last steps were spent with, longest first.
        staged_ns: How long the steps took that `stages` tells of.
        waiting_ns: How much of them were collectives.
        doing: The slices that are open on its training thread, outermost first, as of its last flush; a long one only, since
            short ones are written when they end.
        lost_events: How many events its files say that they lack.
        unreadable: How many lines of them are no events.
        size_bytes: Of its files.
        skipped_bytes: How much of them was passed over, because they were long before the first look, or grew too fast.
        behind_bytes: How much has not been read yet.
        start_ns: When its recording began, ns since the epoch.
        written_ns: When its file was written last, by the clock of the storage; 0 where that does not tell.
        quiet_ns: How long nothing was seen to grow, by the clock of this machine.
    """

    rank: int
    state: State
    reason: str
    path: str = ""
    files: int = 0
    local_rank: int = 0
    world_size: int = 1
    node: int = 0
    host: str = ""
    pid: int = 0
    attempt: int = 0
    run_id: str = ""
    iteration: int | None = None
    epoch: int | None = None
    batch: int | None = None
    steps_seen: int = 0
    steps: tuple[Step, ...] = ()
    median_step_ns: int | None = None
    stages: tuple[StageTime, ...] = ()
    staged_ns: int = 0
    waiting_ns: int = 0
    doing: tuple[str, ...] = ()
    lost_events: int = 0
    unreadable: int = 0
    size_bytes: int = 0
    skipped_bytes: int = 0
    behind_bytes: int = 0
    start_ns: int = 0
    written_ns: int = 0
    quiet_ns: int = 0

    @property
    def last_step_ns(self) -> int | None:
        """How long the last step took; None before there was one."""
        return self.steps[-1].duration_ns if self.steps else None

    @property
    def own_step_ns(self) -> int | None:
        """The median step without its share of collectives: what the rank takes for itself.

        Ranks that wait for each other all have the step time of the slowest; who is slow is seen where nobody waits.
        """
        typical = self.median_step_ns
        if typical is None or not self.staged_ns:
            return typical
        return round(typical * max(0.0, 1 - self.waiting_ns / self.staged_ns))

    @property
    def unhealthy(self) -> bool:
        """Whether it is cut or lost, or has lost data."""
        return self.state in ("cut", "lost") or bool(self.lost_events or self.unreadable)


@dataclass(frozen=True, slots=True)
class Slowest:
    """The rank that takes longest for itself (see `RankState.own_step_ns`).

    Attributes:
        rank: The rank.
        by_ns: How much longer a step is than the median of the others.
        share: The same as a part of that median.
        stage: The stage in which it takes most longer than the median of the others; empty where no stages are known.
    """

    rank: int
    by_ns: int
    share: float
    stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run as of the last look.

    Attributes:
        run_id: Its name.
        folder: The folder or prefix that all of its files are in.
        ranks: One state for each rank that has or had a file, in order.
        world_size: How many ranks there should be.
        missing: Ranks without any file, the first 1,000.
        missing_count: How many there are.
        paths: All of its files, as they may be given to `merge_traces` and to the analysis.
        start_ns: When the first of its recordings began, ns since the epoch.
        step: The batch that the furthest rank is in; None where nobody tells.
        step_skew: How many batches the last of the recording ranks is behind the first.
        median_step_ns: The median of the ranks' median steps; None without steps.
        slowest: The slowest rank; None where fewer than two have steps.
    """

    run_id: str
    folder: str
    ranks: tuple[RankState, ...]
    world_size: int
    missing: tuple[int, ...]
    missing_count: int
    paths: tuple[str, ...]
    start_ns: int
    step: int | None
    step_skew: int
    median_step_ns: int | None
    slowest: Slowest | None

    @property
    def state(self) -> State:
        """Recording while any rank is; then cut or lost if any rank is; else finished. Of missing ranks it says nothing."""
        states: list[State] = [rank.state for rank in self.ranks]
        for state in ("recording", "cut", "lost"):
            if state in states:
                return state
        return "finished"

    @property
    def lost_events(self) -> int:
        """How many events its ranks say that they lack."""
        return sum(rank.lost_events for rank in self.ranks)

    @property
    def unhealthy(self) -> bool:
        """Whether a rank is cut, lost or missing, or has lost data."""
        return bool(self.missing_count) or any(rank.unhealthy for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment.

    Attributes:
        time_ns: When, ns since the epoch, by the clock of this machine.
        runs: The runs, the newest first.
        notes: What a reader should know beside them, as sentences.
    """

    time_ns: int
    runs: tuple[RunState, ...]
    notes: tuple[str, ...]
