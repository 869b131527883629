"""TracekitCallback: binds a profiler of tracekit to the State and the events of Composer's Trainer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_profiler
from tracekit.integrations.batches import samples_in, tokens_in
from tracekit.integrations.composer.handler import ComposerHandler, NoLogger
from tracekit.integrations.slices import NestedMarkers
from tracekit.recording.lifecycle import DEFAULT_ACTIONS
from tracekit.recording.schedule import ProfilerAction
from tracekit.timestamp import Timestamp

try:
    from composer.core import Callback, Event
except ImportError as error:
    raise ImportError(
        "TracekitCallback records a Trainer of Composer, which cannot be imported here; pip install mosaicml"
    ) from error

if TYPE_CHECKING:
    from tracekit.recording.profiler import Profiler

# Events that begin before a recording window and end after it; always recorded, as in Composer
_LONG: Final = {"fit", "iteration", "epoch"}
# Numbers of a timestamp that Composer counts over all ranks
_COUNTED: Final = ("sample", "token", "token_in_iteration", "sample_in_epoch", "token_in_epoch")


class TracekitCallback(Callback):  # type: ignore[misc]
    """Records a Composer Trainer: ``Trainer(..., callbacks=[TracekitCallback(profiler)])``.

    Every pair of events becomes a slice by Composer's name, ``event/forward`` and so on, one inside the other, also where an
    exception or a retry (automatic microbatching, which Composer refuses to its own profiler) keeps the second event of a pair
    from coming. The `Timestamp` is Composer's: iterations, epochs, batches and wall-clock times always; samples and tokens with
    ``Profiler(counts="global")``, because Composer counts those of all ranks. With ``counts="rank"`` they are counted in this
    rank's batches; of a resumed run, what came before is Composer's number divided by the number of ranks.

    A profiler that does not run yet is started with the Trainer's first event and stopped with the last (`Trainer.close`, or
    the end of the process, also by an exception); one in a ``with`` block of yours is left running.

    Args:
        profiler: The profiler.
        slices: Make slices of the pairs of events.
    """

    def __init__(self, profiler: Profiler, *, slices: bool = True) -> None:
        check_profiler("TracekitCallback: profiler", profiler)
        super().__init__()
        self._profiler = profiler
        self._slices = slices
        self._has_started = False
        self._seen = False
        self._is_mine = False
        self._open = NestedMarkers()
        self._batch_sizes = (0, 0)

    def run_event(self, event: Event, state: Any, logger: Any) -> None:
        """Process any event of the Trainer."""
        if not self._seen:
            self._seen = True
            self._bind_handlers(state, logger)
            self.start()
        try:
            if self._slices and event.is_after_event:
                self._open.end(event.canonical_name)
            follow = getattr(self, f"_on_{event.value}", None)
            if follow is not None:
                follow(state)
            if self._slices and event.is_before_event:
                # An exception may have kept the event from coming that ends an earlier one.
                name = event.canonical_name
                actions = ProfilerAction if name in _LONG else DEFAULT_ACTIONS
                self._open.begin(name, self._profiler.marker(f"event/{name}", actions=actions))
        except Exception as error:  # noqa: BLE001 - a failure of the recording must not end the training
            self._profiler.report_failure("TracekitCallback", error)

    def close(self, state: Any, logger: Any) -> None:
        """End what is open, and the recording where it began here."""
        self._open.close()
        if self._is_mine:
            # Pass an exception to the handlers; a flight recorder writes then.
            self._profiler.__exit__(*sys.exc_info())

    def start(self, state: Any = None) -> None:
        """Start the recording, once, if it is not running.

        Args:
            state: Composer's State, if no event of its Trainer has come yet.
        """
        if self._has_started:
            return
        self._has_started = True
        if state is not None:
            self._bind_handlers(state, NoLogger())
        if not self._profiler.started:
            self._profiler.start()
            self._is_mine = True

    def _bind_handlers(self, state: Any, logger: Any) -> None:
        for handler in self._profiler.trace_handlers:
            if isinstance(handler, ComposerHandler):
                handler.bind(state, logger, Event)

    # ---- training time ------------------------------------------------------------------------------------------------

    def _on_fit_start(self, state: Any) -> None:
        self._agree(state)
        if not int(state.timestamp.batch):  # the first batch begins here
            self._profiler.resume_at(self._profiler.timestamp)

    def _on_before_dataloader(self, state: Any) -> None:
        if not self._slices:  # Composer reports no end of those that a resumed run reads only to pass over them
            state.profiler.marker("event/dataloader").finish()

    def _on_batch_start(self, state: Any) -> None:
        self._profiler.begin_batch()
        self._batch_sizes = samples_in(state.batch), tokens_in(state.batch)

    def _on_batch_end(self, state: Any) -> None:
        theirs, ours = state.timestamp, self._profiler.timestamp
        samples, tokens = self._batch_sizes
        if self._profiler.counts == "global":
            samples, tokens = int(theirs.sample) - int(ours.sample), int(theirs.token) - int(ours.token)
        self._profiler.step(samples, tokens, theirs.batch_wct)
        self._agree(state)

    def _on_epoch_end(self, state: Any) -> None:
        self._open.end("dataloader")  # of an exhausted loader: the rest of a resumed epoch has no slice that ends it
        self._profiler.next_epoch()
        self._agree(state)

    def _on_iteration_end(self, state: Any) -> None:
        self._profiler.next_iteration()
        self._agree(state)

    def _agree(self, state: Any) -> None:
        """Take Composer's training time where ours is another: of a checkpoint, or of a second ``fit``."""
        ours = self._profiler.timestamp
        theirs = Timestamp.from_state_dict(state.timestamp.state_dict())
        if self._profiler.counts != "global":
            known, ranks = (ours, 1) if int(ours.batch) else (theirs, self._profiler.process.world_size)
            theirs = theirs.copy(**{name: int(getattr(known, name)) // ranks for name in _COUNTED})
        if theirs != ours:
            self._profiler.resume_at(theirs)

    _on_after_load = _agree
