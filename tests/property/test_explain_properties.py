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
    folder: Path = tmp_path_factory.mktemp("any")
    path = folder / "rank0.json"
    path.write_text(json.dumps([{"ph": "M", "name": "x", "pid": 0, "tid": 0}, *events]))
    first = summarize_traces([str(path)])
    assert all(marker.total_ns >= 0 and marker.count > 0 for marker in first.markers)
    assert all(gap.length_ns > 0 for gap in first.gaps)
    json.dumps(first.as_dict(), allow_nan=False)
    slices = [event for event in events if event["ph"] == "X"]
    path.write_text(json.dumps([{"ph": "M", "name": "x", "pid": 0, "tid": 0}, *slices]))
    one = summarize_traces([str(path)])
    random.shuffle(slices)
    path.write_text(json.dumps([{"ph": "M", "name": "x", "pid": 0, "tid": 0}, *slices]))
    other = summarize_traces([str(path)])
    assert sums(one) == sums(other)


def sums(summary: Any) -> Any:
    return [(one.rank, one.name, one.category, one.count, one.total_ns, one.p95_ns) for one in summary.markers]


WHOLE = json.dumps(
    {
        "distributedInfo": {"rank": 1},
        "baseTimeNanoseconds": 1_790_857_026_000_000_000,
        "traceEvents": [
            {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
            *(
                {
                    "ph": "X",
                    "name": f"ProfilerStep#{at}",
                    "cat": "user_annotation",
                    "pid": 9,
                    "tid": 9,
                    "ts": at,
                    "dur": 1,
                }
                for at in range(4)
            ),
            {"ph": "B", "name": "a", "pid": 9, "tid": 9, "ts": 0.5, "args": {"x": [1, "2"]}},
            {"ph": "X", "name": "nccl", "cat": "kernel", "pid": 0, "tid": 7, "ts": 0.6, "dur": 0.3, "args": {}},
            {"ph": "E", "pid": 9, "tid": 9, "ts": 0.75},
            {"ph": "b", "name": "c", "cat": "q", "id": 5, "pid": 9, "tid": 9, "ts": 1.5},
            {"ph": "e", "name": "c", "cat": "q", "id": 5, "pid": 9, "tid": 9, "ts": 2.5},
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
