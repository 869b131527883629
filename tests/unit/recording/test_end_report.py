"""The report at the end of a run: one line, on rank 0, with the command that shows the run."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import JSONTraceHandler, MemoryTraceHandler, Profiler, TraceHandler
from tracekit.cli import main
from tracekit.distributed import detect_process
from tracekit.recording import end_report

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.fixture(autouse=True)
def no_log_handler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program that has not configured logging, in a folder of its own. pytest adds log handlers to known loggers."""
    monkeypatch.delenv("TRACEKIT_QUIET")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(end_report, "logger", logging.Logger("tracekit", logging.INFO))


def record(template: str = "traces/{run_id}/rank{rank}.json", *handlers: TraceHandler, **options: Any) -> None:
    with Profiler([JSONTraceHandler(template), *handlers], **{"run_id": "RUN", **options}) as profiler:
        with profiler.marker("forward"):
            pass
        profiler.step()
    profiler.stop()  # a second call


def test_a_log_handler_gets_the_line_instead_of_standard_error(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    end_report.logger.addHandler(caplog.handler)
    record()
    (line,) = [record for record in caplog.records if "Next: " in record.getMessage()]
    assert line.levelno == logging.INFO
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("handlers", [[], [logging.NullHandler()]], ids=["no log handler", "a null handler"])
def test_a_run_without_log_handlers_ends_with_one_line_on_standard_error(
    handlers: list[logging.Handler], capsys: pytest.CaptureFixture[str]
) -> None:
    end_report.logger.handlers = handlers
    record()
    assert capsys.readouterr() == (
        "",
        "tracekit: wrote traces/RUN/rank0.json: 2 events, nothing lost. Next: tracekit open traces/RUN/rank0.json\n",
    )


@pytest.mark.parametrize("why", ["quiet", "other rank", "child", "nothing written"])
def test_nothing_is_reported_where_nobody_needs_it(
    why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "quiet":
        monkeypatch.setenv("TRACEKIT_QUIET", "1")
    if why == "nothing written":
        with Profiler(MemoryTraceHandler()) as profiler, profiler.marker("forward"):
            pass
    else:
        record(
            rank=1 if why == "other rank" else 0,
            world_size=2,
            process=detect_process(run_id="RUN").as_child("decoder") if why == "child" else None,
        )
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_reports_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with Profiler(JSONTraceHandler("rank{rank}.json")) as profiler, profiler.marker("forward"):
        child = os.fork()
        if child == 0:  # pragma: no cover - in the child
            profiler.stop()
            os._exit(0)
        os.waitpid(child, 0)
        profiler.flush()
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err.count("Next: ") == 1


class Lossy(TraceHandler):
    def losses(self) -> Mapping[str, int]:
        return {"events that a test lost": 1234}

    def process_instant_event(self, *_: Any) -> None:
        raise ValueError("no")


def test_losses_and_failures_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with Profiler([JSONTraceHandler("rank{rank}.json"), Lossy()]) as profiler:
        profiler.marker("instant").instant()
    printed = capsys.readouterr().err
    assert "rank0.json: 1 event, LOST: 1 events on which the trace handler failed; LOST: 1,234 events that a" in printed
    assert " that a test lost, 1 failure. Next: " in printed


@pytest.mark.parametrize(
    ("template", "command"),
    [
        ("traces/{run_id}/rank{rank}.json", "tracekit merge -o merged.json.gz traces/RUN/"),
        ("my traces/{run_id}/{rank}/own.json", "tracekit merge -o merged.json.gz 'my traces/RUN/'"),
        ("it's/rank{rank}.json", """tracekit merge -o merged.json.gz 'it'"'"'s/'"""),
        ("traces/{run_id}-rank{rank}.json", "tracekit merge -o merged.json.gz 'traces/RUN-rank*'"),
        ("rank{rank}.json", "tracekit merge -o merged.json.gz 'rank*'"),
        ("traces/{rank}/{run_id}.json", "tracekit merge -o merged.json.gz traces/"),
    ],
)
def test_the_next_command_merges_the_ranks_of_this_run(
    template: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "{run_id}-" in template:
        record(template, rank=0, world_size=2, run_id="EARLIER")
    record(template, rank=1, world_size=2)
    capsys.readouterr()
    record(template, rank=0, world_size=2)
    line = capsys.readouterr().err
    assert line.startswith("tracekit: rank 0 of 2 wrote ")
    assert line.endswith(f" Next: {command}\n")
    assert main(shlex.split(command)[1:]) == 0
    assert "merged 2 files of 2 ranks" in capsys.readouterr().out
    assert (tmp_path / "merged.json.gz").exists()


@pytest.mark.parametrize("what", ["traces of torch", "children"])
def test_the_next_command_has_other_traces_of_the_rank_as_well(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Profiler(JSONTraceHandler("traces/{run_id}/rank{rank}.json"), run_id="RUN") as profiler:
        if what == "children":
            Path("traces/RUN/rank0-worker0-77.json").touch()
        else:
            profiler.record_chrome_json_trace_file("traces/RUN/torch-rank0.json")
    assert capsys.readouterr().err.endswith(" Next: tracekit merge -o merged.json.gz traces/RUN/\n")


def test_a_standard_error_without_an_encoding_gets_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=written.append, flush=list))
    record()
    assert written[0].startswith("tracekit: wrote ")


class Broken:
    encoding = "utf-8"

    def write(self, _: str) -> None:
        raise OSError("closed")


@pytest.mark.parametrize("stream", [None, Broken()])
def test_a_broken_standard_error_does_not_reach_training(stream: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    record()
