"""Start ``tracekit merge`` as a separate process when a recording ends, and wait for it at the exit."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit import storage
from tracekit.arguments import LOG_SERVICES, check_choice, check_path, check_seconds, check_service
from tracekit.distributed import ProcessInfo
from tracekit.errors import ConfigError
from tracekit.naming import FileName, following_names, shown, split_suffix
from tracekit.timestamp import Timestamp
from tracekit.wording import one_line

if TYPE_CHECKING:
    import subprocess

    from tracekit.arguments import StrPath
    from tracekit.handlers.base import Recording

logger = logging.getLogger("tracekit")

_NICE: Final = 19
_MAX_RUNNING: Final = 4  # a merge of each window
_PATIENCE_S: Final = 3.0  # then the exit logs that it waits
_MAX_CHARACTERS: Final = 600
_INCOMPLETE: Final = 3  # exit code of ``tracekit merge``
_PROGRAM: Final = re.compile(r"\Atracekit(?: merge)?: ")
_KEPT_VARIABLES: Final = ("TRACEKIT_DEBUG", "TRACEKIT_PURE_PYTHON")
_INJECTED: Final = ("CUDA_INJECTION64_PATH", "KINETO_USE_DAEMON", "NVTX_INJECTION64_PATH")
_merges: Final[list[_Merge]] = []  # the merges that were started and not reported
DEFAULT_TIMEOUT_S: Final = 60.0
_MAX_NAMES: Final = 1000
_ANY_PROCESS: Final = ProcessInfo(
    run_id="run", rank=0, local_rank=0, world_size=2, node=0, host="host", pid=1, attempt=0, boot_id=None, source=""
)


@dataclass(frozen=True, slots=True)
class MergeCommand:
    """A command line of ``tracekit merge``, and the arguments for a person who runs it after the end of the run."""

    output: str
    arguments: list[str]
    by_hand: list[str]

    def __str__(self) -> str:
        replaces = not storage.is_remote(self.output) and os.path.lexists(self.output)
        words = [*(["--force"] if replaces else []), *self.by_hand]
        return " ".join(["tracekit merge", *map(storage.shell_word, words)])

    def log(self, reason: str) -> None:
        """Log the command, and the reason why nobody runs it or waits for it."""
        logger.warning(
            "tracekit: %s is not merged (%s). To merge it: %s",
            storage.without_secrets(self.output),
            one_line(reason, _MAX_CHARACTERS),
            self,
        )


@dataclass(eq=False, slots=True)
class _Merge:
    """A merge that was started, and the private file with its output. The exit waits for ``timeout_s`` at most."""

    command: MergeCommand
    process: subprocess.Popen[bytes]
    log: Path
    timeout_s: float
    owner: int  # the process that started it: a forked child has a copy of this object

    def report(self) -> bool:
        """Log a failure if the process has ended; return False while it runs."""
        if self.owner != os.getpid():
            return True
        code = self.process.poll()
        if code is None:
            return False
        problems = _problems(self.log)
        with suppress(OSError):
            self.log.unlink()
        if code:
            logger.warning(
                "tracekit: %s is %s (%s). To merge it again: %s",
                storage.without_secrets(self.command.output),
                "merged, with problems" if code == _INCOMPLETE else "not merged",
                problems or f"exit code {code}",
                self.command,
            )
        return True


def start_merge(command: MergeCommand, timeout_s: float) -> int | None:
    """Start a merge that the exit waits for; 0 does not wait. Never waits, and raises nothing.

    Return the id of its process. None if it cannot be started; the log then has the command.
    """
    report_merges()
    try:
        if len(_merges) >= _MAX_RUNNING:
            raise ValueError(f"{len(_merges)} merges are running")
        if any(storage.without_secrets(text) != text for text in command.arguments):
            raise ValueError("the URL holds a secret, and a command line shows it to other users")
        merge = _started(command, timeout_s)
    except Exception as error:  # noqa: BLE001 - a failed merge must not fail the recording
        command.log(getattr(error, "strerror", None) or str(error))
        return None
    _merges.append(merge)
    return merge.process.pid


def report_merges() -> None:
    """Log the failures of merges that have ended since the last call."""
    for merge in list(_merges):
        with suppress(ValueError):  # the thread of another handler has taken it
            _merges.remove(merge)
            if not merge.report():
                _merges.append(merge)


def wait_for_merges(*, wait: bool = True) -> None:
    """Wait for the running merges (not after SIGTERM), and log the unfinished and failed ones. Called at the exit."""
    began_s = time.monotonic()
    mine = [merge for merge in _merges if merge.owner == os.getpid()]
    _merges.clear()
    wait = wait and getattr(sys, "last_type", None) is None  # an exception that nobody caught
    for merge in mine:
        if wait and merge.timeout_s:
            try:
                _wait(merge, began_s + merge.timeout_s)
            except KeyboardInterrupt:
                wait = False
        if not merge.report():
            merge.process.returncode = 0  # silences the ResourceWarning about a running child
            logger.log(
                logging.WARNING if merge.timeout_s else logging.INFO,
                "tracekit: %s is not merged yet; process %d goes on with it, and reports to %s (now: %s). To merge it by "
                "hand: %s",
                storage.without_secrets(merge.command.output),
                merge.process.pid,
                merge.log,
                _problems(merge.log) or "nothing",
                merge.command,
            )


def _started(command: MergeCommand, timeout_s: float) -> _Merge:
    folder = None
    if not storage.is_remote(command.output):
        folder = Path(command.output).parent
        storage.make_folders(folder)
    import subprocess  # here, and in _wait: most recordings start no merge
    import tempfile

    descriptor, name = tempfile.mkstemp(".log", f"{storage.basename(command.output)}.", folder)
    log = Path(name)
    try:
        # A new program instead of a fork with threads and devices; it shares no terminal and no pipe with this process.
        process = subprocess.Popen(  # noqa: S603 - this Python, and no shell
            [sys.executable, "-m", "tracekit", "merge", *command.arguments],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd=os.sep,
            env=child_environment(),
            start_new_session=True,
        )
    except BaseException:
        log.unlink()
        raise
    finally:
        os.close(descriptor)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
    return _Merge(command, process, log, timeout_s, os.getpid())


def child_environment() -> dict[str, str]:
    """Return the environment without variables that start recordings, and with the folder of this package."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _INJECTED and (not name.startswith("TRACEKIT_") or name in _KEPT_VARIABLES)
    }
    root = Path(__file__).resolve().parents[2]
    if root.name not in ("site-packages", "dist-packages"):
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, (kept.get("PYTHONPATH"), os.fspath(root))))
    return kept


