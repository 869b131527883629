"""Rules that hold for every command of ``tracekit``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
import re
import shlex
from pathlib import Path
from typing import Any

import orjson
import pytest

from tracekit import JSONTraceHandler, Profiler
from tracekit.cli import VERBS, doctor, main
from tracekit.cli.progress import ProgressBar
from tracekit.diagnosis.findings import Section
from tracekit.errors import StorageError
from tracekit.storage import refuse_existing

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
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a trace, in the current folder, that is not UTF-8."""
    monkeypatch.chdir(tmp_path)
    try:
        (tmp_path / ODD).write_bytes(rank_trace(slice_("a"), slice_("b", 10)))
    except OSError:  # pragma: no cover - macOS
        pytest.skip("the file system takes UTF-8 names only")
    return ODD


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
    arguments: list[str], as_json: bool, odd: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_DEBUG", "1")  # an unexpected exception is raised
    before = Path(odd).read_bytes()
    assert main([*arguments, *(["--json"] if as_json else [])]) in (0, 3)
    printed = capsys.readouterr()
    if as_json:
        orjson.loads(printed.out)  # refuses surrogates that are alone
    (printed.out + printed.err).encode("utf-8")
    assert Path(odd).read_bytes() == before


def test_a_file_name_that_is_not_utf_8_is_shown_with_its_bytes_escaped(
    odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / os.fsdecode(b"bad\xfe.json")).write_text("hello")
    assert main(["merge", "-o", "merged.json", "."]) == 3
    printed = capsys.readouterr().out
    assert f"  rank 0: {ODD_SHOWN}, tracekit, " in printed
    assert r"bad\xfe.json: " in printed
    assert [entry["file"] for entry in json.loads((tmp_path / "merged.json").read_bytes())["tracekit"]["inputs"]] == [
        ODD_SHOWN
    ]
    assert main(["merge", "-f", "--json", "-o", "merged.json", odd]) == 0
    assert orjson.loads(capsys.readouterr().out)["inputs"][0]["path"] == ODD_SHOWN
    assert main(["merge", "-f", "-q", "--rank", f"{odd}=3", "-o", "merged.json", odd]) == 0
    assert main(["summary", os.fsdecode(b"none\xff.json")]) == 1
    assert capsys.readouterr().err == "tracekit: none\\xff.json: no such file or folder\n"


def test_a_companion_whose_name_is_not_utf_8_gets_the_rank_of_its_rank_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    companion = os.fsdecode(b"torch\xff.json")
    with Profiler(JSONTraceHandler("rank{rank}.json"), rank=3) as profiler:
        profiler.record_chrome_json_trace_file(companion)
    torch = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": [{**slice_("mm"), "pid": os.getpid()}]}
    (tmp_path / companion).write_bytes(orjson.dumps(torch))
    assert main(["merge", "--json", "-o", "merged.json", "rank3.json", companion]) == 0
    inputs = orjson.loads(capsys.readouterr().out)["inputs"]
    assert [(item["rank"], item["path"]) for item in inputs] == [(3, "rank3.json"), (3, r"torch\xff.json")]


def test_a_report_never_replaces_a_trace_whose_name_is_not_utf_8(
    odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (tmp_path / odd).read_bytes()
    assert main(["report", "-f", odd, "-o", odd]) == 2
    assert "is one of the traces" in capsys.readouterr().err
    assert (tmp_path / odd).read_bytes() == before


# ---- words ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_help_names_things_as_they_are_spelt_and_has_an_example_that_is_accepted(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([verb, "--help"]) == 0
    printed = capsys.readouterr().out
    ((description, example),) = re.findall(r"^(.*)\. Example: tracekit (.*)$", printed, re.MULTILINE)
    assert description[0].isupper()
    assert not re.search(r"\b(?:perfetto|sql|html)\b", description)
    parser = argparse.ArgumentParser()
    importlib.import_module(f"tracekit.cli.{verb}").prepare_parser(parser)
    found, *arguments = shlex.split(example)
    assert found == verb
    parser.parse_args(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["merge", "-o", "there.json", "."],
        ["convert", "rank0.json", "there.json"],
        ["report", "rank0.json", "-o", "there.json"],
        ["recover", "rank1.json", "-o", "there.json"],
        ["recover", "rank1.json", "--in-place"],
    ],
    ids=" ".join,
)
def test_an_output_that_exists_is_refused_with_the_option_that_replaces_it(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("rank0.json", "there.json", "rank1.json.broken"):
        (tmp_path / name).write_bytes(rank_trace(slice_("a")))
    (tmp_path / "rank1.json").write_bytes(rank_trace(slice_("a"))[:-4])
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert "already exists" in error
    assert error.endswith(", or pass --force to replace it\n")
    assert "overwrite" not in error


def test_the_python_interface_names_its_own_argument_for_an_output_that_exists(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("")
    with pytest.raises(StorageError, match="or pass overwrite=True to replace it") as caught:
        refuse_existing(str(tmp_path / "a.json"))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # as from another process


def test_trim_and_convert_report_what_they_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank0.json").write_bytes(rank_trace(slice_("a"), slice_("b", 10), slice_("c", 20)))
    assert main(["trim", "--name", "a", "rank0.json"]) == 0
    assert capsys.readouterr().out.startswith("trimmed 1 file of 1 rank: kept 1 of 3 events, nothing lost\n")
    assert main(["convert", "rank0.json", "run.pftrace"]) == 0
    assert capsys.readouterr().out.startswith("converted 1 file of 1 rank: 4 events, nothing lost\n")


@pytest.mark.parametrize(
    ("problems", "last"), [([], "no problems found"), (["x"], "1 problem found"), (["x", "y"], "2 problems found")]
)
def test_doctor_counts_problems(
    problems: list[str], last: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("examine_environment", "examine_rank", "examine_clocks", "examine_packages"):
        monkeypatch.setattr(doctor, name, lambda: Section("empty"))
    monkeypatch.setattr(
        doctor, "examine_place", lambda place: Section(place, problems=problems if place == "." else [])
    )
    assert main(["doctor"]) == (3 if problems else 0)
    assert capsys.readouterr().out.splitlines()[-1] == last


# ---- progress ---------------------------------------------------------------------------------------------------------------


def test_progress_is_a_line_every_ten_seconds_where_standard_error_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 100.0
    with ProgressBar(enabled=True, monotonic=lambda: now) as bar:
        for tenth in range(251):
            now = 100.0 + tenth / 10
            bar.update(tenth / 250, f"reading {ODD}")
    shown = ODD_SHOWN
    assert capsys.readouterr() == ("", f"tracekit: 40% reading {shown}\ntracekit: 80% reading {shown}\n")
    with ProgressBar(enabled=False, monotonic=lambda: now) as bar:
        now += 100
        bar.update(0.5, "reading")
    assert capsys.readouterr() == ("", "")
