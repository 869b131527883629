"""``tracekit anonymise`` on real traces: nothing that names the machine is left, and Perfetto shows the same."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tracekit.merge import merge_traces
from tracekit.traces.inputs import find_traces

if TYPE_CHECKING:
    from tests.conftest import Cli
    from tests.perfetto import Engine
    from tests.real_traces import RealTraces

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
    ],
)
def test_what_cannot_be_done_is_said_by_the_exit_code(
    tmp_path: Path, cli: Cli, arguments: str, code: int, words: str
) -> None:
    for name, text in (("whole", TRACE), ("cut", TRACE[:-1] + ',\n{"ph":"X","na'), ("lost", TRACE[:12])):
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "whole.json.gz").write_bytes(gzip.compress(TRACE.encode()))
    assert words in "".join(cli(f"anonymise {arguments}", code))
    assert [path.name for path in tmp_path.glob("*.anonymous*")] == (["cut.anonymous.json.gz"] if code == 3 else [])
    assert not (tmp_path / "z.json").exists()


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
