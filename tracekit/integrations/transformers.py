"""TracekitCallback: records a Trainer of Hugging Face transformers."""

from __future__ import annotations

import functools
import logging
import math
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from transformers import TrainerCallback
from transformers.utils.import_utils import is_torchdynamo_compiling

from tracekit.arguments import check_profiler
from tracekit.errors import TimeError
from tracekit.integrations.batches import Counts
from tracekit.integrations.hooks import hook_forward, recorded_pass, watch
from tracekit.integrations.slices import NestedMarkers
from tracekit.timestamp import Timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.recording.profiler import Profiler

    F = TypeVar("F", bound=Callable[..., None])

logger = logging.getLogger("tracekit")
_STATE: Final = "tracekit"  # under which name the training time stands among the states of callbacks in a checkpoint
_ONLY: Final = "eval_runtime"  # the metric of an evaluation of one dataset without a name


def _harmless(method: F) -> F:
    """Report what a method raises: a failure of the recording must not end the training."""

    @functools.wraps(method)
    def called(self: TracekitCallback, args: Any, state: Any, control: Any, **named: Any) -> None:
        try:
            method(self, args, state, control, **named)
        except Exception as error:  # noqa: BLE001 - see above
            self.profiler.report_failure("TracekitCallback", error)

    return called  # type: ignore[return-value]


