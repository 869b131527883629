"""Hooks of torch: optimizers, backward, data loaders, checkpoints and collectives.

Every wrapper calls the original with the same arguments and keeps no reference to them. While Dynamo traces, it does nothing
else, so that the graphs of torch.compile are those without tracekit.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

from tracekit.auto.frameworks import hook_frameworks
from tracekit.auto.recorder import AutoRecorder, auto_recorder
from tracekit.auto.root_modules import RootModules, after_init
from tracekit.imports import when_imported
from tracekit.recording.loaders import recording_loader

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_COLLECTIVES: Final = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "irecv",
    "isend",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
)


def instrument(torch: ModuleType) -> None:
    """Install the hooks. Called once, at the end of the import of torch."""
    recorder = auto_recorder()
    _hook_optimizers(torch, recorder)
    _hook_backward(torch, recorder)
    _hook_loaders(torch, recorder)
    is_compiling = torch.compiler.is_compiling
    _wrap([torch, torch.serialization], "save", "save checkpoint", recorder, is_compiling)
    if torch.distributed.is_available():
        group = torch.distributed.distributed_c10d
        for name in _COLLECTIVES:
            _wrap([torch.distributed, group], name, name, recorder, is_compiling, ("collective",))

    def hook_checkpoints(dcp: Any) -> None:
        for name in ("save", "async_save"):
            _wrap([dcp, dcp.state_dict_saver], name, "save checkpoint", recorder, is_compiling)

    when_imported("torch.distributed.checkpoint", hook_checkpoints)
    hook_frameworks(recorder)


def _wrap(
    modules: list[ModuleType],
    name: str,
    slices: str,
    recorder: AutoRecorder,
    is_compiling: Callable[[], bool],
    categories: tuple[str, ...] = (),
) -> None:
    """Record the calls of a function once this process records."""
    original = getattr(modules[0], name, None)
    if original is None:
        return

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        profiler = recorder.running()
        if profiler is None:
            return original(*args, **kwargs)
        with profiler.marker(slices, categories):
            return original(*args, **kwargs)

    for module in modules:
        if getattr(module, name, None) is original:
            setattr(module, name, recorded)


def _hook_optimizers(torch: ModuleType, recorder: AutoRecorder) -> None:
    optimizers: Any = sys.modules["torch.optim.optimizer"]  # torch.optim does not name it
    is_compiling = torch.compiler.is_compiling
    roots = RootModules(torch, recorder)
    running: list[Any] = []  # the open slice

    def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if is_compiling():
            return
        profiler = recorder.of_loop(start=True)
        if profiler is None:
            return
        roots.forget_open()
        while running:  # of a step that has raised
            running.pop().__exit__(None, None, None)
        recorder.optimizer_starts(optimizer)
        marker = profiler.marker("optimizer")
        marker.__enter__()
        running.append(marker)

    def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if is_compiling():
            return
        if running:
            running.pop().__exit__(None, None, None)
            recorder.optimizer_ended(optimizer)

    optimizers.register_optimizer_step_pre_hook(before)
    optimizers.register_optimizer_step_post_hook(after)

    kind = optimizers.Optimizer
    zero_grad = kind.zero_grad
    after_init(kind, roots.follow)

    @torch._disable_dynamo(recursive=False)  # type: ignore[untyped-decorator] # noqa: SLF001 - as torch's own
    @functools.wraps(zero_grad)
    def zeroed(self: Any, *args: Any, **kwargs: Any) -> Any:
        profiler = recorder.of_loop()
        if profiler is None:
            return zero_grad(self, *args, **kwargs)
        with profiler.marker("zero_grad"):
            return zero_grad(self, *args, **kwargs)

    kind.zero_grad = zeroed


def _hook_backward(torch: ModuleType, recorder: AutoRecorder) -> None:
    original = torch.autograd.backward

    @torch._disable_dynamo(recursive=False)  # type: ignore[untyped-decorator] # noqa: SLF001
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        profiler = recorder.of_loop(start=True)
        if profiler is None:
            return original(*args, **kwargs)
        with profiler.marker("backward"):
            return original(*args, **kwargs)

    torch.autograd.backward = backward  # Tensor.backward looks it up there


def _hook_loaders(torch: ModuleType, recorder: AutoRecorder) -> None:
    loaders = torch.utils.data.dataloader
    iterate, advance = loaders.DataLoader.__iter__, loaders._BaseDataLoaderIter.__next__  # noqa: SLF001

    @functools.wraps(iterate)
    def iterated(self: Any) -> Any:
        profiler = recorder.of_loop(start=True)
        if profiler is None:
            return iterate(self)
        recorder.fetching()
        with recording_loader(self, profiler), profiler.marker("dataloader"):
            return iterate(self)

    @functools.wraps(advance)
    def advanced(self: Any) -> Any:
        profiler = recorder.of_loop()
        if profiler is None:
            return advance(self)
        recorder.fetching()
        marker = profiler.marker("dataloader")
        marker.__enter__()
        try:
            return advance(self)
        finally:
            marker.__exit__(None, None, None)

    loaders.DataLoader.__iter__ = iterated
    loaders._BaseDataLoaderIter.__next__ = advanced  # noqa: SLF001
