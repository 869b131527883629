"""The interface between a profiler and sources of events without user code (torch.profiler, system counters ...)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.clock import ClockOffset, Timeline
    from tracekit.distributed import ProcessInfo
    from tracekit.recording.marker import Marker
    from tracekit.recording.schedule import ProfilerAction
    from tracekit.timestamp import Timestamp


class Recorder(Protocol):
    """The methods of `Profiler` that a source may use. All of them are thread-safe."""

    @property
    def process(self) -> ProcessInfo:
        """The identity of this process: rank, host, run id ..."""

    @property
    def timeline(self) -> Timeline:
        """The time scale of the recording, and its clocks."""

    @property
    def timestamp(self) -> Timestamp:
        """The current training time."""

    @property
    def action(self) -> ProfilerAction:
        """The action of the running batch."""

    def marker(self, name: str, categories: Sequence[str] = ()) -> Marker:
        """Return a marker, which records slices, instants and counters."""

    def format_path(self, template: str) -> str:
        """Fill in a file-name template (``{run_id} {rank} ... {epoch} {batch}``) with the current values."""

    def record_chrome_json_trace_file(self, filepath: str) -> None:
        """Pass the path of a complete Chrome JSON trace of this process to every trace handler."""

    def record_clock_offset(self, offset: ClockOffset) -> None:
        """Pass an offset between this process's clock and another clock to every trace handler."""

    def report_failure(self, who: str, error: BaseException) -> None:
        """Count a failure, and log it once. Never raises. With ``TRACEKIT_STRICT=1`` the training thread raises it."""


class Source(ABC):
    """Base class of sources that record events without markers, under the profiler's schedule.

    The profiler calls `open` once, then `step` at every batch boundary, then `close` once, all on the training thread.
    An exception is reported and counted, and does not reach the training loop. After an exception, only `close` is
    called.
    """

    steps_on_change: ClassVar[bool] = False
    """True to call `step` only at a boundary where the action changes: no code then runs at the others."""

    def check(self, recorder: Recorder) -> None:
        """Raise `ConfigError` if the source cannot work in this process. Called before anything is started."""

    @abstractmethod
    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        """Start recording.

        Args:
            recorder: The profiler.
            action: The action of the first batch.
        """

    @abstractmethod
    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        """Change from one batch to the next. ``recorder.timestamp`` is already that of the next batch.

        Two calls may come without a batch in between: the profiler asks the schedule for the next batch before it knows
        that the epoch is over, and again when the next epoch begins.

        Args:
            finished: Action of the ended batch. After ``ACTIVE_AND_SAVE`` the window is complete; save it.
            action: Action of the next batch.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop recording, and save a window that is still open. Called once, also after a failure."""


class SourceGroup:
    """The sources of one profiler. A source that fails is reported, and only closed from then on.

    Attributes:
        members: The sources.
        stepped: Those that `step` calls at every boundary.
    """

    def __init__(self, sources: Sequence[Source], report: Callable[[str, BaseException], object]) -> None:
        self.members = sources
        self.stepped = [source for source in sources if not source.steps_on_change]
        self._report = report
        self._broken: set[int] = set()

    def check(self, recorder: Recorder) -> None:
        """Raise `ConfigError` if a source cannot work in this process."""
        for source in self.members:
            source.check(recorder)

    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        """Open the sources."""
        for source in self.members:
            self._call(source, source.open, recorder, action)

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        """Change from one batch to the next."""
        for source in self.stepped if action is finished else self.members:
            self._call(source, source.step, finished, action)

    def close(self) -> None:
        """Close all sources, also those that have failed."""
        self._broken.clear()
        for source in self.members:
            self._call(source, source.close)

    def _call(self, source: Source, method: Callable[..., None], *args: object) -> None:
        if id(source) in self._broken:
            return
        try:
            method(*args)
        except Exception as error:  # noqa: BLE001 - a source's failure must not reach training
            self._broken.add(id(source))
            self._report(type(source).__name__, error)
