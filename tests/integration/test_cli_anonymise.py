"""``tracekit anonymise`` on real traces: nothing that names the machine is left, and Perfetto shows the same."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tracekit.cli import main
from tracekit.merge import merge_traces
from tracekit.traces.inputs import find_traces

if TYPE_CHECKING:
    from tests.perfetto import Engine
    from tests.real_traces import RealTraces

SLICES = "select ts, dur, depth from slice order by 1, 2, 3"
TRACE = '[{"ph":"X","name":"ours at /x/y","pid":1,"tid":1,"ts":1,"dur":1}]'


def test_a_real_run_names_nobody_and_can_still_be_merged(
    engine: Engine, traces: RealTraces, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = sorted((traces / "torch_2.13_gloo").glob("full_rank*_step4.json.gz"))
    for source in sources:
        (tmp_path / source.name).write_bytes(source.read_bytes())

    assert main(["anonymise", "--json", str(tmp_path)]) == 0

    document = json.loads(capsys.readouterr().out)
    assert [file["output"] for file in document["files"]] == [
        str(tmp_path / source.name.replace(".json.gz", ".anonymous.json.gz")) for source in sources
    ]
    assert document["replaced"]["host"] == 1
    for source, file in zip(sources, document["files"], strict=True):
        before, after = gzip.decompress(source.read_bytes()), gzip.decompress(Path(file["output"]).read_bytes())
        assert b'"host_name": "vm"' in before
        assert b'"vm"' not in after
        assert b"profiler.py" in before
        assert b"profiler.py" not in after
        with engine.load(source) as trace:
            expected, errors = trace.rows(SLICES), trace.errors()
        with engine.load(file["output"]) as trace:
            assert (trace.rows(SLICES), trace.errors()) == (expected, errors)
        assert len(expected) > 1000
    outputs = [file["output"] for file in document["files"]]
    assert main(["merge", "--json", "-o", str(tmp_path / "merged.json"), *outputs]) == 0
    clocks = {rank["clock"] for rank in json.loads(capsys.readouterr().out)["ranks"]}
    assert main(["merge", "--json", "-o", str(tmp_path / "merged2.json"), *map(str, sources)]) == 0
    assert clocks == {rank["clock"] for rank in json.loads(capsys.readouterr().out)["ranks"]}


def test_a_second_time_only_what_is_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(TRACE)
    assert main(["anonymise", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/a.anonymous.json.gz: 1 events\nreplaced: 1 path\n"
    assert main(["anonymise", str(tmp_path)]) == 1
    assert "already exists" in capsys.readouterr().err
    assert main(["anonymise", "-qf", "--names", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/a.anonymous.json.gz\n"
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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("whole", TRACE), ("cut", TRACE[:-1] + ',\n{"ph":"X","na'), ("lost", TRACE[:12])):
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "whole.json.gz").write_bytes(gzip.compress(TRACE.encode()))
    assert main(["anonymise", *arguments.split()]) == code
    assert words in "".join(capsys.readouterr())
    assert [path.name for path in tmp_path.glob("*.anonymous*")] == (["cut.anonymous.json.gz"] if code == 3 else [])
    assert not (tmp_path / "z.json").exists()


def test_a_folder_is_merged_without_the_anonymous_copies_of_its_traces(tmp_path: Path) -> None:
    for name in ("rank0.json", "rank1.json"):
        (tmp_path / name).write_text(TRACE)
    assert main(["anonymise", "-q", str(tmp_path)]) == 0
    (tmp_path / "rank1.json").unlink()
    report = merge_traces(str(tmp_path / "out" / "merged.json"), [str(tmp_path)])
    used = [str(tmp_path / "rank0.json"), str(tmp_path / "rank1.anonymous.json.gz")]
    left_out = [(str(tmp_path / "rank0.anonymous.json.gz"), True)]
    assert [item.path for item in report.inputs] == used
    assert [(item.path, item.harmless) for item in report.omitted] == left_out
    assert [path for path, _ in find_traces([str(tmp_path / "rank*")])] == used
