"""The result of a merge: for people as a few lines, for machines as JSON (``schemas/merge_report.schema.json``)."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.losses import CUT, FAILED
from tracekit.formats.merged_head import MAX_KEYS, MAX_VALUE_BYTES
from tracekit.markup import html_lines
from tracekit.merge.align.clock_descriptions import duration
from tracekit.wording import counted, rank_spans, size_words

if TYPE_CHECKING:
    from collections.abc import Iterator

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

    ``header_left_out`` lists the header keys that the merged trace does not keep, because their values are long or
    there are too many keys.
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
    """The events that the selection leaves out of one input; ``count`` is None for an input that was not read."""

    path: str
    reason: str
    count: int | None


@dataclass(frozen=True, slots=True)
class RankReport:
    """A rank: the clock that places it on the timeline, and its processes as the viewer names them.

    Attributes:
        rank: Whose.
        clock: The evidence for its clock, in words.
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
    """Check that the order of events of several ranks can be true on the merged timeline.

    Nobody leaves a collective that synchronises before all have come, and no receive ends before its send has begun.

    Attributes:
        checked: The number of collectives and messages that were checked.
        violations: The number of them that are out of order by more than the clocks' errors.
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
    """The counts and findings of a merge.

    ``events_out`` = ``events_in`` + ``metadata_added`` + ``collective_events_added`` + ``clock_events_added`` - dropped -
    left out.

    Attributes:
        output: The merged trace.
        output_bytes: Its size.
        base_time_ns: The base of its times, ns since the epoch; 0 if no input states its clock.
        inputs: The merged files, in the order of the output.
        omitted: The files that were found and not merged.
        left_out: The events left out on request.
        recording_losses: The losses during recording that the inputs state.
        ranks: The ranks of the merged trace.
        events_in: Events that were read, by phase.
        events_out: Events that were written, by phase.
        metadata_added: Names and orders written for the merged processes and threads; part of ``events_out``.
        collective_events_added: Arrows between members of collectives and their counters; part of ``events_out``.
        clock_events_added: Instants that show the clock of each rank; part of ``events_out``.
        overlaps_moved: Slices moved to another track because they overlap others without nesting, those included that
            the selection leaves out.
        overlaps_snapped: Slices shortened because they overlap the next one of a GPU stream by little.
        largest_snap_ns: The largest of these changes, ns.
        repaired: The repairs.
        dropped: The events left out, ``count`` each (for unreadable parts: places in the file).
        causality: The check of the order of collectives; None if none was read.
        warnings: Sentences for readers of the merged trace, such as a clock that had to be assumed.
        written_twice: The ranks that were rewritten twice: slices overlap, and the output cannot be patched.
        rewritten: The inputs that an archive does not hold as they are, and why. None for other outputs.
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
    clock_events_added: int
    overlaps_moved: int
    overlaps_snapped: int
    largest_snap_ns: int
    repaired: list[Repair]
    dropped: list[Drop]
    causality: Causality | None
    warnings: list[str]
    written_twice: list[int]
    rewritten: dict[str, str] | None = None

    @property
    def complete(self) -> bool:
        """True if the merged trace holds every event found, except events left out on request."""
        return not any(drop.lost for drop in self.dropped) and all(item.harmless for item in self.omitted)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {"format_version": FORMAT_VERSION, "complete": self.complete, **asdict(self)}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return html_lines(self.lines())

    def lines(self, action: str = "merged", *, verbose: bool = False) -> list[str]:
        """Return the report as lines for a terminal.

        Args:
            action: The verb for the result: "merged", "converted" or "trimmed".
            verbose: True to say which ranks were written twice.
        """
        lines = [line for section in self._sections(action, verbose=verbose) for line in _shorten(section)]
        lines += [f"warning: {warning}" for warning in self.warnings]
        lines.append(f"wrote {self.output} ({size_words(self.output_bytes)})")
        lines.append(f"next: open https://ui.perfetto.dev and drag {self.output} onto it")
        return lines

    def _sections(self, action: str, *, verbose: bool) -> Iterator[list[str]]:
        """Yield the findings, those of one kind together."""
        folder = _common_folder([item.path for item in self.inputs])
        yield [self._headline(action, folder)]
        yield [f"  {_input(item, folder)}" for item in self.inputs]
        yield _clocks(self.ranks, len(self.inputs))
        if self.causality is not None and self.causality.checked:
            yield [f"{'WRONG ORDER: ' if self.causality.violations else ''}{self.causality.words()}"]
        if self.collective_events_added:
            yield [f"added {counted(self.collective_events_added, 'event')} between members of collectives"]
        if self.overlaps_moved:
            yield [f"{counted(self.overlaps_moved, 'overlapping slice')} moved to tracks named (overlap)"]
        if self.overlaps_snapped:
            slices = counted(self.overlaps_snapped, "overlapping slice")
            yield [f"{slices} of GPU streams shortened, by {self.largest_snap_ns / 1000:g} µs at most"]
        if verbose and self.written_twice:
            yield [f"written twice: {rank_spans(self.written_twice)}: slices overlap, and {_unpatchable(self.output)}"]
        yield [
            f"repaired: {repair.kind.replace('_', ' ')} {_times(repair.count)} in {repair.path}{_first(repair)}"
            for repair in self.repaired
        ]
        harmless: Counter[str] = Counter()
        for drop in self.dropped:
            if not drop.lost and drop.reason != "rewritten_metadata":
                harmless[REASONS.get(drop.reason, drop.reason)] += drop.count
        yield [f"left out: {count:,} {words}" for words, count in harmless.items()]
        untold = Counter(key for item in self.inputs for key in item.header_left_out)
        yield [
            f"left out: {key} beside the events of {counted(count, 'input')}: "
            f"longer than {MAX_VALUE_BYTES:,} bytes, or behind {MAX_KEYS} other keys"
            for key, count in untold.items()
        ]
        yield [
            f"LOST: {drop.count:,} {REASONS.get(drop.reason, drop.reason)} in {drop.path}{_first(drop)}"
            for drop in self.dropped
            if drop.lost
        ]
        yield _recorded(self.recording_losses)
        yield _left_out(self.left_out)
        if self.rewritten is not None:
            untouched = len(self.inputs) - len(self.rewritten)
            yield [f"archive: {counted(untouched, 'input')} as they are, {len(self.rewritten):,} rewritten"]
            yield [f"  rewritten: {path}: {why}" for path, why in self.rewritten.items()]
        yield [f"{'left out' if item.harmless else 'NOT MERGED'}: {item.path}: {item.reason}" for item in self.omitted]

    def _headline(self, action: str, folder: str) -> str:
        what = f"{counted(len(self.inputs), 'file')} of {counted(len(self.ranks), 'rank')}"
        counts = counted(sum(self.events_in.values()), "event")
        if action == "trimmed":
            counts = f"kept {_happened(self.events_out):,} of {counted(_happened(self.events_in), 'event')}"
        whole = ", nothing lost" if self.complete else ""
        if whole and self.recording_losses:
            whole += " in the merge" if action == "merged" else " by this command"
        return f"{action} {what}{f' from {folder}' if folder else ''}: {counts}{whole}"


