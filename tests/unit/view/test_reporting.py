"""The report: the answers it gives, what it says where there is nothing, and that it stays small and safe whatever the run."""

from __future__ import annotations

import functools
import itertools
import json
import math
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from msgspec.structs import replace

from tests.report_pages import BASE_NS, EVIL, Page, rank_trace
from tracekit.explain.results import Result
from tracekit.explain.run_report import RunReport, report_run
from tracekit.explain.step_times import StepGrid
from tracekit.merge import merge_traces
from tracekit.view.report.content import which_ranks
from tracekit.view.report.page import answers, report_page

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 2_000_000
HINTS = functools.cache(get_type_hints)


def told(report: RunReport) -> list[tuple[str, str]]:
    """Return state and words of the four answers."""
    found = []
    for one in answers(report):
        parts = [one.words] if isinstance(one.words, str) else one.words
        found.append((one.state, "".join(part if isinstance(part, str) else part.shown for part in parts)))
    return found


def metadata(name: str, /, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": name, "args": args}


def summary_event(**args: Any) -> dict[str, Any]:
    return metadata("tracekit_summary", **args)


def test_good_run_is_said_to_be_one(tmp_path: Path) -> None:
    for rank in (0, 1):
        ended = summary_event(dropped={}, failures={})
        rank_trace(tmp_path / f"rank{rank}.json", rank, boot_id="b", host="h", extra=(ended,))
    report = report_run([str(tmp_path)])
    assert told(report) == [
        ("good", "No rank is slower by more than 0.1% of a step (11 steps of independent noise)."),
        (
            "look",
            (
                "A step takes 10.1 ms on average, over 12 steps of 2 ranks. "
                "The run is compute-bound: forward takes 39.8% of the step. 30% of the step is in no marker."
            ),
        ),
        ("good", "Nothing, as far as the traces tell."),
        ("good", "All ranks share one clock."),
    ]
    assert (report.runs, report.hosts, report.world_size, report.start_ns) == (["run"], ["h"], 2, BASE_NS)


def test_what_is_lost_is_said_with_the_words_of_the_trace(tmp_path: Path) -> None:
    lost = summary_event(dropped={"queue was full": 12}, failures={"SystemProfiler: no /proc": 2})
    rank_trace(tmp_path / "rank0.json", 0, extra=(lost,))
    cut = rank_trace(tmp_path / "rank1.json", 1, extra=(metadata("tracekit_loss", lost_events=5),))
    cut.write_bytes(cut.read_bytes().rstrip().removesuffix(b"]"))
    report = report_run([str(tmp_path)])
    words = "17 events while recording, on ranks 0–1. The recording of rank 1 did not end: killed, or still running. "
    assert told(report)[2] == ("look", f"{words}Something failed 2 times while recording.")
    rows = Page(report_page(report)).table("Lost while recording")[1:]
    assert [row[:4] for row in rows] == [
        ["0", "lost events", "queue was full", "12"],
        ["0", "failed", "SystemProfiler: no /proc", "2"],
        ["1", "did not end", "the file ends without its summary", "not known"],
        ["1", "lost events", "events that could not be written, at least", "5"],
    ]
    # A merge passes the same losses on.
    merge_traces(str(tmp_path / "merged.json"), [str(tmp_path / "rank0.json"), str(cut)])
    merged = report_run([str(tmp_path / "merged.json")])
    assert [(loss.rank, loss.kind, loss.reason, loss.count) for loss in merged.losses.recording] == [
        (loss.rank, loss.kind, loss.reason, loss.count) for loss in report.losses.recording
    ]


def test_clocks_are_told_as_measured_and_as_merged(tmp_path: Path) -> None:
    offset = {
        "monotonic_ns": 1,
        "offset_ns": -3_000_000,
        "monotonic_offset_ns": 5,
        "error_ns": 40_000,
        "round_trips": 8,
        "reference_rank": 0,
        "reference_boot_id": "boot0",
        "drift_ppb": None,
    }
    better = {**offset, "error_ns": 30_000, "offset_ns": -3_000_100, "drift_ppb": 250}
    exchanges = tuple(metadata("tracekit_clock_offset", **args) for args in (offset, better, {"error_ns": "?"}))
    step = metadata("tracekit_clock_step", step_ns=-2_000_000_000, monotonic_ns=3, suspended_ns=0)
    paths = [
        str(rank_trace(tmp_path / "rank0.json", 0)),
        str(rank_trace(tmp_path / "rank1.json", 1, extra=(*exchanges, step))),
    ]
    report = report_run(paths)
    words = "The ranks' clocks were compared, to ± 30.0 µs at worst. "
    stepped = "Wall clocks were set, or machines slept, 1 time; durations do not suffer."
    assert told(report)[3] == ("good", words + stepped)
    rows = Page(report_page(report)).table("The clock of each rank")[1:]
    assert rows[1] == [
        "1", "host1", "yes", "clock exchanges", "−3.00 ms", "± 30.0 µs", "+0.250 ppm", "1, by up to −2.00 s",
        "compared with rank 0 2 times; best to ± 30.0 µs",
    ]  # fmt: skip
    others = [str(rank_trace(tmp_path / f"rank{rank}.json", rank, extra=exchanges)) for rank in (4, 5)]
    without_zero = report_run(others).clocks.rows
    assert [(row.source, row.offset_ns) for row in without_zero] == [("measured", -3_000_100)] * 2, "nobody is rank 0"
    unknown = report_run([paths[0], str(rank_trace(tmp_path / "rank2.json", 2))])
    assert told(unknown)[3] == (
        "look",
        "It is not known how the clock of rank 2 stands to the others'. Durations do not suffer.",
    )
    merge_traces(str(tmp_path / "merged.json"), [paths[0], str(rank_trace(tmp_path / "rank3.json", 3))], align="wall")
    merged = report_run([str(tmp_path / "merged.json")])
    assert merged.clocks.merged
    rows_of_merge = [(row.rank, row.source, row.aligned) for row in merged.clocks.rows]
    assert rows_of_merge == [(0, "reference", True), (3, "wall", True)]
    merge_traces(str(tmp_path / "stepped.json"), paths)
    stepped_rows = report_run([str(tmp_path / "stepped.json")]).clocks.rows
    assert [row.host for row in stepped_rows] == ["host0", "host1"]
    found = [(row.source, row.clock_steps, row.largest_step_ns) for row in stepped_rows]
    assert found == [("reference", 0, 0), ("wall", 1, -(2 * 10**9))]
    assert told(merged)[3] == (
        "unknown",
        "A merge has placed the ranks on one clock; how far off they may be is not known of all.",
    )


def test_one_rank_without_steps_says_what_to_record(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps([{"ph": "X", "name": "work", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]))
    page = Page(report_page(report_run([str(trace)])))
    for words in (
        "No trace tells of steps, so ranks cannot be compared step by step.",
        "They are of a tool that does not tell what it did not record.",
        "There is one rank: nothing is to be aligned.",
        "Call profiler.step() after each step",
        "Nothing could be compared: that needs traces of two ranks or more",
    ):
        assert words in page.text


def test_slow_rank_is_the_first_answer_and_figures_are_in_tables_beside_the_plots(tmp_path: Path) -> None:
    for rank in (0, 1):
        rank_trace(tmp_path / f"rank{rank}.json", rank, slow_ms=1.5 * rank)
    report = report_run([str(tmp_path)])
    state, words = told(report)[0]
    assert state == "look"
    assert words.startswith("Rank 1 holds the others up in forward: 1.50 ms a step (14.9% of it")
    page = Page(report_page(report, "A title"))
    assert page.headings[0] == (1, "A title")
    assert {level for level, _ in page.headings} == {1, 2, 3}
    assert all(after - before <= 1 for (before, _), (after, _) in itertools.pairwise(page.headings))
    assert page.table("Step times, as plotted")[2] == ["1", "10.0 ms", "10.0 ms", "10.0 ms", "0", "1"]
    assert page.table("Step times of each rank")[2][:3] == ["1", "12", "10.1 ms"]
    assert page.table("Stages of a step;")[2][:5] == ["forward", "4.75 ms", "47.2%", "5.50 ms", "1"]
    assert page.table("Time of each stage")[2] == ["forward", "4.75 ms", "4.00 ms", "0", "5.50 ms", "1", "7.5%"]
    assert page.table("process memory: rss_bytes, as plotted")[1] == ["0 ns", *["1.00\xa0GiB"] * 3]
    assert page.table("Files")[1][1] == "72"


def test_names_are_text_wherever_they_stand(tmp_path: Path) -> None:
    evil = {"run_id": EVIL, "host": EVIL}
    extra = (
        metadata("process_labels", labels=EVIL),
        metadata("thread_name", name=EVIL),
        {"ph": "X", "name": EVIL, "cat": EVIL, "ts": 500_000, "dur": 5, "args": {EVIL: EVIL}},
        {"ph": "X", "name": EVIL, "cat": "kernel", "ts": 600_000, "dur": 5, "tid": 77},
        {"ph": "C", "name": EVIL, "ts": 5, "args": {EVIL: 1, f"{EVIL}bytes": 2}},
        {"ph": "X", "name": "x" * 1_000_000, "ts": 700_000, "dur": 5},
        summary_event(dropped={EVIL: 3}, failures={EVIL * 1000: 3}),
    )
    folder = tmp_path / "<img src=x onerror=alert(3)>"
    for rank in (0, 1):
        rank_trace(folder / f"rank{rank} <b>\u202e.json", rank, name=EVIL, slow_ms=rank, extra=extra, **evil)
    page = report_page(report_run([str(folder)]), title=EVIL)
    found = Page(page)
    assert "</script><script>alert(1)</script>" in found.text
    assert "{{ 7*7 }}" in found.text
    assert "49" not in found.headings[0][1]
    assert max(map(len, found.titles)) <= 300
    assert len(page) < 400_000


def test_lone_surrogates_reach_no_page(tmp_path: Path) -> None:
    path = rank_trace(tmp_path / "rank0.json", 0)
    path.write_text(path.read_text().replace("forward", "for\\ud800ward").replace("MainThread", "\\udfff"))
    assert "forward" not in Page(report_page(report_run([str(path)]))).text


def huge(kind: Any, number: int = 0, size: int = 1000) -> Any:
    """Return a value of a type that is as awkward as it can be; lists in lists are shorter."""
    if isinstance(kind, type) and issubclass(kind, Result):
        return kind(**{name: huge(each, number, size) for name, each in HINTS(kind).items()})
    inner = get_args(kind)
    if get_origin(kind) is list:
        return [huge(inner[0], at, size // 16) for at in range(size)]
    if get_origin(kind) is dict:
        return {huge(inner[0], at): huge(inner[1], at, size // 16) for at in range(size)}
    if get_origin(kind) is tuple:
        return tuple(huge(each, number) for each in inner)
    if inner:  # the other one is None
        return huge(inner[0], number, size)
    return {str: f"{number} {EVIL * 4}", int: 10**6 + number, float: 1e6 * math.sin(number), bool: number % 2 > 0}[kind]


def test_page_stays_small_whatever_the_run() -> None:
    ranks, columns = list(range(1000)), [(40 * column, 40 * column + 39) for column in range(250)]
    # Grouped or not, no two neighbours are alike.
    longest: list[list[float | None]] = [
        [1e6 + 1e6 * ((at * 7 + rank // 16 * 5) % 9) for at in range(250)] for rank in ranks
    ]
    report = huge(RunReport)
    summary = replace(report.summary, gaps=report.summary.gaps[:10])  # as many as there can be
    page = report_page(replace(report, summary=summary, grid=StepGrid(ranks, columns, longest)))
    assert len(page.encode()) < MOST_BYTES
    found = Page(page)
    for words in (
        "and 936 ranks more: see tracekit summary --json. These are the ranks with the longest steps.",
        "16 ranks are one cell: the largest of their values",
        "and 476 markers more: see tracekit summary --json",
        "and 1,000,940 counters more",
        "and 960 files more",
    ):
        assert words in found.text


def test_ranks_in_words() -> None:
    assert [which_ranks([3]), which_ranks([0, 1, 2, 5])] == ["rank 3", "ranks 0–2, 5"]
    assert which_ranks(range(0, 16, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14"
    assert which_ranks(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and others, 20 in all"


def test_page_does_not_tell_where_the_traces_lie(tmp_path: Path) -> None:
    one = rank_trace(tmp_path / "first" / "rank0.json", 0)
    both = [str(one), str(rank_trace(tmp_path / "second" / "rank1.json", 1))]
    assert [row[0] for row in Page(report_page(report_run(both))).table("Files")[1:]] == [
        "first/rank0.json",
        "second/rank1.json",
    ]
    page = report_page(report_run([str(one)]))
    assert Page(page).table("Files")[1][0] == "rank0.json"
    assert str(tmp_path) not in page
