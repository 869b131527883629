"""Children: processes that a rank starts and that record too, such as the workers of a data loader.

Each child has its own profiler, writer thread and files. It shares only the identity of the rank with its parent. It
starts from a `ChildPlan`, which a forked child inherits and a spawned child unpickles, and reads the current action of the
parent's schedule from one shared byte.

Exit hooks of Python may not run in a child: ``os._exit`` or a signal can end it at any moment. Therefore a child can
lose up to one flush interval. The exit hooks only avoid that loss at an orderly end.
"""

from __future__ import annotations

import atexit
import logging
import mmap
import os
import sys
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from tracekit.arguments import is_set
from tracekit.handlers.base import TraceHandler
from tracekit.recording.lifecycle import RunningProfiler, running_profiler
from tracekit.recording.schedule import ProfilerAction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from tracekit.distributed import ProcessInfo
    from tracekit.timestamp import Timestamp

_ACTIONS: Final = tuple(ProfilerAction)
# Maximum time that a child waits for its handlers at its end. A parent waits for a child less long than a launcher
# waits for a rank.
SHUTDOWN_TIMEOUT_S: Final = 2.0


class SharedAction:
    """The parent's side. Children of any start method open it through the parent's pid.

    The byte is in an anonymous file in memory, so that nothing remains when the parent is killed. Raises OSError
    where the system has no such files; children then cannot follow the schedule.
    """

    __slots__ = ("_descriptor", "_inode", "_memory", "_path")

    def __init__(self, action: ProfilerAction) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memfd_create")
        self._descriptor = os.memfd_create("tracekit-action", os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, 1)
        self._memory = mmap.mmap(self._descriptor, 1)
        self._path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self._inode = os.fstat(self._descriptor).st_ino
        self.set(action)

    def set(self, action: ProfilerAction) -> None:
        """Set the action for the children."""
        self._memory[0] = _ACTIONS.index(action)

    def view(self) -> ActionView:
        """Return the children's side."""
        return ActionView(self._path, self._inode, self._memory)

    def close(self) -> None:
        """Set the action to SKIP, so that children stop recording, and close the file."""
        self.set(ProfilerAction.SKIP)
        os.close(self._descriptor)


class ActionView:
    """The child's side: a schedule that returns the parent's current action. Picklable.

    After the parent's recording, its descriptor may belong to another file; therefore the inode is checked.
    """

    __slots__ = ("_inode", "_last", "_memory", "_path")

    def __init__(self, path: str, inode: int, memory: mmap.mmap | None = None) -> None:
        self._path = path
        self._inode = inode
        self._memory = memory
        self._last = -1

    def __reduce__(self) -> tuple[type[ActionView], tuple[str, int]]:
        return ActionView, (self._path, self._inode)

    def __call__(self, _timestamp: Timestamp) -> ProfilerAction:
        """Return the current action of the parent's schedule."""
        self._last = self._read()
        return _ACTIONS[self._last]

    def changed(self) -> bool:
        """Return True if the action has changed since the last call of the schedule."""
        return self._read() != self._last

    def _read(self) -> int:
        if self._memory is None:
            with suppress(OSError):  # the parent has ended
                descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                try:
                    if os.fstat(descriptor).st_ino == self._inode:
                        self._memory = mmap.mmap(descriptor, 1, access=mmap.ACCESS_READ)
                finally:
                    os.close(descriptor)
        return _ACTIONS.index(ProfilerAction.SKIP) if self._memory is None else self._memory[0]


