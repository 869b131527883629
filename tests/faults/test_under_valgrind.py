"""The compiled core's own tests under valgrind, which finds an error that is planted and no other."""

from __future__ import annotations

import pytest

from tests.native.checks import run_check

pytestmark = [pytest.mark.core, pytest.mark.slow, pytest.mark.timeout(3600)]  # minutes on a quiet machine


def test_the_tests_of_the_core_touch_nothing_that_is_not_theirs() -> None:
    done = run_check("under_valgrind")
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
    assert done.stdout.endswith("valgrind: nothing found\n")


def test_a_read_behind_the_end_is_found() -> None:
    done = run_check(
        "under_valgrind", "--planted", "tests/unit/core/test_core.py::test_rewriter_changes_nothing_but_what_it_must"
    )
    assert done.returncode == 1
    assert "InvalidRead: Invalid read of size 1\n    planted_realloc (planted_read.h:" in done.stdout
