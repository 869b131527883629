"""Summaries, comparisons and differences of any events, and of damaged files."""

from __future__ import annotations

import contextlib
import gzip
import json
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tracekit import diff_traces, find_stragglers, summarize_traces
from tracekit.errors import StorageError, TraceFormatError

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "ph": st.sampled_from(["X", "X", "X", "B", "E", "b", "e", "i", "M", "C", "?"]),
            "name": st.sampled_from(["a", "b", "batch", "ProfilerStep#3", "dataloader", "", "\x1b[2J", None, 5]),
            "cat": st.sampled_from(["", "kernel", "gpu_memcpy", "training loop", "user_annotation", None]),
            "pid": st.sampled_from([0, 1, "x", None, -1, 1.5]),
            "tid": st.sampled_from([0, 1, "x", None]),
            "ts": st.one_of(st.integers(-10, 100), st.floats(), st.none(), st.text(max_size=3)),
            "dur": st.one_of(st.integers(-10, 100), st.floats(), st.none()),
            "id": st.sampled_from([1, "2", None]),
            "args": st.sampled_from([{}, None, {"batch": 4}, {"batch": -1}, {"batch": "x"}, [1]]),
        }
    ),
    max_size=30,
)


@settings(max_examples=examples(15))
@given(EVENTS, st.randoms())
def test_any_events_are_summarised_and_their_order_in_the_file_changes_no_sum(
    tmp_path_factory: Any, events: list[dict[str, Any]], random: Any
) -> None:
    path: Path = tmp_path_factory.mktemp("any") / "rank0.json"

    def summary_of(events: list[dict[str, Any]]) -> Any:
        path.write_text(json.dumps([{"ph": "M", "name": "x", "pid": 0, "tid": 0}, *events]))
        return summarize_traces([str(path)])

    def sums(events: list[dict[str, Any]]) -> Any:
        markers = summary_of(events).markers
        return [(one.rank, one.name, one.category, one.count, one.total_ns, one.p95_ns) for one in markers]

    summary = summary_of(events)
    assert all(marker.total_ns >= 0 and marker.count > 0 for marker in summary.markers)
    assert all(gap.length_ns > 0 for gap in summary.gaps)
    json.dumps(summary.as_dict(), allow_nan=False)
    slices = [event for event in events if event["ph"] == "X"]
    in_order = sums(slices)
    random.shuffle(slices)
    assert sums(slices) == in_order


CPU = {"pid": 9, "tid": 9}
STEP = {"ph": "X", "cat": "user_annotation", **CPU, "dur": 1}
WHOLE = json.dumps(
    {
        "distributedInfo": {"rank": 1},
        "baseTimeNanoseconds": 1_790_857_026_000_000_000,
        "traceEvents": [
            {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
            *({**STEP, "name": f"ProfilerStep#{at}", "ts": at} for at in range(4)),
            {"ph": "B", "name": "a", **CPU, "ts": 0.5, "args": {"x": [1, "2"]}},
            {"ph": "X", "name": "nccl", "cat": "kernel", "pid": 0, "tid": 7, "ts": 0.6, "dur": 0.3, "args": {}},
            {"ph": "E", **CPU, "ts": 0.75},
            {"ph": "b", "name": "c", "cat": "q", "id": 5, **CPU, "ts": 1.5},
            {"ph": "e", "name": "c", "cat": "q", "id": 5, **CPU, "ts": 2.5},
        ],
    }
).encode()


@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 40), st.binary(max_size=12)), max_size=4),
    st.booleans(),
)
def test_a_damaged_trace_is_read_as_far_as_it_goes_or_refused(
    tmp_path_factory: Any, damage: list[tuple[int, int, bytes]], packed: bool
) -> None:
    text = gzip.compress(WHOLE, mtime=0) if packed else WHOLE
    for at, length, instead in damage:
        text = text[:at] + instead + text[at + length :]
    path = tmp_path_factory.mktemp("damaged") / "rank1.json"
    path.write_bytes(text)
    for analyse in (summarize_traces, find_stragglers, lambda paths: diff_traces(paths, paths)):
        with contextlib.suppress(TraceFormatError, StorageError):
            json.dumps(analyse([str(path)]).as_dict(), allow_nan=False)
