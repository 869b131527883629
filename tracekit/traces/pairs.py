"""Pair the begin and the end of slices."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

_Slice = TypeVar("_Slice")

_MAX_STEPS: Final = 1024


class OpenSlices(Generic[_Slice]):
    """The open slices of one track, innermost last.

    As in Perfetto (slice_tracker.h), an end closes the innermost slice that its name and category fit; a name or category that
    is None or empty fits all. The begin of an end is searched among the ``max_steps`` innermost slices.
    """

    __slots__ = ("_max_steps", "_open")

    def __init__(self, max_steps: int = _MAX_STEPS) -> None:
        self._max_steps = max_steps
        self._open: list[tuple[object, object, _Slice]] = []

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, name: object, category: object, slice_: _Slice) -> None:
        """Add a slice."""
        self._open.append((name, category, slice_))

    def end(self, name: object, category: object) -> _Slice | None:
        """Remove and return the slice that an end closes; None if it fits none."""
        opened = self._open
        for at in range(len(opened) - 1, max(-1, len(opened) - 1 - self._max_steps), -1):
            begun = opened[at]
            if (not name or name == begun[0]) and (not category or category == begun[1]):
                del opened[at]
                return begun[2]
        return None

    @property
    def slices(self) -> list[_Slice]:
        """The open slices, outermost first."""
        return [begun[2] for begun in self._open]

    @property
    def innermost(self) -> _Slice:
        """The slice that began last."""
        return self._open[-1][2]

    def clear(self) -> None:
        """Forget all slices."""
        self._open.clear()
