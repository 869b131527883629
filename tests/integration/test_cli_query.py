"""``tracekit query``: on the event table, and through the package perfetto with Perfetto's own engine."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.perfetto import UnavailableError
from tests.perfetto.shell import write_shell
from tracekit.cli import main
from tracekit.view.query import Rows

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine
    from tests.real_traces import RealTraces

EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "rank 0"}},
    {"ph": "X", "name": "forward", "pid": 7, "tid": 7, "ts": 10, "dur": 5},
    {"ph": "X", "name": "backward, é", "pid": 7, "tid": 7, "ts": 20, "dur": 7.5},
]
SLICES = "select name, dur from slice order by ts"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that behaves like trace_processor_shell."""
    try:
        return write_shell(tmp_path_factory.mktemp("shell") / "trace_processor_shell")
    except UnavailableError as error:
        pytest.skip(f"Perfetto's engine: {error}")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(EVENTS, ensure_ascii=False), encoding="utf-8")
    return path


@pytest.mark.engine
def test_engine_of_perfetto_answers_for_one_trace_or_an_archive(
    trace: Path, shell: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_TRACE_PROCESSOR", str(shell))
    assert main(["query", "--engine", "perfetto", str(trace), SLICES]) == 0
    assert capsys.readouterr().out == "name          dur\n-----------  ----\nforward      5000\nbackward, é  7500\n"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(trace, "a.json")
        archive.write(trace, "b.json")
    assert main(["query", "--engine", "perfetto", "--json", str(tmp_path / "a.zip"), "select count(*) from slice"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [[4]]


@pytest.mark.engine
def test_it_agrees_with_the_engine_of_the_tests(
    traces: RealTraces, shell: Path, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    path = min((traces / "torch_2.13_gloo").rglob("*.json*"))
    sql = "select name, count(*), sum(dur), avg(dur), max(category) from slice group by name order by name"
    with engine.load(path) as loaded:
        expected = loaded.rows(sql)

    assert main(["query", "--engine", "perfetto", "--json", "--trace-processor", str(shell), str(path), sql]) == 0

    assert [tuple(row) for row in json.loads(capsys.readouterr().out)["rows"]] == expected
    assert len(expected) > 10


@pytest.mark.engine
@pytest.mark.parametrize(
    ("content", "sql", "words"),
    [
        (json.dumps(EVENTS), "select absent from slice", "the query cannot be run: .*no such column: absent"),
        ('{"traceEvents": [{"ph": "X"},', "select 1", "a.json: the trace processor does not take it: .*incomplete"),
        ("hello", "select 1", "a.json: the trace processor does not take it: "),
    ],
)
def test_what_goes_wrong_is_one_sentence(
    trace: Path, shell: Path, content: str, sql: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.write_text(content)
    assert main(["query", "--engine", "perfetto", "--trace-processor", str(shell), str(trace), sql]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert re.search(words, err)


def test_program_that_is_none_or_dies_is_said(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dies, text = tmp_path / "trace_processor_shell", tmp_path / "text"
    dies.write_text("#!/bin/sh\necho no such library >&2\nexit 1\n")
    dies.chmod(0o700)
    text.write_text("x")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for program, words in (
        (["--trace-processor", str(dies)], "no such library"),
        ([], "no such library"),  # that in the path
        (["--trace-processor", str(text)], "cannot be run as a program"),
        (["--trace-processor", str(tmp_path / "no")], "is not there"),
    ):
        assert main(["query", "--engine", "perfetto", *program, str(trace), "select 1"]) == 1
        err = capsys.readouterr().err
        assert words in err
        assert "TRACEKIT_TRACE_PROCESSOR" in err
        assert err.count("\n") == 1


def test_without_the_internet_the_program_can_be_given(
    trace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The package downloads with curl, to the user's home.
    curl = tmp_path / "curl"
    curl.write_text("#!/bin/sh\nexit 6\n")
    curl.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["query", "--engine", "perfetto", "--json", str(trace), "select 1"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "the trace processor cannot be downloaded (curl ended with 6); give a trace_processor_shell with" in err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["{trace}", " "], 2, "the query is empty"),
        (["--format", "parquet", "{trace}", "select 1"], 2, "name a file with -o"),
        (["-o", "{trace}", "{trace}", "select 1"], 1, "already exists"),
        (["{trace}x", "select 1"], 1, "a.jsonx: cannot be read: No such file"),
        (["{trace}"], 2, "required: SQL"),
        (["{trace}", "other.json", "select 1"], 2, "one trace"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_started(
    trace: Path,
    arguments: list[str],
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRACEKIT_TRACE_PROCESSOR", "/nowhere/that/exists")
    assert main(["query", "--engine", "perfetto", *(argument.format(trace=trace) for argument in arguments)]) == code
    assert words in capsys.readouterr().err


def test_query_may_come_from_standard_input(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    module = importlib.import_module("tracekit.cli.query")

    def note(file: str, sql: str, **options: Any) -> Rows:
        asked.append((file, sql))
        return Rows(["n"], [(1,)])

    monkeypatch.setattr(module, "query", note)
    monkeypatch.setattr("sys.stdin", io.StringIO("select 1"))
    assert main(["query", "--engine", "perfetto", str(trace), "-"]) == 0
    assert asked == [(str(trace), "select 1")]
    assert capsys.readouterr().out == "n\n-\n1\n"


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("form", ["csv", "json", "table"])
def test_no_name_gives_orders_to_a_terminal(
    form: str, terminal: bool, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("tracekit.cli.query")
    monkeypatch.setattr(module, "query", lambda *_, **__: Rows(["n"], [("a\x1b[2Jb",), ("c",)]))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert main(["query", "--engine", "perfetto", "-q", "--format", form, str(trace), "select 1"]) == 0
    out = capsys.readouterr().out
    # What goes into a file or a pipe stays as it is.
    assert ("\x1b[2J" in out) == (form == "csv" and not terminal)
    assert re.search(r"\bc\b", out)


def test_answer_that_cannot_be_read_is_told_in_words(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a trace processor that ran out of memory over a packed bomb: protobuf's errors are no OSError."""

    def parse(_piece: bytes) -> Any:
        raise ValueError("Wire format was corrupt")

    processor = SimpleNamespace(http=SimpleNamespace(parse=parse), close=lambda: None)
    monkeypatch.setattr("tracekit.view.query._start", lambda _program: processor)
    assert main(["query", "--engine", "perfetto", str(trace), SLICES]) == 1
    error = capsys.readouterr().err
    assert "what the trace processor answers cannot be read" in error
    assert "ValueError: Wire format was corrupt" in error
    assert "fault of tracekit" not in error


# The event table.

TOTALS = "select name, sum(duration_ns) as total_ns from events where phase = 'X' group by name order by 2"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("duckdb")
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.usefixtures("cache")
def test_event_table_in_every_format(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", str(trace), TOTALS]) == 0
    assert capsys.readouterr() == (
        "name         total_ns\n-----------  --------\nforward          5000\nbackward, é      7500\n",
        "",
    )
    assert main(["query", str(trace), TOTALS, "--format", "csv"]) == 0
    assert list(csv.reader(io.StringIO(capsys.readouterr().out)))[1] == ["forward", "5000"]
    assert main(["query", str(trace), TOTALS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [["forward", 5000], ["backward, é", 7500]]
    output = tmp_path / "rows.parquet"
    assert main(["query", str(trace), TOTALS, "-o", str(output)]) == 0
    duckdb = importlib.import_module("duckdb")
    with duckdb.connect() as connection:
        assert connection.execute(f"SELECT * FROM '{output}'").fetchall() == [("forward", 5000), ("backward, é", 7500)]
    assert main(["query", str(trace), TOTALS, "--max-rows", "1"]) == 1
    assert "more than 1 rows" in capsys.readouterr().err
    assert main(["query", str(trace), TOTALS, "-o", str(output)]) != 0
    assert "already exists" in capsys.readouterr().err


@pytest.mark.usefixtures("cache")
def test_cells_of_all_kinds_are_written(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "select null, true, 1.50::decimal(9, 2), [1, 2], date '2026-01-02', 'a'::blob, 2::hugeint"
    assert main(["query", str(trace), sql, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [[None, "true", 1.5, "[1, 2]", "2026-01-02", "61", 2]]


def test_schema_is_printed_without_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "--schema"]) == 0
    assert "  correlation    BIGINT" in capsys.readouterr().out


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("program", "out"),
    [
        (["-m", "tracekit", "query", "{trace}", "select count(args) as n from events"], "n\n-\n0\n"),
        (["-c", "import tracekit; found = tracekit.read_events('{trace}'); print(len(found.rows()))"], "2\n"),
    ],
    ids=["command", "relation that stays open"],
)
def test_process_leaves_standard_error_empty(trace: Path, program: list[str], out: str) -> None:
    command = [sys.executable, "-W", "error", *(argument.format(trace=trace) for argument in program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, out, "")
