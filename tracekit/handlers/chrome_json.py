"""JSONTraceHandler: streams the rank trace as Chrome JSON, to files that open in Perfetto even during the recording."""

from __future__ import annotations

import dataclasses
import glob
import os
import posixpath
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit import storage
from tracekit.arguments import check_path
from tracekit.errors import ConfigError
from tracekit.formats.rank_trace import COMPANION_EVENT
from tracekit.handlers.base import Recording, Summary, TraceHandler
from tracekit.handlers.merge_process import DEFAULT_TIMEOUT_S, EndMerge, report_merges
from tracekit.handlers.rank_trace import DEFAULT_SPOOL_BYTES, RankTrace, clock_metadata, trace_name
from tracekit.handlers.rotation import Retention, Rotation
from tracekit.naming import child_file_name, shown, split_suffix
from tracekit.storage import PRIVATE_MODE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.arguments import StrPath
    from tracekit.clock import Anchor, ClockOffset, ClockStep
    from tracekit.events import EventBatch
    from tracekit.timestamp import Time, Timestamp

DEFAULT_NAME = "traces/{run_id}/rank{rank}-attempt{attempt}.json"
DEFAULT_PARTS_NAME = "traces/{run_id}/rank{rank}-attempt{attempt}-part{part:04d}.json"

_SEGMENTS: Final = Rotation(limit_bytes=8 << 20, limit_ns=30_000_000_000)  # on a remote storage


