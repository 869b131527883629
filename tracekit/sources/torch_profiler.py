"""torch.profiler under tracekit's schedule: one trace file for each recorded window."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import importlib
import importlib.util
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit import storage
from tracekit.arguments import check_path
from tracekit.errors import ConfigError, HandlerError, StorageError
from tracekit.handlers.live_file import check_mode, make_folder
from tracekit.imports import import_extra
from tracekit.naming import FileName, shown
from tracekit.recording.schedule import ProfilerAction
from tracekit.recording.source import Source
from tracekit.sources.torch_window import TorchWindow, end_left, hide_origin
from tracekit.storage import PRIVATE_MODE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.recording.source import Recorder

TRACE_SUFFIXES: Final = (".json.gz", ".json")
MEMORY_TIMELINE_SUFFIXES: Final = (".raw.json.gz", ".json.gz", ".json", ".html")

_EXPORT: Final = "torch.profiler export"
# Six times as fast as the default of gzip, for a file a third larger; the training thread waits for it
_GZIP_LEVEL: Final = 3
logger = logging.getLogger("tracekit")


class TorchProfiler(Source):
    """Runs torch.profiler under the profiler's schedule, and saves one Chrome JSON trace for each window.

    A window begins with the first active batch, and ends after ``ACTIVE_AND_SAVE`` or with the epoch or the run. Private
    recordings (see `Profiler`) leave out the stacks, which name files, and the host that Kineto names.

    The slice of a batch is named ``ProfilerStep#N``, where N is tracekit's ``batch``. The top-level key "tracekit" has the
    rank, world size, run id, host, pid, attempt, and the first epoch and batch of the window. Kineto cannot write quotes and
    backslashes; they become ``'`` and ``/`` there.

    Files appear whole or not at all, and never replace an existing file: if a name is taken, a counter is put before the
    suffix. The training thread writes the file when a window ends, which takes about a second for 50 MB of trace. torch waits
    for the devices at that time. Between two batches this is the slice "torch.profiler export", unless the schedule skips the
    next one. Without a schedule, a window lasts for an epoch and stays in memory.

    torch can run one profiler at a time and crashes the process if two are mixed. If another torch profiler starts during a
    window (autotuning in torch.compile uses one), the window is discarded and the loss is reported; torch 2.11 refuses to start
    another one during a warm-up, with RuntimeError there. Call `Profiler.step` and `Profiler.stop` on one thread: a window that
    another thread continues or ends is also discarded. An error of torch.profiler is reported and turns this source off for the
    rest of the run. An error in writing loses only that trace.

    Args:
        filename: Name of the traces, a path or URL with the placeholders of `Recorder.format_path`, filled in when the
            window begins. Ends in ``.json`` or ``.json.gz``, and names ``{batch}`` and, in a run of several ranks,
            ``{rank}``.
        activities: ``torch.profiler.ProfilerActivity`` values or their names ("cpu", "cuda"); None uses every supported one.
        record_shapes: Record the shapes of the operators' inputs.
        profile_memory: Record allocations.
        with_stack: Record the Python stack; slow, and large traces.
        with_flops: Estimate floating point operations.
        with_modules: Record the module hierarchy (TorchScript only).
        experimental_config: A ``torch._C._profiler._ExperimentalConfig``, passed on as it is.
        memory_timeline: Name of torch's memory timelines, ending in ``.html`` (needs matplotlib), ``.json``,
            ``.json.gz`` or ``.raw.json.gz``. Needs ``record_shapes``, ``profile_memory`` and ``with_stack``.
        mode: Mode of local files, as for `JSONTraceHandler`.

    Raises:
        ConfigError: An argument is wrong, or matplotlib is needed and missing.
        MissingExtraError: torch is not installed.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str] = "traces/{run_id}/torch-rank{rank}-{batch}.json.gz",
        *,
        activities: Iterable[Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: Any = None,
        memory_timeline: str | os.PathLike[str] | None = None,
        mode: int = PRIVATE_MODE,
    ) -> None:
        self._mode = check_mode(mode)
        self._filename = _check_template("filename", filename, TRACE_SUFFIXES)
        self._memory_timeline: str | None = None
        if memory_timeline is not None:
            self._memory_timeline = _check_template("memory_timeline", memory_timeline, MEMORY_TIMELINE_SUFFIXES)
            needed = {"record_shapes": record_shapes, "profile_memory": profile_memory, "with_stack": with_stack}
            missing = ", ".join(f"{name}=True" for name, given in needed.items() if not given)
            if missing:
                raise ConfigError(f"TorchProfiler: memory_timeline also needs {missing}")
            if self._memory_timeline.endswith(".html") and importlib.util.find_spec("matplotlib") is None:
                raise ConfigError(
                    "TorchProfiler: a memory timeline in HTML needs matplotlib: pip install matplotlib, or choose .json.gz"
                )
        self._torch = import_extra("torch", "torch", "TorchProfiler")
        self._options: dict[str, Any] = {
            "activities": _activities(self._torch, activities),
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
            "with_flops": with_flops,
            "with_modules": with_modules,
            "experimental_config": experimental_config,
        }
        self._recorder: Recorder | None = None
        self._window: TorchWindow | None = None
        self._off = False
        self._given_up = False
        self._pid = -1
        self._folder = ""

    def check(self, recorder: Recorder) -> None:
        """Refuse names that two ranks or two windows would share, and folders that cannot be written."""
        if not self._torch.autograd.kineto_available():
            raise ConfigError("TorchProfiler: this build of torch has no Kineto, and cannot record traces")
        for template in (self._filename, self._memory_timeline):
            if template is None:
                continue
            name = FileName(template)
            if "batch" not in name.fields:
                raise ConfigError(f"file name {shown(template)} is the same for every window; put {{batch}} into it")
            # Attempts of one rank run one after another, and an existing file is never replaced.
            name.check(dataclasses.replace(recorder.process, attempt=0, restartable=False))
            _check_folder(recorder.format_path(template))
        if recorder.process.private and self._options["with_stack"]:
            if self._memory_timeline is not None:
                raise ConfigError("TorchProfiler: a memory timeline names files; leave it out of a private recording")
            self._options["with_stack"] = False
            logger.warning("tracekit: TorchProfiler records no stacks: they name files, and the recording is private")

    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        """Begin the first window, if the action of the first batch is not SKIP."""
        self._recorder = recorder
        self._pid = os.getpid()
        self._folder = os.path.abspath("")  # noqa: PTH100 - see `_place`
        self._off = self._given_up = False
        # torch imports this (800 modules, some seconds) when the first profile starts: better now than between two batches.
        with contextlib.suppress(Exception):
            importlib.import_module("torch._inductor.config")
        self._pass(ProfilerAction.SKIP, action)

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        """End, continue or begin a window."""
        self._pass(finished, action)

    def close(self) -> None:
        """Save the open window."""
        self._pass(ProfilerAction.SKIP, ProfilerAction.SKIP, closing=True)

    def _pass(self, finished: ProfilerAction, action: ProfilerAction, *, closing: bool = False) -> None:
        recorder, window = self._recorder, self._window
        # A forked child has a copy of the window, but the torch session belongs to its parent.
        if recorder is None or self._off or os.getpid() != self._pid:
            return
        end_left()
        if finished is ProfilerAction.ACTIVE_AND_SAVE or action is ProfilerAction.SKIP:
            self._given_up = False
        if window is not None and (finished is ProfilerAction.ACTIVE_AND_SAVE or not window.goes_on_with(action)):
            self._end(recorder, window, closing=closing)
        if self._off or self._given_up or action is ProfilerAction.SKIP:
            return
        try:
            if self._window is not None:
                self._window.step(action, recorder)
            else:
                # Assigned before it starts, so that a start that fails half-way is cleaned up.
                self._window = TorchWindow(self._torch, self._options, self._filename, self._memory_timeline)
                self._window.start(action, recorder)
        except Exception as error:  # noqa: BLE001 - torch may raise any exception; training goes on
            # Skip the rest of the window: half a window, begun without a warm-up, would mislead.
            self._given_up = True
            self._abandon(recorder, self._window, error)

    def _end(self, recorder: Recorder, window: TorchWindow, *, closing: bool) -> None:
        """Stop a window, and save it unless it is empty. Between two batches, this is a slice."""
        self._window = None
        # The schedule returns the action of the next batch before it is known if there is one. Discard a window that only
        # such a batch has opened. At the end of the run, keep it if it has events: it may show the batch that failed.
        has_batches = window.recording and int(recorder.timestamp.batch) > window.first_batch
        try:
            window.end_step()  # torch's slice of the batch must not cross the one of the export
            with recorder.marker(_EXPORT) if has_batches and not closing else contextlib.nullcontext():
                window.stop()
                if has_batches or (window.recording and closing and not window.is_empty):
                    self._save(recorder, window)
        except Exception as error:  # noqa: BLE001 - torch or the storage may raise any exception; training goes on
            self._abandon(recorder, window, error)
        finally:
            window.free()

    def _abandon(self, recorder: Recorder, window: TorchWindow | None, error: Exception) -> None:
        self._window = None
        if window is not None:
            window.abandon()
        # A lost session and a full disk are temporary; other errors of torch would repeat.
        if not isinstance(error, (HandlerError, StorageError)):
            self._off = True
            logger.warning("tracekit: torch.profiler failed; TorchProfiler is off for the rest of the run")
        recorder.report_failure("TorchProfiler", error)

    def _save(self, recorder: Recorder, window: TorchWindow) -> None:
        with tempfile.TemporaryDirectory(prefix="tracekit-torch-") as folder:
            # torch can write a trace only once, so it goes to a local file first, and from there to its place.
            exported = Path(folder) / storage.basename(window.path).removesuffix(".gz")
            window.export(exported)
            _check_complete(exported)
            if recorder.process.private:
                hide_origin(exported, recorder.process.host)
            path = _put(exported, self._place(window.path), self._mode, compress=window.path.endswith(".gz"))
            recorder.record_chrome_json_trace_file(path)
            if window.memory_path is not None:
                # torch chooses the format by the suffix, and compresses by itself.
                timeline = Path(folder) / storage.basename(window.memory_path)
                window.export_memory_timeline(timeline)
                _put(timeline, self._place(window.memory_path), self._mode, compress=False)

    def _place(self, path: str) -> str:
        """Return a path that is in the folder of the start if it is relative, also if the training has changed the folder."""
        is_here = storage.is_remote(path) or os.path.abspath("") == self._folder  # noqa: PTH100
        return path if is_here else os.path.join(self._folder, path)  # noqa: PTH118


