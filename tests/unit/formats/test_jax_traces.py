"""Traces of XLA's profiler, as JAX writes them: their start, their rank, and their place in a merge."""

from __future__ import annotations

import gzip
import json
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.check.schemas import MERGE_REPORT, compile_schema
from tracekit.errors import MergeError, TraceFormatError
from tracekit.formats.pftrace import block, number_field, text_field
from tracekit.formats.xprof import MOST_EVENTS, start_in_xplane, start_of_anchors, without_hosts
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.merge import MergeReport

BASE_NS = 1_790_857_026_000_000_000
START_NS = BASE_NS + 5_000_000_123


def plane(name: str, **stats: int) -> bytes:
    """Return an XPlane with statistics."""
    names = b"".join(
        block(5, number_field(1, number) + block(2, number_field(1, number) + text_field(2, key)))
        for number, key in enumerate(stats, 1)
    )
    values = b"".join(
        block(6, number_field(1, number) + number_field(3, value)) for number, value in enumerate(stats.values(), 1)
    )
    return text_field(2, name) + block(3, b"") + names + values


def xplane(start_ns: int | None = START_NS, host: str = "h", pid: int = 100) -> bytes:
    """Return an XSpace as JAX writes it; the large plane of the events is random bytes."""
    planes = [
        plane("/host:metadata", cpu=1, process_id=pid),
        text_field(2, "/host:CPU") + block(4, b"\xff" * 2_000_000),
    ]
    planes.append(plane("Task Environment", **({} if start_ns is None else {"profile_start_time": start_ns})))
    return b"".join(block(1, content) for content in planes) + text_field(4, host)


def anchor(ts: float, dur: float, wall_ns: int, **args: Any) -> dict[str, Any]:
    told = {key: str(value) for key, value in {"wall_ns": wall_ns, **args}.items()}
    return {"ph": "X", "pid": 701, "tid": 7, "ts": ts, "dur": dur, "name": "tracekit_clock_anchor", "args": told}


def jax_trace(*events: dict[str, Any]) -> bytes:
    """Return a trace as XLA's profiler writes it: no base, decimals of doubles, an empty event at the end."""
    names = [
        {"ph": "M", "pid": 701, "name": "process_name", "args": {"name": "/host:CPU"}},
        {"ph": "M", "pid": 701, "name": "process_sort_index", "args": {"sort_index": 701}},
        {"ph": "M", "pid": 701, "tid": 7, "name": "thread_name", "args": {"name": "python"}},
    ]
    dot = {"ph": "X", "pid": 701, "tid": 7, "ts": 1000.2709999999999999, "dur": 9.9999999999999995e-07, "name": "dot"}
    text = json.dumps(
        {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": [*names, dot, *events, {}]}
    )
    return gzip.compress(text.encode())


def rank_trace(
    rank: int = 0, *, pid: int = 100, host: str = "h", boot: str | None = "boot", start_us: int = 5_000_000
) -> bytes:
    identity = {"rank": rank, "pid": pid, "host": host, "boot_id": boot, "baseTimeNanoseconds": BASE_NS}
    marker = {"ph": "X", "name": "marker", "pid": pid, "tid": pid, "ts": start_us, "dur": 2000}
    return json.dumps(
        [{"ph": "M", "name": "tracekit_metadata", "pid": pid, "tid": pid, "args": identity}, marker]
    ).encode()


def put(folder: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return str(folder)


def merge(folder: Path, files: dict[str, bytes], **options: Any) -> tuple[MergeReport, dict[str, int]]:
    """Merge; returns the report, and the absolute start of each slice."""
    output = folder / "merged.json"
    report = merge_traces(str(output), [put(folder / "in", files)], overwrite=True, **options)
    assert compile_schema(MERGE_REPORT)(json.loads(json.dumps(report.to_json()))) is None
    return report, starts_in(output)


def starts_in(path: Path) -> dict[str, int]:
    merged = json.loads(path.read_text())
    slices = [event for event in merged["traceEvents"] if event["ph"] == "X"]
    return {event["name"]: merged["baseTimeNanoseconds"] + round(event["ts"] * 1000) for event in slices}


SESSION = "logs/plugins/profile/2026_11_21_16_53_16"
WHOLE = {"rank0.json": rank_trace(), "h.trace.json.gz": jax_trace(), "h.xplane.pb": xplane()}
TWO_RANKS = {"rank0.json": rank_trace(0, pid=100), "rank1.json": rank_trace(1, pid=101), "h.trace.json.gz": jax_trace()}


def test_the_start_in_the_xplane_places_a_trace(tmp_path: Path) -> None:
    files = {name if name == "rank0.json" else f"{SESSION}/{name}": data for name, data in WHOLE.items()}
    report, starts = merge(tmp_path, files, strict=True)
    assert starts == {"marker": BASE_NS + 5_000_000_000, "dot": START_NS + 1_000_271}
    (rank,) = report.ranks
    assert (rank.aligned, rank.error_ns) == (True, 1000)
    assert rank.processes == ["rank 0 · process 100", "rank 0 · XLA /host:CPU"]
    assert "± 1.0 µs, from the start in its xplane.pb" in rank.clock
    assert [item.base_time_ns for item in report.inputs] == [BASE_NS, START_NS]


def test_a_reading_of_the_clock_in_the_trace_places_it_without_the_xplane(tmp_path: Path) -> None:
    anchors = [anchor(50, 8, START_NS + 51_000, rank=0, host="h"), anchor(70, 2, START_NS + 71_500, rank=0, host="h")]
    report, starts = merge(tmp_path, {"rank0.json": rank_trace(), "h.trace.json.gz": jax_trace(*anchors)}, strict=True)
    assert abs(starts["dot"] - START_NS - 1_000_271) <= 1000, "half of the shorter one"
    assert report.ranks[0].error_ns == 2001
    assert "± 2.0 µs, from a reading of the clock in the trace" in report.ranks[0].clock


@given(
    start_ns=st.integers(10**18, 2 * 10**18),
    readings=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6), st.floats(0, 1)), min_size=1, max_size=5),
)
def test_the_start_is_never_farther_off_than_is_said(start_ns: int, readings: list[tuple[int, int, float]]) -> None:
    """Whenever within its slice a clock was read."""
    anchors = [
        (at_ns, dur_ns, {"wall_ns": str(start_ns + at_ns + round(dur_ns * when))}) for at_ns, dur_ns, when in readings
    ]
    found = start_of_anchors(anchors)
    assert found is not None
    assert found.start_ns is not None
    assert abs(found.start_ns - start_ns) <= found.error_ns
    assert found.error_ns <= min(dur_ns for _, dur_ns, _ in readings) // 2 + 1001


