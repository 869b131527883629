"""Every figure of a summary equals the result of SQL in Perfetto's engine, for real traces and for recordings."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import JSONTraceHandler, Profiler, merge_traces, summarize_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine, LoadedTrace
    from tests.real_traces import RealTraces
    from tracekit.explain.summary_results import TraceSummary

# Merged traces have pids of 100,000 times the rank, plus 1 and so on.
PREPARE = """
drop table if exists s;
create perfetto table s as
select slice.id, slice.ts, slice.dur, slice.ts + slice.dur as te, coalesce(slice.name, '') as name,
  coalesce(extract_arg(slice.arg_set_id, 'args.batch'), cast(substr(slice.name, 14) as int)) as number,
  coalesce(slice.category, '') as cat, slice.parent_id, slice.track_id, thread.name as thread, thread.tid as tid,
  coalesce(process.pid, own.pid) as pid, coalesce(process.pid, own.pid) / 100000 as rank,
  thread_track.id is not null as nests
from slice
left join thread_track on thread_track.id = slice.track_id
left join thread using (utid) left join process using (upid)
left join process_track on process_track.id = slice.track_id
left join process own on own.upid = process_track.upid
where slice.dur >= 0 and not (slice.dur = 0 and slice.name in ({instants}));
drop table if exists steps;
create perfetto table steps as
select rank, ts, te, dur, number from s
where (name = 'batch' and cat = 'training loop')
  or (name glob 'ProfilerStep#*' and cat = 'user_annotation'
      and rank not in (select rank from s where name = 'batch' and cat = 'training loop'))
"""
MARKERS = """
with kids as (select parent_id, sum(dur) as ns from s where parent_id is not null group by 1),
numbered as (
  select s.*, case when nests then dur - coalesce(kids.ns, 0) else dur end as own,
    row_number() over (partition by rank, name, cat order by dur) as n,
    count() over (partition by rank, name, cat) as count_,
    (select count() from steps where steps.rank = s.rank and s.ts >= steps.ts and s.ts < steps.te) > 0 as in_step
  from s left join kids on kids.parent_id = s.id)
select rank, name, cat, count(), sum(dur), sum(own),
  max(case when n = (50 * count_ + 99) / 100 then dur end),
  max(case when n = (95 * count_ + 99) / 100 then dur end),
  max(case when n = (99 * count_ + 99) / 100 then dur end),
  sum(case when in_step then dur else 0 end)
from numbered group by 1, 2, 3
"""
STEPS = """
with placed as (select *, row_number() over (partition by rank order by dur) as n, count() over (partition by rank) as c
  from steps)
select rank, count(), sum(dur), max(dur), max(case when n = (50 * c + 99) / 100 then dur end),
  max(case when n = (95 * c + 99) / 100 then dur end), max(case when n = (99 * c + 99) / 100 then dur end)
from placed group by 1
"""
SPANS = "select rank, max(te) - min(ts) from s group by 1"
IS_COMMUNICATION = "(lower(name) like '%nccl%' or lower(name) like '%rccl%')"
# The number of running operations of each kind between two changes.
DEVICES = f"""
with work as (select rank, pid, ts, te, cat not like '%mem%' and {IS_COMMUNICATION} as talks, cat like '%mem%' as copies
  from s where cat in ('kernel', 'gpu_memcpy', 'gpu_memset')),
changes as (
  select rank, pid, ts as t, talks, copies, 1 as change from work
  union all select rank, pid, te, talks, copies, -1 from work),
moments as (select rank, pid, t, sum(change) as any_, sum(change * talks) as talk, sum(change * copies) as copy,
  sum(change * (1 - talks) * (1 - copies)) as compute from changes group by 1, 2, 3),
running as (select rank, pid, t, lead(t) over w - t as length, sum(any_) over w as any_, sum(talk) over w as talk,
  sum(copy) over w as copy, sum(compute) over w as compute from moments window w as (partition by rank, pid order by t))
