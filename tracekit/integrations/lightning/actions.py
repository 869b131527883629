"""The actions that Lightning passes to ``Trainer(profiler=...)``: their names, and their slices and durations."""

from __future__ import annotations

import re
import sys
import threading
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from tracekit.clock import SYSTEM_CLOCK
from tracekit.notices import WarnOnce
from tracekit.recording.lifecycle import marker
from tracekit.statistics import DurationStatistics
from tracekit.wording import align_columns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from tracekit.clock import Clock
    from tracekit.recording.marker import Marker

    # Name, kind, start, and the exception that was being handled then.
    _Open: TypeAlias = "tuple[str, _Kind, int, BaseException | None]"

# Parts of the downtime.
PARTS: Final = ("data loading", "transfer", "callbacks", "logging", "checkpointing", "other")
DATA_LOADING, TRANSFER, CALLBACKS, LOGGING, CHECKPOINTING, OTHER = PARTS
OWN_PREFIX: Final = "tracekit."  # of the state keys of tracekit's callbacks, by which Lightning names their hooks
# "[LightningModule]Net.training_step", "[_TrainingEpochLoop].train_dataloader_next", "run_training_batch"
_OWNER: Final = re.compile(r"\[(\w+)\]")
_STATE: Final = re.compile(r"\{.*\}", re.DOTALL)  # "ModelCheckpoint{'monitor': None, ...}.on_train_batch_end"

_get_ident = threading.get_ident
_exc_info = sys.exc_info
_COUNTED_TOGETHER: Final = 256  # durations that are counted together, which is several times faster than one by one
MAX_RECORDED: Final = 10_000  # single durations that are kept of each kind of action
_HEADER: Final = ("Calls", "Total (s)", "Mean (s)", "p50 (s)", "p95 (s)", "Max (s)", "Percentage %")
_SHORT: Final = (0, 2, 3)  # columns of a table that is not extended: name, total and mean


@dataclass(frozen=True, slots=True)
class Action:
    """One kind of action of Lightning.

    Attributes:
        name: Name of its slices: without the owner's kind, and without the arguments of a callback.
        title: Lightning's name without the arguments of a callback; for tables.
        hook: The last part of the name: "training_step", "save_checkpoint" ...
        part: Its part of the downtime; None if it runs a stage or a batch.
        own: True for a hook of tracekit, which gets no slice.
    """

    name: str
    title: str
    categories: tuple[str, ...]
    hook: str
    part: str | None
    own: bool


@lru_cache(maxsize=4096)
def action_of(text: str) -> Action:
    """Parse a name that Lightning passes to its profiler; any other is an action of the user."""
    title = _STATE.sub("", text)
    match = _OWNER.match(title)
    owner = match[1] if match else ""
    name = title.removeprefix(f"[{owner}]").lstrip(".") or text
    hook = name.rpartition(".")[2]
    kind = owner.strip("_").removeprefix("Lightning").lower()
    categories = ("lightning", kind) if kind else ("lightning",)
    own = owner == "Callback" and name.startswith(OWN_PREFIX)
    return Action(name, title, categories, hook, _part(owner, hook), own)


def _part(owner: str, hook: str) -> str | None:
    if owner == "Logger":
        return LOGGING
    if hook == "save_checkpoint":
        return CHECKPOINTING
    if (owner.startswith("_") and hook.endswith("_next")) or (
        owner.startswith("Lightning") and hook.endswith(("_dataloader", "prepare_data"))
    ):
        return DATA_LOADING
    if hook.endswith(("batch_transfer", "batch_to_device")):
        return TRANSFER
    return CALLBACKS if owner in ("Callback", "LightningModule", "LightningDataModule") else None


def durations_table(
    title: str, durations: Mapping[str, DurationStatistics], whole_ns: int, *, extended: bool = True
) -> str:
    """Return durations by name as text, the largest total first, with a header that states the units.

    ``whole_ns`` is 100 %; without ``extended`` only total and mean are shown.
    """
    rows: list[tuple[str, ...]] = [(title, *_HEADER)]
    for name, found in sorted(durations.items(), key=lambda row: (-row[1].total_ns, row[0])):
        times_ns = (found.total_ns, found.mean_ns, found.quantile_ns(0.5), found.quantile_ns(0.95), found.max_ns)
        percent = 100 * found.total_ns / whole_ns if whole_ns else 0.0
        rows.append((name, str(found.count), *(f"{time_ns / 1e9:.6f}" for time_ns in times_ns), f"{percent:.2f}"))
    head, *lines = align_columns(rows if extended else [[row[column] for column in _SHORT] for row in rows])
    return "\n".join([head, "-" * len(head), *lines])


@dataclass(slots=True)
class _Kind:
    """One kind of action: its slices and durations, of which ``recorded_ns`` has the latest."""

    marker: Marker | None
    recorded_ns: array[int] = field(default_factory=lambda: array("q"))
    settled: int = 0  # durations in ``recorded_ns`` that the statistics have
    statistics: DurationStatistics = field(default_factory=DurationStatistics)
    open_in: set[int] = field(default_factory=set)  # threads, if a start of an open action raises
    was_cut: bool = False  # ended by an exception, before its stop
    lock: Any = field(default_factory=threading.RLock)  # of the statistics; other threads may append meanwhile

    def settle(self) -> DurationStatistics:
        with self.lock:
            new_ns = self.recorded_ns[self.settled :]
            self.statistics.add_all(new_ns)
            self.settled += len(new_ns)
            if self.settled > 2 * MAX_RECORDED:
                del self.recorded_ns[: self.settled - MAX_RECORDED]
                self.settled = MAX_RECORDED
        return self.statistics


