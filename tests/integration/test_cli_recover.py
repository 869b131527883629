"""``tracekit recover``: what it prints and writes, its exit codes, and a process that was really killed."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.bad_traces import array, begin, object_, rank_trace, slice_
from tracekit import JSONTraceHandler, Profiler, merge_traces, validate_trace
from tracekit.cli import main
from tracekit.traces.inputs import recovered_copies

if TYPE_CHECKING:
    from pathlib import Path

A, B, C = slice_(1, 1, "a"), slice_(10, 1, "b"), slice_(20, 1, "c")
CUT = array(A, B)[:-10]
TORN = b"[\n" + A + b",\n" + B[:30] + b"\n" + C + b"\n]\n"

HUNG = """
import sys
from tracekit import JSONTraceHandler, Profiler
profiler = Profiler(JSONTraceHandler("t.json"), rank=0, record_batches=False)
profiler.start()
with profiler.marker("before"):
    pass
profiler.marker("all_reduce").start()
profiler.flush()
print("flushed", flush=True)
sys.stdin.readline()
"""


def run(*arguments: object) -> int:
    return main(["recover", *map(str, arguments)])


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_killed_process_leaves_a_trace_that_is_recovered_and_says_what_it_hung_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HUNG], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "flushed\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=240)
    before = (tmp_path / "t.json").read_bytes()
    assert run(tmp_path / "t.json") == 0
    printed = capsys.readouterr().out
    assert "open at the end: all_reduce (MainThread), for " in printed
    assert "the array was not closed; it is now" in printed
    assert (tmp_path / "t.json").read_bytes() == before
    events = json.loads((tmp_path / "t.recovered.json").read_bytes())
    assert [event["name"] for event in events if event["ph"] in "XB"] == ["before", "all_reduce"]
    assert events[-1]["args"]["recovered"]["open_slices"] == ["all_reduce"]
    assert validate_trace(str(tmp_path / "t.recovered.json")).counts == {"unclosed-begin": 1}
    assert run("--close-open-slices", "--force", tmp_path / "t.json") == 0
    assert validate_trace(str(tmp_path / "t.recovered.json")).counts == {}


def test_a_torn_end_exits_with_0_and_a_loss_in_the_middle_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(write(tmp_path, "cut.json", CUT)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{tmp_path}/cut.json: 1 event recovered into {tmp_path}/cut.recovered.json\n")
    assert f"lost at the end: {len(B) - 7} bytes from byte {len(A) + 4} on, at least 1 event" in printed
    assert run(write(tmp_path, "torn.json", TORN)) == 3
    assert "lost in the middle: 1 part, 31 bytes, at least 1 event" in capsys.readouterr().out


def test_a_whole_file_is_said_to_be_whole_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "t.json", rank_trace(A))
    assert run(path) == 0
    assert capsys.readouterr().out == f"{path}: whole, 2 events; nothing to recover\n"
    assert listing(tmp_path) == ["t.json"]
    write(tmp_path, "cut.json", CUT)
    run(tmp_path / "cut.json")
    assert run(tmp_path / "cut.recovered.json") == 0


def test_a_folder_recovers_what_is_damaged_and_passes_over_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b").mkdir()
    write(tmp_path, "rank0.json", rank_trace(A))
    write(tmp_path, "rank1.json", rank_trace(B, C)[:-20])
    write(tmp_path, "b/torch.json.gz", gzip.compress(object_(A, B))[:-12])
    write(tmp_path, "report.json", b'{"kind": "report"}')
    assert run(tmp_path) == 0
    printed = capsys.readouterr().out
    assert f"{tmp_path}/rank0.json: whole" in printed
    assert f"{tmp_path}/report.json: no trace, passed over" in printed
    assert printed.endswith("4 files: 2 recovered, 1 whole, 0 failed\n")
    assert listing(tmp_path) == [
        "rank0.json", "rank1.json", "rank1.recovered.json", "report.json", "torch.json.gz", "torch.recovered.json.gz",
    ]  # fmt: skip


def test_a_lost_trace_fails_with_one_sentence_and_the_others_are_recovered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "a.json", b"")
    write(tmp_path, "b.json", CUT)
    assert run(tmp_path) == 1
    printed = capsys.readouterr()
    assert printed.err == (
        f"tracekit recover: {tmp_path}/a.json: nothing can be recovered: it does not hold one whole event\n"
    )
    assert (tmp_path / "b.recovered.json").exists()
    assert run(tmp_path / "none.json") == 1
    assert capsys.readouterr().err.count("\n") == 1
    # A document that is not a trace is a failure where it was asked for.
    assert run(write(tmp_path, "report.json", b"{}")) == 1


def test_nothing_is_overwritten_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = write(tmp_path, "t.json", CUT), write(tmp_path, "t.recovered.json", b"mine")
    assert run(path) == 1
    assert "t.recovered.json: already exists; choose another name, or pass --force" in capsys.readouterr().err
    assert output.read_bytes() == b"mine"
    assert run(path, "--force") == 0
    assert output.read_bytes() == array(A)


def test_the_output_can_be_named_and_packed(tmp_path: Path) -> None:
    path = write(tmp_path, "t.json", CUT)
    assert run(path, "-o", tmp_path / "new" / "out.json.gz") == 0
    assert gzip.decompress((tmp_path / "new" / "out.json.gz").read_bytes()) == array(A)


def test_in_place_keeps_the_broken_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "t.json", CUT)
    assert run("--in-place", path) == 0
    assert "the damaged file is kept as" in capsys.readouterr().out
    assert (path.read_bytes(), (tmp_path / "t.json.broken").read_bytes()) == (array(A), CUT)
    assert run("--in-place", tmp_path) == 0
    assert listing(tmp_path) == ["t.json", "t.json.broken"]


@pytest.mark.parametrize(
    "arguments",
    [[], ["t.json", "t.json", "-o", "x.txt"], ["t.json", "-o", "t.json"], ["t.json", "--in-place", "-o", "x.json"], ["--no"],
     ["t.json", "u.json", "-o", "x.json"]],
    ids=["nothing", "ending", "itself", "both", "unknown", "two into one"],
)  # fmt: skip
def test_wrong_usage_exits_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "t.json", CUT)
    write(tmp_path, "u.json", CUT)
    assert run(*arguments) == 2
    assert listing(tmp_path) == ["t.json", "u.json"]


def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "cut.json", rank_trace(begin(1, "step"), A[:20] + b"\n" + B, C)[:-10])
    write(tmp_path, "empty.json", b"")
    write(tmp_path, "other.json", b"[]")
    assert run(tmp_path, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"files", "no_traces", "failed"}
    (file,) = document["files"]
    assert (file["status"], file["complete"], file["open_slices"][0]["name"]) == ("recovered", False, "step")
    assert (file["lost_parts"], file["losses"][0]["events"]) == (1, 1)
    assert [one["file"] for one in document["failed"]] == [str(tmp_path / "empty.json")]
    assert document["no_traces"] == [str(tmp_path / "other.json")]


def test_quiet_speaks_of_losses_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-q", write(tmp_path, "cut.json", CUT)) == 0
    assert capsys.readouterr().out == ""
    assert run("-q", write(tmp_path, "torn.json", TORN)) == 3
    assert "lost in the middle" in capsys.readouterr().out


def test_what_a_terminal_would_obey_is_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write(tmp_path, "t.json", array(begin(1, "\x1b]0;owned\x07\u202e"), A)[:-3])) == 0
    assert "open at the end: \ufffd]0;owned\ufffd\ufffd" in capsys.readouterr().out


@pytest.mark.parametrize("ending", [".json", ".json.tmp", ".json.gz"])
def test_a_folder_is_merged_with_the_recovered_copy_and_without_the_damaged_file(tmp_path: Path, ending: str) -> None:
    plain, damaged = tmp_path / "rank0.json", tmp_path / f"rank0{ending}"
    with Profiler(JSONTraceHandler(tmp_path / "rank{rank}.json"), rank=0, run_id="r") as profiler:
        for _ in range(5):
            with profiler.marker("m"):
                pass
    cut = plain.read_bytes()[:-200]
    plain.unlink()
    damaged.write_bytes(gzip.compress(cut) if ending.endswith(".gz") else cut)
    assert main(["recover", "-q", str(damaged)]) == 0
    report = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path)])
    assert [item.path for item in report.inputs] == [recovered_copies(str(damaged))[ending.endswith(".gz")]]
    assert [item.path for item in report.omitted] == [str(damaged)]
    assert report.complete