logger = logging.getLogger("tracekit")


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """The recording settings of a child process. Picklable.

    ``handlers`` are factories; see `TraceHandler.for_children`. ``action`` is the current action of the parent's
    schedule, or None.
    """

    make_profiler: Callable[..., RunningProfiler]
    process: ProcessInfo
    handlers: tuple[Callable[[str], TraceHandler], ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    action: ActionView | None = None


class Parent(Protocol):
    """A profiler with child processes that record."""

    def child_plan(self) -> ChildPlan | None:
        """Return the recording settings of children, or None if the profiler is not running."""


class ChildRecording:
    """Records a child process into a separate trace, which `tracekit merge` shows under the rank of the parent.

    Made by `Profiler.child_recording` in the parent, before or after its start. Used in the child, with any start
    method::

        def work(recording, jobs):
            with recording:
                for job in jobs:
                    with tracekit.marker("job"): ...

        Process(target=work, args=(profiler.child_recording("decoder"), jobs)).start()
        Pool(4, initializer=profiler.child_recording("decoder"))

    Markers of `tracekit.marker` record in the child; if it was forked, markers of the parent's profiler record too. The
    child follows the parent's schedule, and records until the parent's profiler stops. It notices a change within the
    flush interval. Does nothing if no profiler runs in the parent, or if one runs in the child. A failure to start is
    logged and does not disturb the child's work (``TRACEKIT_STRICT=1`` raises it).

    Events are written within the flush interval. A child that is killed, or that ends without its exit hooks
    (`multiprocessing.Process.terminate`), loses at most that much. At an orderly end, a child waits up to two seconds
    for its handlers.

    Picklable: a copy can be sent to processes of any start method.
    """

    def __init__(self, parent: Parent | ChildPlan | None, name: str) -> None:
        self.name = name
        self._parent = parent
        self._profiler: RunningProfiler | None = None

    @property
    def plan(self) -> ChildPlan | None:
        """The recording settings of the child, or None if the parent does not record."""
        parent = self._parent
        return parent if parent is None or isinstance(parent, ChildPlan) else parent.child_plan()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.plan, self.name)

    def start(self) -> RunningProfiler | None:
        """Record in this process until `stop` or its end. Return the profiler, or None if nothing is recorded."""
        if self._profiler is None:
            self._profiler = self._start(self.name)
        return self._profiler

    def stop(self) -> None:
        """Stop recording, and complete the file. A later `start` records into another file."""
        self.__exit__(None, None, None)

    def __enter__(self) -> ChildRecording:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.__exit__(exc_type, exc, traceback)
            atexit.unregister(profiler.stop)

    def __call__(self, *_args: Any) -> None:
        """Start recording. Lets the object be the ``initializer`` of a pool."""
        self.start()

    def _start(self, name: str, worker: int | None = None) -> RunningProfiler | None:
        if running_profiler() is not None:
            return None
        try:
            plan = self.plan
            return None if plan is None else _start(plan, name, worker)
        except Exception as error:
            if is_set("TRACEKIT_STRICT"):
                raise
            logger.warning("tracekit: %s (pid %d) records nothing: %s", name, os.getpid(), error)
            return None


def _start(plan: ChildPlan, name: str, worker: int | None) -> RunningProfiler | None:
    handlers = [make(name) for make in plan.handlers]
    if not handlers:
        return None
    follows = None if plan.action is None else _FollowsParent(plan.action)
    if follows is not None:
        handlers.append(follows)
    profiler = plan.make_profiler(
        handlers,
        schedule=plan.action,
        process=plan.process.as_child(name, worker),
        record_batches=False,
        **plan.options,
    )
    profiler.start()
    if follows is not None:
        follows.profiler = weakref.ref(profiler)
    # Neither hook is guaranteed to run in a child. If both run, the second does nothing. multiprocessing runs
    # finalizers with a priority of 0 or more before it waits for queues and children.
    atexit.register(profiler.stop)
    multiprocessing: Any = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:
        # A weak reference, so that a process that often starts and stops recordings does not keep them all.
        multiprocessing.Finalize(profiler, _stop, args=(weakref.ref(profiler),), exitpriority=0)
    return profiler


def _stop(profiler: weakref.ref[RunningProfiler]) -> None:
    found = profiler()
    if found is not None:
        found.stop()


class _FollowsParent(TraceHandler):
    """Applies the parent's schedule in a child. A child counts no batches, so it polls the parent at every flush."""

    def __init__(self, action: ActionView) -> None:
        self._action = action
        self.profiler: Callable[[], RunningProfiler | None] = lambda: None  # until it has started

    def flush(self) -> None:
        """Apply the current action of the parent's schedule if it has changed."""
        profiler = self.profiler()
        if profiler is not None and self._action.changed():
            profiler.ask_schedule()
