"""TraceRecorder: begins, ends and writes JAX traces, one at a time."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit import storage
from tracekit.errors import StorageError
from tracekit.formats.xprof import ANCHOR_EVENT, without_hosts
from tracekit.notices import Notices

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tracekit.clock import Clock
    from tracekit.distributed import ProcessInfo
    from tracekit.integrations.jax.windows import Held
    from tracekit.recording.source import Recorder

logger = logging.getLogger("tracekit")

_XPLANE: Final = ".xplane.pb"
_TRACES: Final = (".trace.json.gz", ".trace.json")
# Fields of the process that a trace holds, and their values where they are unknown
_IDENTITY: Final[dict[str, object]] = {
    **dict.fromkeys(("rank", "local_rank", "world_size", "node", "pid", "attempt", "start_ticks"), 0),
    **dict.fromkeys(("host", "run_id", "boot_id"), ""),
}
_ANCHORS: Final = 3  # the first one takes longer than the others, and the shortest is the most precise
HEARTBEAT_S: Final = 30.0


@dataclass(eq=False, kw_only=True)
class TraceRecorder:
    """Begins and ends JAX traces. Used by the training thread.

    JAX names its files by host and second: processes of one host overwrite each other's, and XProf shows those of several
    hosts as different runs. Here each process records into a folder of its own, hidden in the log directory, and moves its
    files to ``plugins/profile/step_<first step>/process<index>-<host>.*``, the same folder for all processes of a run.
    """

    jax: Any
    log_dir: str
    report: Callable[[BaseException], None]
    clock: Clock
    options: Any
    annotates: bool
    background: bool
    process: ProcessInfo | None = None
    index: int = 0
    profiler: Recorder | None = None
    traces: list[str] = field(default_factory=list)
    _folder: Path | None = field(default=None, init=False)  # of the trace that runs
    _annotation: Any = field(default=None, init=False)
    _writing: threading.Thread = field(default_factory=threading.Thread, init=False)

    def __post_init__(self) -> None:
        self._notices = Notices(self.clock.monotonic_ns)

    @property
    def is_tracing(self) -> bool:
        """True while a trace runs."""
        return self._folder is not None

    @property
    def is_writing(self) -> bool:
        """True while the last trace is written."""
        return self._writing.is_alive()

    def start(self, step: int) -> None:
        """Begin a trace after a step."""
        local = None if storage.is_remote(self.log_dir) else self.log_dir
        options = {} if self.options is None else {"profiler_options": self.options}
        folder: Path | None = None
        try:
            with self._slice("jax.profiler.start_trace"):
                if local is not None:
                    storage.make_folders(Path(local))
                folder = Path(tempfile.mkdtemp(prefix=f".tracekit-process{self.index}-", dir=local))
                self.jax.profiler.start_trace(os.fspath(folder), **options)
                self._folder = folder
                self._anchor(step + 1)
        except BaseException:
            if self.is_tracing:
                self._folder = None
                with suppress(Exception):
                    self.jax.profiler.stop_trace()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        self.annotate(step + 1)
        logger.info("tracekit: JAX records from step %d on", step + 1)

    def _anchor(self, first_step: int) -> None:
        """Write the time into the trace, because JAX does not write the start of the times."""
        who = {name: getattr(self.process, name, None) or default for name, default in _IDENTITY.items()}
        try:
            for _ in range(_ANCHORS):
                with self.jax.profiler.TraceAnnotation(ANCHOR_EVENT, first_step=first_step, **who) as annotation:
                    annotation.set_metadata(wall_ns=self.clock.wall_ns())
        except Exception as error:  # noqa: BLE001 - another version of JAX may throw anything, and also has an xplane.pb
            logger.warning("tracekit: the JAX trace has no reading of the clock, and needs its xplane.pb: %r", error)

    def annotate(self, step: int | None) -> None:
        """End the annotated step, and begin the next one, if a trace runs and steps are annotated; None begins none."""
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)
        if step is not None and self.annotates and self.is_tracing:
            annotation = self.jax.profiler.StepTraceAnnotation("train", step_num=step)
            annotation.__enter__()
            self._annotation = annotation

    def stop(self, held: Held, awaited: Callable[[], Any] | None, cut_by: str = "") -> None:
        """End and write the running trace once the arrays that ``awaited`` returns are computed.

        ``cut_by`` is the reason for an early end, if any.
        """
        folder, self._folder = self._folder, None
        assert folder is not None, "a trace runs"
        try:
            self.annotate(None)
            arrays = None if awaited is None else awaited()
            if arrays is not None:
                self.jax.block_until_ready(arrays)
        except Exception as error:  # noqa: BLE001 - the computation may have failed, and the trace may show why
            self.report(error)
        self._writing = threading.Thread(target=self._write, args=(folder, held, cut_by), name="tracekit-jax-writing")
        try:
            self._writing.start()
        except RuntimeError:  # the interpreter is ending, and starts no more threads
            self._write(folder, held, cut_by)
        if not self.background:
            with self._slice("jax.profiler.stop_trace"):
                self.wait()

    def wait(self) -> None:
        """Wait until the last trace is written, and log that every half minute."""
        seconds = 0.0
        while self.is_writing:
            self._writing.join(HEARTBEAT_S)
            seconds += HEARTBEAT_S
            if self.is_writing:
                logger.warning("tracekit: JAX has been writing its trace for %d s; training waits for it", seconds)

    def _write(self, folder: Path, held: Held, cut_by: str) -> None:
        """End JAX's trace and move its files, on the writing thread."""
        begin_ns = self.clock.monotonic_ns()
        files: list[str] = []
        try:
            try:
                self.jax.profiler.stop_trace()
            except BaseException:
                self._move(folder, held.first)  # somebody else has stopped it, which has written the files
                raise
            if held.steps > 0 or not cut_by:
                files = self._move(folder, held.first)
            shutil.rmtree(folder, ignore_errors=True)
        except Exception as error:  # noqa: BLE001 - whatever JAX or the storage throws, training goes on
            self.report(error)
            return
        seconds = (self.clock.monotonic_ns() - begin_ns) / 1e9
        traces = [file for file in files if file.endswith(_TRACES)]
        self.traces += traces
        for path in traces:
            if self.profiler is not None:
                self.profiler.record_chrome_json_trace_file(path)
        where = ", ".join(map(storage.without_secrets, traces)) or "no file"
        message = f"tracekit: JAX has recorded {held} (written in {seconds:.1f} s): {where}"
        if held.steps == held.wanted:
            logger.info("%s", message)
        else:
            again = "; another trace begins with the next step" if held.again else ""
            message += f"; these are {held.steps} of {held.wanted} steps, as {cut_by or 'the end'} came first{again}"
            self._notices.warn("cut", "%s", message)

    def _move(self, folder: Path, first_step: int) -> list[str]:
        """Move the files to their place, and remove the folder; a `StorageError` says where they are left."""
        found = sorted(file for file in folder.rglob("*") if file.is_file())
        hosts = sorted({file.name.removesuffix(_XPLANE) for file in found if file.name.endswith(_XPLANE)}, key=len)
        is_private = self.process is not None and self.process.private
        names: dict[Path, str] = {}
        for file in found:
            # JAX names files by the host; they get the number of the process, and keep the host where it is not private.
            host = next((host for host in reversed(hosts) if file.name.startswith(f"{host}.")), "")
            rest = file.name.removeprefix(f"{host}.")
            names[file] = f"process{self.index}{'' if is_private or not host else f'-{host}'}.{rest}"
        try:
            session = self._session(first_step, list(names.values()))
            for file, name in names.items():
                if is_private and name.endswith(_XPLANE):
                    _hide_host(file)
                target = f"{session}/{name}"
                if storage.is_remote(target):
                    storage.put(os.fspath(file), target)
                else:
                    storage.make_folders(Path(target).parent)
                    file.chmod(storage.PRIVATE_MODE)
                    file.replace(target)
        except (StorageError, OSError, ValueError) as error:
            raise StorageError(f"{error}; the JAX trace is left in {folder}") from error
        shutil.rmtree(folder, ignore_errors=True)
        return [f"{session}/{name}" for name in names.values()]

    def _session(self, first_step: int, names: list[str]) -> str:
        """Return a folder without files of this process: the log directory may hold an earlier run."""
        folder = f"{self.log_dir.rstrip('/')}/plugins/profile/step_{first_step:08d}"
        session, number = folder, 0
        while any(storage.exists(f"{session}/{name}") for name in names):
            number += 1
            session = f"{folder}.{number}"
        return session

    def _slice(self, name: str) -> AbstractContextManager[object]:
        return nullcontext() if self.profiler is None else self.profiler.marker(name, ("jax profiler",))


def _hide_host(file: Path) -> None:
    hidden = file.with_name(f"{file.name}.private")
    with file.open("rb") as source, hidden.open("wb") as target:
        without_hosts(source, target)
    hidden.replace(file)
