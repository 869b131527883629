"""The state of the process: which profiler is active, the module-level markers, forks and the end of the interpreter.

All of tracekit's global state is here.
"""

from __future__ import annotations

import atexit
import copyreg
import logging
import os
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tracekit.handlers.merge_process import wait_for_merges
from tracekit.recording.buffer import DETACHED
from tracekit.recording.compiling import pass_over_markers
from tracekit.recording.marker import Marker
from tracekit.recording.recording_marker import MARKER_TYPES
from tracekit.recording.schedule import ProfilerAction
from tracekit.recording.termination import Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tracekit.recording.profiler import Profiler

__all__ = [
    "DEFAULT_ACTIONS",
    "MarkerTable",
    "activate",
    "active_profiler",
    "adopt_in_child",
    "deactivate",
    "inherit",
    "marker",
]

DEFAULT_ACTIONS: Final = frozenset({ProfilerAction.WARMUP, ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE})
"""What a marker records in unless told otherwise: everything but SKIP."""


MANY_MARKERS: Final = 10_000
"""With so many markers the table warns: no program has as many places, so names are made at run time."""

MAX_MARKERS: Final = 50_000
"""A table holds no more markers, at about 1 KB each in memory: 50 MB, which a training process can spare."""

OTHER_NAMES: Final = "(other names)"
"""The name of the marker for names beyond `MAX_MARKERS`."""


class MarkerTable:
    """Markers by everything that makes them different, so that asking again gives the same one.

    Thread-safe: two threads that ask for a new marker at once get the same one, and none gets one that does not record yet.

    Names that are made for each step or request would fill the memory. There is a warning at `MANY_MARKERS`, and from
    `MAX_MARKERS` on every new name gets the marker `OTHER_NAMES` of the same actions, so that memory stays flat: the slices
    are there, and only their names are lost.
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
        """Return the marker; a new one is adopted first."""
        key = (
            _text(name),
            _texts(categories),
            frozenset(actions),
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
            # Before any other thread can find it: this one may have to wait for its next turn, and what the others record
            # with a marker that is not adopted is lost.
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
    """Return a name as text, whatever it is: a strange name is not worth a training run."""
    try:
        return str(name)
    except Exception:  # noqa: BLE001 - a user's __str__ may do anything
        return f"<{type(name).__name__}>"


def _texts(categories: object) -> tuple[str, ...]:
    """Return categories as texts; what is none is one."""
    if not isinstance(categories, str):
        with suppress(Exception):  # nothing to iterate over, or something that fails at it
            return tuple(map(_text, categories))  # type: ignore[call-overload]
    return (_text(categories),)


logger = logging.getLogger("tracekit")

_active: list[Profiler] = []
"""Profilers that have been started and not stopped, the innermost last."""

_lock = threading.RLock()
"""Held while profilers become active and cease to be, which threads may do at once. Re-entrant, for signal handlers."""

_module_markers: Final = MarkerTable()
"""Markers made by `tracekit.marker`, which record into the innermost active profiler."""

_inherited: Final[list[MarkerTable]] = []
"""In a forked child: the markers of its parent's profilers, which do the same there."""

_known: Final[weakref.WeakSet[Profiler]] = weakref.WeakSet()
"""Every profiler that was started, for forked children and for the end of the interpreter."""


def active_profiler() -> Profiler | None:
    """Return the innermost profiler that has been started and not stopped, or None."""
    innermost = _active[-1:]  # at once: another thread may stop it
    return innermost[0] if innermost else None


def marker(
    name: str,
    categories: Sequence[str] = (),
    actions: Iterable[ProfilerAction] = DEFAULT_ACTIONS,
    record_instant_on_start: bool = False,
    record_instant_on_finish: bool = False,
) -> Marker:
    """Return a marker that records into whichever profiler is active when it is used, and costs next to nothing else.

    For libraries, and for code that is imported before a profiler exists::

        @tracekit.marker("collate")
        def collate(samples): ...

    Args: as for `Profiler.marker`. Thread-safe.
    """
    found = _module_markers.get(
        name, categories, actions, record_instant_on_start, record_instant_on_finish, adopt=_adopt_by_active
    )
    if not found.attached:  # or by a profiler that another thread has started since
        _adopt_by_active(found)
    return found


def activate(profiler: Profiler) -> None:
    """Make a profiler the active one: the module-level markers record into it."""
    if not _known:
        _register_hooks()
    _known.add(profiler)
    with _lock:
        outer = active_profiler()
        if outer is not None:
            outer.release(_shared_markers())
        _active.append(profiler)
        for found in _shared_markers():
            profiler.adopt(found)


def deactivate(profiler: Profiler) -> None:
    """Take a profiler out; the one that was active before gets the module-level markers back."""
    with _lock:
        if profiler not in _active:
            return
        innermost = _active[-1] is profiler
        _active.remove(profiler)
        if innermost:
            profiler.release(_shared_markers())
            for found in _shared_markers():
                _adopt_by_active(found)


def inherit(markers: MarkerTable) -> None:
    """In a forked child: have the markers of a parent's profiler record into whichever profiler is active in the child."""
    _inherited.append(markers)


def adopt_in_child(found: Marker) -> None:
    """In a forked child: the same for a marker that the parent's profiler was asked for just now."""
    _adopt_by_active(found)


def _adopt_by_active(found: Marker) -> None:
    innermost = active_profiler()
    if innermost is not None:
        innermost.adopt(found)


def _shared_markers() -> list[Marker]:
    return [found for table in (_module_markers, *_inherited) for found in table]


_hooks_registered = False


def _register_hooks() -> None:
    global _hooks_registered  # noqa: PLW0603 - hooks of the interpreter cannot be taken back, so they are set once
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
    # No logging here: another thread of the parent may have held the lock of a logging handler (dd-trace-py #18900).
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.RLock()
    DETACHED.lock = threading.RLock()  # likewise: the only buffer that the markers of parent and child share
    for profiler in list(_known):
        profiler.abandon_in_child()
    _active.clear()


def _pickled(found: Marker) -> tuple[Callable[..., Marker], tuple[Any, ...]]:
    """Have a marker that is sent to another process record into the profiler that is active there."""
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
