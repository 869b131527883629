"""The fuzzer that follows the C code's ways: it finds what is planted, only because it follows them, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import TRACES
from tests.native.cores import CANNOT, ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.core, pytest.mark.slow, pytest.mark.timeout(900)]

PLANTED = "planted.h:15"


def fuzz(*arguments: str, traces: Path = TRACES) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.guided_fuzz", *arguments],
        cwd=ROOT,
        env=os.environ | {"TRACEKIT_TRACES": str(traces)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode == CANNOT:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    return done


def test_nothing_is_found() -> None:
    done = fuzz("--seconds", "30")
    assert done.returncode == 0, done.stdout[-5000:]
    assert done.stdout.count("nothing found") == 2


def test_an_error_that_chance_does_not_meet_is_found_and_its_input_finds_it_again(tmp_path: Path) -> None:
    # The same first inputs wherever this runs: without the real traces. It is found after about 17,000.
    limits = ["--planted", "--inputs", "40000", "--seconds", "500", "--failures", str(tmp_path)]
    done = fuzz(*limits, traces=tmp_path)
    assert done.returncode == 1, done.stdout[-5000:]
    assert PLANTED in done.stdout
    (kept,) = tmp_path.glob("*.bin")
    again = fuzz("--planted", "--input", str(kept))
    assert again.returncode == 1
    assert PLANTED in again.stdout
    healthy = fuzz("--input", str(kept))
    assert healthy.returncode == 0, healthy.stdout[-5000:]


def test_the_same_error_is_not_found_without_guidance(tmp_path: Path) -> None:
    done = fuzz("--planted", "--unguided", "--inputs", "25000", "--seconds", "500", traces=tmp_path)
    assert done.returncode == 0, done.stdout[-5000:]
