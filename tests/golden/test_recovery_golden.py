"""Recovered traces in Perfetto's own engine: no error, and every slice that was complete."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.bad_traces import rank_trace, slice_
from tracekit import JSONTraceHandler, recover_trace
from tracekit.testing import record_sample

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

CUTS = [0.3, 0.55, 0.8, 0.999]


def slices(engine: Engine, path: Path) -> int:
    with engine.load(path) as trace:
        assert trace.errors() == []
        found = trace.scalar("select count(*) from slice")
    assert isinstance(found, int)
    return found


def count(path: Path, phases: str) -> int:
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    events = document["traceEvents"] if isinstance(document, dict) else document
    return sum(event["ph"] in tuple(phases) for event in events)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("share", CUTS)
def test_a_cut_rank_trace_loads_with_every_complete_slice(
    tmp_path: Path, engine: Engine, share: float, packed: bool
) -> None:
    record_sample(JSONTraceHandler(tmp_path / "t.json"), folder=tmp_path)
    data = (tmp_path / "t.json").read_bytes()
    file = gzip.compress(data, mtime=0) if packed else data
    cut, output = tmp_path / "cut", tmp_path / ("out.json.gz" if packed else "out.json")
    cut.write_bytes(file[: int(len(file) * share)])
    report = recover_trace(cut, output)
    assert not report.whole
    assert slices(engine, output) == count(output, "XBi")
    if not packed:
        complete = re.findall(rb'^\{"ph":"[XBi]".*\}(?=,\n|\n)', data[: int(len(data) * share)], re.MULTILINE)
        assert count(output, "XBi") == len(complete)


@pytest.mark.parametrize("close", [False, True], ids=["left open", "closed"])
def test_a_slice_that_was_open_did_not_end_or_ends_with_the_last_event(
    tmp_path: Path, engine: Engine, close: bool
) -> None:
    record_sample(JSONTraceHandler(tmp_path / "t.json"), folder=tmp_path)
    data = (tmp_path / "t.json").read_bytes()
    (tmp_path / "cut.json").write_bytes(data[: data.index(b'"ph":"E"')])
    report = recover_trace(tmp_path / "cut.json", tmp_path / "out.json", close_open_slices=close)
    assert report.open_slices
    outermost = report.open_slices[0]
    with engine.load(tmp_path / "out.json") as trace:
        assert trace.errors() == []
        still_open = [name for (name,) in trace.rows("select name from slice where dur < 0 order by id")]
        assert still_open == ([] if close else [one.name for one in report.open_slices])
        assumed = "select count(*) from slice join args using (arg_set_id) where flat_key = 'args.end'"
        assert trace.scalar(assumed) == (len(report.open_slices) if close else 0)
        lengths = trace.rows(f"select dur from slice where name = '{outermost.name}' and dur >= 0")
        assert lengths == ([(outermost.open_ns,)] if close else [])


@pytest.mark.parametrize(
    "damage", [b"\0" * 5000, b"\nKilled\n", b"\n[\n", b'{"ph":"X","name":"fo', b"\xff\xfe"], ids=repr
)
def test_damage_that_makes_perfetto_refuse_a_file_is_taken_out(tmp_path: Path, engine: Engine, damage: bytes) -> None:
    data = rank_trace(*(slice_(10 * number, 5, f"slice {number}") for number in range(1, 21)))
    at = data.index(b"\n", len(data) // 2) + 1
    (tmp_path / "t.json").write_bytes(data[:at] + damage + data[at:])
    recover_trace(tmp_path / "t.json", tmp_path / "out.json")
    assert slices(engine, tmp_path / "out.json") == 20


def test_real_traces_of_torch_and_others_are_recovered_from_any_cut(
    tmp_path: Path, engine: Engine, own_traces: Path
) -> None:
    files = sorted((own_traces / "torch_2.13_gloo").glob("*.json*"))[:4]
    assert files
    for number, file in enumerate(files):
        data = file.read_bytes()
        cut, output = tmp_path / "cut", tmp_path / f"{number}.json"
        cut.write_bytes(data[: len(data) * 2 // 3])
        report = recover_trace(cut, output)
        assert report.complete
        with engine.load(output) as trace:
            assert trace.scalar("select value from stats where name = 'json_tokenizer_failure'") == 0
            assert trace.scalar("select count(*) from slice") > 0
        assert recover_trace(output).whole
