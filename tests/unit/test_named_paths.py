"""Every function of the Python interface takes the traces that it is told as text or as paths, one or several."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tracekit
from tracekit import ConfigError, JSONTraceHandler, Profiler
from tracekit.arguments import resolve_path
from tracekit.check.anonymise import anonymise_traces
from tracekit.check.validation import validate_file
from tracekit.cli import VERBS, _load
from tracekit.outbox.spool import default_root
from tracekit.timers import read_timers

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


def test_who_names_the_inputs_first_is_told_which_is_the_output(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^output must be a path or URL, not \["):
        tracekit.merge_traces([trace], tmp_path / "merged.json")  # type: ignore[arg-type]
    before = trace.read_bytes()
    with pytest.raises(ConfigError, match="the output is one of the inputs"):
        tracekit.merge_traces(trace, [trace], overwrite=True)
    assert trace.read_bytes() == before


@pytest.mark.parametrize("function", ANALYSES)
@pytest.mark.parametrize("traces", [3, [None]], ids=str)
def test_what_is_no_path_is_named(function: Callable[..., Any], traces: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be (a path|paths)"):
        asked(function, [traces, traces] if isinstance(traces, list) else traces)
    with pytest.raises(ConfigError, match=r"inside must be several names, such as \['train'\], not one text"):
        asked(lambda *traces: function(*traces, inside="train"), "rank0.json")


def test_a_url_that_pathlib_has_broken_is_not_taken_for_a_folder() -> None:
    url = Path("s3://bucket/run")
    for use in (tracekit.summarize_traces, tracekit.validate_trace, lambda path: JSONTraceHandler(path / "rank0.json")):
        with pytest.raises(
            ConfigError, match=r"pathlib makes another thing of a URL \(s3:/bucket/run.*give it as text"
        ):
            use(url)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("file:///tmp/a/t.json", "/tmp/a/t.json"),
        ("file://localhost/tmp/t.json", "/tmp/t.json"),
        ("file:/tmp/t.json", "/tmp/t.json"),
        ("FILE:///tmp/t.json", "/tmp/t.json"),
        ("file:///tmp/a%20b/%7Brank%7D.json", "/tmp/a b/{rank}.json"),
        ("file:///tmp/100%/t.json", "/tmp/100%/t.json"),
        ("file:///tmp/%00.json", "/tmp/%00.json"),
        ("file://traces/t.json", "traces/t.json"),  # as fsspec reads it
        ("file://~/t.json", "/home/me/t.json"),
        ("~", "/home/me"),
        ("~/traces/{run_id}/t.json", "/home/me/traces/{run_id}/t.json"),
        ("a/~/t.json", "a/~/t.json"),
        ("~nobody-has-this-name/t.json", "~nobody-has-this-name/t.json"),
        ("file:t.json", "file:t.json"),
        ("s3://bucket/~/t.json", "s3://bucket/~/t.json"),
        ("", ""),
    ],
)
def test_resolve_path_returns_the_local_path_of_file_urls_and_of_the_home_folder(
    given: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert resolve_path(given) == path


@pytest.fixture(params=["path", "URL", "home"])
def named(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return the name of a file of ``tmp_path`` in one of three forms; the current folder is another one."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    forms = {
        "path": lambda name: tmp_path / name,
        "URL": lambda name: (tmp_path / name).as_uri(),
        "home": "~/{}".format,
    }
    return forms[request.param]


def test_recording_writes_to_paths_file_urls_and_the_home_folder(named: Callable[[str], Any], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    handler = JSONTraceHandler(named("runs/rank{rank}.json"))
    sources = [tracekit.TorchProfiler(named("runs/torch{batch}.json"))]
    capture = tracekit.on_demand(named("runs/control"))
    with Profiler(handler, capture, sources=sources, rank=0, world_size=1) as profiler:
        profiler.capture(steps=1, warmup=0)
        for _ in range(3):
            profiler.step()
            torch.zeros(1)
    assert handler.paths == [str(tmp_path / "runs" / "rank0.json")]
    assert [file.name.rstrip(".0123456789json") for file in sorted((tmp_path / "runs").iterdir())] == [
        "control",
        "rank",
        "torch",
    ]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_functions_take_paths_file_urls_and_the_home_folder(
    named: Callable[[str], Any], trace: Path, tmp_path: Path
) -> None:
    source = named(trace.name)
    for function in ANALYSES:
        assert asked(function, source) == asked(function, str(trace))
    report = tracekit.merge_traces(named("out/merged.json"), source, ranks={source: 3})
    assert (report.output, [rank.rank for rank in report.ranks]) == (str(tmp_path / "out" / "merged.json"), [3])
    assert tracekit.validate_trace(source) == tracekit.validate_trace(str(trace))
    assert validate_file(source) == validate_file(str(trace))
    (tmp_path / "torn.json").write_bytes(trace.read_bytes()[:-20])
    assert tracekit.recover_trace(named("torn.json"), named("out/recovered.json")).events > 0
    assert anonymise_traces([(source, named("out/anonymous.json"))])[0][0].events > 0
    assert read_timers(source) == read_timers(str(trace))
    assert len(list((tmp_path / "out").iterdir())) == 3
    assert default_root({"TRACEKIT_SPOOL": str(named("spool"))}) == tmp_path / "spool"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_every_path_of_a_command_is_resolved() -> None:
    """A new argument that takes a path must be resolved too."""
    paths = {"FILE", "INPUT", "OUTPUT", "FOLDER", "DIR", "ROOT", "PLACE", "SPOOL", "PATH", "BEFORE", "AFTER"}
    forgotten = []
    for verb in VERBS:
        parser = argparse.ArgumentParser()
        _load(verb).prepare_parser(parser)
        forgotten += [
            (verb, action.dest)
            for action in parser._actions
            if (action.metavar in paths or action.dest == "output")
            and getattr(action.type, "__name__", None) not in ("path_or_url", "local_path", "resolve_path")
        ]
    assert forgotten == []