@pytest.mark.parametrize(
    ("duration_ns", "args"),
    [
        (5, {}),
        (5, {"wall_ns": "soon"}),
        (5, {"wall_ns": -5}),
        (5, {"wall_ns": "9" * 30}),
        (5, {"wall_ns": 1.5e18}),
        (-1, {"wall_ns": "1790857026000000000"}),
    ],
)
def test_an_anchor_that_cannot_be_read_is_none(duration_ns: int, args: dict[str, Any]) -> None:
    assert start_of_anchors([(5, duration_ns, args)]) is None


@given(st.data())
def test_a_damaged_xplane_tells_nothing_wrong(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """However it is cut or changed, there is an answer, and a cut alone never makes it another time."""
    planes = plane("Task Environment", profile_start_time=START_NS), plane("/host:metadata")
    whole = b"".join(block(1, content) for content in planes)
    path = tmp_path_factory.mktemp("xplane") / "h.xplane.pb"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    trace = str(path.with_name("h.trace.json.gz"))
    assert start_in_xplane(trace).start_ns in (None, START_NS)
    broken = bytearray(whole)
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=5)):
        broken[at] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(broken))
    found = start_in_xplane(trace).start_ns
    assert found is None or 0 < found < 2**63


@pytest.mark.parametrize(
    "beside", [{}, {"h.xplane.pb": xplane(None)}, {"h.xplane.pb": b"\xff"}, {"other.xplane.pb": xplane()}],
    ids=["no xplane", "no start in it", "a damaged one", "one of another trace"],
)  # fmt: skip
def test_a_trace_that_does_not_tell_its_start_is_flagged(tmp_path: Path, beside: dict[str, bytes]) -> None:
    files = {"rank0.json": rank_trace(), "h.trace.json.gz": jax_trace(), **beside}
    report, _ = merge(tmp_path, files)
    assert [rank.aligned for rank in report.ranks] == [False]
    said = "h.trace.json.gz does not tell its clock (no reading of the clock by tracekit, no xplane.pb"
    assert said in report.warnings[0]
    with pytest.raises(MergeError, match="does not tell its clock"):
        merge(tmp_path, files, strict=True)


def test_a_wall_clock_that_was_set_is_followed(tmp_path: Path) -> None:
    """JAX goes by the wall clock, a rank trace by the monotonic one from where both stood when it began."""
    clock = {"wall_ns": BASE_NS + 4_000_000_000, "monotonic_ns": 4_000_000_000, "error_ns": 100}
    step = {"step_ns": 3_600_000_000_000, "monotonic_ns": 4_500_000_000}
    metadata, marker = json.loads(rank_trace())
    metadata["args"]["clock"] = clock
    stepped = {**metadata, "name": "tracekit_clock_step", "args": step}
    started = xplane(START_NS + 3_600_000_000_000)
    report, starts = merge(
        tmp_path, {**WHOLE, "rank0.json": json.dumps([metadata, stepped, marker]).encode(), "h.xplane.pb": started}
    )
    assert starts["dot"] == START_NS + 1_000_271
    assert report.ranks[0].error_ns == 1000 + 100, "that of the rank trace's own reading is in it"


def test_an_xplane_without_its_hosts_is_the_same_else(tmp_path: Path) -> None:
    whole = xplane(host="secret.lan")
    hidden = BytesIO()
    without_hosts(BytesIO(whole), hidden)
    assert b"secret" in whole
    assert hidden.getvalue() + text_field(4, "secret.lan") == whole
    for size in (len(whole) - 1, 1):
        with pytest.raises(ValueError, match=r"cut off|there cannot be"):
            without_hosts(BytesIO(whole[:size]), BytesIO())


