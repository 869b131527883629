"""Identity of this process: rank, world size, node, host, attempt, run; and the source of the rank."""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_whole
from tracekit.errors import ConfigError
from tracekit.processors import boot_id

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger("tracekit")

RUN_ID_VARIABLE: Final = "TRACEKIT_RUN_ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """One process of a training run.

    Attributes:
        run_id: Id of the run: the same on every rank, and different for every run.
        rank: Global rank, 0 .. world_size - 1.
        local_rank: Rank among the processes of this host.
        world_size: Number of ranks.
        node: Number of the host among the hosts of the run.
        host: Host name.
        pid: Process id.
        attempt: Number of times that the launcher has restarted this rank: 0 for the first run.
        boot_id: The kernel's id of this boot, or None; processes with the same boot share their clocks.
        source: Source of the rank: "arguments", "torch.distributed", "jax.distributed", "torchrun", "slurm", "openmpi", "pmi",
            or "default" without any of these.
        restartable: True if the launcher may start this rank again under the same run id.
        start_ticks: Start of the process in the kernel's clock ticks since the boot, or None. Host, boot, pid and this identify
            a process uniquely: pids are reused, and the first process of a container is always 1.
        child: Name of a process that a rank has started ("worker 0"); empty for the main process of a rank.
        worker: Number of the worker, if the process is a worker of a data loader.
        parent_pid: For a child, the process that started it and records the rank.
        private: True if host and boot are hashes, and host names, user names and paths are left out; see `tracekit.privacy`.
    """

    run_id: str
    rank: int
    local_rank: int
    world_size: int
    node: int
    host: str
    pid: int
    attempt: int
    boot_id: str | None
    source: str
    restartable: bool = False
    start_ticks: int | None = None
    child: str = ""
    worker: int | None = None
    parent_pid: int | None = None
    private: bool = False

    def as_child(self, name: str, worker: int | None = None) -> ProcessInfo:
        """Return the identity of the current process as a child of this one.

        Args:
            name: Name of the child.
            worker: Its number, if it is a worker of a data loader.
        """
        return replace(
            self, pid=os.getpid(), start_ticks=_start_ticks(), child=name, worker=worker, parent_pid=self.pid
        )


@dataclass(frozen=True, slots=True)
class Launcher:
    """The environment variables of one launcher; the first name that is set counts."""

    source: str
    rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...]
    node: tuple[str, ...]
    local_world_size: tuple[str, ...]


LAUNCHERS: Final = (
    # The launcher nearest to the process first: torchrun inside a SLURM job sets RANK and inherits SLURM_PROCID.
    Launcher(
        "torchrun", ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("GROUP_RANK", "NODE_RANK"), ("LOCAL_WORLD_SIZE",)
    ),
    Launcher("slurm", ("SLURM_PROCID",), ("SLURM_NTASKS", "SLURM_NPROCS"), ("SLURM_LOCALID",), ("SLURM_NODEID",), ()),
    Launcher(
        "openmpi",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_NODE_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    Launcher("pmi", ("PMI_RANK", "PMIX_RANK"), ("PMI_SIZE",), ("MPI_LOCALRANKID",), (), ("MPI_LOCALNRANKS",)),
)


def detect_process(
    *,
    rank: int | None = None,
    local_rank: int | None = None,
    world_size: int | None = None,
    node: int | None = None,
    attempt: int | None = None,
    run_id: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> ProcessInfo:
    """Return the identity of this process.

    The rank comes from the arguments, else from torch.distributed or jax.distributed if one is initialised, else from the
    environment of torchrun, SLURM, Open MPI or a PMI launcher. Otherwise, it is 0.

    Args:
        rank: Global rank; None detects it, like the arguments below.
        local_rank: Rank on this host. Where nothing gives it, nor the number of ranks of a host, it is the rank.
        world_size: Number of ranks.
        node: Number of this host.
        attempt: Number of restarts of this rank.
        run_id: Name of the run, the same on every rank; None uses ``TRACEKIT_RUN_ID``, else the job id of the launcher, else a
            name from the start time of this run on this host.
        environ: Environment variables; None uses those of the process.

    Raises:
        ConfigError: A variable or an argument is not a number, or the rank is not below the world size.
    """
    environ = os.environ if environ is None else environ
    for launcher in LAUNCHERS:
        found_rank = _number(environ, launcher.rank)
        if found_rank is not None and not (launcher.source == "slurm" and _interactive(environ)):
            source = launcher.source
            found_size = _number(environ, launcher.world_size)
            found_local = _number(environ, launcher.local_rank)
            found_node = _number(environ, launcher.node)
            local_size = _number(environ, launcher.local_world_size)
            break
    else:
        source, found_rank, found_size, found_local, found_node, local_size = "default", 0, 1, None, 0, None
    framework, initialised = "torch.distributed", _torch_distributed()
    if initialised is None:
        framework, initialised = "jax.distributed", _jax_distributed()
    if initialised is not None:
        if source != "default" and initialised != (found_rank, found_size):
            logger.warning(
                "tracekit: %s says rank %d of %d, %s says rank %s of %s; taking the first",
                framework,
                *initialised,
                source,
                found_rank,
                found_size,
            )
        found_rank, found_size = initialised
        source = framework
    if rank is not None:
        source = "arguments"
    the_rank = _given("rank", rank, found_rank)
    the_size = _given("world_size", world_size, max(found_size or 1, the_rank + 1 if world_size is None else 1))
    if the_rank >= the_size:
        raise ConfigError(
            f"rank {the_rank} is not below world_size {the_size}; pass rank= and world_size= that fit together"
        )
    if found_local is None and source == "jax.distributed":
        found_local = 0  # one process has all devices of a host, as a rule
    elif found_local is None:
        found_local = the_rank % local_size if local_size else the_rank
    if found_node is None:
        found_node = the_rank // local_size if local_size else 0
    import socket  # here: it costs 6 ms, and the host is not needed before the start

    the_attempt = _number(environ, ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")) or 0
    return ProcessInfo(
        run_id=run_id or _run_id(environ, the_size),
        rank=the_rank,
        local_rank=_given("local_rank", local_rank, found_local),
        world_size=the_size,
        node=_given("node", node, found_node),
        host=socket.gethostname(),
        pid=os.getpid(),
        attempt=_given("attempt", attempt, the_attempt),
        boot_id=boot_id(),
        source=source,
        restartable=(_number(environ, ("TORCHELASTIC_MAX_RESTARTS",)) or 0) > 0,
        start_ticks=_start_ticks(),
    )


def _given(name: str, argument: int | None, found: int | None) -> int:
    value = found if argument is None else argument
    return check_whole(name, value, 0)


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = environ.get(name)
        if text:
            try:
                return int(text)
            except ValueError:
                raise ConfigError(f"environment variable {name} must be a whole number, not {text!r}") from None
    return None


def _interactive(environ: Mapping[str, str]) -> bool:
    """Return True in a shell that salloc or srun --pty opened: SLURM's variables then do not describe a rank."""
    return environ.get("SLURM_JOB_NAME") in ("bash", "interactive")


