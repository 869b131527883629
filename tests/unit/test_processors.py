"""How many processors may be used: bound to, and granted to a container."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tracekit import processors
from tracekit.processors import usable_processors

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("grant", "usable"),
    [
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("1000 100000\n", 1),
        ("6400000 100000\n", 6),
        ("max 100000\n", 6),
        ("", 6),
        ("100000 0\n", 6),
        (None, 6),
    ],
)
def test_what_a_container_is_granted_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grant: str | None, usable: int
) -> None:
    file = tmp_path / "cpu.max"
    if grant is not None:
        file.write_text(grant)
    monkeypatch.setattr(processors, "_CPU_MAX", file)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert usable_processors() == usable
