"""The collectives of a rank, of which a process group at a time is read: of all of them there are hundreds for each group."""

from __future__ import annotations

from sys import intern
from typing import TYPE_CHECKING

from tracekit.collectives.parts import by_group

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.collectives.parts import Collective
    from tracekit.merge.shelf import Shelf

__all__ = ["Group", "KeptByRank", "KeptCollectives"]

Group = tuple[str, str]
"""Name and members of a process group."""


class KeptCollectives:
    """Some collectives of one rank in one input, on a shelf.

    Args:
        found: In the order of their ends.
        shelf: Where they are put.

    Attributes:
        groups: The process groups that synchronised, sorted, each with the place of what did it.
    """

    __slots__ = ("_messages", "_shelf", "groups")

    def __init__(self, found: list[Collective], shelf: Shelf) -> None:
        self._shelf = shelf
        self.groups: tuple[tuple[Group, int], ...] = tuple(
            ((intern(name), intern(members)), self.put(collectives)) for (name, members), collectives in by_group(found)
        )
        messages = [one for one in found if one.label.peers is not None]
        self._messages = self.put(messages) if messages else None

    def put(self, found: Iterable[Collective]) -> int:
        """Put some of them aside; returns their place."""
        return self._shelf.put(list(found))

    def at(self, place: int) -> list[Collective]:
        """Return what lies at a place, in the order of the ends."""
        found: list[Collective] = self._shelf.get(place)
        return found

    def messages(self) -> list[Collective]:
        """Return sends and receives whose partners are known."""
        return [] if self._messages is None else self.at(self._messages)


KeptByRank = tuple[tuple[int | None, KeptCollectives], ...]
"""The collectives of each rank of an earlier merge; those of any other input under None."""
