"""The compiled core's own tests under valgrind, which finds an error that is planted and no other."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.native.cores import CANNOT, ROOT

pytestmark = [pytest.mark.core, pytest.mark.slow, pytest.mark.timeout(900)]


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.under_valgrind", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode == CANNOT:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    return done


def test_the_tests_of_the_core_touch_nothing_that_is_not_theirs() -> None:
    done = check()
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
    assert done.stdout.endswith("valgrind: nothing found\n")


def test_a_read_behind_the_end_is_found() -> None:
    done = check("--planted", "tests/unit/test_core.py::test_what_a_scan_tells")
    assert done.returncode == 1
    assert "InvalidRead: Invalid read of size 1\n    planted_realloc (planted_read.h:" in done.stdout
