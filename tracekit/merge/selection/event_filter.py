"""The part of a selection that needs a look at single events: a filter on the runs of an input, before they are rewritten."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import MergeError
from tracekit.formats.event_fields import raw_number
from tracekit.formats.time_columns import durations_of, times_of
from tracekit.formats.trace_event import UNSET, Event, decode_or_none
from tracekit.formats.trace_reader import TraceReader
from tracekit.merge.selection.names import WantedNames
from tracekit.merge.selection.pairs import PAIRED, judge_pairs
from tracekit.merge.selection.steps import ProcessSteps, find_steps, join_spans, step_spans

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from tracekit.merge.input import Input
    from tracekit.merge.namespaces import InputMap
    from tracekit.merge.selection.names import TrackId
    from tracekit.merge.selection.selection import Selection

__all__ = ["NOT_SELECTED", "EventFilter", "make_filters"]

_FOREVER: Final = 2**63 - 1

NOT_SELECTED: Final = "not selected: "
"""Begins the reason for which the selection leaves out an event."""

Spans = list[tuple[int, int]]


class EventFilter:
    """Leaves out the events of one input that are not selected, and counts why. Use once, in the order of the file.

    It can be pickled before its first use, and takes nothing of the input with it but what it needs. The reasons are "rank",
    "time", "step", "category", "duration", "name", "arrow".

    Args:
        selection: What is wanted.
        item: The input.
        window: The time window in the file's own time, both ends included where they are given.
        steps: For each rank of the input the spans of its wanted steps, in the file's own time; None when all are wanted.
    """

    def __init__(self, selection: Selection, item: Input, window: Spans, steps: dict[int, Spans] | None) -> None:
        self._selection = selection
        self._path = item.path
        self._phases = item.scan.phases
        self._rank = item.rank
        self._ranks = {pid: rank for pid, (rank, _, _) in item.merged_processes.items()}
        self._unwanted = item.unwanted_pids
        self._window = window
        self._steps = steps
        self._timed = selection.time_window is not None or steps is not None
        self._sorted = selection.categories is not None or bool(selection.exclude_categories)
        self._least_ns = selection.min_duration_ns
        self._names = None if selection.names is None else WantedNames(selection.names)
        self._wanted_categories: dict[bytes, bool] = {}
        self._excluded_categories: dict[bytes, bool] = {}
        self._others = 0
        self._verdicts: Iterator[str] | None = None

    def of_ranks(self, run: list[Event]) -> list[Event]:
        """Return a run without the events of ranks that are not selected, and count these."""
        kept = self._of_ranks(run)
        self._others += len(run) - len(kept)
        return kept

    def takes_rank_of(self, pid: Any) -> bool:
        """Tell whether the rank of a process is selected."""
        return raw_number(pid) not in self._unwanted

    def judge_run(self, run: list[Event]) -> list[str]:
        """Return for every event of a run, which has no metadata in it, why it is left out; empty where it is not.

        Raises:
            KeyError: The file is not what it was when it was scanned.
        """
        if self._verdicts is None:
            if self._names is not None:
                self._find_names(self._names)
            self._verdicts = iter(self._judge_pairs())
        verdicts = self._verdicts
        found = []
        for event, time, duration in zip(run, *self.times_of(run), strict=True):
            phase = event.ph[:1] if type(event.ph) is str else ""
            why = next(verdicts, "") if phase in PAIRED else self._judge_single(event, phase, time, duration)
            found.append(NOT_SELECTED + why if why else "")
        return found

    def left_out(self, dropped: Counter[str]) -> dict[str, int]:
        """Take what was left out on request from what was left out, and return it by reason."""
        found = {why: count for why, count in dropped.items() if why.startswith(NOT_SELECTED)}
        for why in found:
            del dropped[why]
        counts = {why.removeprefix(NOT_SELECTED): count for why, count in found.items()}
        if self._others:
            counts["rank"] = self._others
        return counts

    def times_of(self, run: list[Event]) -> tuple[list[int | None], list[int]]:
        """Return the time of every event, None where it has none, and its duration, 0 where it has none."""
        return times_of(run), durations_of(run)

    def judge(self, track: TrackId, name: bytes, category: bytes, start: int, end: int, *, sliced: bool) -> str:
        """Return why a slice or an instant is left out; empty when it is not."""
        why = self.judge_time(track[0], start, end) if self._timed else ""
        if why:
            return why
        if self._sorted and not self._wants_category(category):
            return "category"
        if sliced and end - start < self._least_ns:
            return "duration"
        return "" if self._names is None or self._names.wants(track, name, start, end) else "name"

    def judge_arrow(self, category: bytes) -> str:
        """Return why an end of an arrow is left out, whatever its slice; empty when it is not."""
        return "category" if self._excludes_category(category) else ""

    def _judge_single(self, event: Event, phase: str, time: int | None, duration: int) -> str:
        category = b"" if event.cat is UNSET else bytes(event.cat)
        if time is None:  # nothing can show it, as the next step says
            return ""
        name = b"" if event.name is UNSET else bytes(event.name)
        if phase == "C" and category in (b"", b'""'):
            why = self.judge_time(event.pid, time, time)
            return why or ("" if self._names is None or self._names.fits(name) else "name")
        return self.judge((event.pid, event.tid), name, category, time, time + duration, sliced=phase == "X")

    def judge_time(self, pid: Any, start: int, end: int) -> str:
        """Return why something of this time is left out; empty when it is not."""
        if not _overlaps(self._window, start, end):
            return "time"
        if self._steps is None:
            return ""
        rank = self._ranks.get(raw_number(pid), self._rank)
        if not _overlaps(self._steps[rank], start, end):
            return "step"
        return ""

    def _of_ranks(self, run: list[Event]) -> list[Event]:
        unwanted = self._unwanted
        return [event for event in run if raw_number(event.pid) not in unwanted] if unwanted else run

    def _wants_category(self, category: bytes) -> bool:
        wanted = self._wanted_categories.get(category)
        if wanted is None:
            names = self._selection.categories
            wanted = names is None or not _names(category).isdisjoint(names)
            self._wanted_categories[category] = wanted
        return wanted and not self._excludes_category(category)

    def _excludes_category(self, category: bytes) -> bool:
        excluded = self._excluded_categories.get(category)
        if excluded is None:
            excluded = not _names(category).isdisjoint(self._selection.exclude_categories)
            self._excluded_categories[category] = excluded
        return excluded

    def _find_names(self, names: WantedNames) -> None:
        """Note where the wanted names are, for the slices around them."""
        with TraceReader(self._path) as reader:
            for run in map(self._of_ranks, reader.runs()):
                for event, time in zip(run, self.times_of(run)[0], strict=True):
                    if time is not None and event.name is not UNSET and event.ph in names.ON_TRACKS:
                        names.note((event.pid, event.tid), bytes(event.name), time)

    def _judge_pairs(self) -> list[str]:
        phases = self._phases
        if not any(phases[phase] for phase in PAIRED):
            return []
        with TraceReader(self._path) as reader:
            return judge_pairs(map(self._of_ranks, reader.runs()), self, arrows=any(phases[phase] for phase in "stf"))


def make_filters(
    selection: Selection | None, items: list[Input], maps: Sequence[InputMap], base_ns: int
) -> list[EventFilter | None]:
    """Return the filter of every input; None for one that is taken whole.

    Args:
        selection: What is wanted.
        items: The inputs.
        maps: How each will be rewritten.
        base_ns: What the times of the merge are relative to, ns since the epoch; 0 when nobody knows.

    Raises:
        ConfigError: The time window cannot be applied.
        MergeError: There is none of the wanted steps.
        StorageError: An input can no longer be read.
        TraceFormatError: It is no trace any more.
    """
    if selection is None:
        return [None] * len(items)
    start_ns = min((_first_ns(item) + target.shift_ns for item, target in zip(items, maps, strict=True)), default=0)
    low, high = selection.window_ns(base_ns, start_ns)
    window = [(-_FOREVER if low is None else low, _FOREVER if high is None else high)]
    steps = None if selection.steps is None else _find_spans(items, maps, selection.steps)
    filters: list[EventFilter | None] = []
    for item, target in zip(items, maps, strict=True):
        if not selection.of_events and not item.unwanted_pids:
            filters.append(None)
            continue
        shift = target.shift_ns
        own = None if steps is None else {rank: _moved(steps[rank], -shift) for rank in item.ranks}
        filters.append(EventFilter(selection, item, [tuple(map(target.file_ns, span)) for span in window], own))  # type: ignore[misc]
    return filters


def _first_ns(item: Input) -> int:
    """Return when the first event of an input is, in the file's own time."""
    scan = item.scan
    lowest = scan.epoch_lowest_ns if scan.base_ns == 0 else scan.lowest_ns
    return lowest or 0


