"""The states of a marker: every short sequence of events moves as the table of `MarkerState` says, and records what it should."""

from __future__ import annotations

import time
from collections import defaultdict
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.both_recorders import Worker
from tracekit import ProfilerAction, Timestamp, TraceHandler
from tracekit.clock import Timeline
from tracekit.events import COUNTER, INSTANT, Timestamps
from tracekit.recording.attached_markers import AttachedMarkers
from tracekit.recording.buffer import DETACHED, RecordBuffer
from tracekit.recording.failures import Failures
from tracekit.recording.inline import InlineHandlers
from tracekit.recording.marker import Marker
from tracekit.recording.marker_state import FREE, STACKED, MarkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Table = dict[tuple[str, str], set[str]]


def documented() -> Table:
    """Return the next states by state and event, as the table in the documentation of `MarkerState` has them."""
    rows = [
        [cell.strip() for cell in line.split("|")] for line in (MarkerState.__doc__ or "").splitlines() if "|" in line
    ]
    table: Table = {}
    for state, *cells in rows[1:]:
        for event, cell in zip(rows[0][1:], cells, strict=True):
            to = {name if " " in name else f"{state.split()[0]} {name}" for name in cell.split(", ")}
            table[state, event] = {
                kind + name.removeprefix("ON")
                for name in to
                for kind in (("RECORDING", "OBSERVED") if name.startswith("ON ") else ("",))
            }
    free = ("IDLE FREE", "RECORDING FREE", "OBSERVED FREE")
    table["ASLEEP FREE", "enter"] = {to for state in free for to in table[state, "enter"]}  # "wakes"
    return {key: states for key, states in table.items() if not any(to.endswith("-") for to in states)}


def state_of(marker: Marker) -> str:
    slot = {FREE: "FREE", STACKED: "STACKED"}.get(marker._start, "TAKEN")
    return f"{type(marker).state.name} {slot}"


def observer_with(*handlers: TraceHandler) -> InlineHandlers:
    return InlineHandlers([*handlers], Timestamps(Timestamp()), Timeline(), Failures())


class Play:
    """A marker and the plainest model of it: a slice is recorded if the marker records at its start.

    An end ends the slice that its thread has started last.
    """

    def __init__(
        self, clock: Callable[[], int], use: str, observer: InlineHandlers | None, threads: Sequence[Worker | None]
    ) -> None:
        self.buffer = RecordBuffer()
        self.attached = AttachedMarkers(self.buffer, clock)
        self.attached.observer = observer
        self.attached.pass_to(ProfilerAction.ACTIVE)
        self.marker = Marker("m", (), frozenset({ProfilerAction.ACTIVE}))
        self.attached.add(self.marker)
        self.use = use
        self.threads = threads
        self.is_recording = self.is_attached = True
        self.left = 0  # unrecorded slices of threads that do not exist in the child
        # By thread: the call that ends each open slice, and (start, track) of a recorded one.
        self.open: list[list[tuple[Callable[[], object], tuple[int, int] | None]]] = [[] for _ in threads]

    def possible(self) -> Iterator[tuple[str, int]]:
        """Yield the events that can happen now, with the number of their thread."""
        for thread, slices in enumerate(self.open):
            yield "enter", thread
            if slices:
                yield "exit", thread
        yield from [
            (event, 0) for event in (("record", "pause", "detach", "fork") if self.is_attached else ("attach",))
        ]

    def do(self, event: str, thread: int) -> None:
        """Let an event happen, and compare what is recorded and what is open with the model."""
        expected: tuple[int, ...] = ()
        if event == "enter":
            # ``with`` looks up the exit before it enters.
            leave = partial(self.marker.__exit__, None, None, None) if self.use == "with" else self.marker.finish
            before = self.marker.open_slices()
            self._on(thread, self.marker.__enter__ if self.use == "with" else self.marker.start)
            new = [slice_[1:] for slice_ in self.marker.open_slices() if slice_ not in before]
            assert [self.buffer.tracks[track].name for _, track in new] == self._recorded_on(thread)
            self.open[thread].append((leave, new[0] if new else None))
        elif event == "exit":
            leave, slice_ = self.open[thread].pop()
            expected = slice_ or ()
            self._on(thread, leave)
        elif event == "attach":
            self.is_attached = True
            self.attached.add(self.marker)
        elif event in ("detach", "fork"):
            self.is_attached = False
            if event == "detach":
                self.attached.let_go([self.marker])
            else:  # as in the child, which has the first thread only
                self.attached.abandon_in_child()
                self.left += sum(slice_ is None for slices in self.open[1:] for _, slice_ in slices)
                self.open[1:] = [[] for _ in self.open[1:]]
            self.open = [[(leave, None) for leave, _ in slices] for slices in self.open]
        else:
            self.is_recording = event == "record"
            self.attached.pass_to(ProfilerAction.ACTIVE if self.is_recording else ProfilerAction.SKIP)
        records = list(self.buffer.take(len(self.buffer.records)))
        assert records[1:2] + records[3:] == list(expected)
        opened = sorted(slice_[1:] for slice_ in self.marker.open_slices())
        assert opened == sorted(slice_ for slices in self.open for _, slice_ in slices if slice_)

    def end(self) -> None:
        """Record an instant and a counter on each thread, and end all slices. Then nothing may be left in the marker."""
        for thread, slices in enumerate(self.open):
            self._on(thread, self.marker.instant)
            self._on(thread, partial(self.marker.counter, {"x": 1}))
            records = list(self.buffer.take(len(self.buffer.records)))
            assert records[2::4] == [INSTANT, COUNTER] * len(self._recorded_on(thread))
            assert [self.buffer.tracks[track].name for track in records[3:4]] == self._recorded_on(thread)
            while slices:
                self.do("exit", thread)
        markers = [self.marker, *self.marker._clones.values()]
        if not self.left:  # a marker does not know the threads of slices that are not recorded
            assert {(marker._start, marker._contended, marker._skipped) for marker in markers} == {(FREE, 0, 0)}

    def _recorded_on(self, thread: int) -> list[str]:
        """Return the name of the track of what a thread records now, if it is recorded."""
        return [("MainThread", "second")[thread]] if self.is_recording and self.is_attached else []

    def _on(self, thread: int, job: Callable[[], object]) -> None:
        worker = self.threads[thread]
        if worker is None:
            job()
        else:
            assert worker.do(job) == ""


