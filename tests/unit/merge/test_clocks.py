"""Which clock places each rank of a merge, and what the report says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.collective_traces import BASE_NS, MS, SECOND, START_NS, Done, irregular, seen, torch_trace, write_ranks
from tests.flight_dumps import as_pickle, dump, entry
from tests.merged_tables import rank_of_pid
from tests.unit.merge.test_inputs import event, meta, rank_trace
from tracekit import ClockOffset, JSONTraceHandler, Profiler
from tracekit.check.schemas import MERGE_REPORT, compile_schema
from tracekit.errors import ConfigError, MergeError
from tracekit.formats.decimal_time import format_us, parse_us
from tracekit.handlers.rank_trace import offset_metadata
from tracekit.merge import Selection, merge_traces
from tracekit.merge.align import measure
from tracekit.testing import FakeClock
from tracekit.traces.collectives.collector import read_collectives

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.merge import MergeReport

WITHIN_NS = 10_000
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MONOTONIC_NS = 5_000 * SECOND


@pytest.fixture
def merge(tmp_path: Path) -> Any:
    """Write files by name, merge them, and return the merged trace and the report."""

    def _merge(files: dict[str, Any], **options: Any) -> tuple[dict[str, Any], MergeReport]:
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for name, value in files.items():
            (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
        output = folder / "out.merged.json"
        report = merge_traces(str(output), [str(folder / name) for name in files], **options)
        assert compile_schema(MERGE_REPORT)(json.loads(json.dumps(report.to_json()))) is None
        return json.loads(output.read_text(), parse_float=str), report

    return _merge


def starts(merged: dict[str, Any]) -> dict[str, int]:
    """Return when each slice begins, ns since the epoch."""
    base = int(merged.get("baseTimeNanoseconds", 0))
    return {
        found["name"]: base + (parse_us(str(found["ts"]).encode()) or 0)
        for found in merged["traceEvents"]
        if found["ph"] == "X"
    }


def sources(report: MergeReport) -> list[str]:
    return [rank.source for rank in report.ranks]


# ---- one clock --------------------------------------------------------------------------------------------------------


def recorded(
    rank: int,
    *,
    wall_ns: int = START_NS,
    monotonic_ns: int = MONOTONIC_NS,
    boot: str | None = "b1",
    host: str = "a",
    at_ns: int = MS,
    more: Any = (),
    **metadata: Any,
) -> list[Any]:
    """Return a rank trace that began at a time, with one slice."""
    return rank_trace(
        *more,
        event(f"slice {rank}", (wall_ns + at_ns - BASE_NS) / 1000, pid=100 + rank),
        rank=rank,
        pid=100 + rank,
        host=host,
        boot_id=boot,
        clock={"wall_ns": wall_ns, "monotonic_ns": monotonic_ns, "error_ns": 50},
        **metadata,
    )


def test_ranks_of_one_boot_have_one_clock(merge: Any) -> None:
    merged, report = merge({"0.json": recorded(0), "1.json": recorded(1)}, strict=True)
    assert sources(report) == ["reference", "shared"]
    assert [rank.clock for rank in report.ranks] == ["wall clock; same host and boot"] * 2
    assert [rank.error_ns for rank in report.ranks] == [0, 0]
    assert starts(merged) == {"slice 0": START_NS + MS, "slice 1": START_NS + MS}


def test_a_wall_clock_that_was_set_between_two_starts_moves_the_second_back(merge: Any) -> None:
    """Rank 1 begins a second after rank 0, by a wall clock that was set an hour forth meanwhile."""
    late = recorded(1, wall_ns=START_NS + 3601 * SECOND, monotonic_ns=MONOTONIC_NS + SECOND)
    merged, report = merge({"0.json": recorded(0), "1.json": late})
    assert starts(merged)["slice 1"] == START_NS + SECOND + MS
    assert report.ranks[1].offset_ns == -3600 * SECOND
    assert report.ranks[1].clock.endswith("-3600.000000 s: the wall clock was set in between")
    merged, _ = merge({"0.json": recorded(0), "1.json": late}, align="none")
    assert starts(merged)["slice 1"] == START_NS + 3601 * SECOND + MS


@pytest.mark.skipif(not BOOT_ID.exists(), reason="this system does not tell its boot")
@pytest.mark.parametrize("set_ns", [-3600 * SECOND, 3600 * SECOND, 0])
def test_ranks_recorded_before_and_after_the_wall_clock_was_set_fit_together(
    merge: Any, tmp_path: Path, set_ns: int
) -> None:
    """Ranks of one host, one of which begins after the step."""
    fake = FakeClock(wall_ns=START_NS)
    files = {}
    for rank in (0, 1):
        handler = JSONTraceHandler(tmp_path / "recorded{rank}.json")
        with Profiler(handler, clock=fake.clock, rank=rank, record_batches=False) as profiler:
            with profiler.marker(f"slice {rank}"):
                fake.advance(1000)
            fake.advance(SECOND)
        fake.wall_ns += set_ns
        files[f"{rank}.json"] = (tmp_path / f"recorded{rank}.json").read_text()
    merged, report = merge(files, strict=True)
    found = starts(merged)
    assert SECOND <= found["slice 1"] - found["slice 0"] <= SECOND + MS
    assert report.ranks[1].offset_ns == -set_ns


def test_torch_traces_follow_the_wall_clock_over_a_step_and_the_rank_trace_says_when(merge: Any) -> None:
    step = meta("tracekit_clock_step", 100, 100, step_ns=-60 * SECOND, monotonic_ns=MONOTONIC_NS + 10 * SECOND)
    torch = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 0},
        "host_name": "a",
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": [event("kernel", (START_NS + 20 * SECOND - 60 * SECOND - BASE_NS) / 1000)],
    }
    merged, report = merge({"0.json": recorded(0, more=[step]), "torch.json": torch}, strict=True)
    assert starts(merged) == {"slice 0": START_NS + MS, "kernel": START_NS + 20 * SECOND}
    assert len(report.ranks) == 1


def test_a_torch_trace_follows_the_clock_of_the_attempt_whose_process_it_shows(merge: Any) -> None:
    """The host of both attempts was started anew between them; a step of the second clock tells them apart."""
    step = meta("tracekit_clock_step", 200, 200, step_ns=-60 * SECOND, monotonic_ns=MONOTONIC_NS + 10 * SECOND)
    second = rank_trace(
        step,
        event("second", (START_NS - BASE_NS) / 1000, pid=200),
        rank=0,
        pid=200,
        host="a",
        boot_id="b2",
        attempt=1,
        clock={"wall_ns": START_NS, "monotonic_ns": MONOTONIC_NS, "error_ns": 50},
    )
    seen_ns = START_NS + 20 * SECOND - 60 * SECOND
    placed = {}
    for pid in (100, 200):
        kernel = event("kernel", (seen_ns - BASE_NS) / 1000, pid=pid)
        torch = {
            "schemaVersion": 1,
            "distributedInfo": {"rank": 0},
            "baseTimeNanoseconds": BASE_NS,
            "traceEvents": [kernel],
        }
        merged, _ = merge({"0.json": recorded(0), "1.json": second, "torch.json": torch})
        placed[pid] = starts(merged)["kernel"]
    assert placed == {100: seen_ns, 200: START_NS + 20 * SECOND}


def test_other_boots_and_other_hosts_are_other_clocks(merge: Any) -> None:
    _, report = merge(
        {"0.json": recorded(0), "1.json": recorded(1, boot="b2"), "2.json": recorded(2, boot="b3", host="c")}
    )
    assert sources(report) == ["reference", "wall", "wall"]
    assert [rank.aligned for rank in report.ranks] == [True, False, False]
    assert [rank.error_ns for rank in report.ranks] == [0, None, None]
    assert "clock of ranks 1-2: NOT ALIGNED: wall clock; different hosts: error unknown" in report.lines()
    assert [warning.split(":")[0] for warning in report.warnings] == [
        "ranks 1-2 are not aligned with the others, their wall clock places them"
    ]


def test_hosts_that_are_all_called_localhost_are_not_one(merge: Any) -> None:
    done = irregular(12)
    files = {
        f"{rank}.json": torch_trace(rank, done, seen(rank * 137 * MS), host="localhost.localdomain") for rank in (0, 1)
    }
    _, report = merge(files, strict=True)
    assert sources(report) == ["reference", "collectives"]


def test_wall_clocks_are_trusted_where_the_user_says_so(merge: Any) -> None:
    files = {"0.json": recorded(0), "1.json": recorded(1, boot="b2", host="c")}
    with pytest.raises(MergeError, match="rank 1 is not aligned"):
        merge(files, strict=True)
    _, report = merge(files, strict=True, align="wall")
    assert (sources(report), report.warnings) == (["reference", "wall"], [])
    assert "clock of rank 1: wall clock; different hosts: error unknown" in report.lines()
    _, report = merge(files, strict=True, align="none")
    assert sources(report) == ["none", "none"]


# ---- clock exchanges --------------------------------------------------------------------------------------------------


def exchange(
    rank: int, at_ns: int, monotonic_offset_ns: int, offset_ns: int, error_ns: int = 60_000, **more: Any
) -> Any:
    """Return what ClockSync writes of one measurement."""
    measured = ClockOffset(
        monotonic_ns=at_ns,
        offset_ns=offset_ns,
        monotonic_offset_ns=monotonic_offset_ns,
        error_ns=error_ns,
        round_trips=8,
        reference_rank=0,
        reference_boot_id="b1",
    )
    name, args = offset_metadata(measured)
    return meta(name, 100 + rank, 100 + rank, **{**args, **more})


def away(
    rank: int, boot: str, host: str, *, wall_off_ns: int, drift_ppm: int = 0, minutes: int = 3, **more: Any
) -> list[Any]:
    """Return the rank trace of a host whose monotonic clock shows 1000 s less, and whose wall clock is off."""
    found = []
    for minute in range(minutes):
        drifted = minute * 60 * drift_ppm * 1000
        found.append(
            exchange(
                rank,
                MONOTONIC_NS - 1000 * SECOND + minute * 60 * SECOND,
                1000 * SECOND + drifted,
                -wall_off_ns + drifted,
                **more,
            )
        )
    return recorded(
        rank,
        wall_ns=START_NS + wall_off_ns,
        monotonic_ns=MONOTONIC_NS - 1000 * SECOND,
        boot=boot,
        host=host,
        more=found,
    )


def test_exchanges_place_ranks_of_other_hosts(merge: Any) -> None:
    files = {
        "0.json": recorded(0),
        "1.json": away(1, "b2", "c", wall_off_ns=137 * MS),
        "2.json": recorded(
            2, wall_ns=START_NS + 137 * MS, monotonic_ns=MONOTONIC_NS - 1000 * SECOND, boot="b2", host="c"
        ),
    }
    merged, report = merge(files, strict=True)
    assert sources(report) == ["reference", "sync", "sync"]
    assert [rank.offset_ns for rank in report.ranks] == [0, -137 * MS, -137 * MS]
    assert [rank.error_ns for rank in report.ranks] == [0, 60_000, 60_000]
    assert set(starts(merged).values()) == {START_NS + MS}
    assert "clock of ranks 1-2: -137.000 ms ± 60.0 µs, from 3 clock exchanges" in report.lines()
    for align in ("collectives", "wall"):
        _, report = merge(files, align=align)
        assert sources(report)[1] == "wall"


def test_exchanges_with_a_rank_that_is_not_there_place_the_others_to_each_other(merge: Any) -> None:
    files = {
        "1.json": away(1, "b2", "c", wall_off_ns=137 * MS),
        "2.json": away(2, "b3", "d", wall_off_ns=-20 * MS),
    }
    merged, report = merge(files, strict=True)
    assert sources(report) == ["reference", "sync"]
    assert report.ranks[1].offset_ns == 157 * MS
    assert report.ranks[1].error_ns == 120_000
    assert set(starts(merged).values()) == {START_NS + 137 * MS + MS}


def test_a_drift_moves_every_event_by_what_was_measured_then(merge: Any) -> None:
    """50 ppm over an hour: durations and events in between follow the line."""
    far = away(1, "b2", "c", wall_off_ns=0, drift_ppm=50, minutes=61)
    hour_us = (START_NS + 3600 * SECOND - BASE_NS) / 1000
    far.append(event("late", hour_us, 1_000_000, pid=101))
    far.append(event("touches", hour_us + 1_000_000, 5, pid=101))
    first = recorded(0)
    first.append(event("long", hour_us, 5, pid=100))
    merged, report = merge({"0.json": first, "1.json": far}, strict=True)
    found = starts(merged)
    assert abs(found["late"] - (START_NS + 3600 * SECOND + 180 * MS)) <= 60_000
    assert found["slice 0"] == START_NS + MS
    durations = {one["name"]: parse_us(str(one["dur"]).encode()) for one in merged["traceEvents"] if one["ph"] == "X"}
    assert durations["late"] == SECOND + 50_000
    assert found["late"] + durations["late"] == found["touches"]
    assert report.ranks[1].drift_ppm == pytest.approx(50, abs=0.1)
    assert ", drift +50.0" in report.ranks[1].clock


def test_exchange_without_an_error_is_a_measurement(merge: Any) -> None:
    files = {"0.json": recorded(0), "1.json": away(1, "b2", "c", wall_off_ns=137 * MS, error_ns=0)}
    _, report = merge(files, strict=True)
    assert sources(report) == ["reference", "sync"]
    assert report.ranks[1].error_ns == 0


def test_what_is_no_measurement_is_not_used(merge: Any) -> None:
    bad = [
        exchange(1, 1, 2, 3, error_ns=-1),
        exchange(1, 1, 2, 3, round_trips=0),
        exchange(1, 1, 2, 3, monotonic_ns="1"),
        meta("tracekit_clock_offset", 101, 101),
    ]
    files = {"0.json": recorded(0), "1.json": recorded(1, boot="b2", host="c", more=bad)}
    _, report = merge(files)
    assert sources(report) == ["reference", "wall"]


# ---- collectives ------------------------------------------------------------------------------------------------------


def torch_files(done: list[Done], clocks: list[Callable[[int], int]], **options: Any) -> dict[str, str]:
    return {f"rank{rank}.json": torch_trace(rank, done, clock, **options) for rank, clock in enumerate(clocks)}


OFFSETS = [0, 3 * SECOND + 1234, -SECOND, 40_000]


def test_the_ends_of_collectives_place_every_rank(merge: Any) -> None:
    done = irregular(20, members=range(4))
    for at, one in enumerate(done):
        one.waits_ns = {at % 4: 900_000}
        one.late_ns = {(at + 1) % 4: 2_000}
    merged, report = merge(torch_files(done, [seen(offset) for offset in OFFSETS]), strict=True)
    assert sources(report) == ["reference"] + ["collectives"] * 3
    assert not [found for found in merged["traceEvents"] if found["ph"] in "stfC"]  # nobody asked for arrows
    for rank, offset in zip(report.ranks, OFFSETS, strict=True):
        assert abs(rank.offset_ns + offset) <= WITHIN_NS
        assert abs(rank.offset_ns + offset) <= rank.error_ns <= 2 * WITHIN_NS
    assert report.causality is not None
    assert (report.causality.checked, report.causality.violations) == (20, 0)
    assert "order of 20 collectives: true on all ranks" in report.lines()


def test_groups_of_some_ranks_are_solved_over_each_other(merge: Any) -> None:
    """0-1 and 2-3 never meet, but 1-2 do."""
    done = [
        *irregular(12, members=(0, 1), group="tp0"),
        *irregular(12, members=(2, 3), group="tp1"),
        *irregular(12, members=(1, 2), group="pp", gap_ns=4 * MS),
    ]
    _, report = merge(torch_files(done, [seen(offset) for offset in OFFSETS]), strict=True)
    for rank, offset in zip(report.ranks, OFFSETS, strict=True):
        assert abs(rank.offset_ns + offset) <= WITHIN_NS
    assert report.ranks[3].clock.endswith("from the ends of 12 collectives, through 2 other clocks")
    assert 3 * 7_000 <= report.ranks[3].error_ns < 3 * 7_000 + 300


def test_ranks_without_a_way_to_the_first_stay_together_and_are_flagged(merge: Any) -> None:
    done = [*irregular(12, members=(0, 1), group="a"), *irregular(12, members=(2, 3), group="b")]
    merged, report = merge(torch_files(done, [seen(offset) for offset in OFFSETS]))
    assert [rank.aligned for rank in report.ranks] == [True, True, False, False]
    assert "ranks 2-3 are not aligned" in report.warnings[0]
    assert "only ranks 2-3 are aligned with each other" in report.warnings[0]
    base = int(merged["baseTimeNanoseconds"])
    ranks = rank_of_pid(merged)
    ends: dict[int, list[int]] = {}
    for found in merged["traceEvents"]:
        if found.get("cat") == "kernel":
            end = base + (parse_us(str(found["ts"]).encode()) or 0) + (parse_us(str(found["dur"]).encode()) or 0)
            ends.setdefault(ranks[found["pid"]], []).append(end)
    assert all(abs(third - second) <= WITHIN_NS for second, third in zip(ends[2], ends[3], strict=True))


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "gather", "scatter", "send"])
def test_what_does_not_synchronise_says_nothing(merge: Any, kind: str) -> None:
    _, report = merge(torch_files(irregular(20, kind=kind), [seen(0), seen(SECOND)]))
    assert sources(report) == ["reference", "wall"]


def test_sequence_numbers_tell_apart_what_has_a_period(merge: Any) -> None:
    """The trap: rank 1 has recorded from the 5th on, and one is like the other."""
    done = [Done(START_NS + number * 10 * MS, sequence=number) for number in range(40)]
    files = torch_files(done[:30], [seen(0)], steps=False) | {
        "rank1.json": torch_trace(1, done[5:], seen(SECOND), steps=False)
    }
    _, report = merge(files, strict=True)
    assert abs(report.ranks[1].offset_ns + SECOND) <= WITHIN_NS
    for one in done:
        one.sequence = None
    files = torch_files(done[:30], [seen(0)], steps=False) | {
        "rank1.json": torch_trace(1, done[5:], seen(SECOND), steps=False)
    }
    _, report = merge(files)
    assert not report.ranks[1].aligned
    assert "fit at more than one offset (ranks 0 and 1)" in report.warnings[0]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_few_collectives_with_numbers_place_a_rank_within_a_wide_bound(merge: Any, count: int) -> None:
    done = irregular(count)
    for number, one in enumerate(done):
        one.sequence, one.waits_ns, one.late_ns = number, {number % 2: 3 * MS}, {1: 5_000}
    _, report = merge(torch_files(done, [seen(), seen(SECOND)]), strict=True)
    assert sources(report) == ["reference", "collectives"]
    assert abs(report.ranks[1].offset_ns + SECOND) <= report.ranks[1].error_ns < 4 * MS


def test_the_ranks_of_a_host_are_moved_as_one(merge: Any) -> None:
    """Only rank 2 of host c is in a group with rank 0; rank 3 and the rank trace of rank 2 go with it."""
    done = irregular(16, members=(0, 2))
    files: dict[str, Any] = {
        "torch0.json": torch_trace(0, done, seen(), host="a"),
        "torch2.json": torch_trace(2, done, seen(137 * MS), host="c"),
        "torch3.json": torch_trace(3, [Done(START_NS, members=(3,))], seen(137 * MS), host="c"),
        "2.json": recorded(2, wall_ns=START_NS + 137 * MS, boot="b2", host="c"),
    }
    merged, report = merge(files, strict=True)
    assert [rank.offset_ns for rank in report.ranks] == [0, -137 * MS, -137 * MS]
    assert starts(merged)["slice 2"] == START_NS + MS


def test_a_short_window_places_a_long_recording_and_the_error_says_how_long(merge: Any) -> None:
    """In the window the clocks are 20 ms apart for sure; a quarter of an hour away from it, by as much as clocks drift."""
    done = irregular(16, members=(0, 1))
    long_ns = 900 * SECOND
    files: dict[str, Any] = {
        "torch0.json": torch_trace(0, done, seen(), host="a"),
        "torch1.json": torch_trace(1, done, seen(20 * MS), host="c"),
        "1.json": recorded(1, wall_ns=START_NS - long_ns + 20 * MS, boot="b2", host="c"),
    }
    files["1.json"].append(event("late", (START_NS + long_ns - BASE_NS) / 1000, pid=101))
    merged, report = merge(files, strict=True)
    assert abs(report.ranks[1].offset_ns + 20 * MS) <= WITHIN_NS
    assert abs(starts(merged)["slice 1"] - (START_NS - long_ns + MS)) <= WITHIN_NS
    assert 179 * MS < report.ranks[1].error_ns < 181 * MS  # 100 ppm of each clock


def test_error_of_a_torch_trace_reaches_to_its_last_event(merge: Any) -> None:
    done = irregular(16, members=(0, 1))
    late_us = f"@{format_us(START_NS + 900 * SECOND - BASE_NS).decode()}@"
    late = {"ph": "X", "cat": "cpu_op", "name": "late", "pid": 101, "tid": 1, "ts": late_us, "dur": 1}
    files = {
        "torch0.json": torch_trace(0, done, seen(), host="a"),
        "torch1.json": torch_trace(1, done, seen(20 * MS), host="c", more=[late]),
    }
    _, report = merge(files, strict=True)
    assert 179 * MS < report.ranks[1].error_ns < 181 * MS  # 100 ppm of each clock


def test_a_trace_without_a_base_is_placed_by_its_collectives(merge: Any) -> None:
    done = irregular(16)
    relative = torch_trace(1, done, lambda ns: ns - START_NS + 50 * MS, base_ns=0)
    merged, report = merge({"rank0.json": torch_trace(0, done, seen()), "rank1.json": relative}, strict=True)
    assert sources(report) == ["reference", "collectives"]
    ends = [
        (parse_us(str(found["ts"]).encode()) or 0) + (parse_us(str(found["dur"]).encode()) or 0)
        for found in merged["traceEvents"]
        if found.get("cat") == "kernel"
    ]
    assert len(ends) == 32
    ends.sort()
    assert all(second - first <= WITHIN_NS for first, second in zip(ends[::2], ends[1::2], strict=True))


def test_clocks_that_make_a_member_leave_before_another_has_come_are_told(merge: Any) -> None:
    """By hand, so that nothing else says better."""
    done = irregular(16, members=(0, 1, 2))
    files = torch_files(done, [seen(), seen(), seen()])
    _, report = merge(files, offsets_ns={2: 5 * MS})
    assert report.causality is not None
    assert report.causality.violations == 0  # rank 2 is read, but too far away to be matched without numbers
    for number, one in enumerate(done):
        one.sequence = number
    files = torch_files(done, [seen(), seen(), seen()])
    _, report = merge(files, offsets_ns={2: 5 * MS})
    assert report.causality is not None
    assert (report.causality.checked, report.causality.violations) == (16, 16)
    assert 4 * MS < report.causality.worst_ns < 5 * MS
    assert any(line.startswith("WRONG ORDER: 16 of 16 collectives end before") for line in report.lines())
    with pytest.raises(MergeError, match="end before all members have come"):
        merge(files, offsets_ns={2: 5 * MS}, strict=True)


def test_a_receive_that_ends_before_its_send_begins_is_told(merge: Any) -> None:
    done = irregular(16)

    def message(kind: str, start_ns: int) -> dict[str, Any]:
        args = {
            "Collective name": kind,
            "Src Rank": 0,
            "Dst Rank": 1,
            "Seq": 7,
            "Process Group Name": "0",
            "Process Group Ranks": "[0, 1]",
        }
        ts = f"@{format_us(start_ns - BASE_NS).decode()}@"
        found = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(x)", "pid": 0, "tid": 21, "ts": ts}
        return {**found, "dur": 100, "args": args}

    for late_ns, violations in ((-50_000, 0), (MS, 1)):
        files = {
            "rank0.json": torch_trace(0, done, seen(), more=[message("send", START_NS + late_ns)]),
            "rank1.json": torch_trace(1, done, seen(), more=[message("recv", START_NS)]),
        }
        _, report = merge(files)
        assert report.causality is not None
        assert (report.causality.checked, report.causality.violations) == (17, violations)


def test_messages_are_checked_where_a_rank_between_is_not_aligned(merge: Any) -> None:
    more = {
        kind: {
            "ph": "X",
            "cat": "kernel",
            "name": "ncclDevKernel_SendRecv(x)",
            "pid": 0,
            "tid": 21,
            "ts": f"@{format_us(START_NS + late_ns - BASE_NS).decode()}@",
            "dur": 100,
            "args": {
                "Collective name": kind,
                "Src Rank": 0,
                "Dst Rank": 2,
                "Seq": 7,
                "Process Group Name": "0",
                "Process Group Ranks": "[0, 2]",
            },
        }
        for kind, late_ns in (("send", MS), ("recv", 0))
    }
    done = irregular(16, members=(0, 2))
    files = {
        "rank0.json": torch_trace(0, done, seen(), host="a", more=[more["send"]]),
        "rank1.json": torch_trace(1, irregular(3, members=(1, 5)), seen(), host="b"),
        "rank2.json": torch_trace(2, done, seen(), host="c", more=[more["recv"]]),
    }
    _, report = merge(files)
    assert [rank.aligned for rank in report.ranks] == [True, False, True]
    assert report.causality is not None
    assert (report.causality.checked, report.causality.violations) == (17, 1)


@pytest.mark.parametrize(("hosts", "align", "count"), [("aa", "auto", 0), ("ab", "wall", 0), ("ab", "auto", 2)])
def test_collectives_are_read_only_where_a_clock_is_unknown(
    merge: Any, monkeypatch: pytest.MonkeyPatch, hosts: str, align: str, count: int
) -> None:
    read: list[str] = []

    def counting(path: str, *args: Any, **options: Any) -> Any:
        read.append(path)
        return read_collectives(path, *args, **options)

    monkeypatch.setattr(measure, "read_collectives", counting)
    done = irregular(16)
    files = {f"{rank}.json": torch_trace(rank, done, seen(), host=hosts[rank]) for rank in (0, 1)}
    _, report = merge(files, align=align, strict=True)
    assert len(set(read)) == count
    assert (report.causality is not None) == bool(count)


@pytest.mark.parametrize(("align", "sampled"), [("auto", True), ("collectives", False)])
def test_large_traces_that_do_not_match_are_read_as_a_whole_only_where_asked_for(
    merge: Any, align: str, sampled: bool
) -> None:
    """Rank 1 began when rank 0 had ended, and no collective has a number."""
    done = irregular(400)
    halves = {0: done[:200], 1: done[200:]}
    files = {}
    for rank, half in halves.items():
        trace = json.loads(torch_trace(rank, half, seen(), steps=False))
        for one in trace["traceEvents"]:
            one["args"]["stack"] = "x" * 12_000
        files[f"{rank}.json"] = trace
    _, report = merge(files, align=align)
    assert [rank.aligned for rank in report.ranks] == [True, False]
    assert ("; --align collectives reads all of them" in report.warnings[0]) == sampled


# ---- by hand ----------------------------------------------------------------------------------------------------------


def test_an_offset_by_hand_is_added_and_nothing_else(merge: Any) -> None:
    done = irregular(16)
    files = torch_files(done, [seen(), seen(SECOND)])
    _, report = merge(files, offsets_ns={1: -5}, strict=False)
    rank = report.ranks[1]
    assert (rank.source, rank.offset_ns, rank.error_ns, rank.aligned) == ("by_hand", -5, None, True)
    assert rank.clock == "-5 ns, given by hand: error unknown"
    _, report = merge(files, offsets_ns={1: -SECOND}, strict=True)
    assert report.warnings == []


def test_offsets_that_mean_nothing_are_refused(merge: Any) -> None:
    files = torch_files(irregular(5), [seen(), seen()])
    with pytest.raises(ConfigError, match="no input is of that rank"):
        merge(files, offsets_ns={7: 1})
    with pytest.raises(ConfigError, match="whole number of nanoseconds"):
        merge(files, offsets_ns={1: 0.5})
    with pytest.raises(ConfigError, match="align must be one of auto, sync"):
        merge(files, align="guess")


# ---- flows ------------------------------------------------------------------------------------------------------------


def test_arrows_lead_from_who_comes_first_to_who_comes_last(merge: Any) -> None:
    done = irregular(6, members=(0, 1, 2))
    for one in done:
        one.waits_ns = {1: 400_000, 0: 100_000}
    merged, report = merge(torch_files(done, [seen(), seen(SECOND), seen(-SECOND)]), collective_flows=True)
    arrows = [found for found in merged["traceEvents"] if found["ph"] in "stf"]
    arrows.sort(key=lambda found: (found["id"], float(found["ts"])))
    assert [found["ph"] for found in arrows] == ["s", "t", "f"] * 6
    assert [found["pid"] // 100_000 for found in arrows] == [1, 0, 2] * 6
    ids = [found["id"] for found in arrows]
    assert len(set(ids)) == 6
    assert all(len(set(ids[at : at + 3])) == 1 for at in range(0, 18, 3))
    kernels = {
        (found["pid"], found["tid"], found["ts"]) for found in merged["traceEvents"] if found.get("cat") == "kernel"
    }
    assert all((found["pid"], found["tid"], found["ts"]) in kernels for found in arrows)
    spreads = [found for found in merged["traceEvents"] if found["ph"] == "C"]
    assert [found["name"] for found in spreads] == ["arrival spread of group 0"] * 6
    assert all(390 < float(found["args"]["µs"]) < 410 for found in spreads)
    assert report.collective_events_added == 24
    assert sum(report.events_out.values()) == len(merged["traceEvents"])


def test_arrows_go_with_what_is_selected(merge: Any) -> None:
    done = irregular(8, members=(0, 1, 2))
    files = torch_files(done, [seen(), seen(SECOND), seen(-SECOND)])
    for select, arrows in (
        (Selection(ranks=frozenset({0, 2})), 2 * 8),
        (Selection(categories=frozenset({"cpu_op"})), 0),
        (Selection.parse(time_window=f"{done[3].end_ns - 1000}:"), 3 * 5),
    ):
        merged, _ = merge(files, collective_flows=True, select=select)
        found = [event for event in merged["traceEvents"] if event["ph"] in "stf"]
        assert len(found) == arrows, select


def test_an_archive_says_the_offsets_and_has_no_arrows(tmp_path: Path) -> None:
    paths = write_ranks(tmp_path, list(torch_files(irregular(16), [seen(), seen(SECOND)]).values()))
    with pytest.raises(ConfigError, match="no place for arrows"):
        merge_traces(str(tmp_path / "merged.tar"), paths, collective_flows=True)
    report = merge_traces(str(tmp_path / "merged.tar"), paths, strict=True)
    assert report.rewritten == {paths[0]: "another process has its pid", paths[1]: "another process has its pid"}
    texts = torch_files(irregular(40, gap_ns=SECOND), [seen(), seen(0, drift_ppm=50)]).values()
    report = merge_traces(str(tmp_path / "drift.tar"), write_ranks(tmp_path, list(texts)), strict=True)
    assert report.rewritten is not None
    assert report.rewritten[paths[1]] == "its clock drifts"


# ---- shown in the trace ------------------------------------------------------------------------------------------------


def clocks_shown(merged: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    """Return the instants that show the clock of each rank."""
    ranks = rank_of_pid(merged)
    found: dict[int, list[dict[str, Any]]] = {}
    for one in merged["traceEvents"]:
        if one.get("cat") == "clock":
            assert one["ph"] == "n"
            found.setdefault(ranks[one["pid"]], []).append(one)
    return found


def test_merge_shows_the_clock_of_each_rank_at_its_first_event(merge: Any) -> None:
    files = {
        "0.json": recorded(0),
        "1.json": away(1, "b2", "c", wall_off_ns=137 * MS),
        "2.json": recorded(2, boot="b3", host="d"),
    }
    merged, report = merge(files)
    shown = clocks_shown(merged)
    assert [one["name"] for rank in (0, 1, 2) for one in shown[rank]] == [
        "clock: reference",
        "clock: sync",
        "clock: NOT ALIGNED",
    ]
    assert shown[1][0]["args"] == {
        "rank": 1,
        "method": "sync",
        "aligned": True,
        "offset_ns": -137 * MS,
        "drift_ppm": "0.0",
        "error_ns": 60_000,
        "description": "-137.000 ms ± 60.0 µs, from 3 clock exchanges",
    }
    assert shown[2][0]["args"]["error_ns"] == "unknown"
    assert shown[1][0]["ts"] == next(one["ts"] for one in merged["traceEvents"] if one["name"] == "slice 1")
    assert report.clock_events_added == 3
    assert sum(report.events_out.values()) == len(merged["traceEvents"])


def test_merge_shows_no_clock_for_a_single_rank(merge: Any) -> None:
    merged, report = merge({"0.json": recorded(0)})
    assert clocks_shown(merged) == {}
    assert report.clock_events_added == 0


def test_merge_of_a_merge_shows_each_clock_once_and_again_where_it_moves_it(merge: Any) -> None:
    done = irregular(20, members=range(3))
    files = torch_files(done, [seen(), seen(SECOND), seen(-SECOND)])
    whole, _ = merge(files)
    same, report = again(merge, whole, {})
    assert clocks_shown(same) == clocks_shown(whole)
    assert report.clock_events_added == 0
    first, _ = merge({"rank0.json": files["rank0.json"]})
    in_steps, _ = again(merge, first, {name: files[name] for name in ("rank1.json", "rank2.json")})
    assert {rank: [one["args"] for one in found] for rank, found in clocks_shown(in_steps).items()} == {
        rank: [one["args"] for one in found] for rank, found in clocks_shown(whole).items()
    }
    upper, _ = merge({name: files[name] for name in ("rank1.json", "rank2.json")})
    moved, report = again(merge, upper, {"rank0.json": files["rank0.json"]})
    assert {rank: len(found) for rank, found in clocks_shown(moved).items()} == {0: 1, 1: 2, 2: 2}
    assert "; then the earlier merge by" in clocks_shown(moved)[2][1]["args"]["description"]


# ---- merged again -----------------------------------------------------------------------------------------------------


def test_some_ranks_are_taken_from_an_earlier_merge_that_has_the_collectives_of_all(merge: Any) -> None:
    merged, _ = merge(torch_files(irregular(8, members=(0, 1, 2)), [seen(), seen(), seen()]))
    _, report = again(merge, merged, {}, select=Selection(ranks=frozenset({0, 2})))
    assert [rank.rank for rank in report.ranks] == [0, 2]
    assert report.causality is not None
    assert (report.causality.checked, report.causality.violations) == (8, 0)


def again(
    merge: Any, merged: dict[str, Any], more: dict[str, Any], **options: Any
) -> tuple[dict[str, Any], MergeReport]:
    text = json.dumps(merged)  # times are text here, which the merge takes for numbers
    found: tuple[dict[str, Any], MergeReport] = merge({"earlier.json": text, **more}, **options)
    return found


def test_an_earlier_merge_is_moved_as_a_whole_onto_a_lower_rank(merge: Any) -> None:
    done = irregular(20, members=range(3))
    files = torch_files(done, [seen(), seen(SECOND), seen(-SECOND)])
    upper, _ = merge({name: files[name] for name in ("rank1.json", "rank2.json")})
    merged, report = again(merge, upper, {"rank0.json": files["rank0.json"]}, strict=True)
    for rank, offset in zip(report.ranks, (0, -SECOND, SECOND), strict=True):
        assert abs(rank.offset_ns - offset) <= WITHIN_NS
        assert rank.error_ns is not None
    assert 2 * 7_000 <= report.ranks[2].error_ns < 2 * 7_000 + 100
    assert "; then the earlier merge by -1.000000 s ±" in report.ranks[2].clock
    third, kept = again(merge, merged, {}, strict=True)
    assert kept.ranks == report.ranks
    assert starts(third) == starts(merged)


def test_a_rank_that_was_not_aligned_stays_flagged(merge: Any) -> None:
    merged, _ = merge({"0.json": recorded(0), "1.json": recorded(1, boot="b2", host="c")})
    _, report = again(merge, merged, {})
    assert [rank.aligned for rank in report.ranks] == [True, False]
    with pytest.raises(MergeError, match=r"rank 1 is not aligned with the others.*as the earlier merge says"):
        again(merge, merged, {}, strict=True)


def test_a_new_rank_of_a_boot_that_an_earlier_merge_has_placed_goes_with_it(merge: Any) -> None:
    merged, _ = merge({"0.json": recorded(0), "1.json": away(1, "b2", "c", wall_off_ns=137 * MS)})
    new = recorded(2, wall_ns=START_NS + 137 * MS, monotonic_ns=MONOTONIC_NS - 1000 * SECOND, boot="b2", host="c")
    second, report = again(merge, merged, {"2.json": new}, strict=True)
    assert set(starts(second).values()) == {START_NS + MS}
    assert report.ranks[2].source == "earlier_merge"
    # Its wall clock was set since: its monotonic clock still says when it was.
    new = recorded(
        2, wall_ns=START_NS + 137 * MS + 2 * SECOND, monotonic_ns=MONOTONIC_NS - 1000 * SECOND, boot="b2", host="c"
    )
    second, report = again(merge, merged, {"2.json": new}, strict=True)
    assert set(starts(second).values()) == {START_NS + MS}


# ---- Composer's JSONTraceHandler --------------------------------------------------------------------------------------


def composer_trace(rank: int, sync_ns: int, bound_ns: int, *, ahead_ns: int = 0) -> str:
    """Return what Composer 0.32 writes of one window of a rank: a list, in whole microseconds since the epoch."""
    place = {"pid": rank, "tid": 4000 + rank}
    stamp_us = (sync_ns + ahead_ns) // 1000

    def metadata(kind: str, **args: Any) -> dict[str, Any]:
        return {"name": kind, "cat": "", "ph": "M", "ts": stamp_us, **place, "args": args}

    def mark(phase: str, after_us: int) -> dict[str, Any]:
        args = {"epoch": 0, "batch": 1}
        return {"name": f"batch of {rank}", "cat": "", "ph": phase, "ts": stamp_us + after_us, **place, "args": args}

    events = [
        metadata("process_name", name=f"Rank {rank} training loop process"),
        metadata("thread_name", name="Training Loop"),
        metadata("thread_sort_index", sort_index=0),
        metadata("global_rank", value=rank),
        metadata("process_sort_index", sort_index=rank),
        metadata("clock_sync_timestamp_us", value=stamp_us),
        metadata("clock_sync_error_bound", value=bound_ns // 1000),
        mark("B", 100),
        mark("E", 900),
    ]
    return "[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n"


def test_composer_traces_state_their_rank_and_align_by_their_barriers(merge: Any) -> None:
    ahead_ns, late_ns = 3 * SECOND, 400_000
    windows = [(START_NS + number * SECOND, f"ep0-ba{3 * number}") for number in range(3)]
    files = {
        # The names tell no rank: Composer lets the user choose them.
        f"{name}.{letter}.json": composer_trace(rank, sync_ns + rank * late_ns, bound_ns, ahead_ns=rank * ahead_ns)
        for rank, letter, bound_ns in ((0, "a", 2_000_000), (1, "b", 600_000))
        for sync_ns, name in windows
    }
    merged, report = merge(files, strict=True)

    assert [(item.rank, item.rank_source) for item in report.inputs] == [
        (rank, "global_rank") for rank in (0, 0, 0, 1, 1, 1)
    ]
    assert sources(report) == ["reference", "sync"]
    clock = report.ranks[1]
    assert clock.aligned
    assert clock.error_ns is not None
    assert abs(clock.offset_ns + ahead_ns) <= clock.error_ns < 1_000_000
    assert {found["name"] for found in merged["traceEvents"] if found["ph"] == "B"} == {"batch of 0", "batch of 1"}


def test_composer_traces_of_different_windows_align_by_those_that_both_have(merge: Any) -> None:
    files = {
        f"ep0-ba{3 * number}-rank{rank}.json": composer_trace(
            rank, START_NS + number * SECOND, 50_000, ahead_ns=rank * 3 * SECOND
        )
        for rank, numbers in ((0, (0, 2)), (1, (1, 2, 3)))
        for number in numbers
    }
    _, report = merge(files)
    assert sources(report) == ["reference", "sync"]
    assert abs(report.ranks[1].offset_ns + 3 * SECOND) <= (report.ranks[1].error_ns or 0) < MS


def test_composer_traces_whose_windows_cannot_be_told_apart_are_not_aligned(merge: Any) -> None:
    files = {
        f"{rank}-{number}.json": composer_trace(rank, START_NS + number * SECOND, 50_000)
        for rank, numbers in ((0, (0, 2)), (1, (1, 2, 3)))
        for number in numbers
    }
    _, report = merge(files)
    assert not report.ranks[1].aligned
    assert any("nothing tells which barriers of Composer ranks" in warning for warning in report.warnings)


def test_composers_own_merge_in_a_folder_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    parts = [composer_trace(rank, START_NS, 50_000) for rank in (0, 1)]
    for rank, text in enumerate(parts):
        (folder / f"ep0-ba3-rank{rank}.json").write_text(text)
    merged = [found for text in parts for found in json.loads(text)]
    (folder / "merged_trace.json").write_text(json.dumps(merged))

    report = merge_traces(str(tmp_path / "out.json"), [str(folder)])
    assert [item.rank for item in report.inputs] == [0, 1]
    assert [(Path(item.path).name, item.harmless) for item in report.omitted] == [("merged_trace.json", True)]
    assert "Composer's own merge" in report.omitted[0].reason


# ---- torch's flight recorder ------------------------------------------------------------------------------------------


def test_flight_dumps_are_aligned_by_the_sequence_numbers_of_their_groups(tmp_path: Path) -> None:
    ahead_ns = 3 * SECOND
    for rank, offset_ns in enumerate((0, ahead_ns)):
        entries = [
            entry(number, created_ns=START_NS + offset_ns + number * 200 * MS, completed_ns=end_ns + offset_ns)
            for number in range(20)
            for end_ns in [START_NS + number * 200 * MS + (7 + 40 * rank) * MS]  # torch looks ten times a second
        ]
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(as_pickle(dump(entries)))

    report = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path)])
    clock = report.ranks[1]
    assert clock.aligned
    assert clock.error_ns is not None
    assert abs(clock.offset_ns + ahead_ns) <= clock.error_ns <= 100 * MS
