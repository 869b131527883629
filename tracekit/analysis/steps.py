"""The training steps of a rank, and in which of them a time lies."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.analysis.reading import Process, Reading

__all__ = ["Steps", "steps_of_ranks"]


class Steps:
    """Steps of one rank, in order of time, apart from each other. Times are ns since the epoch, as far as files tell.

    Args:
        spans: Start, end and number of each, in any order; of those that overlap, the first is taken.

    Attributes:
        starts, ends, numbers: Of each step.
        durations: How long each took.
        total_ns: How long all of them took together.
        longest_ns: How long the longest took; 0 without steps.
    """

    def __init__(self, spans: list[tuple[int, int, int]]) -> None:
        self.starts, self.ends, self.numbers = array("q"), array("q"), array("q")
        spans.sort()
        for start, end, number in spans:
            if not self.ends or start >= self.ends[-1]:
                self.starts.append(start)
                self.ends.append(end)
                self.numbers.append(number)
        # They are asked for once for each marker, and every step of torch.profiler is a marker of its own.
        self.durations = [end - start for start, end in zip(self.starts, self.ends, strict=True)]
        self.total_ns = sum(self.durations)
        self.longest_ns = max(self.durations, default=0)
        # Where a number is missing, nothing was recorded: the pause between two windows, or a restart.
        jumps = [at for at in range(1, len(self.starts)) if self.numbers[at] != self.numbers[at - 1] + 1]
        self._pause_starts = array("q", (self.ends[at - 1] for at in jumps))
        self._pause_ends = array("q", (self.starts[at] for at in jumps))

    def __len__(self) -> int:
        return len(self.starts)

    def at(self, time: int) -> int:
        """Return in which step a time lies, counted from 0; -1 when in none."""
        found = bisect_right(self.starts, time) - 1
        return found if found >= 0 and time < self.ends[found] else -1

    def any_begins(self, start: int, end: int) -> bool:
        """Tell whether a step begins from one time on, and before another."""
        next_ = bisect_left(self.starts, start)
        return next_ < len(self.starts) and self.starts[next_] < end

    def any_pause(self, start: int, end: int) -> bool:
        """Return True if the recording paused in this stretch: between two steps whose numbers do not follow each other."""
        pause = bisect_right(self._pause_ends, start)
        return pause < len(self._pause_starts) and self._pause_starts[pause] < end

    def span(self, step: int, time: int) -> tuple[int, int]:
        """Return from when until when the answer of `at` for a time holds: during a step, else at that time alone."""
        return (self.starts[step], self.ends[step]) if step >= 0 else (time, time + 1)


def steps_of_ranks(reading: Reading) -> dict[int, Steps]:
    """Return the steps of each rank: what tracekit recorded of them, or else torch.profiler. The two are not mixed."""
    processes: dict[int, list[Process]] = {rank: [] for rank in reading.ranks}
    for process in reading.processes:
        if process.rank in processes:
            processes[process.rank].append(process)
    return {rank: _steps_of(own, reading) for rank, own in processes.items()}


def _steps_of(processes: list[Process], reading: Reading) -> Steps:
    for kind in ("batches", "profiler_steps"):
        spans = [
            (base + start, base + end, number)
            for process in processes
            for base in (reading.files[process.file].base_ns,)
            for start, end, number in zip(*getattr(process, kind), strict=True)
        ]
        if spans:
            return Steps(spans)
    return Steps([])
