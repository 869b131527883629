"""The compiled core under gcc's sanitizers and valgrind: what `scripts/sanitize` does for as long as it is asked to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.native.cores import CANNOT, ROOT
from tests.real_traces import real_traces_folder

pytestmark = [pytest.mark.core, pytest.mark.slow, pytest.mark.timeout(3600)]  # minutes on a quiet machine


@pytest.mark.parametrize(
    "command",
    [["core_fuzz", "--sanitize", "--seconds", "15"], ["guided_fuzz", "--seconds", "30"], ["under_valgrind"]],
    ids=lambda command: command[0],
)
def test_nothing_is_found(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.faults.{command[0]}", *command[1:]],
        cwd=ROOT,
        env=os.environ | {"TRACEKIT_TRACES": str(real_traces_folder())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode == CANNOT:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-5000:]
    assert "nothing found" in done.stdout
