"""One recorded window of torch.profiler, the guard of its session, and the privacy of its trace."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import json
import os
import re
import warnings
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import HandlerError
from tracekit.formats.kineto import plain_text
from tracekit.formats.rank_trace import FORMAT_VERSION
from tracekit.handlers.mirrors.record_function import Session
from tracekit.recording.schedule import ProfilerAction

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracekit.recording.source import Recorder

METADATA_KEY: Final = "tracekit"  # top-level key of the trace for its rank, run and first batch
_RECORDING: Final = (ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE)

_TORCH_ACTIONS: Final = {
    ProfilerAction.SKIP: "NONE",
    ProfilerAction.WARMUP: "WARMUP",
    ProfilerAction.ACTIVE: "RECORD",
    ProfilerAction.ACTIVE_AND_SAVE: "RECORD_AND_SAVE",
}
_HEAD_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 1 << 14
_HOST: Final = re.compile(rb'("host_name"\s*:\s*")[^"]*"')
_NAME: Final = re.compile(rb'("traceName"\s*:\s*")[^"]*"')

_NO_WORK: Final = ("ProfilerStep#", "Activity Buffer Request", "cudaDeviceSynchronize", "hipDeviceSynchronize")
"""Names of the slice of a batch, and of what a profiler itself does on a GPU, in a window without any batch."""

_left: Final[dict[int, TorchWindow]] = {}  # windows that another thread than theirs could not end, by thread


class TorchWindow:
    """One run of torch.profiler: warm-up, then recording.

    Each window has a separate ``torch.profiler.profile``, which its exit stops. So torch never sees a transition between two
    actions that it calls incorrect, at any end of a window, and each window frees torch's memory.

    torch has one profiling session in a process. Another profiler takes the session away silently when it prepares. Stopping
    or exporting afterwards causes a segmentation fault (torch 2.13). So every call first checks that the session still belongs
    to this window: every profiler sets torch's Python flag when it starts or stops, and the window puts a token there. One
    case cannot be detected: another profiler that is still warming up when this window begins. The session also belongs to the
    thread that starts the recording, unless torch profiles all threads. The same fault follows if another one stops it.

    Args:
        torch: The module.
        options: Arguments for ``torch.profiler.profile``.
        template: File-name template of the trace.
        memory_template: File-name template of the memory timeline, or None.

    Attributes:
        path: The template; the name of the trace once recording has begun.
        memory_path: The same for the memory timeline.
        recording: True after the warm-up.
        first_batch: The first recorded batch.
    """

    def __init__(self, torch: Any, options: Mapping[str, Any], template: str, memory_template: str | None) -> None:
        self.path = template
        self.memory_path = memory_template
        self.recording = False
        self.first_batch = 0
        self._torch = torch
        self._options = options
        self._action: Any = None
        self._profile: Any = None
        self._token: Session | None = None
        self._thread = 0  # the only one that can stop the session, or 0

    def goes_on_with(self, action: ProfilerAction) -> bool:
        """Return True if a batch with that action belongs to this window."""
        return action in _RECORDING if self.recording else action is not ProfilerAction.SKIP

    def start(self, action: ProfilerAction, recorder: Recorder) -> None:
        """Begin the window with the batch that begins now."""
        if self._flag or self._torch.autograd._profiler_enabled():  # noqa: SLF001 - the same without torch's Python flag
            raise HandlerError(
                "another torch profiler is active, and torch can run only one: this window is not recorded"
            )
        self._action = self._torch_action(action)
        self._profile = self._torch.profiler.profile(schedule=lambda _: self._action, **self._options)
        self._prepare(action, recorder)
        self._profile.step_num = int(recorder.timestamp.batch)
        with warnings.catch_warnings():
            # torch 2.11 warns of events that later cycles clear; each window has a separate profile.
            warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
            self._profile.__enter__()
        self._claim()

    def step(self, action: ProfilerAction, recorder: Recorder) -> None:
        """Pass to the next batch."""
        self._make_sure()
        self._action = self._torch_action(action)
        self._prepare(action, recorder)
        # torch adds one, and uses the sum in the name of the slice.
        self._profile.step_num = int(recorder.timestamp.batch) - 1
        self._profile.step()
        self._claim()

    def end_step(self) -> None:
        """End the slice of the batch."""
        self._make_sure()
        if self._profile.step_rec_fn is not None:
            self._profile.step_rec_fn.__exit__(None, None, None)
            self._profile.step_rec_fn = None

    def stop(self) -> None:
        """End the recording, so that it can be exported."""
        self._make_sure()
        self._profile.__exit__(None, None, None)
        self._disclaim()

    def export(self, path: Path) -> None:
        """Write the trace; torch can do so once."""
        self._profile.export_chrome_trace(os.fspath(path))

    @property
    def is_empty(self) -> bool:
        """True if only the slice of the batch and the profiler's own work were recorded. Valid after `stop`."""
        events = self._profile.profiler.kineto_results.events()
        return all(event.name().startswith(_NO_WORK) for event in events)

    def export_memory_timeline(self, path: Path) -> None:
        """Write torch's memory timeline, in the format of the suffix of ``path``."""
        # Unwrap the decorator that warns of the deprecation: the warning is for the caller of torch, not for the user.
        inspect.unwrap(type(self._profile).export_memory_timeline)(self._profile, os.fspath(path))

    def free(self) -> None:
        """Release the recorded events: torch's profile is part of reference cycles, and can take gigabytes."""
        if self._profile is not None and not self._is_elsewhere:
            self._profile.profiler = self._profile.mem_tl = None

    def abandon(self) -> None:
        """Clean up after a failure, as far as torch allows."""
        if self._is_elsewhere:
            _left[self._thread] = self
            atexit.register(end_left)  # a session that is open when the process ends crashes it
            return
        profile, self._profile = self._profile, None
        if profile is None:
            return
        with contextlib.suppress(Exception):
            if self._flag is self._token:
                profile.__exit__(None, None, None)
            elif profile.step_rec_fn is not None:
                profile.step_rec_fn.__exit__(None, None, None)
        with contextlib.suppress(Exception):
            # The exit failed half-way: the session still exists and blocks every other profiler.
            if self._flag is self._token and self._torch.autograd._profiler_enabled():  # noqa: SLF001
                profile.profiler.__exit__(None, None, None)
        self._disclaim()

    def _torch_action(self, action: ProfilerAction) -> Any:
        return self._torch.profiler.ProfilerAction[_TORCH_ACTIONS[action]]

    def _prepare(self, action: ProfilerAction, recorder: Recorder) -> None:
        """Set names and preset the metadata before recording begins; torch drops metadata added before a trace starts."""
        if self.recording or action not in _RECORDING:
            return
        self.recording = True
        self.first_batch = int(recorder.timestamp.batch)
        self.path = recorder.format_path(self.path)
        if self.memory_path is not None:
            self.memory_path = recorder.format_path(self.memory_path)
        self._profile.preset_metadata_json(METADATA_KEY, _metadata(recorder))

    @property
    def _flag(self) -> object:
        return self._torch.autograd.profiler._is_profiler_enabled  # noqa: SLF001 - see the class

    def _claim(self) -> None:
        # One token per session; `RecordFunctionMirror` identifies sessions by it.
        if self._flag is not self._token:
            self._token = Session(bool(self._flag))
            self._torch.autograd.profiler._is_profiler_enabled = self._token  # noqa: SLF001
        self._thread = get_ident() if self._torch.autograd._profiler_enabled() else 0  # noqa: SLF001

    def _disclaim(self) -> None:
        if self._flag is self._token:
            self._torch.autograd.profiler._is_profiler_enabled = False  # noqa: SLF001

    @property
    def _is_elsewhere(self) -> bool:
        return self._thread not in (0, get_ident())

    def _make_sure(self) -> None:
        if self._flag is not self._token:
            raise HandlerError(
                "another torch profiler was started while this window was open, and torch can run only one: "
                "the window is lost"
            )
        if self._is_elsewhere:
            raise HandlerError(
                "another thread began this window, and torch can end it only there: the window is lost, and torch records "
                "on until that thread calls step() or stop(). Call both on the thread that trains"
            )


