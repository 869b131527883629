"""`validate_trace`: every rule finds its bad file, at the right event, and nothing else finds it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.bad_traces import (
    ARCHIVE_RULES,
    BAD_OWN_TRACES,
    BAD_TRACES,
    GOOD_TRACES,
    BadTrace,
    array,
    begin,
    end,
    event,
    flow,
    merged_trace,
    metadata,
    rank_trace,
    slice_,
)
from tracekit.check.schemas import compile_schema
from tracekit.check.validation import RULES, validate_trace
from tracekit.check.validation.report import KEPT_PER_RULE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real_traces import RealTraces
    from tracekit.check.validation import ValidationReport


def validate(folder: Path, data: bytes, **options: bool) -> ValidationReport:
    path = folder / "trace.json"
    path.write_bytes(data)
    return validate_trace(str(path), **options)


@pytest.mark.parametrize("bad", [*BAD_TRACES, *BAD_OWN_TRACES], ids=lambda bad: bad.name)
def test_each_bad_file_breaks_its_rule_and_no_other(bad: BadTrace, tmp_path: Path) -> None:
    report = validate(tmp_path, bad.data)
    assert set(report.counts) == {bad.rule}
    assert report.problems[0].event == bad.event
    assert report.problems[0].severity == RULES[bad.rule].severity(report.kind)
    assert (report.kind == "other") == (bad in BAD_TRACES)
    assert bad in BAD_TRACES or report.counts == {bad.rule: 1}


def test_every_rule_has_a_bad_file() -> None:
    assert {bad.rule for bad in BAD_TRACES} | {bad.rule for bad in BAD_OWN_TRACES} | ARCHIVE_RULES == set(RULES)


@pytest.mark.parametrize("bad", [bad for bad in BAD_TRACES if bad.data.startswith(b"[\n")], ids=lambda bad: bad.name)
def test_what_is_wrong_in_other_files_is_wrong_in_a_rank_trace(bad: BadTrace, tmp_path: Path) -> None:
    prefix = rank_trace()[:-3]
    report = validate(tmp_path, prefix + b",\n" + bad.data[2:])
    assert report.kind == "rank"
    assert report.counts.pop(bad.rule) >= 1
    # A file cut short may end in the middle of what another rule is about.
    assert set(report.counts) <= {"schema"}


@pytest.mark.parametrize("data", GOOD_TRACES.values(), ids=GOOD_TRACES.keys())
def test_what_perfetto_shows_right_is_no_problem_in_other_files(data: bytes, tmp_path: Path) -> None:
    report = validate(tmp_path, data)
    assert report.problems == ()
    assert report.kind == "other"


def test_a_good_rank_trace_has_no_problems(tmp_path: Path) -> None:
    ts = 4360038729919.997
    report = validate(
        tmp_path,
        rank_trace(
            metadata("process_name", name="rank 0"),
            metadata("process_sort_index", sort_index=0),
            metadata("thread_name", name="MainThread"),
            event(ph="M", name="tracekit_timestamp", ts=ts, args={"epoch": 0, "batch": 3}),
            metadata("tracekit_clock_anchor", wall_ns=1, monotonic_ns=2, error_ns=3),
            metadata("tracekit_clock_step", step_ns=-5, monotonic_ns=2),
            metadata("tracekit_companion", file="torch-rank0.json.gz"),
            slice_(ts, 1234.567, cat="model", args={"loss": None}),
            begin(4360038739919.001, cat="model"),
            end(4360038739920.002, ...),
            event(ph="i", ts=4360038739920.002, s="p", name="saved"),
            event(ph="C", ts=4360038739920.002, name="loss", args={"loss": 0.5}),
            metadata("tracekit_summary", slices=2, instants=1, counters=1, dropped={"full": 3}, lost_events=0),
        ),
    )
    assert report.problems == ()
    assert (report.kind, report.form, report.events, report.not_checked) == ("rank", "array", 14, None)


def test_a_good_merged_trace_has_no_problems(tmp_path: Path) -> None:
    events = [metadata("process_name", name="rank 0"), slice_(1, 10), slice_(1, 10, pid=1001)]
    flows = [flow("s", 2), flow("f", 3, bp="e"), flow("s", 2, id=8, pid=1001)]
    local = [flow(phase, 5, id=..., id2={"local": "a"}) for phase in "be"]
    report = validate(tmp_path, merged_trace(*events, *flows, *local))
    assert (report.problems, report.kind) == ((), "merged")


def test_a_rank_trace_that_is_still_written_is_only_a_warning(tmp_path: Path) -> None:
    report = validate(tmp_path, rank_trace(slice_(5, 1), begin(7))[:-3] + b',\n{"ph":"X","na')
    assert report.errors == 0
    assert set(report.counts) == {"unfinished", "unclosed-begin"}
    assert report.events == 3


def test_of_many_problems_of_one_rule_some_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    report = validate(tmp_path, array(*[slice_(-5, 1) for _ in range(100)]))
    assert (len(report.problems), report.errors) == (KEPT_PER_RULE, 100)
    assert report.counts == {"perfetto-negative-time": 100}


def test_event_numbers_count_over_the_pieces_of_a_large_file(tmp_path: Path) -> None:
    good = [slice_(10 * n, 5, args={"padding": "x" * 100}) for n in range(5000)]
    report = validate(tmp_path, array(*good[:4000], slice_(5, None), *good[4000:]))
    assert ([problem.event for problem in report.problems], report.events) == ([4001], 5001)


def test_without_jsonschema_the_report_says_that_the_schemas_were_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_schema.cache_clear()
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    report = validate(tmp_path, rank_trace(slice_(5, 1), rank=-1))
    assert report.problems == ()
    assert "tracekit-ml[validate]" in str(report.not_checked)


@pytest.mark.parametrize("name", ["names", "meta_quotes", "stack_quotes"])
def test_what_torch_writes_wrong_is_an_error(name: str, traces: RealTraces) -> None:
    report = validate_trace(str(traces / "torch_2.13_quirks" / f"{name}.json.gz"))
    assert set(report.counts) == {"perfetto-invalid-json"}
    assert report.errors > 0
    assert report.problems[0].offset_bytes is not None
