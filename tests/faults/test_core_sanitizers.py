"""The compiled core under gcc's sanitizers, for some seconds: what `scripts/sanitize` does for as long as it is asked to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import TRACES
from tests.native.cores import CANNOT, ROOT


@pytest.mark.core
@pytest.mark.slow
def test_fuzzing_with_sanitizers_finds_nothing() -> None:
    command = [sys.executable, "-m", "tests.faults.core_fuzz", "--sanitize", "--seconds", "15"]
    environment = os.environ | {"TRACEKIT_TRACES": str(TRACES)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode == CANNOT:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-5000:]
    assert "nothing found" in done.stdout
