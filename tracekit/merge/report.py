"""What a merge did: for people as a few lines, for machines as JSON (``schemas/merge_report.schema.json``)."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.losses import CUT, FAILED
from tracekit.merge.clocks.words import duration
from tracekit.merge.told import MOST_TOLD_BYTES, MOST_TOLD_KEYS
from tracekit.wording import counted, rank_spans, size_words

if TYPE_CHECKING:
    from tracekit.formats.losses import RecordingLoss

__all__ = ["Causality", "Drop", "InputReport", "LeftOut", "MergeReport", "OmissionReport", "RankReport", "Repair"]

FORMAT_VERSION: Final = 1
_LISTED: Final = 12
_FILE_SAYS: Final = frozenset({"tracekit_metadata", "distributedInfo.rank", "tracekit.rank", "earlier merge"})

REASONS: Final = {
    "no_time": "events without a usable time",
    "time_out_of_range": "events with a time far before all others",
    "end_without_begin": "ends of slices without their begin",
    "empty_event": "empty events",
    "no_phase": "events without a phase",
    "unknown_phase": "events of a phase that the format does not know",
    "flow_without_id": "flow events without an id",
    "counter_without_number": "counter events without a number",
    "unused_process": "declarations of processes without events",
    "rewritten_metadata": "names and orders, written anew for the merged processes",
    "broken_event": "events that cannot be read",
    "cut_event": "events cut off by the end of the file",
    "not_an_event": "places that hold no event",
    "data_after_end": "data after the end of the events",
    "unreadable_header": "keys beside the events that cannot be read",
}
"""Reasons to leave an event out, in words."""

SELECTED: Final = {
    "rank": "events of other ranks",
    "time": "events outside of the time window",
    "step": "events of other training steps",
    "category": "events of other categories",
    "duration": "slices that are too short",
    "name": "events of other names",
    "arrow": "ends of arrows whose slices are left out",
}
"""Reasons for which the selection leaves an event out, in words."""

_HARMLESS: Final = frozenset({"unused_process", "rewritten_metadata", "empty_event", "end_without_begin"})


@dataclass(frozen=True, slots=True)
class InputReport:
    """One input: ``generation`` says how its times are written, ``base_time_ns`` is None when its clock is unknown.

    ``header_left_out`` names the keys beside its events that the merged trace does not keep: their values are long, or they
    are too many.
    """

    path: str
    kind: str
    rank: int
    rank_source: str
    form: str
    generation: str
    base_time_ns: int | None
    host: str | None
    events: int
    bytes: int
    header_left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OmissionReport:
    """A file that is not in the merged trace; ``harmless`` when nothing of the run is missing because of it."""

    path: str
    reason: str
    harmless: bool


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What the selection leaves out of one input; ``count`` is None for an input that was not read."""

    path: str
    reason: str
    count: int | None


@dataclass(frozen=True, slots=True)
class RankReport:
    """A rank: the clock that places it on the timeline, and its processes as the viewer names them.

    Attributes:
        rank: Whose.
        clock: What places it, in words.
        processes: As the viewer names them.
        source, aligned, offset_ns, drift_ppm, error_ns: See `RankClock`.
    """

    rank: int
    clock: str
    processes: list[str]
    source: str
    aligned: bool
    offset_ns: int
    drift_ppm: float
    error_ns: int | None