def _put(source: Path, target: str, mode: int, *, compress: bool) -> str:
    """Copy a finished file to its place, under a free name, and return that name."""
    suffix = next(ending for ending in MEMORY_TIMELINE_SUFFIXES if target.endswith(ending))
    path, number = target, 0
    while storage.exists(path):
        number += 1
        path = f"{target.removesuffix(suffix)}.{number}{suffix}"
    if number:
        taken, chosen = storage.without_secrets(target), storage.without_secrets(path)
        logger.warning("tracekit: %s already exists; the new file is %s", taken, chosen)
    if not storage.is_remote(path):
        make_folder(Path(path).parent, path, mode)
    with source.open("rb") as file, storage.atomic_write(path, overwrite=False, mode=mode) as out:
        if not compress:
            shutil.copyfileobj(file, out, 1 << 20)
            return path
        # Compression by torch takes 20 times as long: it uses the highest level, line by line.
        with gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=_GZIP_LEVEL) as packed:
            shutil.copyfileobj(file, packed, 1 << 20)
    return path


def _check_complete(trace: Path) -> None:
    """Raise if torch did not write a complete trace: Kineto does not report a full disk (its writes are unchecked)."""
    try:
        with trace.open("rb") as file:
            file.seek(-min(64, trace.stat().st_size), os.SEEK_END)
            whole = file.read().rstrip().endswith(b"}")
    except FileNotFoundError:
        whole = False
    if not whole:
        raise StorageError(
            f"{trace}: torch.profiler wrote no whole trace there; is the disk full? (TMPDIR moves the folder)"
        )


