"""The seam between a profiler and what feeds it events without user code (torch.profiler, system counters ...)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.clock import ClockOffset, Timeline
    from tracekit.distributed import ProcessInfo
    from tracekit.recording.marker import Marker
    from tracekit.recording.schedule import ProfilerAction
    from tracekit.timestamp import Timestamp

__all__ = ["Recorder", "Source"]


class Recorder(Protocol):
    """What a source may use of the `Profiler` that runs it. Every method may be called from any thread."""

    @property
    def process(self) -> ProcessInfo:
        """Who this process is: rank, host, run id ..."""

    @property
    def timeline(self) -> Timeline:
        """The time scale of the recording, and the clocks that it is read from."""

    @property
    def timestamp(self) -> Timestamp:
        """The current training time."""

    @property
    def action(self) -> ProfilerAction:
        """What the schedule says for the batch that is running."""

    def marker(self, name: str, categories: Sequence[str] = ()) -> Marker:
        """Return a marker, to record slices, instants and counters with."""

    def format_path(self, template: str) -> str:
        """Fill in a file-name template (``{run_id} {rank} ... {epoch} {batch}``) for now."""

    def record_chrome_json_trace_file(self, filepath: str) -> None:
        """Tell every trace handler that a finished Chrome JSON trace of this process lies at ``filepath``."""

    def record_clock_offset(self, offset: ClockOffset) -> None:
        """Tell every trace handler how this process's clock stands to another's."""

    def report_failure(self, who: str, error: BaseException) -> None:
        """Count a failure and log it once; under ``TRACEKIT_STRICT=1`` the training thread raises it later. Raises nothing."""


class Source(ABC):
    """Something that records beside the markers, under the same schedule.

    The profiler calls `open` once, then `step` at every batch boundary, then `close` once, all on the training thread.
    An exception is reported and counted, and never reaches the training loop; after it the source is not called again,
    but for `close`.
    """

    def check(self, recorder: Recorder) -> None:
        """Raise `ConfigError` for what cannot work in this process; called before anything is started."""

    @abstractmethod
    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        """Start.

        Args:
            recorder: The profiler.
            action: What the schedule says for the first batch.
        """

    @abstractmethod
    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        """Pass from one batch to the next; ``recorder.timestamp`` already names the next one.

        May come with no batch in between: the schedule is asked for the next batch before it is known that the epoch is
        over, and again when the next epoch begins.

        Args:
            finished: The action of the batch that ended; after ``ACTIVE_AND_SAVE`` a window is complete: save it.
            action: The action of the batch that begins.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop, and save a window that is still open. Called once, also after a failure."""