class ActionSlices:
    """Records a slice from the start to the stop of each action.

    Actions nest, and may be open several times, on any number of threads. The slice of an action that an exception
    ends names the exception. A stop without a start on its thread is ignored, and logged once; if ``strict``, it
    raises ``ValueError``, like a start of an open action, unless an exception is being handled. The clock is for the
    table, which has all columns if ``extended``.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, *, strict: bool = False) -> None:
        self.extended = True
        self._now_ns = clock.monotonic_ns
        self._strict = strict
        self._kinds: dict[str, _Kind] = {}
        self._open: defaultdict[int, list[_Open]] = defaultdict(list)  # by thread, the innermost last
        self._first_ns: int | None = None
        self._last_ns = 0
        self._warn = WarnOnce("tracekit: ")

    def start(self, action_name: str) -> None:
        """Begin a slice."""
        # Lightning calls this, and `stop`, a hundred times for each batch, so rare cases are handled elsewhere.
        kind = self._kinds.get(action_name) or self._new(action_name)
        thread = _get_ident()
        if self._strict:
            if thread in kind.open_in:
                raise ValueError(f"the action {action_name!r} was started, and it is open already; stop it first")
            kind.open_in.add(thread)
        kind.was_cut = False
        self._open[thread].append((action_name, kind, self._now_ns(), _exc_info()[1]))
        if kind.marker is not None:
            kind.marker.__enter__()

    def stop(self, action_name: str) -> None:
        """End the innermost slice of this name on this thread, and those that an exception has left open in it."""
        opened = self._open[_get_ident()]
        if opened and opened[-1][0] == action_name:
            self._end(opened.pop())
        else:
            self._stop_other(opened, action_name)

    def _end(self, opened: _Open) -> None:
        _, kind, start_ns, handled = opened
        if self._strict:
            kind.open_in.discard(_get_ident())
        self._last_ns = now_ns = self._now_ns()
        if kind.marker is not None:
            # Lightning stops actions in ``finally``, so an exception that ends one is known there.
            error = _exc_info()[1]
            kind.marker.__exit__(None if error is None or error is handled else type(error), None, None)
        kind.recorded_ns.append(now_ns - start_ns)
        if len(kind.recorded_ns) - kind.settled >= _COUNTED_TOGETHER:
            kind.settle()

    def _new(self, action_name: str) -> _Kind:
        if self._first_ns is None:
            self._first_ns = self._now_ns()
        action = action_of(action_name)
        return self._kinds.setdefault(
            action_name, _Kind(None if action.own else marker(action.name, action.categories))
        )

    def _stop_other(self, opened: list[_Open], action_name: str) -> None:
        """Stop an action that is not the innermost of its thread."""
        error = _exc_info()[1]
        place = next((place for place in reversed(range(len(opened))) if opened[place][0] == action_name), None)
        if place is not None:
            if error is not None and error is not opened[place][3]:
                # Lightning does not stop every action in ``finally``; an exception has left these open.
                while len(opened) > place + 1:
                    opened[-1][1].was_cut = True
                    self._end(opened.pop())
            self._end(opened.pop(place))
            return
        # Raising would replace an exception on its way, and SimpleProfiler lets another thread stop an action.
        if self._strict and error is None:
            kind = self._kinds.get(action_name)
            if kind is None or not (kind.open_in or kind.was_cut):
                raise ValueError(f"the action {action_name!r} was stopped, and it was never started")
        if not action_of(action_name).own:  # which begins before it listens
            self._warn(
                "stop",
                f"the action {action_name!r} was stopped on a thread that had not started it; it is left out, and so are all "
                "others of which this is true",
            )

    def close(self) -> None:
        """End the open slices of this thread, which a failed run leaves."""
        opened = self._open[_get_ident()]
        while opened:
            self._end(opened.pop())

    def durations(self, *, by_title: bool = False) -> dict[str, DurationStatistics]:
        """Return the durations of each ended action by its name.

        Args:
            by_title: Merge the actions of callbacks that differ only in their arguments.
        """
        found: defaultdict[str, DurationStatistics] = defaultdict(DurationStatistics)
        for name, kind in list(self._kinds.items()):
            with kind.lock:
                found[action_of(name).title if by_title else name].merge(kind.settle())
        return {name: statistics for name, statistics in found.items() if statistics.count}

    @property
    def recorded_durations(self) -> defaultdict[str, list[float]]:
        """Single durations in seconds, by action: the latest 10,000 of each; `durations` counts all."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for name, kind in list(self._kinds.items()):
            with kind.lock:
                count = kind.settle().count
                recorded_ns = kind.recorded_ns[-MAX_RECORDED:]
            if count:
                found[name] += [duration_ns / 1e9 for duration_ns in recorded_ns]
            if count > MAX_RECORDED:
                self._warn(
                    "recorded_durations",
                    f"recorded_durations holds the latest {MAX_RECORDED} durations of each action, and {name!r} has {count}; "
                    "durations() counts all",
                )
        return found

    def summary(self) -> str:
        """Return a table of all actions, the largest total first; empty if no action was recorded.

        Actions lie within each other, so that the percentages add up to more than 100.
        """
        if self._first_ns is None:
            return ""
        whole_ns = self._last_ns - self._first_ns
        return durations_table("Action", self.durations(by_title=True), whole_ns, extended=self.extended)

    def __getstate__(self) -> dict[str, Any]:
        # Lightning sends the profiler to the processes that it spawns; what was measured stays here.
        return {**self.__dict__, "_kinds": {}, "_open": defaultdict(list), "_first_ns": None}
