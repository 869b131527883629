"""Eight threads record at once, on a CPython with the interpreter lock and, where one can be had, on one without."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.native import cores

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

STORM = cores.ROOT / "tests" / "thread_storm.py"
VARIABLE = "TRACEKIT_FREE_THREADED_PYTHON"
FREE_THREADED = os.environ.get(VARIABLE) or shutil.which("python3.14t") or shutil.which("python3.13t")


def storm(python: str, folder: Path, rounds: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run the storm and return its report; fail with all faults in it."""
    folder.mkdir()
    variables = {**os.environ, "TRACEKIT_QUIET": "1", **environment}
    command = [python, str(STORM), str(folder), str(rounds)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert said["faults"] == [], done.stderr
    assert done.returncode == 0, done.stderr
    return said


@pytest.mark.parametrize("pure", ["0", "1"], ids=["core", "Python"])
def test_every_event_of_eight_threads_is_accounted_for(tmp_path: Path, pure: str) -> None:
    said = storm(sys.executable, tmp_path / "storm", 60, {"PYTHONPATH": str(cores.ROOT), "TRACEKIT_PURE_PYTHON": pure})
    assert said["plenty"]["dropped"] == {}
    assert said["block"]["dropped"] == {}


@pytest.mark.skipif(FREE_THREADED is None, reason=f"no free-threaded CPython here: {VARIABLE} may name one")
def test_every_event_of_eight_threads_is_accounted_for_without_the_interpreter_lock(tmp_path: Path) -> None:
    assert FREE_THREADED is not None
    target = tmp_path / "packages"
    has_packages = [FREE_THREADED, "-c", "import fsspec, orjson"]
    known = subprocess.run(has_packages, capture_output=True, check=False).returncode == 0
    command = [FREE_THREADED, "-m", "pip", "install", "-q", "--target", str(target), str(copied(tmp_path / "source"))]
    done = subprocess.run([*command, *(["--no-deps"] if known else [])], capture_output=True, text=True, check=False)
    if done.returncode and not known:
        pytest.skip(f"what tracekit needs cannot be installed for {FREE_THREADED}: {done.stderr[-500:]}")
    assert done.returncode == 0, done.stderr
    said = storm(FREE_THREADED, tmp_path / "storm", 150, {"PYTHONPATH": str(target), "PYTHON_GIL": "0"})
    assert said["gil"] is False
    assert said["plenty"]["dropped"] == {}
    assert said["block"]["dropped"] == {}


def copied(folder: Path) -> Path:
    """Copy what an installation needs, so that its build leaves nothing in the repository."""
    folder.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(cores.ROOT / name, folder / name)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(cores.ROOT / "tracekit", folder / "tracekit", ignore=ignored)
    return folder
