"""Examine a machine: the environment, the rank of this process, the clocks, the storage and the optional packages."""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit import core
from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.distributed import LAUNCHERS, detect_process
from tracekit.errors import ConfigError, StorageError, TracekitError
from tracekit.processors import usable_processors
from tracekit.storage import is_remote, put, read, remove_all, without_secrets
from tracekit.structs import Struct, field
from tracekit.version import DISTRIBUTION, __version__, other_distribution

if TYPE_CHECKING:
    from collections.abc import Callable

_VARIABLES: Final = "TRACEKIT_"
# Users paste the output into issues.
_SECRET_NAME: Final = re.compile("TOKEN|SECRET|KEY|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_USER_OF_URL: Final = re.compile(r"(?<=://)[^\s/]*@")
_QUERY_OF_URL: Final = re.compile(r"(://[^\s?]*)\?\S*")
_RANK_FACTS: Final = ("rank", "local_rank", "world_size", "node", "attempt", "run_id", "host", "source")
# Package, distribution, extra ("" for a requirement), what it is for.
_PACKAGES: Final = (
    ("orjson", "orjson", "", "writing"),
    ("msgspec", "msgspec", "", "merging"),
    ("fsspec", "fsspec", "", "every storage"),
    ("duckdb", "duckdb", "explain", "summary, stragglers, diff, gpu, report and query"),
    ("numpy", "numpy", "explain", "the statistics of these"),
    ("torch", "torch", "torch", "TorchProfiler, ClockSync"),
    ("psutil", "psutil", "system", "SystemProfiler"),
    ("jsonschema", "jsonschema", "validate", "schemas in tracekit validate"),
    ("perfetto", "perfetto", "perfetto", "tracekit query --engine perfetto"),
    ("pyarrow", "pyarrow", "parquet", "tracekit query --format parquet"),
    ("rich", "rich", "progress", "progress bars, colours and tables"),
    ("shtab", "shtab", "completion", "tracekit completion"),
    ("jinja2", "Jinja2", "report", "tracekit report"),
    ("uvicorn", "uvicorn", "serve", "tracekit serve"),
    ("mcp", "mcp", "mcp", "tracekit mcp"),
    ("isal", "isal", "fast", "gzip that is three times as fast"),
    ("zstandard", "zstandard", "zstd", "traces packed with zstd"),
    ("s3fs", "s3fs", "s3", "s3:// storage"),
    ("pynvml", "nvidia-ml-py", "gpu", "GPU counters"),
    ("nvtx", "nvtx", "nvtx", "markers in Nsight"),
    ("opentelemetry", "opentelemetry-api", "otel", "OpenTelemetry"),
    ("distributed", "distributed", "dask", "merging on a cluster"),
    ("viztracer", "viztracer", "offline", "tracekit open --offline"),
)
_READS: Final = 2000
_COARSE_NS: Final = 10_000
_LOOSE_NS: Final = 100_000
_YEAR_2020_NS: Final = 1_577_836_800_000_000_000
_LITTLE_BYTES: Final = 1_000_000_000
_CONTENT: Final = b"tracekit doctor was here\n"
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EMLINK})


class Section(Struct):
    """One thing that was examined."""

    title: str
    facts: dict[str, Any] = field(default_factory=dict)  # by name; ready for JSON
    problems: list[str] = field(default_factory=list)  # sentences that name the problem and its solution
    notes: list[str] = field(default_factory=list)  # sentences about facts that need no action


def examine_environment() -> Section:
    """Report the versions and the platform."""
    section = Section("environment")
    section.facts = {
        "tracekit": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "recording_core": "pure Python" if core.record is None else "compiled",
        "merge_core": "pure Python" if core.merge is None else "compiled",
        "processors": usable_processors(),
        "variables": {
            name: _shown(name, value) for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)
        },
    }
    gil_enabled = getattr(sys, "_is_gil_enabled", None)
    if gil_enabled is not None and not gil_enabled():
        section.notes.append("this Python runs without a global lock, in which tracekit is not tested")
    return section


def _shown(name: str, value: str) -> str:
    """Return the value of a variable as strangers may see it: it may hold several URLs."""
    if _SECRET_NAME.search(name):
        return "set" if value else ""
    return _QUERY_OF_URL.sub(r"\1", _USER_OF_URL.sub("", value))


def examine_packages() -> Section:
    """Report the installed packages, and the purpose of the missing ones."""
    section = Section("packages")
    for package, distribution, extra, purpose in _PACKAGES:
        found = importlib.util.find_spec(package) is not None
        section.facts[distribution] = "unknown" if found else None
        with suppress(importlib.metadata.PackageNotFoundError):
            section.facts[distribution] = importlib.metadata.version(distribution) if found else None
        if not found and extra:
            section.notes.append(f"{distribution} is not installed ({purpose}): pip install '{DISTRIBUTION}[{extra}]'")
        elif not found:
            needed = f"{distribution}, which tracekit needs for {purpose}"
            section.problems.append(f"{needed}, is not installed: install {DISTRIBUTION} again")
    for other in sorted(set(importlib.metadata.packages_distributions().get("tracekit", ())) - {DISTRIBUTION}):
        section.problems.append(other_distribution(other))
    return section


