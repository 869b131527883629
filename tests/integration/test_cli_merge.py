"""``tracekit merge`` as a person and as a script meets it."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.collective_traces import SECOND, irregular, seen, torch_trace, write_ranks
from tracekit.check.schemas import MERGE_REPORT, compile_schema
from tracekit.cli import main

if TYPE_CHECKING:
    from pathlib import Path

BASE_NS = 1_790_857_026_000_000_000


def rank_trace(rank: int, *events: dict[str, Any], **metadata: Any) -> str:
    own = {"rank": rank, "pid": 100 + rank, "host": "h", "boot_id": "b", "baseTimeNanoseconds": BASE_NS, **metadata}
    lines = [{"ph": "M", "name": "tracekit_metadata", "pid": 100 + rank, "tid": 100 + rank, "args": own}, *events]
    return "[\n" + ",\n".join(map(json.dumps, lines)) + "\n]\n"


def slice_(rank: int, name: str, ts: float = 5, dur: float = 2, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 100 + rank, "tid": 100 + rank, "ts": ts, "dur": dur, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two rank traces and, among them, files that are not traces."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "rank0.json").write_text(rank_trace(0, slice_(0, "a")))
    (folder / "rank1.json.gz").write_bytes(gzip.compress(rank_trace(1, slice_(1, "b")).encode()))
    (folder / "settings.json").write_text('{"learning_rate": 0.1}')
    (folder / "notes.txt").write_text("hello")
    return folder


def digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def names(path: Path) -> list[str]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events = json.loads(data)["traceEvents"]
    return [event["name"] for event in events if event["ph"] != "M" and event.get("cat") != "clock"]


def one_sentence(captured: str) -> str:
    assert captured.startswith("tracekit: ")
    assert captured.count("\n") == 1
    assert "Traceback" not in captured
    return captured


def test_a_folder_is_merged_and_the_report_says_how_to_look_at_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = digest(folder)
    output = tmp_path / "merged.json.gz"
    assert main(["merge", "-o", str(output), str(folder)]) == 0
    assert names(output) == ["a", "b"]
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert lines[0] == f"merged 2 files of 2 ranks from {folder}/: 4 events, nothing lost"
    assert "clock of ranks 0-1: wall clock; same host and boot" in lines
    assert f"left out: {folder / 'settings.json'}: no trace" in lines
    assert lines[-1] == f"next: open https://ui.perfetto.dev and drag {output} onto it"
    assert digest(folder) == before


def test_json_is_one_document_that_fits_its_schema(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rank2.json").write_text(rank_trace(2, slice_(2, "c"), {"ph": "X", "name": "no time", "pid": 102})[:-4])
    (folder / "rank3.json").write_text("hello")
    assert main(["merge", "--json", "-o", str(tmp_path / "merged.json"), str(folder)]) == 3
    report = json.loads(capsys.readouterr().out)
    assert compile_schema(MERGE_REPORT)(report) is None
    assert report["complete"] is False
    assert [(item["rank"], item["kind"]) for item in report["inputs"]] == [
        (0, "tracekit"),
        (1, "tracekit"),
        (2, "tracekit"),
    ]
    assert {item["path"].rpartition("/")[2]: item["harmless"] for item in report["omitted"]} == {
        "rank3.json": False,
        "settings.json": True,
    }
    assert report["output_bytes"] == (tmp_path / "merged.json").stat().st_size


def test_what_is_lost_is_counted_and_the_code_says_so(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rank2.json").write_text(rank_trace(2, slice_(2, "c"), {"ph": "X", "name": "n", "pid": 102, "ts": None}))
    output = tmp_path / "merged.json"
    assert main(["merge", "-q", "-o", str(output), str(folder)]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"LOST: 1 events without a usable time in {folder / 'rank2.json'}" in printed.err
    assert names(output) == ["a", "b", "c"]


def test_strict_writes_nothing_rather_than_lose_an_event(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rank2.json").write_text(rank_trace(2, slice_(2, "c"))[:-10])
    output = tmp_path / "merged.json"
    assert main(["merge", "--strict", "-o", str(output), str(folder)]) == 1
    assert "rank2.json" in one_sentence(capsys.readouterr().err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_quiet_prints_nothing_when_all_is_well(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["merge", "-q", "-o", str(tmp_path / "merged.json"), str(folder)]) == 0
    assert capsys.readouterr() == ("", "")


def test_an_output_that_is_there_is_replaced_only_by_force(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "merged.json"
    output.write_text("precious")
    assert main(["merge", "-o", str(output), str(folder)]) == 1
    assert "--force" in one_sentence(capsys.readouterr().err)
    assert output.read_text() == "precious"
    assert main(["merge", "-f", "-o", str(output), str(folder)]) == 0
    assert names(output) == ["a", "b"]


def test_the_output_in_the_folder_is_not_an_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = folder / "merged.json.gz"
    assert main(["merge", "-o", str(output), str(folder)]) == 0
    first = output.read_bytes()
    assert main(["merge", "-f", "-o", str(output), str(folder)]) == 0
    assert output.read_bytes() == first
    assert main(["merge", "-o", str(folder / "second.json.gz"), str(folder)]) == 0
    assert "the result of an earlier merge" in capsys.readouterr().out
    assert (folder / "second.json.gz").read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["{run}/rank0.json", "-o", "{run}/rank0.json"], 2, "the output is one of the inputs"),
        (["{run}/absent.json"], 1, "no such file"),
        (["{run}/*.pt"], 1, "matches no file"),
        (["{empty}"], 1, "holds no .json"),
        (["{run}/notes.txt"], 1, "this is not a trace"),
        (["{run}/settings.json"], 1, "no traceEvents"),
        (["{run}", "-o", "out.txt"], 2, "must end with .json"),
        (["{run}", "-o", "{run}/notes.txt/out.json"], 1, "cannot be written"),
        (["{run}", "--rank", "five"], 2, "FILE=N"),
        (["{run}", "--rank", "other.json=3"], 2, "no input has this path"),
        (["{run}", "--ranks", "5-3"], 2, "--ranks 5-3: give ranks and spans of ranks"),
        (["{run}", "--ranks", "7"], 1, "none of the inputs is of a rank"),
        (["{run}", "--steps", "x"], 2, "--steps 10:20"),
        (["{run}", "--time-window", "1"], 2, "--time-window 1.5:2"),
        (["{run}", "--categories", ","], 2, "--categories"),
        (["{run}", "--min-duration", "5"], 2, "--min-duration 5us"),
        (["s3nope://bucket/x.json"], 1, "s3nope"),
    ],
)
def test_every_wrong_argument_is_one_sentence(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    before = digest(folder)
    filled = [argument.format(run=folder, empty=tmp_path / "empty") for argument in arguments]
    assert main(["merge", *filled]) == code
    printed = capsys.readouterr()
    assert words in one_sentence(printed.err)
    assert printed.out == ""
    assert digest(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "run"]


def test_a_part_of_the_run_is_merged_on_request(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rank2.json").write_text(
        rank_trace(
            2,
            slice_(2, "long", 100, 50, cat="x"),
            slice_(2, "short", 160, 1, cat="x"),
            slice_(2, "other", 170, 50, cat="y"),
            slice_(2, "late", 2_000_000, 50, cat="x"),
        )
    )
    output = tmp_path / "merged.json"
    options = ["--ranks", "1-2", "--time-window", "0:1", "--exclude-categories", "y", "--min-duration", "2us"]
    assert main(["merge", "-o", str(output), str(folder), *options, "--json"]) == 0
    assert names(output) == ["b", "long"]
    report = json.loads(capsys.readouterr().out)
    assert compile_schema(MERGE_REPORT)(report) is None
    assert {item["reason"]: item["count"] for item in report["left_out"]} == {
        "rank": None,
        "time": 1,
        "category": 1,
        "duration": 1,
    }
    assert main(["merge", "-f", "-o", str(output), str(folder), *options]) == 0
    printed = capsys.readouterr().out
    assert "nothing lost" in printed
    assert "left out on request: 1 file of other ranks" in printed
    assert "left out on request: 1 slices that are too short" in printed


def test_usage_errors_end_with_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["merge"]) == 2
    assert main(["brew"]) == 2
    assert "usage: tracekit" in capsys.readouterr().err


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "merge" in printed
    assert "validate" in printed


def test_two_processes_that_claim_one_rank_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "other.json").write_text(rank_trace(0, slice_(0, "x"), pid=999))
    assert main(["merge", "-o", str(tmp_path / "merged.json"), str(folder)]) == 1
    sentence = one_sentence(capsys.readouterr().err)
    assert "rank0.json" in sentence
    assert "other.json" in sentence
    assert "rank 0" in sentence


def test_a_trace_without_a_rank_asks_for_it_and_takes_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    anonymous = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": [slice_(7, "torch")]}
    (folder / "host_7.pt.trace.json").write_text(json.dumps(anonymous))
    output = tmp_path / "merged.json"
    assert main(["merge", "-o", str(output), str(folder)]) == 1
    assert "--rank host_7.pt.trace.json=N" in one_sentence(capsys.readouterr().err)
    assert main(["merge", "-o", str(output), str(folder), "--rank", "host_7.pt.trace.json=7"]) == 0
    assert names(output) == ["a", "b", "torch"]
    assert "(rank: --rank)" in capsys.readouterr().out
    alone = tmp_path / "alone.json"
    assert main(["merge", "-o", str(alone), str(folder / "host_7.pt.trace.json")]) == 0
    assert "(rank: assumed, as it is the only input)" in capsys.readouterr().out


def test_an_unexpected_fault_is_one_sentence_that_asks_for_a_report(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("oh\nno")

    monkeypatch.setattr("tracekit.cli.merge.merge_traces", explode)
    assert main(["merge", str(folder)]) == 1
    assert "please report it" in one_sentence(capsys.readouterr().err)
    monkeypatch.setenv("TRACEKIT_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["merge", str(folder)])


def test_an_interrupt_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr("tracekit.merge.rewrite.events.encode_event", interrupt)
    assert main(["merge", "-o", str(tmp_path / "merged.json"), str(folder)]) == 130
    one_sentence(capsys.readouterr().err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_remote_inputs_and_outputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for path in folder.iterdir():
        memory.pipe_file(f"/merge-test/run/{path.name}", path.read_bytes())
    try:
        assert main(["merge", "-o", "memory://merge-test/merged.json", "memory://merge-test/run"]) == 0
        events = json.loads(memory.cat_file("/merge-test/merged.json"))["traceEvents"]
        shown = [event for event in events if event["ph"] != "M" and event.get("cat") != "clock"]
        assert [event["name"] for event in shown] == ["a", "b"]
        assert sum(event.get("cat") == "clock" for event in events) == 2
        assert sum(event["name"] == "tracekit_metadata" for event in events) == 2
    finally:
        memory.rm("/merge-test", recursive=True)
    assert "merged 2 files of 2 ranks" in capsys.readouterr().out


def run_module(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tracekit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **options)


def test_the_module_is_the_command(folder: Path, tmp_path: Path) -> None:
    ended = run_module("merge", "-o", str(tmp_path / "merged.json"), str(folder))
    assert (ended.returncode, ended.stderr) == (0, "")
    ended = run_module("merge", "-o", str(tmp_path / "merged.json"), str(folder))
    assert ended.returncode == 1
    assert one_sentence(ended.stderr)


def test_a_reader_that_stops_listening_is_no_fault(folder: Path, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "tracekit", "merge", "-o", str(tmp_path / "merged.json"), str(folder)]
    with os.fdopen(write_end, "wb") as stdout:
        ended = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=240, check=False)
    assert ended.stderr == ""


@pytest.mark.parametrize(("arguments", "shown"), [([], True), (["--json"], False), (["-q"], False)])
def test_a_progress_bar_is_shown_on_a_terminal_only(
    folder: Path, tmp_path: Path, arguments: list[str], shown: bool
) -> None:
    main_end, terminal = pty.openpty()
    command = [sys.executable, "-m", "tracekit", "merge", "-o", str(tmp_path / "merged.json"), str(folder), *arguments]
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, timeout=240, check=False)
        os.close(terminal)
        terminal = -1
        seen = b""
        try:
            while part := os.read(main_end, 4096):
                seen += part
        except OSError:
            # Linux ends a terminal without a writer this way.
            pass
    finally:
        os.close(main_end)
        if terminal >= 0:
            os.close(terminal)
    assert ended.returncode == 0
    assert (b"%" in seen) is shown


def test_clocks_are_aligned_as_the_user_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = irregular(16)
    texts = [torch_trace(rank, done, seen(rank * SECOND)) for rank in (0, 1)]
    paths = write_ranks(tmp_path, texts)
    output = str(tmp_path / "merged.json")
    assert main(["merge", "--strict", "-o", output, *paths]) == 0
    assert "clock of rank 1: -1.000000 s ± 7.0 µs, from the ends of 16 collectives" in capsys.readouterr().out
    assert main(["merge", "-f", "-o", output, "--align", "wall", *paths]) == 0
    assert "clock of ranks 0-1: wall clock; host unknown" in capsys.readouterr().out
    assert main(["merge", "-f", "-o", output, "--offset", "1=-1000000000", "--collective-flows", *paths]) == 0
    out = capsys.readouterr().out
    assert "clock of rank 1: -1.000000 s, given by hand: error unknown" in out
    assert "added 48 events between members of collectives" in out
    assert main(["merge", "-f", "-o", output, "--align", "sync", "--strict", *paths]) == 1
    assert "rank 1 is not aligned" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1", "x=5", "1=5.5", "1=", "-1=5"])
def test_an_offset_that_is_none_is_wrong_usage(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", f"--offset={text}", str(folder)]) == 2
    assert "give it as RANK=NS" in capsys.readouterr().err


# ---- waiting for the end of a run -----------------------------------------------------------------------------------------

END = {"ph": "M", "name": "tracekit_summary", "pid": 100, "tid": 100, "args": {}}


def recorded(rank: int, *events: dict[str, Any], run_id: str = "RUN") -> str:
    """Return a rank trace as tracekit writes it: in lines, without spaces."""
    lines: list[dict[str, Any]] = json.loads(rank_trace(rank, *events, run_id=run_id))
    return "[\n" + ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines) + "\n]\n"


@pytest.fixture
def ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in which rank 0 has ended."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank0.json").write_text(recorded(0, slice_(0, "a"), END))
    (tmp_path / "rank1.json").write_text(recorded(1, slice_(1, "b")))
    return tmp_path


def test_a_rank_that_was_waited_for_in_vain_is_named_and_what_is_there_is_merged(
    ending: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["merge", "--wait-for-ranks", "3", "-o", "m.json", "rank*.json", "--timeout"]
    assert main([*command, "0"]) == 3
    what = "rank 2 has no rank trace; rank 1 has no end record in the rank trace"
    assert capsys.readouterr().err == f"tracekit merge: {what}; m.json holds what is there\n"
    assert names(ending / "m.json") == ["a", "b"]
    assert main([*command, "0.01", "-f"]) == 3
    assert capsys.readouterr().err.startswith(f"tracekit merge: waiting up to 0.01 s: {what}\n")
    assert main([*command, "0", "--json", "-f"]) == 3
    report = json.loads(capsys.readouterr().out)
    compile_schema(MERGE_REPORT)(report)
    assert report["warnings"][-2:] == what.split("; ")


def test_a_run_that_has_ended_is_merged_with_the_traces_that_it_names(
    ending: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {
        "ph": "M",
        "name": "tracekit_companion",
        "pid": 101,
        "tid": 101,
        "args": {"file": "t.json", "path": "t/t.json"},
    }
    (ending / "rank1.json").write_text(recorded(1, slice_(1, "b"), named, {**END, "pid": 101}))
    (ending / "t").mkdir()
    (ending / "t" / "t.json").write_text(json.dumps({"traceEvents": [slice_(1, "op")]}))
    (ending / "rank5.json").write_text(recorded(5, slice_(5, "other"), run_id="OTHER"))
    assert main(["merge", "--wait-for-ranks", "2", "--run", "RUN", "-q", "-o", "m.json", "."]) == 0
    assert capsys.readouterr() == ("", "")
    assert names(ending / "m.json") == ["a", "b", "op"]


def test_waiting_that_is_in_vain_from_the_start_is_refused(ending: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ending / "there.json").write_text("{}")
    hour = ["merge", "--wait-for-ranks", "3", "--timeout", "3600", "rank*.json", "-o"]
    assert main([*hour, "there.json"]) == 1
    assert "already exists" in one_sentence(capsys.readouterr().err)
    for option in (["--timeout", "1"], ["--run", "RUN"], ["--window"]):
        assert main(["merge", *option, "-o", "m.json", "rank*.json"]) == 2
        assert one_sentence(capsys.readouterr().err) == f"tracekit: {option[0]} needs --wait-for-ranks\n"
    for seconds in ("-1", "inf", "soon"):
        assert main([*hour[:3], "--timeout", seconds, *hour[5:], "m.json"]) == 2
        assert "is not a number of seconds from 0 on" in capsys.readouterr().err
    assert main([*hour[:3], "--timeout", "0", "none*.json", "-o", "m.json"]) == 1
    assert "none*.json: the pattern matches no file" in one_sentence(capsys.readouterr().err)
    assert main([*hour[:3], "--timeout", "0", "--strict", "rank*.json", "-o", "m.json"]) == 1
    assert "nothing is merged: rank 2 has no rank trace" in one_sentence(capsys.readouterr().err)
    assert not (ending / "m.json").exists()


def test_ranks_are_grouped_by_the_labels_in_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for rank in range(4):
        path = run / f"dp{rank // 2}_pp0_tp{rank % 2}_rank{rank}.json"
        path.write_text(
            json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": [slice_(rank, "a")]})
        )
    output = tmp_path / "merged.json"
    assert main(["merge", "-o", str(output), "--group-by", "tp", "--json", str(run)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [rank["processes"] for rank in report["ranks"]] == [
        [f"rank {rank} · tp{rank % 2} dp{rank // 2} · process {100 + rank}"] for rank in range(4)
    ]
    places = [event for event in json.loads(output.read_text())["traceEvents"] if event["name"] == "process_sort_index"]
    assert [event["pid"] // 100_000 for event in sorted(places, key=lambda event: event["args"]["sort_index"])] == [
        0,
        2,
        1,
        3,
    ]
    assert main(["merge", "-f", "-o", str(output), "--group-by", "ep", str(run)]) == 2
    assert one_sentence(capsys.readouterr().err).startswith("tracekit: --group-by ep: no input states its place in ep")


@pytest.mark.parametrize("verb", [["merge", "-o"], ["trim", "-o"], ["convert"]])
def test_arguments_of_events_are_left_out(tmp_path: Path, verb: list[str]) -> None:
    trace, output = tmp_path / "rank0.json", tmp_path / "out.json"
    trace.write_text(rank_trace(0, slice_(0, "a", args={"correlation": 1, "shape": [2, 3]})))
    files = [str(output), str(trace)] if verb[0] != "convert" else [str(trace), str(output)]
    assert main([*verb, *files, "--args", "ids"]) == 0
    events = json.loads(output.read_text())["traceEvents"]
    assert [event["args"] for event in events if event["name"] == "a"] == [{"correlation": 1}]
