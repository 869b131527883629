"""A thread asks for a cut at a time that the writer has already passed: slices that are open go on."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from tracekit import JSONTraceHandler, Profiler

if TYPE_CHECKING:
    from pathlib import Path


def test_a_cut_that_comes_too_late_ends_no_open_slice(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    early_ns = time.perf_counter_ns()
    with Profiler(JSONTraceHandler(path), record_batches=False, rank=0, flush_interval=3600) as profiler:
        with profiler.marker("work"):
            assert profiler.flush(60)  # its start is delivered
            assert profiler._writer is not None
            profiler._writer.post("flush", cut_ns=early_ns)
            assert profiler.flush(60)
        assert profiler.flush(60)
    assert profiler.stats.slices == profiler.stats.recorded == 1
    content = json.loads(path.read_bytes())
    edges = [
        event for event in (content if isinstance(content, list) else content["traceEvents"]) if event["ph"] in "XBE"
    ]
    assert [event["ph"] for event in edges] == ["B", "E"]
    assert edges[0]["ts"] <= edges[1]["ts"]
