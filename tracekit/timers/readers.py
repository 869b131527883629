"""Readers: how much of a timer's time each report has shown, so that one report takes nothing from the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Readers"]

_NO_STEP: Final = object()


@dataclass(slots=True)
class _View:
    """What one report has been shown.

    Attributes:
        mark_ns: The total from which on it counts.
        seen_ns: The total that it has shown last.
        step: The training step that it was asked for last.
        before_ns: Its mark before that.
    """

    mark_ns: int
    seen_ns: int
    step: object
    before_ns: int


class Readers:
    """Marks on a total that only grows, in ns: one for the timer itself, one for each report.

    Megatron's timers have one sum that every report may set back, so that the second of two reports shows nothing. Here a
    reset drops, for every report, what that report has shown already, and no more:

    * ``write(reset=True)`` and then ``log(reset=True)`` show the same;
    * ``write(reset=False)`` and then ``log(reset=True)`` show the same, and both begin anew;
    * a report that is asked every tenth time shows all ten.

    The timer's own reading (`own`) is Megatron's: what was measured since the last reset by anybody. One thread at a time.
    """

    __slots__ = ("_floor_ns", "_own_ns", "_views")

    def __init__(self) -> None:
        self._floor_ns = 0
        self._own_ns = 0
        self._views: dict[str, _View] = {}

    def own(self, total_ns: int, *, reset: bool) -> int:
        """Return what there is since the last reset by anybody, ns."""
        elapsed_ns = max(total_ns - self._own_ns, 0)
        if reset:
            self._reset(total_ns)
        return elapsed_ns

    def report(self, name: str, total_ns: int, *, reset: bool, step: object = None) -> int:
        """Return what a report has to show, ns.

        Args:
            name: Which report.
            total_ns: The total now.
            reset: Whether it begins anew afterwards.
            step: The training step that it is for. Asked twice for the same one, it shows the same and what has come since: so
                two writers get the values of a step one after the other.
        """
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = _View(self._floor_ns, self._floor_ns, _NO_STEP, self._floor_ns)
        if step is None or step != view.step:
            view.before_ns = view.mark_ns
            view.step = _NO_STEP if step is None else step
        # A total read on one thread while another ends an interval may miss that for a moment; it is shown the next time.
        view.seen_ns = max(total_ns, view.seen_ns)
        if reset:
            self._reset(total_ns)
        return max(total_ns - view.before_ns, 0)

    def restart(self, total_ns: int) -> None:
        """Have every reader begin anew at a total."""
        self._floor_ns = self._own_ns = total_ns
        for view in self._views.values():
            view.mark_ns = view.seen_ns = view.before_ns = total_ns

    def _reset(self, total_ns: int) -> None:
        self._own_ns = max(total_ns, self._own_ns)
        for view in self._views.values():
            view.mark_ns = view.seen_ns
