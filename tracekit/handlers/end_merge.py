"""EndMerge: check the merge options of a handler, and build its merge command."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit import storage
from tracekit.arguments import LOG_SERVICES, check_choice, check_path, check_seconds, check_service
from tracekit.distributed import ProcessInfo
from tracekit.errors import ConfigError
from tracekit.handlers.merge_process import MergeCommand, start_merge
from tracekit.naming import FileName, following_names, shown, split_suffix
from tracekit.timestamp import Timestamp

if TYPE_CHECKING:
    from tracekit.arguments import StrPath
    from tracekit.handlers.base import Recording

DEFAULT_TIMEOUT_S: Final = 60.0
_MAX_NAMES: Final = 1000
_ANY_PROCESS: Final = ProcessInfo(
    run_id="run", rank=0, local_rank=0, world_size=2, node=0, host="host", pid=1, attempt=0, boot_id=None, source=""
)


class EndMerge:
    """Merges the files of a handler and those of the same handler on other ranks. Only rank 0 merges.

    Args:
        name: The names of the rank traces.
        merged_filename: The merged trace; see `JSONTraceHandler` for the arguments.
        timeout: Maximum time in seconds that the merge waits for the other ranks, and the exit for the merge.
        wait: Wait for the merge at the exit.
        every_window: Merge the files of each recording window when it ends.
        log_to: Log the merged trace to this service.

    Attributes:
        every_window: As given.
        path: The merged trace of the whole run; None until its merge is started.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        name: FileName,
        merged_filename: StrPath,
        *,
        timeout: float,
        wait: bool,
        every_window: bool,
        log_to: str | None = None,
    ) -> None:
        check_seconds("merge_timeout", timeout)
        if log_to is not None:
            check_choice("log_to", log_to, LOG_SERVICES)
        self._log_to = log_to
        self._name = name
        self._merged = FileName(check_path("merged_filename", merged_filename))
        self._timeout_s = timeout
        self._wait = wait
        self._recording: Recording | None = None
        self._folder = ""
        self.every_window = every_window
        self.path: str | None = None
        self._check()

    def _check(self) -> None:
        merged, fields = shown(self._merged.template), self._merged.fields
        if not split_suffix(self._merged.template)[1]:
            raise ConfigError(
                f"merged_filename {merged} must end with .json, .json.gz, .pftrace, .pftrace.gz, .tar or .zip"
            )
        if wrong := sorted(fields & {"rank", "local_rank"}):
            raise ConfigError(f"merged_filename {merged}: one file holds all ranks; take {{{wrong[0]}}} out of it")
        if self.every_window and not (self._name.per_window and self._merged.per_window):
            which = "merged_filename" if self._name.per_window else "filename"
            raise ConfigError(
                f"merge_every_window=True needs one file for each recording window: put {{epoch}} or {{batch}} into {which}"
            )
        if self.every_window and self._name.numbered:
            raise ConfigError(
                "merge_every_window=True needs one file for each recording window; rotation and remote names make several"
            )
        if self._merged.per_window and not self.every_window:
            raise ConfigError(
                f"merged_filename {merged} names a file for each recording window; pass merge_every_window=True, or take "
                "{epoch} and {batch} out of it"
            )
        now = Timestamp()
        own = FileName(_comparable(self._name.template), "part")
        if own.can_be(FileName(_comparable(self._merged.template)).format(_ANY_PROCESS, now), _ANY_PROCESS, now):
            raise ConfigError(f"merged_filename {merged} can be the name of a rank trace; choose another")

    def open(self, recording: Recording) -> None:
        """Take note of the recording.

        Raises:
            ConfigError: Several attempts would have the same merged trace.
        """
        process = recording.process
        if (process.restartable or process.attempt) and not self._merged.fields & {"attempt", "pid"}:
            raise ConfigError(
                f"merged_filename {shown(self._merged.template)} is the same for every attempt, and the launcher restarts "
                "ranks; put {attempt} into it"
            )
        self._recording = recording if process.rank == 0 and process.parent_pid is None else None
        if self._recording is not None and self._log_to is not None:
            check_service(self._log_to, "log_to=")
        self._folder = f"{Path.cwd()}{os.sep}"

    def start(self, timestamp: Timestamp, *, failed: bool = False) -> None:
        """Start the merge; never waits, and raises nothing.

        Args:
            timestamp: The training time that the window began with.
            failed: An exception has ended the recording: the exit does not wait.
        """
        if self._recording is None:
            return
        command = self._command(timestamp)
        pid = start_merge(command, 0.0 if failed or not self._wait else self._timeout_s)
        if pid is None:
            return
        if not self.every_window:
            self.path = storage.without_secrets(command.output.removeprefix(self._folder))
        if failed:
            command.log(f"an exception ended the recording; process {pid} goes on with it in the background")

    def leave(self, timestamp: Timestamp, reason: str) -> None:
        """Log the command instead of starting it."""
        if self._recording is not None:
            self._command(timestamp).log(reason)

    def _command(self, timestamp: Timestamp) -> MergeCommand:
        assert self._recording is not None
        process = self._recording.process
        options = ["--wait-for-ranks", str(process.world_size)]
        if "run_id" not in self._name.fields:
            options += ["--run", process.run_id]
        if self.every_window:
            options.append("--window")
        if self._log_to is not None:
            # Both libraries may keep their files in the folder of the training.
            options += ["--log-to", self._log_to, "--log-folder", self._folder]
        output = self._merged.format(process, timestamp)
        if not storage.is_remote(output):
            path = os.fspath(Path(self._folder, output))
            free = (name for name in islice(following_names(path), _MAX_NAMES) if not os.path.lexists(name))
            output = next(free, path)
        name = self._name.template
        folder = "" if storage.is_remote(name) or Path(name).is_absolute() else self._folder
        files = ["-o", output, *self._name.globs(process, timestamp, window=self.every_window, folder=folder)]
        timeout = ["--timeout", f"{self._timeout_s:g}"]
        return MergeCommand(output, [*options, *timeout, *files], [*options, "--timeout", "0", *files])


def _comparable(template: str) -> str:
    """Return a template without ``.gz`` and as an absolute path: a packed trace is plain at first."""
    name = template.removesuffix(".gz")
    if storage.is_remote(name):
        return name
    here = os.fspath(Path.cwd()).replace("{", "{{").replace("}", "}}")
    return os.path.normpath(Path(here, name))
