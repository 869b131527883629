"""NestedMarkers: slices of a training loop begin and end in nested order, whatever order the loop reports."""

from __future__ import annotations

from tracekit import MemoryTraceHandler, Profiler
from tracekit.integrations.slices import NestedMarkers


def test_slices_end_with_those_inside_them_and_before_another_of_the_same_key() -> None:
    memory, slices = MemoryTraceHandler(), NestedMarkers()
    with Profiler(memory, rank=0) as profiler:
        for key in ("epoch", "batch", "forward", "batch"):  # the second batch ends the first, and its forward pass
            slices.begin(key, profiler.marker(key))
        assert "batch" in slices
        assert "forward" not in slices
        slices.end("forward")  # is not open
        slices.begin("backward", profiler.marker("backward"))
        slices.close(inside="epoch")
        assert "epoch" in slices
        slices.close()
    events = [(type(event).__name__.removeprefix("Slice"), event.label.name) for event in memory.events]
    assert events == [
        *(("Begin", "epoch"), ("Begin", "batch"), ("Begin", "forward"), ("End", "forward"), ("End", "batch")),
        *(("Begin", "batch"), ("Begin", "backward"), ("End", "backward"), ("End", "batch"), ("End", "epoch")),
    ]
