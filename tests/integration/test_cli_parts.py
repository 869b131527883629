"""``tracekit trim``, ``split`` and ``convert`` as a person and as a script meets them."""

from __future__ import annotations

import gzip
import json
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.storage import exists

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Cli


BASE_NS = 1_790_857_026_000_000_000


def rank_trace(rank: int, *events: dict[str, Any]) -> str:
    place = {"pid": 100 + rank, "tid": 100 + rank}
    own = {"rank": rank, "pid": 100 + rank, "host": "h", "boot_id": "b", "baseTimeNanoseconds": BASE_NS}
    lines = [{"ph": "M", "name": "tracekit_metadata", "args": own}, *events]
    return "[\n" + ",\n".join(json.dumps({**event, **place}) for event in lines) + "\n]\n"


def steps(rank: int) -> list[dict[str, Any]]:
    events = [{"ph": "X", "name": "long", "ts": 1_900_000, "dur": 200_000}]
    for step in (0, 1, 5):
        ts = 1_000_000 * step + rank
        events.append({"ph": "X", "name": f"step {step}", "ts": ts, "dur": 1000})
        events.append({"ph": "X", "name": "inner", "ts": ts + 1, "dur": 10})
    return events


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The traces of two ranks, in a folder of the current one."""
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"rank{rank}.json").write_text(rank_trace(rank, *steps(rank)))
    return folder


def names(path: Path) -> list[str]:
    data = path.read_bytes()
    events = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    return sorted(event["name"] for event in events if event["ph"] != "M" and event.get("cat") != "clock")


@pytest.mark.usefixtures("run")
def test_trim_takes_a_part_and_says_what_is_left_out(tmp_path: Path, cli: Cli) -> None:
    out = cli("trim --time-window 0:0.5 --name inner -o part.json run").out
    assert out.startswith("trimmed 2 files of 2 ranks from run/: kept 4 of 14 events, nothing lost\n")
    assert "left out on request: 10 events outside of the time window" in out
    assert names(tmp_path / "part.json") == ["inner", "inner", "step 0", "step 0"]
    document = json.loads(cli("trim --ranks 1 --json -o one.json.gz run").out)
    assert [rank["rank"] for rank in document["ranks"]] == [1]
    assert "already exists" in cli("trim --ranks 1 -q -o one.json.gz run", 1).err
    assert cli("trim --ranks 1 -qf -o one.json.gz run") == ("", "")


def test_steps_are_found_in_a_native_trace_as_in_the_one_that_it_was_made_of(tmp_path: Path, cli: Cli) -> None:
    events: list[dict[str, Any]] = []
    for batch in range(6):
        at = 1000.123 * (batch + 1)
        events.append({"ts": at, "ph": "M", "name": "tracekit_timestamp", "args": {"batch": batch}})
        events.append({"ph": "X", "name": f"in {batch}", "ts": at + 1, "dur": 10})
    (tmp_path / "r.json").write_text(rank_trace(0, *events))
    said = "converted 1 file of 1 rank: 13 events, nothing lost\n"
    assert cli("convert r.json r.pftrace").out.startswith(said)
    cli("trim --steps 2:4 -o t.json r.pftrace")
    begun = [event for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if event["ph"] == "B"]
    assert [event["name"] for event in begun] == ["in 2", "in 3"]
    cli("convert r.pftrace back.json")
    assert b'"ts":2000.246' in (tmp_path / "back.json").read_bytes()


@pytest.mark.usefixtures("run")
def test_trim_that_leaves_everything_out_says_so_by_its_exit_code(tmp_path: Path, cli: Cli) -> None:
    said = "nothing that happened is selected"
    assert said in cli("trim --time-window 100:200 -o part.json run", 3).out
    assert names(tmp_path / "part.json") == []
    assert said in cli("trim --time-window 100:200 -qf -o part.json run", 3).err


@pytest.mark.usefixtures("run")
def test_split_by_time_has_every_slice_and_those_over_a_border_twice(tmp_path: Path, cli: Cli) -> None:
    lines = cli("split --seconds 1.0000000 run").out.splitlines()
    assert lines[0] == "run-000.json.gz: 0.0000000 s to 1.0000000 s, 6 events"
    assert {line.partition(":")[0]: names(tmp_path / line.partition(":")[0]) for line in lines} == {
        "run-000.json.gz": ["inner", "inner", "step 0", "step 0"],
        "run-001.json.gz": ["inner", "inner", "long", "long", "step 1", "step 1"],
        "run-002.json.gz": ["long", "long"],
        "run-005.json.gz": ["inner", "inner", "step 5", "step 5"],
    }
    assert len([path for path in tmp_path.iterdir() if path.is_file()]) == 4
    assert "run-000.json.gz: already exists" in cli("split --seconds 1 run", 1).err


@pytest.mark.parametrize(("name", "at"), [("middle.json", 2500), ("end.json.gz", 5000)])
def test_split_by_time_finds_the_latest_event_wherever_it_is(tmp_path: Path, name: str, at: int, cli: Cli) -> None:
    """The trace is larger than the parts of a file that the scan of a merge reads."""
    chance = Random(1)
    event = {"ph": "X", "name": "op", "pid": 7, "tid": 7, "dur": 1}
    events = [{**event, "ts": ts, "args": {"id": chance.randbytes(50).hex()}} for ts in range(5000)]
    events.insert(at, {**event, "name": "late", "tid": 8, "ts": 1_500_000})
    header = {"schemaVersion": 1, "distributedInfo": {"rank": 0}, "baseTimeNanoseconds": BASE_NS}
    text = json.dumps({**header, "traceEvents": events}).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert "1 s to 2 s, 1 events" in cli(f"split --seconds 1 -o {{part}}.json {name}").out
    assert names(tmp_path / "001.json") == ["late"]


def test_the_parts_of_a_glob_and_of_a_file_with_a_hole_in_its_name_have_plain_names(
    run: Path, tmp_path: Path, cli: Cli
) -> None:
    (run / "a{part}.json").write_text(rank_trace(0, *steps(0)))
    for source in ("run/rank*.json", "run/*1.json", "run/a{part}.json"):
        cli(f"split -q --by-rank {source}")
    parts = ["apart-rank0", "merged-rank0", "merged-rank1", "rank1-rank1"]
    assert sorted(path.name for path in tmp_path.glob("*.gz")) == [f"{part}.json.gz" for part in parts]


@pytest.mark.usefixtures("run")
def test_split_by_rank_and_to_another_storage(cli: Cli) -> None:
    document = json.loads(cli("split --by-rank --json -o memory://split/{part}.pftrace run").out)
    assert [(part["part"], part["holds"]) for part in document["parts"]] == [("rank0", "rank 0"), ("rank1", "rank 1")]
    assert document["complete"]
    assert exists("memory://split/rank0.pftrace")
    parts = cli("split --seconds 1 -qo memory://split/{part}.json run").out.split()
    assert parts == [f"memory://split/00{part}.json" for part in (0, 1, 2, 5)]
    assert not exists("memory://split/003.json")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("trim run", 2, "say what to take: --steps"),
        ("trim --steps a:b run", 2, "--steps a:b"),
        ("split run", 2, "one of the arguments --seconds --by-rank is required"),
        ("split --seconds 1 --by-rank run", 2, "not allowed with"),
        ("split --seconds 0 run", 2, "must be a number of seconds above 0"),
        ("split --seconds nan run", 2, "--seconds nan: give a number of seconds"),
        ("split --seconds 0.0001 run", 2, "at most 1,000"),
        ("split --by-rank -o x.json run", 2, "{part}"),
        ("split --seconds 1 run/no-events.json", 1, "holds no events that could be split"),
        ("convert run/rank0.json a.zip", 2, "an archive is made of several traces"),
        ("convert run/rank0.json a.txt", 2, "must end with .json"),
        ("convert run/rank0.json run/rank1.json", 1, "already exists"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    run: Path, arguments: str, code: int, words: str, cli: Cli
) -> None:
    if "no-events" in arguments:
        (run / "no-events.json").write_text('[{"ph":"M","name":"process_name","pid":1,"args":{"name":"a"}}]')
    assert words in cli(arguments, code).err
    assert [path for path in run.parent.iterdir() if path.is_file()] == []
