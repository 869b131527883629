"""Which clock places each rank of a merge, and what the report says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.collective_traces import (
    BASE_NS,
    MS,
    SECOND,
    START_NS,
    Done,
    irregular,
    number,
    seen,
    torch_trace,
    write_ranks,
)
from tests.flight_dumps import as_pickle, dump, entry
from tests.merge_inputs import event, meta, rank_trace
from tests.merge_inputs import torch_trace as torch_trace_of
from tests.merged_tables import rank_of_pid
from tracekit import ClockOffset
from tracekit.errors import ConfigError, MergeError
from tracekit.formats.decimal_time import parse_us
from tracekit.handlers.rank_trace import offset_metadata
from tracekit.merge import Selection, merge_traces
from tracekit.merge.align import measure
from tracekit.traces.collectives.collector import read_collectives

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.merge import MergeReport

WITHIN_NS = 10_000
MONOTONIC_NS = 5_000 * SECOND
OFFSETS = [0, 3 * SECOND + 1234, -SECOND, 40_000]


def ns(value: Any) -> int:
    return parse_us(str(value).encode()) or 0


def starts(merged: dict[str, Any]) -> dict[str, int]:
    """Return when each slice begins, ns since the epoch."""
    base = int(merged.get("baseTimeNanoseconds", 0))
    return {found["name"]: base + ns(found["ts"]) for found in merged["traceEvents"] if found["ph"] == "X"}


def kernel_ends(merged: dict[str, Any]) -> dict[int, list[int]]:
    """Return when the kernels of each rank end, in ns."""
    ranks = rank_of_pid(merged)
    ends: dict[int, list[int]] = {}
    for found in merged["traceEvents"]:
        if found.get("cat") == "kernel":
            ends.setdefault(ranks[found["pid"]], []).append(ns(found["ts"]) + ns(found["dur"]))
    return ends


def sources(report: MergeReport) -> list[str]:
    return [rank.source for rank in report.ranks]


def us(time_ns: int) -> float:
    """Return a time since the epoch as a trace has it."""
    return (time_ns - BASE_NS) / 1000


def recorded(
    rank: int,
    *,
    wall_ns: int = START_NS,
    monotonic_ns: int = MONOTONIC_NS,
    boot: str | None = "b1",
    host: str = "a",
    more: Any = (),
    **metadata: Any,
) -> list[Any]:
    """Return a rank trace that began at a time, with one slice."""
    return rank_trace(
        *more,
        event(f"slice {rank}", us(wall_ns + MS), pid=100 + rank),
        rank=rank,
        host=host,
        boot_id=boot,
        clock={"wall_ns": wall_ns, "monotonic_ns": monotonic_ns, "error_ns": 50},
        **{"pid": 100 + rank, **metadata},
    )


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
    behind_ns, found = 1000 * SECOND, []
    for minute in range(minutes):
        at_ns, drifted_ns = MONOTONIC_NS - behind_ns + minute * 60 * SECOND, minute * 60 * drift_ppm * 1000
        found.append(exchange(rank, at_ns, behind_ns + drifted_ns, drifted_ns - wall_off_ns, **more))
    return recorded_away(rank, boot, host, wall_off_ns, more=found)


def recorded_away(rank: int, boot: str, host: str, wall_off_ns: int, **more: Any) -> list[Any]:
    """Return the rank trace of a host as in `away`, without exchanges."""
    wall_ns, monotonic_ns = START_NS + wall_off_ns, MONOTONIC_NS - 1000 * SECOND
    return recorded(rank, wall_ns=wall_ns, monotonic_ns=monotonic_ns, boot=boot, host=host, **more)


@pytest.mark.parametrize("set_s", [3600, -3600, 0])
def test_a_wall_clock_that_was_set_between_two_starts_moves_the_second_back(merge: Any, set_s: int) -> None:
    """Rank 1 begins a second after rank 0, by a wall clock that was set meanwhile."""
    second = recorded(1, wall_ns=START_NS + (set_s + 1) * SECOND, monotonic_ns=MONOTONIC_NS + SECOND)
    files = {"0.json": recorded(0), "1.json": second}
    merged, report = merge(files, strict=True)
    assert starts(merged)["slice 1"] == START_NS + SECOND + MS
    assert sources(report) == ["reference", "shared"]
    assert [rank.error_ns for rank in report.ranks] == [0, 0]
    assert report.ranks[0].clock == "wall clock; same host and boot"
    assert report.ranks[1].offset_ns == -set_s * SECOND
    assert report.ranks[1].clock.endswith(f"{-set_s:+}.000000 s: the wall clock was set in between") == (set_s != 0)
    merged, _ = merge(files, align="none")
    assert starts(merged)["slice 1"] == START_NS + (set_s + 1) * SECOND + MS


STEP = {"step_ns": -60 * SECOND, "monotonic_ns": MONOTONIC_NS + 10 * SECOND}
"""The wall clock is set back by a minute, ten seconds after the start."""


def kernel(pid: int = 100, **header: Any) -> dict[str, Any]:
    """Return a torch trace of rank 0 with a slice 20 s after the start, by a wall clock that has made the step."""
    slice_ = event("kernel", us(START_NS + (20 - 60) * SECOND), pid=pid)
    return torch_trace_of(slice_, distributedInfo={"rank": 0}, **header)


def test_torch_traces_follow_the_wall_clock_over_a_step_and_the_rank_trace_says_when(merge: Any) -> None:
    step = meta("tracekit_clock_step", 100, 100, **STEP)
    files = {"0.json": recorded(0, more=[step]), "torch.json": kernel(host_name="a")}
    merged, report = merge(files, strict=True)
    assert starts(merged) == {"slice 0": START_NS + MS, "kernel": START_NS + 20 * SECOND}
    assert len(report.ranks) == 1


@pytest.mark.parametrize(("pid", "at_s"), [(100, -40), (200, 20)])
def test_a_torch_trace_follows_the_clock_of_the_attempt_whose_process_it_shows(merge: Any, pid: int, at_s: int) -> None:
    """The host of both attempts was started anew between them; a step of the second clock tells them apart."""
    second = recorded(0, boot="b2", more=[meta("tracekit_clock_step", 200, 200, **STEP)], pid=200, attempt=1)
    merged, _ = merge({"0.json": recorded(0), "1.json": second, "torch.json": kernel(pid)})
    assert starts(merged)["kernel"] == START_NS + at_s * SECOND


def test_other_boots_and_other_hosts_are_other_clocks_unless_the_user_trusts_them(merge: Any) -> None:
    others = {"1.json": recorded(1, boot="b2"), "2.json": recorded(2, boot="b3", host="c")}
    files = {"0.json": recorded(0), **others}
    _, report = merge(files)
    assert sources(report) == ["reference", "wall", "wall"]
    assert [rank.aligned for rank in report.ranks] == [True, False, False]
    assert [rank.error_ns for rank in report.ranks] == [0, None, None]
    assert "clock of ranks 1-2: NOT ALIGNED: wall clock; different hosts: error unknown" in report.lines()
    assert [warning.split(":")[0] for warning in report.warnings] == [
        "ranks 1-2 are not aligned with the others, their wall clock places them"
    ]
    with pytest.raises(MergeError, match="ranks 1-2 are not aligned"):
        merge(files, strict=True)
    _, report = merge(files, strict=True, align="wall")
    assert (sources(report), report.warnings) == (["reference", "wall", "wall"], [])
    assert "clock of ranks 1-2: wall clock; different hosts: error unknown" in report.lines()
    assert sources(merge(files, strict=True, align="none")[1]) == ["none"] * 3


def test_hosts_that_are_all_called_localhost_are_not_one(merge: Any) -> None:
    clocks = [seen(), seen(137 * MS)]
    _, report = merge(torch_files(irregular(12), clocks, host="localhost.localdomain"), strict=True)
    assert sources(report) == ["reference", "collectives"]


def test_exchanges_place_ranks_of_other_hosts(merge: Any) -> None:
    files = {
        "0.json": recorded(0),
        "1.json": away(1, "b2", "c", wall_off_ns=137 * MS),
        "2.json": recorded_away(2, "b2", "c", 137 * MS),
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
    assert (report.ranks[1].offset_ns, report.ranks[1].error_ns) == (157 * MS, 120_000)
    assert set(starts(merged).values()) == {START_NS + 137 * MS + MS}


def test_a_drift_moves_every_event_by_what_was_measured_then(merge: Any) -> None:
    """50 ppm over an hour: durations and events in between follow the line."""
    far = away(1, "b2", "c", wall_off_ns=0, drift_ppm=50, minutes=61)
    hour_us = us(START_NS + 3600 * SECOND)
    far += [event("late", hour_us, 1_000_000, pid=101), event("touches", hour_us + 1_000_000, 5, pid=101)]
    merged, report = merge({"0.json": [*recorded(0), event("long", hour_us, 5)], "1.json": far}, strict=True)
    found = starts(merged)
    assert abs(found["late"] - (START_NS + 3600 * SECOND + 180 * MS)) <= 60_000
    assert found["slice 0"] == START_NS + MS
    duration_ns = next(ns(one["dur"]) for one in merged["traceEvents"] if one["name"] == "late")
    assert duration_ns == SECOND + 50_000
    assert found["late"] + duration_ns == found["touches"]
    assert report.ranks[1].drift_ppm == pytest.approx(50, abs=0.1)
    assert ", drift +50.0" in report.ranks[1].clock


@pytest.mark.parametrize(
    ("changed", "source"),
    [
        ({"error_ns": 0}, "sync"),
        ({"error_ns": -1}, "wall"),
        ({"round_trips": 0}, "wall"),
        ({"monotonic_ns": "1"}, "wall"),
    ],
    ids=str,
)
def test_only_an_exchange_that_is_a_measurement_is_used(merge: Any, changed: dict[str, Any], source: str) -> None:
    far = [*away(1, "b2", "c", wall_off_ns=137 * MS, **changed), meta("tracekit_clock_offset", 101, 101)]
    _, report = merge({"0.json": recorded(0), "1.json": far})
    assert sources(report) == ["reference", source]
    assert report.ranks[1].error_ns == (0 if source == "sync" else None)


def torch_files(done: list[Done], clocks: list[Callable[[int], int]], **options: Any) -> dict[str, str]:
    return {f"rank{rank}.json": torch_trace(rank, done, clock, **options) for rank, clock in enumerate(clocks)}


def test_groups_of_some_ranks_are_solved_over_each_other(merge: Any) -> None:
    """0-1 and 2-3 never meet, but 1-2 do."""
    done = [
        *irregular(12, members=(0, 1), group="tp0"),
        *irregular(12, members=(2, 3), group="tp1"),
        *irregular(12, members=(1, 2), group="pp", gap_ns=4 * MS),
    ]
    merged, report = merge(torch_files(done, [seen(offset) for offset in OFFSETS]), strict=True)
    assert sources(report) == ["reference"] + ["collectives"] * 3
    for rank, offset in zip(report.ranks, OFFSETS, strict=True):
        assert abs(rank.offset_ns + offset) <= WITHIN_NS
    assert report.ranks[3].clock.endswith("from the ends of 12 collectives, through 2 other clocks")
    assert 3 * 7_000 <= report.ranks[3].error_ns < 3 * 7_000 + 300
    assert "order of 36 collectives: true on all ranks" in report.lines()
    assert not [found for found in merged["traceEvents"] if found["ph"] in "stfC"]  # nobody asked for arrows


def test_ranks_without_a_way_to_the_first_stay_together_and_are_flagged(merge: Any) -> None:
    done = [*irregular(12, members=(0, 1), group="a"), *irregular(12, members=(2, 3), group="b")]
    merged, report = merge(torch_files(done, [seen(offset) for offset in OFFSETS]))
    assert [rank.aligned for rank in report.ranks] == [True, True, False, False]
    assert "ranks 2-3 are not aligned" in report.warnings[0]
    assert "only ranks 2-3 are aligned with each other" in report.warnings[0]
    ends = kernel_ends(merged)
    assert all(abs(third - second) <= WITHIN_NS for second, third in zip(ends[2], ends[3], strict=True))


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "gather", "scatter", "send"])
def test_what_does_not_synchronise_says_nothing(merge: Any, kind: str) -> None:
    _, report = merge(torch_files(irregular(20, kind=kind), [seen(0), seen(SECOND)]))
    assert sources(report) == ["reference", "wall"]


@pytest.mark.parametrize("numbered", [True, False])
def test_sequence_numbers_tell_apart_what_has_a_period(merge: Any, numbered: bool) -> None:
    """The trap: rank 1 has recorded from the 5th on, and one is like the other."""
    done = [Done(START_NS + place * 10 * MS, sequence=place if numbered else None) for place in range(40)]
    files = torch_files(done[:30], [seen(0)], steps=False)
    files["rank1.json"] = torch_trace(1, done[5:], seen(SECOND), steps=False)
    _, report = merge(files)
    assert report.ranks[1].aligned == numbered
    if numbered:
        assert abs(report.ranks[1].offset_ns + SECOND) <= WITHIN_NS
    else:
        assert "fit at more than one offset (ranks 0 and 1)" in report.warnings[0]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_few_collectives_with_numbers_place_a_rank_within_a_wide_bound(merge: Any, count: int) -> None:
    done = irregular(count)
    for place, one in enumerate(done):
        one.sequence, one.waits_ns, one.late_ns = place, {place % 2: 3 * MS}, {1: 5_000}
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
    assert f"clock of ranks 2-3: {report.ranks[1].clock}" in report.lines()


@pytest.mark.parametrize("long", ["rank trace", "torch trace"])
def test_a_short_window_places_a_long_recording_and_the_error_says_how_long(merge: Any, long: str) -> None:
    """In the window the clocks are 20 ms apart for sure; a quarter of an hour away from it, by as much as clocks drift."""
    long_ns = 900 * SECOND
    late: dict[str, Any] = {"pid": 101, "cat": "cpu_op"}
    more = [event("late", number(START_NS + long_ns - BASE_NS), **late)] if long == "torch trace" else []
    done = irregular(16, members=(0, 1))
    files: dict[str, Any] = {
        "torch0.json": torch_trace(0, done, seen(), host="a"),
        "torch1.json": torch_trace(1, done, seen(20 * MS), host="c", more=more),
    }
    if long == "rank trace":
        own = recorded(1, wall_ns=START_NS - long_ns + 20 * MS, boot="b2", host="c")
        files["1.json"] = [*own, event("late", us(START_NS + long_ns), **late)]
    merged, report = merge(files, strict=True)
    assert abs(report.ranks[1].offset_ns + 20 * MS) <= WITHIN_NS
    assert 179 * MS < report.ranks[1].error_ns < 181 * MS  # 100 ppm of each clock
    if long == "rank trace":
        assert abs(starts(merged)["slice 1"] - (START_NS - long_ns + MS)) <= WITHIN_NS


def test_a_trace_without_a_base_is_placed_by_its_collectives(merge: Any) -> None:
    done = irregular(16)
    relative = torch_trace(1, done, lambda ns: ns - START_NS + 50 * MS, base_ns=0)
    merged, report = merge({"rank0.json": torch_trace(0, done, seen()), "rank1.json": relative}, strict=True)
    assert sources(report) == ["reference", "collectives"]
    ends = kernel_ends(merged)
    assert len(ends[0]) == 16
    assert all(abs(second - first) <= WITHIN_NS for first, second in zip(ends[0], ends[1], strict=True))


def test_clocks_that_make_a_member_leave_before_another_has_come_are_told(merge: Any) -> None:
    """By hand, so that nothing else says better."""
    done = irregular(16, members=(0, 1, 2))
    _, report = merge(torch_files(done, [seen(), seen(), seen()]), offsets_ns={2: 5 * MS})
    assert report.causality is not None
    assert report.causality.violations == 0  # rank 2 is read, but too far away to be matched without numbers
    for place, one in enumerate(done):
        one.sequence = place
    files = torch_files(done, [seen(), seen(), seen()])
    _, report = merge(files, offsets_ns={2: 5 * MS})
    assert report.causality is not None
    assert (report.causality.checked, report.causality.violations) == (16, 16)
    assert 4 * MS < report.causality.worst_ns < 5 * MS
    assert any(line.startswith("WRONG ORDER: 16 of 16 collectives end before") for line in report.lines())
    with pytest.raises(MergeError, match="end before all members have come"):
        merge(files, offsets_ns={2: 5 * MS}, strict=True)


def message(kind: str, target: int, start_ns: int) -> dict[str, Any]:
    """Return one half of a message from rank 0."""
    groups = {"Process Group Name": "0", "Process Group Ranks": f"[0, {target}]"}
    args = {"Collective name": kind, "Src Rank": 0, "Dst Rank": target, "Seq": 7, **groups}
    name = "ncclDevKernel_SendRecv(x)"
    return event(name, number(start_ns - BASE_NS), 100, pid=0, tid=21, cat="kernel", args=args)


@pytest.mark.parametrize(
    ("target", "late_ns", "violations"),
    [(1, -50_000, 0), (1, MS, 1), (2, MS, 1)],
    ids=["sent before", "sent after", "sent after, a rank between is not aligned"],
)
def test_a_receive_that_ends_before_its_send_begins_is_told(
    merge: Any, target: int, late_ns: int, violations: int
) -> None:
    done = irregular(16, members=(0, target))
    halves = {0: message("send", target, START_NS + late_ns), target: message("recv", target, START_NS)}
    files = {
        f"rank{rank}.json": torch_trace(rank, done, seen(), host=f"h{rank}", more=[half])
        for rank, half in halves.items()
    }
    if target == 2:
        files["rank1.json"] = torch_trace(1, irregular(3, members=(1, 5)), seen(), host="h1")
    _, report = merge(files)
    assert [rank.aligned for rank in report.ranks] == ([True, True] if target == 1 else [True, False, True])
    assert report.causality is not None
    assert (report.causality.checked, report.causality.violations) == (17, violations)


@pytest.mark.parametrize(("hosts", "align", "count"), [("aa", "auto", 0), ("ab", "wall", 0), ("ab", "auto", 2)])
def test_collectives_are_read_only_where_a_clock_is_unknown(
    merge: Any, monkeypatch: pytest.MonkeyPatch, hosts: str, align: str, count: int
) -> None:
    read: set[str] = set()

    def noting(path: str, *args: Any, **options: Any) -> Any:
        read.add(path)
        return read_collectives(path, *args, **options)

    monkeypatch.setattr(measure, "read_collectives", noting)
    done = irregular(16)
    files = {f"{rank}.json": torch_trace(rank, done, seen(), host=hosts[rank]) for rank in (0, 1)}
    _, report = merge(files, align=align, strict=True)
    assert len(read) == count
    assert (report.causality is not None) == bool(count)


@pytest.mark.parametrize(("align", "sampled"), [("auto", True), ("collectives", False)])
def test_large_traces_that_do_not_match_are_read_as_a_whole_only_where_asked_for(
    merge: Any, align: str, sampled: bool
) -> None:
    """Rank 1 began when rank 0 had ended, and no collective has a number."""
    done = irregular(400)
    files = {}
    for rank, half in enumerate((done[:200], done[200:])):
        files[f"{rank}.json"] = json.loads(torch_trace(rank, half, seen(), steps=False))
        for one in files[f"{rank}.json"]["traceEvents"]:
            one["args"]["stack"] = "x" * 12_000
    _, report = merge(files, align=align)
    assert [rank.aligned for rank in report.ranks] == [True, False]
    assert ("; --align collectives reads all of them" in report.warnings[0]) == sampled


def test_an_offset_by_hand_is_added_and_nothing_else(merge: Any) -> None:
    files = torch_files(irregular(16), [seen(), seen(SECOND)])
    _, report = merge(files, offsets_ns={1: -5}, strict=False)
    rank = report.ranks[1]
    assert (rank.source, rank.offset_ns, rank.error_ns, rank.aligned) == ("by_hand", -5, None, True)
    assert rank.clock == "-5 ns, given by hand: error unknown"
    _, report = merge(files, offsets_ns={1: -SECOND}, strict=True)
    assert report.warnings == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"offsets_ns": {7: 1}}, "no input is of that rank"),
        ({"offsets_ns": {1: 0.5}}, "whole number of nanoseconds"),
        ({"align": "guess"}, "align must be one of auto, sync"),
    ],
    ids=str,
)
def test_an_option_that_means_nothing_is_refused(merge: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        merge(torch_files(irregular(5), [seen(), seen()]), **options)


def test_arrows_lead_from_who_comes_first_to_who_comes_last(merge: Any) -> None:
    done = irregular(6, members=(0, 1, 2))
    for one in done:
        one.waits_ns = {1: 400_000, 0: 100_000}
    merged, report = merge(torch_files(done, [seen(), seen(SECOND), seen(-SECOND)]), collective_flows=True)
    arrows = [found for found in merged["traceEvents"] if found["ph"] in "stf"]
    arrows.sort(key=lambda found: (found["id"], float(found["ts"])))
    assert [found["ph"] for found in arrows] == ["s", "t", "f"] * 6
    assert [found["pid"] // 100_000 for found in arrows] == [1, 0, 2] * 6
    kernels = {
        (found["pid"], found["tid"], found["ts"]) for found in merged["traceEvents"] if found.get("cat") == "kernel"
    }
    assert all((found["pid"], found["tid"], found["ts"]) in kernels for found in arrows)
    spreads = [found for found in merged["traceEvents"] if found["ph"] == "C"]
    assert [found["name"] for found in spreads] == ["arrival spread of group 0"] * 6
    assert all(390 < float(found["args"]["µs"]) < 410 for found in spreads)
    assert report.collective_events_added == 24


def test_arrows_go_with_what_is_selected(merge: Any) -> None:
    done = irregular(8, members=(0, 1, 2))
    files = torch_files(done, [seen(), seen(SECOND), seen(-SECOND)])
    for select, arrows in (
        (Selection(ranks=frozenset({0, 2})), 2 * 8),
        (Selection(categories=frozenset({"cpu_op"})), 0),
        (Selection.parse(time_window=f"{done[3].end_ns - 1000}:"), 3 * 5),
    ):
        merged, _ = merge(files, collective_flows=True, select=select)
        assert sum(event["ph"] in "stf" for event in merged["traceEvents"]) == arrows, select


def test_an_archive_has_a_clock_that_drifts_rewritten_and_no_arrows(tmp_path: Path) -> None:
    texts = torch_files(irregular(40, gap_ns=SECOND), [seen(), seen(0, drift_ppm=50)]).values()
    paths = write_ranks(tmp_path, list(texts))
    report = merge_traces(str(tmp_path / "drift.tar"), paths, strict=True)
    assert report.rewritten == {paths[1]: "its clock drifts"}
    with pytest.raises(ConfigError, match="no place for arrows"):
        merge_traces(str(tmp_path / "merged.tar"), paths, collective_flows=True)


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
    alone, report = merge({"0.json": recorded(0)})
    assert (clocks_shown(alone), report.clock_events_added) == ({}, 0)


def test_merge_of_a_merge_shows_each_clock_once_and_again_where_it_moves_it(merge: Any) -> None:
    files = torch_files(irregular(20, members=range(3)), [seen(), seen(SECOND), seen(-SECOND)])
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
    moved, _ = again(merge, upper, {"rank0.json": files["rank0.json"]})
    assert {rank: len(found) for rank, found in clocks_shown(moved).items()} == {0: 1, 1: 2, 2: 2}
    assert "; then the earlier merge by" in clocks_shown(moved)[2][1]["args"]["description"]


def again(
    merge: Any, merged: dict[str, Any], more: dict[str, Any], **options: Any
) -> tuple[dict[str, Any], MergeReport]:
    """Merge an earlier merge, whose times are text here, with more files."""
    found: tuple[dict[str, Any], MergeReport] = merge({"earlier.json": merged, **more}, **options)
    return found


def test_some_ranks_are_taken_from_an_earlier_merge_that_has_the_collectives_of_all(merge: Any) -> None:
    merged, _ = merge(torch_files(irregular(8, members=(0, 1, 2)), [seen(), seen(), seen()]))
    _, report = again(merge, merged, {}, select=Selection(ranks=frozenset({0, 2})))
    assert [rank.rank for rank in report.ranks] == [0, 2]
    assert report.causality is not None
    assert (report.causality.checked, report.causality.violations) == (8, 0)


def test_an_earlier_merge_is_moved_as_a_whole_onto_a_lower_rank(merge: Any) -> None:
    files = torch_files(irregular(20, members=range(3)), [seen(), seen(SECOND), seen(-SECOND)])
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


@pytest.mark.parametrize("set_s", [0, 2])
def test_a_new_rank_of_a_boot_that_an_earlier_merge_has_placed_goes_with_it(merge: Any, set_s: int) -> None:
    """Also where its wall clock was set since: its monotonic clock still says when it was."""
    merged, _ = merge({"0.json": recorded(0), "1.json": away(1, "b2", "c", wall_off_ns=137 * MS)})
    new = recorded_away(2, "b2", "c", 137 * MS + set_s * SECOND)
    second, report = again(merge, merged, {"2.json": new}, strict=True)
    assert set(starts(second).values()) == {START_NS + MS}
    assert report.ranks[2].source == "earlier_merge"


def composer_trace(rank: int, sync_ns: int, bound_ns: int, *, ahead_ns: int = 0) -> str:
    """Return what Composer 0.32 writes of one window of a rank: a list, in whole microseconds since the epoch."""
    stamp_us = (sync_ns + ahead_ns) // 1000
    place = {"cat": "", "pid": rank, "tid": 4000 + rank}

    def metadata(kind: str, **args: Any) -> dict[str, Any]:
        return {"name": kind, "ph": "M", "ts": stamp_us, **place, "args": args}

    def mark(phase: str, after_us: int) -> dict[str, Any]:
        args = {"epoch": 0, "batch": 1}
        return {"name": f"batch of {rank}", "ph": phase, "ts": stamp_us + after_us, **place, "args": args}

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
    windows = [(START_NS + place * SECOND, f"ep0-ba{3 * place}") for place in range(3)]
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
    assert report.ranks[1].aligned
    assert abs(report.ranks[1].offset_ns + ahead_ns) <= report.ranks[1].error_ns < 1_000_000
    assert {found["name"] for found in merged["traceEvents"] if found["ph"] == "B"} == {"batch of 0", "batch of 1"}


@pytest.mark.parametrize(("names_tell", "name"), [(True, "ep0-ba{}-rank{}.json"), (False, "{1}-{0}.json")])
def test_composer_traces_of_different_windows_align_by_those_that_both_have(
    merge: Any, names_tell: bool, name: str
) -> None:
    files = {
        name.format(window, rank): composer_trace(rank, START_NS + window * SECOND, 50_000, ahead_ns=rank * 3 * SECOND)
        for rank, windows in ((0, (0, 2)), (1, (1, 2, 3)))
        for window in windows
    }
    _, report = merge(files)
    assert report.ranks[1].aligned == names_tell
    if names_tell:
        assert abs(report.ranks[1].offset_ns + 3 * SECOND) <= (report.ranks[1].error_ns or 0) < MS
    else:
        assert any("nothing tells which barriers of Composer ranks" in warning for warning in report.warnings)


def test_composers_own_merge_in_a_folder_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    parts = [composer_trace(rank, START_NS, 50_000) for rank in (0, 1)]
    for rank, text in enumerate(parts):
        (folder / f"ep0-ba3-rank{rank}.json").write_text(text)
    (folder / "merged_trace.json").write_text(json.dumps([found for text in parts for found in json.loads(text)]))
    report = merge_traces(str(tmp_path / "out.json"), [str(folder)])
    assert [item.rank for item in report.inputs] == [0, 1]
    assert [(Path(item.path).name, item.harmless) for item in report.omitted] == [("merged_trace.json", True)]
    assert "Composer's own merge" in report.omitted[0].reason


def test_flight_dumps_are_aligned_by_the_sequence_numbers_of_their_groups(tmp_path: Path) -> None:
    ahead_ns = 3 * SECOND
    for rank, offset_ns in enumerate((0, ahead_ns)):
        starts_ns = [START_NS + offset_ns + place * 200 * MS for place in range(20)]
        late_ns = (7 + 40 * rank) * MS  # torch looks ten times a second
        entries = [entry(place, created_ns=at, completed_ns=at + late_ns) for place, at in enumerate(starts_ns)]
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(as_pickle(dump(entries)))
    clock = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path)]).ranks[1]
    assert clock.aligned
    assert clock.error_ns is not None
    assert abs(clock.offset_ns + ahead_ns) <= clock.error_ns <= 100 * MS
