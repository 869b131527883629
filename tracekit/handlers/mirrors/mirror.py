"""Mirror: the base of what shows each slice in another tool at once, on the thread that records it."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from tracekit.handlers.base import TraceHandler

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from tracekit.events import Timestamps
    from tracekit.timestamp import Timestamp

__all__ = ["Mirror", "Moment"]


class Moment:
    """When something happened; what it costs to find out is paid only where it is asked for.

    Args:
        monotonic_ns: The monotonic time.
        offset_ns: What to add to it to get ns since the epoch.
        timestamps: Which training time was current when.
    """

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
    """Tells another tool of every slice at its start and at its end.

    A subclass says how a slice is begun and ended there; which end belongs to which start is seen to here, whatever threads,
    asyncio tasks and recursion are involved. Nothing is told of a slice that began before the tool listened, or that the
    schedule left out; a slice that began is ended even where the schedule has passed to SKIP meanwhile. What is open when
    the profiler stops is ended then.

    Mirrors take slices and instants of markers; counters, and the slices that tracekit makes itself ("batch"), are not mirrored.
    """

    inline: ClassVar[bool] = True

    is_deaf: bool = False
    """Whether nobody can listen for the whole recording; set by `open`, and markers then cost what they cost without."""

    def __init__(self) -> None:
        self._open: dict[Hashable, list[Any]] = {}
        self.hooks = (self,)

    def is_listening(self) -> bool:
        """Tell whether the tool takes slices now. Asked at each start, so it must be quick."""
        return True

    @abstractmethod
    def begin(self, name: str, categories: Sequence[str], moment: Moment) -> Any:
        """Begin a slice; return what `end` needs to end it."""

    @abstractmethod
    def end(self, opened: Any, moment: Moment, exception: str | None) -> None:
        """End a slice.

        Args:
            opened: What `begin` has returned.
            moment: When it ended.
            exception: Name of the exception's type, where one has ended it.
        """

    @abstractmethod
    def mark(self, name: str, categories: Sequence[str], moment: Moment) -> None:
        """Show an instant."""

    @abstractmethod
    def leave(self, opened: Any) -> None:
        """End a slice that is open when the profiler stops; called on the thread that stops it, or on the writer's."""

    # ---- called by the profiler, on the recording thread --------------------------------------------------------------

    def slice_begins(self, key: Hashable, name: str, categories: Sequence[str], moment: Moment) -> None:
        """Begin the slice of that key."""
        opened = self.begin(name, categories, moment)
        self._open.setdefault(key, []).append(opened)

    def slice_ends(self, key: Hashable, moment: Moment, exception: str | None) -> None:
        """End the slice of that key, if it was begun."""
        slices = self._open.get(key)
        if slices:
            opened = slices.pop()
            if not slices:
                self._open.pop(key, None)
            self.end(opened, moment, exception)

    @property
    def has_open(self) -> bool:
        """Whether any slice is open."""
        return bool(self._open)

    def install(self) -> None:
        """Nothing; see `ProcessHook`."""

    def remove(self) -> None:
        """End what is open, on the thread that stops the profiler: most of it was begun there."""
        self._leave_all()

    def close(self) -> None:
        """End what is still open, where the recording was ended by a signal."""
        self._leave_all()

    def _leave_all(self) -> None:
        # The innermost first, as far as the order of their starts tells.
        while self._open:
            _, slices = self._open.popitem()
            for opened in reversed(slices):
                self.leave(opened)
