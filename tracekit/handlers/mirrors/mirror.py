"""Mirror: the base class of handlers that show each slice in another tool immediately, on the recording thread."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tracekit.handlers.base import TraceHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from tracekit.events import Timestamps
    from tracekit.timestamp import Timestamp

NOT_BEGUN: Final = object()  # the place of a slice that the tool does not have


class Moment:
    """The time of an event. The training time is looked up only on access, because that is slow."""

    __slots__ = ("_monotonic_ns", "_timestamps", "wall_clock_time_ns")

    def __init__(self, monotonic_ns: int, offset_ns: int, timestamps: Timestamps) -> None:
        self.wall_clock_time_ns = monotonic_ns + offset_ns
        self._monotonic_ns = monotonic_ns
        self._timestamps = timestamps

    @property
    def timestamp(self) -> Timestamp:
        """The training time at that moment."""
        return self._timestamps.at(self._monotonic_ns)


class Mirror(TraceHandler):
    """Reports every slice to another tool at its start and at its end.

    A subclass begins and ends slices in the tool. This class matches ends with starts across threads, asyncio tasks and
    recursion, also where the clock returns one time several times. A slice is not reported if it began before the tool
    listened, or if the schedule skips it. A slice that began is ended even if the schedule has passed to SKIP meanwhile.
    Slices that are open when the profiler stops are ended then.

    Mirrors take slices and instants of markers. They do not take counters, nor slices that tracekit makes itself ("batch").
    """

    inline: ClassVar[bool] = True

    has_clock: ClassVar[bool] = True
    """True if the tool reads the time of a slice itself. Its slice then encloses the one of the trace, so that both nest in a
    merged trace. Otherwise it gets the times of the trace."""

    is_inactive: bool = False
    """True if no tool can listen during the recording; set by `open`. The mirror then adds no cost to markers."""

    now: Callable[[], Moment]
    """Returns the present time of the recording; set when it starts."""

    def __init__(self) -> None:
        self._open: dict[Hashable, list[Any]] = {}
        self.hooks = (self,)

    def is_listening(self) -> bool:
        """Return True if the tool takes slices now. Called at each start, so it must be quick."""
        return True

    @abstractmethod
    def begin(self, name: str, categories: Sequence[str], moment: Moment) -> Any:
        """Begin a slice; return what `end` needs to end it."""

    @abstractmethod
    def end(self, opened: Any, moment: Moment, exception: str | None) -> None:
        """End a slice.

        Args:
            opened: The object that `begin` returned.
            moment: Time of the end.
            exception: Type name of the exception that ended the slice, if one did.
        """

    def leave(self, opened: Any, moment: Moment) -> None:
        """End a slice that is open when the profiler stops; called on the thread that stops it, or on the writer thread."""
        self.end(opened, moment, None)

    @abstractmethod
    def mark(self, name: str, categories: Sequence[str], moment: Moment) -> None:
        """Show an instant."""

    # ---- called by the profiler, on the recording thread --------------------------------------------------------------

    def keep(self, key: Hashable, opened: Any) -> None:
        """Keep what `begin` returned, or `NOT_BEGUN`, until the slice of that key ends."""
        # A coarse clock can give a slice the key of the one around it.
        if opened is not NOT_BEGUN or key in self._open:
            self._open.setdefault(key, []).append(opened)

    def slice_ends(self, key: Hashable, moment: Moment, exception: str | None) -> None:
        """End the last slice of a key, if it was begun."""
        slices = self._open.get(key)
        if slices:
            opened = slices.pop()
            if not slices:
                self._open.pop(key, None)
            if opened is not NOT_BEGUN:
                self.end(opened, moment, exception)

    @property
    def has_open(self) -> bool:
        """True if any slice is open."""
        return bool(self._open)

    def install(self) -> None:
        """Do nothing; see `ProcessHook`."""

    def remove(self) -> None:
        """End the open slices, on the thread that stops the profiler: most of them were begun there."""
        # In reverse order of the keys and, for each key, of the starts: mostly the innermost first.
        while self._open:
            _, slices = self._open.popitem()
            for opened in reversed(slices):
                if opened is not NOT_BEGUN:
                    self.leave(opened, self.now())

    close = remove  # for a recording that a signal ended
