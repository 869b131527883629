"""Which part of an output is made next, and where, when several workers of one machine make them at once.

The first part that is left is written into the output: all before it is there, so that its place is known. Meanwhile the
others are made from the end, each in a file of its own, and copied into the output when the first ones have reached
them. With two workers half of the output is written only once; the copies, too, are made by all at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["Assembly", "Task"]


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker does next.

    Attributes:
        number: Of the part.
        at: From which byte of the output on; None: into a file of its own.
        made: Whether it is in that file, and only has to be copied.
    """

    number: int
    at: int | None
    made: bool = False


class Assembly:
    """Hands out tasks, and is told when parts are made.

    Attributes:
        at: Where in the output the first part goes whose place is not known yet; its end, when all is done.

    Args:
        count: How many parts there are.
        at: Where the first one begins.
    """

    def __init__(self, count: int, at: int) -> None:
        self.at = at
        self._left = deque(range(count))
        self._first = 0  # whose place is `at`
        self._in_place: int | None = None  # the part that a worker is writing into the output
        self._sizes: dict[int, int] = {}  # of parts in files whose place is not known yet
        self._copies: deque[Task] = deque()

    def next(self) -> Task | None:
        """Return what can be done now, None when there is nothing until another task is done."""
        if self._left and self._in_place is None:
            self._in_place = self._left.popleft()
            return Task(self._in_place, self.at)
        if self._left:
            return Task(self._left.pop(), None)
        return self._copies.popleft() if self._copies else None

    def made(self, number: int, size: int) -> None:
        """Note that a part is made, and its size in bytes."""
        self._sizes[number] = size
        if number == self._in_place:
            self._in_place = None
            self._advance()
        while self._first in self._sizes:
            self._copies.append(Task(self._first, self.at, made=True))
            self._advance()

    def _advance(self) -> None:
        self.at += self._sizes.pop(self._first)
        self._first += 1
