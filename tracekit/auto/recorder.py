"""The profiler of a process that ``tracekit run`` records: started at the first recorded event, stepped by the optimizers."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import sys
import threading
import weakref
from pathlib import Path
from threading import get_ident
from typing import Any

from tracekit import storage
from tracekit.auto.components import make_handlers, make_sources
from tracekit.auto.configuration import options_of_process
from tracekit.auto.notes import note
from tracekit.distributed import ProcessInfo, detect_process
from tracekit.imports import act_on_imported
from tracekit.recording.lifecycle import when_activated
from tracekit.recording.profiler import Profiler, active_profiler

logger = logging.getLogger("tracekit")


class AutoRecorder:
    """Owns the profiler of this process. If the script starts a profiler, that one wins: nothing is recorded here.

    A step ends with the next request for data if the loop reads a DataLoader, so that everything up to then belongs to it; else
    after the optimizer. Gradient accumulation and further optimizers make no additional steps.

    Attributes:
        framework: A callback of a framework records the loop: the hooks of torch leave it alone.
        thread: The thread that trains.
        loop: The same while its hooks record; 0 while they have to ask `of_loop`.
        is_jax: The steps are those of JAX.
        is_pending: A step is over with the next request for data.
        leader: The optimizer whose steps end the steps of a loop that requests no data.
    """

    def __init__(self) -> None:
        self.framework = 0
        self.thread: int | None = None
        self.loop = 0
        self.is_jax = False
        self._profiler: Profiler | None = None
        self._off = False
        self._parent: ProcessInfo | None = None
        self._fetched = self.is_pending = self._steps_early = False
        self._imported = 0
        self.leader: weakref.ref[Any] | None = None
        os.register_at_fork(after_in_child=self._after_fork)
        when_activated(self._look_again)

    # ---- the profiler -------------------------------------------------------------------------------------------------

    def running(self, *, start: bool = False) -> Profiler | None:
        """Return the profiler, or None if this process records nothing.

        Args:
            start: Start it if it does not run.
        """
        found = active_profiler()
        if found is self._profiler and (found is not None or not start):
            return found
        return self._settle(found, start=start)

    def of_loop(self, *, start: bool = False) -> Profiler | None:
        """Return the same for the events of a training loop, on its thread and outside of frameworks with a callback.

        Sets `loop`, so that the next hooks of the loop need not ask.
        """
        if self.framework or (self.thread is not None and self.thread != get_ident()):
            return None
        profiler = self.running(start=start)
        if profiler is not None:
            self.loop = get_ident()
        return profiler

    def _look_again(self) -> None:
        """Make the hooks ask `of_loop`: another profiler may be the active one."""
        self.loop = 0

    def _settle(self, found: Profiler | None, *, start: bool) -> Profiler | None:
        if found is not None:
            if not self._off:
                note(f"recorded-{os.getpid()}", {"own_profiler": True})
            self._off = True
            act_on_imported()
            if self._profiler is not None:
                self._give_way(self._profiler)
            return None
        if not start or self._off or self._profiler is not None:
            return None
        self._off = True  # an event while it starts, or a failure
        try:
            self._profiler = self._start()
        except Exception as error:  # noqa: BLE001 - training goes on
            logger.warning("tracekit: this process is not recorded: %s", error)
            note(f"failed-{os.getpid()}", {"error": f"{type(error).__name__}: {error}"})
        return self._profiler

    def _give_way(self, profiler: Profiler) -> None:
        """Remove the recording: the script records by itself."""
        self._profiler, self.loop = None, 0
        profiler.stop()
        for handler in profiler.trace_handlers:
            for path in getattr(handler, "paths", ()):
                if not storage.is_remote(path):
                    Path(path).unlink(missing_ok=True)
                    with contextlib.suppress(OSError):  # not empty
                        Path(path).parent.rmdir()
        note(f"recorded-{os.getpid()}", {"own_profiler": True})

    def _start(self) -> Profiler | None:
        data = sys.modules.get("torch.utils.data")
        if data is not None and data.get_worker_info() is not None:
            return None  # a worker records by its parent
        options = options_of_process()
        process = self._identity()
        schedule = None
        if options.on_demand:
            from tracekit.capture.on_demand import on_demand

            schedule = on_demand(f"{options.folder}/control")
        settings = {"sigterm_grace": 5.0 if options.flight_recorder else None, **options.profiler}
        if threading.current_thread() is not threading.main_thread():
            settings["sigterm_grace"] = None  # it needs the main thread
        profiler = Profiler(
            make_handlers(options, process),
            schedule,
            sources=make_sources(options, process, lambda: self.is_jax),
            process=process,
            **settings,
        )
        profiler.start()
        self.thread = get_ident()
        atexit.register(self.stop)
        utilities: Any = sys.modules.get("multiprocessing.util")
        if utilities is not None:  # a child of multiprocessing runs these only
            utilities.Finalize(None, self.stop, exitpriority=0)
        note(f"recorded-{os.getpid()}", _who(process))
        return profiler

    def _identity(self) -> ProcessInfo:
        """Return who this process is. Only one process can be a rank: others with the same number are its children."""
        process = detect_process()
        owner = self._parent
        if owner is not None and owner.rank != process.rank:
            owner = None
        claim = f"rank-{process.rank}-{process.attempt}"
        if owner is None and not note(claim, {"pid": process.pid}, exclusive=True):
            owner = process
        return process if owner is None else owner.as_child(f"process {process.pid}")

    def stop(self) -> None:
        """End the last step, complete the files and report to ``tracekit run``."""
        profiler, self._profiler = self._profiler, None
        self._off, self.loop = True, 0
        if profiler is None or not profiler.started:
            return
        if self.is_pending:
            profiler.step()
        profiler.stop()
        removed = [getattr(handler, "removed", {}).get("bytes", 0) for handler in profiler.trace_handlers]
        lost = {**profiler.stats.dropped, **profiler.stats.failures}
        found = {"steps": int(profiler.timestamp.batch), "lost": lost, "removed_bytes": sum(removed)}
        note(f"recorded-{os.getpid()}", {**_who(profiler.process), **found})

    def _after_fork(self) -> None:
        if self._profiler is not None:
            with contextlib.suppress(Exception):
                self._parent = self._profiler.process
        self._profiler = None
        self._off = self._fetched = self.is_pending = False
        self.framework = self.loop = 0
        self.thread = None

    # ---- steps --------------------------------------------------------------------------------------------------------

    def fetching(self) -> None:
        """Record that the loop asks for data: the step before is over."""
        if self.is_pending:
            self.step()
        self._fetched = True

    def optimizer_starts(self, optimizer: object) -> None:
        """Record that an optimizer begins its step. Needed without a `leader`, or while a step `is_pending`."""
        if self.leader is None:
            self.leader = weakref.ref(optimizer, self._forget_leader)
        elif self.is_pending and self.leader() is optimizer:
            self._steps_early = True  # several steps for one request: requests do not separate them
            self.step()

    def optimizer_ended(self, optimizer: object) -> None:
        """Record that an optimizer has made its step."""
        if self._fetched and not self._steps_early:
            self.is_pending = True
        elif self.leader is not None and self.leader() is optimizer:
            self.step()

    def _forget_leader(self, leader: weakref.ref[Any]) -> None:
        if self.leader is leader:
            self.leader = None

    def step(self) -> None:
        """End the step."""
        self.is_pending = self._fetched = False
        if self._profiler is not None and self.thread == get_ident():
            self._profiler.step()
            self.hook_imported()

    def hook_imported(self) -> None:
        """Hook the modules that were imported since the last step. The first step ends the watch of imports."""
        if len(sys.modules) != self._imported:
            self._imported = 0 if act_on_imported() else len(sys.modules)


@functools.cache
def auto_recorder() -> AutoRecorder:
    """Return the recorder of this process."""
    return AutoRecorder()


def _who(process: ProcessInfo) -> dict[str, Any]:
    return {"rank": process.rank, "world_size": process.world_size, "run_id": process.run_id}
