"""The traces that merges are measured with: what they are modelled on, and that they are whole."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.benchmarks.kineto_model import SHARES
from tests.benchmarks.merge_inputs import Inputs, write_rank_trace, write_torch_rank
from tracekit.check.validation import validate_trace
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine


def torch_rank(size_bytes: int = 400_000, number: int = 1, **options: Any) -> bytes:
    file = io.BytesIO()
    write_torch_rank(file, size_bytes, number, 4, **{"seed": 1, **options})
    return file.getvalue()


def test_the_same_seed_makes_the_same_bytes_and_another_rank_others(tmp_path: Path) -> None:
    assert torch_rank() == torch_rank()
    assert torch_rank() != torch_rank(seed=2)
    assert torch_rank() != torch_rank(number=2)
    for name in ("one.json", "two.json"):
        write_rank_trace(tmp_path / name, 100_000, 3, 4, seed=1)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_kinds_of_events_have_the_shares_of_the_model() -> None:
    events = [event for event in json.loads(torch_rank(3_000_000))["traceEvents"] if event["ph"] != "M"]
    shares = Counter(event["cat"] for event in events if event["ph"] != "f")
    for kind, share in SHARES.items():
        assert shares[kind] / len(events) == pytest.approx(share, rel=0.3, abs=0.002), kind
    flows = Counter((event["ph"], event["cat"]) for event in events if event["ph"] in "sf")
    assert flows["f", "ac2g"] == shares["cuda_runtime"]
    assert flows["s", "ac2g"] < flows["f", "ac2g"], "arrows without a beginning are normal"


def test_the_validator_and_perfetto_find_nothing_wrong_in_any_trace_and_their_merge(
    engine: Engine, tmp_path: Path
) -> None:
    with Inputs(folder=tmp_path) as inputs:
        datasets = (inputs.torch(400_000, 2), inputs.rank_traces(400_000, 2))
        for number, dataset in enumerate(datasets):
            slices = 0
            for path in dataset.paths:
                assert validate_trace(path).problems == ()
                with engine.load(path) as trace:
                    assert trace.errors() == []
                    slices += trace.scalar("select count(*) from slice where dur >= 0")
            merged = tmp_path / f"{number}.json"
            report = merge_traces(merged, dataset.paths)
            assert report.complete
            assert not report.repaired
            assert report.overlaps_moved == 0
            with engine.load(merged) as trace:
                assert trace.errors() == []
                own = "dur >= 0 and coalesce(category, '') != 'clock'"
                assert trace.scalar(f"select count(*) from slice where {own}") == slices
        packed = inputs.packed(datasets[0])
        assert [gzip.decompress(path.read_bytes()) for path in packed.paths] == [
            path.read_bytes() for path in datasets[0].paths
        ]