def examine_rank() -> Section:
    """Report the rank and the run that a recording of this process would have."""
    section = Section("rank")
    try:
        process = detect_process()
    except ConfigError as error:
        section.problems.append(str(error))
        return section
    section.facts = {name: getattr(process, name) for name in _RANK_FACTS}
    names = next((launcher.world_size for launcher in LAUNCHERS if launcher.source == process.source), ())
    variable, stated = next(((name, os.environ[name]) for name in names if name in os.environ), ("", None))
    if stated is not None and stated != str(process.world_size):
        section.problems.append(
            f"{variable} is {stated}, which does not fit rank {process.rank}: look at what sets the variables of {process.source}"
        )
    return section


def examine_clocks(clock: Clock = SYSTEM_CLOCK) -> Section:
    """Read the clocks many times: their resolution, how well they can be compared, and whether they go backwards."""
    section = Section("clocks")
    wall_step_ns, wall_back = _step(clock.wall_ns)
    step_ns, back = _step(clock.monotonic_ns)
    error_ns = min(clock.anchor().error_ns, clock.anchor().error_ns)
    try:
        boot_id = detect_process().boot_id
    except ConfigError:
        boot_id = None
    section.facts = {
        "wall_resolution_ns": wall_step_ns,
        "monotonic_resolution_ns": step_ns,
        "comparison_error_ns": error_ns,
        "boot_id": boot_id,
    }
    problems = {
        "the monotonic clock is coarser than 10 µs: short slices will have no length": (
            step_ns is None or step_ns > _COARSE_NS
        ),
        "the monotonic clock has gone backwards: times of this machine cannot be trusted": back,
        "the wall clock has gone backwards just now: is it being set? see chronyc tracking": wall_back,
        "wall and monotonic clock cannot be compared better than to 0.1 ms: this machine is very busy, or its clock slow": (
            error_ns > _LOOSE_NS
        ),
        "the wall clock is years behind: set it, or ranks of other hosts will be placed wrongly": (
            clock.wall_ns() < _YEAR_2020_NS
        ),
    }
    section.problems = [problem for problem, is_wrong in problems.items() if is_wrong]
    if boot_id is None:
        section.notes.append(
            "the boot has no id here: ranks of one host are known by the host's name alone to share a clock"
        )
    return section


def _step(read_ns: Callable[[], int]) -> tuple[int | None, bool]:
    """Return the smallest step of a clock, None if it stood still, and True if it went backwards."""
    times = [read_ns() for _ in range(_READS)]
    steps = [later - earlier for earlier, later in pairwise(times)]
    return min((step for step in steps if step > 0), default=None), any(step < 0 for step in steps)


def examine_place(place: str) -> Section:
    """Write, rename, read and remove a small file in a folder (or in the next one above), or an object below a URL."""
    section = Section(f"storage {without_secrets(place)}")
    try:
        if is_remote(place):
            _examine_url(place, section)
        else:
            _examine_folder(Path(place), section)
    except TracekitError as error:
        section.problems.append(str(error))
    except OSError as error:
        section.problems.append(f"{without_secrets(place)}: {error.strerror or error}: traces cannot be written here")
    return section


def _examine_url(url: str, section: Section) -> None:
    name = f"{url.rstrip('/')}/tracekit-doctor-{os.urandom(8).hex()}"
    with tempfile.NamedTemporaryFile() as file:
        file.write(_CONTENT)
        file.flush()
        put(file.name, name)
    section.facts["writes"] = True
    try:
        section.facts["reads"] = read(name) == _CONTENT
    finally:
        remove_all(name)
    if not section.facts["reads"]:
        raise StorageError(f"{without_secrets(url)}: what was written does not come back")


def _examine_folder(folder: Path, section: Section) -> None:
    absolute = folder.absolute()
    found = next((above for above in (absolute, *absolute.parents) if above.exists()), Path())
    if found != absolute:
        section.notes.append(f"{folder} is not there; looked at {found}, where it would be made")
    if not found.is_dir():
        raise StorageError(f"{found}: is not a folder")
    section.facts["writes"] = False
    descriptor, name = tempfile.mkstemp(prefix=".tracekit-doctor-", dir=found)
    renamed = Path(f"{name}.renamed")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_CONTENT)
            file.flush()
            os.fsync(file.fileno())
        section.facts["writes"] = True
        os.replace(name, renamed)
        section.facts["renames"] = renamed.read_bytes() == _CONTENT
        section.facts["links"] = _can_link(renamed, Path(f"{name}.linked"))
    finally:
        for path in (Path(name), renamed):
            path.unlink(missing_ok=True)
    free = shutil.disk_usage(found).free
    section.facts["free_bytes"] = free
    if free < _LITTLE_BYTES:
        section.problems.append(
            f"{found}: only {free / 1e6:.0f} MB are free; a full disk loses events (they are counted)"
        )


def _can_link(path: Path, other: Path) -> bool:
    """Return True if a link can take a name exclusively, which some NFS storages need."""
    try:
        os.link(path, other)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    other.unlink()
    return True