def _event(*, ends: str = "", begins: str = "") -> Any:
    """Return the method for an event of the Trainer at which a slice ends, and another begins."""

    @_harmless
    def on_event(self: TracekitCallback, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._open.end(ends)
        if begins:
            self._begin(begins)

    return on_event


class TracekitCallback(TrainerCallback):
    """Records a Trainer: ``Trainer(..., callbacks=[TracekitCallback(profiler)])``.

    One batch of the profiler is one step of the optimizer, as the Trainer counts them (``global_step``): with gradient
    accumulation it has several batches of the data loader. The slices are "train" and "epoch", "dataloader" (each wait for a
    batch, with the workers on tracks of their own), "training step" (for each of these batches) with "forward" and "backward"
    inside (from the end of the forward pass, with the clipping of the gradients), "optimizer", "evaluation" (of each dataset)
    with "eval forward" inside, and "save" (with several of these datasets, from the second round on). "forward" and "backward"
    come from hooks of the model: one that is compiled as a whole has none, and neither have the replicas of
    ``torch.nn.DataParallel``.

    A profiler that does not run yet is started when training begins and stopped when it ends. The Trainer reports no
    exception to its callbacks: put the profiler into a ``with`` block around ``trainer.train()``, so that its handlers get an
    exception immediately and not when the process ends.

    The samples and tokens of a step are counted in this rank's batches, padding included. With ``Profiler(counts="global")``
    tokens are the Trainer's ``num_input_tokens_seen`` where it counts them (``include_num_input_tokens_seen``), which then leave
    padding out if it does; all else is this rank's, multiplied by the number of ranks.

    The training time is in the Trainer's checkpoints (rank 0's, like everything there), and a resumed run goes on from it. From
    a checkpoint without it the steps and epochs are the Trainer's, and samples and tokens are computed from the size of its
    batches. The first epoch of a resumed run has no slices "dataloader", because the Trainer reads it from a private
    loader.

    Args:
        profiler: The profiler.
    """

    def __init__(self, profiler: Profiler) -> None:
        check_profiler("TracekitCallback: profiler", profiler)
        self.profiler = profiler
        self._is_mine = False
        self._thread = threading.get_ident()  # of the training
        self._open = NestedMarkers()
        self._undo = ExitStack()
        # Of this rank since the last step: as read from the loader, which in the first epoch of a resumed run is another one
        # than the Trainer shows, and as seen by the model, which is silent when it is compiled, and may be called twice.
        self._loaded, self._modelled = Counts(), Counts()
        self._tokens_seen = 0  # by the Trainer
        self._dataset = self._last_dataset = _ONLY  # of evaluations, by a metric of theirs

    # ---- life ---------------------------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Start the profiler, if it does not run, and go on from the Trainer's training time."""
        self._thread = threading.get_ident()
        self._resume(args, state, control, **named)
        if not self.profiler.started:
            if self._is_mine:
                logger.warning(
                    "tracekit: this training is not recorded: its profiler ended with the last one; give "
                    "TracekitCallback a profiler that runs, in a with block around all of them"
                )
                return
            self.profiler.start()
            self._is_mine = True
        self._watch(args, state, control, **named)

    @_harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Stop the profiler, if it was started here."""
        self.close()
        if self._is_mine:
            self.profiler.stop()

    def close(self) -> None:
        """End the open slices, and leave model and loader as they were: after a training that an exception has ended."""
        self._undo.close()
        self._open.close()

    # ---- the loop -----------------------------------------------------------------------------------------------------

    on_epoch_begin = _event(ends="evaluation", begins="epoch")  # of ``eval_on_start``
    # A batch that is not the last of its step is over, and the next one begins.
    on_substep_end = _event(ends="training step", begins="training step")
    on_pre_optimizer_step = _event(ends="training step", begins="optimizer")
    on_optimizer_step = _event(ends="optimizer")
    on_save = _event(ends="save")

    @_harmless
    def on_epoch_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Pass to the next epoch."""
        self._open.end("epoch")
        self.profiler.next_epoch()
        self._expect(control)

    @_harmless
    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """End what may be open of an evaluation that was asked for and did not come."""
        self._last_dataset = self._dataset
        self._open.end("save")
        self._open.end("evaluation")
        self._begin("training step")

    @_harmless
    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Pass to the next batch of the profiler."""
        self._open.end("optimizer")
        self._open.end("training step")
        whole = args.train_batch_size * args.gradient_accumulation_steps
        loaded, modelled = self._loaded.take(), self._modelled.take()
        samples, tokens = loaded if any(loaded) else modelled
        if samples > whole:  # the loss calls the model more than once
            samples, tokens = whole, tokens * whole // samples
        samples = samples or whole
        if self.profiler.counts == "global":
            samples, tokens = samples * args.world_size, tokens * args.world_size
            if state.num_input_tokens_seen > self._tokens_seen:
                tokens, self._tokens_seen = state.num_input_tokens_seen - self._tokens_seen, state.num_input_tokens_seen
        self.profiler.step(int(samples), int(tokens))
        if isinstance(getattr(state, "stateful_callbacks", None), dict):
            saved = {"counts": self.profiler.counts, **self.profiler.timestamp.state_dict()}
            state.stateful_callbacks[_STATE] = {"args": {}, "attributes": saved}
        self._expect(control)

    @_harmless
    def on_log(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Logging comes in front of an evaluation, and of saving."""
        if "evaluation" not in self._open:
            self._expect(control, logged=True)

    @_harmless
    def on_evaluate(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """An evaluation of one dataset is over. The Trainer saves after the last, which the first round shows."""
        self._open.end("evaluation")
        self._dataset = next((name for name in named.get("metrics") or () if name.endswith("_runtime")), _ONLY)
        if control.should_save and self._dataset in (_ONLY, self._last_dataset):
            self._begin("save")

    def _expect(self, control: Any, *, logged: bool = False) -> None:
        """Begin the slice of the Trainer's next action: it logs, evaluates and saves, and reports the end of each."""
        if control.should_log and not logged:
            return
        if control.should_evaluate:
            self._begin("evaluation")
        elif control.should_save:
            self._begin("save")

    # ---- the model and the data loader --------------------------------------------------------------------------------

    @_harmless
    def _watch(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        model: Any = named.get("model")
        self._begin("train")
        if hasattr(model, "register_forward_pre_hook"):
            hook_forward(self._undo, model, self._before_forward, self._after_forward)
        if (loader := named.get("train_dataloader")) is not None:
            self._undo.callback(watch(loader, self._pass))

    def _pass(self, loader: Any, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        for batch in recorded_pass(self.profiler, loader, begin):
            self._loaded.add(batch)
            yield batch

    def _before_forward(self, model: Any, args: Any, named: Any) -> None:
        # While Dynamo traces, this hook would become a part of the graph, and break it; a replica of DataParallel is silent.
        if is_torchdynamo_compiling() or threading.get_ident() != self._thread:
            return
        if not model.training:
            if "training step" not in self._open:  # another evaluation: of a second dataset, or before the first step
                self._begin("evaluation")
            self._begin("eval forward")
            return
        self._open.end("backward")
        self._modelled.add(named or args)
        self._begin("forward")

    def _after_forward(self, model: Any, _args: Any, output: Any) -> None:
        if is_torchdynamo_compiling() or threading.get_ident() != self._thread:
            return
        self._open.end("forward" if model.training else "eval forward")
        if model.training and output is not None:  # it is None where the pass has raised
            self._begin("backward")

    def _begin(self, name: str) -> None:
        if name not in self._open:
            self._open.begin(name, self.profiler.marker(name))

    # ---- training time ------------------------------------------------------------------------------------------------

    @_harmless
    def _resume(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.close()  # after a training that an exception has ended
        self._loaded, self._modelled = Counts(), Counts()
        self._tokens_seen = state.num_input_tokens_seen
        if int(self.profiler.timestamp.batch) != state.global_step:
            self.profiler.resume_at(self._saved(state) or self._computed(args, state, named.get("train_dataloader")))
        elif not state.global_step:  # the first batch begins here
            self.profiler.resume_at(self.profiler.timestamp)

    def _saved(self, state: Any) -> Timestamp | None:
        states = getattr(state, "stateful_callbacks", None)
        saved = dict(states.get(_STATE, {}).get("attributes", {})) if isinstance(states, dict) else {}
        counts = saved.pop("counts", None)
        if counts != self.profiler.counts or saved.get("batch") != state.global_step:
            return None
        try:
            return Timestamp.from_state_dict(saved)
        except TimeError:  # of another version of tracekit
            return None

    def _computed(self, args: Any, state: Any, loader: Any) -> Timestamp:
        accumulated = args.gradient_accumulation_steps
        epoch = int((state.epoch or 0) + 1e-6)
        try:
            in_epoch = max(0, state.global_step - epoch * math.ceil(len(loader) / accumulated))
        except TypeError:  # a loader without a length
            in_epoch = 0
        ranks = args.world_size if self.profiler.counts == "global" else 1
        samples = args.train_batch_size * accumulated * ranks
        tokens = state.num_input_tokens_seen * ranks // args.world_size
        return Timestamp(
            epoch=epoch,
            batch=state.global_step,
            sample=state.global_step * samples,
            token=tokens,
            epoch_in_iteration=epoch,
            token_in_iteration=tokens,
            batch_in_epoch=in_epoch,
            sample_in_epoch=in_epoch * samples,
        )
