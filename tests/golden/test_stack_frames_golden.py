"""Perfetto's engine loads merged traces with stack frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.stack_frames import write
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine


@pytest.mark.parametrize("name", ["out.json", "out.json.gz", "out.pftrace"])
def test_traces_with_stack_frames_load(tmp_path: Path, engine: Engine, name: str) -> None:
    frames = {"1": {"category": "C:\\", "name": "main"}, "2": {"name": "train", "parent": 1}}
    events = [{"name": "a", "sf": 2, "esf": "1"}, {"name": "b", "ph": "i", "sf": 1}, {"name": "c", "stack": ["0x1"]}]
    paths = [write(tmp_path / f"rank{rank}.json", frames, *events, rank=rank) for rank in range(2)]
    merge_traces(str(tmp_path / name), paths)
    with engine.load(tmp_path / name) as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where coalesce(category, '') != 'clock'") == 6
        if name == "out.pftrace":
            rows = trace.rows(
                "select args.flat_key || ' ' || args.key || ' ' || string_value as found from slice join args using (arg_set_id) "
                "where slice.name = 'a' and flat_key like '%sf' order by args.key"
            )
            assert sorted({row[0] for row in rows}) == [
                "debug.trace_event.esf debug.trace_event.esf[0] main (C:\\)",
                "debug.trace_event.sf debug.trace_event.sf[0] train",
                "debug.trace_event.sf debug.trace_event.sf[1] main (C:\\)",
            ]
