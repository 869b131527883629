"""The losses of a rank during its recording, as stated in rank traces and in merges of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.merged_head import MERGED_KEY, TOTALS_KEY
from tracekit.formats.rank_trace import DUMP_EVENT, GAP_EVENT, LOSS_EVENT, LOST_EVENTS_KEY, SUMMARY_EVENT
from tracekit.formats.trace_event import UNSET, decode_dict, decode_or_none

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tracekit.formats.trace_event import Event

ACCOUNTS: Final = frozenset({SUMMARY_EVENT, LOSS_EVENT, DUMP_EVENT})
"""Metadata events about the losses of a file."""

DROPPED: Final = "dropped"
FAILED: Final = "failed"
CUT: Final = "cut"

GAP_NAME: Final = f'"{GAP_EVENT}"'.encode()
"""The name of a gap as JSON."""

_UNWRITTEN: Final = "events that could not be written, at least"
_NO_SUMMARY: Final = "the file ends without its summary"


@dataclass(frozen=True, slots=True)
class RecordingLoss:
    """A loss of a rank during its recording.

    Attributes:
        path: The file that states the loss.
        kind: `DROPPED` (events are missing), `FAILED` (a handler, a source or the schedule failed) or `CUT` (the recording
            did not end: its process was killed or is still running).
        reason: The loss or failure in the words of the file.
        count: Number of events or failures, or None if unknown.
    """

    rank: int
    path: str
    kind: str
    reason: str
    count: int | None


@dataclass(slots=True)
class Accounts:
    """The statements of one file about its losses.

    Attributes:
        summary: ``args`` of its summary, or None without one.
        lost_events: Number of events that are missing because the file could not be written.
        gap_events: The same number from the gaps in the file. May include losses before the file.
        is_dump: True for a dump of a flight recorder, which has no summary.
    """

    summary: dict[str, Any] | None = None
    lost_events: int = 0
    gap_events: int = 0
    is_dump: bool = False

    def note(self, name: str, args: dict[str, Any]) -> None:
        """Add one of the metadata events `ACCOUNTS`."""
        if name == SUMMARY_EVENT:
            self.summary = args
        elif name == LOSS_EVENT:
            self.lost_events += _count(args.get(LOST_EVENTS_KEY))
        else:
            self.is_dump = True

    def take(self, run: Sequence[Event]) -> None:
        """Add the loss statements in a run of events."""
        for event in run:
            if event.ph == "i":
                self.note_instant(event)
            elif event.ph == "M":
                name = decode_or_none(event.name)
                if isinstance(name, str) and name in ACCOUNTS and isinstance(args := decode_or_none(event.args), dict):
                    self.note(name, args)

    def note_instant(self, event: Event) -> None:
        """Add an instant if it is a gap."""
        if event.name is not UNSET and bytes(event.name) == GAP_NAME:
            self.gap_events += _count(decode_dict(event.args).get(LOST_EVENTS_KEY))


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """A file of a recording.

    Attributes:
        start_ns: Time of its first event; 0 without events.
        cut: True if the closing bracket is missing.
    """

    path: str
    start_ns: int
    cut: bool
    accounts: Accounts


def losses_of_process(rank: int, files: Sequence[RecordedFile]) -> list[RecordingLoss]:
    """Return the losses of a process during its recording, as its files state them.

    The summary of a recording covers all of its files. Without a summary, the counts in the files are a lower bound. Do
    not pass dumps of a flight recorder: they are not recordings.
    """
    summaries = [(file.path, file.accounts.summary) for file in files if file.accounts.summary is not None]
    if summaries:
        return [
            RecordingLoss(rank, path, kind, reason, count)
            for path, summary in summaries
            for key, kind in (("dropped", DROPPED), ("failures", FAILED))
            if isinstance(counts := summary.get(key), dict)
            for reason, count in counts.items()
            if _count(count)
        ]
    found = []
    for file in files:
        lost = max(file.accounts.lost_events, file.accounts.gap_events)
        if lost:
            found.append(RecordingLoss(rank, file.path, DROPPED, _UNWRITTEN, lost))
    last = max(files, key=lambda file: (file.start_ns, file.path))
    # A complete file has its closing bracket. Only the last file of a recording has a summary.
    if last.cut:
        found.append(RecordingLoss(rank, last.path, CUT, _NO_SUMMARY, None))
    return found


def stated_losses(header: dict[str, Any], ranks: Collection[int]) -> list[RecordingLoss]:
    """Return the losses of the given ranks that a merged trace states."""
    found = []
    totals = header.get(TOTALS_KEY, header[MERGED_KEY])  # before format version 2, the totals were in the head
    own = totals.get("losses") if isinstance(totals, dict) else None
    for entry in own if isinstance(own, list) else []:
        if not isinstance(entry, dict):
            continue
        rank, count = entry.get("rank"), entry.get("count")
        file, kind, reason = (str(entry.get(key)) for key in ("file", "kind", "reason"))
        if isinstance(rank, int) and rank in ranks and kind in (DROPPED, FAILED, CUT):
            found.append(RecordingLoss(rank, file, kind, reason, _count(count) or None))
    return found


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
