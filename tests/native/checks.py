"""Runs a check of the compiled core in a process of its own, or skips the test where this machine cannot do it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.native.cores import CANNOT, ROOT
from tests.real_traces import real_traces_folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["run_check"]


def run_check(module: str, *arguments: str, traces: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a module of `tests.faults`; its errors are in its output.

    Args:
        module: Its name.
        *arguments: What it is told.
        traces: Where it finds real traces, if not where they usually are.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"tests.faults.{module}", *arguments],
        cwd=ROOT,
        env=os.environ | {"TRACEKIT_TRACES": str(traces or real_traces_folder())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode == CANNOT:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    return done
