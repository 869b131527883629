"""Composer's Profiler, cyclic_schedule and JSONTraceHandler by name and arguments, recording with tracekit."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError
from tracekit.handlers import chrome_json
from tracekit.handlers.base import TraceHandler
from tracekit.integrations.composer.handler import LoopState, adapted
from tracekit.recording import schedule as schedules
from tracekit.recording.lifecycle import DEFAULT_ACTIONS
from tracekit.recording.profiler import Profiler as Recorder
from tracekit.recording.schedule import CaptureSchedule, CyclicSchedule, ProfilerAction
from tracekit.sources.system import SystemProfiler
from tracekit.sources.torch_profiler import TorchProfiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracekit.recording.marker import Marker
    from tracekit.recording.source import Source
    from tracekit.timestamp import Timestamp

logger = logging.getLogger("tracekit")
_OWN_CALLBACK: Final = "callback/TracekitCallback/"
# Prefixes of the names of the markers that Composer's engine asks for
_OF_ENGINE: Final = ("event/", "callback/", "algorithm/")


def cyclic_schedule(
    skip_first: int = 0, wait: int = 0, warmup: int = 1, active: int = 4, repeat: int = 1
) -> CyclicSchedule:
    """Return `tracekit.cyclic_schedule` of the same arguments, which may be given by position here."""
    return schedules.cyclic_schedule(skip_first=skip_first, wait=wait, warmup=warmup, active=active, repeat=repeat)


def JSONTraceHandler(  # noqa: N802 - Composer's name
    folder: str = "{run_name}/traces",
    filename: str = "ep{epoch}-ba{batch}-rank{rank}.json",
    remote_file_name: str | None = "{run_name}/traces/ep{epoch}-ba{batch}-rank{rank}.json",
    merged_trace_filename: str | None = None,
    merged_trace_remote_file_name: str | None = None,
    *,
    overwrite: bool = False,
    num_traces_to_keep: int = -1,
) -> chrome_json.JSONTraceHandler:
    """Return the `tracekit.JSONTraceHandler` for Composer's arguments.

    Args:
        folder: Folder of the files; other files in it do not matter.
        filename: Name of the files in it. ``{epoch}`` and ``{batch}`` are those that the window began with.
        remote_file_name: A URL (``s3://...``) is where the traces go instead of the folder; any other name is not needed.
        merged_trace_filename: Merge the traces of all ranks into this file of the folder at the end, or after each window if
            ``{epoch}`` or ``{batch}`` is in the name; see ``merged_filename`` there. None, unlike in Composer, merges nothing.
        merged_trace_remote_file_name: A URL is where the merged trace goes instead, if ``merged_trace_filename`` is given.
        overwrite: Without effect: no file is ever replaced, a taken name gets the next number.
        num_traces_to_keep: Keep only this many files, above 0; -1 keeps all. For local files.
    """
    del overwrite
    name = _file_name(folder, filename, remote_file_name)
    keep = None if num_traces_to_keep < 0 or "://" in name else num_traces_to_keep
    merged = None
    if merged_trace_filename is not None:
        merged = _file_name(folder, merged_trace_filename, merged_trace_remote_file_name)
    elif merged_trace_remote_file_name is not None:
        logger.warning("tracekit: nothing is merged: merged_trace_remote_file_name needs merged_trace_filename")
    return chrome_json.JSONTraceHandler(
        name,
        num_traces_to_keep=keep,
        merged_filename=merged,
        merge_every_window=merged is not None and ("{epoch" in merged or "{batch" in merged),
    )


def _file_name(folder: str, filename: str, remote: str | None) -> str:
    """Return a name as tracekit takes it: where the file goes in the end."""
    name = remote if remote is not None and "://" in remote else f"{folder.rstrip('/')}/{filename}"
    return name.replace("{run_name}", "{run_id}").replace("{node_rank}", "{node}")


class Profiler:
    """Composer's Profiler by its arguments; a `tracekit.Profiler` records.

    For ``composer.Trainer(profiler=...)``, which starts it, reports every event and stops it; or for any other loop,
    in a ``with`` block, where it also has everything that `tracekit.Profiler` has (``step``, ``next_epoch``, ``iterate`` ...).
    The samples and tokens of its `Timestamp` are those of all ranks together, as in Composer.

    Args:
        schedule: `cyclic_schedule`, or any function of the state that returns an action.
        trace_handlers: One handler or several: of this module, of tracekit, or of Composer's own class.
        sys_prof_cpu, sys_prof_memory, sys_prof_disk, sys_prof_net: Data of the host that `tracekit.SystemProfiler`
            records. With any of them it also records the process.
        sys_prof_stats_thread_interval_seconds: Seconds between its samples.
        torch_prof_folder, torch_prof_filename: Where `tracekit.TorchProfiler` writes.
        torch_prof_remote_file_name: A URL is where it writes instead.
        torch_prof_memory_filename, torch_prof_memory_remote_file_name: The same for its memory timelines.
        torch_prof_overwrite: Without effect: no file is ever replaced.
        torch_prof_use_gzip: Compress its traces.
        torch_prof_record_shapes, torch_prof_profile_memory, torch_prof_with_stack, torch_prof_with_flops: Data that it
            records; with none of them it does not run.
        torch_prof_num_traces_to_keep: Without effect, as in Composer; torch's traces are kept.
        **options: Anything else that `tracekit.Profiler` takes.

    Raises:
        ConfigError: An argument is wrong.
        MissingExtraError: psutil or torch, which the arguments ask for, is not installed.
    """

    def __init__(
        self,
        schedule: Callable[[Any], Any],
        trace_handlers: Any,
        sys_prof_cpu: bool = True,
        sys_prof_memory: bool = False,
        sys_prof_disk: bool = False,
        sys_prof_net: bool = False,
        sys_prof_stats_thread_interval_seconds: float = 0.5,
        torch_prof_folder: str = "{run_name}/torch_traces",
        torch_prof_filename: str = "rank{rank}.{batch}.pt.trace.json",
        torch_prof_remote_file_name: str | None = None,
        torch_prof_memory_filename: str | None = None,
        torch_prof_memory_remote_file_name: str | None = None,
        torch_prof_overwrite: bool = False,
        torch_prof_use_gzip: bool = False,
        torch_prof_record_shapes: bool = False,
        torch_prof_profile_memory: bool = True,
        torch_prof_with_stack: bool = False,
        torch_prof_with_flops: bool = True,
        torch_prof_num_traces_to_keep: int = -1,
        **options: Any,
    ) -> None:
        del torch_prof_overwrite, torch_prof_num_traces_to_keep
        if not callable(schedule):
            raise ConfigError(
                f"schedule must be a function of the state, such as cyclic_schedule(...), not {schedule!r}"
            )
        sources: list[Source] = []
        host: Any = {"cpu": sys_prof_cpu, "memory": sys_prof_memory, "disk": sys_prof_disk, "network": sys_prof_net}
        if any(host.values()):
            sources.append(SystemProfiler(sys_prof_stats_thread_interval_seconds, **host))
        torch_options: dict[str, Any] = {
            "record_shapes": torch_prof_record_shapes,
            "profile_memory": torch_prof_profile_memory,
            "with_stack": torch_prof_with_stack,
            "with_flops": torch_prof_with_flops,
        }
        if any(torch_options.values()):
            name = _file_name(torch_prof_folder, torch_prof_filename, torch_prof_remote_file_name)
            memory = torch_prof_memory_filename and _file_name(
                torch_prof_folder, torch_prof_memory_filename, torch_prof_memory_remote_file_name
            )
            suffix = ".gz" if torch_prof_use_gzip and not name.endswith(".gz") else ""
            sources.append(TorchProfiler(name + suffix, memory_timeline=memory, **torch_options))
        # A schedule of tracekit; another function was written for Composer's State.
        self._own_schedule = schedule if isinstance(schedule, CyclicSchedule | CaptureSchedule) else None
        self._schedule = schedule
        self._recorder: Recorder | None = None
        self.state: Any = None
        """Composer's State under the Trainer, else None."""
        self._callback: Any = None  # what follows the Trainer, once there is one
        self._handlers: list[Any] = []
        self.trace_handlers = trace_handlers
        options.setdefault("sources", sources)
        options.setdefault("counts", "global")
        options.setdefault("record_batches", False)  # under the Trainer there is a slice "event/batch"
        self._options = options
        self._markers: dict[str, Marker] = {}
        self.remote_filenames: list[str] = []  # for the Trainer: nothing that its uploaders would have to do

    @property
    def recorder(self) -> Recorder:
        """The profiler of tracekit, made when it is first asked for: under the Trainer it is named after the Trainer's run."""
        if self._recorder is None:
            handlers = [one if _is_ours(one) else adapted(one) for one in self._handlers]
            self._recorder = Recorder(handlers, self._own_schedule or self._decide, **self._options)
        return self._recorder

    # ---- as in Composer -----------------------------------------------------------------------------------------------

    def bind_to_state(self, state: Any) -> None:
        """Record a Trainer, which calls this.

        The recording starts with the first event of the Trainer or with the first marker of the user, whichever comes first.

        Args:
            state: Composer's State.
        """
        self.state = state
        self._options.setdefault("run_id", getattr(state, "run_name", None))
        # This module is imported without Composer. Its engine asks this profiler for the markers of its events.
        from tracekit.integrations.composer.callback import TracekitCallback

        self._callback = TracekitCallback(self.recorder, slices=False)
        state.callbacks.append(self._callback)

    @property
    def trace_handlers(self) -> list[Any]:
        """The trace handlers; they can be replaced until the recording starts."""
        return self._handlers

    @trace_handlers.setter
    def trace_handlers(self, handlers: Any) -> None:
        if self._recorder is not None:
            raise ConfigError("the trace handlers can be replaced before the profiler is used only")
        listed = list(handlers) if isinstance(handlers, list | tuple) else [handlers]
        for one in listed:
            if not _is_ours(one) and not hasattr(one, "process_duration_event"):
                raise ConfigError(f"trace_handlers must be a TraceHandler of tracekit or of Composer, not {one!r}")
        self._handlers[:] = listed

    def schedule(self, state: Any) -> ProfilerAction:
        """Return what the schedule says for a state."""
        if self._own_schedule is not None:
            assert self.recorder.schedule is not None
            return self.recorder.schedule(state.timestamp)  # which counts from where the run was resumed
        return _action(self._schedule(state))

    def marker(
        self,
        name: str,
        actions: Iterable[Any] = DEFAULT_ACTIONS,
        record_instant_on_start: bool = False,
        record_instant_on_finish: bool = False,
        categories: Sequence[str] = (),
    ) -> Marker:
        """Return the marker of that name; Composer's arguments in its order.

        As in Composer, a name's first call decides when it records and about its instants, for its engine asks for the start and
        the finish of one slice with different arguments. Other categories make a separate marker; none are those of the
        first call. A marker that records in ACTIVE also records in ACTIVE_AND_SAVE, which the engine forgets to ask for. The
        engine times tracekit's own callback like any other; these markers record nothing.
        """
        if self._callback is not None and not name.startswith(_OF_ENGINE):
            self._callback.start(self.state)
        known = self._markers.get(name)
        if name == "event/fit" and (iteration := self._markers.get("event/iteration")) is not None:
            iteration.finish()  # Composer reports no end of the last one
        if known is None:
            wanted = frozenset(map(_action, () if name.startswith(_OWN_CALLBACK) else actions))
            if ProfilerAction.ACTIVE in wanted:
                wanted |= {ProfilerAction.ACTIVE_AND_SAVE}
            options = (wanted, record_instant_on_start, record_instant_on_finish)
        elif categories and tuple(categories) != known.categories:
            options = (known.actions, known.record_instant_on_start, known.record_instant_on_finish)
        else:
            return known
        made = self.recorder.marker(name, categories, *options)
        self._markers.setdefault(name, made)
        return made

    # ---- as in tracekit -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Profiler:
        self.recorder.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.recorder.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.recorder, name)

    def _decide(self, timestamp: Timestamp) -> ProfilerAction:
        """Ask a schedule that was written for Composer's State."""
        return _action(self._schedule(LoopState(timestamp, str(self._options.get("run_id") or ""), self.state)))


def _action(action: Any) -> ProfilerAction:
    """Return the action for one of Composer's, for its name in upper or lower case, or for one of tracekit's."""
    return ProfilerAction(getattr(action, "value", action))


def _is_ours(handler: Any) -> bool:
    return isinstance(handler, TraceHandler) or hasattr(handler, "__trace_handler__")
