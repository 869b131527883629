"""RootModules: find the modules that a loop calls, and record their forward passes by hooks of these instances only."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from tracekit.imports import when_imported
from tracekit.integrations.hooks import model_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from tracekit.auto.recorder import AutoRecorder

_FORWARD: Final = "forward"
_EVALUATION: Final = "evaluation"


class RootModules:
    """Hooks the outermost modules that own an optimizer's parameters, and what wraps them: DDP and OptimizedModule.

    A global module hook would see all modules, and would break every graph of torch.compile.

    Args:
        torch: torch.
        recorder: The recorder.
    """

    def __init__(self, torch: ModuleType, recorder: AutoRecorder) -> None:
        self._recorder = recorder
        self._module_type = torch.nn.Module
        self._is_compiling = torch.compiler.is_compiling
        self._hooks: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()
        self._depth = 0
        self._slice: Any = None
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
        known = {id(parameter) for module in list(self._hooks) for parameter in module.parameters()}
        if not parameters <= known:  # or a search through all objects, 0.1 s for a million
            for module in list(self._roots(parameters)):
                self._hook(module)

    def forget_open(self) -> None:
        """Close a forward pass that was left without the hook of its end."""
        if self._depth:
            self._depth = 0
            self._slice.__exit__(None, None, None)

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
        """Move the hooks of a module to what torch.compile made of it: they are not for Dynamo."""
        if self._unhook(wrapper._orig_mod):  # noqa: SLF001
            self._hook(wrapper)

    def _unhook(self, module: Any) -> bool:
        handles = self._hooks.pop(module, None)
        for handle in handles or ():
            handle.remove()
        return handles is not None

    def _hook_compile(self) -> None:
        """Replace the hooks of a module that is compiled in place by a wrapper."""
        compile_in_place = self._module_type.compile

        @functools.wraps(compile_in_place)
        def compiled(module: Any, *args: Any, **kwargs: Any) -> None:
            compile_in_place(module, *args, **kwargs)
            if self._unhook(module):
                self._guarded(self._hook)(module)

        self._module_type.compile = compiled

    def _hook_script(self, jit: Any) -> None:
        """Remove the hooks while TorchScript compiles a module: it would compile them."""
        script = jit.script

        @functools.wraps(script)
        def scripted(target: Any, *args: Any, **kwargs: Any) -> Any:
            modules = target.modules() if isinstance(target, self._module_type) else ()
            unhooked = [module for module in list(modules) if self._unhook(module)]
            try:
                return script(target, *args, **kwargs)
            finally:
                for module in unhooked:
                    self._guarded(self._hook)(module)

        jit.script = scripted

    def _hook(self, module: Any) -> None:
        if module in self._hooks:
            return
        if module._compiled_call_impl is not None:  # noqa: SLF001 - what Module.__call__ calls instead
            module._compiled_call_impl = self._recorded(module, module._compiled_call_impl)  # noqa: SLF001
            self._hooks[module] = ()
        else:
            self._hooks[module] = (
                module.register_forward_pre_hook(model_hook(self._before), prepend=True),
                module.register_forward_hook(model_hook(self._after), always_call=True),
            )

    def _recorded(self, module: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        found = weakref.ref(module)

        @functools.wraps(call)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            self._before(found(), args)
            try:
                return call(*args, **kwargs)
            finally:
                self._after(found(), args, None)

        return recorded

    def _guarded(self, action: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return an action that reports what it raises: the script goes on."""

        def guarded(target: Any) -> None:
            try:
                action(target)
            except Exception as error:  # noqa: BLE001 - see above
                profiler = self._recorder.running()
                if profiler is not None:
                    profiler.report_failure("tracekit run", error)

        return guarded

    # ---- their forward passes -----------------------------------------------------------------------------------------

    def _before(self, module: Any, _args: Any) -> None:
        if self._is_compiling():
            return
        profiler = self._recorder.of_loop(start=module.training)
        if profiler is None:
            return
        self._depth += 1
        if self._depth == 1:
            self._slice = profiler.marker(_FORWARD if module.training else _EVALUATION)
            self._slice.__enter__()

    def _after(self, _module: Any, _args: Any, _output: Any) -> None:
        if self._is_compiling():
            return
        if not self._depth or self._recorder.thread != threading.get_ident():
            return
        self._depth -= 1
        if not self._depth:
            self._slice.__exit__(None, None, None)


def after_init(kind: Any, action: Callable[[Any], None]) -> None:
    """Call an action with every new instance of a class."""
    make = kind.__init__

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        action(self)

    kind.__init__ = made
