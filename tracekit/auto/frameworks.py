"""The Trainers of transformers and Lightning: record them by their callbacks instead of the hooks of torch."""

from __future__ import annotations

import functools
import importlib
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tracekit.imports import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from tracekit.auto.recorder import AutoRecorder


def hook_frameworks(recorder: AutoRecorder) -> None:
    """Add a callback to each Trainer while it works."""

    def hook_transformers(module: ModuleType) -> None:
        _hook(recorder, module.Trainer, "train", _transformers_callback, attrgetter("callback_handler.callbacks"))

    def hook_lightning(module: ModuleType) -> None:
        for name in ("fit", "validate", "test", "predict"):
            _hook(recorder, module.Trainer, name, _lightning_callback, attrgetter("callbacks"))

    when_imported("transformers.trainer", hook_transformers)
    for name in ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"):
        when_imported(name, hook_lightning)


def _hook(
    recorder: AutoRecorder, trainer: Any, name: str, make: Callable[..., Any], callbacks_of: Callable[[Any], list[Any]]
) -> None:
    """Replace a method of a Trainer's class by one that runs with a callback; the list of callbacks may be replaced in it."""
    original = getattr(trainer, name)

    @functools.wraps(original)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        callback = _in_framework(recorder, make, callbacks_of(self))
        if callback is None:
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            recorder.framework -= 1
            callback.close()
            if callback in callbacks_of(self):
                callbacks_of(self).remove(callback)

    setattr(trainer, name, called)


def _in_framework(recorder: AutoRecorder, make: Callable[..., Any], callbacks: list[Any]) -> Any:
    """Add a callback; return None if the script has one, or if nothing can be recorded."""
    if recorder.framework or any(type(found).__name__ == "TracekitCallback" for found in callbacks):
        return None
    if recorder.running(start=True) is None:
        return None
    try:
        callback = make(recorder)
    except Exception:  # noqa: BLE001 - then the hooks of torch record
        return None
    callbacks.append(callback)
    recorder.framework += 1
    recorder.loop = 0
    return callback


def _transformers_callback(recorder: AutoRecorder) -> Any:
    integration = importlib.import_module("tracekit.integrations.transformers")

    class Callback(integration.TracekitCallback):  # type: ignore[misc, name-defined]
        """Leaves nothing in checkpoints, which are to be those of a run without tracekit."""

        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            super().on_step_end(args, state, control, **named)
            recorder.hook_imported()
            state.stateful_callbacks.pop("tracekit", None)

    return Callback(recorder.running())


def _lightning_callback(recorder: AutoRecorder) -> Any:
    integration = importlib.import_module("tracekit.integrations.lightning")

    class Callback(integration.TracekitCallback):  # type: ignore[misc, name-defined]
        """Leaves nothing in checkpoints, and starts the recording in a process that Lightning has spawned."""

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            if recorder.running(start=True) is not None:
                super().setup(trainer, pl_module, stage)

        def on_train_batch_end(self, *args: Any, **named: Any) -> None:
            super().on_train_batch_end(*args, **named)
            recorder.hook_imported()

        def state_dict(self) -> dict[str, Any]:
            return {}

        def close(self) -> None:
            self._end()

    return Callback()
