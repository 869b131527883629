"""``tracekit validate``, ``recover`` and ``anonymise``: what they print and write, their exit codes, and real traces."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.bad_traces import FIRST, array, begin, between, counter, object_, rank_trace, slice_
from tracekit import JSONTraceHandler, Profiler, merge_traces, validate_trace
from tracekit.traces.inputs import find_traces, recovered_copies

if TYPE_CHECKING:
    from tests.conftest import Cli
    from tests.perfetto import Engine
    from tests.real_traces import RealTraces


ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "good": between(),
    "bad": between(slice_(-5, 1)),
    "many": array(*[slice_(-5, 1) for _ in range(100)]),
    "live": array(FIRST)[:-3],
    "rank0": rank_trace(slice_(5, 1), world_size=0),
    "no-json": b"\x0a\x05proto",
}
OK = "good.json: ok: 2 events"
PROBLEM = "bad.json: event 2: [perfetto-negative-time] ts is -5; write times relative to an earlier base"
PROBLEMS = "bad.json: problems: 3 events, 1 error"
LIVE = "live.json: byte 69: warning: [unfinished] the array has no closing bracket; is its process still running?"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The current folder, which holds a file of each kind, and a folder of two traces."""
    for folder in ("run", "empty"):
        (tmp_path / folder).mkdir()
    (tmp_path / "run" / "notes.txt").write_text("no trace")
    for name, data in {**FILES, "run/a": FILES["good"], "run/b": FILES["good"]}.items():
        (tmp_path / f"{name}.json").write_bytes(data)
    return tmp_path


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [
        ("good.json", 0, [OK]),
        ("bad.json", 3, [PROBLEM, PROBLEMS]),
        ("good.json bad.json", 3, [OK, PROBLEM, PROBLEMS, "2 files, 1 error, 0 warnings"]),
        ("run", 0, ["run/a.json: ok: 2 events", "run/b.json: ok: 2 events", "2 files, 0 errors, 0 warnings"]),
        ("run/*.json", 0, ["run/a.json: ok: 2 events", "run/b.json: ok: 2 events", "2 files, 0 errors, 0 warnings"]),
        ("-q good.json good.json", 0, []),
        ("-q good.json bad.json", 3, [PROBLEM, PROBLEMS, "2 files, 1 error, 0 warnings"]),
        ("live.json", 0, [LIVE, "live.json: ok: 1 event, 1 warning"]),
        ("--strict live.json", 3, [LIVE, "live.json: problems: 1 event, 1 warning"]),
        ("--no-schema rank0.json", 0, ["rank0.json: ok: 2 events"]),
    ],
)
def test_validate_prints_a_line_for_each_problem_and_each_file(
    arguments: str, code: int, printed: list[str], cli: Cli
) -> None:
    output = cli(f"validate {arguments}", code)
    assert output.out.splitlines() == printed
    assert ("the schemas were not applied" in output.err) == ("--no-schema" in arguments)


@pytest.mark.usefixtures("files")
def test_validate_counts_the_problems_that_it_does_not_print(cli: Cli) -> None:
    assert cli("validate many.json", 3).out.splitlines()[9:] == [
        "many.json: event 10: [perfetto-negative-time] ts is -5; write times relative to an earlier base",
        "many.json: [perfetto-negative-time] 90 more",
        "many.json: problems: 100 events, 100 errors",
    ]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", ["missing.json", "no-json.json", "empty"])
def test_a_file_that_cannot_be_read_exits_with_1_and_the_others_are_checked(name: str, cli: Cli) -> None:
    printed = cli(f"validate {name} good.json", 1)
    assert printed.out.splitlines()[0] == OK
    assert printed.err.startswith(f"tracekit validate: {name}: ")
    assert printed.err.count("\n") == 1


@pytest.mark.usefixtures("files")
def test_json_is_one_document_with_everything(cli: Cli) -> None:
    document = json.loads(cli("validate --json bad.json missing.json", 1).out)
    (report,) = document["files"]
    assert (report["file"], report["kind"], report["events"], report["errors"]) == ("bad.json", "other", 3, 1)
    assert (report["problems"][0]["rule"], report["problems"][0]["event"]) == ("perfetto-negative-time", 2)
    assert [entry["file"] for entry in document["unreadable"]] == ["missing.json"]


def test_control_characters_of_a_trace_do_not_reach_the_terminal(files: Path, cli: Cli) -> None:
    name = "\x1b]0;owned\x07\x9b31m\u202e"
    data = between(slice_(5, ..., name), counter('{"\\u001b[2J":true}'), slice_(5, 1, pid=name, ph=name))
    (files / "evil.json").write_bytes(data)
    out = cli("validate evil.json", 3).out
    assert "owned" in out
    assert not [character for character in out if ord(character) < 32 and character != "\n"]
    assert not {"\x9b", "\x7f", "\u202e"} & set(out)


