"""The traces that merges are measured with: what they are modelled on, and that they are whole."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tests.benchmarks.kineto_model import SHARES
from tests.benchmarks.merge_inputs import Inputs, write_rank_trace, write_torch_rank
from tracekit.check.validation import validate_trace
from tracekit.formats.rank_trace import BASE_TIME_KEY
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.perfetto import Engine


@pytest.fixture
def inputs(tmp_path: Path) -> Iterator[Inputs]:
    with Inputs(folder=tmp_path) as made:
        yield made


def torch_rank(size_bytes: int = 400_000, number: int = 1, **options: Any) -> bytes:
    file = io.BytesIO()
    write_torch_rank(file, size_bytes, number, 4, **{"seed": 1, **options})
    return file.getvalue()


def digests(paths: tuple[Path, ...]) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def test_the_same_seed_makes_the_same_bytes_and_another_rank_others() -> None:
    assert torch_rank() == torch_rank()
    assert torch_rank() != torch_rank(seed=2)
    assert torch_rank() != torch_rank(number=2)


def test_rank_traces_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        write_rank_trace(tmp_path / name, 100_000, 3, 4, seed=1)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


@pytest.mark.parametrize("size_bytes", [50_000, 400_000, 5_000_000])
def test_files_are_near_the_size_that_was_asked_for(size_bytes: int, tmp_path: Path) -> None:
    write_rank_trace(tmp_path / "rank.json", size_bytes, 0, 1, seed=1)
    assert len(torch_rank(size_bytes)) == pytest.approx(size_bytes, rel=0.1)
    assert (tmp_path / "rank.json").stat().st_size == pytest.approx(size_bytes, rel=0.15)


def test_kinds_of_events_have_the_shares_of_the_model() -> None:
    events = [event for event in json.loads(torch_rank(3_000_000))["traceEvents"] if event["ph"] != "M"]
    shares = Counter(event["cat"] for event in events if event["ph"] != "f")
    for kind, share in SHARES.items():
        assert shares[kind] / len(events) == pytest.approx(share, rel=0.3, abs=0.002), kind
    flows = Counter((event["ph"], event["cat"]) for event in events if event["ph"] in "sf")
    assert flows["f", "ac2g"] == shares["cuda_runtime"]
    assert flows["s", "ac2g"] < flows["f", "ac2g"], "arrows without a beginning are normal"


def test_calls_nest_and_nothing_overlaps() -> None:
    tracks = defaultdict(list)
    for event in json.loads(torch_rank(1_000_000))["traceEvents"]:
        if event["ph"] == "X":
            start_ns, duration_ns = round(event["ts"] * 1000), round(event["dur"] * 1000)
            tracks[event["pid"], event["tid"]].append((start_ns, -duration_ns))
    deepest = 0
    for slices in tracks.values():
        open_until: list[int] = []
        for start, minus_duration in sorted(slices):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or start - minus_duration <= open_until[-1]
            open_until.append(start - minus_duration)
            deepest = max(deepest, len(open_until))
    assert len(tracks) == 5, "two threads and three streams"
    assert deepest > 15


def test_an_arrow_ends_after_it_begins() -> None:
    begins = {}
    ends: dict[tuple[str, int], list[float]] = defaultdict(list)
    for event in json.loads(torch_rank(1_000_000))["traceEvents"]:
        if event["ph"] == "s":
            assert (event["cat"], event["id"]) not in begins
            begins[event["cat"], event["id"]] = event["ts"]
        elif event["ph"] == "f":
            ends[event["cat"], event["id"]].append(event["ts"])
    assert begins
    for key, time in begins.items():
        assert len(ends[key]) == 1
        assert time < ends[key][0]


def test_every_rank_has_a_base_of_its_own_unless_told_otherwise(inputs: Inputs) -> None:
    def starts(*, shifted: bool) -> list[tuple[int, float]]:
        found = []
        for path in inputs.torch(200_000, 3, shifted=shifted).paths:
            trace = json.loads(path.read_bytes())
            base_ns = trace[BASE_TIME_KEY]
            found.append((base_ns, base_ns / 1e9 + trace["traceEvents"][0]["ts"] / 1e6))
        return found

    shifted, level = starts(shifted=True), starts(shifted=False)
    assert len({base for base, _ in shifted}) == 3
    assert len({base for base, _ in level}) == 1
    assert {start for _, start in shifted} == {start for _, start in level}


def test_a_dataset_is_made_once_packed_without_a_change_and_removed(tmp_path: Path) -> None:
    with Inputs(folder=tmp_path) as made:
        plain = made.torch(200_000, 2)
        before = digests(plain.paths)
        assert made.torch(200_000, 2) is plain
        packed = made.packed(plain)
        assert packed.bytes == plain.bytes == sum(path.stat().st_size for path in plain.paths)
        unpacked = [hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest() for path in packed.paths]
        assert unpacked == before == digests(plain.paths)
        assert made.rank_traces(200_000, 2).paths != plain.paths
    assert list(tmp_path.iterdir()) == []


def test_the_validator_finds_nothing_wrong(inputs: Inputs) -> None:
    for dataset in (inputs.torch(400_000, 2), inputs.rank_traces(400_000, 2)):
        for path in dataset.paths:
            report = validate_trace(str(path))
            assert report.problems == (), report


def test_perfetto_takes_every_trace_and_their_merge(inputs: Inputs, engine: Engine, tmp_path: Path) -> None:
    for name, dataset in (("torch", inputs.torch(400_000, 2)), ("own", inputs.rank_traces(400_000, 2))):
        slices = 0
        for path in dataset.paths:
            with engine.load(path) as trace:
                assert trace.errors() == []
                slices += trace.scalar("select count(*) from slice where dur >= 0")
        merged = tmp_path / f"{name}.json"
        report = merge_traces(str(merged), [str(path) for path in dataset.paths])
        assert report.complete
        assert not report.repaired
        assert report.overlaps_moved == 0
        with engine.load(merged) as trace:
            assert trace.errors() == []
            assert (
                trace.scalar("select count(*) from slice where dur >= 0 and coalesce(category, '') != 'clock'")
                == slices
            )
