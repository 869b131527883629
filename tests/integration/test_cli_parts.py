"""``tracekit trim``, ``split`` and ``convert`` as a person and as a script meets them."""

from __future__ import annotations

import gzip
import json
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.cli import main
from tracekit.storage import exists

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine
    from tests.real_traces import RealTraces

SLICES = "select ts, dur, name from slice order by 1, 2, 3"


def rank_trace(rank: int) -> str:
    pid = 100 + rank
    own = {"rank": rank, "pid": pid, "host": "h", "boot_id": "b", "baseTimeNanoseconds": 1_790_857_026_000_000_000}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "tracekit_metadata", "pid": pid, "tid": pid, "args": own},
        {"ph": "X", "name": "long", "pid": pid, "tid": pid, "ts": 1_900_000, "dur": 200_000},
    ]
    for step in (0, 1, 5):
        ts = 1_000_000 * step + rank
        events.append({"ph": "X", "name": f"step {step}", "pid": pid, "tid": pid, "ts": ts, "dur": 1000})
        events.append({"ph": "X", "name": "inner", "pid": pid, "tid": pid, "ts": ts + 1, "dur": 10})
    return "[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The traces of two ranks, in a folder in which the command is run."""
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"rank{rank}.json").write_text(rank_trace(rank))
    monkeypatch.chdir(tmp_path)
    return folder


def names(path: Path) -> list[str]:
    data = path.read_bytes()
    events = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    return sorted(event["name"] for event in events if event["ph"] != "M" and event.get("cat") != "clock")


# ---- trim -------------------------------------------------------------------------------------------------------------------


