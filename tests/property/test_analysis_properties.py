"""The analysis beside slow and simple ways to the same figures, on any slices."""

from __future__ import annotations

import contextlib
import gzip
import json
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from tracekit.analysis import diff_traces, find_stragglers, summarize_traces
from tracekit.analysis.durations import DurationStore
from tracekit.analysis.intervals import Longest, device_time
from tracekit.analysis.markers import Kind
from tracekit.analysis.nesting import nested
from tracekit.analysis.ordered_rows import Scratch
from tracekit.errors import StorageError, TraceFormatError

if TYPE_CHECKING:
    from pathlib import Path

KINDS = [int(kind) for kind in (Kind.COMPUTE, Kind.COMMUNICATION, Kind.MEMORY)]
ROWS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=40)


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 5)), max_size=200), st.integers(1, 50))
def test_rows_come_in_order_however_few_fit_into_memory(rows: list[tuple[int, int]], most: int) -> None:
    with Scratch(most) as scratch:
        track = scratch.track()
        for row in rows:
            track.rows.append(row)
            scratch.added(1)
        assert [row for window in track.windows() for row in window] == sorted(rows)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200), st.integers(1, 100), st.booleans())
def test_a_percentile_is_the_nearest_rank(values: list[int], percent: int, on_disk: bool) -> None:
    with Scratch() as scratch:
        durations = DurationStore(scratch.path).new()
        for value in values:
            durations.values.append(value)
            if on_disk and value % 7 == 0:
                durations.settle()
        (found,) = durations.percentiles([percent])
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert sum(value < found for value in values) * 100 < percent * len(values)


@given(ROWS)
def test_every_slice_comes_out_once_and_self_times_add_up(spans: list[tuple[int, int]]) -> None:
    rows = sorted((start, -start - length, number, number) for number, (start, length) in enumerate(spans))
    found = list(nested([rows], [0] * len(rows)))
    assert sorted((start, -end, marker, marker) for start, end, marker, *_ in found) == rows
    covered = {moment for start, length in spans for moment in range(start, start + length)}
    whole = sum(self_ns for _, _, _, self_ns, *_ in found)
    assert all(0 <= self_ns <= end - start for start, end, _, self_ns, *_ in found)
    # Lanes side by side make it more, never less; where all nest, each moment is somebody's own.
    assert whole >= len(covered)
    if all(
        (a <= c and d <= b) or (c <= a and b <= d) or b <= c or d <= a
        for a, b in ((start, start + length) for start, length in spans)
        for c, d in ((start, start + length) for start, length in spans)
    ):
        assert whole == len(covered)


@given(ROWS)
def test_gaps_are_the_time_between_the_first_and_the_last_that_nothing_covers(spans: list[tuple[int, int]]) -> None:
    gaps: list[tuple[int, int]] = []
    rows = sorted((start, -start - length, number, number) for number, (start, length) in enumerate(spans))
    for _ in nested([rows], [0] * len(rows), gap=lambda start, end, *_: gaps.append((start, end))):
        pass
    covered = {moment for start, length in spans for moment in range(start, start + length)}
    bare = {moment for start, end in gaps for moment in range(start, end)}
    first = min((start for start, _ in spans), default=0)
    last = max((start + length for start, length in spans), default=0)
    assert bare == set(range(first, last)) - covered


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.sampled_from(KINDS)), max_size=40))
def test_device_times_are_those_of_each_moment(activities: list[tuple[int, int, int]]) -> None:
    rows = sorted((start, -start - length, kind, number) for number, (start, length, kind) in enumerate(activities))
    found = device_time([rows], Longest(10))
    moments = {
        kind: {moment for start, minus_end, own, _ in rows if own == kind for moment in range(start, -minus_end)}
        for kind in KINDS
    }
    compute, talk, copy = (moments[kind] for kind in KINDS)
    assert found.busy_ns == len(compute | talk | copy)
    assert (found.compute_ns, found.communication_ns, found.memory_ns) == (len(compute), len(talk), len(copy))
    assert found.hidden_ns == len(compute & talk)
    assert found.idle_ns >= 0


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
