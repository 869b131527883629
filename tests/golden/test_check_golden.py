"""Perfetto's own engine does with bad files what the rules say, and loads recovered ones without an error."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.bad_traces import BAD_TRACES, GOOD_TRACES, BadTrace
from tests.perfetto import LoadError
from tracekit import JSONTraceHandler, recover_trace
from tracekit.check.validation import validate_trace
from tracekit.testing import record_sample

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine
    from tests.real_traces import RealTraces


# The engine takes milliseconds for such a file, or for ever.
HANG_S = 2.0


@pytest.mark.parametrize("bad", BAD_TRACES, ids=lambda bad: bad.name)
def test_perfetto_does_what_the_rule_says(bad: BadTrace, engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(bad.data)
    if bad.effect in {"hangs", "crashes", "refuses"}:
        with pytest.raises(LoadError) as refused:
            engine.load(path, timeout_s=HANG_S if bad.effect == "hangs" else 60.0).close()
        assert ("did not finish in time" in str(refused.value)) == (bad.effect == "hangs")
        return
    with engine.load(path) as trace:
        stats = {name for name, _, _, _ in trace.errors()}
        if bad.stat is not None:
            assert bad.stat in stats
        if bad.slices is not None:
            assert trace.scalar("select count(*) from slice") == bad.slices
        if bad.flows is not None:
            assert trace.scalar("select count(*) from flow") == bad.flows
        if bad.effect == "none":
            assert stats == set()


@pytest.mark.parametrize("data", GOOD_TRACES.values(), ids=GOOD_TRACES.keys())
def test_perfetto_loads_what_no_rule_minds(data: bytes, engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    with engine.load(path) as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice") >= 1


@pytest.mark.parametrize("pattern", ["torch_2.13_gloo/*_rank0_*.json.gz", "single_gpu/*.json.gz"])
def test_the_overlaps_found_in_real_traces_are_those_that_perfetto_drops(
    engine: Engine, traces: RealTraces, pattern: str
) -> None:
    stat = "select value from stats where name = 'slice_drop_overlapping_complete_event'"
    found, dropped = {}, {}
    for path in traces.glob(pattern):
        found[path.name] = validate_trace(str(path)).counts.get("perfetto-overlap", 0)
        with engine.load(path) as trace:
            dropped[path.name] = trace.scalar(stat)
    assert found == dropped
    assert sum(found.values()) > 0


@pytest.mark.parametrize(
    ("folders", "least"),
    [(("torch_2.13_gloo", "torch_2.13_quirks"), 11), (("chrome_json", "dlrm_8gpu", "single_gpu"), 20)],
    ids=["own", "others"],
)
def test_real_traces_without_errors_load_in_perfetto(
    engine: Engine, traces: RealTraces, folders: tuple[str, ...], least: int
) -> None:
    found = [path for folder in folders for path in (traces / folder).glob("*.json*")]
    files = sorted(path for path in found if validate_trace(str(path)).errors == 0)
    assert len(files) >= least
    for path in files:
        with engine.load(path) as trace:
            stats = {name for name, _, _, _ in trace.errors()}
            # Each of these is a warning, since it is usual in traces that are not tracekit's.
            usual = {"slice_drop_overlapping_complete_event", "json_tokenizer_failure", "misplaced_end_event"}
            assert stats <= usual, path.name


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
