"""JSONTraceHandler: names, modes, the form of the file, compression, uploads, and what happens when writing fails."""

from __future__ import annotations

import gzip
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import (
    ConfigError,
    JSONTraceHandler,
    Profiler,
    cyclic_schedule,
    merge_traces,
    validate_trace,
)
from tracekit.handlers.live_file import LiveFile
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from tests.perfetto.engine import Engine


def record(name: Any, *, batches: int = 2, **options: Any) -> tuple[JSONTraceHandler, FakeClock]:
    handler, clock = JSONTraceHandler(name), FakeClock(tick_ns=1)
    options.setdefault("rank", 0)
    with Profiler(handler, run_id="run", clock=clock.clock, flush_interval=3600, **options) as profiler:
        for number in range(batches):
            with profiler.marker("forward", categories=["model"]):
                clock.advance(1_234_567)
            profiler.marker("loss").counter({"train": 0.5})
            profiler.marker("done").instant()
            profiler.step(samples=number)
    return handler, clock


def events(path: Any) -> list[dict[str, Any]]:
    data = Path(path).read_bytes()
    loaded: list[dict[str, Any]] = json.loads(gzip.decompress(data) if str(path).endswith(".gz") else data)
    return loaded


def test_the_file_is_an_array_of_one_event_a_line_that_says_whose_it_is(tmp_path: Path) -> None:
    handler, _ = record(tmp_path / "{run_id}" / "rank{rank}.json")
    assert handler.paths == [str(tmp_path / "run" / "rank0.json")]
    text = (tmp_path / "run" / "rank0.json").read_text("utf-8")
    lines = text.splitlines()
    assert lines[0] == "["
    assert lines[-1] == "]"
    for line in lines[1:-1]:
        json.loads(line.removesuffix(","))
    first = json.loads(lines[1].removesuffix(","))
    assert first["name"] == "tracekit_metadata"
    assert first["args"]["rank"] == 0
    assert first["args"]["run_id"] == "run"
    assert first["args"]["pid"] == os.getpid()
    last = json.loads(lines[-2])
    assert last["name"] == "tracekit_summary"
    assert (last["args"]["slices"], last["args"]["counters"], last["args"]["instants"]) == (4, 2, 2)


def test_async_slices_of_two_ranks_are_drawn_and_stay_apart_when_merged(tmp_path: Path, engine: Engine) -> None:
    for rank in range(2):
        handler = JSONTraceHandler(tmp_path / "in" / "rank{rank}.json")
        with Profiler(handler, rank=rank, world_size=2, run_id="run", record_batches=False) as profiler:
            marker = profiler.marker("copy", categories=["io"])
            first, second = marker.begin(), marker.begin()
            first.end()
            second.end()
            marker.begin()  # never ended, as in a process that is killed
        assert validate_trace(handler.paths[0]).errors == 0
    merged = merge_traces(tmp_path / "merged.json", tmp_path / "in")
    assert validate_trace(merged.output).errors == 0
    with engine.load(merged.output) as trace:
        assert trace.errors() == []
        rows = trace.rows("select name, dur >= 0, count(*) from slice where category = 'io' group by 1, 2 order by 2")
        assert rows == [("copy", 0, 2), ("copy", 1, 4)]
        assert trace.rows("select count(*) from process_track where name = 'copy'")[0][0] >= 2


def test_every_event_has_the_training_time_and_the_real_pid_and_tid(tmp_path: Path) -> None:
    record(tmp_path / "t.json")
    slices = [event for event in events(tmp_path / "t.json") if event["ph"] == "X" and event["name"] == "forward"]
    assert [event["args"] for event in slices] == [{"epoch": 0, "batch": 0}, {"epoch": 0, "batch": 1}]
    assert {event["pid"] for event in slices} == {os.getpid()}
    names = {
        event["tid"]: event["args"]["name"] for event in events(tmp_path / "t.json") if event["name"] == "thread_name"
    }
    assert {names[event["tid"]] for event in slices} == {"MainThread"}
    training_times = [event for event in events(tmp_path / "t.json") if event["name"] == "tracekit_timestamp"]
    assert [event["args"]["batch"] for event in training_times] == [0, 1, 2]
    # As a merge writes them, so that a merge of a merge changes no byte.
    assert {tuple(event) for event in training_times} == {("ph", "name", "pid", "tid", "ts", "args")}


