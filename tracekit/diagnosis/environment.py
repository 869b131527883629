"""The environment: versions, which optional packages are there, and which rank this process would be."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from typing import Final

from tracekit import core
from tracekit.diagnosis.findings import Section
from tracekit.distributed import detect_process
from tracekit.errors import ConfigError
from tracekit.processors import usable_processors
from tracekit.version import __version__

__all__ = ["examine_environment", "examine_packages", "examine_rank"]

_VARIABLES: Final = "TRACEKIT_"
# What is printed here is pasted into issues.
_SECRET_NAME: Final = re.compile("TOKEN|SECRET|KEY|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_USER_OF_URL: Final = re.compile(r"(?<=://)[^\s/]*@")
_QUERY_OF_URL: Final = re.compile(r"(://[^\s?]*)\?\S*")
_SIZES: Final = {
    "torchrun": "WORLD_SIZE",
    "slurm": "SLURM_NTASKS",
    "openmpi": "OMPI_COMM_WORLD_SIZE",
    "pmi": "PMI_SIZE",
}
# Package, distribution, extra ("" for what tracekit cannot do without), what it is for.
_PACKAGES: Final = (
    ("orjson", "orjson", "", "writing"),
    ("msgspec", "msgspec", "", "merging"),
    ("fsspec", "fsspec", "", "every storage"),
    ("torch", "torch", "torch", "TorchProfiler, ClockSync"),
    ("psutil", "psutil", "system", "SystemProfiler"),
    ("jsonschema", "jsonschema", "validate", "schemas in tracekit validate"),
    ("perfetto", "perfetto", "perfetto", "tracekit query"),
    ("pyarrow", "pyarrow", "parquet", "tracekit query --format parquet"),
    ("rich", "rich", "progress", "progress bars"),
    ("jinja2", "Jinja2", "report", "tracekit report"),
    ("isal", "isal", "fast", "gzip that is three times as fast"),
    ("s3fs", "s3fs", "s3", "s3:// storage"),
    ("pynvml", "nvidia-ml-py", "gpu", "GPU counters"),
    ("nvtx", "nvtx", "nvtx", "markers in Nsight"),
    ("opentelemetry", "opentelemetry-api", "otel", "OpenTelemetry"),
    ("distributed", "distributed", "dask", "merging on a cluster"),
    ("viztracer", "viztracer", "offline", "tracekit open --offline"),
)


def examine_environment() -> Section:
    """Tell what runs here."""
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


def examine_packages() -> Section:
    """Tell which packages are there, and what is missing without the others."""
    section = Section("packages")
    for package, distribution, extra, purpose in _PACKAGES:
        found = importlib.util.find_spec(package) is not None
        version = _version(distribution) if found else None
        section.facts[distribution] = version
        if found:
            continue
        if extra:
            section.notes.append(f"{distribution} is not installed ({purpose}): pip install 'tracekit[{extra}]'")
        else:
            section.problems.append(
                f"{distribution}, which tracekit needs for {purpose}, is not installed: install tracekit again"
            )
    return section


def examine_rank() -> Section:
    """Tell which process of which run this would be, and what says so."""
    section = Section("rank")
    try:
        process = detect_process()
    except ConfigError as error:
        section.problems.append(str(error))
        return section
    section.facts = {
        "rank": process.rank,
        "local_rank": process.local_rank,
        "world_size": process.world_size,
        "node": process.node,
        "attempt": process.attempt,
        "run_id": process.run_id,
        "host": process.host,
        "source": process.source,
    }
    variable = _SIZES.get(process.source, "")
    stated = os.environ.get(variable)
    if stated is not None and stated != str(process.world_size):
        section.problems.append(
            f"{variable} is {stated}, which does not fit rank {process.rank}: look at what sets the variables of {process.source}"
        )
    return section


def _shown(name: str, value: str) -> str:
    """Return the value of a variable as strangers may see it: it may hold several URLs."""
    if _SECRET_NAME.search(name):
        return "set" if value else ""
    return _QUERY_OF_URL.sub(r"\1", _USER_OF_URL.sub("", value))


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
