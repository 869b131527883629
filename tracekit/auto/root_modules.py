"""RootModules: find the modules that a loop calls, and record their forward passes by the calls of these instances only."""

from __future__ import annotations

import functools
import gc
import weakref
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from tracekit.imports import when_imported
from tracekit.recording.lifecycle import marker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from tracekit.auto.recorder import AutoRecorder

_CALL: Final = "_compiled_call_impl"  # what Module.__call__ calls instead of Module._call_impl, unless it is None


class RootModules:
    """Records the outermost modules that own an optimizer's parameters, and what wraps them: DDP and OptimizedModule.

    A global module hook would see all modules, and would break every graph of torch.compile.

    Attributes:
        is_compiling: Returns True while a graph is traced; to Dynamo, the constant True.
        is_inside: True during the call of a module that is recorded.
        forward, evaluation: The markers.
    """

    def __init__(self, torch: ModuleType, recorder: AutoRecorder) -> None:
        self.recorder = recorder
        self.is_compiling = torch.compiler.is_compiling
        self.is_inside = False
        self.forward, self.evaluation = marker("forward"), marker("evaluation")
        self._module_type = torch.nn.Module
        self._hooked: WeakSet[Any] = WeakSet()
        self._hook_compile()
        self._hook_script(torch.jit)
        after_init(torch.nn.parallel.DistributedDataParallel, self._guarded(self._hook))
        when_imported(
            "torch._dynamo.eval_frame",
            lambda frames: after_init(frames.OptimizedModule, self._guarded(self._move_to_compiled)),
        )

    def follow(self, optimizer: Any) -> None:
        """Hook the root modules that own the parameters of a new optimizer. Never raises."""
        self._guarded(self._follow)(optimizer)

    def _follow(self, optimizer: Any) -> None:
        parameters = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        known = {id(parameter) for module in list(self._hooked) for parameter in module.parameters()}
        if not parameters <= known:  # or a search through all objects, 0.1 s for a million
            for module in list(self._roots(parameters)):
                self._hook(module)

    # ---- which modules ------------------------------------------------------------------------------------------------

    def _roots(self, parameters: set[int]) -> Iterable[Any]:
        kind = self._module_type
        # Not isinstance, which asks objects for their __class__, and proxies import modules then.
        modules = [found for found in gc.get_objects() if issubclass(type(found), kind)]
        parents: dict[int, list[Any]] = {}
        owners = []
        for module in modules:
            state = module.__dict__
            for child in state.get("_modules", {}).values():
                parents.setdefault(id(child), []).append(module)
            if any(id(parameter) in parameters for parameter in state.get("_parameters", {}).values()):
                owners.append(module)
        seen: set[int] = set()
        while owners:
            module = owners.pop()
            if id(module) not in seen:
                seen.add(id(module))
                above = parents.get(id(module), [])
                owners += above
                if not above:
                    yield module

    def _move_to_compiled(self, wrapper: Any) -> None:
        """Move the slices of a module to what torch.compile made of it: Dynamo would trace their code."""
        if self._unhook(wrapper._orig_mod):  # noqa: SLF001
            self._hook(wrapper)

    def _hook_compile(self) -> None:
        """Keep a module recorded that is compiled in place, and leave its copies on other devices alone."""
        kind = self._module_type
        compile_in_place, replicate = kind.compile, kind._replicate_for_data_parallel  # noqa: SLF001

        @functools.wraps(compile_in_place)
        def compiled(module: Any, *args: Any, **kwargs: Any) -> None:
            with self._unhooked([module]):
                compile_in_place(module, *args, **kwargs)

        @functools.wraps(replicate)
        def replicated(module: Any) -> Any:
            replica = replicate(module)
            self._unhook(replica)
            return replica

        kind.compile, kind._replicate_for_data_parallel = compiled, replicated  # noqa: SLF001

    def _hook_script(self, jit: Any) -> None:
        """Unhook modules while TorchScript compiles them: it cannot type the attribute."""
        script = jit.script

        @functools.wraps(script)
        def scripted(target: Any, *args: Any, **kwargs: Any) -> Any:
            with self._unhooked(list(target.modules()) if isinstance(target, self._module_type) else []):
                return script(target, *args, **kwargs)

        jit.script = scripted

    @contextmanager
    def _unhooked(self, modules: list[Any]) -> Iterator[None]:
        unhooked = [module for module in modules if self._unhook(module)]
        try:
            yield
        finally:
            for module in unhooked:
                self._guarded(self._hook)(module)

    def _hook(self, module: Any) -> None:
        attributes = module.__dict__
        if type(attributes.get(_CALL)) is not _RecordedCall:
            attributes[_CALL] = _RecordedCall(self, module, attributes.get(_CALL))
            self._hooked.add(module)

    def _unhook(self, module: Any) -> bool:
        call = module.__dict__.get(_CALL)
        if type(call) is not _RecordedCall:
            return False
        if call.compiled is None:
            del module.__dict__[_CALL]
        else:
            module.__dict__[_CALL] = call.compiled
        self._hooked.discard(module)
        return True

    def _guarded(self, action: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return an action that reports what it raises: the script goes on."""

        def guarded(target: Any) -> None:
            try:
                action(target)
            except Exception as error:  # noqa: BLE001 - see above
                profiler = self.recorder.running()
                if profiler is not None:
                    profiler.report_failure("tracekit run", error)

        return guarded


class _RecordedCall:
    """Replaces the call of a module by one inside a slice. A copy of the module, or a pickle, has None instead.

    ``Module.__call__`` calls it in place of ``_call_impl``, and Dynamo passes over it. Hooks of the module would make each call
    take the slow way through ``_call_impl``, and Dynamo would trace them.
    """

    __slots__ = ("_module", "_roots", "compiled")

    def __init__(self, roots: RootModules, module: Any, compiled: Callable[..., Any] | None) -> None:
        self._roots = roots
        self._module = weakref.ref(module)
        self.compiled = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        roots, module = self._roots, self._module()
        call = self.compiled or module._call_impl  # type: ignore[union-attr] # noqa: SLF001 - it is being called
        if roots.is_compiling() or roots.is_inside:
            return call(*args, **kwargs)
        recorder, is_training = roots.recorder, module.training  # type: ignore[union-attr]
        if recorder.loop != get_ident() and recorder.of_loop(start=is_training) is None:
            return call(*args, **kwargs)
        roots.is_inside = True
        try:
            with roots.forward if is_training else roots.evaluation:
                return call(*args, **kwargs)
        finally:
            roots.is_inside = False

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def after_init(kind: Any, action: Callable[[Any], None]) -> None:
    """Call an action with every new instance of a class."""
    make = kind.__init__

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        action(self)

    kind.__init__ = made
