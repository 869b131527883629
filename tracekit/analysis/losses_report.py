"""What was lost: while recording, as the traces tell, and while reading them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.formats.losses import CUT, DROPPED, RecordedFile, RecordingLoss, losses_of_process

if TYPE_CHECKING:
    from tracekit.analysis.reading import Reading, TraceFile

__all__ = ["LossReport", "ReadingLoss", "losses_of"]


@dataclass(frozen=True, slots=True)
class ReadingLoss:
    """Something of a file that could not be read.

    Attributes:
        path: The file.
        kind: What it was, a word with underscores.
        count: How often.
    """

    path: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class LossReport:
    """What was lost.

    Attributes:
        recording: What ranks lost while they recorded, as far as the traces tell.
        reading: What could not be read.
        unusable: Slices whose time or duration is missing, negative or beyond all bounds.
        unfinished: Slices that begin and never end, as those that were open when a process was killed.
        refused: Slices on more tracks than are read.
        counters_left_out: Values of counters that are no finite numbers, or of more counters than are kept.
        told: Whether any trace tells what its recording lost; traces of other tools do not.
    """

    recording: list[RecordingLoss]
    reading: list[ReadingLoss]
    unusable: int
    unfinished: int
    refused: int
    counters_left_out: int
    told: bool

    @property
    def lost_events(self) -> int:
        """How many events are known to be missing from the recordings."""
        return sum(loss.count or 0 for loss in self.recording if loss.kind == DROPPED)

    @property
    def cut(self) -> list[int]:
        """The ranks whose recording did not end: killed, or still running."""
        return sorted({loss.rank for loss in self.recording if loss.kind == CUT})

    @property
    def unreadable(self) -> int:
        """At how many places of the files something could not be read or used."""
        return sum(loss.count for loss in self.reading) + self.unusable + self.refused

    @property
    def nothing(self) -> bool:
        """Whether nothing is known to be lost."""
        return not (self.recording or self.unreadable or self.unfinished or self.counters_left_out)


def losses_of(reading: Reading) -> LossReport:
    """Return what was lost of what was read."""
    found: list[RecordingLoss] = []
    processes: dict[tuple[Any, ...], list[TraceFile]] = {}
    for file in reading.files:
        found += file.account.losses
        if not file.merged and file.rank is not None and file.account.metadata and not file.account.accounts.is_dump:
            known: list[Any] = [recording.process for recording in file.recordings if recording.known]
            processes.setdefault((file.rank, *(known or [file.path])), []).append(file)
    for (rank, *_), files in processes.items():
        found += losses_of_process(
            rank,
            [
                RecordedFile(
                    file.path, file.base_ns + (file.account.start_ns or 0), file.account.cut, file.account.accounts
                )
                for file in files
            ],
        )
    return LossReport(
        recording=sorted(set(found), key=lambda loss: (loss.rank, loss.path, loss.kind, loss.reason, loss.count or 0)),
        reading=[
            ReadingLoss(file.path, kind, count) for file in reading.files for kind, count in file.account.damage.items()
        ],
        unusable=reading.unusable,
        unfinished=reading.unfinished,
        refused=reading.refused,
        counters_left_out=sum(file.counters.left_out for file in reading.files if file.counters is not None),
        told=bool(processes) or any(file.merged for file in reading.files),
    )
