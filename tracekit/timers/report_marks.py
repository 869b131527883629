"""ReportMarks: keep the time that each report has shown, so that one report takes nothing from the next."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Mark:
    """Totals of one report, ns.

    Attributes:
        start_ns: The report counts from here.
        shown_ns: The largest total that it has shown.
        step: The training step that it was last asked for.
        step_start_ns: Start of the count of that step.
    """

    start_ns: int
    shown_ns: int
    step: object
    step_start_ns: int


class ReportMarks:
    """Marks on a total that only grows, in ns: one for the timer itself, one for each report.

    Megatron's timers have one sum that every report may set back, so that the second of two reports shows nothing. Here a
    reset drops, for every report, the time that this report has shown already, and no more:

    * ``write(reset=True)`` and then ``log(reset=True)`` show the same;
    * ``write(reset=False)`` and then ``log(reset=True)`` show the same, and both begin anew;
    * a report that is asked every tenth time shows all ten.

    The timer's own reading (`own`) is Megatron's: the time since the last reset by anybody. Not thread-safe.
    """

    __slots__ = ("_marks", "_own_ns", "_start_ns")

    def __init__(self) -> None:
        self._start_ns = 0
        self._own_ns = 0
        self._marks: dict[str, _Mark] = {}

    def own(self, total_ns: int, *, reset: bool) -> int:
        """Return the time since the last reset by anybody, ns."""
        elapsed_ns = max(total_ns - self._own_ns, 0)
        if reset:
            self._reset(total_ns)
        return elapsed_ns

    def report(self, name: str, total_ns: int, *, reset: bool, step: object = None) -> int:
        """Return the time that a report has to show, ns.

        Asked twice for one step, a report shows the same and the time since, so that two writers get the values of the step
        one after the other.
        """
        mark = self._marks.get(name)
        if mark is None:
            mark = self._marks[name] = _Mark(self._start_ns, self._start_ns, None, self._start_ns)
        if step is None or step != mark.step:
            mark.step, mark.step_start_ns = step, mark.start_ns
        # A total read while another thread ends an interval may miss that interval; the next report shows it.
        mark.shown_ns = max(total_ns, mark.shown_ns)
        if reset:
            self._reset(total_ns)
        return max(total_ns - mark.step_start_ns, 0)

    def restart(self, total_ns: int) -> None:
        """Start every report, and the timer's own reading, from a total."""
        self._start_ns = self._own_ns = total_ns
        for mark in self._marks.values():
            mark.start_ns = mark.shown_ns = mark.step_start_ns = total_ns

    def _reset(self, total_ns: int) -> None:
        self._own_ns = max(total_ns, self._own_ns)
        for mark in self._marks.values():
            mark.start_ns = mark.shown_ns