@dataclass(frozen=True, slots=True)
class Repair:
    """Something that was repaired without loss; ``offset_bytes`` is where it was met first, None when it is not known."""

    path: str
    kind: str
    count: int
    offset_bytes: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Events that were left out; ``lost`` when they carried something of the run."""

    path: str
    reason: str
    count: int
    offset_bytes: int | None
    lost: bool

    @staticmethod
    def is_loss(reason: str) -> bool:
        """Tell whether an event left out for this reason carried something of the run."""
        return reason not in _HARMLESS


@dataclass(frozen=True, slots=True)
class Causality:
    """Whether the order of what happened on several ranks can be true on the merged timeline.

    Nobody leaves a collective that synchronises before all have come, and no receive ends before its send has begun.

    Attributes:
        checked: How many collectives and messages were looked at.
        violations: How many of them are out of order by more than the clocks' errors.
        worst_ns: By how much more, at most.
    """

    checked: int
    violations: int
    worst_ns: int

    def words(self) -> str:
        """Return it in words."""
        if not self.violations:
            return f"order of {counted(self.checked, 'collective')}: true on all ranks"
        return (
            f"{self.violations:,} of {counted(self.checked, 'collective')} end before all members have come, by up to "
            f"{duration(self.worst_ns)} more than the clocks' errors: a clock is wrong"
        )


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge read, wrote, repaired and left out.

    ``events_out`` = ``events_in`` + ``metadata_added`` + ``collective_events_added`` - dropped - left out.

    Attributes:
        output: The merged trace.
        output_bytes: Its size.
        base_time_ns: What its times are relative to, ns since the epoch; 0 when no input tells its clock.
        inputs: What was merged, in the order of the output.
        omitted: What was found and not merged.
        left_out: What was left out on request.
        recording_losses: What the ranks lost before, while they recorded, as far as the inputs tell.
        ranks: The ranks of the merged trace.
        events_in: Events that were read, by phase.
        events_out: Events that were written, by phase.
        metadata_added: Names and orders written for the merged processes and threads; part of ``events_out``.
        collective_events_added: Arrows between members of collectives and their counters; part of ``events_out``.
        overlaps_moved: Slices moved to a track of their own because they overlap others without nesting, those included that
            the selection leaves out.
        repaired: What was repaired.
        dropped: What was left out, ``count`` events each (for what could not be read: places in the file).
        causality: What came of checking the order of collectives; None where none was read.
        warnings: What a reader of the merged trace must know, such as a clock that had to be assumed.
        rewritten: Of an archive: the inputs that are not in it as they are, and why. None of other outputs.
    """

    output: str
    output_bytes: int
    base_time_ns: int
    inputs: list[InputReport]
    omitted: list[OmissionReport]
    left_out: list[LeftOut]
    recording_losses: list[RecordingLoss]
    ranks: list[RankReport]
    events_in: dict[str, int]
    events_out: dict[str, int]
    metadata_added: int
    collective_events_added: int
    overlaps_moved: int
    repaired: list[Repair]
    dropped: list[Drop]
    causality: Causality | None
    warnings: list[str]
    rewritten: dict[str, str] | None = None

    @property
    def complete(self) -> bool:
        """Whether everything that was found is in the merged trace, but for what was left out on request."""
        return not any(drop.lost for drop in self.dropped) and all(item.harmless for item in self.omitted)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {"format_version": FORMAT_VERSION, "complete": self.complete, **asdict(self)}

    def lines(self, action: str = "merged") -> list[str]:
        """Return the report as lines for a terminal.

        Args:
            action: What the command did with the files: "merged", "converted" or "trimmed".
        """
        folder = _common_folder([item.path for item in self.inputs])
        what = f"{counted(len(self.inputs), 'file')} of {counted(len(self.ranks), 'rank')}"
        counts = counted(sum(self.events_in.values()), "event")
        whole = ", nothing lost" if self.complete else ""
        if whole and self.recording_losses:
            whole += " in the merge" if action == "merged" else " by this command"
        if action == "trimmed":
            counts = f"kept {_happened(self.events_out):,} of {counted(_happened(self.events_in), 'event')}"
        lines = [f"{action} {what}{f' from {folder}' if folder else ''}: {counts}{whole}"]
        lines += _shorten([f"  {_input(item, folder)}" for item in self.inputs])
        clocks: dict[str, list[int]] = {}
        # A single file whose clock is unknown has nothing to be aligned with.
        alone = len(self.inputs) == len(self.ranks) == 1 and self.ranks[0].source == "unknown"
        for rank in [] if alone else self.ranks:
            clock = rank.clock if rank.aligned else f"NOT ALIGNED: {rank.clock}"
            clocks.setdefault(clock, []).append(rank.rank)
        lines += _shorten([f"clock of {rank_spans(members)}: {clock}" for clock, members in clocks.items()])
        if self.causality is not None and self.causality.checked:
            lines.append(f"{'WRONG ORDER: ' if self.causality.violations else ''}{self.causality.words()}")
        if self.collective_events_added:
            lines.append(f"added {counted(self.collective_events_added, 'event')} between members of collectives")
        if self.overlaps_moved:
            lines.append(f"{counted(self.overlaps_moved, 'overlapping slice')} moved to tracks named (overlap)")
        lines += _shorten(
            [
                f"repaired: {repair.kind.replace('_', ' ')} {_times(repair.count)} in {repair.path}"
                + ("" if repair.offset_bytes is None else f", first at byte {repair.offset_bytes}")
                for repair in self.repaired
            ]
        )
        harmless: dict[str, int] = {}
        lost = []
        for drop in self.dropped:
            words = REASONS.get(drop.reason, drop.reason)
            if drop.lost:
                where = "" if drop.offset_bytes is None else f", first at byte {drop.offset_bytes}"
                lost.append(f"LOST: {drop.count:,} {words} in {drop.path}{where}")
            elif drop.reason != "rewritten_metadata":
                harmless[words] = harmless.get(words, 0) + drop.count
        lines += [f"left out: {count:,} {words}" for words, count in harmless.items()]
        untold = Counter(key for item in self.inputs for key in item.header_left_out)
        lines += _shorten(
            [
                f"left out: {key} beside the events of {counted(count, 'input')}: "
                f"longer than {MOST_TOLD_BYTES:,} bytes, or behind {MOST_TOLD_KEYS} other keys"
                for key, count in untold.items()
            ]
        )
        lines += _shorten(lost)
        lines += _shorten(_recorded(self.recording_losses))
        lines += _left_out(self.left_out)
        if self.rewritten is not None:
            untouched = len(self.inputs) - len(self.rewritten)
            lines.append(f"archive: {counted(untouched, 'input')} as they are, {len(self.rewritten):,} rewritten")
            lines += _shorten([f"  rewritten: {path}: {why}" for path, why in self.rewritten.items()])
        lines += _shorten(
            [f"{'left out' if item.harmless else 'NOT MERGED'}: {item.path}: {item.reason}" for item in self.omitted]
        )
        lines += [f"warning: {warning}" for warning in self.warnings]
        lines.append(f"wrote {self.output} ({size_words(self.output_bytes)})")
        lines.append(f"next: open https://ui.perfetto.dev and drag {self.output} onto it")
        return lines