class JSONTraceHandler(TraceHandler):
    """Streams the events of this rank to a Chrome JSON file, for `tracekit merge` and ui.perfetto.dev.

    The file exists under its name, and opens, from the start of the recording. Flushed events survive the death of the
    process. A name that ends with ``.gz`` is written plain, without that ending. Another thread compresses the file when it
    is complete, because a cut gzip does not open.

    A remote storage (``s3://`` ...) cannot append to an object. There, the trace becomes numbered segments of 8 MiB or 30 s,
    unless the ``rotate_...`` arguments set other limits. Each segment is written to a local spool folder. When it is complete,
    another thread uploads it in one request. ``-part{part:04d}`` is added to a name without ``{part}``. An index next to the
    segments (``....index.json``) lists them. Failed uploads are retried with growing pauses until the recording ends; nothing
    waits for them. `Profiler.start` waits for the first answer for 5 s at most. A segment that could not be uploaded stays in
    the spool, and the last log line names the command that uploads it: ``tracekit upload SPOOL``. An existing object is never
    replaced: the segment takes the next name.

    Long runs can use several files. With ``{epoch}`` or ``{batch}`` in the name, every recording window of the schedule gets a
    separate file; otherwise, all windows share one. A ``rotate_...`` argument begins a new file when one is full. Every file
    opens and merges by itself, and `tracekit merge` joins them again. A slice that is open when a file ends is finished
    there and goes on in the next. A new file begins between two flushes, so a file can exceed its limit by the events of one
    flush. If a new file cannot be made, the handler continues in the old one.

    Local files are made with mode 0600, in folders of mode 0700, unless ``mode`` is set. They never overwrite another file:
    if a name is taken, the first file of a recording is refused, and later ones get the next number. A failed write (a full
    disk) loses the events of that flush, which the summary counts. The file stays whole, writing resumes as soon as it can,
    and a ``tracekit.gap`` instant reports the loss. If somebody removes a file or its folder during the recording, the file
    is begun again; so is a file that somebody truncates in place, as logrotate does with ``copytruncate``.

    Args:
        filename: Path or URL with the fields ``{run_id} {rank} {local_rank} {world_size} {node} {host} {pid} {attempt}
            {epoch} {batch} {part}``. Refused if it would let two ranks, or two attempts of one, share a file.
        rotate_bytes: Begin a new file when one has this size, before compression. Rotation needs ``{part}`` in the name,
            which counts the files from 0.
        rotate_seconds: Begin a new file when one holds events of this time.
        rotate_every: Begin a new file after this much training: ``"1ep"``, ``"500ba"``, ``"1e9tok"``.
        num_traces_to_keep: Keep only this many finished files of this recording and remove the oldest; None keeps all.
        max_total_bytes: Keep the files of this recording, the one being written included, below this size together by
            removing the oldest. The summary counts the removed files. Both limits are for local names.
        spool: For remote names, the parent folder of the spools; by default ``TRACEKIT_SPOOL``, else ``tracekit-spool-UID`` in
            the folder for temporary files, or a new folder next to it if other users may enter that one.
        spool_bytes: Maximum size of the segments that wait for upload; beyond it the newest are dropped, and counted.
        mode: Mode of local files, independent of the umask; ``0o640`` lets the group read them, and enter the folders that are
            made for them.
        merged_filename: Merge the traces of all ranks and of torch.profiler into this file when the recording ends. A path or URL
            with the fields of ``filename``, except ``{rank}`` and ``{local_rank}``. On rank 0, `Profiler.stop` starts
            ``tracekit merge --wait-for-ranks`` as a process of low priority, which waits for the end records of all ranks.
            `Profiler.stop` does not wait. After SIGTERM nothing is started. The log has the complete command for a merge that is
            missing or incomplete. If nothing waited for the merge, its output is in a ``.log`` file next to the merged trace.
            Both files have mode 0600. None does not merge.
        merge_timeout: Maximum time in seconds that this process waits for the other ranks before it merges the existing traces,
            and that the exit of rank 0 waits for this process.
        merge_wait: Wait for the merge at the exit of rank 0. The exit never waits after an exception, SIGTERM or SIGINT.
        merge_every_window: Merge the files of each recording window when it ends. Needs ``{epoch}`` or ``{batch}`` in both names.
        log_to: Log the merged trace and a report on it as artifacts: ``"wandb"`` or ``"mlflow"``. The process that merges does
            it, for 10 minutes at most; see `tracekit merge --log-to`. None uploads nothing.

    Raises:
        ConfigError: An argument is wrong; from `open`, also: the file exists already.
        MissingExtraError: From `open` on rank 0: the library that ``log_to`` needs is not installed.
        StorageError: From `open`: the file or its folder cannot be made.
    """

    def __init__(
        self,
        filename: StrPath = DEFAULT_NAME,
        *,
        rotate_bytes: int | None = None,
        rotate_seconds: float | None = None,
        rotate_every: Time | str | None = None,
        num_traces_to_keep: int | None = None,
        max_total_bytes: int | None = None,
        spool: StrPath | None = None,
        spool_bytes: int = DEFAULT_SPOOL_BYTES,
        mode: int = PRIVATE_MODE,
        merged_filename: StrPath | None = None,
        merge_timeout: float = DEFAULT_TIMEOUT_S,
        merge_wait: bool = True,
        merge_every_window: bool = False,
        log_to: str | None = None,
    ) -> None:
        self._trace_options: dict[str, Any] = {
            "rotate_bytes": rotate_bytes,
            "rotate_seconds": rotate_seconds,
            "rotate_every": rotate_every,
            "num_traces_to_keep": num_traces_to_keep,
            "max_total_bytes": max_total_bytes,
            "spool": spool,
            "spool_bytes": spool_bytes,
            "mode": mode,
        }
        self._merge_options: dict[str, Any] = {
            "merged_filename": merged_filename,
            "merge_timeout": merge_timeout,
            "merge_wait": merge_wait,
            "merge_every_window": merge_every_window,
            "log_to": log_to,
        }
        rotation = Rotation.of(rotate_bytes, rotate_seconds, rotate_every)
        name = DEFAULT_PARTS_NAME if rotation and filename == DEFAULT_NAME else check_path("filename", filename)
        if storage.is_remote(name):
            name, rotation = _numbered(name), rotation or _SEGMENTS
        self._name = trace_name(name, "part")
        self._retention = Retention(num_traces_to_keep, max_total_bytes)
        if rotation is not None and not self._name.numbered:
            raise ConfigError(f"file name {shown(name)} is the same for every file of a rotation; put {{part}} into it")
        if self._retention and rotation is None and not self._name.per_window:
            raise ConfigError(
                "num_traces_to_keep and max_total_bytes need several files to choose from: rotate_bytes=, rotate_seconds= "
                "or rotate_every=, or {epoch} or {batch} in the file name"
            )
        if rotate_bytes is not None and max_total_bytes is not None and max_total_bytes < 2 * rotate_bytes:
            raise ConfigError(
                f"max_total_bytes ({max_total_bytes}) must be at least twice rotate_bytes ({rotate_bytes}): the file being "
                "written is never removed"
            )
        self._merge: EndMerge | None = None
        if merged_filename is not None:
            self._merge = EndMerge(self._name, **self._merge_options)
        elif merge_every_window or log_to is not None:
            option = "merge_every_window=True" if merge_every_window else "log_to="
            raise ConfigError(f"{option} needs merged_filename=")
        self._trace = RankTrace(
            self._name, rotation=rotation, retention=self._retention, spool=spool, spool_bytes=spool_bytes, mode=mode
        )
        self._recording: Recording | None = None
        self._summary: Summary | None = None
        self._companion: str | None = None
        self._ends = False  # the recording was started and ends
        self._stopped: tuple[BaseException | None] | None = None  # the error; None before `stopping`, and after SIGTERM

    @property
    def merged_path(self) -> str | None:
        """The merged trace of the run; None until its merge is started."""
        return None if self._merge is None else self._merge.path

    @property
    def other_names(self) -> list[str]:
        """Names of other files of the run: of another rank, of a companion of this one, and of a child."""
        names = [] if self._companion is None else [self._companion]
        for path in self.paths[:1]:
            stem, suffix = split_suffix(path)
            names += islice(glob.iglob(f"{glob.escape(stem)}-*-[0-9]*{suffix}"), 1)
        if self._recording is not None and (own := self._recording.process).world_size > 1:
            numbers = {field: getattr(own, field) + 1 for field in ("rank", "local_rank", "node", "pid")}
            other = dataclasses.replace(own, host=f"{own.host}2", **numbers)
            names.append(self._name.format(other, self._recording.timestamp))
        return names

    @property
    def paths(self) -> list[str]:
        """The files that were written and not removed again, the one being written last."""
        return self._trace.paths

    @property
    def kept(self) -> list[str]:
        """Local paths of files that could not be packed or uploaded; complete when the recording has ended."""
        return self._trace.kept

    @property
    def removed(self) -> Mapping[str, int]:
        """The number of ``files`` that the limits have removed, and their ``bytes``."""
        return self._retention.removed

    def losses(self) -> Mapping[str, int]:
        """Return how many events could not be kept, by reason."""
        return self._trace.losses()

    @property
    def live_path(self) -> str | None:
        """The file that is being written; None if the next recording window gets a separate file."""
        segment = self._trace.segment
        return None if segment is None else segment.name

    def files_of(self, first_batch: int, last_batch: int) -> list[str]:
        """Return the paths that hold the delivered events of a range of batches. Thread-safe.

        Args:
            first_batch: The first batch, counted through the run.
            last_batch: The last one.
        """
        return self._trace.files_of(first_batch, last_batch)

    # ---- life ---------------------------------------------------------------------------------------------------------

    def open(self, recording: Recording) -> None:
        """Make the file, so that a wrong name or folder shows before training starts."""
        if self._merge is not None:
            self._merge.open(recording)
        self._recording = recording
        self._trace.open(recording)
        # A child makes its file at its first event: a run may have thousands of children.
        if not self._name.per_window and recording.process.parent_pid is None:
            self._trace.begin(recording.timestamp, first=True)

    def process_events(self, batch: EventBatch) -> None:
        """Write a batch, to a new file where one is due."""
        if batch:
            self._trace.write(batch)

    def flush(self) -> None:
        """Begin a removed or truncated file again, and let no segment wait too long for more events."""
        self._trace.flush()
        if self._merge is not None:
            report_merges()

    def window_end(self, timestamp: Timestamp, wall_clock_time_ns: int) -> None:
        """Complete the window's file, if each window has a separate one."""
        ended = self._trace.end_window(wall_clock_time_ns)
        if ended and self._merge is not None and self._merge.every_window:
            self._merge.start(self._trace.timestamp)

    def process_chrome_json_trace_file(self, filepath: str) -> None:
        """Record in the rank trace which other traces this process has written."""
        self._companion = self._companion or filepath
        args = {"file": storage.printable_name(filepath)}
        if self._recording is not None and not self._recording.process.private:
            path = _path_beside(filepath, self._trace.location)
            if storage.basename(path) != path:
                args["path"] = path
        self._trace.write_metadata(COMPANION_EVENT, args)

    def clock_anchor(self, anchor: Anchor, step: ClockStep | None) -> None:
        """Record the readings of the clocks, for the merge."""
        for name, args in clock_metadata(anchor, step):
            self._trace.write_metadata(name, args)

    def clock_offset(self, offset: ClockOffset) -> None:
        """Record the offset of this process's clock to another rank's, for the merge."""
        self._trace.write_offset(offset)

    def summary(self, summary: Summary) -> None:
        """Keep the counts for the end of the file."""
        self._summary = summary

    def stopping(self, error: BaseException | None) -> None:
        """Keep the error that ends the recording."""
        self._stopped = (error,)

    def ending(self, timeout_s: float) -> None:
        """Record how long `close` waits for packing and uploading."""
        self._ends = True
        self._trace.ending(timeout_s)

    def close(self) -> None:
        """Complete the file, and wait for packing and uploading, within the time for the end of the recording."""
        window_is_open = self._trace.close(self._summary)
        merge = self._merge
        if merge is None or not self._ends or (merge.every_window and not window_is_open):
            return
        if self._stopped is None:
            merge.leave(self._trace.timestamp, "SIGTERM ended the recording")
        else:
            (error,) = self._stopped
            merge.start(self._trace.timestamp, failed=error is not None and not isinstance(error, SystemExit))

    def for_children(self) -> Callable[[str], TraceHandler]:
        """Return a factory for children: they write files of the same kind, with their name and pid in the file name."""
        return partial(_child_handler, type(self), self._name.template, self._trace_options)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process gets a handler with the same arguments that is not open: a file has one writer.
        return partial(type(self), self._name.template, **self._trace_options, **self._merge_options), ()


def _numbered(name: str) -> str:
    """Return the name with a field for the number of the segment."""
    if "{part" in name:
        return name
    stem, suffix = split_suffix(name)
    return f"{stem}-part{{part:04d}}{suffix}"


def _path_beside(path: str, name: str) -> str:
    """Return the path of a trace relative to the folder of a rank trace, or absolute where the storages differ."""
    path, name = storage.without_secrets(path), storage.without_secrets(name)
    if not storage.is_remote(path):
        whole = Path(path).resolve()
        return os.fspath(whole) if storage.is_remote(name) else os.path.relpath(whole, Path(name).resolve().parent)
    if path.split("/")[:3] != name.split("/")[:3]:  # scheme and bucket
        return path
    return posixpath.relpath(path.partition("://")[2], posixpath.dirname(name.partition("://")[2]))


def _child_handler(
    kind: type[JSONTraceHandler], template: str, options: Mapping[str, Any], child: str
) -> JSONTraceHandler:
    return kind(child_file_name(template, child), **options)
