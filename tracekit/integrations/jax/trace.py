"""JaxTrace: one run of ``jax.profiler``, from its start to its files; the only module that imports jax."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit import storage
from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.errors import ConfigError, StorageError
from tracekit.formats.xprof import ANCHOR_EVENT, without_hosts

if TYPE_CHECKING:
    from tracekit.distributed import ProcessInfo

__all__ = ["JaxTrace", "coordination_client", "import_jax"]

logger = logging.getLogger("tracekit")

_XPLANE: Final = ".xplane.pb"
_TRACES: Final = (".trace.json.gz", ".trace.json")
_ANCHORS: Final = 3
"""The first one takes longer than the others, and the shortest tells the time best."""


def import_jax() -> Any:
    """Return jax.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return importlib.import_module("jax")
    except ImportError as error:
        raise ConfigError(
            f"JaxProfiler needs jax: {error}; see JAX's installation guide for your accelerator"
        ) from error


def coordination_client() -> Any:
    """Return the client through which the processes of ``jax.distributed`` share small values; None without one."""
    try:
        return importlib.import_module("jax._src.distributed").global_state.client
    except (ImportError, AttributeError):
        return None  # JAX has no public name for it


class JaxTrace:
    """One run of ``jax.profiler``.

    JAX names its files by host and second, so that processes of one host overwrite each other's, and those of several hosts
    are in different folders, which XProf shows as different runs. Here each process records into a folder of its own, hidden in
    the log directory, and moves its files to ``plugins/profile/step_<first step>/process<index>-<host>.*``, which is the same
    folder for all processes of a run.

    Args:
        jax: The module.
        log_dir: The log directory, a path or URL.
        process: Who records; goes into the trace, so that the merge knows whose it is.
        index: JAX's number of the process.
        options: ``jax.profiler.ProfileOptions`` or None.
        clock: What the trace is tied to.
    """

    def __init__(
        self, jax: Any, log_dir: str, process: ProcessInfo, index: int, options: Any = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._jax = jax
        self._log_dir = log_dir
        self._process = process
        self._index = index
        self._options = options
        self._clock = clock
        self._step = 0
        self._folder: Path | None = None
        self._annotation: Any = None

    def start(self, first_step: int) -> None:
        """Begin.

        Args:
            first_step: The number of the first step that it will hold.
        """
        self._step = first_step
        local = None if storage.is_remote(self._log_dir) else self._log_dir
        if local is not None:
            storage.make_folders(Path(local))
        folder = Path(tempfile.mkdtemp(prefix=f".tracekit-process{self._index}-", dir=local))
        options = {} if self._options is None else {"profiler_options": self._options}
        try:
            self._jax.profiler.start_trace(os.fspath(folder), **options)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._folder = folder
        try:
            for _ in range(_ANCHORS):
                self._anchor()
        except Exception as error:  # noqa: BLE001 - another version of JAX may throw anything, and has an xplane.pb as well
            logger.warning("tracekit: the JAX trace has no reading of the clock, and needs its xplane.pb: %r", error)

    def _anchor(self) -> None:
        """Write the time into the trace, in which every time counts from a start that it does not tell."""
        process = self._process
        who = {
            "rank": process.rank,
            "local_rank": process.local_rank,
            "world_size": process.world_size,
            "node": process.node,
            "host": process.host,
            "pid": process.pid,
            "attempt": process.attempt,
            "run_id": process.run_id,
            "boot_id": process.boot_id or "",
            "start_ticks": process.start_ticks or 0,
        }
        with self._jax.profiler.TraceAnnotation(ANCHOR_EVENT, first_step=self._step, **who) as annotation:
            wall_ns = self._clock.wall_ns()
            annotation.set_metadata(wall_ns=wall_ns)

    def annotate(self, step: int | None) -> None:
        """End the step that is annotated, and begin the next one, so that XProf tells of each step; None begins none.

        Called on one thread.
        """
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)
        if step is not None:
            annotation = self._jax.profiler.StepTraceAnnotation("train", step_num=step)
            annotation.__enter__()
            self._annotation = annotation

    def wait_for(self, arrays: Any) -> None:
        """Return when what computes these arrays is done, and so is in the trace."""
        if arrays is not None:
            self._jax.block_until_ready(arrays)

    def stop(self, *, keep: bool = True) -> list[str]:
        """End, and return the files. May be called on any thread, and take minutes.

        Args:
            keep: Whether the files are wanted.

        Raises:
            StorageError: The files could not be moved; the message says where they are.
        """
        folder, self._folder = self._folder, None
        if folder is None:
            return []
        try:
            self._jax.profiler.stop_trace()
        except BaseException:
            # Somebody else has stopped it, which has written the files.
            self._move(folder)
            raise
        if keep:
            return self._move(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return []

    def _move(self, folder: Path) -> list[str]:
        """Move the files to their place, and remove the folder."""
        found = sorted(file for file in folder.rglob("*") if file.is_file())
        hosts = {file.name.removesuffix(_XPLANE) for file in found if file.name.endswith(_XPLANE)}
        names = {file: self._name(file.name, hosts) for file in found}
        try:
            if self._process.private:
                for file in found:
                    _hide_host(file)
            session = self._session(list(names.values()))
            moved = []
            for file, name in names.items():
                target = f"{session}/{name}"
                if storage.is_remote(target):
                    storage.put(os.fspath(file), target)
                else:
                    storage.make_folders(Path(target).parent)
                    file.chmod(storage.PRIVATE_MODE)
                    file.replace(target)
                moved.append(target)
        except (StorageError, OSError, ValueError) as error:
            raise StorageError(f"{error}; the JAX trace is left in {folder}") from error
        shutil.rmtree(folder, ignore_errors=True)
        return moved

    def _name(self, name: str, hosts: set[str]) -> str:
        """Return the name that a file gets: with the number of the process, and without the host where that is private."""
        own = f"process{self._index}"
        for host in sorted(hosts, key=len, reverse=True):
            if name.startswith(f"{host}."):
                return f"{own}{name.removeprefix(host)}" if self._process.private else f"{own}-{name}"
        return f"{own}.{name}"

    def _session(self, names: list[str]) -> str:
        """Return a folder in which no file of this process is yet: there may be an earlier run in the same log directory."""
        folder = f"{self._log_dir.rstrip('/')}/plugins/profile/step_{self._step:08d}"
        session, number = folder, 0
        while any(storage.exists(f"{session}/{name}") for name in names):
            number += 1
            session = f"{folder}.{number}"
        return session


def _hide_host(file: Path) -> None:
    if file.name.endswith(_XPLANE):
        hidden = file.with_name(f"{file.name}.private")
        with file.open("rb") as source, hidden.open("wb") as target:
            without_hosts(source, target)
        hidden.replace(file)


def traces_among(files: list[str]) -> list[str]:
    """Return those files that are JSON traces."""
    return [file for file in files if file.endswith(_TRACES)]
