"""AcceleratorRecorder: records a training loop that is written with Hugging Face Accelerate, by one line."""

from __future__ import annotations

import functools
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from tracekit.arguments import check_profiler
from tracekit.integrations.batches import Counts
from tracekit.integrations.hooks import hook_forward, model_hook, recorded_pass, replace_method, watch
from tracekit.timestamp import Timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tracekit.recording.profiler import Profiler

# The methods of an Accelerator that become slices, and what these are called
_METHODS: Final = {
    "backward": "backward",
    "clip_grad_norm_": "clip gradients",
    "clip_grad_value_": "clip gradients",
    "save_state": "save checkpoint",
    "load_state": "load checkpoint",
}
# Methods that return objects to record; `prepare` calls some of them, and ``skip_first_batches`` makes a new loader
_PREPARING: Final = ("prepare", "prepare_model", "prepare_optimizer", "prepare_data_loader", "skip_first_batches")


class AcceleratorRecorder:
    """Records what goes through an ``Accelerator``.

    Example::

        accelerator = Accelerator()
        with Profiler(...) as profiler, AcceleratorRecorder(accelerator, profiler):
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            ...  # the loop as it is

    What was or will be prepared is recorded: "dataloader" (each wait for a batch), "forward" and "eval forward" (by the mode
    of the model), "backward", "clip gradients", "optimizer", "save checkpoint" and "load checkpoint".

    One batch of the profiler is one step of the optimizer, so with gradient accumulation several batches of the loader; it ends
    when the loader is asked for the next one. An epoch ends when a loader that was trained on is exhausted; what is only
    evaluated on counts nothing, and of loaders that are read side by side (``zip``) the one that was begun first counts, with
    its samples. A step that the gradient scaler skips is counted with the next one.

    Samples and tokens are counted in this rank's batches; with ``Profiler(counts="global")`` they are multiplied by the number
    of processes, which is exact for samples where Accelerate gives all ranks batches of one size (``even_batches``).

    ``accelerator.register_for_checkpointing(recorder)`` puts the training time into Accelerate's checkpoints; after
    ``load_state`` the profiler goes on from there, also with what ``accelerator.skip_first_batches`` returns; the first epoch
    is then the rest of the one that the checkpoint is of. The prepared objects stay what they are. Use it on the training thread.

    Args:
        accelerator: The Accelerator.
        profiler: The profiler, which need not run yet.
    """

    def __init__(self, accelerator: Any, profiler: Profiler) -> None:
        check_profiler("AcceleratorRecorder: profiler", profiler)
        self._accelerator = accelerator
        self._profiler = profiler
        self._undo = ExitStack()
        self._seen: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by id: what is equal is not the same
        self._begun = self._is_preparing = False
        self._passes: list[_Pass] = []  # over loaders that are under way, an evaluation inside of the training
        self._left = Counts()  # what was read for a step that came only after the end of a pass
        for container in ("_models", "_optimizers", "_dataloaders"):
            for prepared in getattr(accelerator, container, ()):
                self._record(prepared)
        for method, name in _METHODS.items():
            self._replace(method, profiler.marker(name))
        for method in _PREPARING:
            self._replace(method, self._recording)

    def __enter__(self) -> AcceleratorRecorder:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Restore the accelerator and its prepared objects."""
        for this in self._passes:
            self._step(this)
        self._undo.close()

    def state_dict(self) -> dict[str, int]:
        """Return the training time, for Accelerate's checkpoints; a step that was made is in it."""
        for this in self._passes:
            self._step(this)
        return self._profiler.timestamp.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the training time of a checkpoint."""
        self._profiler.resume_at(Timestamp.from_state_dict(state))

    # ---- what is prepared ---------------------------------------------------------------------------------------------

    def _replace(self, method: str, recorded: Callable[[Any], Any]) -> None:
        function = getattr(self._accelerator, method, None)
        if function is not None:
            replace_method(self._undo, self._accelerator, method, recorded(function))

    def _recording(self, prepare: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(prepare)
        def recording(*args: Any, **options: Any) -> Any:
            if self._is_preparing:  # `prepare` may wrap what this returns
                return prepare(*args, **options)
            self._is_preparing = True
            try:
                prepared = prepare(*args, **options)
            finally:
                self._is_preparing = False
            for one in prepared if isinstance(prepared, tuple) else (prepared,):
                self._record(one)
            return prepared

        return recording

    def _record(self, prepared: Any) -> None:
        if self._seen.get(id(prepared)) is prepared:
            return
        try:
            self._seen[id(prepared)] = prepared
        except TypeError:  # a list, a number ...: nothing that is recorded
            return
        if hasattr(prepared, "register_forward_pre_hook"):
            hook_forward(self._undo, prepared, self._before_forward, self._after_forward)
        elif hasattr(prepared, "param_groups"):
            # The hooks of torch's optimizer are called for the steps that are made, and not while gradients accumulate.
            optimizer = getattr(prepared, "optimizer", prepared)
            with suppress(AttributeError):  # of another library
                begin = model_hook(lambda *_: self._profiler.marker("optimizer").start())
                self._undo.callback(optimizer.register_step_pre_hook(begin).remove)
                self._undo.callback(optimizer.register_step_post_hook(model_hook(self._after_step)).remove)
        elif hasattr(prepared, "dataset"):
            self._undo.callback(watch(prepared, self._pass))

    # ---- the loop -----------------------------------------------------------------------------------------------------

    def _before_forward(self, module: Any, *_: Any) -> None:
        self._forward(module).start()

    def _after_forward(self, module: Any, *_: Any) -> None:
        self._forward(module).finish()

    def _forward(self, module: Any) -> Any:
        return self._profiler.marker("forward" if module.training else "eval forward")

    def _after_step(self, *_: Any) -> None:
        self._profiler.marker("optimizer").finish()
        if not self._passes:  # a loop over something that was not prepared
            self._profiler.step()
            return
        # Of what was read for this step: the pass that was trained on before, else the one that began first.
        read = [this for this in self._passes if this.is_fresh] or self._passes
        trained = next((this for this in read if this.trained), read[0])
        for this in self._passes:
            this.is_fresh = False
            if this is not trained and this.trained:  # an iterator that is held open, and not read any more
                self._step(this)
                this.trained = False
        trained.stepped = trained.trained = True

    def _pass(self, loader: Any, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Yield the batches of one pass over a loader, and count those that are trained on."""
        if not self._begun:  # the first batch begins here
            self._begun = True
            self._profiler.resume_at(self._profiler.timestamp)
        this = _Pass()
        self._passes.append(this)
        try:
            for batch in recorded_pass(self._profiler, loader, begin):
                this.add(batch)
                this.is_fresh = True
                yield batch
                self._step(this)
            if this.trained:
                self._profiler.next_epoch()
        finally:
            self._passes.remove(this)
            self._step(this)  # where the loop breaks off
            if this.trained:  # accumulated, and for the next step of the optimizer
                self._left.samples += this.samples
                self._left.tokens += this.tokens

    def _step(self, this: _Pass) -> None:
        if not this.stepped:
            return
        ranks = int(self._accelerator.num_processes) if self._profiler.counts == "global" else 1
        samples, tokens = (sum(both) * ranks for both in zip(this.take(), self._left.take(), strict=True))
        self._profiler.step(samples, tokens)
        this.stepped = False


class _Pass(Counts):
    """One pass over a loader, and whether it was stepped. It is fresh when anything was read of it since the last step."""

    is_fresh = stepped = trained = False
