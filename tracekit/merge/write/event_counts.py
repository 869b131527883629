"""Count the events of every input while the output is written, and make the report."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.json.repair import without_final_backslash
from tracekit.formats.merged_head import (
    DROPPED,
    RankClock,
    RecordedFile,
    RecordingLoss,
    losses_of_process,
    stated_losses,
)
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

_HARMLESS: Final = frozenset({"unused_process", "rewritten_metadata", "empty_event", "end_without_begin"})
_UNKNOWN: Final = "unknown"
_VIEWER_LIMIT: Final = f"events after the first {MOST_EVENTS:,}, which only the xplane.pb beside it holds"
_MAX_FRAME_BYTES: Final = 12 << 20
"""Together with the other keys behind the events, no more than `TraceReader` reads there, and little for one machine."""


def is_loss(reason: str) -> bool:
    """Return True if an event dropped for this reason contained data of the run."""
    return reason not in _HARMLESS


class EventCounts:
    """Counts what is written. The output need not be written in the order of the inputs."""

    def __init__(self, items: Sequence[Input]) -> None:
        self.total = UnitResult()
        self.stack_frames = JoinedFrames()
        self.losses: list[RecordingLoss] = []
        self._items = items
        self._read: Counter[str] = Counter()
        self._written: Counter[str] = Counter()
        self._clock_events = 0
        self._events = [0] * len(items)
        self._findings: dict[int, tuple[list[Repair], list[Drop], list[LeftOut]]] = {}
        self._written_twice: list[int] = []

    def take(self, unit: UnitResult) -> None:
        """Record what became of a unit."""
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
            self._written_twice += {rank for item in items for rank in item.ranks}
        self.losses += recording_losses(items, [unit.inputs[number] for number in numbers])

    def _take_input(self, number: int, result: InputResult) -> None:
        path = self._items[number].shown
        self._read.update(result.read)
        self._written.update(result.written)
        self._clock_events += result.clock_events
        self._events[number] = sum(result.read.values())
        self.stack_frames.take(result.stack_frames)
        repaired = [Repair(path, found.kind, found.count, found.offset_bytes, found.detail) for found in result.repairs]
        repaired += [Repair(path, kind, count, None, "") for kind, count in sorted(result.repaired.items())]
        dropped = [Drop(path, one.kind, one.count, one.offset_bytes, is_loss(one.kind)) for one in result.drops]
        dropped += [Drop(path, why, count, None, is_loss(why)) for why, count in sorted(result.dropped.items())]
        left_out = [LeftOut(path, why, count) for why, count in sorted(result.left_out.items())]
        if repaired or dropped or left_out:
            self._findings[number] = repaired, dropped, left_out

    def report(
        self,
        output: str,
        placed: Placement,
        omissions: Sequence[OmissionReport | LeftOut],
        causality: Causality | None,
        collective_events: int,
    ) -> MergeReport:
        """Return the report, when everything is noted."""
        total, found = self.total, [findings for _, findings in sorted(self._findings.items())]
        self._written["M"] += total.added
        ranks = sorted(placed.clocks.keys() | total.titles.keys())
        return MergeReport(
            output=without_secrets(output),
            output_bytes=0,
            base_time_ns=placed.base_ns,
            inputs=list(map(_input_report, self._items, self._events)),
            omitted=[item for item in omissions if isinstance(item, OmissionReport)],
            left_out=[
                item for item in (*omissions, *(one for _, _, own in found for one in own)) if isinstance(item, LeftOut)
            ],
            recording_losses=_in_order(self.losses),
            ranks=[_rank_report(rank, placed.clocks.get(rank), total.titles.get(rank, [])) for rank in ranks],
            events_in=dict(sorted(self._read.items())),
            events_out={phase: count for phase, count in sorted(self._written.items()) if count > 0},
            metadata_added=total.added,
            collective_events_added=collective_events,
            clock_events_added=self._clock_events,
            overlaps_moved=total.moved,
            overlaps_snapped=total.snapped,
            largest_snap_ns=total.largest_snap_ns,
            repaired=[one for own, _, _ in found for one in own],
            dropped=[one for _, own, _ in found for one in own],
            causality=causality,
            written_twice=sorted(self._written_twice),
            warnings=placed.warnings + self.stack_frames.warnings,
        )


class JoinedFrames:
    """Takes the frames of one input after the other, up to 12 MiB of text. Beyond that, a frame may stay without its caller."""

    def __init__(self) -> None:
        self._left_out = 0
        self._frames: dict[str, bytes] = {}
        self._bytes = 0

    def take(self, frames: Mapping[str, bytes]) -> None:
        """Add frames: the JSON text of each by its id, as `tracekit.formats.stack_frames.StackFrames` has them."""
        for name in sorted(frames):
            if name in self._frames:
                continue
            size = len(name) + len(frames[name])
            if self._bytes + size > _MAX_FRAME_BYTES:
                self._left_out += 1
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
    def warnings(self) -> list[str]:
        """Warnings for readers of the merged trace."""
        text = f"{self._left_out:,} stack frames are left out: those of all inputs take more than {_MAX_FRAME_BYTES >> 20} MiB"
        return [f"{text}; the events that name them are there"] if self._left_out else []


def recording_losses(inputs: Sequence[Input], results: Sequence[InputResult]) -> list[RecordingLoss]:
    """Return the losses during recording that the inputs state, in the order of the ranks.

    An earlier merge passes on those of its inputs.
    """
    found: list[RecordingLoss] = []
    processes: dict[tuple[Any, ...], list[int]] = {}
    for number, item in enumerate(inputs):
        if item.kind == "merged":
            found += stated_losses(item.head().header, item.ranks)
        elif item.kind == "xprof" and results[number].read.get("X", 0) >= MOST_EVENTS:
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
    times = item.generation, item.base_ns, item.host
    stated = item.shown, item.kind, item.rank, item.rank_source, item.form
    return InputReport(*stated, *times, events, item.bytes_read, item.header_left_out)


def _rank_report(rank: int, clock: RankClock | None, processes: list[str]) -> RankReport:
    if clock is None:
        return RankReport(rank, _UNKNOWN, processes, _UNKNOWN, aligned=False, offset_ns=0, drift_ppm=0.0, error_ns=None)
    facts = clock.source, clock.aligned, clock.offset_ns, clock.drift_ppm, clock.error_ns
    return RankReport(rank, clock.words, processes, *facts)
