"""Merges of real traces, looked at through Perfetto's own engine: nothing lost, nothing moved, no arrow across ranks."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.formats.decimal_time import parse_us
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.trace_event import UNSET, decode_json
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine, LoadedTrace
    from tests.real_traces import RealTraces
    from tracekit.formats.trace_event import Event

# A slice as every viewer shows it, with the rank and the track left out: those are what a merge changes.
SLICES = """
select slice.ts, slice.dur, coalesce(slice.name, ''), coalesce(slice.category, '')
from slice order by 1, 2, 3, 4
"""
COUNTERS = """
select counter.ts, track.name, counter.value from counter join process_counter_track track on track.id = track_id
order by 1, 2, 3
"""
ARROWS = """
select out_.ts, out_.name, in_.ts, in_.name
from flow join slice out_ on out_.id = slice_out join slice in_ on in_.id = slice_in order by 1, 2, 3, 4
"""
WRONG_IN_THE_INPUT = {"slice_drop_overlapping_complete_event", "misplaced_end_event"}
SLICES_THAT_NEVER_END = {"chrome_json/simple_trace.json"}
ARROWS_ACROSS_PROCESSES_OF_RANKS = """
select count(*)
from flow
join slice out_ on out_.id = slice_out join thread_track out_track on out_track.id = out_.track_id
join thread out_thread using (utid) join process out_process on out_process.upid = out_thread.upid
join slice in_ on in_.id = slice_in join thread_track in_track on in_track.id = in_.track_id
join thread in_thread on in_thread.utid = in_track.utid join process in_process on in_process.upid = in_thread.upid
where out_process.pid / 100000 != in_process.pid / 100000
"""
FINISHED_PHASES = ("X", "B", "b", "n", "i", "I", "R")


def read(path: Path) -> tuple[list[Event], int]:
    """Return the events of a trace, and the base of its times."""
    reader = TraceReader(str(path))
    events = [event for run in reader.runs() for event in run]
    return events, int(reader.header.get("baseTimeNanoseconds", 0))


def absolute(path: Path) -> Counter[tuple[str, int, int, str]]:
    """Return phase, absolute time, duration and name of every event that has a time, but for the clocks that a merge adds."""
    events, base_ns = read(path)
    found: Counter[tuple[str, int, int, str]] = Counter()
    for event in events:
        time = None if event.ts is UNSET else parse_us(bytes(event.ts))
        if event.ph in ("M", UNSET) or time is None or (event.cat is not UNSET and bytes(event.cat) == b'"clock"'):
            continue
        duration = 0 if event.dur is UNSET else parse_us(bytes(event.dur)) or 0
        name = "" if event.name is UNSET else decode_json(event.name)
        found[str(event.ph)[0], base_ns + time, duration, str(name)] += 1
    return found


def merge(tmp_path: Path, *inputs: Path, name: str = "merged.json", **options: Any) -> tuple[Path, Any]:
    output = tmp_path / name
    return output, merge_traces(str(output), [str(path) for path in inputs], **options)


def assert_events_add_up(report: Any) -> None:
    read_events, written = sum(report.events_in.values()), sum(report.events_out.values())
    by_merge = sum(drop.count for drop in report.dropped if drop.offset_bytes is None)
    assert written == read_events + report.metadata_added + report.clock_events_added - by_merge


def shifted(rows: list[Any], by_ns: int, columns: tuple[int, ...]) -> list[tuple[Any, ...]]:
    return sorted(tuple(value + by_ns if at in columns else value for at, value in enumerate(row)) for row in rows)


NAMES = {
    "single_gpu/{}.json.gz": [
        "cuda_event_sync", "cuda_triton_example", "h100_bert_small", "rocm_mi250_minitoy", "rocm_mi350x",
        "torch_compile_triton",
    ],
    "torch_2.13_quirks/{}.json.gz": [
        "args_inf", "meta_quotes", "names", "pyexport", "stack_quotes", "threads",
    ],
    "chrome_json/{}.json": [
        "async_begin_end", "connected_flow_data", "flow_events_json_v1", "flow_events_json_v2", "flow_simple",
        "nanoseconds", "nestable_async", "simple_trace", "test_json_async", "test_json_counter_args",
        "test_json_extreme_vals", "test_json_flow", "test_json_id2", "test_json_incomplete",
        "test_json_pid_tid_zero", "test_json_sort_index_hints", "test_json_trailing_comma",
        "test_overlapping_complete_event_recovered", "test_string_pid_tid", "test_string_ts_and_dur",
        "test_trailing_empty_event", "trivial_trace",
    ],
}  # fmt: skip
SINGLE = [form.format(name) for form, names in NAMES.items() for name in names]
UNREADABLE_BY_PERFETTO = {"torch_2.13_quirks/names.json.gz", "torch_2.13_quirks/stack_quotes.json.gz"}
SLICES_THAT_PERFETTO_DROPS = {
    "single_gpu/h100_bert_small.json.gz",
    "single_gpu/rocm_mi350x.json.gz",
    "chrome_json/test_overlapping_complete_event_recovered.json",
    "chrome_json/test_json_extreme_vals.json",
    "chrome_json/test_json_id2.json",
    "torch_2.13_gloo/full_rank0_step4.json.gz",
    "torch_2.13_gloo/full_rank1_step4.json.gz",
}


def assert_shows_all(engine: Engine, loaded: LoadedTrace, base_ns: int, source: Path, name: str) -> None:
    """Hold the merged trace against what Perfetto shows of the input alone."""
    if name in UNREADABLE_BY_PERFETTO:
        return
    _, own_base_ns = read(source)
    shift = own_base_ns - base_ns
    with engine.load(source) as alone:
        for sql, columns in ((SLICES, (0,)), (COUNTERS, (0,)), (ARROWS, (0, 2))):
            before = Counter(shifted(alone.rows(sql), shift, columns))
            after = Counter(shifted(loaded.rows(sql), 0, columns))
            missing = before - after
            # What Perfetto makes of an input that it cannot show whole: the arrow of a slice that it drops ends elsewhere,
            # and a slice that never ends is cut off where the one around it ends. The merge shows both as they were.
            wrong = sum(value for stat, _, _, value in alone.errors() if stat in WRONG_IN_THE_INPUT)
            allowed = wrong if sql is ARROWS or name in SLICES_THAT_NEVER_END else 0
            assert missing.total() <= allowed, (sql, list(missing)[:3])


@pytest.mark.parametrize("name", SINGLE)
def test_a_trace_alone_keeps_all_that_perfetto_shows_of_it(
    engine: Engine, traces: RealTraces, tmp_path: Path, name: str
) -> None:
    source = traces / name
    output, report = merge(tmp_path, source)
    with engine.load(output) as loaded:
        assert loaded.errors() == []
        assert_shows_all(engine, loaded, report.base_time_ns, source, name)
        if name not in SLICES_THAT_PERFETTO_DROPS | UNREADABLE_BY_PERFETTO:
            with engine.load(source) as alone:
                for table in ("slice", "counter", "flow"):
                    count = f"select count(*) from {table}"
                    assert loaded.rows(count) == alone.rows(count), table
    assert_events_add_up(report)


GLOO = [f"torch_2.13_gloo/{kind}_rank{{}}_step4.json.gz" for kind in ("plain", "shapes", "full")]
PAIRS = [[name.format(rank) for rank in (0, 1)] for name in [*GLOO, "cuda_h200/torch-rank{}-10.json.gz"]]
PAIRS.append(
    [
        "torch_2.13_gloo/vm_18367.1795217077496886033.pt.trace.json.gz",
        "torch_2.13_gloo/vm_18368.1795217077498314233.pt.trace.json.gz",
    ]
)
DLRM = [
    "dlrm_8gpu/worker0_step_12.1694128201545.pt.trace.json.gz",
    "dlrm_8gpu/worker1_step_12.1694128201556.pt.trace.json.gz",
    "dlrm_8gpu/worker2_step_12.1694128201554.pt.trace.json.gz",
    "dlrm_8gpu/worker3_step_12.1694128201557.pt.trace.json.gz",
]


@pytest.mark.parametrize("names", [*PAIRS, DLRM], ids=lambda names: names[0].split("/")[-1].split("_")[0])
def test_ranks_together_keep_every_slice_counter_and_arrow_of_each(
    engine: Engine, traces: RealTraces, tmp_path: Path, names: list[str]
) -> None:
    sources = [traces / name for name in names]
    output, report = merge(tmp_path, *sources, name="merged.json.gz", strict=True)
    assert [item.rank for item in report.inputs] == list(range(len(names)))
    merged, alone = absolute(output), sum((absolute(source) for source in sources), Counter())
    assert merged == alone
    with engine.load(output) as loaded:
        assert loaded.errors() == []
        assert loaded.rows(ARROWS_ACROSS_PROCESSES_OF_RANKS) == [(0,)]
        for name, source in zip(names, sources, strict=True):
            assert_shows_all(engine, loaded, report.base_time_ns, source, name)
        shown = sum(report.events_in.get(phase, 0) for phase in FINISHED_PHASES)
        assert report.clock_events_added == len(names)
        assert loaded.rows("select count(*) from slice") == [(shown + len(names),)]
        assert loaded.rows("select count(*) from slice where category = 'clock'") == [(len(names),)]
        arrows = 0
        for source in sources:
            with engine.load(source) as single:
                arrows += single.rows("select count(*) from flow")[0][0]
        assert loaded.rows("select count(*) from flow") == [(arrows,)]
    assert_events_add_up(report)


def test_texts_that_end_with_a_backslash_can_be_read_after_a_merge(engine: Engine, tmp_path: Path) -> None:
    slice_ = {"ph": "X", "pid": 1, "tid": 1, "dur": 2, "ts": 1}
    events = [{**slice_, "name": "C:\\"}, {**slice_, "ts": 9, "name": "copy", "args": {"to": "D:\\", "from": '"\\"'}}]
    (tmp_path / "in.json").write_text(json.dumps({"note": "E:\\", "traceEvents": events}))
    merge_traces(str(tmp_path / "out.json"), [str(tmp_path / "in.json")], ranks={"in.json": 0})
    with engine.load(tmp_path / "out.json") as trace:
        assert trace.errors() == []
        # The engine shows escapes in names as they are written.
        assert trace.rows("select name from slice order by ts") == [("C:\\u005c",), ("copy",)]
        assert trace.scalar("select count(*) from args where key in ('args.to', 'args.from')") == 2
