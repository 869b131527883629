"""MergeReport: the result of a merge, as text for people and as JSON (``schemas/merge_report.schema.json``)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.merged_head import CUT, FAILED, MAX_KEYS, MAX_VALUE_BYTES
from tracekit.merge.align.placement import duration
from tracekit.structs import Struct, to_builtins
from tracekit.wording import counted, rank_spans, size_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.formats.merged_head import RecordingLoss

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
"""Descriptions of the reasons to drop an event."""

SELECTED: Final = {
    "rank": "events of other ranks",
    "time": "events outside of the time window",
    "step": "events of other training steps",
    "category": "events of other categories",
    "duration": "slices that are too short",
    "name": "events of other names",
    "arrow": "ends of arrows whose slices are left out",
}
"""Descriptions of the reasons for which the selection excludes an event."""


class InputReport(Struct, frozen=True):
    """One input of a merge.

    ``generation`` describes the form of its times. ``base_time_ns`` is None if its clock is unknown.
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


class OmissionReport(Struct, frozen=True):
    """A file that is not in the merged trace. It is ``harmless`` if no data of the run is missing because of it."""

    path: str
    reason: str
    harmless: bool


class LeftOut(Struct, frozen=True):
    """The events of one input that the selection excludes. ``count`` is None for an input that was not read."""

    path: str
    reason: str
    count: int | None


class RankReport(Struct, frozen=True):
    """A rank with its clock and its processes.

    Attributes:
        rank: The rank.
        clock: Description of the source of its clock.
        processes: Names of its processes in the viewer.
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


class Repair(Struct, frozen=True):
    """A repair without loss. ``offset_bytes`` is the position of the first one, or None if unknown."""

    path: str
    kind: str
    count: int
    offset_bytes: int | None
    detail: str


class Drop(Struct, frozen=True):
    """Dropped events. They are ``lost`` if they contained data of the run."""

    path: str
    reason: str
    count: int
    offset_bytes: int | None
    lost: bool


class Causality(Struct, frozen=True):
    """The result of a check that the order of events of several ranks is possible on the merged timeline.

    No rank leaves a synchronizing collective before all ranks have entered it, and no receive ends before its send has
    begun.

    Attributes:
        checked: Number of checked collectives and messages.
        violations: Number of those that are out of order by more than the errors of the clocks.
        worst_ns: Maximum excess over the errors of the clocks.
    """

    checked: int
    violations: int
    worst_ns: int

    def words(self) -> str:
        """Return the result as text."""
        if not self.violations:
            return f"order of {counted(self.checked, 'collective')}: true on all ranks"
        return (
            f"{self.violations:,} of {counted(self.checked, 'collective')} end before all members have come, by up to "
            f"{duration(self.worst_ns)} more than the clocks' errors: a clock is wrong"
        )


class MergeReport(Struct, frozen=True):
    """The counts and findings of a merge.

    ``events_out`` = ``events_in`` + ``metadata_added`` + ``collective_events_added`` + ``clock_events_added`` - dropped -
    excluded.

    Attributes:
        output: The merged trace.
        output_bytes: Size of the merged trace.
        base_time_ns: Base of its times in ns since the epoch; 0 if the clocks of all inputs are unknown.
        inputs: The merged files, in the order of the output.
        omitted: The files that were found but not merged.
        left_out: The events that the selection excludes.
        recording_losses: The losses during recording that the inputs state.
        ranks: The ranks of the merged trace.
        events_in: Number of read events, by phase.
        events_out: Number of written events, by phase.
        metadata_added: Names and sort indexes of the merged processes and threads; part of ``events_out``.
        collective_events_added: Arrows between members of collectives and their counters; part of ``events_out``.
        clock_events_added: Instants that show the clock of each rank; part of ``events_out``.
        overlaps_moved: Slices moved to another track because they overlap others without nesting, including slices that
            the selection excludes.
        overlaps_snapped: Slices shortened because they slightly overlap the next slice of a GPU stream.
        largest_snap_ns: The largest of these changes, in ns.
        repaired: The repairs.
        dropped: The dropped events with their ``count`` (for unreadable parts: positions in the file).
        causality: The check of the order of collectives, or None if no collective was read.
        warnings: Sentences for readers of the merged trace, such as a clock that was assumed.
        written_twice: The ranks that were rewritten twice, because slices overlap and the output cannot be patched.
        rewritten: The inputs that were changed for an archive, and the reasons. None for other outputs.
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
        """True if the merged trace contains every event of the files found, except those excluded by the selection."""
        return not any(drop.lost for drop in self.dropped) and all(item.harmless for item in self.omitted)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {"format_version": FORMAT_VERSION, "complete": self.complete, **to_builtins(self)}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        from tracekit.markup import html_lines  # notebooks only

        return html_lines(self.lines())

    def lines(self, action: str = "merged", *, verbose: bool = False) -> list[str]:
        """Return the report as lines for a terminal.

        Args:
            action: The verb for the result: "merged", "converted" or "trimmed".
            verbose: True to list the ranks that were written twice.
        """
        lines = [line for section in self._sections(action, verbose=verbose) for line in _shorten(section)]
        lines += [f"warning: {warning}" for warning in self.warnings]
        lines.append(f"wrote {self.output} ({size_words(self.output_bytes)})")
        lines.append(f"next: open https://ui.perfetto.dev and drag {self.output} onto it")
        return lines

    def _sections(self, action: str, *, verbose: bool) -> Iterator[list[str]]:
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
            packing = "a packed output" if self.output.endswith(".gz") else "a .pftrace"
            yield [f"written twice: {rank_spans(self.written_twice)}: slices overlap, and {packing} cannot be patched"]
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
            counts = f"kept {happened(self.events_out):,} of {counted(happened(self.events_in), 'event')}"
        whole = ", nothing lost" if self.complete else ""
        if whole and self.recording_losses:
            whole += " in the merge" if action == "merged" else " by this command"
        return f"{action} {what}{f' from {folder}' if folder else ''}: {counts}{whole}"


