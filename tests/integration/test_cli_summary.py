"""``tracekit summary`` as a person and as a script meets it."""

from __future__ import annotations

import ftplib
import gzip
import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from tracekit.check.schemas import compile_schema
from tracekit.cli import main

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "\x1b[2J\x1b]0;owned\x07\u202eevil\r\n"


def rank_trace(rank: int, name: str = "forward", length: int = 50) -> str:
    pid = 100 + rank
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "tracekit_metadata", "pid": pid, "tid": pid, "args": {"rank": rank, "pid": pid}},
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": pid, "args": {"name": "MainThread"}},
    ]
    for step in range(4):
        at = 1000 * step
        batch = {"ph": "X", "name": "batch", "cat": "training loop", "args": {"batch": step}}
        events += [
            {**batch, "pid": pid, "tid": 9, "ts": at, "dur": 1000},
            {"ph": "X", "name": "dataloader", "cat": "", "pid": pid, "tid": pid, "ts": at, "dur": 100 + rank},
            {"ph": "X", "name": name, "cat": "", "pid": pid, "tid": pid, "ts": at + 200, "dur": length * (1 + rank)},
        ]
    return json.dumps(events)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "rank0.json").write_text(rank_trace(0))
    (folder / "rank1.json.gz").write_bytes(gzip.compress(rank_trace(1).encode()))
    return folder


def test_steps_stages_markers_and_gaps_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[:4] == [
        "A step takes 1.00 ms on average, over 4 steps of 2 ranks.",
        "82.5% of the step is in no marker: put markers around its stages.",
        "Waiting for data takes up to 10.1% of the step.",
        "Next: tracekit stragglers compares the ranks, tracekit report draws the steps.",
    ]
    for words in (
        "2 files, 24 events, 2 ranks",
        "  waiting for data    10.0%    10.1%    10.1%        1",
        "  in no marker        79.9%    82.5%    85.0%        0",
        "  forward        7.5%  50.0 µs  75.0 µs  100 µs        1",
        "  dataloader      8  400 µs  402 µs  404 µs     1     10.1%",
        "longest gaps",
        "MainThread",
    ):
        assert words in out
    assert max(map(len, lines)) <= 80
    assert main(["summary", "--top", "1", str(folder)]) == 0
    assert "and 1 more; --top N shows N, --json all" in capsys.readouterr().out
    assert main(["summary", "--per-rank", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "     0      4  1.00 ms  1.00 ms  1.00 ms  1.00 ms  1.00 ms    10.0%       85.0%" in out
    assert max(map(len, out.splitlines())) <= 80
    assert main(["summary", "--json", str(folder / "*")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert compile_schema("summary")(document) is None
    assert [rank["stages"][1]["total_ns"] for rank in document["ranks"]] == [200_000, 400_000]


def test_a_url_is_read_like_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = fsspec.filesystem("memory")
    for path in folder.iterdir():
        files.pipe(f"/summary/{path.name}", path.read_bytes())
    try:
        assert main(["summary", "memory://summary/"]) == 0
        remote = capsys.readouterr().out
    finally:
        files.rm("/summary", recursive=True)
    assert main(["summary", str(folder)]) == 0
    assert remote == capsys.readouterr().out


def test_a_storage_that_cannot_be_reached_is_no_fault_of_tracekit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    # FTP's file system connects when it is made.
    monkeypatch.setattr(ftplib.FTP, "connect", connect)
    assert main(["summary", "ftp://nowhere.invalid/run"]) == 1
    err = capsys.readouterr().err
    assert "ftp://nowhere.invalid/run: cannot be reached: Name or service not known" in err
    assert "fault of tracekit" not in err


def test_nothing_in_a_trace_is_obeyed_by_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "evil.json").write_text(rank_trace(0, name=EVIL))
    assert main(["summary", str(tmp_path / "evil.json")]) == 0
    out = capsys.readouterr().out
    assert "evil" in out
    assert all(char.isprintable() for char in out.replace("\n", ""))


def test_damage_is_told_and_is_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cut.json").write_text(rank_trace(0)[:-700] + "garbage }{ ]]")
    assert main(["summary", str(tmp_path / "cut.json")]) == 3
    assert "in the files cannot be read: what stood there is not counted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["empty.json"], 1, "empty"),
        (["text.json"], 1, "this is not a trace"),
        (["object.json"], 1, "this is not a trace"),
        (["missing.json"], 1, "missing.json"),
        ([], 2, "INPUT"),
        (["--top", "0", "x.json"], 2, "--top"),
        (["--top", "٣", "x.json"], 2, "--top"),
    ],
)
def test_wrong_input_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (("empty", ""), ("text", "hello"), ("object", '{"a": 1}')):
        (tmp_path / f"{name}.json").write_text(content)
    assert main(["summary", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert code == 2 or err.count("\n") == 1
    assert err.splitlines()[-1].startswith("tracekit")
    assert words in err


@pytest.mark.parametrize(
    ("verb", "package", "extra"),
    [
        ("summary", "numpy", "explain"),
        ("stragglers", "duckdb", "explain"),
        ("diff", "numpy", "explain"),
        ("query", "duckdb", "explain"),
        ("query --engine perfetto", "perfetto", "perfetto"),
        ("report", "duckdb", "report"),
        ("report", "jinja2", "report"),
        ("serve", "uvicorn", "serve"),
    ],
)
def test_without_the_extra_the_install_command_is_named(folder: Path, verb: str, package: str, extra: str) -> None:
    code = f"import sys; sys.modules['{package}'] = None; from tracekit.cli import main; sys.exit(main(sys.argv[1:]))"
    more = {"diff": [str(folder)], "query": ["select 1"]}.get(verb.split(maxsplit=1)[0], [])
    command = [sys.executable, "-c", code, *verb.split(), str(folder / "rank0.json"), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith(f": pip install 'tracekit-ml[{extra}]'")


def test_a_bomb_of_nesting_in_gzip_ends_in_bounded_memory(tmp_path: Path) -> None:
    # 120,000 slices in each other, each of its own name: deeper than Perfetto would show, and on one track.
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"[\n")
        for start in range(0, 120_000, 10_000):
            file.write(
                b",\n".join(
                    b'{"ph":"X","name":"n%d","pid":1,"tid":1,"ts":%d,"dur":%d}' % (at, at, 240_000 - 2 * at)
                    for at in range(start, start + 10_000)
                )
                + b",\n"
            )
        file.write(b"{}]")
    code = (
        "import pathlib, re, sys; from tracekit.cli import main; code = main(['summary', sys.argv[1]]); "
        "status = pathlib.Path('/proc/self/status').read_text(); "  # not ru_maxrss, which counts what the parent had
        "print(code, int(re.search(r'VmHWM:\\s*(\\d+)', status)[1]) // 1024, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    exit_code, megabytes = map(int, done.stderr.split())
    assert exit_code in (0, 3)
    assert megabytes < 400
    assert "(all other names)" in done.stdout or "names are beyond the first" in done.stdout
