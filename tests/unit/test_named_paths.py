"""Every function of the Python interface takes the traces that it is told as text or as paths, one or several."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tracekit
from tracekit import ConfigError, JSONTraceHandler, Profiler
from tracekit.anonymising import anonymise_traces
from tracekit.timers import read_timers
from tracekit.validation import validate_file

if TYPE_CHECKING:
    from collections.abc import Callable

ANALYSES = (tracekit.summarize_traces, tracekit.find_stragglers, tracekit.diff_traces)
ANSWERS = (*ANALYSES, tracekit.merge_traces, tracekit.validate_trace, tracekit.recover_trace)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A rank trace, written where a path says."""
    path = tmp_path / "rank0.json"
    with Profiler(trace_handlers=[JSONTraceHandler(path)], rank=0, world_size=1) as profiler:
        for _ in range(3):
            with profiler.marker("forward", categories=["timer"]):
                pass
            profiler.step()
    return path


def asked(function: Callable[..., Any], traces: Any) -> Any:
    return function(traces, traces) if function is tracekit.diff_traces else function(traces)


def test_all_that_is_told_traces_is_looked_at_here() -> None:
    told = {
        value
        for name in tracekit.__all__
        if inspect.isfunction(value := getattr(tracekit, name)) and name.endswith(("_traces", "_trace", "_stragglers"))
    }
    assert told == set(ANSWERS)


@pytest.mark.parametrize("function", ANALYSES)
def test_analyses_take_one_trace_or_several_as_text_or_path(function: Callable[..., Any], trace: Path) -> None:
    expected = asked(function, [str(trace)])
    for traces in (str(trace), trace, [trace], (trace,), trace.parent):
        assert asked(function, traces) == expected


def test_two_ranks_of_what_can_be_walked_through_once_are_compared(trace: Path) -> None:
    with pytest.raises(ConfigError, match="rank 1 is not in the traces"):
        tracekit.diff_traces(iter([trace]), rank_a=0, rank_b=1)


def test_a_merge_takes_paths_for_all_that_it_is_told(trace: Path, tmp_path: Path) -> None:
    tracekit.merge_traces(str(tmp_path / "text.json"), [str(trace)], ranks={str(trace): 3})
    report = tracekit.merge_traces(tmp_path / "path.json", trace, ranks={trace: 3})
    assert report.output == str(tmp_path / "path.json")
    assert [rank.rank for rank in report.ranks] == [3]
    assert (tmp_path / "path.json").read_bytes() == (tmp_path / "text.json").read_bytes()


def test_who_names_the_inputs_first_is_told_which_is_the_output(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^output must be a path or URL, not \["):
        tracekit.merge_traces([trace], tmp_path / "merged.json")  # type: ignore[arg-type]


def test_the_others_take_a_path(trace: Path, tmp_path: Path) -> None:
    assert tracekit.validate_trace(trace) == tracekit.validate_trace(str(trace))
    assert validate_file(trace) == validate_file(str(trace))
    assert tracekit.recover_trace(trace, tmp_path / "recovered.json").events > 0
    assert anonymise_traces([(trace, tmp_path / "anonymous.json")])[0][0].events > 0
    assert read_timers(trace) == read_timers(str(trace))


@pytest.mark.parametrize("function", ANALYSES)
@pytest.mark.parametrize("traces", [3, None, b"rank0.json", [3], [None]])
def test_what_is_no_path_is_named(function: Callable[..., Any], traces: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be (a path|paths)"):
        asked(function, [traces, traces] if isinstance(traces, list) else traces)


@pytest.mark.parametrize("function", ANALYSES)
def test_letters_are_not_taken_for_names_of_markers(function: Callable[..., Any], trace: Path) -> None:
    with pytest.raises(ConfigError, match=r"inside must be several names, such as \['train'\], not one text"):
        asked(lambda *traces: function(*traces, inside="train"), trace)


def test_a_url_that_pathlib_has_broken_is_not_taken_for_a_folder() -> None:
    url = Path("s3://bucket/run")
    for use in (tracekit.summarize_traces, tracekit.validate_trace, lambda path: JSONTraceHandler(path / "rank0.json")):
        with pytest.raises(
            ConfigError, match=r"pathlib makes another thing of a URL \(s3:/bucket/run.*give it as text"
        ):
            use(url)
