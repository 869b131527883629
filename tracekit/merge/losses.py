"""What was lost before the merge: each rank's own account of it, in its rank traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.rank_trace import DUMP_EVENT, GAP_EVENT, LOSS_EVENT, LOST_EVENTS_KEY, SUMMARY_EVENT
from tracekit.formats.trace_reader import UNSET, decode_or_none
from tracekit.formats.xprof import MOST_EVENTS
from tracekit.merge.identities import identity_of
from tracekit.storage import basename

if TYPE_CHECKING:
    from tracekit.formats.trace_reader import Event
    from tracekit.merge.inputs import Input

__all__ = [
    "ACCOUNTS",
    "CUT",
    "DROPPED",
    "FAILED",
    "GAP_NAME",
    "Accounts",
    "RecordingLoss",
    "for_metadata",
    "recording_losses",
]

ACCOUNTS: Final = frozenset({SUMMARY_EVENT, LOSS_EVENT, DUMP_EVENT})
"""Metadata events that tell what a file lacks."""

DROPPED: Final = "dropped"
FAILED: Final = "failed"
CUT: Final = "cut"

GAP_NAME: Final = f'"{GAP_EVENT}"'.encode()
"""The name of a gap as JSON."""

_UNWRITTEN: Final = "events that could not be written, at least"
_NO_SUMMARY: Final = "the file ends without its summary"
_VIEWER_LIMIT: Final = f"events after the first {MOST_EVENTS:,}, which only the xplane.pb beside it holds"


@dataclass(frozen=True, slots=True)
class RecordingLoss:
    """Something that a rank lost while it recorded.

    Attributes:
        rank: The rank.
        path: The file that tells it.
        kind: `DROPPED` (events are missing), `FAILED` (a handler, a source or the schedule failed) or `CUT` (the recording
            did not end: its process was killed or is still running).
        reason: In the words of the file: what was lost, or who failed.
        count: How many events, or how often; None where nobody knows.
    """

    rank: int
    path: str
    kind: str
    reason: str
    count: int | None


@dataclass(slots=True)
class Accounts:
    """What one file says about itself.

    Attributes:
        summary: ``args`` of its summary, None without one.
        lost_events: How many events it lacks because it could not be written.
        gap_events: The same, from the gaps in it; may include what was lost before the file.
        is_dump: Whether it is a dump of a flight recorder, which has no summary.
    """

    summary: dict[str, Any] | None = None
    lost_events: int = 0
    gap_events: int = 0
    is_dump: bool = False

    def note(self, name: str, args: dict[str, Any]) -> None:
        """Take in one of the metadata events `ACCOUNTS`."""
        if name == SUMMARY_EVENT:
            self.summary = args
        elif name == LOSS_EVENT:
            self.lost_events += _count(args.get(LOST_EVENTS_KEY))
        else:
            self.is_dump = True

    def note_instant(self, event: Event) -> None:
        """Take in an instant, which may be a gap."""
        if event.name is not UNSET and bytes(event.name) == GAP_NAME:
            args = decode_or_none(event.args)
            self.gap_events += _count(args.get(LOST_EVENTS_KEY)) if isinstance(args, dict) else 0


def recording_losses(inputs: list[Input]) -> list[RecordingLoss]:
    """Return what the ranks lost while they recorded, as far as the inputs tell, in the order of the ranks.

    The summary of a recording counts for all of its files. Where it is missing, the files' own counts are the least that was
    lost. An earlier merge passes on what its inputs told.
    """
    found: list[RecordingLoss] = []
    processes: dict[tuple[Any, ...], list[Input]] = {}
    for item in inputs:
        if item.scan.kind == "merged":
            found += _passed_on(item)
        elif item.scan.kind == "xprof" and item.scan.phases["X"] >= MOST_EVENTS:
            found.append(RecordingLoss(item.rank, item.scan.path, DROPPED, _VIEWER_LIMIT, None))
        elif item.scan.kind == "tracekit" and not item.scan.accounts.is_dump:
            processes.setdefault((item.rank, *identity_of(item.identity)), []).append(item)
    for files in processes.values():
        told = [item for item in files if item.scan.accounts.summary is not None]
        for item in told:
            found += _of_summary(item, item.scan.accounts.summary or {})
        if not told:
            found += _of_files(files)
    return sorted(set(found), key=lambda loss: (loss.rank, loss.path, loss.kind, loss.reason, loss.count or 0))


def for_metadata(losses: list[RecordingLoss]) -> list[dict[str, Any]]:
    """Return the losses as the merged trace tells them: with the names of the files, without their folders."""
    return [
        {"rank": loss.rank, "file": basename(loss.path), "kind": loss.kind, "reason": loss.reason, "count": loss.count}
        for loss in losses
    ]


def _of_summary(item: Input, summary: dict[str, Any]) -> list[RecordingLoss]:
    found = []
    for key, kind in (("dropped", DROPPED), ("failures", FAILED)):
        counts = summary.get(key)
        for reason, count in counts.items() if isinstance(counts, dict) else ():
            if _count(count):
                found.append(RecordingLoss(item.rank, item.scan.path, kind, reason, count))
    return found


def _of_files(files: list[Input]) -> list[RecordingLoss]:
    found = []
    for item in files:
        lost = max(item.scan.accounts.lost_events, item.scan.accounts.gap_events)
        if lost:
            found.append(RecordingLoss(item.rank, item.scan.path, DROPPED, _UNWRITTEN, lost))
    last = max(files, key=lambda item: (item.scan.start_ns or 0, item.scan.path))
    # A file that was completed has its closing bracket; only the last one of a recording has a summary.
    if any(repair.kind == "cut_file" for repair in last.scan.repairs):
        found.append(RecordingLoss(last.rank, last.scan.path, CUT, _NO_SUMMARY, None))
    return found


def _passed_on(item: Input) -> list[RecordingLoss]:
    found = []
    own = item.scan.header["tracekit"].get("losses")
    for entry in own if isinstance(own, list) else []:
        if not isinstance(entry, dict):
            continue
        rank, count = entry.get("rank"), entry.get("count")
        file, kind, reason = (str(entry.get(key)) for key in ("file", "kind", "reason"))
        if isinstance(rank, int) and rank in item.ranks and kind in (DROPPED, FAILED, CUT):
            found.append(RecordingLoss(rank, file, kind, reason, _count(count) or None))
    return found


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