def _check_template(argument: str, template: object, suffixes: tuple[str, ...]) -> str:
    if isinstance(template, str | os.PathLike):
        template = check_path(f"TorchProfiler: {argument}", template)
    if not isinstance(template, str) or not template.endswith(suffixes):
        raise ConfigError(
            f"TorchProfiler: {argument} must be a name ending in {' or '.join(suffixes)}, not {template!r}"
        )
    return FileName(template).template


def _check_folder(path: str) -> None:
    """Refuse a local folder that cannot be made or written to; URLs are tested when the first trace is written."""
    if storage.is_remote(path):
        return
    folder = Path(path).absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise ConfigError(f"file name {path!r}: {folder} is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"file name {path!r}: there is no permission to write to {folder}")


def _activities(torch: Any, activities: Iterable[Any] | None) -> list[Any] | None:
    if activities is None:
        return None
    kinds = torch.profiler.ProfilerActivity
    accepted = ", ".join(sorted(repr(name.lower()) for name in kinds.__members__))
    found = []
    for activity in [activities] if isinstance(activities, str) else activities:
        if isinstance(activity, str):
            if activity.upper() not in kinds.__members__:
                raise ConfigError(f"TorchProfiler: activities has no {activity!r}; accepted are {accepted}")
            found.append(kinds.__members__[activity.upper()])
        elif isinstance(activity, (kinds, dict)):
            found.append(activity)
        else:
            raise ConfigError(f"TorchProfiler: activities must be ProfilerActivity values or names, not {activity!r}")
    if not found:
        raise ConfigError(f"TorchProfiler: activities is empty; accepted are {accepted}, or None for all")
    return found
