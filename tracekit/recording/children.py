"""Children: processes that a rank starts and that record beside it, such as the workers of a data loader.

A child has a profiler, a writer thread and files of its own; nothing is shared with its parent but the identity of the rank.
What it needs to start is a `ChildPlan`, which a forked child inherits and a spawned one gets by pickle.

No exit hook of Python is sure to run in a child: it may be ended by ``os._exit`` or a signal at any moment. So what a child can
promise is its flush interval; the hooks only save that.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from tracekit.handlers.base import TraceHandler
from tracekit.recording.lifecycle import active_profiler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from tracekit.distributed import ProcessInfo
    from tracekit.recording.profiler import Profiler
    from tracekit.recording.shared_action import ActionView

__all__ = ["SHUTDOWN_TIMEOUT_S", "ChildPlan", "ChildRecording", "Parent"]

logger = logging.getLogger("tracekit")

SHUTDOWN_TIMEOUT_S: Final = 2.0
"""How long a child waits for its handlers at its end, at most: whoever waits for it gives up sooner than the launcher."""


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """How a child process records; picklable.

    Attributes:
        make_profiler: The class `Profiler`.
        process: The parent.
        handlers: What makes the child's handlers; see `TraceHandler.for_children`.
        options: Further arguments of the profiler.
        action: What the parent's schedule says for the moment, or None where it has no schedule.
    """

    make_profiler: Callable[..., Profiler]
    process: ProcessInfo
    handlers: tuple[Callable[[str], TraceHandler], ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    action: ActionView | None = None


class Parent(Protocol):
    """The profiler whose children record."""

    def child_plan(self) -> ChildPlan | None:
        """Return how children record, or None while nothing is recorded."""


class ChildRecording:
    """Records in a child process, into a trace of its own that is merged under the rank of its parent.

    Made by `Profiler.child_recording` in the parent, before or after its start; used in the child, whatever started that::

        def work(recording, jobs):
            with recording:
                for job in jobs:
                    with tracekit.marker("job"): ...

        Process(target=work, args=(profiler.child_recording("decoder"), jobs)).start()
        Pool(4, initializer=profiler.child_recording("decoder"))

    Markers of `tracekit.marker` record there, and in a forked child those of the parent's profiler as well. It records what
    the parent would: by the same schedule and until the parent's profiler stops, with a delay of up to the flush interval.
    Without a running profiler in the parent, or with one in the child, it does nothing. A failure to start is logged, and
    does not reach the child's own work (``TRACEKIT_STRICT=1`` raises it).

    What was recorded is written within the flush interval, so that a child that is killed, or ended without its exit hooks
    (`multiprocessing.Process.terminate`), loses no more than that. An orderly end of a child waits for the handlers for two
    seconds at most.

    Picklable: a copy can be sent to processes of any start method.
    """

    def __init__(self, parent: Parent | ChildPlan | None, name: str) -> None:
        self.name = name
        self._parent = parent
        self._profiler: Profiler | None = None

    @property
    def plan(self) -> ChildPlan | None:
        """How the child records, or None if the parent does not record."""
        parent = self._parent
        return parent if parent is None or isinstance(parent, ChildPlan) else parent.child_plan()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.plan, self.name)

    def start(self) -> Profiler | None:
        """Start to record in this process, until `stop` or its end; returns the profiler, or None if nothing is recorded."""
        if self._profiler is None:
            self._profiler = self._start(self.name)
        return self._profiler

    def stop(self) -> None:
        """Stop recording, and complete the file; it may be started again, into another one."""
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.stop()
            atexit.unregister(profiler.stop)

    def __enter__(self) -> ChildRecording:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __call__(self, *_args: Any) -> None:
        """Start, as the initializer of a pool."""
        self.start()

    def _start(self, name: str, worker: int | None = None) -> Profiler | None:
        if active_profiler() is not None:
            return None
        try:
            plan = self.plan
            return None if plan is None else _start(plan, name, worker)
        except Exception as error:
            if os.environ.get("TRACEKIT_STRICT", "") not in ("", "0"):
                raise
            logger.warning("tracekit: %s (pid %d) records nothing: %s", name, os.getpid(), error)
            return None


def _start(plan: ChildPlan, name: str, worker: int | None) -> Profiler | None:
    handlers = [make(name) for make in plan.handlers]
    if not handlers:
        return None
    if plan.action is not None:
        handlers.append(_FollowsParent(plan.action))
    profiler = plan.make_profiler(
        handlers,
        schedule=plan.action,
        process=plan.process.as_child(name, worker),
        record_batches=False,
        **plan.options,
    )
    profiler.start()
    # Neither is sure to run in a child, and where both do the second finds nothing to do. Finalizers with a priority from 0
    # on run before multiprocessing waits for queues and children.
    atexit.register(profiler.stop)
    multiprocessing: Any = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:
        # Weakly: a process that starts and stops recordings all the time must not keep them all.
        multiprocessing.Finalize(profiler, _stop, args=(weakref.ref(profiler),), exitpriority=0)
    return profiler


def _stop(profiler: weakref.ref[Profiler]) -> None:
    found = profiler()
    if found is not None:
        found.stop()


class _FollowsParent(TraceHandler):
    """Lets a child's markers record when its parent's do: a child has no batches of its own, so its writer looks."""

    def __init__(self, action: ActionView) -> None:
        self._action = action

    def flush(self) -> None:
        """Look what the parent's schedule says now."""
        profiler = active_profiler()
        if profiler is not None and self._action.changed():
            profiler.ask_schedule()
