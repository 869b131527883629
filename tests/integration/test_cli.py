"""Rules that hold for every command of ``tracekit``."""

from __future__ import annotations

import argparse
import errno
import gzip
import importlib
import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.merged_tables import inputs
from tracekit import JSONTraceHandler, Profiler, merge_traces
from tracekit.check.validation import validate_file
from tracekit.cli import VERBS
from tracekit.cli.terminal import ProgressBar
from tracekit.errors import StorageError
from tracekit.storage import refuse_existing
from tracekit.view.open.prepare import prepare

if TYPE_CHECKING:
    from tests.conftest import Cli

ROOT = Path(__file__).resolve().parents[2]
ODD = os.fsdecode(b"tr\xff\xe9ce-rank0.json")
ODD_SHOWN = r"tr\xff\xe9ce-rank0.json"
BASE_NS = 1_790_857_026_000_000_000


def rank_trace(*events: dict[str, Any]) -> bytes:
    own = {"rank": 0, "pid": 7, "host": "h", "boot_id": "b", "baseTimeNanoseconds": BASE_NS, "run_id": "R"}
    lines = [{"ph": "M", "name": "tracekit_metadata", "pid": 7, "tid": 7, "args": own}, *events]
    return b"[\n" + b",\n".join(map(orjson.dumps, lines)) + b"\n]\n"


