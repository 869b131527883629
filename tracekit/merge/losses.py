"""What was lost before the merge, as the inputs tell (`tracekit.formats.losses`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.losses import DROPPED, RecordedFile, RecordingLoss, losses_of_process, stated_losses
from tracekit.formats.xprof import MOST_EVENTS
from tracekit.merge.identities import identity_of
from tracekit.storage import basename

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.merge.input import Input
    from tracekit.merge.kept_scan import Findings

__all__ = ["for_metadata", "recording_losses"]

_VIEWER_LIMIT: Final = f"events after the first {MOST_EVENTS:,}, which only the xplane.pb beside it holds"


def recording_losses(inputs: Sequence[Input]) -> list[RecordingLoss]:
    """Return what the ranks lost while they recorded, as far as the inputs tell, in the order of the ranks.

    An earlier merge passes on what its inputs told.
    """
    found: list[RecordingLoss] = []
    processes: dict[tuple[Any, ...], list[Input]] = {}
    for item in inputs:
        if item.scan.kind == "merged":
            found += stated_losses(item.scan.head().header, item.ranks)
        elif item.scan.kind == "xprof" and item.scan.phases["X"] >= MOST_EVENTS:
            found.append(RecordingLoss(item.rank, item.scan.path, DROPPED, _VIEWER_LIMIT, None))
        elif item.scan.kind == "tracekit":
            processes.setdefault((item.rank, *identity_of(item.scan.identity)), []).append(item)
    for files in processes.values():
        accounts = [(item, item.scan.findings()) for item in files]
        own = [_recorded(item, told) for item, told in accounts if not told.accounts.is_dump]
        if own:
            found += losses_of_process(files[0].rank, own)
    return sorted(set(found), key=lambda loss: (loss.rank, loss.path, loss.kind, loss.reason, loss.count or 0))


def for_metadata(losses: list[RecordingLoss]) -> list[dict[str, Any]]:
    """Return the losses as the merged trace tells them: with the names of the files, without their folders."""
    return [
        {"rank": loss.rank, "file": basename(loss.path), "kind": loss.kind, "reason": loss.reason, "count": loss.count}
        for loss in losses
    ]


def _recorded(item: Input, found: Findings) -> RecordedFile:
    cut = any(repair.kind == "cut_file" for repair in found.repairs)
    return RecordedFile(item.scan.path, item.scan.start_ns or 0, cut, found.accounts)
