"""The compiled core under gcc's sanitizers, for some seconds: what `scripts/sanitize` does for as long as it is asked to."""

from __future__ import annotations

import pytest

from tests.native.checks import run_check


@pytest.mark.core
@pytest.mark.slow
def test_fuzzing_with_sanitizers_finds_nothing() -> None:
    done = run_check("core_fuzz", "--sanitize", "--seconds", "15")
    assert done.returncode == 0, done.stdout[-5000:]
    assert "nothing found" in done.stdout