def slice_(name: str, ts: float = 5, dur: float = 2) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 7, "tid": 7, "ts": ts, "dur": dur}


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A trace with a name that is not UTF-8."""
    path = tmp_path / ODD
    try:
        path.write_bytes(rank_trace(slice_("a"), slice_("b", 10)))
    except OSError:  # pragma: no cover - macOS
        pytest.skip("the file system takes UTF-8 names only")
    return path


WITH_JSON = [
    ["merge", "-o", "out.json", ODD],
    ["merge", "-o", "out.json.gz", "."],
    ["merge", "-o", "out.pftrace", ODD],
    ["merge", "-o", os.fsdecode(b"out\xfe.json"), ODD],
    ["merge", "-o", os.fsdecode(b"out\xfe.zip"), ODD],
    ["validate", ODD],
    ["recover", ODD],
    ["summary", ODD],
    ["stragglers", ODD],
    ["diff", ODD, ODD],
    ["report", ODD, "-o", os.fsdecode(b"r\xfe.html")],
    ["trim", "--name", "a", "-o", os.fsdecode(b"t\xfe.json"), ODD],
    ["split", "--by-rank", ODD],
    ["convert", ODD, os.fsdecode(b"c\xfe.pftrace")],
    ["anonymise", ODD],
    ["doctor", "."],
    ["top", "--once", "."],
]


@pytest.mark.parametrize("arguments", WITH_JSON, ids=" ".join)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_every_command_takes_a_file_name_that_is_not_utf_8(
    arguments: list[str], as_json: bool, odd: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_DEBUG", "1")  # an unexpected exception is raised
    before = odd.read_bytes()
    printed = cli([*arguments, *(["--json"] if as_json else [])], (0, 3))
    if as_json:
        orjson.loads(printed.out)  # refuses surrogates that are alone
    (printed.out + printed.err).encode("utf-8")
    assert odd.read_bytes() == before


@pytest.mark.usefixtures("odd")
def test_a_file_name_that_is_not_utf_8_is_shown_with_its_bytes_escaped(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / os.fsdecode(b"bad\xfe.json")).write_text("hello")
    out = cli("merge -o merged.json .", 3).out
    assert f"  rank 0: {ODD_SHOWN}, tracekit, " in out
    assert r"bad\xfe.json: " in out
    assert [entry["file"] for entry in inputs(json.loads((tmp_path / "merged.json").read_bytes()))] == [ODD_SHOWN]
    report = orjson.loads(cli(["merge", "-f", "--json", "-o", "merged.json", ODD]).out)
    assert report["inputs"][0]["path"] == ODD_SHOWN
    cli(["merge", "-f", "-q", "--rank", f"{ODD}=3", "-o", "merged.json", ODD])
    said = "tracekit: none\\xff.json: no such file or folder\n"
    assert cli(["summary", os.fsdecode(b"none\xff.json")], 1).err == said


def test_a_companion_whose_name_is_not_utf_8_gets_the_rank_of_its_rank_trace(tmp_path: Path, cli: Cli) -> None:
    companion = os.fsdecode(b"torch\xff.json")
    with Profiler(JSONTraceHandler("rank{rank}.json"), rank=3) as profiler:
        profiler.record_chrome_json_trace_file(companion)
    torch = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": [{**slice_("mm"), "pid": os.getpid()}]}
    (tmp_path / companion).write_bytes(orjson.dumps(torch))
    reported = orjson.loads(cli(["merge", "--json", "-o", "merged.json", "rank3.json", companion]).out)["inputs"]
    assert [(item["rank"], item["path"]) for item in reported] == [(3, "rank3.json"), (3, r"torch\xff.json")]


def test_a_report_never_replaces_a_trace_whose_name_is_not_utf_8(odd: Path, cli: Cli) -> None:
    before = odd.read_bytes()
    assert "is one of the traces" in cli(["report", "-f", ODD, "-o", ODD], 2).err
    assert odd.read_bytes() == before


@pytest.mark.parametrize("verb", VERBS)
def test_help_names_things_as_they_are_spelt_and_has_an_example_that_is_accepted(
    verb: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    printed = cli([verb, "--help"]).out
    description = printed.partition("\n\n")[2].partition("\n\n")[0]
    example, *_ = re.findall(r"^[eE]xamples?:\n  tracekit (.*)$", printed, re.MULTILINE)
    assert description[0].isupper()
    assert description.endswith(".")
    assert not re.search(r"\b(?:perfetto|sql|html)\b", description)
    parser = argparse.ArgumentParser()
    importlib.import_module(f"tracekit.cli.{verb}").prepare_parser(parser)
    found, *arguments = shlex.split(example)
    assert found == verb
    parser.parse_args(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        "merge -o there.json .",
        "convert rank0.json there.json",
        "report rank0.json -o there.json",
        "recover rank1.json -o there.json",
        "recover rank1.json --in-place",
    ],
)
def test_an_output_that_exists_is_refused_with_the_option_that_replaces_it(
    arguments: str, tmp_path: Path, cli: Cli
) -> None:
    for name in ("rank0.json", "there.json", "rank1.json.broken"):
        (tmp_path / name).write_bytes(rank_trace(slice_("a")))
    (tmp_path / "rank1.json").write_bytes(rank_trace(slice_("a"))[:-4])
    error = cli(arguments, 1).err
    assert "already exists" in error
    assert error.endswith(", or pass --force to replace it\n")
    assert "overwrite" not in error


def test_the_python_interface_names_its_own_argument_for_an_output_that_exists(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("")
    with pytest.raises(StorageError, match="or pass overwrite=True to replace it") as caught:
        refuse_existing(str(tmp_path / "a.json"))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # as from another process


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        ("sumary x", "; did you mean summary?\n"),
        ("summary --jsn x", "; did you mean --json?\n"),
        ("summary --runs x", "; did you mean --run?\n"),
        ("summary --zzzz x", "unrecognized arguments: --zzzz\n"),
        ("diff --fail-abov=5% a b", "; did you mean --fail-above?\n"),
        ("top --sort slow x", "; did you mean slowest?\n"),
        ("merge --workers 1025 x", "--workers: '1025' is not a whole number from 1 to 1,024\n"),
        ("summary", "required: INPUT. Name traces such as traces/RUN/, or a run: --run latest\n"),
    ],
)
def test_wrong_usage_says_what_may_have_been_meant(arguments: str, end: str, cli: Cli) -> None:
    assert cli(arguments, 2).err.endswith(end)


def test_without_arguments_the_commands_are_listed(cli: Cli) -> None:
    assert re.findall(r"^    (\w+) ", cli("", 2).err, re.MULTILINE) == list(VERBS)


@pytest.fixture
def runs(tmp_path: Path) -> None:
    """Runs in the folder ``traces`` of the current one: Monday's, Tuesday's, and one without traces."""
    (tmp_path / "traces" / "empty").mkdir(parents=True)
    for number, name in enumerate(("monday", "tuesday")):
        path = tmp_path / "traces" / name / "rank0.json"
        path.parent.mkdir()
        path.write_bytes(rank_trace(slice_(name)))
        os.utime(path, (10**9 + number, 10**9 + number))


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("option", "shown", "other"), [("--run=latest", "tuesday", "monday"), ("--run=monday", "monday", "tuesday")]
)
def test_a_run_is_named_instead_of_its_path(option: str, shown: str, other: str, cli: Cli) -> None:
    query = ["query", option, "-q", "select name from events where name in ('monday', 'tuesday')"]
    for command in (query, f"merge {option} -q -o -", f"top {option} --once --json"):
        printed = cli(command, (0, 3)).out
        assert shown in printed
        assert other not in printed


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("verb", ["summary", "merge", "top"])
def test_a_run_that_is_not_there_is_wrong_usage_that_names_the_newest(
    verb: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = "(the newest are tuesday, monday); TRACEKIT_TRACES names another folder"
    assert cli(f"{verb} --run other", 2).err.endswith(f"--run other: no such run in traces {newest}\n")
    assert "or a run: --run " in cli(verb, 2).err
    monkeypatch.setenv("TRACEKIT_TRACES", "none")
    assert "it holds no run" in cli(f"{verb} --run latest", 2).err


ON_A_RUN = {
    **dict.fromkeys(VERBS, ""),
    "capture": "--status",
    "convert": "out.json",
    "diff": "--rank-a 0 --rank-b 1",
    "query": "select",
    "split": "--by-rank",
    "trim": "--steps 1:2",
}


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("completion", "merge", "run", "top")])
def test_every_command_takes_the_name_of_a_run(verb: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    module = importlib.import_module(f"tracekit.cli.{verb}")
    monkeypatch.setattr(module, "run", lambda args: given.update(vars(args)) or 0)
    cli(f"{verb} --run latest {ON_A_RUN[verb]}")
    paths = [str(path) for value in given.values() for path in (value if isinstance(value, list) else [value])]
    assert "traces/tuesday" in paths


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_verbs_options_and_files(tmp_path: Path, cli: Cli) -> None:
    pytest.importorskip("shtab", reason="shtab is not installed")
    (tmp_path / "script").write_text(cli("completion bash").out)
    (tmp_path / "merged.json.gz").touch()
    replies = []
    for words in ("summ", "stragglers --at", "top --sort slo", "open merg"):
        typed = f"COMP_WORDS=(tracekit {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()"
        call = f"source ./script; {typed}; _shtab_tracekit; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "-c", call], cwd=tmp_path, capture_output=True, text=True, check=True)
        replies.append(done.stdout.strip())
    assert replies == ["summary", "--at-least", "slowest", "merged.json.gz"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("summary rank0.json > /dev/full", 1, "the output: cannot be written: No space left on device"),
        ("summary --help > /dev/full", 1, "the output: cannot be written: No space left on device"),
        ("summary --help | true", 141, ""),
        ("summary rank0.json >&-", 0, ""),
        ("summary none.json 2>&-", 1, ""),
        ("query rank0.json - <&-", 2, "-: standard input is closed"),
        (r"query rank0.json $'select \xff'", 2, "the query is not UTF-8"),
        (r"query rank0.json - <<< $'\xff'", 2, "the query is not UTF-8"),
    ],
)
def test_standard_streams_that_are_full_closed_or_no_text_are_no_fault_of_tracekit(
    command: str, code: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / "rank0.json").write_bytes(rank_trace(slice_("a")))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    script = f"set -o pipefail; {sys.executable} -m tracekit {command}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, f"tracekit: {said}\n" if said else "")


@pytest.mark.parametrize("command", ["validate {}", "top --once {}", "mcp {}", "report rank0.json -o {}", "upload {}"])
def test_a_name_that_the_system_refuses_is_no_fault_of_tracekit(command: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "rank0.json").write_bytes(rank_trace(slice_("a")))
    assert re.search(r": cannot be (used|read): File name too long\n$", cli(command.format("x" * 300), 1).err)


@pytest.mark.parametrize(("verb", "doing"), [("summary", "read"), ("top", "listed")])
def test_a_folder_that_cannot_be_listed_is_not_called_empty(
    verb: str, doing: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object = ".") -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    (tmp_path / "traces").mkdir()
    monkeypatch.setattr(os, "scandir", refuse)
    assert cli(f"{verb} traces", 1).err == f"tracekit: traces: cannot be {doing}: Permission denied\n"


def test_progress_is_a_line_every_ten_seconds_where_standard_error_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0

    def lines(*, enabled: bool) -> str:
        nonlocal now
        with ProgressBar(enabled=enabled, monotonic=lambda: now) as bar:
            begin = now
            for tenth in range(251):
                now = begin + tenth / 10
                bar.update(tenth / 250, f"reading {ODD}")
        printed = capsys.readouterr()
        assert printed.out == ""
        return printed.err

    assert lines(enabled=True) == ""
    monkeypatch.delenv("TRACEKIT_QUIET")
    assert lines(enabled=True) == f"tracekit: 40% reading {ODD_SHOWN}\ntracekit: 80% reading {ODD_SHOWN}\n"
    assert lines(enabled=False) == ""


@pytest.mark.parametrize(
    "read",
    [
        lambda pipe: merge_traces(f"{pipe}.out.json", [pipe]),
        validate_file,
        lambda pipe: prepare([pipe], Path(pipe).parent),
    ],
    ids=["merge", "validate", "open"],
)
def test_a_pipe_is_refused_with_advice_by_functions_that_read_a_file_twice(tmp_path: Path, read: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match=r"pipe: pipes are not supported, .*; write the trace to a file first"):
        read(str(tmp_path / "pipe"))


def test_a_damaged_gzip_file_names_recover_which_saves_its_events(tmp_path: Path, cli: Cli) -> None:
    packed = bytearray(gzip.compress(rank_trace(*(slice_(f"slice {at}", at) for at in range(1, 500)))))
    packed[-6] ^= 0xFF  # in the checksum
    (tmp_path / "rank0.json.gz").write_bytes(packed)
    advice = "; tracekit recover saves what can be read"
    assert cli("merge rank0.json.gz", 1).err.endswith(f"{advice}\n")
    assert advice in cli("validate rank0.json.gz", 3).out
    saved = "rank0.json.gz: 500 events recovered into rank0.recovered.json.gz"
    assert saved in cli("recover rank0.json.gz").out


@pytest.mark.parametrize("stray", [b"1", b"null", b'"a, {text}"', b"-1.5e3, true,", b"1, 2, 3"])
def test_values_in_front_of_the_first_event_are_skipped_and_reported(stray: bytes, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "rank0.json").write_bytes(b"[" + stray + b", " + orjson.dumps(slice_("a")) + b"]")
    lost = "LOST: 1 places that hold no event in rank0.json, first at byte 1\n"
    assert lost in cli("merge rank0.json -o merged.json", 3).out
    assert '"name":"a"' in (tmp_path / "merged.json").read_text()
    assert "rank0.json: 1 event recovered" in cli("recover rank0.json", 3).out
    cli("validate rank0.json", 3)


@pytest.mark.parametrize("other", [b'[1, {"lr": 0.1}]', b'["x", ["y", {"ph": "X"}]]', b"[1, 2]"])
def test_an_array_of_other_things_is_still_no_trace(other: bytes, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "rank0.json").write_bytes(rank_trace(slice_("a")))
    (tmp_path / "other.json").write_bytes(other)
    assert "left out: other.json: no trace" in cli("merge .").out


def test_a_single_file_without_a_clock_is_not_called_unaligned(tmp_path: Path, cli: Cli) -> None:
    for name in "ab":
        (tmp_path / f"{name}.json").write_bytes(orjson.dumps([slice_(name)]))
    assert "clock" not in cli("merge a.json").out
    out = cli("merge -f --rank a.json=0 --rank b.json=1 a.json b.json").out
    assert "clock of ranks 0-1: NOT ALIGNED: unknown\n" in out


@pytest.mark.parametrize(("align", "code"), [("auto", 0), ("wall", 0), ("none", 0), ("sync", 3), ("collectives", 3)])
def test_a_way_to_align_that_aligns_nothing_is_reported_by_the_exit_code(
    align: str, code: int, tmp_path: Path, cli: Cli
) -> None:
    for rank in (0, 1):
        own = {"rank": rank, "pid": 7, "host": f"h{rank}", "boot_id": f"b{rank}", "baseTimeNanoseconds": BASE_NS}
        metadata = {"ph": "M", "name": "tracekit_metadata", "pid": 7, "tid": 7, "args": own}
        (tmp_path / f"rank{rank}.json").write_bytes(orjson.dumps([metadata, slice_("a")]))
    message = f"tracekit merge: --align {align}: rank 1 is not aligned\n" if code else ""
    assert cli(f"merge --align {align} rank0.json rank1.json", code).err == message
    cli(f"merge -f --align {align} rank0.json")