select rank, pid, max(t) - min(t),
  sum(case when any_ > 0 then length else 0 end), sum(case when any_ = 0 then length else 0 end),
  sum(case when compute > 0 then length else 0 end), sum(case when talk > 0 then length else 0 end),
  sum(case when talk > 0 and compute > 0 then length else 0 end), sum(case when copy > 0 then length else 0 end)
from running group by 1, 2
"""
GAPS = """
with busy as (
  select rank, ts, te, 'device ' || pid as place from s where cat in ('kernel', 'gpu_memcpy', 'gpu_memset')
  union all select rank, ts, te, 'thread' from s
  where nests and ({threads}) and cat not in ('python_function', 'training loop', 'Trace')
    and name not glob 'ProfilerStep#*'),
after as (select *, max(te) over (partition by rank, place order by ts, te desc
  rows between unbounded preceding and 1 preceding) as before from busy)
select rank, before, ts - before from after where ts > before order by 3 desc, 1, 2 limit 10
"""
STAGES = """
drop table if exists on_thread;
create perfetto table on_thread as
select s.id, coalesce(parent_id, -1) as parent, ts, dur, name, rank,
  cat in ('python_function', 'training loop') or name glob 'ProfilerStep#*' as frame,
  not (lower(name) glob '*dataload*' or lower(name) glob '*data_load*' or lower(name) glob '*data load*') and (
    name glob 'nccl:*' or name glob 'gloo:*' or lower(name) glob '*all*reduce*' or lower(name) glob '*alltoall*'
    or lower(name) glob '*barrier*') as talks
from s where nests and ({threads}) and not (cat in ('cuda_runtime', 'cuda_driver') and not name glob '*Synchronize*');
drop table if exists down;
create perfetto table down as
with recursive inner_of(id, stage, talking, counts, dur, name) as (
  select id, case when frame then -1 else id end, talks, not frame, dur, name from on_thread where parent = -1
  union all
  select o.id, case when i.stage >= 0 then i.stage when o.frame then -1 else o.id end,
    i.talking or o.talks, case when i.stage >= 0 then o.talks and not i.talking else not o.frame end, o.dur, o.name
  from inner_of i join on_thread o on o.parent = i.id)
select * from inner_of where counts;
with taken as (select stage, sum(dur) as ns from down where id != stage group by 1)
select top.rank, case when down.id = top.id then top.name else top.name || ' > ' || down.name end, steps.number,
  sum(case when down.id = top.id then down.dur - coalesce(taken.ns, 0) else down.dur end)
from down join on_thread top on top.id = down.stage left join taken on taken.stage = top.id
join steps on steps.rank = top.rank and top.ts >= steps.ts and top.ts < steps.te
group by 1, 2, 3
"""
LOADING = """
select rank, sum(dur) from s where nests and ({threads})
  and (lower(name) glob '*data[ _-]load*' or lower(name) glob '*dataload*')
  and not exists (select 1 from s up where up.id = s.parent_id and
    (lower(up.name) glob '*data[ _-]load*' or lower(up.name) glob '*dataload*'))
