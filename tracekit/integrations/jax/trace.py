"""JaxTrace, one run of ``jax.profiler`` from its start to its files, and JaxAnnotations; the only module that imports jax."""

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
from tracekit.handlers.mirrors.mirror import Mirror

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.distributed import ProcessInfo
    from tracekit.handlers.mirrors.mirror import Moment

__all__ = ["JaxAnnotations", "JaxTrace", "coordination_client", "import_jax"]

logger = logging.getLogger("tracekit")

_XPLANE: Final = ".xplane.pb"
_IDENTITY: Final[dict[str, object]] = {
    **dict.fromkeys(("rank", "local_rank", "world_size", "node", "pid", "attempt", "start_ticks"), 0),
    **dict.fromkeys(("host", "run_id", "boot_id"), ""),
}
"""Fields of the process that a trace holds, and their values where they are unknown."""
_ANCHORS: Final = 3
"""The first one takes longer than the others, and the shortest is the most precise."""


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
    are in different folders, which XProf shows as different runs. Here each process records into its own folder, hidden in
    the log directory, and moves its files to ``plugins/profile/step_<first step>/process<index>-<host>.*``, which is the same
    folder for all processes of a run.

    Args:
        jax: The module.
        log_dir: The log directory, a path or URL.
        process: The recording process; goes into the trace, for the merge.
        index: JAX's number of the process.
        options: ``jax.profiler.ProfileOptions`` or None.
        clock: The clock that the trace is tied to.
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
        """Begin a trace whose first step has this number."""
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
        except Exception as error:  # noqa: BLE001 - another version of JAX may throw anything, and also has an xplane.pb
            logger.warning("tracekit: the JAX trace has no reading of the clock, and needs its xplane.pb: %r", error)

    def _anchor(self) -> None:
        """Write the time into the trace, which does not hold the start of its own times."""
        who = {name: getattr(self._process, name) or default for name, default in _IDENTITY.items()}
        with self._jax.profiler.TraceAnnotation(ANCHOR_EVENT, first_step=self._step, **who) as annotation:
            wall_ns = self._clock.wall_ns()
            annotation.set_metadata(wall_ns=wall_ns)

    def annotate(self, step: int | None) -> None:
        """End the annotated step, and begin the next one, so that XProf shows each step; None begins none.

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
        """Wait until these arrays are computed, so that their computation is in the trace."""
        if arrays is not None:
            self._jax.block_until_ready(arrays)

    def stop(self, *, keep: bool = True) -> list[str]:
        """End, and return the files, or delete them. May be called on any thread, and take minutes.

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
        """Return a folder without files of this process: the log directory may hold an earlier run."""
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


class JaxAnnotations(Mirror):
    """Shows every marker as a ``jax.profiler.TraceAnnotation``, which XProf and TensorBoard show.

    A trace handler: ``Profiler(trace_handlers=[JSONTraceHandler(...), JaxAnnotations()])``. Like every inline handler it has a
    slice take some microseconds instead of half of one, and more while JAX's tracer of Python functions runs. Instants are not
    shown: JAX has none. Thread-safe.

    Raises:
        ConfigError: JAX is not installed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._annotation = import_jax().profiler.TraceAnnotation

    def begin(self, name: str, categories: Sequence[str], moment: Moment) -> Any:
        """Begin an annotation."""
        annotation = self._annotation(name)
        annotation.__enter__()
        return annotation

    def end(self, opened: Any, moment: Moment, exception: str | None) -> None:
        """End an annotation."""
        self.leave(opened)

    def mark(self, name: str, categories: Sequence[str], moment: Moment) -> None:
        """Do nothing."""

    def leave(self, opened: Any) -> None:
        """End an annotation, on any thread."""
        opened.__exit__(None, None, None)
