"""Runs below a folder: what is one, and which is the newest."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tracekit.traces.inputs import find_runs

if TYPE_CHECKING:
    from pathlib import Path


def test_folders_with_traces_are_runs_and_those_below_them_are_not(tmp_path: Path) -> None:
    names = (
        "stray.json",
        "a/rank0.json",
        "a/jax/plugins/host.trace.json.gz",
        "group/b/rank0.json",
        ".cache/rank0.json",
    )
    for at, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("[]")
        os.utime(tmp_path / name, (at, at))
    (tmp_path / "empty").mkdir()
    found = sorted(find_runs(tmp_path), reverse=True)
    assert [(run.path.relative_to(tmp_path).as_posix(), run.files) for run in found] == [
        ("group/b", 1),
        ("a", 2),
        (".", 1),
    ]