def end_left() -> None:
    """End the window of this thread that another one has left."""
    window = _left.pop(get_ident(), None)
    if window is not None:
        window.abandon()


def _metadata(recorder: Recorder) -> str:
    """Return the identity of the process and the place in the run, as JSON that Kineto can write.

    torch also writes ``distributedInfo``, but only if a process group is initialised.
    """
    process, timestamp = recorder.process, recorder.timestamp
    names = ("rank", "local_rank", "world_size", "run_id", "host", "pid", "attempt")
    identity = {name: getattr(process, name) for name in names}
    identity |= {name: plain_text(identity[name]) for name in ("run_id", "host")}
    place = {"epoch": int(timestamp.epoch), "batch": int(timestamp.batch)}
    # Kineto turns every backslash into a slash, which would break escapes.
    return json.dumps({"format_version": FORMAT_VERSION, **identity, **place}, ensure_ascii=False)


def hide_origin(trace: Path, host: str) -> None:
    """Replace the host name in a trace of torch.profiler, and remove the folder from its ``traceName``; in place.

    Kineto writes ``host_name`` before the events and ``traceName`` after them. Both keep their length, so that nothing has to
    move: a long name is cut, and a short one is padded with spaces after the value.

    Args:
        trace: The file, not compressed.
        host: The new host name.
    """
    tail_at = max(0, trace.stat().st_size - _TAIL_BYTES)
    with trace.open("r+b") as file:
        for pattern, value, position, length in (
            (_HOST, host.encode(), 0, _HEAD_BYTES),
            (_NAME, os.fsencode(trace.name), tail_at, _TAIL_BYTES),
        ):
            file.seek(position)
            for found in pattern.finditer(file.read(length)):
                room = len(found[0]) - len(found[1]) - 1
                file.seek(position + found.end(1))
                file.write((value[:room] + b'"').ljust(room + 1))
