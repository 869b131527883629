"""The global state of tracekit: active profilers, module-level markers, and hooks for forks and interpreter exit."""

from __future__ import annotations

import atexit
import copyreg
import logging
import os
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from tracekit.handlers.merge_process import wait_for_merges
from tracekit.recording.buffer import DETACHED
from tracekit.recording.compiling import pass_over_markers
from tracekit.recording.marker import Marker
from tracekit.recording.one_step import new_lock
from tracekit.recording.recording_marker import MARKER_TYPES
from tracekit.recording.schedule import ProfilerAction
from tracekit.recording.termination import Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

logger = logging.getLogger("tracekit")

DEFAULT_ACTIONS: Final = frozenset({ProfilerAction.WARMUP, ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE})
"""Actions during which a marker records by default: all except SKIP."""
_ALL_ACTIONS: Final = frozenset(ProfilerAction)

# Number of markers at which the table warns. No program has that many places, so names are generated at run time.
MANY_MARKERS: Final = 10_000
# Maximum number of markers in a table. At about 1 KB each they take 50 MB, which a training process can spare.
MAX_MARKERS: Final = 50_000
OTHER_NAMES: Final = "(other names)"  # the name of the marker for names beyond `MAX_MARKERS`


class MarkerTable:
    """A table of markers by name and options. Equal requests return the same marker.

    Thread-safe: two threads that request a new marker at the same time get the same one, and it is already attached.

    Names that are generated for each step or request would fill the memory. The table warns at `MANY_MARKERS`. From
    `MAX_MARKERS` on, every new name gets the marker `OTHER_NAMES` with the same actions. Then memory stays flat, and
    the slices are recorded without their names.
    """

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[tuple[object, ...], Marker] = {}

    def __iter__(self) -> Iterator[Marker]:
        return iter(list(self._by_key.values()))

    def get(
        self,
        name: str,
        categories: Sequence[str] = (),
        actions: Iterable[ProfilerAction] = DEFAULT_ACTIONS,
        record_instant_on_start: bool = False,
        record_instant_on_finish: bool = False,
        *,
        adopt: Callable[[Marker], object],
    ) -> Marker:
        """Return the marker. Call ``adopt`` with a new marker first."""
        key = (
            _text(name),
            _texts(categories),
            _actions_of(actions),
            bool(record_instant_on_start),
            bool(record_instant_on_finish),
        )
        marker = self._by_key.get(key)
        if marker is None and len(self._by_key) >= MANY_MARKERS - 1:
            self._warn()
            if len(self._by_key) >= MAX_MARKERS:
                key = (OTHER_NAMES, (), *key[2:])
                marker = self._by_key.get(key)
        if marker is None:
            new = Marker(*key[:3], record_instant_on_start=key[3], record_instant_on_finish=key[4])
            # Adopt it before another thread can find it: events of a marker without a profiler are lost.
            adopt(new)
            marker = self._by_key.setdefault(key, new)  # atomic
        return marker

    def _warn(self) -> None:
        count = len(self._by_key) + 1
        if count == MANY_MARKERS:
            logger.warning(
                "tracekit: there are %d markers. Each name costs about 1 KB, and from %d on new names are recorded as %r. Use "
                "one name for every step, and give what changes (a step, a request) to a counter.",
                MANY_MARKERS,
                MAX_MARKERS,
                OTHER_NAMES,
            )
        elif count == MAX_MARKERS + 1:
            logger.warning("tracekit: there are %d markers; new names are recorded as %r", MAX_MARKERS, OTHER_NAMES)


def _text(name: object) -> str:
    """Return a name of any type as a string. Never raises, because an odd name must not end a training run."""
    try:
        return str(name)
    except Exception:  # noqa: BLE001 - a user's `__str__` may raise anything
        return f"<{type(name).__name__}>"


def _texts(categories: object) -> tuple[str, ...]:
    """Return categories as strings; wrap a single value in a tuple."""
    if not isinstance(categories, str):
        with suppress(Exception):  # not iterable, or the iteration fails
            return tuple(map(_text, categories))  # type: ignore[call-overload]
    return (_text(categories),)


def _actions_of(actions: Any) -> frozenset[ProfilerAction]:
    """Return actions as a set; wrap a single one. Raise ConfigError for anything that is not an action."""
    try:
        chosen = frozenset([actions] if isinstance(actions, str) else actions)
    except TypeError:
        chosen = frozenset([ProfilerAction(actions)])
    return chosen if chosen <= _ALL_ACTIONS else frozenset(map(ProfilerAction, chosen))


