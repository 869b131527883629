"""Kinds of input on the command line: packed, as lines, from standard input and pipes, folders of dumps, profiles of XLA."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.bad_traces import METADATA
from tests.merge_inputs import names
from tests.unit.formats.test_jax_traces import jax_trace, xplane
from tracekit.cli import main
from tracekit.view.open.prepare import mended, prepare

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.perfetto import Engine

EVENTS: list[dict[str, Any]] = [
    {"ph": "M", "name": "tracekit_metadata", "pid": 1, "tid": 1, "args": {**METADATA, "rank": 3}},
    {"ph": "X", "name": "forward", "cat": "c", "pid": 1, "tid": 1, "ts": 5, "dur": 20},
    {"ph": "X", "name": "layer", "cat": "c", "pid": 1, "tid": 1, "ts": 10, "dur": 5},
]
ARRAY = json.dumps(EVENTS).encode()
LINES = b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS)


def zipped(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def zstd(content: bytes) -> bytes:
    packed: bytes = pytest.importorskip("zstandard").compress(content)
    return packed


KINDS: dict[str, Callable[[], bytes]] = {
    "plain": lambda: ARRAY,
    "lines": lambda: LINES,
    "lines in gzip": lambda: gzip.compress(LINES),
    "zip": lambda: zipped("t.json", ARRAY),
    "zip of lines": lambda: zipped("t.jsonl", LINES),
    "zip of gzip": lambda: zipped("t.json.gz", gzip.compress(ARRAY)),
    "zstd": lambda: zstd(ARRAY),
    "zstd of lines": lambda: zstd(LINES),
}
SLICES = """
select substr(process.name, 1, 6), slice.name, slice.dur from slice join thread_track on track_id = thread_track.id
join thread using (utid) join process using (upid) order by slice.ts
"""
SHOWN = [("rank 3", "forward", 20_000), ("rank 3", "layer", 5_000)]


def shown(engine: Engine, path: Path) -> list[tuple[Any, ...]]:
    with engine.load(path) as trace:
        assert trace.errors() == []
        return trace.rows(SLICES)


def slices(engine: Engine, path: str | Path) -> object:
    """Return how many slices Perfetto shows; None of a file that it refuses."""
    try:
        with engine.load(path) as trace:
            return trace.scalar("select count(*) from slice")
    except Exception:
        return None


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files, also of child processes."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def run(arguments: list[str], folder: Path, content: bytes | None = None, **options: Any) -> Any:
    command = [sys.executable, "-m", "tracekit", *arguments]
    streams = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **({} if "stdin" in options else {"input": content}),
    }
    return subprocess.run(command, cwd=folder, check=False, timeout=240, **{**streams, **options})


def test_merge_takes_standard_input_from_a_pipe_and_from_a_file(engine: Engine, tmp_path: Path, scratch: Path) -> None:
    done = run(["merge", "-o", "piped.json", "-"], tmp_path, gzip.compress(ARRAY))
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"rank 3: stdin" in done.stdout
    assert b"tracekit-pipe" not in done.stdout
    (tmp_path / "file.json").write_bytes(ARRAY)
    with (tmp_path / "file.json").open("rb") as file:
        done = run(["merge", "-o", "named.json", "-"], tmp_path, stdin=file)
    assert done.returncode == 0
    assert b"rank 3: file.json" in done.stdout  # nothing is copied
    for name in ("piped.json", "named.json"):
        assert shown(engine, tmp_path / name) == SHOWN
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [
        (["summary", "-"], 0, b"forward"),
        (["validate", "-"], 0, b"ok: 3 events"),
        (["recover", "-"], 2, b"-: name the output with -o"),
        (["anonymise", "-"], 2, b"-: name the output with -o"),
        (["merge", "-o", "out.json", "-", "-"], 2, b"-: standard input can be named once"),
        (["diff", "-", "-"], 2, b"-: standard input can be named once"),
        (["run", "-o", "-", "--", "true"], 2, b"run cannot write to standard output; name a file\n"),
        (["report", "-o", "-", "-"], 0, b"<!doctype html>"),
        (["query", "--format", "csv", "-o", "-", "-", "select name from events order by name"], 0, b"layer\r\n"),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else "",
)
def test_commands_take_standard_input(tmp_path: Path, arguments: list[str], code: int, printed: bytes) -> None:
    done = run(arguments, tmp_path, ARRAY)
    assert done.returncode == code, done
    assert printed in done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["merge", "-o", "-", "-"],
        ["convert", "-", "-"],
        ["trim", "-o", "-", "--categories", "c", "-"],
        ["anonymise", "-o", "-", "-"],
        ["recover", "-o", "-", "-"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_write_to_standard_output_and_their_messages_to_standard_error(
    tmp_path: Path, scratch: Path, arguments: list[str]
) -> None:
    done = run(arguments, tmp_path, ARRAY)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    events = document if isinstance(document, list) else document["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["forward", "layer"]
    assert (b"wrote -" in done.stderr) == (arguments[0] != "recover")
    assert str(scratch).encode() not in done.stdout
    assert b"next: " not in done.stderr
    assert list(scratch.iterdir()) == []
    assert list(tmp_path.glob("*.json*")) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["merge", "-o", "out.json"],
        ["validate"],
        ["recover", "-o", "out.json"],
        ["anonymise", "-o", "out.json"],
        ["trim", "-o", "out.json", "--name", "forward"],
        ["split", "--by-rank"],
        ["summary"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_named_pipe_is_read_by_every_command(
    arguments: list[str],
    tmp_path: Path,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[ARRAY])
    writer.start()
    assert main([*arguments, "pipe"]) == 0
    writer.join()
    assert capsys.readouterr().err == ""
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_takes_every_kind_of_input(
    engine: Engine, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = tmp_path / "trace"
    trace.write_bytes(KINDS[kind]())
    assert main(["merge", "-q", "-o", "merged.json", "trace"]) == 0
    assert main(["convert", "-q", "trace", "converted.pftrace"]) == 0
    assert main(["trim", "-q", "-o", "trimmed.json.gz", "--categories", "c", "trace"]) == 0
    assert main(["anonymise", "-q", "-o", "anonymous.json", "trace"]) == 0
    for name in ("merged.json", "converted.pftrace", "trimmed.json.gz"):
        assert shown(engine, tmp_path / name) == SHOWN, name
    if main(["recover", "-q", "trace", "-o", "recovered.json"]) == 0 and (tmp_path / "recovered.json").exists():
        assert slices(engine, tmp_path / "recovered.json") == 2
    (tmp_path / "open").mkdir()
    assert slices(engine, mended(prepare([str(trace)], tmp_path / "open"), tmp_path / "open").path) == 2

    capsys.readouterr()
    assert main(["summary", "--json", "trace"]) == 0
    markers = json.loads(capsys.readouterr().out)["markers"]
    assert {row["name"]: row["total_ns"] for row in markers} == {"forward": 20_000, "layer": 5_000}
    # It is valid if Perfetto shows it.
    assert main(["validate", "trace"]) == (0 if slices(engine, trace) == 2 else 3)


def test_zip_with_several_traces_is_refused_with_their_names_and_does_not_end_a_recovery_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.writestr("a.json", ARRAY)
        archive.writestr("b.json", ARRAY)
    (tmp_path / "cut.json").write_bytes(ARRAY[:-5])
    assert main(["merge", "-q", "-o", "m.json", "a.zip"]) == 1
    assert "a.zip: this zip archive holds 2 files (a.json, b.json); unpack it" in capsys.readouterr().err
    assert main(["recover", "*"]) == 1
    captured = capsys.readouterr()
    assert "holds 2 files (a.json, b.json)" in captured.err
    assert "2 files: 1 recovered, 0 whole, 1 failed" in captured.out


@pytest.mark.parametrize(
    ("stream", "arguments", "says"),
    [
        ("stdin", ["-o", "out.json", "-"], b"-: standard input is a terminal"),
        ("stdout", ["-o", "-", "t.json"], b"-: standard output is a terminal; redirect it, for example > merged.json"),
    ],
)
def test_a_terminal_is_refused_as_input_and_as_output(
    tmp_path: Path, stream: str, arguments: list[str], says: bytes
) -> None:
    (tmp_path / "t.json").write_bytes(ARRAY)
    controller, terminal = os.openpty()
    try:
        done = run(["merge", *arguments], tmp_path, **{stream: terminal})  # type: ignore[arg-type]
    finally:
        os.close(controller)
        os.close(terminal)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("{merge} <&-", 2, b"-: standard input is closed"),
        ("trap '' XFSZ; ulimit -f 1; exec {merge}", 1, b"set TMPDIR to a folder with more space"),
    ],
    ids=["closed", "no space for its copy"],
)
def test_standard_input_that_cannot_be_read_or_copied_is_reported(
    tmp_path: Path, scratch: Path, command: str, code: int, says: bytes
) -> None:
    merge = f"{sys.executable} -m tracekit merge -o out.json -"
    shell = ["sh", "-c", command.format(merge=merge)]
    done = subprocess.run(shell, cwd=tmp_path, input=ARRAY * 100, capture_output=True, check=False, timeout=240)
    assert done.returncode == code
    assert says in done.stderr
    assert list(scratch.iterdir()) == []


def test_xplane_stands_for_the_trace_next_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, profile, output = (tmp_path / name for name in ("h.trace.json.gz", "h.xplane.pb", "merged.json"))
    trace.write_bytes(jax_trace())
    profile.write_bytes(xplane())
    for inputs in ([str(profile)], [str(profile), str(trace)]):
        assert main(["merge", "-f", "--json", "-o", str(output), *inputs]) == 0
        assert "from the start in its xplane.pb" in json.loads(capsys.readouterr().out)["ranks"][0]["clock"]
        assert names(json.loads(output.read_text())) == ["dot"]
    assert main(["summary", str(profile)]) == 0
