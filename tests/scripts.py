"""Runs a script in a process of its own, as a user does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
TORCHS_ABORT = "terminate called without an active exception"
"""torch 2.13 sometimes ends so when a process of FSDP on gloo exits: 1 of 10 runs of auto_scripts/fsdp2.py, without tracekit."""


def repeat_if_torch_aborts(
    folder: Path, run: Callable[[], subprocess.CompletedProcess[str]]
) -> subprocess.CompletedProcess[str]:
    """Run something in a new or empty folder; repeat it in an empty one if torch aborts at its exit."""
    is_empty = not folder.exists() or not any(folder.iterdir())
    for _ in range(5):
        folder.mkdir(exist_ok=True)
        done = run()
        if not is_empty or TORCHS_ABORT not in done.stderr:
            break
        shutil.rmtree(folder)
    return done


def run_script(folder: Path, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run this Python with these arguments in a folder; fails with what the process wrote if it fails.

    Each process has one thread for its arithmetic: several of them on two cores would stand in each other's way.

    Args:
        folder: Where it runs.
        *command: What stands behind ``python``.
        **variables: Variables of its environment.
    """
    done = repeat_if_torch_aborts(
        folder,
        lambda: subprocess.run(
            [sys.executable, *map(os.fspath, command)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        ),
    )
    assert done.returncode == 0, done.stderr
    return done
