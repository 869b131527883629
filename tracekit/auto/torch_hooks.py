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

    from tracekit.recording.profiler import Profiler

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
    backward = _recorded(torch.autograd.backward, "backward", lambda: recorder.of_loop(start=True))
    torch.autograd.backward = _untraced(torch, backward)  # Tensor.backward looks it up there
    _hook_loaders(torch, recorder)
    is_compiling = torch.compiler.is_compiling

    def find_profiler() -> Profiler | None:
        return None if is_compiling() else recorder.running()

    def replace(modules: list[ModuleType], name: str, slices: str, categories: tuple[str, ...] = ()) -> None:
        original = getattr(modules[0], name, None)
        if original is None:
            return
        recorded = _recorded(original, slices, find_profiler, categories)
        for module in modules:
            if getattr(module, name, None) is original:
                setattr(module, name, recorded)

    replace([torch, torch.serialization], "save", "save checkpoint")
    if torch.distributed.is_available():
        for name in _COLLECTIVES:
            replace([torch.distributed, torch.distributed.distributed_c10d], name, name, ("collective",))

    def hook_checkpoints(dcp: Any) -> None:
        for name in ("save", "async_save"):
            replace([dcp, dcp.state_dict_saver], name, "save checkpoint")

    when_imported("torch.distributed.checkpoint", hook_checkpoints)
    hook_frameworks(recorder)


def _recorded(
    function: Callable[..., Any],
    name: str,
    find_profiler: Callable[[], Profiler | None],
    categories: tuple[str, ...] = (),
) -> Callable[..., Any]:
    """Return a function with a slice for each call while ``find_profiler`` returns a profiler."""

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        profiler = find_profiler()
        if profiler is None:
            return function(*args, **kwargs)
        with profiler.marker(name, categories):
            return function(*args, **kwargs)

    return recorded


def _untraced(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep Dynamo from tracing a function, as torch does for its own."""
    found: Callable[..., Any] = torch._disable_dynamo(function, recursive=False)  # noqa: SLF001
    return found


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
    after_init(kind, roots.follow)

    kind.zero_grad = _untraced(torch, _recorded(kind.zero_grad, "zero_grad", recorder.of_loop))


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