class RunningProfiler(Protocol):
    """A `Profiler`, as the modules below it see it."""

    def start(self) -> None:
        """Start recording."""

    def marker(self, name: str, categories: Sequence[str] = ()) -> Marker:
        """Return the marker of a name."""

    def flush(self, timeout: float = 10.0) -> bool:
        """Deliver the events that were recorded until now."""

    def stop(self) -> None:
        """Stop recording."""

    def __exit__(self, *args: Any, **named: Any) -> None:
        """Stop recording, because of an exception if there is one."""

    def ask_schedule(self) -> None:
        """Apply the current action of the schedule."""

    def adopt(self, marker: Marker) -> None:
        """Attach a marker."""

    def release(self, markers: Iterable[Marker], *, flush: bool = True) -> None:
        """Detach markers."""

    def abandon_in_child(self) -> None:
        """Forget the recording in a forked child."""


_active: list[RunningProfiler] = []  # running profilers, the innermost last
# Held while profilers are activated and deactivated, on any thread. Re-entrant, for signal handlers.
_lock = threading.RLock()
_module_markers: Final = MarkerTable()  # Markers of `tracekit.marker`. They record into the innermost active profiler.
# In a forked child: markers of the parent's profilers. They record into the child's innermost active profiler.
_inherited: Final[list[MarkerTable]] = []
_actions: Final[list[Callable[[], object]]] = []  # those of `when_activated`
_known: Final[weakref.WeakSet[RunningProfiler]] = (
    weakref.WeakSet()
)  # every profiler that was started, for the fork hook


def running_profiler() -> RunningProfiler | None:
    """Return the innermost running profiler, or None."""
    innermost = _active[-1:]  # one step: another thread may stop it
    return innermost[0] if innermost else None


def marker(
    name: str,
    categories: Sequence[str] = (),
    actions: Iterable[ProfilerAction] = DEFAULT_ACTIONS,
    record_instant_on_start: bool = False,
    record_instant_on_finish: bool = False,
) -> Marker:
    """Return a marker that records into the profiler that is active at its use. Without one it costs next to nothing.

    For libraries, and for code that is imported before a profiler exists::

        @tracekit.marker("collate")
        def collate(samples): ...

    Args: as for `Profiler.marker`. Thread-safe.
    """
    found = _module_markers.get(
        name, categories, actions, record_instant_on_start, record_instant_on_finish, adopt=adopt_by_active
    )
    if not found.attached:  # another thread may have started a profiler since
        adopt_by_active(found)
    return found


def when_activated(action: Callable[[], object]) -> None:
    """Call an action whenever a profiler becomes the active one or is removed, on the thread that starts or stops it."""
    _actions.append(action)


def activate(profiler: RunningProfiler) -> None:
    """Make a profiler the active one. The module-level markers then record into it."""
    if not _known:
        _register_hooks()
    _known.add(profiler)
    with _lock:
        outer = running_profiler()
        if outer is not None:
            outer.release(_shared_markers())
        _active.append(profiler)
        for found in _shared_markers():
            profiler.adopt(found)
    _notify()


def deactivate(profiler: RunningProfiler) -> None:
    """Remove a profiler. The profiler that was active before it gets the module-level markers back."""
    with _lock:
        if profiler not in _active:
            return
        innermost = _active[-1] is profiler
        _active.remove(profiler)
        if innermost:
            profiler.release(_shared_markers())
            for found in _shared_markers():
                adopt_by_active(found)
    _notify()


def _notify() -> None:
    for action in _actions:
        action()


def inherit(markers: MarkerTable) -> None:
    """In a forked child: make the markers of a parent's profiler record into the child's active profiler."""
    _inherited.append(markers)


def adopt_by_active(found: Marker) -> None:
    """Make a marker record into the active profiler, if there is one."""
    while (innermost := running_profiler()) is not None:
        innermost.adopt(found)
        if running_profiler() is innermost:
            return
        # Another thread has started or stopped a profiler in between, and may have passed the marker on before.
        innermost.release([found], flush=False)


def _shared_markers() -> list[Marker]:
    return [found for table in (_module_markers, *_inherited) for found in table]


_hooks_registered = False


def _register_hooks() -> None:
    global _hooks_registered  # noqa: PLW0603 - hooks of the interpreter cannot be removed, so they are set once
    if _hooks_registered:
        return
    _hooks_registered = True
    atexit.register(_at_exit)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork_in_child)


def _at_exit() -> None:
    for profiler in reversed(_active.copy()):
        profiler.stop()
    wait_for_merges(wait=not Termination.received)


def _after_fork_in_child() -> None:
    # Do not log here: another thread of the parent may have held the lock of a logging handler (dd-trace-py #18900).
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.RLock()
    DETACHED.lock = new_lock()  # likewise; the child's markers inherit no other buffer
    for profiler in list(_known):
        profiler.abandon_in_child()
    _active.clear()


def _pickled(found: Marker) -> tuple[Callable[..., Marker], tuple[Any, ...]]:
    """Pickle a marker as a call of `marker`, so that it records into the active profiler of the receiving process."""
    return marker, (
        found.name,
        found.categories,
        found.actions,
        found.record_instant_on_start,
        found.record_instant_on_finish,
    )


for _kind in MARKER_TYPES:
    copyreg.pickle(_kind, _pickled)

pass_over_markers(MARKER_TYPES, marker)
