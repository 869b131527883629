"""The part of a selection that needs a look at single events: a filter on the runs of an input, before they are rewritten."""

from __future__ import annotations

from copy import copy
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import MergeError
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.trace_event import UNSET, Event, duration_of, raw_field, raw_number, time_field
from tracekit.merge.scan.probe import probe
from tracekit.merge.selection.criteria import PAIRED, Criteria, PairJudge, WantedNames
from tracekit.merge.selection.steps import ProcessSteps, find_steps, join_spans, step_spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.merge.align.placement import Placement
    from tracekit.merge.scan.input import Input
    from tracekit.merge.selection.criteria import Spans
    from tracekit.merge.selection.selection import Selection

_FOREVER: Final = 2**63 - 1

NOT_SELECTED: Final = "not selected: "
"""Begins the reason for which the selection leaves out an event."""


class EventFilter(Criteria):
    """Leaves out the events of one input that are not selected, and counts why. Use `fresh` for each run over the file.

    It can be pickled before its first use, without the input. Further reasons than those of `Criteria` are "rank" and
    "arrow".
    """

    def __init__(self, selection: Selection, item: Input, window: Spans, steps: dict[int, Spans] | None) -> None:
        super().__init__(selection, item, window, steps)
        self._path = item.path
        self._limit_bytes = item.stamp.limit_bytes
        self._unwanted = item.unwanted_ranks
        self._others = 0
        self._verdicts: Iterator[str] | None = None

    def fresh(self) -> EventFilter:
        """Return a filter for one run over the file, in its order."""
        found = copy(self)
        found.names = None if self.names is None else WantedNames(self.names.patterns)
        return found

    def of_ranks(self, run: list[Event]) -> list[Event]:
        """Return a run without the events of ranks that are not selected, and count these."""
        kept = self._of_ranks(run)
        self._others += len(run) - len(kept)
        return kept

    def takes_rank_of(self, pid: Any) -> bool:
        """Return True if the rank of a process is selected."""
        return self._ranks.get(raw_number(pid)) not in self._unwanted

    def judge_run(self, run: list[Event]) -> list[str]:
        """Return for every event of a run, which has no metadata in it, why it is left out; empty where it is not.

        Raises:
            KeyError: The file is not what it was when it was scanned.
        """
        if self._verdicts is None:
            if self.names is not None:
                self._find_names(self.names)
            pairs = PairJudge(self)
            for whole_run in self._runs():
                pairs.take(whole_run)
            self._verdicts = iter(pairs.finish())
        found = []
        for event in run:
            phase = event.ph[:1] if type(event.ph) is str else ""
            why = next(self._verdicts, "") if phase in PAIRED else self._judge_single(event, phase)
            found.append(NOT_SELECTED + why if why else "")
        return found

    def left_out(self, dropped: dict[str, int]) -> dict[str, int]:
        """Remove the events left out on request from the counts, and return them by reason."""
        found = [why for why in dropped if why.startswith(NOT_SELECTED)]
        counts = {why.removeprefix(NOT_SELECTED): dropped.pop(why) for why in found}
        if self._others:
            counts["rank"] = self._others
        return counts

    def _judge_single(self, event: Event, phase: str) -> str:
        time = time_field(event.ts)
        if time is None:  # nothing can show it, as the next step says
            return ""
        name, category = raw_field(event.name), raw_field(event.cat)
        if phase == "C" and category in (b"", b'""'):
            return self.judge_counter(event.pid, name, time)
        track = event.pid, event.tid
        return self.judge(track, name, category, time, time + duration_of(event), sliced=phase == "X")

    def _of_ranks(self, run: list[Event]) -> list[Event]:
        return [event for event in run if self.takes_rank_of(event.pid)] if self._unwanted else run

    def _runs(self) -> Iterator[list[Event]]:
        """Read the file, without the events of ranks that are not selected."""
        with TraceReader(self._path, limit_bytes=self._limit_bytes) as reader:
            yield from map(self._of_ranks, reader.runs())

    def _find_names(self, names: WantedNames) -> None:
        """Note where the wanted names are, for the slices around them."""
        for event in chain.from_iterable(self._runs()):
            time = time_field(event.ts)
            if time is not None and event.name is not UNSET and event.ph in names.ON_TRACKS:
                names.note((event.pid, event.tid), bytes(event.name), time)


def make_filters(selection: Selection, items: list[Input], placed: Placement) -> list[EventFilter | None]:
    """Return the filter of every input; None for one that is taken whole."""
    low = high = None
    if selection.time_window is not None:
        start_ns = min(placed.time_ns(number, _first_ns(item)) for number, item in enumerate(items))
        low, high = selection.window_ns(placed.base_ns, start_ns)
    window = [(-_FOREVER if low is None else low, _FOREVER if high is None else high)]
    steps = None if selection.steps is None else _find_spans(items, placed, selection.steps)

    def make(number: int, item: Input) -> EventFilter | None:
        if not selection.of_events and not item.unwanted_ranks:
            return None
        shift = placed.shifts_ns[number]
        own = steps and {rank: [(start - shift, end - shift) for start, end in steps[rank]] for rank in item.ranks}
        file_window = [(placed.file_ns(number, start), placed.file_ns(number, end)) for start, end in window]
        return EventFilter(selection, item, file_window, own)

    return [make(number, item) for number, item in enumerate(items)]


def _first_ns(item: Input) -> int:
    """Return when the first event of an input is, in the file's own time."""
    whole = item if item.whole else probe(item.path, whole=True)  # the first event may be anywhere
    return whole.first_ns or 0


def _find_spans(items: list[Input], placed: Placement, wanted: tuple[int | None, int | None]) -> dict[int, Spans]:
    """Return for every rank when its wanted steps were, in the time of the merge.

    A rank without steps gets those of all others, which go through the steps together.
    """
    by_rank: dict[int, dict[Any, ProcessSteps]] = {}
    for number, item in enumerate(items):
        for pid, steps in find_steps(item.path).items():
            rank = item.rank_of(pid)
            if rank in item.ranks:
                key = item.processes[pid].key if pid in item.processes else pid
                found = by_rank.setdefault(rank, {}).setdefault(key, ProcessSteps())
                found.add(steps, placed.shifts_ns[number])
    spans_of = {rank: step_spans(list(processes.values()), wanted) for rank, processes in by_rank.items()}
    if not any(spans_of.values()):
        known = sorted(
            {step for processes in by_rank.values() for steps in processes.values() for step in steps.numbers}
        )
        has = f"they tell of steps {known[0]} to {known[-1]}" if known else "they tell of no training steps at all"
        raise MergeError(f"the inputs hold none of the steps that the selection names; {has}")
    everywhere = join_spans(span for spans in spans_of.values() for span in spans or ())
    return {
        rank: everywhere if (spans := spans_of.get(rank)) is None else spans for item in items for rank in item.ranks
    }
