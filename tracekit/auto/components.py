"""The trace handlers and sources of a process that ``tracekit run`` records, also those of other packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit import storage
from tracekit.arguments import check_service
from tracekit.errors import ConfigError, MissingExtraError
from tracekit.handlers.chrome_json import JSONTraceHandler
from tracekit.handlers.flight_recorder import FlightRecorder
from tracekit.recording.options import ProfilerOptions
from tracekit.recording.schedule import ProfilerAction
from tracekit.recording.source import Source
from tracekit.sources.clock_sync import ClockSync
from tracekit.sources.gpu import GPUProfiler
from tracekit.sources.system import SystemProfiler
from tracekit.sources.torch_profiler import TorchProfiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.auto.options import RunOptions
    from tracekit.distributed import ProcessInfo
    from tracekit.handlers.base import TraceHandler
    from tracekit.recording.source import Recorder

logger = logging.getLogger("tracekit")

_SEGMENT_BYTES: Final = 64 << 20
_GPU_DRIVER: Final = "/dev/nvidiactl"


def make_handlers(options: RunOptions, process: ProcessInfo) -> list[TraceHandler]:
    """Return the trace handlers of a process."""
    return [_own_handler(options, process), *_load("tracekit.handlers", "trace_handlers", options.handlers)]


def _own_handler(options: RunOptions, process: ProcessInfo) -> TraceHandler:
    name = f"{options.folder}/rank{{rank}}-attempt{{attempt}}-pid{{pid}}"
    if options.flight_recorder:
        return FlightRecorder(f"{name}-{{dump}}.json", seconds=options.flight_recorder, on_close=True, excepthooks=True)
    limits: dict[str, Any] = {}
    if not storage.is_remote(options.folder):
        limits = {"rotate_bytes": min(_SEGMENT_BYTES, options.limit // 2), "max_total_bytes": options.limit}
    if options.merged:
        limits |= {
            "merged_filename": options.merged,
            "merge_timeout": max(1.0, options.timeout),  # of 0 a handler makes nothing
            "log_to": _available_service(options.log_to) if process.rank == 0 else None,  # rank 0 merges
        }
    return JSONTraceHandler(f"{name}-part{{part:04d}}.json", **limits)


def _available_service(service: str | None) -> str | None:
    """Return the service if its library is installed. Otherwise log a warning; the recording goes on without it."""
    if service is not None:
        try:
            check_service(service, "log_to=")
        except MissingExtraError as error:
            logger.warning("tracekit: the merged trace will not be logged: %s", error)
            return None
    return service


def make_sources(options: RunOptions, process: ProcessInfo, is_jax: Callable[[], bool]) -> list[Source]:
    """Return the sources of a process. ``is_jax`` says whether the steps are those of JAX, when it is known."""
    return [*_own_sources(options, process, is_jax), *_load("tracekit.sources", "sources", options.sources)]


def _own_sources(options: RunOptions, process: ProcessInfo, is_jax: Callable[[], bool]) -> list[Source]:
    sources: list[Source] = []
    if importlib.util.find_spec("psutil") is not None:
        sources.append(SystemProfiler())
    if Path(_GPU_DRIVER).exists() and importlib.util.find_spec("pynvml") is not None:
        sources.append(GPUProfiler())
    if int(os.environ.get("LOCAL_WORLD_SIZE") or process.world_size) < process.world_size:  # several hosts
        sources.append(ClockSync())
    chosen = options.ranks is None or process.rank in options.ranks
    if not chosen or not (options.steps or options.on_demand):
        return sources
    if "jax.profiler" in sys.modules:
        from tracekit.auto.jax_window import JaxWindow

        jax_traces = JaxWindow(f"{options.folder}/jax", with_stack=options.with_stack)
        sources.append(StepWindow(jax_traces, options.steps, is_jax))
    if "torch" in sys.modules and not is_jax():
        torch_profiler = TorchProfiler(
            f"{options.folder}/torch-rank{{rank}}-pid{{pid}}-{{batch}}.json.gz",
            record_shapes=options.shapes,
            profile_memory=options.memory,
            with_stack=options.with_stack,
        )
        # A data loader of torch may start the recording of a script of JAX.
        sources.append(StepWindow(torch_profiler, options.steps, lambda: not is_jax()))
    return sources


def _load(group: str, option: str, names: Iterable[str]) -> list[Any]:
    """Return what entry points of a group make, each called without arguments; one that fails is left out with a warning."""
    made: list[Any] = []
    for name in names:
        try:
            checked: dict[str, Any] = {option: [_entry_point(group, name).load()()]}
            made += getattr(ProfilerOptions(**checked), option)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - code of others; training goes on without it
            logger.warning("tracekit: %r of %s is left out: %s: %s", name, group, type(error).__name__, error)
    return made


def _entry_point(group: str, name: str) -> importlib.metadata.EntryPoint:
    known = {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}
    if name not in known:
        raise ConfigError(f"no installed package has it; there are: {', '.join(sorted(known)) or 'none'}")
    return known[name]


class StepWindow(Source):
    """Gives a source a separate schedule: one window, after one batch of warm-up.

    Args:
        source: The source.
        steps: The first batch of the window, and the batch after its last one; None keeps the schedule of the recording.
        is_on: Returns False while the source is to record nothing.
    """

    def __init__(self, source: Source, steps: tuple[int, int] | None, is_on: Callable[[], bool] = lambda: True) -> None:
        self._source = source
        self._steps = steps
        self._is_on = is_on
        self._recorder: Recorder | None = None
        self._action = ProfilerAction.SKIP

    def check(self, recorder: Recorder) -> None:
        """Check the source."""
        self._source.check(recorder)

    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        """Open the source with the action of the window."""
        self._recorder = recorder
        self._action = self._now(recorder, action)
        self._source.open(recorder, self._action)

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        """Pass to the next batch."""
        assert self._recorder is not None, "opened before"
        before, self._action = self._action, self._now(self._recorder, action)
        self._source.step(before, self._action)

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _now(self, recorder: Recorder, action: ProfilerAction) -> ProfilerAction:
        if not self._is_on():
            return ProfilerAction.SKIP
        if self._steps is None:
            return action
        first, end = self._steps
        batch = int(recorder.timestamp.batch)
        if first <= batch < end:
            return ProfilerAction.ACTIVE_AND_SAVE if batch == end - 1 else ProfilerAction.ACTIVE
        return ProfilerAction.WARMUP if batch == first - 1 else ProfilerAction.SKIP
