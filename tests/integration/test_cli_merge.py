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
from tests.merge_inputs import event, meta, titles, write
from tests.merge_inputs import names as names_in
from tests.merge_inputs import rank_trace as rank_trace_of
from tests.merge_inputs import torch_trace as torch_trace_of
from tracekit.check.schemas import MERGE_REPORT, compile_schema
from tracekit.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def slice_(rank: int, name: str, ts: Any = 5, dur: float = 2, **more: Any) -> dict[str, Any]:
    return event(name, ts, dur, pid=100 + rank, tid=100 + rank, **more)


def rank_trace(rank: int, *events: dict[str, Any], pid: int | None = None, **metadata: Any) -> str:
    """Return a rank trace as tracekit writes it: in lines, without spaces."""
    own = {"pid": 100 + rank if pid is None else pid, "boot_id": "b", **metadata}
    lines = rank_trace_of(*events, rank=rank, **own)
    return "[\n" + ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines) + "\n]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two rank traces and, among them, files that are not traces."""
    traces = {"rank0.json": rank_trace(0, slice_(0, "a")), "rank1.json.gz": rank_trace(1, slice_(1, "b"))}
    write(tmp_path / "run", {**traces, "settings.json": '{"learning_rate": 0.1}', "notes.txt": "hello"})
    return tmp_path / "run"


@pytest.fixture
def report_of(capsys: pytest.CaptureFixture[str]) -> Any:
    """Merge with ``--json``, and return the report, which fits its schema."""

    def _report_of(*arguments: str, code: int = 0) -> dict[str, Any]:
        assert main(["merge", "--json", *arguments]) == code
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert compile_schema(MERGE_REPORT)(report) is None
        return report

    return _report_of


def digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def names(path: Path) -> list[str]:
    data = path.read_bytes()
    return names_in(json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))


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
    assert main(["merge", "-f", "-q", "-o", str(output), str(folder)]) == 0
    assert capsys.readouterr() == ("", "")


def test_json_is_one_document_that_fits_its_schema(folder: Path, tmp_path: Path, report_of: Any) -> None:
    no_time = event("no time", None, pid=102)
    write(folder, {"rank2.json": rank_trace(2, slice_(2, "c"), no_time)[:-4], "rank3.json": "hello"})
    report = report_of("-o", str(tmp_path / "merged.json"), str(folder), code=3)
    assert report["complete"] is False
    assert [(item["rank"], item["kind"]) for item in report["inputs"]] == [(rank, "tracekit") for rank in range(3)]
    assert {item["path"].rpartition("/")[2]: item["harmless"] for item in report["omitted"]} == {
        "rank3.json": False,
        "settings.json": True,
    }
    assert report["output_bytes"] == (tmp_path / "merged.json").stat().st_size


