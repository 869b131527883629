"""Where the time of a run goes: markers, steps, devices, waiting for data, gaps, of each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.analysis.durations import Durations, DurationStore
from tracekit.analysis.intervals import DeviceTime, Longest, device_time
from tracekit.analysis.markers import DEVICE, TRANSPARENT
from tracekit.analysis.nesting import nested
from tracekit.analysis.ordered_rows import OrderedRows, Scratch
from tracekit.analysis.stage_comparison import AT_LEAST, SURE, StageComparison
from tracekit.analysis.stages import (
    OF_STAGES,
    StageTable,
    cut_notes,
    joined_tables,
    keep_training_thread,
    stage_name,
    steps_kept,
)
from tracekit.analysis.steps import steps_of_ranks
from tracekit.analysis.summary_report import (
    DeviceSummary,
    GapSummary,
    LoadingSummary,
    MarkerSummary,
    RankSummary,
    StageSummary,
    StepTable,
    TraceSummary,
)
from tracekit.analysis.trace_files import read_traces
from tracekit.arguments import check_names, check_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.analysis.reading import Reading, Thread
    from tracekit.analysis.stages import TrainingThreads
    from tracekit.arguments import Paths

__all__ = ["Summarizer", "summarize_traces"]

_PERCENTS: Final = (50, 95, 99)
_DEVICE: Final = int(DEVICE)
_READING_SHARE: Final = 0.6
_LONGEST_GAPS: Final = 10
_MOST_DEVICES: Final = 10_000


class _Tally:
    """What is added up of one marker of one rank."""

    __slots__ = ("count", "durations", "in_steps_ns", "self_ns", "total_ns")

    def __init__(self, durations: Durations) -> None:
        self.count = self.total_ns = self.self_ns = self.in_steps_ns = 0
        self.durations = durations


def summarize_traces(
    inputs: Paths,
    *,
    inside: Sequence[str] = (),
    progress: Callable[[float, str], None] | None = None,
) -> TraceSummary:
    """Say where the time goes in traces.

    Memory stays bounded whatever their size; what does not fit lies in a temporary folder. Nothing is estimated: the
    percentiles are exact.

    Args:
        inputs: Files, folders, globs or URLs: rank traces, torch.profiler's traces, merged traces; JSON or Perfetto's own,
            plain or gzip.
        inside: Names of markers that enclose the stages of a step, and are to be looked through.
        progress: Called with the share of the work that is done, 0 to 1, and what is being done.

    Returns:
        The summary. All times are ns.

    Raises:
        ConfigError: Nothing was named, several runs of one rank, or one trace twice.
        StorageError: Something cannot be read, or there is no room for temporary data.
        TraceFormatError: A file that was named is no trace.
    """
    paths = check_paths("inputs", inputs)
    check_names("inside", inside)
    with Scratch() as scratch:
        share = None if progress is None else lambda done, what: progress(done * _READING_SHARE, what)
        reading = read_traces(paths, scratch, share)
        reading.markers.look_through(inside)
        rest = (
            None
            if progress is None
            else lambda done, what: progress(_READING_SHARE + (1 - _READING_SHARE) * done, what)
        )
        return Summarizer(reading).result(rest)


class Summarizer:
    """Summarizes what was read; the slices are gone after that.

    Args:
        reading: What was read.

    Attributes:
        steps: The steps of each rank.
        tables: The stages of each rank, known with the result.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.steps = steps_of_ranks(reading)
        self._kept = steps_kept(len(self.steps))
        self._durations = DurationStore(reading.scratch.path + "-durations")
        self._tallies: dict[int, dict[int, _Tally]] = {}
        self._training: TrainingThreads = {}
        self.tables: dict[int, StageTable] = {}
        self._gaps: dict[tuple[int, object], Longest] = {}
        self._devices: dict[tuple[int, object], OrderedRows] = {}
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}

    def result(self, progress: Callable[[float, str], None] | None) -> TraceSummary:
        """Return the summary.

        Args:
            progress: Called with the share of this work that is done, 0 to 1, and what is being done.
        """
        reading = self._reading
        threads = reading.threads()
        for number, thread in enumerate(threads):
            if progress is not None:
                progress(number / len(threads), f"rank {thread.rank}: {thread.name}")
            self._take(thread)
            reading.forget(thread)
        markers = [
            self._marker(rank, number, tally)
            for rank, tallies in sorted(self._tallies.items())
            for number, tally in tallies.items()
        ]
        markers.sort(key=lambda marker: (marker.rank, -marker.total_ns, marker.name, marker.category))
        gaps: list[GapSummary] = []
        devices = {
            key: self._device(key, rows, gaps)
            for key, rows in sorted(self._devices.items(), key=lambda item: (item[0][0], str(item[0][1])))
        }
        for rank, tables in self._training.items():
            for pid, table in tables.items():
                gaps += self._named_gaps(rank, table.thread.name, self._gaps[rank, pid])
        self.tables = joined_tables(self._training)
        gaps.sort(key=lambda gap: (-gap.length_ns, gap.rank, gap.where, gap.start_ns))
        return TraceSummary(
            files=[(file.path, file.events) for file in reading.files],
            ranks=[self._rank(rank, devices) for rank in reading.ranks],
            markers=markers,
            gaps=gaps[:_LONGEST_GAPS],
            notes=self._notes(),
            stragglers=StageComparison(self.tables, reading.markers).stragglers(AT_LEAST, SURE),
            incomplete=reading.incomplete,
        )

    def _take(self, thread: Thread) -> None:
        reading = self._reading
        rank = thread.rank
        steps = self.steps[rank]
        tallies = self._tallies.setdefault(rank, {})
        table = StageTable(thread, steps, self._kept)
        longest = Longest(_LONGEST_GAPS, steps.any_pause)
        device: OrderedRows | None = None
        first, last = 1 << 62, -(1 << 62)
        step, begin, until = -1, 0, 0
        added = activities = 0
        in_order = thread.nests
        slices = nested(
            thread.windows(),
            reading.markers.kinds,
            thread.base_ns,
            steps,
            longest.take if in_order else None,
        )
        for slice_ in slices:
            start, end, number, self_ns, depth, _, kind, _ = slice_
            tally = tallies.get(number)
            if tally is None:
                tally = tallies[number] = _Tally(self._durations.new())
            tally.count += 1
            tally.total_ns += end - start
            tally.self_ns += self_ns if in_order else end - start
            tally.durations.values.append(end - start)
            first = min(first, start)
            last = max(last, end)
            # Neighbours are mostly in one step.
            if not begin <= start < until:
                step = steps.at(start)
                begin, until = steps.span(step, start)
            if step >= 0:
                tally.in_steps_ns += end - start
            if kind & _DEVICE:
                if device is None:
                    device = self._device_rows(thread)
                device.rows.append((start, -end, kind & _DEVICE, number))
                activities += 1
            elif in_order and (not depth or kind & OF_STAGES):
                table.take(slice_, step)
            added += 1
            if added >= 1 << 14:
                self._durations.added(added)
                reading.scratch.added(activities)
                added = activities = 0
        self._durations.added(added)
        reading.scratch.added(activities)
        self._first[rank] = min(first, self._first.get(rank, first))
        self._last[rank] = max(last, self._last.get(rank, last))
        if in_order and table.covered_ns and device is None:
            self._keep(rank, table, longest)

    def _keep(self, rank: int, table: StageTable, longest: Longest) -> None:
        """Keep the stages and gaps of the training thread."""
        if keep_training_thread(self._training, table):
            self._gaps[rank, table.thread.process.pid] = longest

    def _device_rows(self, thread: Thread) -> OrderedRows:
        key = thread.rank, thread.process.name or thread.process.pid
        key = key if key in self._devices or len(self._devices) < _MOST_DEVICES else (thread.rank, "others")
        if key not in self._devices:
            self._devices[key] = self._reading.scratch.track()
        return self._devices[key]

    def _marker(self, rank: int, number: int, tally: _Tally) -> MarkerSummary:
        marker = self._reading.markers.table[number]
        steps_ns = self.steps[rank].total_ns
        p50, p95, p99 = tally.durations.percentiles(_PERCENTS)
        return MarkerSummary(
            rank=rank,
            name=marker.name,
            category=marker.category,
            count=tally.count,
            total_ns=tally.total_ns,
            self_ns=tally.self_ns,
            p50_ns=p50,
            p95_ns=p95,
            p99_ns=p99,
            share_of_steps=tally.in_steps_ns / steps_ns if steps_ns else None,
            frame=bool(self._reading.markers.kinds[number] & TRANSPARENT),
        )

    def _device(self, key: tuple[int, object], rows: OrderedRows, gaps: list[GapSummary]) -> tuple[str, DeviceTime]:
        rank, name = key
        longest = Longest(_LONGEST_GAPS, self.steps[rank].any_pause)
        found = device_time(rows.windows(), longest)
        where = name if isinstance(name, str) and name else f"device {name}"
        gaps += self._named_gaps(rank, where, longest)
        self._reading.scratch.forget(rows)
        return where, found

    def _named_gaps(self, rank: int, where: str, longest: Longest) -> list[GapSummary]:
        table = self._reading.markers.table
        steps = self.steps[rank]
        named = []
        for gap in longest.gaps:
            step = steps.at(gap.start_ns)
            named.append(
                GapSummary(
                    rank=rank,
                    where=where,
                    start_ns=gap.start_ns,
                    length_ns=gap.length_ns,
                    after=table[gap.before].name,
                    before=table[gap.after].name,
                    step=steps.numbers[step] if step >= 0 else None,
                )
            )
        return named

    def _rank(self, rank: int, devices: dict[tuple[int, object], tuple[str, DeviceTime]]) -> RankSummary:
        steps, table = self.steps[rank], self.tables.get(rank)
        durations = steps.durations
        totals: dict[str, int] = {}
        each: dict[str, list[int]] = {}
        if table is not None:
            for stage in table.stages:
                # Two categories of one name are one stage to a reader.
                name, cells = stage_name(stage, self._reading.markers), table.cells[stage].tolist()
                totals[name] = totals.get(name, 0) + table.in_steps_ns[stage]
                each[name] = [sum(pair) for pair in zip(each[name], cells, strict=True)] if name in each else cells
        loading = None
        if table is not None and table.loading_count:
            share = table.loading_in_steps_ns / steps.total_ns if steps else None
            loading = LoadingSummary(table.loading_count, table.loading_ns, table.loading_longest_ns, share)
        kept = min(len(steps), self._kept)
        return RankSummary(
            rank=rank,
            span_ns=max(0, self._last.get(rank, 0) - self._first.get(rank, 0)),
            thread="" if table is None else table.thread.name,
            step_durations_ns=durations,
            stages=[StageSummary(name, total, total / steps.total_ns) for name, total in totals.items()],
            unrecorded_ns=0 if table is None else table.unrecorded_ns,
            loading=loading,
            devices=[DeviceSummary(name, time) for (of, _), (name, time) in devices.items() if of == rank],
            steps=StepTable(steps.numbers[:kept].tolist(), durations[:kept], each),
        )

    def _notes(self) -> list[str]:
        notes = self._reading.all_notes
        if any(len(steps) > self._kept for steps in self.steps.values()):
            notes.append(f"only the first {self._kept:,} steps of each rank are told one by one")
        notes += cut_notes(self.tables.values(), self._reading.markers)
        return notes
