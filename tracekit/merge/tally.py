"""What became of the events of every input, noted while the output is written, and the report that is made of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from tracekit.formats.rank_clock import RankClock
from tracekit.merge.joined_frames import JoinedFrames
from tracekit.merge.losses import recording_losses
from tracekit.merge.report import Drop, InputReport, LeftOut, MergeReport, OmissionReport, RankReport, Repair
from tracekit.storage import without_secrets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.merge.clocks.placement import Placement
    from tracekit.merge.input import Input, Omission
    from tracekit.merge.parts import PartResult
    from tracekit.merge.planning import Plan
    from tracekit.merge.report import Causality

__all__ = ["Tally"]

_UNKNOWN: Final = "unknown"


class Tally:
    """Counts what is written.

    Args:
        items: The inputs, in the order of the output.

    Attributes:
        added: How many names and orders were written for the merged processes and threads.
        collective_events_added: How many events were added between the members of collectives.
        stack_frames: The stack frames that are named.
    """

    def __init__(self, items: Sequence[Input]) -> None:
        self.added = 0
        self.collective_events_added = 0
        self.stack_frames = JoinedFrames()
        self._items = items
        self._written: Counter[str] = Counter()
        # Of each input by number, since the output need not be written in their order.
        self._repaired: dict[int, list[Repair]] = {}
        self._dropped: dict[int, list[Drop]] = {}
        self._left_out: dict[int, list[LeftOut]] = {}

    def take(self, number: int, result: PartResult, added: int = 0) -> None:
        """Note what became of the events of an input, by its number, and how many names were written for it alone."""
        path = self._items[number].scan.path
        self.added += added
        self._written.update(result.written)
        self.stack_frames.take(result.stack_frames)
        if result.repaired:
            self._repaired[number] = [
                Repair(path, kind, count, None, "") for kind, count in sorted(result.repaired.items())
            ]
        if result.dropped:
            self._dropped[number] = [
                Drop(path, reason, count, None, Drop.is_loss(reason))
                for reason, count in sorted(result.dropped.items())
            ]
        if result.left_out:
            self._left_out[number] = [LeftOut(path, why, count) for why, count in sorted(result.left_out.items())]

    def report(
        self,
        output: str,
        placed: Placement,
        plan: Plan,
        omissions: Sequence[Omission],
        causality: Causality | None,
    ) -> MergeReport:
        """Return the report, when everything is noted."""
        events_in: Counter[str] = Counter()
        events_out = Counter({"M": self.added} if self.added else {}) + self._written
        repaired: list[Repair] = []
        dropped: list[Drop] = []
        left_out = [LeftOut(item.path, item.reason, None) for item in omissions if item.requested]
        for number, item in enumerate(self._items):
            path, findings = item.scan.path, item.scan.findings()
            events_in.update(item.scan.phases)
            repaired += [
                Repair(path, found.kind, found.count, found.offset_bytes, found.detail) for found in findings.repairs
            ]
            repaired += self._repaired.get(number, ())
            dropped += [
                Drop(path, found.kind, found.count, found.offset_bytes, Drop.is_loss(found.kind))
                for found in findings.drops
            ]
            dropped += self._dropped.get(number, ())
            left_out += self._left_out.get(number, ())
        ranks = sorted(placed.clocks.keys() | plan.titles.keys())
        return MergeReport(
            output=without_secrets(output),
            output_bytes=0,
            base_time_ns=placed.base_ns,
            inputs=list(map(_input_report, self._items)),
            omitted=[OmissionReport(item.path, item.reason, item.harmless) for item in omissions if not item.requested],
            left_out=left_out,
            recording_losses=recording_losses(self._items),
            ranks=[_rank_report(rank, placed.clocks.get(rank), plan.titles.get(rank, [])) for rank in ranks],
            events_in=dict(sorted(events_in.items())),
            events_out=dict(sorted(events_out.items())),
            metadata_added=self.added,
            collective_events_added=self.collective_events_added,
            overlaps_moved=plan.moved,
            repaired=repaired,
            dropped=dropped,
            causality=causality,
            warnings=placed.warnings + ([self.stack_frames.warning] if self.stack_frames.warning else []),
        )


def _input_report(item: Input) -> InputReport:
    return InputReport(
        path=item.scan.path,
        kind=item.scan.kind,
        rank=item.rank,
        rank_source=item.rank_source,
        form=item.scan.form,
        generation=item.scan.generation,
        base_time_ns=item.scan.base_ns,
        host=item.host,
        events=item.scan.events,
        bytes=item.scan.bytes_read,
        header_left_out=item.scan.header_left_out,
    )


def _rank_report(rank: int, clock: RankClock | None, processes: list[str]) -> RankReport:
    if clock is None:
        clock = RankClock(rank=rank, source=_UNKNOWN, aligned=False, words=_UNKNOWN)
    return RankReport(
        rank, clock.words, processes, clock.source, clock.aligned, clock.offset_ns, clock.drift_ppm, clock.error_ns
    )
