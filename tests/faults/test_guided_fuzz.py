"""The fuzzer that follows the C code's ways: it finds what is planted, only because it follows them, and nothing else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.native.checks import run_check

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.core, pytest.mark.slow, pytest.mark.timeout(3600)]  # minutes on a quiet machine

PLANTED = "planted.h:16"


def test_nothing_is_found() -> None:
    done = run_check("guided_fuzz", "--seconds", "30")
    assert done.returncode == 0, done.stdout[-5000:]
    assert done.stdout.count("nothing found") == 2


def test_an_error_that_chance_does_not_meet_is_found_with_guidance_only_and_its_input_finds_it_again(
    tmp_path: Path,
) -> None:
    # The same first inputs wherever this runs: without the real traces. The error is found after about 7,000 inputs; the time
    # limit is far off, so that a slow machine finds it too.
    limits = ["--planted", "--inputs", "30000", "--seconds", "1800", "--failures", str(tmp_path)]
    done = run_check("guided_fuzz", *limits, traces=tmp_path)
    assert done.returncode == 1, done.stdout[-5000:]
    assert PLANTED in done.stdout
    (kept,) = tmp_path.glob("*.bin")
    again = run_check("guided_fuzz", "--planted", "--input", str(kept))
    assert again.returncode == 1
    assert PLANTED in again.stdout
    healthy = run_check("guided_fuzz", "--input", str(kept))
    assert healthy.returncode == 0, healthy.stdout[-5000:]

    needed = re.search(r"^input (\d+):", done.stdout, re.MULTILINE)
    assert needed is not None
    alike = ["--planted", "--unguided", "--inputs", needed[1], "--seconds", "1800"]
    unguided = run_check("guided_fuzz", *alike, traces=tmp_path)
    assert unguided.returncode == 0, unguided.stdout[-5000:]
    assert unguided.stdout.startswith(f"{needed[1]} inputs, ")