def test_the_process_ends_with_the_code_and_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(object_(FIRST)[:-4])
    command = [sys.executable, "-m", "tracekit", "validate", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=240)
    assert (ended.returncode, ended.stderr) == (3, "")
    assert str(path) in ended.stdout


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
    assert "these slices end at the time of the last event now" in cli("recover --close-open-slices -f t.json").out
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
    write(tmp_path, "u.txt", b"")
    cli("recover t.json u.txt -o x.json", 2)
    cli("recover t.json -o new/out.json.gz")
    assert gzip.decompress((tmp_path / "new" / "out.json.gz").read_bytes()) == array(A)
    assert "the damaged file is kept as" in cli("recover --in-place t.json").out
    assert (path.read_bytes(), (tmp_path / "t.json.broken").read_bytes()) == (array(A), CUT)
    cli("recover --in-place .")
    assert listing(tmp_path) == ["out.json.gz", "t.json", "t.json.broken", "u.txt"]


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


SLICES = "select ts, dur, depth from slice order by 1, 2, 3"
TRACE = '[{"ph":"X","name":"ours at /x/y","pid":1,"tid":1,"ts":1,"dur":1}]'


def test_a_real_run_names_nobody_and_can_still_be_merged(
    engine: Engine, traces: RealTraces, tmp_path: Path, cli: Cli
) -> None:
    sources = traces.glob("torch_2.13_gloo/full_rank*_step4.json.gz")
    for source in sources:
        (tmp_path / source.name).write_bytes(source.read_bytes())
    document = json.loads(cli("anonymise --json .").out)
    outputs = [file["output"] for file in document["files"]]
    assert outputs == [source.name.replace(".json.gz", ".anonymous.json.gz") for source in sources]
    assert document["replaced"]["host"] == 1
    for source, output in zip(sources, outputs, strict=True):
        before, after = gzip.decompress(source.read_bytes()), gzip.decompress((tmp_path / output).read_bytes())
        assert [word in before for word in (b'"host_name": "vm"', b"profiler.py")] == [True, True]
        assert [word in after for word in (b'"vm"', b"profiler.py")] == [False, False]
        with engine.load(source) as trace:
            expected, errors = trace.rows(SLICES), trace.errors()
        with engine.load(tmp_path / output) as trace:
            assert (trace.rows(SLICES), trace.errors()) == (expected, errors)
        assert len(expected) > 1000
    clocks = [
        {rank["clock"] for rank in json.loads(cli(["merge", "--json", "-fo", "merged.json", *inputs]).out)["ranks"]}
        for inputs in (outputs, map(str, sources))
    ]
    assert clocks[0] == clocks[1]


@pytest.mark.parametrize(
    "command", ["validate", "recover --in-place", "merge -o m.json", "summary", "trim cut.json -o", "serve"]
)
def test_an_empty_path_is_not_this_folder(tmp_path: Path, cli: Cli, command: str) -> None:
    write(tmp_path, "cut.json", CUT)
    assert "the path is empty; give a file" in cli([*command.split(), ""], 2).err
    assert [path.name for path in tmp_path.iterdir()] == ["cut.json"]


def test_a_second_time_only_what_is_new(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "a.json").write_text(TRACE)
    assert cli("anonymise .").out == "wrote a.anonymous.json.gz: 1 events\nreplaced: 1 path\n"
    assert "already exists" in cli("anonymise .", 1).err
    assert cli("anonymise -qf --names .").out == "a.anonymous.json.gz\n"
    assert b'"name-1"' in gzip.decompress((tmp_path / "a.anonymous.json.gz").read_bytes())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.anonymous.json.gz", "a.json"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("cut.json", 3, "1 places LOST that could not be read"),
        ("-o z.json lost.json", 1, "no event in it can be read"),
        ("-o z.json whole.json cut.json", 2, "-o names one file"),
        ("-f whole.json whole.json.gz", 2, "whole.anonymous.json.gz: two of the inputs would be written there"),
        ("-o a.pftrace whole.json", 2, "a.pftrace: the output must end with .json"),
        ("-fo whole.json whole.json", 2, "whole.json: the output is one of the inputs"),
        ("-o z.json report.md", 1, "report.md, byte 0: this is not a trace"),
    ],
)
def test_what_cannot_be_done_is_said_by_the_exit_code(
    tmp_path: Path, cli: Cli, arguments: str, code: int, words: str
) -> None:
    for name, text in (("whole", TRACE), ("cut", TRACE[:-1] + ',\n{"ph":"X","na'), ("lost", TRACE[:12])):
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "report.md").write_text("hello")
    (tmp_path / "whole.json.gz").write_bytes(gzip.compress(TRACE.encode()))
    assert words in "".join(cli(f"anonymise {arguments}", code))
    assert [path.name for path in tmp_path.glob("*.anonymous*")] == (["cut.anonymous.json.gz"] if code == 3 else [])
    assert not (tmp_path / "z.json").exists()
    assert (tmp_path / "whole.json").read_text() == TRACE


def test_a_folder_is_merged_without_the_anonymous_copies_of_its_traces(tmp_path: Path, cli: Cli) -> None:
    for name in ("rank0.json", "rank1.json"):
        (tmp_path / name).write_text(TRACE)
    cli("anonymise -q .")
    (tmp_path / "rank1.json").unlink()
    report = merge_traces("out/merged.json", ["."])
    used = ["rank0.json", "rank1.anonymous.json.gz"]
    assert [Path(item.path).name for item in report.inputs] == used
    assert [(Path(item.path).name, item.harmless) for item in report.omitted] == [("rank0.anonymous.json.gz", True)]
    assert [path for path, _ in find_traces(["rank*"])] == used
