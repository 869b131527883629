"""The traces that merges are measured with: they are of the size that was asked for, whole, and of different ranks."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks.merge_inputs import Inputs
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", ["torch", "rank_traces"])
@pytest.mark.parametrize("size_bytes", [50_000, 3_000_000])
def test_inputs_have_their_size_and_merge_without_a_loss(tmp_path: Path, kind: str, size_bytes: int) -> None:
    with Inputs(tmp_path) as inputs:
        dataset = getattr(inputs, kind)(2 * size_bytes, 2)
        assert getattr(inputs, kind)(2 * size_bytes, 2) is dataset
        for path in dataset.paths:
            assert size_bytes * 0.95 < path.stat().st_size < 1.5 * size_bytes + 100_000
        report = merge_traces(str(inputs.folder / "merged.json"), [str(path) for path in dataset.paths], strict=True)
        assert [rank.rank for rank in report.ranks] == [0, 1]
        if kind == "torch":
            headers = [json.loads(path.read_bytes()) for path in dataset.paths]
            assert len({header["baseTimeNanoseconds"] for header in headers}) == 2
            starts = {
                header["baseTimeNanoseconds"] + round(1000 * header["traceEvents"][0]["ts"]) for header in headers
            }
            assert len(starts) == 1
        packed = inputs.packed(dataset)
        assert [gzip.decompress(path.read_bytes()) for path in packed.paths] == [
            path.read_bytes() for path in dataset.paths
        ]
    assert list(tmp_path.iterdir()) == []
