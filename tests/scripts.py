"""Runs a script in a process of its own, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["run_script"]

ROOT = Path(__file__).resolve().parents[1]


def run_script(folder: Path, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run this Python with these arguments in a folder; fails with what the process wrote if it fails.

    Each process has one thread for its arithmetic: several of them on two cores would stand in each other's way.

    Args:
        folder: Where it runs.
        *command: What stands behind ``python``.
        **variables: Variables of its environment.
    """
    done = subprocess.run(
        [sys.executable, *map(os.fspath, command)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done
