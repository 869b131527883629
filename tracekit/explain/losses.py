"""The losses of a run: while recording, as the traces state them, and while reading them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.explain.results import Result
from tracekit.explain.run import recordings_of
from tracekit.formats.merged_head import CUT, DROPPED, Accounts, RecordedFile, RecordingLoss, losses_of_process
from tracekit.formats.rank_trace import GAP_EVENT, LOST_EVENTS_KEY
from tracekit.structs import astuple

if TYPE_CHECKING:
    from tracekit.explain.run import Run

    Facts = dict[str, Any]


class Loss(Result, frozen=True):
    """Something that a rank lost while it recorded.

    Attributes:
        kind: "dropped" (events are missing), "failed" (a handler, a source or the schedule failed) or "cut" (the recording did
            not end: its process was killed or is still running).
    """

    rank: int  # the rank
    path: str  # the file that states it
    kind: str
    reason: str  # the loss in the words of the file
    count: int | None  # the number of events or failures; null if it is unknown


class ReadingLoss(Result, frozen=True):
    """Parts of a file that could not be read."""

    path: str  # the file
    kind: str  # the kind of damage, a word with underscores
    count: int  # the number of places


class LossReport(Result, frozen=True):
    """The losses of a run."""

    recording: list[Loss]  # losses while recording, as far as the traces state them
    reading: list[ReadingLoss]  # parts that could not be read
    unusable: int  # the number of events with a time or duration that is missing, negative or beyond all bounds
    unfinished: int  # the number of slices that begin and never end, as those that were open when a process was killed
    stated: bool  # true if any trace states its losses; traces of other tools do not

    @property
    def lost_events(self) -> int:
        """The number of events that are known to be missing from the recordings."""
        return sum(loss.count or 0 for loss in self.recording if loss.kind == DROPPED)

    @property
    def cut(self) -> list[int]:
        """The ranks with a recording that did not end: killed, or still running."""
        return sorted({loss.rank for loss in self.recording if loss.kind == CUT})

    @property
    def unreadable(self) -> int:
        """The number of places of the files where something could not be read or used."""
        return sum(loss.count for loss in self.reading) + self.unusable

    @property
    def nothing(self) -> bool:
        """True if nothing is known to be lost."""
        return not (self.recording or self.unreadable or self.unfinished)


def losses_of(run: Run) -> LossReport:
    """Return the losses of a run."""
    found: list[RecordingLoss] = []
    processes: dict[tuple[Any, ...], list[tuple[int, Facts]]] = {}
    for number, facts in enumerate(run.facts):
        account = facts["account"]
        found += [RecordingLoss(**loss) for loss in account["losses"]]
        if not facts["is_merged"] and facts["rank"] is not None and account["metadata"] and not account["is_dump"]:
            known: list[Any] = [recording.process for recording in recordings_of(facts) if recording.known]
            processes.setdefault((facts["rank"], *(known or [facts["path"]])), []).append((number, facts))
    gaps = _gap_events(run) if processes else {}
    for (rank, *_), files in processes.items():
        recorded = []
        for number, facts in files:
            account, start_ns = facts["account"], facts["base_ns"] + (facts["span"][0] or 0)
            accounts = Accounts(account["summary"], account["lost_events"], gaps.get(number, 0))
            recorded.append(RecordedFile(facts["path"], start_ns, account["is_cut"], accounts))
        found += losses_of_process(rank, recorded)
    ordered = sorted(set(found), key=lambda loss: (loss.rank, loss.path, loss.kind, loss.reason, loss.count or 0))
    return LossReport(
        recording=[Loss(*astuple(loss)) for loss in ordered],
        reading=[
            ReadingLoss(facts["path"], kind, count)
            for facts in run.facts
            for kind, count in facts["account"]["damage"].items()
        ],
        unusable=run.unusable,
        unfinished=run.unfinished,
        stated=bool(processes) or any(facts["is_merged"] for facts in run.facts),
    )


def _gap_events(run: Run) -> dict[int, int]:
    """Return the number of events that the gaps of each file lack; arguments are read only if there are gaps."""
    gaps = f"FROM events WHERE phase = 'i' AND name = '{GAP_EVENT}'"
    if not run.database.run(f"SELECT 1 {gaps} LIMIT 1"):
        return {}
    run.database.add_args()
    lost = (
        f"least(coalesce(sum(greatest(0, try((args->>'{LOST_EVENTS_KEY}')::BIGINT))), 0), 9223372036854775807)::BIGINT"
    )
    sql = f"SELECT file, {lost} FROM (SELECT file, id {gaps}) JOIN event_args a USING (file, id) GROUP BY file"  # noqa: S608
    return dict(run.database.run(sql))
