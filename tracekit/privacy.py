"""Privacy: the identity of a process in a trace, without host name and boot id."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import TYPE_CHECKING, Final

from tracekit.arguments import is_set
from tracekit.distributed import RUN_ID_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.distributed import ProcessInfo

PRIVATE_VARIABLE: Final = "TRACEKIT_PRIVATE"

_TELLS_NOTHING: Final = re.compile(r"\d[\d-]*(\.\w+)?")
"""Run ids made of times, pids and job numbers. Other ids can contain an address or a launcher's name for itself."""


def is_wanted(private: bool | None, environ: Mapping[str, str] | None = None) -> bool:
    """Return True if host names, user names and paths are left out: the argument, or ``TRACEKIT_PRIVATE`` if it is None."""
    return is_set(PRIVATE_VARIABLE, environ) if private is None else private


def anonymous(process: ProcessInfo, run_id: str | None = None, environ: Mapping[str, str] | None = None) -> ProcessInfo:
    """Return a process without values that identify its host.

    Host and boot become hashes, so that the merge can still group ranks by host and clock. The hashes include the run id and
    the boot id, a secret random number. So nobody can guess the host, or see that two runs were on the same host. A generated
    run id is also hashed if it may contain an address.

    Args:
        process: The process.
        run_id: The run id that the user chose, if any.
        environ: Environment variables; None uses those of the process.
    """
    environ = os.environ if environ is None else environ
    chosen = (run_id, environ.get(RUN_ID_VARIABLE), environ.get("TORCHELASTIC_RUN_ID"))
    name = process.run_id
    if name not in chosen and not _TELLS_NOTHING.fullmatch(name):
        name = f"run-{_hash(name)}"
    secret = process.boot_id or ""
    return dataclasses.replace(
        process,
        run_id=name,
        host=f"host-{_hash(secret, process.host, name)}",
        boot_id=None if process.boot_id is None else f"boot-{_hash(secret, name)}",
        private=True,
    )


def _hash(*parts: str) -> str:
    import hashlib  # here: most recordings are not private

    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]
