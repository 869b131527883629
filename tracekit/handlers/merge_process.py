"""Start ``tracekit merge`` as a separate process, and wait for it at the exit."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit import storage
from tracekit.wording import one_line

if TYPE_CHECKING:
    import subprocess

logger = logging.getLogger("tracekit")

_NICE: Final = 19
_MAX_RUNNING: Final = 4  # a merge of each window
_PATIENCE_S: Final = 3.0  # then the exit logs that it waits
_MAX_CHARACTERS: Final = 600
_INCOMPLETE: Final = 3  # exit code of ``tracekit merge``
_PROGRAM: Final = re.compile(r"\Atracekit(?: merge)?: ")
_KEPT_VARIABLES: Final = ("TRACEKIT_DEBUG", "TRACEKIT_PURE_PYTHON")
_INJECTED: Final = ("CUDA_INJECTION64_PATH", "KINETO_USE_DAEMON", "NVTX_INJECTION64_PATH")


@dataclass(frozen=True, slots=True)
class MergeCommand:
    """A command line of ``tracekit merge``.

    Attributes:
        output: The merged trace.
        arguments: The arguments.
        by_hand: The arguments for a person, who runs the command after the end of the run.
    """

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
    """A merge that was started.

    Attributes:
        command: The command.
        process: The child.
        log: The file with its output, private to the user.
        timeout_s: Maximum time that the exit waits for it; 0 does not wait.
        owner: The process that started it: a forked child has a copy of this object.
    """

    command: MergeCommand
    process: subprocess.Popen[bytes]
    log: Path
    timeout_s: float
    owner: int

    def report(self) -> bool:
        """Log a failure if the process has ended; return False while it runs."""
        if self.owner != os.getpid():
            return True
        code = self.process.poll()
        if code is None:
            return False
        problems = _problems(self.log)
        self.log.unlink(missing_ok=True)
        if code:
            logger.warning(
                "tracekit: %s is %s (%s). To merge it again: %s",
                storage.without_secrets(self.command.output),
                "merged, with problems" if code == _INCOMPLETE else "not merged",
                problems or f"exit code {code}",
                self.command,
            )
        return True


_merges: Final[list[_Merge]] = []  # the merges that were started and not reported


def start_merge(command: MergeCommand, timeout_s: float) -> int | None:
    """Start a merge. Never waits, and raises nothing.

    Args:
        command: The command.
        timeout_s: Maximum time that the exit waits for it; 0 does not wait.

    Returns:
        The id of its process. None if it cannot be started; the log then has the command.
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
    """Wait for the running merges, and log the unfinished and failed ones. Called at the exit.

    Args:
        wait: False after SIGTERM.
    """
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