def test_the_protobuf_itself_is_no_trace_to_merge_and_the_error_names_what_is(tmp_path: Path) -> None:
    with pytest.raises(
        TraceFormatError, match=r"XLA's profiler \(xplane.pb\), whose trace\.json\.gz is not next to it"
    ):
        merge_traces(str(tmp_path / "merged.json"), [put(tmp_path, {"h.xplane.pb": xplane()}) + "/h.xplane.pb"])


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({"h.xplane.pb": xplane(pid=101)}, "the only one of its process"),
        ({"rank0.json": rank_trace(0, host="g", boot="other")}, "the only one on its host"),
    ],
    ids=["the process in the xplane", "the host in the name"],
)
def test_a_trace_is_of_the_rank_that_its_process_or_host_tells(
    tmp_path: Path, files: dict[str, bytes], source: str
) -> None:
    report, _ = merge(tmp_path, TWO_RANKS | files)
    assert [(item.rank, item.rank_source) for item in report.inputs if item.kind == "xprof"] == [(1, source)]


def test_a_rank_that_nothing_tells_is_asked_for(tmp_path: Path) -> None:
    files = {**TWO_RANKS, "h.xplane.pb": xplane(pid=555)}
    with pytest.raises(MergeError, match=r"does not say its rank.*--rank h\.trace\.json\.gz=N"):
        merge(tmp_path, files)
    report, starts = merge(tmp_path, files, ranks={"h.trace.json.gz": 1})
    assert starts["dot"] == START_NS + 1_000_271
    assert [item.rank for item in report.inputs] == [0, 1, 1]


def test_a_log_directory_of_one_process_merges_alone(tmp_path: Path) -> None:
    files = {f"{number}/h.trace.json.gz": jax_trace() for number in range(2)}
    files |= {f"{number}/h.xplane.pb": xplane(START_NS + number * 10**9) for number in range(2)}
    report, _ = merge(tmp_path, files, strict=True)
    assumed = (0, "assumed, as all inputs are of one process")
    assert [(item.rank, item.rank_source) for item in report.inputs] == [assumed] * 2
    with pytest.raises(MergeError, match=r"does not say its rank.*--rank .*/0/h\.trace\.json\.gz=N"):
        merge(tmp_path, {**files, "1/h.xplane.pb": xplane(pid=101)})


def test_a_process_of_the_rank_that_is_called_701_is_another(tmp_path: Path) -> None:
    """XLA calls every host 701, and in a container a real process may be."""
    files = {"rank0.json": rank_trace(pid=701), "h.trace.json.gz": jax_trace(), "h.xplane.pb": xplane(pid=701)}
    report, _ = merge(tmp_path, files, strict=True)
    assert report.ranks[0].processes == ["rank 0 · process 701", "rank 0 · XLA /host:CPU"]


def test_jax_s_copy_for_perfetto_is_left_out_beside_the_trace(tmp_path: Path) -> None:
    report, _ = merge(tmp_path, {**WHOLE, "perfetto_trace.json.gz": jax_trace()}, strict=True)
    assert [(item.path.rpartition("/")[2], item.harmless) for item in report.omitted] == [
        ("perfetto_trace.json.gz", True)
    ]
    assert len(report.inputs) == 2


def test_events_beyond_the_viewer_s_million_are_told_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J7: JAX leaves them out without a word."""
    assert MOST_EVENTS == 1_000_000
    report, _ = merge(tmp_path, WHOLE)
    assert report.recording_losses == []
    monkeypatch.setattr("tracekit.merge.write.event_counts.MOST_EVENTS", 1)
    report, _ = merge(tmp_path, WHOLE)
    assert [(loss.kind, loss.count) for loss in report.recording_losses] == [("dropped", None)]
    assert "which only the xplane.pb beside it holds" in "\n".join(report.lines())


def test_a_merged_trace_merges_further(tmp_path: Path) -> None:
    once, starts = merge(tmp_path, WHOLE)
    more = put(tmp_path / "more", {"rank1.json": rank_trace(1, pid=101)})
    report = merge_traces(str(tmp_path / "again.json"), [str(tmp_path / "merged.json"), more])
    assert report.ranks[0].processes == once.ranks[0].processes
    assert "± 1.0 µs" in report.ranks[0].clock
    assert starts_in(tmp_path / "again.json")["dot"] == starts["dot"]


@pytest.mark.parametrize("name", ["merged.pftrace", "merged.zip"])
def test_the_other_outputs_are_aligned_too(tmp_path: Path, name: str) -> None:
    report = merge_traces(str(tmp_path / name), [put(tmp_path / "in", WHOLE)], strict=True)
    assert [rank.aligned for rank in report.ranks] == [True]
    if name.endswith(".zip"):
        assert list((report.rewritten or {}).values()) == ["its slices overlap, which viewers drop"]