def _wait(merge: _Merge, until_s: float) -> None:
    """Wait for a merge; log a line if that takes long."""
    import subprocess

    with suppress(subprocess.TimeoutExpired):
        merge.process.wait(min(_PATIENCE_S, max(0.0, until_s - time.monotonic())))
        return
    left_s = max(0.0, until_s - time.monotonic())
    if left_s:
        logger.warning(
            "tracekit: waiting up to %.0f s for %s (%s); Ctrl-C ends the waiting",
            left_s,
            storage.without_secrets(merge.command.output),
            _problems(merge.log) or "merging",
        )
    with suppress(subprocess.TimeoutExpired):
        merge.process.wait(left_s)


def _problems(log: Path) -> str:
    """Return the last problems in the output of a merge."""
    try:
        lines = log.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    found = [line for line in lines if line.startswith(("tracekit", "LOST", "NOT MERGED"))]
    return one_line("; ".join(_PROGRAM.sub("", line) for line in found[-3:]), _MAX_CHARACTERS)


class EndMerge:
    """Merges the files of a handler and those of the same handler on other ranks. Only rank 0 merges.

    The arguments are those of `JSONTraceHandler`. ``path`` is the merged trace of the whole run; None until its merge
    is started.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        name: FileName,
        merged_filename: StrPath,
        *,
        merge_timeout: float,
        merge_wait: bool,
        merge_every_window: bool,
        log_to: str | None,
    ) -> None:
        check_seconds("merge_timeout", merge_timeout)
        if log_to is not None:
            check_choice("log_to", log_to, LOG_SERVICES)
        self._log_to = log_to
        self._name = name
        self._merged = FileName(check_path("merged_filename", merged_filename))
        self._timeout_s = merge_timeout
        self._wait = merge_wait
        self._recording: Recording | None = None
        self._folder = ""
        self.every_window = merge_every_window
        self.path: str | None = None
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
        """Store the recording; refuse a name that several attempts would share."""
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
        """Start the merge of the window that began at a training time; never waits, and raises nothing.

        The exit does not wait if an exception has ended the recording.
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
