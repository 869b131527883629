"""What the page of a run says about its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tracekit.analysis.trace_files
from tests.served import rank_trace
from tracekit.formats.trace_reader import TraceReader
from tracekit.serving.explain import explain

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_each_trace_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def counting(path: str) -> TraceReader:
        opened.append(path)
        return TraceReader(path)

    monkeypatch.setattr(tracekit.analysis.trace_files, "TraceReader", counting)
    paths = [tmp_path / f"rank{rank}.json" for rank in (0, 1)]
    for rank, path in enumerate(paths):
        path.write_text(rank_trace(rank))
    told: list[float] = []
    found = explain([str(tmp_path)], progress=lambda done, _: told.append(done))
    assert sorted(opened) == list(map(str, paths))
    assert found.steps == 19
    assert found.sentences[1].startswith("Rank 1 holds the others up in forward: 2.00 ms a step")
    assert told == sorted(told)
    assert told[-1] > 0.9