def _happened(counts: dict[str, int]) -> int:
    """Return the number of events without metadata."""
    return sum(count for phase, count in counts.items() if phase != "M")


def _common_folder(paths: list[str]) -> str:
    """Return the folder that all paths lie in themselves, not below it, ending with a slash; empty where there is none."""
    first, *others = [path.rpartition("/")[0] for path in paths]
    return f"{first}/" if first and all(other == first for other in others) else ""


def _input(item: InputReport, folder: str) -> str:
    """Return an input in words; what is as usual (a rank that the file itself tells) is not said."""
    line = f"rank {item.rank}: {item.path.removeprefix(folder)}, {item.kind}, {counted(item.events, 'event')}"
    if item.rank_source not in _FILE_SAYS:
        line += f" (rank: {item.rank_source})"
    return line


def _recorded(losses: list[RecordingLoss]) -> list[str]:
    """Return what was lost while recording, in words."""
    lines = []
    cut: dict[str, list[int]] = {}
    for loss in losses:
        if loss.kind == CUT:
            cut.setdefault(loss.reason, []).append(loss.rank)
        elif loss.kind == FAILED:
            lines.append(
                f"failed while recording: rank {loss.rank}: {loss.reason} {_times(loss.count or 1)} ({loss.path})"
            )
        else:
            lines.append(f"lost while recording: rank {loss.rank}: {loss.count or 0:,} {loss.reason} ({loss.path})")
    for reason, ranks in cut.items():
        paths = [loss.path for loss in losses if loss.kind == CUT and loss.reason == reason]
        where = f" ({paths[0]})" if len(paths) == 1 else ""
        lines.append(f"cut while recording: {rank_spans(ranks)}: {reason}; killed, or still running{where}")
    return lines


def _left_out(items: list[LeftOut]) -> list[str]:
    """Return what was left out on request, by reason."""
    counts: dict[str, int] = {}
    for item in items:
        counts[item.reason] = counts.get(item.reason, 0) + (item.count or 0)
    unread = sum(item.count is None for item in items)
    lines = [f"{counted(unread, 'file')} of other ranks"] if unread else []
    lines += [f"{count:,} {SELECTED[reason]}" for reason, count in counts.items() if count]
    return [f"left out on request: {line}" for line in lines]


def _shorten(lines: list[str]) -> list[str]:
    """Keep a terminal readable: the first dozen lines of a kind, then how many more there are (--json has them all)."""
    if len(lines) <= _LISTED:
        return lines
    return [*lines[:_LISTED], f"  ... and {len(lines) - _LISTED} more (--json lists all)"]


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