def _find_spans(
    items: list[Input], maps: Sequence[InputMap], wanted: tuple[int | None, int | None]
) -> dict[int, Spans]:
    """Return for every rank when its wanted steps were, in the time of the merge.

    A rank that tells of no steps gets those of all others, which go through the steps together.
    """
    by_rank: dict[int, dict[int, ProcessSteps]] = {}
    for item, target in zip(items, maps, strict=True):
        for pid, steps in find_steps(item.path).items():
            place = target.processes.get(pid)
            if place is not None:
                steps.last_ns = item.scan.highest_ns or 0
                by_rank.setdefault(item.rank_of(pid), {}).setdefault(place[0], ProcessSteps()).add(
                    steps, target.shift_ns
                )
    found = {rank: step_spans(list(processes.values()), wanted) for rank, processes in by_rank.items()}
    if not any(found.values()):
        known = sorted(
            {step for processes in by_rank.values() for steps in processes.values() for step in steps.numbers}
        )
        has = f"they tell of steps {known[0]} to {known[-1]}" if known else "they tell of no training steps at all"
        raise MergeError(f"the inputs hold none of the steps that the selection names; {has}")
    everywhere = join_spans(span for spans in found.values() for span in spans or ())
    return {rank: everywhere if (spans := found.get(rank)) is None else spans for item in items for rank in item.ranks}


def _moved(spans: Spans, shift: int) -> Spans:
    return [(start + shift, end + shift) for start, end in spans]


def _overlaps(spans: Spans, start: int, end: int) -> bool:
    """Tell whether an event reaches into one of the spans, whose ends are not part of them."""
    at = bisect_right(spans, start, key=_end)
    return at < len(spans) and spans[at][0] < max(end, start + 1)


def _end(span: tuple[int, int]) -> int:
    return span[1]


def _names(category: bytes) -> frozenset[str]:
    text = decode_or_none(category) if category else ""  # type: ignore[arg-type]
    return frozenset(name.strip() for name in text.split(",")) if isinstance(text, str) else frozenset()
