"""The merged trace in Perfetto's own format, held against the JSON of the same inputs in Perfetto's own engine."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from tests.golden.test_merge_golden import SINGLE
from tests.property.test_merge_properties import BASE_NS, runs, write
from tracekit import JSONTraceHandler, Profiler
from tracekit.errors import TracekitError
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.trace_event import UNSET, decode_or_none
from tracekit.merge import merge_traces
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.perfetto import Engine, LoadedTrace
    from tests.real_traces import RealTraces

TRACKS = """
select track.id, track.name, track.parent_id, extract_arg(track.source_arg_set_id, 'trace_id'), thread.name, thread.tid,
  process.pid
from track
left join thread_track on thread_track.id = track.id left join thread using (utid)
left join process_track on process_track.id = track.id
left join process_counter_track on process_counter_track.id = track.id
left join process on process.upid = coalesce(thread.upid, process_track.upid, process_counter_track.upid)
"""
SLICES = """
select slice.id, slice.ts, slice.dur, coalesce(slice.name, ''), coalesce(slice.category, ''), slice.track_id,
  slice.arg_set_id, slice.depth, coalesce(parent.name, '')
from slice left join slice parent on parent.id = slice.parent_id
"""
ARGS = "select arg_set_id, key, display_value from args"
# The JSON importer draws an arrow from a slice to itself for an end without a start.
FLOWS = "select slice_out, slice_in from flow where slice_out != slice_in"
# The JSON importer reads the last digits of some numbers wrongly, and -0.0 as 0.0.
COUNTERS = "select track_id, ts, value from counter"

# Phases that the JSON importer has no place for.
UNSEEN = "STpFPNODvVcRstfe"

Shown = dict[str, Counter[Any]]


def unescaped(text: str) -> str:
    """Return a text of a JSON trace as it was meant: the engine leaves the escapes of some as they are."""
    try:
        return str(json.loads(f'"{text}"', strict=False)) if "\\" in text else text
    except ValueError:
        return text


def shown(loaded: LoadedTrace, base_ns: int, read: Callable[[str], str] = str) -> Shown:
    """Return what a merged trace shows, in words that do not depend on its format."""
    tracks = {track: rest for track, *rest in loaded.rows(TRACKS)}

    def place(track: int) -> tuple[int, int | None, str]:
        """Return process, thread, and the name of the track."""
        name, parent, uuid, thread, tid, pid = tracks[track]
        if tid is not None and uuid is not None and uuid >= 0 and uuid & 0xFFFFFFFF >= 2**30:
            # The parent of a lane is its thread.
            return pid, None, read(name)
        # In JSON, the name of a row of a GPU says which GPU it is.
        name = re.sub(r"^rank \d+ · GPU \d+ · ", "", read(thread or name or ""))
        if tid is None and parent is not None:
            pid = tracks[parent][2] >> 32
        if tid is None and uuid is not None and uuid >= 0:
            # The JSON has a process for each GPU; the native trace has groups of tracks in the rank's process.
            pid, tid = uuid >> 32, uuid & 0xFFFFFFFF or None
            name = name if tid else ""
        # Ids that no thread of a system has are others in a native trace.
        return pid, tid if tid and tid < 2**30 else None, name or (f"thread {tid}" if tid else "")

    args: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
    for arg_set, key, value in loaded.rows(ARGS):
        kind, _, rest = key.partition(".")
        # The JSON importer passes over what is empty.
        if kind in ("args", "debug") and not rest.startswith("trace_event") and value not in ("[]", "{}", "null"):
            # The engine writes dots in names of arguments as underlines.
            args[arg_set].add((read(rest).replace(".", "_"), read(value or "")))
    slices = {
        number: (
            ts + base_ns,
            dur,
            "" if name == "[No name]" else read(name),
            read(category),
            place(track),
            frozenset(args[arg_set]),
            # An open slice with slices inside has a separate track in a native trace.
            (depth, "" if parent == "[No name]" else read(parent)) if dur >= 0 else None,
        )
        for number, ts, dur, name, category, track, arg_set, depth, parent in loaded.rows(SLICES)
    }
    return {
        "slices": Counter(slices.values()),
        "arrows": Counter((slices[out][:5], slices[in_][:5]) for out, in_ in loaded.rows(FLOWS)),
        "counters": Counter(
            (ts + base_ns, f"{value + 0.0:.12g}", read(tracks[track][0]), place(track)[0])
            for track, ts, value in loaded.rows(COUNTERS)
        ),
    }


def both(engine: Engine, tmp_path: Path, *inputs: Path, **options: Any) -> tuple[Shown, Shown]:
    """Merge inputs into both formats; return the contents of the JSON and of the native trace in the engine."""
    merged = tmp_path / "merged.json"
    native = tmp_path / "merged.pftrace"
    for output in (merged, native):
        merge_traces(str(output), [str(path) for path in inputs], **options)
    base_ns = json.loads(merged.read_bytes()).get("baseTimeNanoseconds", 0)
    with engine.load(merged) as loaded:
        expected = shown(loaded, base_ns, unescaped)
    with engine.load(native) as loaded:
        assert loaded.errors() == []
        return expected, shown(loaded, 0)


def unseen(*inputs: Path) -> set[str]:
    """Return the names of events that the JSON importer passes over, or shows on no track of their process."""
    return {
        str(decode_or_none(event.name) or "")
        for path in inputs
        for run in TraceReader(str(path)).runs()
        for event in run
        if event.ph is not UNSET and str(event.ph) in UNSEEN
    }


def assert_same(expected: Shown, found: Shown, extra: set[str]) -> None:
    """Compare what two traces show; slices and ends of arrows with the names ``extra`` may be in one of them only."""
    name = {"slices": lambda row: row[2], "arrows": lambda row: row[1][2], "counters": lambda row: None}
    for what, rows in expected.items():
        one_sided = ((rows - found[what]).elements(), (found[what] - rows).elements())
        missing, added = ([row for row in rest if name[what](row) not in extra] for rest in one_sided)
        assert (missing[:2], added[:2]) == ([], []), (what, len(missing), len(added), rows.total())


RANKS = ["dlrm_8gpu/*", "torch_2.13_gloo/full_*", "torch_2.13_gloo/vm_*", "cuda_h200/*.gz"]


@pytest.mark.parametrize("pattern", [*SINGLE, *RANKS])
def test_a_native_trace_shows_what_the_json_shows(
    engine: Engine, traces: RealTraces, tmp_path: Path, pattern: str
) -> None:
    inputs = traces.glob(pattern)
    is_large = pattern == "dlrm_8gpu/*"
    expected, found = both(engine, tmp_path, *inputs, collective_flows=is_large)
    assert_same(expected, found, unseen(*inputs) if pattern in SINGLE else set())
    if is_large:
        # From rank to rank: the thousands of a process id.
        between = [count for (out, in_), count in found["arrows"].items() if out[4][0] // 1000 != in_[4][0] // 1000]
        assert (sum(between), found["counters"].total()) == (24, 8)


def test_a_recording_of_two_ranks_shows_what_the_json_shows(engine: Engine, tmp_path: Path) -> None:
    for rank in range(2):
        clock = FakeClock(wall_ns=BASE_NS + rank * 12_345)
        handler = JSONTraceHandler(tmp_path / "rank_{rank}.json")
        with Profiler(handler, clock=clock.clock, rank=rank, record_batches=False, flush_interval=3600) as profiler:
            for step in range(3):
                with profiler.marker("step", categories=["train"]):
                    clock.advance(1_000)
                    with suppress(ArithmeticError), profiler.marker("forward"):
                        clock.advance(77)
                        raise ArithmeticError
                    profiler.marker("host memory").counter({"used_bytes": 5_000_000_000 + step, "load_percent": 12.5})
                    profiler.marker("saw").instant()
                profiler.flush()
    expected, found = both(engine, tmp_path, *sorted(tmp_path.glob("rank_*.json")))
    assert_same(expected, found, set())
    assert found["slices"].total() == 2 * 3 * 3 + 2  # the clocks of both ranks
    with engine.load(tmp_path / "merged.pftrace") as loaded:
        units = "select distinct name, unit from counter_track order by name"
        assert loaded.rows(units) == [("host memory load_percent", "%"), ("host memory used_bytes", "bytes")]
        assert loaded.scalar("select min(ts) from slice") == BASE_NS
        names = "select name from process where name is not null order by pid"
        assert loaded.rows(names) == [("rank 0",), ("rank 1",)]
        described = json.loads(loaded.scalar("select str_value from metadata where name = 'cr-tracekit'"))
        tables = loaded.rows("select str_value from metadata where name glob 'cr-*tracekit_input of process *'")
    assert described["tracekit"]["merge"]["ranks"] == [[0, 1]]
    assert sorted(json.loads(text)["args"]["metadata"]["rank"] for (text,) in tables) == [0, 1]


@st.composite
def readable_runs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Traces without the texts, numbers, arrows, and empty pairs of B and E that the JSON importer misreads."""
    traces = draw(runs())
    unit_ns = draw(st.sampled_from([1, 1000, 3000]))
    for trace in traces:
        for event in trace["events"]:
            event["name"] = re.sub(r"[\x00-\x1f\x7f\\]", "_", event["name"])
            event |= {key: event[key] // unit_ns * unit_ns for key in ("at", "for") if key in event}
            if event["ph"] == "f":
                event["bp"] = "e"
            elif event["ph"] == "C":
                # The importer reads numbers of more than 19 decimals as others.
                event["args"] = {key: round(value, 9) for key, value in event["args"].items()}
    events = [event for trace in traces for event in trace["events"]]
    begins = {(event["name"], event["at"]) for event in events if event["ph"] == "B"}
    for event in events:
        # See test_begins_and_ends_and_instants_of_one_time_nest_better_than_in_the_json.
        while event["ph"] == "E" and (event["name"], event["at"]) in begins:
            event["at"] += 1
    starts = {event["at"] for event in events if event["ph"] == "B" or event.get("for") == 0}
    for event in events:
        while event["ph"] in "isf" and event["at"] in starts:
            event["at"] += 1
    return traces


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(readable_runs())
def test_any_native_trace_shows_what_the_json_shows(engine: Engine, traces: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        inputs = [write(Path(folder), number, trace) for number, trace in enumerate(traces)]
        try:
            expected, found = both(engine, Path(folder), *inputs)
        except TracekitError:
            # Nothing in it that can be merged.
            return
        assert_same(expected, found, unseen(*inputs))


def at_equal_times(folder: Path, words: str) -> Path:
    """Write a rank trace of one thread: a word is a phase, the duration of an ``X`` in us, and the time if it is not 0.

    Events are named by their words, except ``E``.
    """
    events = []
    for word in words.split():
        what, _, time = word.partition("@")
        event = {"ph": what[0], "name": word, "pid": 7, "tid": 7, "at": int(time or 0) * 1000}
        if event["ph"] == "X":
            event["for"] = int(what[1]) * 1000
        elif event["ph"] == "E":
            del event["name"]
        elif event["ph"] in "sf":
            event |= {"name": "flow", "id": 1, "cat": "ac2g", "bp": "e"}
        events.append(event)
    return write(folder, 0, {"kind": "tracekit", "rank": 0, "pid": 7, "base_ns": BASE_NS, "events": events})


def nesting(engine: Engine, path: Path) -> str:
    """Return each slice of a trace with its duration in us and the slices around it, by time."""
    with engine.load(path) as loaded:
        assert loaded.errors() == []
        rows = loaded.rows(
            """
            select slice.name, slice.dur, slice.depth, parent.name from slice left join slice parent
            on parent.id = slice.parent_id where slice.category is not 'clock' and slice.name != 'flow'
            order by slice.ts, slice.id
            """
        )
    assert all((depth == 0) == (parent is None) for _, _, depth, parent in rows)
    return " ".join(f"{parent or ''}/{name}={dur // 1000}" for name, dur, _, parent in rows)


# The JSON importer (v52) orders the events of one time: E first, then X, longer ones first, then everything else in the order
# of the file, X of no duration included. Instants and X of no duration nest in an earlier one. A B of that time is its sibling.
ALIKE = [
    ("B X0", "/B=-1 B/X0=0"),
    ("X0 B", "/X0=0 /B=-1"),
    ("X0 B E@1", "/X0=0 /B=1"),
    ("X0 B i E@1", "/X0=0 /B=1 B/i=0"),
    ("X0 X0 i", "/X0=0 X0/X0=0 X0/i=0"),
    ("X0 X0 B", "/X0=0 X0/X0=0 /B=-1"),
    ("X0 B X0 E@1", "/X0=0 /B=1 B/X0=0"),
    ("B E@2 X0@2", "/B=2 /X0@2=0"),
    ("X0 X1 X2", "/X2=2 X2/X1=1 X1/X0=0"),
    ("B X2 E@1", "/X2=2 X2/B=1"),
    ("X0 B X2 E@1", "/X2=2 X2/X0=0 X2/B=1"),
    ("X1 X1 B E@1", "/X1=1 X1/X1=1 X1/B=1"),
    ("B X0@1 E@1 X0@1 B@1 E@2", "/B=1 /X0@1=0 X0@1/X0@1=0 /B@1=1"),
    ("X1 X0@1", "/X1=1 /X0@1=0"),
    ("X2 i E", "/X2=2 X2/i=0"),
    # A flow event on no slice gives those that follow no parent.
    ("f X0 i", "/X0=0 X0/i=0"),
]


# The JSON importer (v52) orders the events of one time: E first, then X, longer ones first, then everything else in the order
# of the file, X of no duration included. Instants and X of no duration nest in an earlier one. A B of that time is its sibling.
@pytest.mark.parametrize(("words", "expected"), ALIKE)
def test_events_of_one_time_nest_as_in_the_json(engine: Engine, tmp_path: Path, words: str, expected: str) -> None:
    path = at_equal_times(tmp_path, words)
    for output in ("merged.json", "merged.pftrace", "again.pftrace"):
        merge_traces(str(tmp_path / output), [str(tmp_path / "merged.pftrace" if output.startswith("again") else path)])
        if output != "merged.json" or not words.startswith("f"):  # without a slice, the flow event is an error in JSON
            assert nesting(engine, tmp_path / output) == expected, output


@pytest.mark.parametrize(
    ("words", "in_json", "in_native"),
    [
        ("B E", "/B=0", "/B=0"),
        # Once there is an X (here the clock of the rank), the importer puts an E before the B of its time. Nothing ends the B.
        ("B E X0@1", "/B=-1 B/X0@1=0", "/B=0 /X0@1=0"),
        ("B E X0", "/B=-1 B/X0=0", "/B=0 /X0=0"),
        ("B X0 E", "/B=-1 B/X0=0", "/B=0 B/X0=0"),
        ("X0 B E", "/X0=0 /B=-1", "/X0=0 /B=0"),
        ("B i E", "/B=0 B/i=0", "/B=0 /i=0"),
        ("B B E E", "/B=0 B/B=0", "/B=0 B/B=0"),
        ("B E B E", "/B=0 /B=0", "/B=0 /B=0"),
        # The pinned corpus has ``i B``, from `record_instant_on_start`, and wants the native trace so.
        ("i B E@1", "/i=0 /B=1", "/B=1 B/i=0"),
        ("i X0", "/i=0 i/X0=0", "/X0=0 X0/i=0"),
        ("i X1", "/X1=1 X1/i=0", "/X1=1 X1/i=0"),
    ],
)
def test_begins_and_ends_and_instants_of_one_time_nest_better_than_in_the_json(
    engine: Engine, tmp_path: Path, words: str, in_json: str, in_native: str
) -> None:
    path = at_equal_times(tmp_path, words)
    for output, expected in (("merged.json", in_json), ("merged.pftrace", in_native)):
        merge_traces(str(tmp_path / output), [str(path)])
        assert nesting(engine, tmp_path / output) == expected, output


def test_streams_are_inside_of_the_gpu_inside_of_the_rank(engine: Engine, traces: RealTraces, tmp_path: Path) -> None:
    merge_traces(str(tmp_path / "merged.pftrace"), [str(traces / "dlrm_8gpu")])
    with engine.load(tmp_path / "merged.pftrace") as loaded:
        streams = loaded.rows(
            """
            select distinct process.name, gpu.name, stream.name from slice
            join process_track stream on stream.id = slice.track_id
            join track gpu on gpu.id = stream.parent_id join process using (upid)
            where gpu.name like 'GPU %' order by 1, 3
            """
        )
    rows = ["stream 22 (memcpy h2d)", "stream 24 (compute)", "stream 7 (compute)", "stream 84 (nccl)"]
    assert streams[:4] == [("rank 0 · python3", "GPU 0", row) for row in rows]
    places = {(f"rank {rank} · python3", f"GPU {rank}") for rank in range(4)}
    assert {(process, gpu) for process, gpu, _ in streams} == places
    merge_traces(str(tmp_path / "back.json"), [str(tmp_path / "merged.pftrace")])  # where nothing is inside of a rank
    named = [event for event in json.loads((tmp_path / "back.json").read_bytes())["traceEvents"] if event["ph"] == "M"]
    titles = {event["args"]["name"] for event in named if event["name"] == "process_name"}
    assert {f"rank {rank} · GPU {rank}" for rank in range(4)} < titles


def test_processes_and_threads_have_an_explicit_order(traces: RealTraces, tmp_path: Path) -> None:
    merge_traces(str(tmp_path / "merged.pftrace"), [str(traces / "dlrm_8gpu")])
    packets = protos.Trace.FromString((tmp_path / "merged.pftrace").read_bytes()).packet
    tracks = [packet.track_descriptor for packet in packets if packet.HasField("track_descriptor")]
    (root,) = (track for track in tracks if track.uuid == 0)
    assert root.process_ordering == protos.TrackDescriptor.PROCESS_ORDERING_EXPLICIT
    assert root.thread_ordering == protos.TrackDescriptor.THREAD_ORDERING_EXPLICIT
    processes = [track for track in tracks if track.HasField("process")]
    ordered = sorted(processes, key=lambda track: track.sibling_order_rank)
    assert [track.process.process_name for track in ordered[:4]] == [f"rank {rank} · python3" for rank in range(4)]
    for process in processes:
        ranks = [track.sibling_order_rank for track in tracks if track.thread.pid == process.process.pid]
        assert ranks == list(range(len(ranks)))


def test_merged_traces_appended_to_each_other_show_all_of_both(
    engine: Engine, traces: RealTraces, tmp_path: Path
) -> None:
    ranks = sorted((traces / "dlrm_8gpu").iterdir())
    parts = [tmp_path / "first.pftrace", tmp_path / "second.pftrace.gz"]
    expected: Shown = defaultdict(Counter)
    for part, inputs in zip(parts, (ranks[:2], ranks[2:]), strict=True):
        merge_traces(str(part), [str(path) for path in inputs])
        with engine.load(part) as loaded:
            for what, rows in shown(loaded, 0).items():
                expected[what] += rows
    whole = tmp_path / "whole.pftrace"
    whole.write_bytes(parts[0].read_bytes() + gzip.decompress(parts[1].read_bytes()))
    with engine.load(whole) as loaded:
        assert loaded.errors() == []
        assert shown(loaded, 0) == expected


def test_every_cut_between_packets_loads(engine: Engine, traces: RealTraces, tmp_path: Path) -> None:
    merged, cut = tmp_path / "merged.pftrace", tmp_path / "cut.pftrace"
    merge_traces(str(merged), [str(traces / "single_gpu/rocm_mi250_minitoy.json.gz")])
    data = merged.read_bytes()
    ends = list(packet_ends(data))
    assert ends[-1] == len(data)
    counts = []
    # Every twentieth, and the last ones, where the open slices end.
    for end in sorted({*ends[::20], *ends[-12:]}):
        cut.write_bytes(data[:end])
        with engine.load(cut) as loaded:
            assert loaded.errors() == []
            counts.append(loaded.scalar("select count(*) from slice"))
    assert counts == sorted(counts)
    with engine.load(merged) as loaded:
        assert counts[-1] == loaded.scalar("select count(*) from slice")


def packet_ends(data: bytes) -> Iterator[int]:
    """Yield where each packet of a trace ends."""
    at = 0
    while at < len(data):
        assert data[at] == 0x0A
        size = shift = 0
        while True:
            at += 1
            size |= (data[at] & 0x7F) << shift
            shift += 7
            if not data[at] & 0x80:
                break
        at += 1 + size
        yield at


AGAIN = [
    # An end of an arrow that waits for a slice that never comes is on the slice around it, the second time.
    *(name for name in SINGLE if name.startswith(("single_gpu", "chrome_json")) and "flow_simple" not in name),
    "dlrm_8gpu",
    "torch_2.13_gloo/full_rank0_step4.json.gz",
]


@pytest.mark.parametrize(
    "name",
    [name if name in [*AGAIN[::10], AGAIN[-1]] else pytest.param(name, marks=pytest.mark.slow) for name in AGAIN],
)
@pytest.mark.parametrize("form", ["json", "pftrace"])
def test_a_native_trace_that_is_merged_again_shows_the_same(
    engine: Engine, traces: RealTraces, tmp_path: Path, name: str, form: str
) -> None:
    first, second = tmp_path / "first.pftrace.gz", tmp_path / f"second.{form}"
    merge_traces(str(first), [str(traces / name)])
    report = merge_traces(str(second), [str(first)])
    assert report.complete
    assert [item.kind for item in report.inputs] == ["merged"]
    base_ns = json.loads(second.read_bytes()).get("baseTimeNanoseconds", 0) if form == "json" else 0
    with engine.load(first) as loaded:
        expected = shown(loaded, 0)
    with engine.load(second) as loaded:
        assert loaded.errors() == []
        found = shown(loaded, base_ns, unescaped if form == "json" else str)
    source = [traces / name] if (traces / name).is_file() else []
    # The second merge names the track of a slice that left its async track after the slice.
    assert_same(expected, found, unseen(*source) | {"flow", "URL_REQUEST_DELEGATE_UNMATCHED_BEGIN"})