def torch_process_group() -> Any:
    """Return ``torch.distributed`` if there is a default process group in this process. Never imports torch."""
    module: Any = sys.modules.get("torch.distributed")
    try:
        return module if module is not None and module.is_available() and module.is_initialized() else None
    except AttributeError:
        return None  # half imported


def _torch_distributed() -> tuple[int, int] | None:
    """Return (rank, world size) if torch.distributed is initialised in this process."""
    distributed = torch_process_group()
    try:
        return None if distributed is None else (int(distributed.get_rank()), int(distributed.get_world_size()))
    except (AttributeError, RuntimeError, ValueError):
        return None  # a fake process group without ranks


def _jax_distributed() -> tuple[int, int] | None:
    """Return (process index, process count) if jax.distributed is initialised in this process. Never imports jax.

    ``jax.process_index()`` would initialise the accelerators, which a recorder must not do first.
    """
    state: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    try:
        return None if state is None or state.client is None else (int(state.process_id), int(state.num_processes))
    except (AttributeError, TypeError, ValueError):
        return None  # another version of jax


def _run_id(environ: Mapping[str, str], world_size: int) -> str:
    """Return a name for the run that all ranks derive without communication, and that other runs do not have."""
    given = environ.get(RUN_ID_VARIABLE)
    if given:
        return given
    elastic = environ.get("TORCHELASTIC_RUN_ID")
    if elastic and elastic != "none":  # the value of torchrun for a run without a name
        return elastic
    for name in ("SLURM_JOB_ID", "PMIX_NAMESPACE", "PBS_JOBID", "LSB_JOBID", "JOB_ID"):
        job = environ.get(name)
        if job:
            step = environ.get("SLURM_STEP_ID") if name == "SLURM_JOB_ID" else None
            return f"{job}.{step}" if step else job
    if world_size == 1:
        return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    # The ranks of one host have one parent, the launcher. Several hosts agree at least on the rendezvous. Handlers refuse a
    # name of an earlier run, because they never write into an existing file.
    launcher = _launcher_start()
    if launcher and _number(environ, ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")) == world_size:
        return launcher
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    return f"{address}-{port}" if address and port else launcher or "run"


def _launcher_start() -> str | None:
    """Return start time and pid of the parent process, or None if /proc does not have them."""
    parent = os.getppid()
    ticks, booted = _start_ticks(parent), _boot_time()
    if ticks is None or booted is None:
        return None
    # Do not use the times of the folder /proc/PID: they are set at its first access, and can change between two ranks.
    started = booted + ticks // os.sysconf("SC_CLK_TCK")
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(started))}-{parent}"


def _boot_time() -> int | None:
    """Return the boot time in seconds since the epoch, or None if /proc does not have it."""
    try:
        return int(Path("/proc/stat").read_bytes().partition(b"\nbtime ")[2].split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _start_ticks(pid: int | str = "self") -> int | None:
    """Return the start of a process in clock ticks since the boot, or None if /proc does not have it."""
    try:
        # The name in parentheses can contain any character; the start is the 22nd field, the 20th after the name.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
