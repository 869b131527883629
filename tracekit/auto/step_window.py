"""StepWindow: run a source in some steps only, while the markers record all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.recording.schedule import ProfilerAction
from tracekit.recording.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.recording.source import Recorder


class StepWindow(Source):
    """Gives a source a separate schedule: one window, after one batch of warm-up.

    Args:
        source: The source.
        steps: The first batch of the window, and the batch after its last one; None keeps the schedule of the recording.
        is_on: Returns False while the source is to record nothing.
    """

    def __init__(self, source: Source, steps: tuple[int, int] | None, is_on: Callable[[], bool] = lambda: True) -> None:
        self._source = source
        self._steps = steps
        self._is_on = is_on
        self._recorder: Recorder | None = None
        self._action = ProfilerAction.SKIP

    def check(self, recorder: Recorder) -> None:
        """Check the source."""
        self._source.check(recorder)

    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        """Open the source with the action of the window."""
        self._recorder = recorder
        self._action = self._now(recorder, action)
        self._source.open(recorder, self._action)

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        """Pass to the next batch."""
        assert self._recorder is not None, "opened before"
        before, self._action = self._action, self._now(self._recorder, action)
        self._source.step(before, self._action)

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _now(self, recorder: Recorder, action: ProfilerAction) -> ProfilerAction:
        if not self._is_on():
            return ProfilerAction.SKIP
        if self._steps is None:
            return action
        first, end = self._steps
        batch = int(recorder.timestamp.batch)
        if first <= batch < end:
            return ProfilerAction.ACTIVE_AND_SAVE if batch == end - 1 else ProfilerAction.ACTIVE
        return ProfilerAction.WARMUP if batch == first - 1 else ProfilerAction.SKIP
