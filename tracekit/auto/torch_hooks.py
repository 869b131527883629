"""Hooks of torch: optimizers, backward, data loaders, checkpoints and collectives.

Every wrapper calls the original with the same arguments and keeps no reference to them. While Dynamo traces, it does nothing
else, so that the graphs of torch.compile are those without tracekit.
"""

from __future__ import annotations

import functools
import sys
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from tracekit.auto.frameworks import hook_frameworks
from tracekit.auto.recorder import auto_recorder
from tracekit.auto.root_modules import RootModules, after_init
from tracekit.auto.untraced import untraced
from tracekit.imports import when_imported
from tracekit.recording.lifecycle import marker
from tracekit.recording.loaders import recording_loader

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from tracekit.auto.recorder import AutoRecorder

_COLLECTIVES: Final = """
    all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_gather_single all_reduce
    all_reduce_coalesced all_to_all all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list gather
    gather_object irecv isend monitored_barrier recv reduce reduce_scatter reduce_scatter_single reduce_scatter_tensor
    scatter scatter_object_list send
"""


def instrument(torch: ModuleType) -> None:
    """Install the hooks. Called once, at the end of the import of torch."""
    recorder = auto_recorder()
    is_compiling = torch.compiler.is_dynamo_compiling
    _hook_optimizers(torch, recorder, is_compiling)
    start = functools.partial(recorder.of_loop, start=True)
    torch.autograd.backward = untraced(torch.autograd.backward, "backward", recorder, start)  # Tensor.backward calls it
    _hook_loaders(torch, recorder)

    def replace(modules: list[ModuleType], name: str, slice_name: str, categories: tuple[str, ...] = ()) -> None:
        """Replace a function by one with a slice for each call; Dynamo traces the function without it."""
        original = getattr(modules[0], name, None)
        if original is None:
            return
        slices = marker(slice_name, categories)

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or (recorder.loop != get_ident() and recorder.running() is None):
                return original(*args, **kwargs)
            with slices:
                return original(*args, **kwargs)

        for module in modules:
            if getattr(module, name, None) is original:
                setattr(module, name, recorded)

    replace([torch, torch.serialization], "save", "save checkpoint")
    if torch.distributed.is_available():
        for name in _COLLECTIVES.split():
            replace([torch.distributed, torch.distributed.distributed_c10d], name, name, ("collective",))

    def hook_checkpoints(dcp: Any) -> None:
        for name in ("save", "async_save"):
            replace([dcp, dcp.state_dict_saver], name, "save checkpoint")

    when_imported("torch.distributed.checkpoint", hook_checkpoints)
    hook_frameworks(recorder)


def _hook_optimizers(torch: ModuleType, recorder: AutoRecorder, is_compiling: Callable[[], bool]) -> None:
    optimizers: Any = sys.modules["torch.optim.optimizer"]  # torch.optim does not name it
    slices = marker("optimizer")
    is_open = False
    kind = optimizers.Optimizer
    profiled = kind.profile_hook_step

    def hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step function with torch's slice of it, and the slice and the end of the step around that."""
        step = profiled(function)

        @functools.wraps(step)
        def recorded(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal is_open
            if is_compiling() or is_open or (recorder.loop != get_ident() and recorder.of_loop(start=True) is None):
                return step(optimizer, *args, **kwargs)
            if recorder.leader is None or recorder.is_pending:
                recorder.optimizer_starts(optimizer)
            is_open = True
            try:
                with slices:
                    result = step(optimizer, *args, **kwargs)
            finally:
                is_open = False
            recorder.optimizer_ended(optimizer)
            return result

        return recorded

    kind.profile_hook_step = staticmethod(hook_step)
    after_init(kind, RootModules(torch, recorder).follow)

    kind.zero_grad = untraced(kind.zero_grad, "zero_grad", recorder, recorder.of_loop)


def _hook_loaders(torch: ModuleType, recorder: AutoRecorder) -> None:
    loaders = torch.utils.data.dataloader
    iterate, advance = loaders.DataLoader.__iter__, loaders._BaseDataLoaderIter.__next__  # noqa: SLF001
    slices = marker("dataloader")

    @functools.wraps(iterate)
    def iterated(self: Any) -> Any:
        profiler = recorder.of_loop(start=True)
        if profiler is None:
            return iterate(self)
        recorder.fetching()
        with recording_loader(self, profiler), slices:
            return iterate(self)

    @functools.wraps(advance)
    def advanced(self: Any) -> Any:
        if recorder.loop != get_ident() and recorder.of_loop() is None:
            return advance(self)
        recorder.fetching()
        slices.__enter__()
        try:
            return advance(self)
        finally:
            slices.__exit__(None, None, None)  # StopIteration is not a failure

    loaders.DataLoader.__iter__ = iterated
    loaders._BaseDataLoaderIter.__next__ = advanced  # noqa: SLF001