def test_the_file_says_whose_it_is_before_the_first_event_and_what_was_flushed_is_whole_in_it(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with Profiler(JSONTraceHandler(path), rank=0, flush_interval=3600) as profiler:
        assert path.read_text("utf-8").startswith('[\n{"ph":"M","name":"tracekit_metadata"')
        assert list(tmp_path.iterdir()) == [path]
        with profiler.marker("open"):
            with profiler.marker("done"):
                pass
            assert profiler.flush()
            live = path.read_text("utf-8")
        assert live.endswith("},\n")
        names = [(event["ph"], event["name"]) for event in json.loads(live.removesuffix(",\n") + "]")]
        assert ("X", "done") in names
        assert ("B", "open") in names


@pytest.mark.parametrize(("options", "expected"), [({}, "rank"), ({"counts": "global"}, "global")])
def test_the_file_says_whose_samples_and_tokens_its_timestamps_count(
    tmp_path: Path, options: dict[str, str], expected: str
) -> None:
    with Profiler(JSONTraceHandler(tmp_path / "t.json"), rank=0, **options) as profiler:
        assert profiler.counts == expected
        profiler.step(samples=8)
        assert profiler.child_plan().options["counts"] == expected
    assert events(tmp_path / "t.json")[0]["args"]["counts"] == expected
    assert validate_trace(str(tmp_path / "t.json")).counts == {}


def test_with_the_batch_in_its_name_every_window_has_a_file_of_its_own(tmp_path: Path) -> None:
    schedule = cyclic_schedule(wait=1, warmup=0, active=1, repeat=2)
    handler, _ = record(tmp_path / "w{batch}.json.gz", batches=5, schedule=schedule)
    assert [Path(path).name for path in handler.paths] == ["w1.json.gz", "w3.json.gz"]
    for batch, path in zip((1, 3), handler.paths, strict=True):
        found = events(path)
        assert found[0]["name"] == "tracekit_metadata"
        # The end of a window makes a flush of its own, at any moment, which may show the slice as a start and an end.
        forward = [event for event in found if event["name"] == "forward" and event["ph"] in "BX"]
        assert [event["args"]["batch"] for event in forward] == [batch]
        assert "MainThread" in [event["args"]["name"] for event in found if event["name"] == "thread_name"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w1.json.gz", "w3.json.gz"]


def test_a_slice_that_is_open_when_a_window_ends_is_closed_in_its_file_and_goes_on_in_the_next(tmp_path: Path) -> None:
    clock = FakeClock(tick_ns=1)
    handler = JSONTraceHandler(tmp_path / "w{batch}.json")
    schedule = cyclic_schedule(warmup=0, active=1, repeat=0)
    profiler = Profiler(handler, schedule, rank=0, clock=clock.clock, flush_interval=3600, record_batches=False)
    with profiler, profiler.marker("outer"), profiler.marker("middle"):
        for _ in range(2):
            with profiler.marker("inner"):
                clock.advance(1_000)
            profiler.step()
    first, second, rest = (
        handler.paths
    )  # the last batch decided on is one that never came: it holds what was still open
    assert {event["name"] for event in events(rest) if event["ph"] in "BEX"} == {"outer", "middle"}
    for path in (first, second):
        phases = [(event["ph"], event["name"]) for event in events(path) if event["ph"] in "BEX"]
        # The end of a window makes a flush of its own, at any moment, which may show the next one's inner slice open.
        inner = sorted(phase for phase, name in phases if name == "inner")
        assert inner in (["X"], ["B", "E"])
        assert sorted(phase for phase in phases if phase[1] != "inner") == [
            ("B", "middle"), ("B", "outer"), ("E", "middle"), ("E", "outer"),
        ]  # fmt: skip


@pytest.mark.parametrize("name", ["trace.txt", "trace", "trace.gz", "", "x{nope}.json", "x{rank.json", "x{}.json"])
def test_a_name_that_is_wrong_is_refused_at_once(name: str) -> None:
    with pytest.raises(ConfigError, match=r"file name|must be a text"):
        JSONTraceHandler(name)


def test_a_name_that_two_ranks_would_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"same for all 2 ranks; put \{rank\} into it"):
        record(tmp_path / "t.json", world_size=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder", "link", "trace"])
def test_a_temporary_file_that_a_killed_process_left_does_not_block_the_name(tmp_path: Path, kind: str) -> None:
    """Container pids repeat, so the one that left it may have had our pid; it may also be a link to a trace."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    make = {"file": Path.touch, "folder": Path.mkdir, "link": lambda path: path.symlink_to(victim)}
    stale = [tmp_path / f".{name}.{os.getpid()}.tmp" for name in ("t.json", "t.json.gz")]
    for path in stale:
        make.get(kind, lambda path: os.link(victim, path))(path)
    record(tmp_path / "t.json.gz")
    assert len(events(tmp_path / "t.json.gz")) > 5
    assert sorted(tmp_path.iterdir()) == sorted([*stale, victim, tmp_path / "t.json.gz"])
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("left_bytes", [0, 100])
def test_a_file_truncated_in_place_begins_again_and_counts_what_it_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, engine: Engine, left_bytes: int
) -> None:
    path = tmp_path / "t.json"
    with Profiler(JSONTraceHandler(path), rank=0, record_batches=False, flush_interval=3600) as profiler:
        inode = path.stat().st_ino
        with profiler.marker("open"):
            for number in range(200):
                profiler.marker(f"before {number}").instant()
            profiler.flush()
            os.truncate(path, left_bytes)
            for number in range(10):
                profiler.marker(f"after {number}").instant()
            profiler.flush()
            first = json.loads(path.read_bytes().splitlines()[1].removesuffix(b","))
            assert first["name"] == "tracekit_metadata"
    assert path.stat().st_ino == inode
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().startswith(b"[\n")
    found = events(path)
    assert [event["name"] for event in found if event["ph"] == "i"] == [
        "tracekit.gap", *(f"after {number}" for number in range(10)),
    ]  # fmt: skip
    assert [event["name"] for event in found if event["ph"] in "BX"] == ["open"]
    assert found[-1]["args"]["dropped"] == {"events of files that were truncated": 200}
    assert profiler.stats.dropped == {"events of files that were truncated": 200}
    assert caplog.text.count("was truncated while it was written; its events (200) are counted as lost") == 1
    assert not validate_trace(path).problems
    with engine.load(path) as trace:
        assert trace.rows("select count(*) as n from slice where name like 'after%'") == [(10,)]


def test_a_file_truncated_between_the_check_and_the_write_begins_again_at_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    real_write = os.write

    def write(descriptor: int, data: Any) -> int:
        monkeypatch.setattr(os, "write", real_write)
        os.truncate(path, 0)
        return real_write(descriptor, data)

    with Profiler(JSONTraceHandler(path), rank=0, record_batches=False, flush_interval=3600) as profiler:
        profiler.marker("before").instant()
        profiler.flush()
        profiler.marker("into the truncated file").instant()
        monkeypatch.setattr(os, "write", write)
        profiler.flush()
        profiler.marker("after").instant()
    assert [event["name"] for event in events(path) if event["ph"] == "i"] == ["tracekit.gap", "after"]
    assert profiler.stats.dropped == {"events of files that were truncated": 2}


def test_a_truncated_file_on_a_full_disk_begins_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"

    def full(descriptor: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    with Profiler(JSONTraceHandler(path), rank=0, record_batches=False, flush_interval=3600) as profiler:
        profiler.marker("before").instant()
        profiler.flush()
        os.truncate(path, 0)
        profiler.marker("lost").instant()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            profiler.flush()
        assert path.read_bytes() == b""
        profiler.marker("after").instant()
    found = events(path)
    assert found[0]["name"] == "tracekit_metadata"
    assert [event["name"] for event in found if event["ph"] == "i"] == ["tracekit.gap", "tracekit.gap", "after"]
    assert profiler.stats.dropped == {"events of files that were truncated": 1, "events that could not be written": 1}


def test_a_truncated_file_is_not_filled_with_zeros_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither cutting back a short write nor the count in the head may write beyond the end of a truncated file."""
    path = tmp_path / "t.json"
    file = LiveFile(path, b"[\nhead,\n", str(path))
    file.write(b"a record,\n")

    def short(descriptor: int, data: Any) -> int:
        os.truncate(path, 0)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        with pytest.raises(OSError, match="No space"):
            file.write(b"more,\n")
    file.overwrite(2, b"HEAD")
    assert path.read_bytes() == b""
    assert file.truncated
    file.restart(b"[\nanew,\n")
    file.overwrite(2, b"ANEW")
    file.finish(b"end,\n")
    assert path.read_bytes() == b"[\nANEW,\nend\n]\n"
