"""The page of a run: what it says about its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.served import rank_trace
from tracekit.view.serve.explain import explain

if TYPE_CHECKING:
    from pathlib import Path


def test_the_page_has_the_sentences_of_the_verdict(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_text(rank_trace(rank))
    told: list[float] = []
    found = explain([str(tmp_path)], progress=lambda done, _: told.append(done))
    assert found.steps == 19
    assert any(one.startswith("Rank 1 is slower in forward: 2.00 ms a step (16.7% of it") for one in found.sentences)
    assert len(set(found.sentences)) == len(found.sentences)
    assert told == sorted(told)
    assert told[-1] > 0.9
