"""``tracekit recover``: what it prints and writes, its exit codes, and a process that was really killed."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.bad_traces import array, begin, object_, rank_trace, slice_
from tracekit import JSONTraceHandler, Profiler, merge_traces, validate_trace
from tracekit.traces.inputs import recovered_copies

if TYPE_CHECKING:
    from tests.conftest import Cli

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


def write(folder: Path, name: str, data: bytes) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_killed_process_leaves_a_trace_that_is_recovered_and_says_what_it_hung_in(tmp_path: Path, cli: Cli) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HUNG], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "flushed\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=240)
    before = (tmp_path / "t.json").read_bytes()
    printed = cli("recover t.json").out
    assert "open at the end: all_reduce (MainThread), for " in printed
    assert "the array was not closed; it is now" in printed
    assert (tmp_path / "t.json").read_bytes() == before
    events = json.loads((tmp_path / "t.recovered.json").read_bytes())
    assert [event["name"] for event in events if event["ph"] in "XB"] == ["before", "all_reduce"]
    assert events[-1]["args"]["recovered"]["open_slices"] == ["all_reduce"]
    assert validate_trace(str(tmp_path / "t.recovered.json")).counts == {"unclosed-begin": 1}
    cli("recover --close-open-slices --force t.json")
    assert validate_trace(str(tmp_path / "t.recovered.json")).counts == {}


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (rank_trace(A), 0, "t.json: whole, 2 events; nothing to recover\n"),
        (CUT, 0, f"lost at the end: {len(B) - 7} bytes from byte {len(A) + 4} on, at least 1 event"),
        (TORN, 3, "lost in the middle: 1 part, 31 bytes, at least 1 event"),
        (array(begin(1, "\x1b]0;owned\x07\u202e"), A)[:-3], 0, "open at the end: \ufffd]0;owned\ufffd\ufffd"),
    ],
    ids=["whole", "cut", "torn", "text that a terminal would obey"],
)
def test_recover_says_what_is_lost_and_quietly_only_what_is_lost_in_the_middle(
    tmp_path: Path, cli: Cli, data: bytes, code: int, words: str
) -> None:
    (tmp_path / "t.json").write_bytes(data)
    printed = cli("recover t.json", code).out
    assert words in printed
    assert ("recovered into" in printed) == (tmp_path / "t.recovered.json").exists() == ("whole" not in words)
    assert ("lost in the middle" in cli("recover -qf t.json", code).out) == (code == 3)


def test_a_folder_recovers_what_is_damaged_and_passes_over_the_rest(tmp_path: Path, cli: Cli) -> None:
    write(tmp_path, "rank0.json", rank_trace(A))
    write(tmp_path, "rank1.json", rank_trace(B, C)[:-20])
    write(tmp_path, "b/torch.json.gz", gzip.compress(object_(A, B))[:-12])
    write(tmp_path, "report.json", b'{"kind": "report"}')
    printed = cli("recover .").out
    assert "rank0.json: whole" in printed
    assert "report.json: no trace, passed over" in printed
    assert printed.endswith("4 files: 2 recovered, 1 whole, 0 failed\n")
    assert listing(tmp_path) == [
        "rank0.json", "rank1.json", "rank1.recovered.json", "report.json", "torch.json.gz", "torch.recovered.json.gz",
    ]  # fmt: skip


def test_a_file_of_which_nothing_can_be_recovered_fails_with_one_sentence(tmp_path: Path, cli: Cli) -> None:
    write(tmp_path, "empty.json", b"")
    said = "tracekit recover: empty.json: nothing can be recovered: it does not hold one whole event\n"
    assert cli("recover empty.json", 1).err == said
    # A document that is not a trace is a failure where it was asked for.
    write(tmp_path, "report.json", b"{}")
    for name in ("none.json", "report.json"):
        assert cli(f"recover {name}", 1).err.count("\n") == 1


def test_the_output_is_where_it_is_asked_for_packed_or_in_place(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(CUT)
    cli("recover t.json -o new/out.json.gz")
    assert gzip.decompress((tmp_path / "new" / "out.json.gz").read_bytes()) == array(A)
    assert "the damaged file is kept as" in cli("recover --in-place t.json").out
    assert (path.read_bytes(), (tmp_path / "t.json.broken").read_bytes()) == (array(A), CUT)
    cli("recover --in-place .")
    assert listing(tmp_path) == ["out.json.gz", "t.json", "t.json.broken"]


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "t.json t.json -o x.txt",
        "t.json -o t.json",
        "t.json --in-place -o x.json",
        "--no",
        "t.json u.json -o x.json",
    ],
    ids=["nothing", "ending", "itself", "both", "unknown", "two into one"],
)
def test_wrong_usage_exits_with_2(tmp_path: Path, cli: Cli, arguments: str) -> None:
    write(tmp_path, "t.json", CUT)
    write(tmp_path, "u.json", CUT)
    cli(f"recover {arguments}", 2)
    assert listing(tmp_path) == ["t.json", "u.json"]


def test_json_is_one_document_of_what_was_recovered_passed_over_and_failed(tmp_path: Path, cli: Cli) -> None:
    write(tmp_path, "cut.json", rank_trace(begin(1, "step"), A[:20] + b"\n" + B, C)[:-10])
    write(tmp_path, "empty.json", b"")
    write(tmp_path, "other.json", b"[]")
    document = json.loads(cli("recover . --json", 1).out)
    assert set(document) == {"files", "no_traces", "failed"}
    (file,) = document["files"]
    assert (file["status"], file["complete"], file["open_slices"][0]["name"]) == ("recovered", False, "step")
    assert (file["lost_parts"], file["losses"][0]["events"]) == (1, 1)
    assert [Path(one["file"]).name for one in document["failed"]] == ["empty.json"]
    assert [Path(name).name for name in document["no_traces"]] == ["other.json"]


@pytest.mark.parametrize("ending", [".json", ".json.tmp", ".json.gz"])
def test_a_folder_is_merged_with_the_recovered_copy_and_without_the_damaged_file(
    tmp_path: Path, cli: Cli, ending: str
) -> None:
    plain, damaged = tmp_path / "rank0.json", tmp_path / f"rank0{ending}"
    with Profiler(JSONTraceHandler(tmp_path / "rank{rank}.json"), rank=0, run_id="r") as profiler:
        for _ in range(5):
            with profiler.marker("m"):
                pass
    cut = plain.read_bytes()[:-200]
    plain.unlink()
    damaged.write_bytes(gzip.compress(cut) if ending.endswith(".gz") else cut)
    cli(f"recover -q {damaged}")
    report = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path)])
    assert [item.path for item in report.inputs] == [recovered_copies(str(damaged))[ending.endswith(".gz")]]
    assert [item.path for item in report.omitted] == [str(damaged)]
    assert report.complete
