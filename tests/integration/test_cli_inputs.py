"""Kinds of input on the command line: packed, as lines, from standard input and pipes, folders of dumps, profiles of XLA."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.bad_traces import METADATA
from tests.flight_dumps import as_json, as_pickle, hung
from tests.real_traces import OWN
from tests.unit.formats.test_jax_traces import jax_trace, xplane
from tracekit.cli import main

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


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files, also of child processes."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture(params=KINDS)
def trace(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "trace"
    path.write_bytes(KINDS[request.param]())
    return path


def test_every_kind_of_input_merges_converts_trims_and_recovers_to_the_same_slices(
    engine: Engine, tmp_path: Path, trace: Path
) -> None:
    assert main(["merge", "-q", "-o", "merged.json", "trace"]) == 0
    assert main(["convert", "-q", "trace", "converted.pftrace"]) == 0
    assert main(["trim", "-q", "-o", "trimmed.json.gz", "--categories", "c", "trace"]) == 0
    assert main(["anonymise", "-q", "-o", "anonymous.json", "trace"]) == 0
    for name in ("merged.json", "converted.pftrace", "trimmed.json.gz"):
        assert shown(engine, tmp_path / name) == SHOWN, name
    if main(["recover", "-q", "trace", "-o", "recovered.json"]) == 0 and (tmp_path / "recovered.json").exists():
        with engine.load(tmp_path / "recovered.json") as recovered:
            assert recovered.scalar("select count(*) from slice") == 2


def test_every_kind_of_input_is_summed_up(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "--json", str(trace)]) == 0
    markers = json.loads(capsys.readouterr().out)["markers"]
    assert {row["name"]: row["total_ns"] for row in markers} == {"forward": 20_000, "layer": 5_000}


def test_every_kind_of_input_validates_as_perfetto_takes_it(
    engine: Engine, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["validate", str(trace)])
    printed = capsys.readouterr().out
    try:
        with engine.load(trace) as loaded:
            is_shown = loaded.scalar("select count(*) from slice") == 2
    except Exception:
        is_shown = False
    assert code == (0 if is_shown else 3), printed


def test_open_hands_over_what_perfetto_takes(engine: Engine, tmp_path: Path, trace: Path) -> None:
    from tracekit.view.open.prepare import mended, prepare

    folder = tmp_path / "open"
    folder.mkdir()
    prepared = mended(prepare([str(trace)], folder), folder)
    with engine.load(prepared.path) as loaded:
        assert loaded.scalar("select count(*) from slice") == 2


def test_zip_with_several_traces_is_refused_with_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["merge", "-q", "-o", "m.json", str(OWN / "torch_2.13_gloo/plain_rank0_step4.json.gz")]) == 0
    shutil.copy(OWN / "torch_2.13_gloo/plain_rank0_step4.json.gz", "rank0.json.gz")
    shutil.copy(OWN / "torch_2.13_gloo/plain_rank1_step4.json.gz", "rank1.json.gz")
    assert main(["merge", "-q", "-o", "run.zip", "rank0.json.gz", "rank1.json.gz"]) == 0
    assert main(["merge", "-q", "-f", "-o", "m.json", "run.zip"]) == 1
    error = capsys.readouterr().err
    assert "run.zip: this zip archive holds 2 files (rank0.json, rank1.json); unpack it" in error


def test_zip_with_several_traces_does_not_end_a_recovery_of_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.writestr("a.json", ARRAY)
        archive.writestr("b.json", ARRAY)
    (tmp_path / "cut.json").write_bytes(ARRAY[:-5])
    assert main(["recover", "*"]) == 1
    captured = capsys.readouterr()
    assert "holds 2 files (a.json, b.json)" in captured.err
    assert "2 files: 1 recovered, 0 whole, 1 failed" in captured.out


# ---- standard input and pipes -------------------------------------------------------------------------------------------


def run(arguments: list[str], folder: Path, content: bytes | None = None, **options: Any) -> Any:
    command = [sys.executable, "-m", "tracekit", *arguments]
    return subprocess.run(command, cwd=folder, input=content, capture_output=True, check=False, timeout=240, **options)


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
        (["recover", "-"], 2, b"-: name the recovered trace with -o"),
        (["recover", "-o", "out.json", "-"], 0, b"whole, 3 events"),
        (["anonymise", "-"], 2, b"-: name the output with -o"),
        (["merge", "-o", "out.json", "-", "-"], 2, b"-: standard input can be named once"),
        (["convert", "-", "out.pftrace"], 0, b"wrote out.pftrace"),
        (["diff", "-", "-"], 2, b"-: standard input can be named once"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
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


def test_recover_repairs_in_a_pipeline(tmp_path: Path) -> None:
    done = run(["recover", "-o", "-", "-"], tmp_path, ARRAY[:-20])
    assert done.returncode in (0, 3)
    assert b'"forward"' in done.stdout
    assert json.loads(done.stdout)
    assert b"recovered into -" in done.stderr


def test_a_report_goes_to_standard_output(tmp_path: Path) -> None:
    done = run(["report", "-o", "-", "-"], tmp_path, ARRAY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.lower().startswith(b"<!doctype html>")
    done = run(
        ["query", "--format", "csv", "-o", "-", "-", "select name from events where name = 'layer'"], tmp_path, ARRAY
    )
    assert done.stdout.split() == [b"name", b"layer"]


def test_a_command_that_cannot_write_to_standard_output_or_a_terminal_says_so(tmp_path: Path) -> None:
    done = run(["run", "-o", "-", "--", "true"], tmp_path)
    assert (done.returncode, done.stderr) == (2, b"tracekit: run cannot write to standard output; name a file\n")
    (tmp_path / "trace.json").write_bytes(ARRAY)
    controller, terminal = os.openpty()
    try:
        command = [sys.executable, "-m", "tracekit", "merge", "-o", "-", "trace.json"]
        refused = subprocess.run(
            command, cwd=tmp_path, stdout=terminal, stderr=subprocess.PIPE, check=False, timeout=120
        )
    finally:
        os.close(controller)
        os.close(terminal)
    assert refused.returncode == 2
    assert b"-: standard output is a terminal; redirect it, for example > merged.json" in refused.stderr


def test_closed_standard_input_is_reported(tmp_path: Path) -> None:
    command = f"{sys.executable} -m tracekit merge -o out.json - <&-"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, check=False, timeout=240)
    assert done.returncode == 2
    assert b"-: standard input is closed" in done.stderr


def test_terminal_as_standard_input_is_refused(tmp_path: Path) -> None:
    controller, terminal = os.openpty()
    try:
        done = run(["merge", "-o", "out.json", "-"], tmp_path, stdin=terminal)
    finally:
        os.close(controller)
        os.close(terminal)
    assert done.returncode == 2
    assert b"-: standard input is a terminal" in done.stderr


def test_pipe_for_whose_copy_the_disk_has_no_space_is_reported(tmp_path: Path, scratch: Path) -> None:
    command = f"trap '' XFSZ; ulimit -f 1; exec {sys.executable} -m tracekit merge -o out.json -"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, input=ARRAY * 100, capture_output=True, check=False, timeout=240
    )
    assert done.returncode == 1
    assert b"-: cannot be copied to" in done.stderr
    assert b"set TMPDIR to a folder with more space" in done.stderr
    assert list(scratch.iterdir()) == []


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


# ---- folders of flight-recorder dumps, profiles of XLA ----------------------------------------------------------------


@pytest.mark.parametrize("names", ["nccl_trace_rank_{}", "dump{}", "comm_lib_trace_rank_{}.bin"])
def test_folder_of_flight_recorder_dumps_is_recognised_by_content(
    engine: Engine, tmp_path: Path, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps, output = tmp_path / "dumps", tmp_path / "merged.json"
    dumps.mkdir()
    for rank, encode in enumerate((as_pickle, as_json)):
        (dumps / names.format(rank)).write_bytes(encode(hung()))
    (dumps / "notes").write_text("not a dump")
    (dumps / "archive").write_bytes(zipped("a", b"b") + b"x")
    assert main(["merge", "-q", "-o", str(output), str(dumps)]) == 0
    ranks = "select distinct substr(name, 1, 6) from process where name like 'rank%' order by 1"
    with engine.load(output) as trace:
        assert trace.rows(ranks) == [("rank 0",), ("rank 1",)]
    assert main(["trim", "-q", "-o", str(tmp_path / "t.json"), "--ranks", "1", str(dumps)]) == 0
    capsys.readouterr()
    assert main(["summary", "--json", str(dumps)]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == 2


def test_xplane_stands_for_the_trace_next_to_it_and_gives_its_start(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "h.trace.json.gz").write_bytes(jax_trace())
    (tmp_path / "h.xplane.pb").write_bytes(xplane())
    output = tmp_path / "merged.json"
    assert main(["merge", "--json", "-o", str(output), str(tmp_path / "h.xplane.pb")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "from the start in its xplane.pb" in report["ranks"][0]["clock"]
    with engine.load(output) as trace:
        assert trace.rows("select name from slice") == [("dot",)]
    both = [str(tmp_path / "h.xplane.pb"), str(tmp_path / "h.trace.json.gz")]
    assert main(["merge", "-q", "-f", "-o", str(output), *both]) == 0
    assert main(["summary", str(tmp_path / "h.xplane.pb")]) == 0
    (tmp_path / "h.trace.json.gz").unlink()
    assert main(["merge", "-f", "-o", str(output), str(tmp_path / "h.xplane.pb")]) == 1
    assert "whose trace.json.gz is not next to it" in capsys.readouterr().err
