"""The compiled core and pure Python write the same merges, but for white space, and report the same."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import both_cores
from tests.bad_traces import BAD_OWN_TRACES, BAD_TRACES, GOOD_TRACES
from tests.both_cores import assert_same, merged, pure, small_pieces
from tracekit.errors import MergeError
from tracekit.merge import merge_traces
from tracekit.merge.rewrite import unit

if TYPE_CHECKING:
    from tests.real_traces import RealTraces

pytestmark = pytest.mark.core

ODD = {
    "two spellings of one track": """[
{"ph":"X","pid":1,"tid":-0,"ts":10.000,"dur":5.000,"name":"a"},
{"ph":"X","pid":1,"tid":0,"ts":10.000,"dur":4.000,"name":"b"},
{"ph":"X","pid":1,"tid":-0,"ts":12.000,"dur":10.000,"name":"c"},
{"ph":"X","pid":1,"tid":0,"ts":13.000,"dur":1.000,"name":"d"}
]""",
    "a name on several lines": """[
{"ph":"X","pid":1,"tid":2,"ts":1.0,"dur":1,"name":[1,\n2,\n3]},
{"ph":"X","pid":1,"tid":2,"ts":3.0,"dur":1,"name":"ncclKernel_AllReduce","args":{"a":1}},
{"ph":"X","pid":1,"tid":2,"ts":5.0,"dur":1,"name":"b"}
]""",
    "more decimals than a Decimal's arithmetic keeps": """[
{"ph":"X","pid":1,"tid":2,"ts":5.00049999999999999999999999999999999999,"dur":1,"name":"a"},
{"ph":"X","pid":1,"tid":2,"ts":6.000,"dur":1,"name":"b"},
{"ph":"X","pid":1,"tid":2,"ts":8.000,"dur":1,"name":"c"}
]""",
    "hundreds of tracks": "[\n"
    + ",\n".join(f'{{"ph":"X","pid":1,"tid":{n},"ts":{n}.000,"dur":1.000,"name":"a"}}' for n in range(300))
    + "\n]",
}


DAMAGED = {bad.name: bad.data for bad in (*BAD_TRACES, *BAD_OWN_TRACES)} | GOOD_TRACES
DAMAGED |= {name: text.encode() for name, text in ODD.items()}


def check_merges(files: list[bytes], **options: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"rank{number}.json" for number in range(len(files))]
        for path, data in zip(paths, files, strict=True):
            path.write_bytes(data)
        output = Path(folder) / "merged.json"
        found = merged(paths, output, **options)
        with pure():
            assert_same(found, merged(paths, output, **options))


@settings(suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**64), st.sampled_from([300, 700, 5_000]))
def test_both_write_the_same_merge(seed: int, piece_bytes: int) -> None:
    source = random.Random(seed)
    with small_pieces(piece_bytes):
        files = [both_cores.trace(source) for _ in range(source.randrange(1, 4))]
        check_merges(
            files, args=source.choice(["all", "all", "ids", "none"]), snap_overlaps_ns=source.choice([0, 2_000])
        )


@settings(suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**64), st.sampled_from([0, 300, 2_000, 8_000]), st.sampled_from([".json.gz", ".pftrace"]))
def test_held_or_put_aside_or_rewritten_the_bytes_are_the_same(seed: int, held_bytes: int, suffix: str) -> None:
    source = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, small_pieces(300):
        paths = [Path(folder) / f"rank{number}.json" for number in range(2)]
        for path in paths:
            path.write_bytes(both_cores.trace(source))
        held, streamed = (Path(folder) / f"{name}{suffix}" for name in ("held", "streamed"))
        try:
            merge_traces(held, paths)
        except MergeError:
            return
        with mock.patch.object(unit, "_HELD_BYTES", held_bytes):
            merge_traces(streamed, paths)
        assert streamed.read_bytes() == held.read_bytes()


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_both_do_the_same_with_bad_and_good_traces(data: bytes) -> None:
    check_merges([data, data])


def test_both_do_the_same_with_real_traces(tmp_path: Path, traces: RealTraces) -> None:
    for number, folder in enumerate(traces.folders()):
        paths = sorted(path for path in folder.iterdir() if ".json" in path.name)[:4]
        output = tmp_path / f"{number}.json"
        found_merge = merged(paths, output)
        with pure():
            assert found_merge == merged(paths, output), folder
