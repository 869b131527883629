"""Count the events of every input while the output is written, and make the report."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.json.repair import without_final_backslash
from tracekit.formats.losses import DROPPED, RecordedFile, RecordingLoss, losses_of_process, stated_losses
from tracekit.formats.rank_clock import RankClock
from tracekit.formats.xprof import MOST_EVENTS
from tracekit.merge.plan.plan import InputResult, UnitResult
from tracekit.merge.report import Drop, InputReport, LeftOut, MergeReport, OmissionReport, RankReport, Repair
from tracekit.storage import basename, without_secrets
from tracekit.traces.process_identity import identity_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracekit.merge.align.placement import Placement
    from tracekit.merge.report import Causality
    from tracekit.merge.scan.input import Input

_UNKNOWN: Final = "unknown"
_VIEWER_LIMIT: Final = f"events after the first {MOST_EVENTS:,}, which only the xplane.pb beside it holds"
_MAX_FRAME_BYTES: Final = 12 << 20
"""Together with the other keys behind the events, no more than `TraceReader` reads there, and little for one machine."""


class EventCounts:
    """Counts what is written."""

    def __init__(self, items: Sequence[Input]) -> None:
        self.total = UnitResult()
        self.collective_events_added = 0
        self.stack_frames = JoinedFrames()
        self.losses: list[RecordingLoss] = []
        self.written_twice: list[int] = []
        self._items = items
        self._all = InputResult()
        self._events: dict[int, int] = {}
        # By number of the input: the output need not be written in their order.
        self._repaired: dict[int, list[Repair]] = {}
        self._dropped: dict[int, list[Drop]] = {}
        self._left_out: dict[int, list[LeftOut]] = {}

    def take(self, unit: UnitResult) -> None:
        """Note what became of a unit."""
        total = self.total
        total.added += unit.added
        total.moved += unit.moved
        total.snapped += unit.snapped
        total.largest_snap_ns = max(total.largest_snap_ns, unit.largest_snap_ns)
        total.titles.update(unit.titles)
        numbers = sorted(unit.inputs)
        for number in numbers:  # the frames that do not fit are the same ones in any order
            self._take_input(number, unit.inputs[number])
        items = [self._items[number] for number in numbers]
        if unit.twice:
            self.written_twice += {rank for item in items for rank in item.ranks}
        self.losses += recording_losses(items, [unit.inputs[number] for number in numbers])

    def _take_input(self, number: int, result: InputResult) -> None:
        path = self._items[number].shown
        self._all.read.update(result.read)
        self._all.written.update(result.written)
        self._events[number] = result.read.total()
        self._all.clock_events += result.clock_events
        self.stack_frames.take(result.stack_frames)
        repaired = [Repair(path, found.kind, found.count, found.offset_bytes, found.detail) for found in result.repairs]
        repaired += [Repair(path, kind, count, None, "") for kind, count in sorted(result.repaired.items())]
        if repaired:
            self._repaired[number] = repaired
        dropped = [
            Drop(path, found.kind, found.count, found.offset_bytes, Drop.is_loss(found.kind)) for found in result.drops
        ]
        dropped += [
            Drop(path, reason, count, None, Drop.is_loss(reason)) for reason, count in sorted(result.dropped.items())
        ]
        if dropped:
            self._dropped[number] = dropped
        if result.left_out:
            self._left_out[number] = [LeftOut(path, why, count) for why, count in sorted(result.left_out.items())]

    def report(
        self, output: str, placed: Placement, omissions: Sequence[OmissionReport | LeftOut], causality: Causality | None
    ) -> MergeReport:
        """Return the report, when everything is noted."""
        total = self.total
        events_out = Counter({"M": total.added} if total.added else {}) + self._all.written
        numbers = range(len(self._items))
        left_out = [item for item in omissions if isinstance(item, LeftOut)]
        ranks = sorted(placed.clocks.keys() | total.titles.keys())
        return MergeReport(
            output=without_secrets(output),
            output_bytes=0,
            base_time_ns=placed.base_ns,
            inputs=[_input_report(item, self._events.get(number, 0)) for number, item in enumerate(self._items)],
            omitted=[item for item in omissions if isinstance(item, OmissionReport)],
            left_out=left_out + [found for number in numbers for found in self._left_out.get(number, ())],
            recording_losses=_in_order(self.losses),
            ranks=[_rank_report(rank, placed.clocks.get(rank), total.titles.get(rank, [])) for rank in ranks],
            events_in=dict(sorted(self._all.read.items())),
            events_out=dict(sorted(events_out.items())),
            metadata_added=total.added,
            collective_events_added=self.collective_events_added,
            clock_events_added=self._all.clock_events,
            overlaps_moved=total.moved,
            overlaps_snapped=total.snapped,
            largest_snap_ns=total.largest_snap_ns,
            repaired=[found for number in numbers for found in self._repaired.get(number, ())],
            dropped=[found for number in numbers for found in self._dropped.get(number, ())],
            causality=causality,
            written_twice=sorted(self.written_twice),
            warnings=placed.warnings + ([self.stack_frames.warning] if self.stack_frames.warning else []),
        )


class JoinedFrames:
    """Takes the frames of one input after the other, up to 12 MiB of text. Beyond that, a frame may stay without its caller."""

    def __init__(self) -> None:
        self.left_out = 0
        self._frames: dict[str, bytes] = {}
        self._bytes = 0

    def take(self, frames: Mapping[str, bytes]) -> None:
        """Take in frames: the JSON text of each by its id, as `tracekit.formats.stack_frames.StackFrames` has them."""
        for name in sorted(frames):
            if name in self._frames:
                continue
            size = len(name) + len(frames[name])
            if self._bytes + size > _MAX_FRAME_BYTES:
                self.left_out += 1
                continue
            self._frames[name] = frames[name]
            self._bytes += size

    def text(self) -> bytes:
        """Return the JSON object of all frames, in the order of their ids; empty without frames."""
        if not self._frames:
            return b""
        found = b",\n".join(b'"%b":%b' % (name.encode(), self._frames[name]) for name in sorted(self._frames))
        return b"{\n%b\n}" % without_final_backslash(found)

    @property
    def warning(self) -> str | None:
        """A warning for readers of the merged trace, or None."""
        if not self.left_out:
            return None
        return (
            f"{self.left_out:,} stack frames are left out: those of all inputs take more than {_MAX_FRAME_BYTES >> 20} MiB; "
            "the events that name them are there"
        )


def recording_losses(inputs: Sequence[Input], results: Sequence[InputResult]) -> list[RecordingLoss]:
    """Return the losses during recording that the inputs state, in the order of the ranks.

    An earlier merge passes on those of its inputs.
    """
    found: list[RecordingLoss] = []
    processes: dict[tuple[Any, ...], list[int]] = {}
    for number, item in enumerate(inputs):
        if item.kind == "merged":
            found += stated_losses(item.head().header, item.ranks)
        elif item.kind == "xprof" and results[number].read["X"] >= MOST_EVENTS:
            found.append(RecordingLoss(item.rank, item.shown, DROPPED, _VIEWER_LIMIT, None))
        elif item.kind == "tracekit" and not results[number].accounts.is_dump:
            processes.setdefault((item.rank, *identity_of(item.identity)), []).append(number)
    for numbers in processes.values():
        own = [_recorded(inputs[number], results[number]) for number in numbers]
        found += losses_of_process(inputs[numbers[0]].rank, own)
    return _in_order(found)


def _in_order(losses: Iterable[RecordingLoss]) -> list[RecordingLoss]:
    return sorted(set(losses), key=lambda loss: (loss.rank, loss.path, loss.kind, loss.reason, loss.count or 0))


def losses_as_json(losses: Iterable[RecordingLoss]) -> list[dict[str, Any]]:
    """Return losses in the order of the ranks as the merged trace states them: with the names of files, without folders."""
    return [
        {"rank": loss.rank, "file": basename(loss.path), "kind": loss.kind, "reason": loss.reason, "count": loss.count}
        for loss in _in_order(losses)
    ]


def _recorded(item: Input, found: InputResult) -> RecordedFile:
    cut = any(repair.kind == "cut_file" for repair in found.repairs)
    return RecordedFile(item.shown, item.start_ns or 0, cut, found.accounts)


def _input_report(item: Input, events: int) -> InputReport:
    return InputReport(
        path=item.shown,
        kind=item.kind,
        rank=item.rank,
        rank_source=item.rank_source,
        form=item.form,
        generation=item.generation,
        base_time_ns=item.base_ns,
        host=item.host,
        events=events,
        bytes=item.bytes_read,
        header_left_out=item.header_left_out,
    )


def _rank_report(rank: int, clock: RankClock | None, processes: list[str]) -> RankReport:
    if clock is None:
        clock = RankClock(rank=rank, source=_UNKNOWN, aligned=False, words=_UNKNOWN)
    return RankReport(
        rank, clock.words, processes, clock.source, clock.aligned, clock.offset_ns, clock.drift_ppm, clock.error_ns
    )