group by 1
"""
DEVICE_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}
DROPPED = {"slice_drop_overlapping_complete_event", "misplaced_end_event", "slice_negative_duration"}


def compare(path: Path, trace: LoadedTrace) -> TraceSummary:
    """Compare the summary of a merged trace with what SQL says of it."""
    summary = summarize_traces([str(path)])
    # To the engine an instant is a slice of no duration.
    document = json.loads(path.read_text())
    instants = {event["name"] for event in document["traceEvents"] if event["ph"] in "iIn"}
    assert DROPPED.isdisjoint(name for name, *_ in trace.errors())
    for statement in PREPARE.format(instants=", ".join(f"'{name}'" for name in instants) or "''").split(";"):
        trace.rows(statement)
    steps = compare_steps(summary, trace)
    expected = {
        (rank, name, cat): [*figures, None if cat in DEVICE_CATEGORIES else in_steps]
        for rank, name, cat, *figures, in_steps in trace.rows(MARKERS)
    }
    found = {}
    for one in summary.markers:
        in_steps = round((one.share_of_steps or 0) * steps[one.rank][1]) if one.share_of_steps else 0
        figures = [one.count, one.total_ns, one.self_ns, one.p50_ns, one.p95_ns, one.p99_ns]
        # Work of a device belongs to the step of its launch.
        figures.append(None if one.category in DEVICE_CATEGORIES else in_steps)
        found[one.rank, one.name, one.category] = figures
    assert found == {(rank, shown(name), cat): figures for (rank, name, cat), figures in expected.items()}
    devices = [
        (
            rank.rank,
            *(device.span_ns, device.busy_ns, device.idle_ns),
            *(device.compute_ns, device.communication_ns, device.hidden_ns, device.memory_ns),
        )
        for rank in summary.ranks
        for device in rank.devices
    ]
    assert Counter(devices) == Counter((rank, *figures) for rank, _, *figures in trace.rows(DEVICES))
    compare_training_threads(summary, trace, document.get("baseTimeNanoseconds", 0))
    return summary


def compare_steps(summary: TraceSummary, trace: LoadedTrace) -> dict[int, list[int]]:
    steps = {rank: figures for rank, *figures in trace.rows(STEPS)}
    keys = ("count", "total_ns", "longest_ns", "p50_ns", "p95_ns", "p99_ns")
    own = {rank["rank"]: [rank["steps"][key] for key in keys] for rank in summary.as_dict()["ranks"]}
    assert {rank: figures for rank, figures in own.items() if figures[0]} == steps
    one_by_one = [
        (rank.rank, number, length)
        for rank in summary.ranks
        for number, length in zip(rank.step_by_step.numbers, rank.step_by_step.durations_ns, strict=True)
    ]
    assert one_by_one == trace.rows("select rank, number, dur from steps order by rank, ts")
    assert {rank.rank: rank.span_ns for rank in summary.ranks} == dict(trace.rows(SPANS))
    slowest = max(steps, key=lambda rank: steps[rank][1] / steps[rank][0]) if len(steps) > 1 else None
    assert (None if summary.slowest_rank is None else summary.slowest_rank.rank) == slowest
    return steps


def compare_training_threads(summary: TraceSummary, trace: LoadedTrace, base_ns: int) -> None:
    threads = {rank.rank: rank.training_thread for rank in summary.ranks if rank.training_thread}
    of_rank = [f"(rank = {rank} and '{name}' in (trim(thread), 'thread ' || tid))" for rank, name in threads.items()]
    where = " or ".join(of_rank) or "false"
    gaps = trace.rows(GAPS.format(threads=where))
    assert [gap.length_ns for gap in summary.gaps] == [length for _, _, length in gaps]
    assert Counter((gap.rank, gap.length_ns) for gap in summary.gaps if gap.length_ns > gaps[-1][2]) == Counter(
        (rank, length) for rank, _, length in gaps if length > gaps[-1][2]
    )
    for gap in summary.gaps:
        begin = gap.start_ns - base_ns  # the engine knows nothing of a base
        places = where if gap.where in threads.values() else "cat in ('kernel', 'gpu_memcpy', 'gpu_memset')"
        for name, moment, edge in ((gap.after, begin, "te"), (gap.before, begin + gap.length_ns, "ts")):
            there = f"select name from s where rank = {gap.rank} and ({places}) and {edge} = {moment}"
            assert name in {shown(found) for (found,) in trace.rows(there)}
    stages = {
        (rank.rank, name, number): length
        for rank in summary.ranks
        for name, lengths in rank.step_by_step.stages_ns.items()
        for number, length in zip(rank.step_by_step.numbers, lengths, strict=True)
        if length
    }
    expected = {tuple(stage): length for *stage, length in trace.rows(STAGES.format(threads=where)) if length}
    if all(len(rank.stages) < 64 for rank in summary.ranks):
        assert stages == expected
    totals: Counter[tuple[int, str]] = Counter()
    for (rank, name, _), length in stages.items():
        totals[rank, name] += length
    assert totals == {(rank.rank, stage.name): stage.total_ns for rank in summary.ranks for stage in rank.stages}
    loading = {rank.rank: rank.loading.total_ns for rank in summary.ranks if rank.loading}
    assert loading == dict(trace.rows(LOADING.format(threads=where)))


def shown(name: str) -> str:
    return name if len(name) <= 500 else name[:499] + "…"


@pytest.mark.parametrize(
    "pattern",
    [
        "dlrm_8gpu/*",
        "torch_2.13_gloo/plain*",
        "torch_2.13_gloo/shapes*",
        "torch_2.13_gloo/full*",
        "single_gpu/cuda_event_sync.json.gz",
        "single_gpu/cuda_triton_example.json.gz",
        "single_gpu/h100_bert_small.json.gz",
        "single_gpu/rocm_mi250_minitoy.json.gz",
        "single_gpu/rocm_mi350x.json.gz",
        "single_gpu/torch_compile_triton.json.gz",
        "truths_h200/python/*",
    ],
)
def test_real_traces(traces: RealTraces, engine: Engine, tmp_path: Path, pattern: str) -> None:
    merged, native = tmp_path / "merged.json", tmp_path / "merged.pftrace"
    merge_traces(str(merged), [str(traces / pattern)])
    with engine.load(merged) as trace:
        summary = compare(merged, trace)
    # The same of the traces as they are, and of Perfetto's own format.
    merge_traces(str(native), [str(traces / pattern)])
    assert figures(summarize_traces([str(native)])) == figures(summary)
    assert in_parts(summarize_traces([str(traces / pattern)])) == in_parts(summary)


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (
            "python",
            "CPU-bound: for 82.2% of the time, GPUs are idle while the CPU runs no operator, most of it in forward.",
        ),
        ("data", "input-bound: waiting for data takes 85.3% of the step."),
    ],
)
def test_verdict_on_a_program_with_a_known_limit(traces: RealTraces, program: str, sentence: str) -> None:
    verdict = summarize_traces([str(traces / "truths_h200" / program)]).verdict
    assert verdict.sentences[1] == f"The run is {sentence}"


def figures(summary: TraceSummary) -> Any:
    document = summary.as_dict()
    # Of begins and ends at the same times, the event table takes the inner slice for the outer one.
    markers = [{**marker, "self_ns": None} for marker in document["markers"]]
    return markers, document["gaps"], document["ranks"]


def in_parts(summary: TraceSummary) -> Any:
    """Return the figures that a merge keeps: it moves overlapping slices to separate tracks."""
    document = summary.as_dict()
    markers = [{**marker, "self_ns": None} for marker in document["markers"] if marker["category"] != "Trace"]
    return markers, [(rank["rank"], rank["steps"]) for rank in document["ranks"]]


def test_traces_of_tracekit(engine: Engine, tmp_path: Path) -> None:
    for rank in range(2):
        record(tmp_path / "rank{rank}.json", rank)
    merged = tmp_path / "merged.json"
    merge_traces(str(merged), [str(tmp_path)])
    with engine.load(merged) as trace:
        summary = compare(merged, trace)
    assert [rank.training_thread for rank in summary.ranks] == ["MainThread", "MainThread"]
    stages = ["dataloader", "forward", "backward", "backward > all_reduce", "optimizer"]
    assert [stage.name for stage in summary.ranks[0].stages] == stages
    alone = summarize_traces([str(tmp_path / "rank*.json")])
    assert in_parts(alone) == in_parts(summary)
    assert [rank.stages for rank in alone.ranks] == [rank.stages for rank in summary.ranks]


def record(path: Path, rank: int) -> None:
    with Profiler(rank=rank, trace_handlers=[JSONTraceHandler(str(path))]) as profiler:
        for _ in profiler.iterate(range(7), "dataloader"):
            with profiler.marker("forward", categories=("model",)):
                for _ in range(3):
                    with profiler.marker("layer"):
                        time.sleep(0.0001)
            with profiler.marker("backward"), profiler.marker("all_reduce"):
                pass
            with profiler.marker("optimizer"):
                pass
            profiler.step(samples=4)