def test_what_is_lost_is_counted_and_the_code_says_so(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rank2.json").write_text(rank_trace(2, slice_(2, "c"), slice_(2, "n", None)))
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
    assert main(["merge", "--strict", "-o", str(tmp_path / "merged.json"), str(folder)]) == 1
    assert "rank2.json" in one_sentence(capsys.readouterr().err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_the_output_in_the_folder_is_not_an_input_and_is_replaced_only_by_force(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = folder / "merged.json.gz"
    assert main(["merge", "-o", str(output), str(folder)]) == 0
    first = output.read_bytes()
    assert main(["merge", "-o", str(output), str(folder)]) == 1
    assert "--force" in one_sentence(capsys.readouterr().err)
    assert output.read_bytes() == first
    assert main(["merge", "-f", "-o", str(output), str(folder)]) == 0
    assert output.read_bytes() == first
    assert main(["merge", "-o", str(folder / "second.json.gz"), str(folder)]) == 0
    assert "the result of an earlier merge" in capsys.readouterr().out
    assert (folder / "second.json.gz").read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "name the traces to merge"),
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
        *((["{run}", f"--offset={text}"], 2, "give it as RANK=NS") for text in ("1", "x=5", "1=5.5", "1=", "-1=5")),
        (["{run}", "--group-by", "ep"], 2, "--group-by ep: no input states its place in ep"),
        (["{run}", "--dask", "tcp://127.0.0.1:1", "--workers", "2"], 2, "exclude each other"),
        (["{run}", "--timeout", "1"], 2, "--timeout needs --wait-for-ranks"),
        (["{run}", "--run", "RUN"], 2, "--run needs --wait-for-ranks"),
        (["{run}", "--window"], 2, "--window needs --wait-for-ranks"),
        (["s3nope://bucket/x.json"], 1, "s3nope"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
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


WRONG_VALUES = {"--snap-overlaps": ["-1"], "--workers": ["0", "-1", "many"], "--timeout": ["-1", "inf", "soon"]}


@pytest.mark.parametrize(("option", "text"), [(name, text) for name, texts in WRONG_VALUES.items() for text in texts])
def test_a_wrong_value_is_refused_with_the_usage(option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", option, text, "a.json"]) == 2
    assert f"error: argument {option}: " in capsys.readouterr().err


def test_a_part_of_the_run_is_merged_on_request(
    folder: Path, tmp_path: Path, report_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [("long", 100, 50, "x"), ("short", 160, 1, "x"), ("other", 170, 50, "y"), ("late", 2_000_000, 50, "x")]
    trace = rank_trace(2, *(slice_(2, name, ts, dur, cat=cat) for name, ts, dur, cat in events))
    (folder / "rank2.json").write_text(trace)
    output = tmp_path / "merged.json"
    options = ["--ranks", "1-2", "--time-window", "0:1", "--exclude-categories", "y", "--min-duration", "2us"]
    report = report_of("-o", str(output), str(folder), *options)
    assert names(output) == ["b", "long"]
    gone = {item["reason"]: item["count"] for item in report["left_out"]}
    assert gone == {"rank": None, "time": 1, "category": 1, "duration": 1}
    assert main(["merge", "-f", "-o", str(output), str(folder), *options]) == 0
    printed = capsys.readouterr().out
    assert "nothing lost" in printed
    assert "left out on request: 1 file of other ranks" in printed
    assert "left out on request: 1 slices that are too short" in printed


def test_a_trace_without_a_rank_asks_for_it_and_takes_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, {"host_7.pt.trace.json": torch_trace_of(slice_(7, "torch"))})
    output = tmp_path / "merged.json"
    assert main(["merge", "-o", str(output), str(folder)]) == 1
    assert "--rank host_7.pt.trace.json=N" in one_sentence(capsys.readouterr().err)
    assert main(["merge", "-o", str(output), str(folder), "--rank", "host_7.pt.trace.json=7"]) == 0
    assert names(output) == ["a", "b", "torch"]
    assert "(rank: --rank)" in capsys.readouterr().out
    assert main(["merge", "-f", "-o", str(output), str(folder / "host_7.pt.trace.json")]) == 0
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


def run_module(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tracekit", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=240, check=False, **options)


def test_the_module_is_the_command_and_a_reader_that_stops_listening_is_no_fault(folder: Path, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = ["merge", "-o", str(tmp_path / "merged.json"), str(folder)]
    with os.fdopen(write_end, "wb") as stdout:
        assert run_module(*command, stdout=stdout).stderr == ""
    assert names(tmp_path / "merged.json") == ["a", "b"]
    ended = run_module(*command)
    assert ended.returncode == 1
    assert one_sentence(ended.stderr)


@pytest.mark.parametrize(("arguments", "shown"), [([], True), (["--json"], False), (["-q"], False)])
def test_a_progress_bar_is_shown_on_a_terminal_only(
    folder: Path, tmp_path: Path, arguments: list[str], shown: bool
) -> None:
    main_end, terminal = pty.openpty()
    command = [sys.executable, "-m", "tracekit", "merge", "-o", str(tmp_path / "merged.json"), str(folder), *arguments]
    with os.fdopen(main_end, "rb", buffering=0) as screen:
        with os.fdopen(terminal, "wb") as stderr:
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, timeout=240, check=False)
        seen = b""
        try:
            while part := screen.read(4096):
                seen += part
        except OSError:
            # Linux ends a terminal without a writer this way.
            pass
    assert ended.returncode == 0
    assert (b"%" in seen) is shown


def test_clocks_are_aligned_as_the_user_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = irregular(16)
    paths = write_ranks(tmp_path, [torch_trace(rank, done, seen(rank * SECOND)) for rank in (0, 1)])
    command = ["merge", "-f", "-o", str(tmp_path / "merged.json"), *paths]
    assert main([*command, "--strict"]) == 0
    assert "clock of rank 1: -1.000000 s ± 7.0 µs, from the ends of 16 collectives" in capsys.readouterr().out
    assert main([*command, "--align", "wall"]) == 0
    assert "clock of ranks 0-1: wall clock; host unknown" in capsys.readouterr().out
    assert main([*command, "--offset", "1=-1000000000", "--collective-flows"]) == 0
    out = capsys.readouterr().out
    assert "clock of rank 1: -1.000000 s, given by hand: error unknown" in out
    assert "added 48 events between members of collectives" in out
    assert main([*command, "--align", "sync", "--strict"]) == 1
    assert "rank 1 is not aligned" in capsys.readouterr().err


@pytest.fixture
def ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in which rank 0 has ended."""
    monkeypatch.chdir(tmp_path)
    end = meta("tracekit_summary", 100, 100)
    write(tmp_path, {"rank0.json": rank_trace(0, slice_(0, "a"), end), "rank1.json": rank_trace(1, slice_(1, "b"))})
    return tmp_path


def test_a_rank_that_was_waited_for_in_vain_is_named_and_what_is_there_is_merged(
    ending: Path, report_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--wait-for-ranks", "3", "-f", "-o", "m.json", "rank*.json", "--timeout"]
    assert main(["merge", *command, "0"]) == 3
    what = "rank 2 has no rank trace; rank 1 has no end record in the rank trace"
    assert capsys.readouterr().err == f"tracekit merge: {what}; m.json holds what is there\n"
    assert names(ending / "m.json") == ["a", "b"]
    assert main(["merge", *command, "0.01"]) == 3
    assert capsys.readouterr().err.startswith(f"tracekit merge: waiting up to 0.01 s: {what}\n")
    assert report_of(*command, "0", code=3)["warnings"][-2:] == what.split("; ")


def test_a_run_that_has_ended_is_merged_with_the_traces_that_it_names(
    ending: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = meta("tracekit_companion", 101, 101, file="t.json", path="t/t.json")
    files = {
        "rank1.json": rank_trace(1, slice_(1, "b"), named, meta("tracekit_summary", 101, 101)),
        "t/t.json": {"traceEvents": [slice_(1, "op")]},
        "rank5.json": rank_trace(5, slice_(5, "other"), run_id="OTHER"),
    }
    write(ending, files)
    assert main(["merge", "--wait-for-ranks", "2", "--run", "r", "-q", "-o", "m.json", "."]) == 0
    assert capsys.readouterr() == ("", "")
    assert names(ending / "m.json") == ["a", "b", "op"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--timeout", "3600", "rank*.json", "-o", "there.json"], 1, "already exists"),
        (["--timeout", "0", "none*.json", "-o", "m.json"], 1, "none*.json: the pattern matches no file"),
        (
            ["--timeout", "0", "--strict", "rank*.json", "-o", "m.json"],
            1,
            "nothing is merged: rank 2 has no rank trace",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_waiting_that_is_in_vain_from_the_start_is_refused(
    ending: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    (ending / "there.json").write_text("{}")
    assert main(["merge", "--wait-for-ranks", "3", *arguments]) == code
    assert words in one_sentence(capsys.readouterr().err)
    assert not (ending / "m.json").exists()


def test_ranks_are_grouped_by_the_labels_in_their_names(tmp_path: Path, report_of: Any) -> None:
    files = {f"dp{rank // 2}_pp0_tp{rank % 2}_rank{rank}.json": torch_trace_of(slice_(rank, "a")) for rank in range(4)}
    output = tmp_path / "merged.json"
    report = report_of("-o", str(output), "--group-by", "tp", *write(tmp_path / "run", files))
    assert [rank["processes"] for rank in report["ranks"]] == [
        [f"rank {rank} · tp{rank % 2} dp{rank // 2} · process {100 + rank}"] for rank in range(4)
    ]
    assert [pid // 100_000 for pid in titles(json.loads(output.read_text()))] == [0, 2, 1, 3]


@pytest.mark.parametrize("verb", [["merge", "-o"], ["trim", "-o"], ["convert"]])
def test_arguments_of_events_are_left_out(tmp_path: Path, verb: list[str]) -> None:
    trace, output = tmp_path / "rank0.json", tmp_path / "out.json"
    trace.write_text(rank_trace(0, slice_(0, "a", args={"correlation": 1, "shape": [2, 3]})))
    files = [str(output), str(trace)] if verb[0] != "convert" else [str(trace), str(output)]
    assert main([*verb, *files, "--args", "ids"]) == 0
    events = json.loads(output.read_text())["traceEvents"]
    assert [event["args"] for event in events if event["name"] == "a"] == [{"correlation": 1}]


def test_overlaps_are_snapped_by_the_microseconds_that_the_user_says(tmp_path: Path, report_of: Any) -> None:
    kernels = [event("gemm", ts, dur, pid=0, tid=7, cat="kernel") for ts, dur in ((0, 10), (9.5, 10.5))]
    [path] = write(tmp_path, {"rank0.json": torch_trace_of(*kernels)})
    report = report_of("-o", str(tmp_path / "merged.json"), "--snap-overlaps", "2.5", path)
    assert (report["overlaps_moved"], report["overlaps_snapped"], report["largest_snap_ns"]) == (0, 1, 500)
