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
        first: The first batch of the window.
        end: The batch after its last one.
        is_off: Returns True as soon as there is to be no window.
    """

    def __init__(self, source: Source, first: int, end: int, is_off: Callable[[], bool] = lambda: False) -> None:
        self._source = source
        self._first = first
        self._end = end
        self._is_off = is_off
        self._recorder: Recorder | None = None
        self._action = ProfilerAction.SKIP

    def check(self, recorder: Recorder) -> None:
        """Check the source."""
        self._source.check(recorder)

    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        """Open the source with the action of the window."""
        self._recorder = recorder
        self._action = self._now()
        self._source.open(recorder, self._action)

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        """Pass to the next batch."""
        before, self._action = self._action, self._now()
        self._source.step(before, self._action)

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _now(self) -> ProfilerAction:
        assert self._recorder is not None, "opened before"
        if self._is_off():
            return ProfilerAction.SKIP
        batch = int(self._recorder.timestamp.batch)
        if self._first <= batch < self._end:
            return ProfilerAction.ACTIVE_AND_SAVE if batch == self._end - 1 else ProfilerAction.ACTIVE
        return ProfilerAction.WARMUP if batch == self._first - 1 else ProfilerAction.SKIP