def _clocks(ranks: list[RankReport], inputs: int) -> list[str]:
    """Return the clocks of the ranks, those with the same words together."""
    # A single file without a known clock has nothing to align with.
    if inputs == len(ranks) == 1 and ranks[0].source == "unknown":
        return []
    clocks: dict[str, list[int]] = {}
    for rank in ranks:
        clocks.setdefault(rank.clock if rank.aligned else f"NOT ALIGNED: {rank.clock}", []).append(rank.rank)
    return [f"clock of {rank_spans(members)}: {clock}" for clock, members in clocks.items()]


def _first(finding: Repair | Drop) -> str:
    return "" if finding.offset_bytes is None else f", first at byte {finding.offset_bytes}"


def _unpatchable(output: str) -> str:
    """Return why bytes of an output cannot be changed after they are written."""
    if output.endswith(".gz"):
        return "a packed output cannot be patched"
    return "a .pftrace cannot be patched" if output.endswith(".pftrace") else "a pipe cannot be patched"


def _happened(counts: dict[str, int]) -> int:
    """Return the number of events without metadata."""
    return sum(count for phase, count in counts.items() if phase != "M")


def _common_folder(paths: list[str]) -> str:
    """Return the folder, with a slash at its end, that holds all paths directly; else empty."""
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
