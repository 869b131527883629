"""``tracekit anonymise`` on real traces: nothing that names the machine is left, and Perfetto shows the same."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli import main
from tracekit.merge import merge_traces
from tracekit.traces.inputs import find_traces

if TYPE_CHECKING:
    import pytest

    from tests.perfetto import Engine
    from tests.real_traces import RealTraces

SLICES = "select ts, dur, depth from slice order by 1, 2, 3"


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
    (tmp_path / "a.json").write_text('[{"ph":"X","name":"ours at /x/y","pid":1,"tid":1,"ts":1,"dur":1}]')
    assert main(["anonymise", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/a.anonymous.json.gz: 1 events\nreplaced: 1 path\n"
    assert main(["anonymise", str(tmp_path)]) == 1
    assert "already exists" in capsys.readouterr().err
    assert main(["anonymise", "-qf", "--names", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/a.anonymous.json.gz\n"
    assert b'"name-1"' in gzip.decompress((tmp_path / "a.anonymous.json.gz").read_bytes())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.anonymous.json.gz", "a.json"]


def test_what_cannot_be_read_is_said_by_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text('[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1},\n{"ph":"X","na')
    assert main(["anonymise", str(tmp_path / "a.json")]) == 3
    assert "1 places LOST that could not be read" in capsys.readouterr().out
    assert main(["anonymise", "-o", "x.json", str(tmp_path / "a.json"), str(tmp_path / "a.anonymous.json.gz")]) == 2
    assert "-o names one file" in capsys.readouterr().err


def test_two_inputs_that_would_be_written_to_one_file_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = '[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1}]'
    (tmp_path / "r.json").write_text(text)
    (tmp_path / "r.json.gz").write_bytes(gzip.compress(text.encode()))
    assert main(["anonymise", "-f", str(tmp_path / "r.json"), str(tmp_path / "r.json.gz")]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}/r.anonymous.json.gz: two of the inputs would be written there" in error
    assert "one by one with -o" in error
    assert not (tmp_path / "r.anonymous.json.gz").exists()


def test_a_file_in_which_no_event_can_be_read_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text('[{"ph":"X","na')
    assert main(["anonymise", "-o", str(tmp_path / "z.json"), str(tmp_path / "a.json")]) == 1
    assert "no event in it can be read" in capsys.readouterr().err
    assert not (tmp_path / "z.json").exists()


def test_a_folder_is_merged_without_the_anonymous_copies_of_its_traces(tmp_path: Path) -> None:
    for name in ("rank0.json", "rank1.json"):
        (tmp_path / name).write_text('[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1}]')
    assert main(["anonymise", "-q", str(tmp_path)]) == 0
    (tmp_path / "rank1.json").unlink()
    report = merge_traces(str(tmp_path / "out" / "merged.json"), [str(tmp_path)])
    used = [str(tmp_path / "rank0.json"), str(tmp_path / "rank1.anonymous.json.gz")]
    assert [item.path for item in report.inputs] == used
    assert [(item.path, item.harmless) for item in report.omitted] == [
        (str(tmp_path / "rank0.anonymous.json.gz"), True)
    ]
    assert [path for path, _ in find_traces([str(tmp_path / "rank*")])] == used