def transitions(length: int, play: Callable[[], Play], first: Sequence[tuple[str, int]] = ()) -> Table:
    """Play every sequence of events up to a length. Return the next states that came after each state and event.

    Args:
        length: Number of events in addition to the first ones.
        play: Makes a play.
        first: Events at the beginning of all sequences.
    """
    found: Table = defaultdict(set)
    waiting: list[list[tuple[str, int]]] = [[]]
    while waiting:
        events = waiting.pop()
        one = play()
        for event, thread in [*first, *events]:
            before = state_of(one.marker)
            one.do(event, thread)
            found[before, event].add(state_of(one.marker))
        if len(events) < length:
            waiting += [[*events, event] for event in one.possible()]
        one.end()
    return found


LEFT = [("enter", 0), ("pause", 0)]  # a recorded slice is open while nothing is recorded
MET = [*LEFT, ("enter", 1), ("record", 0), ("enter", 1)]  # and then two threads meet in the marker
SHARED = [("enter", 0), ("enter", 1), ("exit", 1), ("exit", 0)]  # two threads meet in the marker


@pytest.mark.parametrize(
    "clock", [time.perf_counter_ns, count(1000).__next__], ids=["clock of the core", "other clock"]
)
@pytest.mark.parametrize("use", ["with", "start and finish"])
def test_every_short_sequence_of_events_records_as_the_model_and_moves_as_the_table(
    clock: Callable[[], int], use: str
) -> None:
    found: Table = defaultdict(set)
    worker = Worker("second")
    try:
        for observer, threads, length, first in (
            (None, [None], 5, ()),
            (observer_with(TraceHandler()), [None], 5, ()),
            (observer_with(), [None], 4, ()),
            (observer_with(), [None, worker], 3, ()),
            (None, [None, worker], 4, ()),
            (None, [None, worker], 3, LEFT),
            (None, [None, worker], 2, MET),
            (None, [None, worker], 3, SHARED),
        ):
            play = partial(Play, clock, use, observer, threads)
            for key, states in transitions(length, play, first).items():
                found[key] |= states
    finally:
        worker.end()
    on = {f"{kind} {slot}" for kind in ("RECORDING", "OBSERVED") for slot in ("FREE", "STACKED")}
    assert found.pop(("IDLE FREE", "attach")) == {"IDLE FREE"} | on
    released = [key for key in found if key[1] in ("detach", "fork")]
    assert {to for key in released for to in found.pop(key)} == {"IDLE FREE"}
    assert found == documented()
    assert not len(DETACHED.records)
