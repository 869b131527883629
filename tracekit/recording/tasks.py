"""asyncio tasks: the owners of open slices, and the tracks of tasks."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tracekit.recording.buffer import RecordBuffer


class TaskTracks:
    """The tracks of asyncio tasks. Each thread has as few lanes as possible for its tasks.

    A task gets the first free lane of its thread at its first ``async with``, and frees it when it is done.
    """

    __slots__ = ("_buffer", "_free", "_lane_count", "_of_task")

    def __init__(self, buffer: RecordBuffer) -> None:
        self._buffer = buffer
        self._of_task: dict[Any, int] = {}
        self._free: dict[int, list[int]] = {}  # by the track of the thread
        self._lane_count: dict[int, int] = {}

    def track(self) -> int:
        """Return the track of the running task, or of the thread if no task runs."""
        task = current_task()
        if task is None:
            return self._buffer.thread_track()
        track = self._of_task.get(task)
        if track is None:
            thread = self._buffer.thread_track()  # not the ident, which a later thread may get
            free = self._free.setdefault(thread, [])
            if free:
                free.sort(reverse=True)
                track = free.pop()
            else:
                number = self._lane_count[thread] = self._lane_count.get(thread, 0) + 1
                track = self._buffer.new_track(f"{self._buffer.tracks[thread].name} · task {number}")
            self._of_task[task] = track
            task.add_done_callback(functools.partial(self._leave, thread))
        return track

    def _leave(self, thread: int, task: Any) -> None:
        track = self._of_task.pop(task, None)
        if track is not None:
            self._free[thread].append(track)


def current_task() -> Any:
    """Return the running asyncio task, or None. Never imports asyncio."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:  # noqa: SLF001 - current_task() raises without a loop
        return None
    return asyncio.current_task()


def current_owner() -> Hashable:
    """Return the owner of a slice that starts now: the running task, or the ident of the thread if no task runs."""
    return current_task() or threading.get_ident()
