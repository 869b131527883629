"""Type checkers see the types that users expect: mypy's `reveal_type` on every line of api.py that expects one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

API = Path(__file__).with_name("api.py")


@pytest.mark.slow
def test_mypy_sees_the_types_that_users_expect() -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(API)],
        cwd=API.parents[2],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    revealed: dict[int, str] = {}
    others: list[str] = []
    for line in done.stdout.splitlines():
        match = re.fullmatch(r'.*api\.py:(\d+): note: Revealed type is "(.*)"', line)
        if match:
            revealed[int(match[1])] = re.sub(r"\b(?:\w+\.)+(?=\w)", "", match[2])
        else:
            others.append(line)
    assert others == [], done.stdout
    expected = {
        number: line.split("# expect: ")[1]
        for number, line in enumerate(API.read_text("utf-8").splitlines(), 1)
        if "# expect: " in line
    }
    assert len(expected) >= 15
    assert revealed == expected
