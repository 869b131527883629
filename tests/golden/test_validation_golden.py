"""Perfetto's own engine does with the bad files what the rules say it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.bad_traces import BAD_TRACES, GOOD_TRACES, BadTrace
from tests.perfetto import LoadError
from tracekit.check.validation import validate_trace

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