def test_trim_takes_a_part_and_says_what_is_left_out(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trim", "--time-window", "0:0.5", "--name", "inner", "-o", "part.json", str(run)]) == 0
    out = capsys.readouterr().out
    assert names(tmp_path / "part.json") == ["inner", "inner", "step 0", "step 0"]
    assert "left out on request: 10 events outside of the time window" in out
    assert main(["trim", "--ranks", "1", "--json", "-o", "one.json.gz", str(run)]) == 0
    assert [rank["rank"] for rank in json.loads(capsys.readouterr().out)["ranks"]] == [1]
    assert main(["trim", "--ranks", "1", "-q", "-o", "one.json.gz", str(run)]) == 1
    assert "already exists" in capsys.readouterr().err
    assert main(["trim", "--ranks", "1", "-qf", "-o", "one.json.gz", str(run)]) == 0
    assert capsys.readouterr() == ("", "")


def test_steps_are_found_in_a_native_trace_as_in_the_one_that_it_was_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    own = {"rank": 0, "pid": 7, "host": "h", "boot_id": "b", "baseTimeNanoseconds": 1_790_857_026_000_000_000}
    place = {"pid": 7, "tid": 7}
    events: list[dict[str, Any]] = [{"ph": "M", "name": "tracekit_metadata", **place, "args": own}]
    for batch in range(6):
        at = 1000.123 * (batch + 1)
        events.append({"ts": at, "ph": "M", "name": "tracekit_timestamp", **place, "args": {"batch": batch}})
        events.append({"ph": "X", "name": f"in {batch}", **place, "ts": at + 1, "dur": 10})
    (tmp_path / "r.json").write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")
    assert main(["convert", "r.json", "r.pftrace"]) == 0
    assert main(["trim", "--steps", "2:4", "-o", "t.json", "r.pftrace"]) == 0
    begun = [event for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if event["ph"] == "B"]
    assert [event["name"] for event in begun] == ["in 2", "in 3"]
    assert main(["convert", "r.pftrace", "back.json"]) == 0
    assert b'"ts":2000.246' in (tmp_path / "back.json").read_bytes()


def test_trim_that_leaves_everything_out_says_so_by_its_exit_code(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trim", "--time-window", "100:200", "-o", "part.json", str(run)]) == 3
    assert "nothing that happened is selected" in capsys.readouterr().out
    assert names(tmp_path / "part.json") == []
    assert main(["trim", "--time-window", "100:200", "-qf", "-o", "part.json", str(run)]) == 3
    assert "nothing that happened is selected" in capsys.readouterr().err


def test_trim_of_nothing_in_particular_is_wrong_usage(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trim", str(run)]) == 2
    assert "say what to take: --steps" in capsys.readouterr().err
    assert not (run.parent / "trimmed.json.gz").exists()
    assert main(["trim", "--steps", "a:b", str(run)]) == 2


# ---- split ------------------------------------------------------------------------------------------------------------------


def test_split_by_time_has_every_slice_and_those_over_a_border_twice(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["split", "--seconds", "1", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert [line.partition(":")[0] for line in lines] == [f"run-00{part}.json.gz" for part in (0, 1, 2, 5)]
    assert lines[0] == "run-000.json.gz: 0 s to 1 s, 6 events"
    found = {part: names(tmp_path / f"run-00{part}.json.gz") for part in (0, 1, 2, 5)}
    assert found[0] == ["inner", "inner", "step 0", "step 0"]
    assert found[1] == ["inner", "inner", "long", "long", "step 1", "step 1"]
    assert found[2] == ["long", "long"]
    assert found[5] == ["inner", "inner", "step 5", "step 5"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        f"run-00{part}.json.gz" for part in found
    ]

    assert main(["split", "--seconds", "1", str(run)]) == 1
    assert "run-000.json.gz: already exists" in capsys.readouterr().err


@pytest.mark.parametrize("latest", ["middle.json", "end.json.gz"])
def test_split_by_time_finds_the_latest_event_wherever_it_is(
    tmp_path: Path, latest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trace is larger than the parts of a file that the scan of a merge reads."""
    chance = Random(1)
    events = [
        {"ph": "X", "name": "op", "pid": 7, "tid": 7, "ts": at, "dur": 1, "args": {"id": chance.randbytes(50).hex()}}
        for at in range(5000)
    ]
    at = 2500 if latest == "middle.json" else 5000
    events.insert(at, {"ph": "X", "name": "late", "pid": 7, "tid": 8, "ts": 1_500_000, "dur": 1})
    header = {"schemaVersion": 1, "distributedInfo": {"rank": 0}, "baseTimeNanoseconds": 1_790_857_026_000_000_000}
    text = json.dumps({**header, "traceEvents": events}).encode()
    (tmp_path / latest).write_bytes(gzip.compress(text) if latest.endswith(".gz") else text)
    assert main(["split", "--seconds", "1", "-o", str(tmp_path / "{part}.json"), str(tmp_path / latest)]) == 0
    assert "1 s to 2 s, 1 events" in capsys.readouterr().out
    assert names(tmp_path / "001.json") == ["late"]


def test_the_parts_of_a_glob_and_of_a_file_with_a_hole_in_its_name_have_plain_names(run: Path, tmp_path: Path) -> None:
    assert main(["split", "-q", "--by-rank", f"{run}/*.json"]) == 0
    assert main(["split", "-q", "--by-rank", f"{run}/*1.json"]) == 0
    (run / "a{part}.json").write_text(rank_trace(0))
    assert main(["split", "-q", "--by-rank", str(run / "a{part}.json")]) == 0
    assert sorted(path.name for path in tmp_path.glob("*.gz")) == [
        "apart-rank0.json.gz",
        "merged-rank0.json.gz",
        "merged-rank1.json.gz",
        "rank1-rank1.json.gz",
    ]


def test_split_by_rank_and_to_another_storage(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["split", "--by-rank", "--json", "-o", "memory://split/{part}.pftrace", str(run)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(part["part"], part["holds"]) for part in document["parts"]] == [("rank0", "rank 0"), ("rank1", "rank 1")]
    assert document["complete"]
    assert exists("memory://split/rank0.pftrace")
    assert main(["split", "--seconds", "1", "-qo", "memory://split/{part}.json", str(run)]) == 0
    assert capsys.readouterr().out.split() == [f"memory://split/00{part}.json" for part in (0, 1, 2, 5)]
    assert not exists("memory://split/003.json")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "one of the arguments --seconds --by-rank is required"),
        (["--seconds", "1", "--by-rank"], 2, "not allowed with"),
        (["--seconds", "0"], 2, "must be a number of seconds above 0"),
        (["--seconds", "nan"], 2, "--seconds nan: give a number of seconds"),
        (["--seconds", "0.0001"], 2, "at most 1,000"),
        (["--by-rank", "-o", "x.json"], 2, "{part}"),
    ],
)
def test_wrong_usage_of_split(
    run: Path, arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["split", *arguments, str(run)]) == code
    assert words in capsys.readouterr().err
    assert [path for path in run.parent.iterdir() if path.is_file()] == []


def test_a_trace_without_events_cannot_be_split(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "rank0.json").write_text('[{"ph":"M","name":"process_name","pid":1,"args":{"name":"a"}}]')
    assert main(["split", "--seconds", "1", str(run / "rank0.json")]) == 1
    assert "holds no events that could be split" in capsys.readouterr().err


# ---- convert ----------------------------------------------------------------------------------------------------------------


def test_converting_there_and_back_shows_the_same_in_perfetto(
    engine: Engine, traces: RealTraces, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = min((traces / "torch_2.13_gloo").rglob("full*.json*"))
    shown = []
    for before, after in (
        (source, "a.json"),
        ("a.json", "b.pftrace.gz"),
        ("b.pftrace.gz", "c.json.gz"),
        ("c.json.gz", "d.pftrace"),
    ):
        assert main(["convert", str(tmp_path / before), str(tmp_path / after)]) == 0
        with engine.load(tmp_path / after) as trace:
            assert trace.errors() == []
            shown.append(trace.rows(SLICES))
    assert f"wrote {tmp_path}/d.pftrace" in capsys.readouterr().out
    lowest = [rows[0][0] for rows in shown]
    assert len(shown[0]) > 1000
    for rows, start in zip(shown, lowest, strict=True):
        # Perfetto's own format has times since the epoch, JSON times since the trace's base.
        assert [(ts - start, dur, name) for ts, dur, name in rows] == [
            (ts - lowest[0], dur, name) for ts, dur, name in shown[0]
        ]


@pytest.mark.parametrize(
    ("output", "code", "words"),
    [
        ("a.zip", 2, "an archive is made of several traces"),
        ("a.txt", 2, "must end with .json"),
        ("run/rank1.json", 1, "already exists"),
    ],
)
def test_wrong_usage_of_convert(
    run: Path, output: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(run / "rank0.json"), output]) == code
    assert words in capsys.readouterr().err