def _clocks(ranks: list[RankReport], inputs: int) -> list[str]:
    # A single file without a known clock has nothing to align with.
    if inputs == len(ranks) == 1 and ranks[0].source == "unknown":
        return []
    clocks: dict[str, list[int]] = {}
    for rank in ranks:
        clocks.setdefault(rank.clock if rank.aligned else f"NOT ALIGNED: {rank.clock}", []).append(rank.rank)
    return [f"clock of {rank_spans(members)}: {clock}" for clock, members in clocks.items()]


def _first(finding: Repair | Drop) -> str:
    return "" if finding.offset_bytes is None else f", first at byte {finding.offset_bytes}"


def happened(counts: dict[str, int]) -> int:
    """Return the number of events other than metadata, from the counts by phase."""
    return sum(count for phase, count in counts.items() if phase != "M")


def _common_folder(paths: list[str]) -> str:
    """Return the folder of all paths, with a slash at its end, or an empty string if they differ."""
    first, *others = [path.rpartition("/")[0] for path in paths]
    return f"{first}/" if first and all(other == first for other in others) else ""


def _input(item: InputReport, folder: str) -> str:
    """Return the description of an input, without usual facts such as a rank from the file itself."""
    line = f"rank {item.rank}: {item.path.removeprefix(folder)}, {item.kind}, {counted(item.events, 'event')}"
    if item.rank_source not in _FILE_SAYS:
        line += f" (rank: {item.rank_source})"
    return line


def _recorded(losses: list[RecordingLoss]) -> list[str]:
    lines = []
    cut: dict[str, list[RecordingLoss]] = {}
    for loss in losses:
        if loss.kind == CUT:
            cut.setdefault(loss.reason, []).append(loss)
        elif loss.kind == FAILED:
            lines.append(
                f"failed while recording: rank {loss.rank}: {loss.reason} {_times(loss.count or 1)} ({loss.path})"
            )
        else:
            lines.append(f"lost while recording: rank {loss.rank}: {loss.count or 0:,} {loss.reason} ({loss.path})")
    for reason, found in cut.items():
        where = f" ({found[0].path})" if len(found) == 1 else ""
        ranks = rank_spans(loss.rank for loss in found)
        lines.append(f"cut while recording: {ranks}: {reason}; killed, or still running{where}")
    return lines


def _left_out(items: list[LeftOut]) -> list[str]:
    unread = sum(item.count is None for item in items)
    lines = [f"{counted(unread, 'file')} of other ranks"] if unread else []
    counts: Counter[str] = Counter()
    for item in items:
        counts[item.reason] += item.count or 0
    lines += [f"{count:,} {SELECTED[reason]}" for reason, count in counts.items() if count]
    return [f"left out on request: {line}" for line in lines]


def _shorten(lines: list[str]) -> list[str]:
    """Return the first dozen lines, and the number of further lines. --json prints all."""
    if len(lines) <= _LISTED:
        return lines
    return [*lines[:_LISTED], f"  ... and {len(lines) - _LISTED} more (--json lists all)"]


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
