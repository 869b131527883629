"""Long runs of JSONTraceHandler: when a new file begins, what it is called, what stays, and what happens when that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.processes import wait_until
from tests.unit.handlers.test_json_trace_handler import events
from tracekit import (
    ConfigError,
    EventBatch,
    JSONTraceHandler,
    Profiler,
    Recording,
    Time,
    Timestamp,
    cyclic_schedule,
)
from tracekit.clock import Anchor
from tracekit.distributed import detect_process
from tracekit.events import BEGIN, END, INSTANT, Label, Timestamps, Track
from tracekit.handlers.rank_trace import UNWRITTEN
from tracekit.handlers.rotation import Retention
from tracekit.testing import FakeClock


def record(
    handler: JSONTraceHandler, *, epochs: int = 2, batches: int = 3, clock: FakeClock | None = None, **options: Any
) -> None:
    """Every batch takes a second and is flushed; a marker spans each epoch."""
    clock = clock or FakeClock()
    options.setdefault("rank", 0)
    with Profiler(handler, run_id="run", clock=clock.clock, flush_interval=3600, **options) as profiler:
        for _ in range(epochs):
            with profiler.marker("epoch"):
                for _ in range(batches):
                    with profiler.marker("work"):
                        clock.advance(999_000_000)
                    profiler.flush()
                    clock.advance(1_000_000)
                    profiler.step()
            profiler.next_epoch()


def names(handler: JSONTraceHandler) -> list[str]:
    return [Path(path).name for path in handler.paths]


def works(handler: JSONTraceHandler) -> list[list[int]]:
    """Return the batches whose work is in each file.

    The end of an epoch makes a flush of its own, at any moment, which may show a slice that is open then.
    """
    return [
        sorted({event["args"]["batch"] for event in events(path) if event["name"] == "work"}) for path in handler.paths
    ]


@pytest.mark.parametrize(
    ("rotation", "wanted"),
    [
        ({"rotate_bytes": 1}, [[0], [1], [2], [3], [4], [5]]),
        ({"rotate_seconds": 2}, [[0, 1], [2, 3], [4, 5]]),
        ({"rotate_seconds": 2.5}, [[0, 1, 2], [3, 4, 5]]),
        ({"rotate_every": "2ba"}, [[0, 1], [2, 3], [4, 5]]),
        ({"rotate_every": Time(8, "sp")}, [[0, 1, 2, 3, 4, 5]]),
        ({"rotate_every": "1ep"}, [[0, 1, 2], [3, 4, 5]]),
        ({"rotate_seconds": 4, "rotate_every": "3ba"}, [[0, 1, 2], [3, 4, 5]]),
    ],
)
def test_a_new_file_begins_when_one_is_full(tmp_path: Path, rotation: dict[str, Any], wanted: list[list[int]]) -> None:
    handler = JSONTraceHandler(tmp_path / "p{part}.json", **rotation)
    record(handler)
    assert [found for found in works(handler) if found] == wanted  # the end of an epoch may begin one more
    assert names(handler) == [f"p{number}.json" for number in range(len(names(handler)))]


def test_every_file_says_by_itself_whose_it_is_and_which_threads_and_what_time(tmp_path: Path) -> None:
    handler = JSONTraceHandler(tmp_path / "p{part}.json", rotate_every="1ba")
    record(handler)
    heads = [events(path) for path in handler.paths]
    assert len(heads) > 4
    for number, found in enumerate(heads):
        assert found[0] == heads[0][0]
        assert [event["args"]["name"] for event in found if event["name"] == "process_name"] == ["rank 0"]
        assert "MainThread" in [event["args"]["name"] for event in found if event["name"] == "thread_name"]
        assert any(event["name"] == "tracekit_timestamp" for event in found)
        last = number == len(heads) - 1
        assert any(event["name"] == "tracekit_summary" for event in found) == last


def test_a_long_silence_makes_no_empty_files(tmp_path: Path) -> None:
    clock, handler = FakeClock(), JSONTraceHandler(tmp_path / "p{part}.json", rotate_seconds=1)
    with Profiler(handler, rank=0, clock=clock.clock, flush_interval=3600, record_batches=False) as profiler:
        for _ in range(3):
            clock.advance(60_000_000_000)
            profiler.marker("i").instant()
            profiler.flush()
            profiler.flush()
    assert [sum(event["ph"] == "i" for event in events(path)) for path in handler.paths] == [1, 1, 1]


def test_files_are_packed_as_they_are_finished(tmp_path: Path) -> None:
    clock, handler = FakeClock(), JSONTraceHandler(tmp_path / "p{part}.json.gz", rotate_bytes=1)
    with Profiler(handler, rank=0, clock=clock.clock, flush_interval=3600, record_batches=False) as profiler:
        for _ in range(3):
            profiler.marker("i").instant()
            profiler.flush()
        wait_until(lambda: sorted(path.name for path in tmp_path.iterdir()) == ["p0.json.gz", "p1.json.gz", "p2.json"])
    assert names(handler) == ["p0.json.gz", "p1.json.gz", "p2.json.gz"]
    assert [sum(event["ph"] == "i" for event in events(path)) for path in handler.paths] == [1, 1, 1]


def test_windows_rotate_as_well_and_their_parts_are_counted_through(tmp_path: Path) -> None:
    handler = JSONTraceHandler(tmp_path / "b{batch}-p{part}.json", rotate_bytes=1)
    record(handler, epochs=1, batches=6, schedule=cyclic_schedule(wait=1, warmup=0, active=2, repeat=0))
    found = [batch for part in works(handler) for batch in part]
    assert list(dict.fromkeys(found)) == [1, 2, 4, 5]  # a slice that is open when the writer looks is in two parts
    assert [name.split("-")[1] for name in names(handler)] == [
        f"p{number}.json" for number in range(len(names(handler)))
    ]


def test_the_default_name_counts_parts_when_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    handler = JSONTraceHandler(rotate_every="1ep")
    record(handler)
    assert handler.paths[:2] == [f"traces/run/rank0-attempt0-part{number:04d}.json" for number in range(2)]


def test_a_start_that_is_told_late_does_not_move_the_cut_back(tmp_path: Path) -> None:
    handler = JSONTraceHandler(tmp_path / "p{part}.json", rotate_every="1ba")
    process = detect_process(environ={})
    anchor = Anchor(wall_ns=1_800_000_000_000_000_000, monotonic_ns=0, error_ns=0)
    handler.open(Recording(process, anchor, Timestamp()))
    timestamps = Timestamps(Timestamp())
    tables = ([Label("early"), Label("late"), Label("i")], [Track(0, ""), Track(1, "one"), Track(2, "two")])

    def deliver(*records: Any) -> None:
        handler.process_events(EventBatch(records, *tables, timestamps, anchor.offset_ns))

    deliver(0, 100, BEGIN, 1)
    deliver(1, 50, BEGIN, 2)
    timestamps.append(150, Timestamp(batch=1))
    deliver(2, 200, INSTANT, 1, 1, 250, END, 2, 0, 300, END, 1)
    handler.close()
    base_ns = round(min(event["ts"] for event in events(handler.paths[0]) if event["ph"] in "BE") * 1000)
    edges = [
        [
            (event["ph"], event["name"], round(event["ts"] * 1000) - base_ns + 50)
            for event in events(path)
            if event["ph"] in "BE"
        ]
        for path in handler.paths
    ]
    assert edges == [
        [("B", "early", 100), ("B", "late", 50), ("E", "late", 100), ("E", "early", 100)],
        [("B", "early", 100), ("B", "late", 100), ("E", "late", 250), ("E", "early", 300)],
    ]


def test_windows_of_one_name_get_a_number(tmp_path: Path) -> None:
    handler = JSONTraceHandler(tmp_path / "ep{epoch}.json")
    record(handler, epochs=1, batches=6, schedule=cyclic_schedule(wait=1, warmup=0, active=1, repeat=0))
    assert names(handler) == ["ep0.json", "ep0-2.json", "ep0-3.json"]
    assert works(handler) == [[1], [3], [5]]


def test_events_of_a_window_without_a_file_are_counted_and_what_is_open_goes_on_in_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, handler = FakeClock(tick_ns=1), JSONTraceHandler(tmp_path / "w" / "b{batch}.json")
    with Profiler(
        handler, cyclic_schedule(warmup=0, active=1, repeat=0), rank=0, clock=clock.clock, flush_interval=3600,
        record_batches=False,
    ) as profiler:  # fmt: skip
        with profiler.marker("around"):
            for number in range(20):
                if number == 5:
                    (tmp_path / "w").rename(tmp_path / "away")
                    (tmp_path / "w").write_text("")
                if number == 18:
                    (tmp_path / "w").unlink()
                profiler.marker("i").instant()
                profiler.flush()
                profiler.step()
        assert not profiler.stats.failures
    assert caplog.text.count("events are lost and counted until it can") == 1
    assert "b17.json" not in names(handler)
    path = str(tmp_path / "w" / "b18.json")
    assert path in handler.paths
    assert [event["ph"] for event in events(path) if event["name"] == "around"] == ["B", "E"]
    assert handler.losses()[UNWRITTEN] == 13


def test_what_is_told_between_two_windows_is_in_the_next_file(tmp_path: Path) -> None:
    clock, handler = FakeClock(), JSONTraceHandler(tmp_path / "b{batch}.json")
    with Profiler(
        handler, cyclic_schedule(warmup=0, active=1, repeat=0), rank=0, clock=clock.clock, flush_interval=3600
    ) as profiler:
        profiler.record_chrome_json_trace_file("torch.json")
        profiler.step()
    (path,) = handler.paths
    assert [event["args"]["file"] for event in events(path) if event["name"] == "tracekit_companion"] == ["torch.json"]


def test_all_files_together_stay_below_the_cap_while_they_are_written(tmp_path: Path) -> None:
    clock = FakeClock()
    handler = JSONTraceHandler(tmp_path / "p{part}.json", rotate_bytes=2_000, max_total_bytes=9_000)
    largest = 0
    with Profiler(handler, rank=0, clock=clock.clock, flush_interval=3600) as profiler:
        for _ in range(100):
            profiler.marker("i").instant()
            profiler.flush()
            largest = max(largest, sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert 7_000 < largest <= 9_000
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 9_000
    assert len(handler.paths) >= 3


def test_windows_are_kept_by_number_as_well(tmp_path: Path) -> None:
    handler = JSONTraceHandler(tmp_path / "b{batch}.json.gz", num_traces_to_keep=2)
    record(handler, epochs=1, batches=9, schedule=cyclic_schedule(wait=1, warmup=0, active=1, repeat=0))
    assert names(handler) == ["b5.json.gz", "b7.json.gz"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names(handler)


def test_the_newest_file_stays_however_low_the_limit_is(tmp_path: Path) -> None:
    retention = Retention(None, 1)
    for name in ("a", "b"):
        (tmp_path / name).write_text("12345")
        retention.add(tmp_path / name, name)
    assert retention.make_room() == ["a"]
    assert retention.make_room() == []
    assert retention.make_room(live_bytes=0) == ["b"]  # it is no longer the newest


def test_a_file_that_somebody_moved_or_that_cannot_be_removed_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retention = Retention(1, None)
    (tmp_path / "folder").mkdir()
    for name in ("gone", "folder", "a", "b"):
        path = tmp_path / name
        if name != "folder":
            path.write_text("12345")
        retention.add(path, name)
    (tmp_path / "gone").unlink()
    assert retention.make_room() == ["a"]
    assert retention.removed == {"files": 1, "bytes": 5}
    assert "folder should be removed and cannot be" in caplog.text
    retention.add(tmp_path / "never was", "never was")
    assert retention.make_room(coming=1, live_bytes=0) == ["b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rotate_bytes": 0}, "rotate_bytes must be a whole number from 1 on, not 0"),
        ({"rotate_seconds": -1}, "rotate_seconds must be a number of seconds above 0, not -1"),
        ({"rotate_every": "1h"}, "rotate_seconds= goes by time"),
        ({"rotate_every": "0.5dur"}, "rotate_every must count"),
        ({"rotate_every": "soon"}, "rotate_every: "),
        ({"rotate_every": 5}, "rotate_every: "),
        ({"num_traces_to_keep": -1, "rotate_bytes": 9}, "num_traces_to_keep must be a whole number from 1 on, not -1"),
        ({"max_total_bytes": 0, "rotate_bytes": 9}, "max_total_bytes must be"),
        ({"max_total_bytes": 10, "rotate_bytes": 9}, "at least twice rotate_bytes"),
        ({"num_traces_to_keep": 2}, "need several files"),
        ({"max_total_bytes": 2}, "need several files"),
        ({"filename": "t.json", "rotate_bytes": 9}, r"put \{part\} into it"),
        ({"filename": "t{batch}.json", "rotate_seconds": 9}, r"put \{part\} into it"),
        ({"filename": "memory://b/t.json", "num_traces_to_keep": 2}, "are for local files"),
        ({"filename": "memory://b/t.json", "spool_bytes": 0}, "spool_bytes must be"),
        ({"filename": "t{dump}.json"}, r"no field \{dump\}"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        JSONTraceHandler(**arguments)
