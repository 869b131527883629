"""``tracekit report`` as a person and as a script meets it: a real run of two ranks, real traces, and what goes wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from tests.report_pages import Page, rank_trace
from tests.watched import record, train
from tracekit.check.schemas import compile_schema
from tracekit.cli import main
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.real_traces import RealTraces

ROOT = Path(__file__).resolve().parents[2]


def document(verb: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what a verb prints as JSON."""
    assert main([*verb, "--json"]) in (0, 3)
    told = json.loads(capsys.readouterr().out)
    assert compile_schema(verb[0])(told) is None
    return told


def test_recorded_run_of_two_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, output = tmp_path / "run", tmp_path / "report.html"
    for rank in (0, 1):
        clock = FakeClock(tick_ns=100)
        with record(folder, rank=rank, world_size=2, run_id="nightly", clock=clock) as profiler:
            for step in range(20):
                profiler.marker("training").counter({"loss": 1 / (1 + step)})
                train(profiler, clock, 1)
    recorded = str(folder)
    told = document(["report", recorded, "-o", str(output)], capsys)
    assert (told["output"], told["output_bytes"]) == (str(output), output.stat().st_size)
    assert told["summary"] == document(["summary", recorded], capsys)
    assert told["stragglers"] == document(["stragglers", recorded], capsys)
    assert told["runs"] == ["nightly"]
    assert [(one["name"], one["key"], one["values"]) for one in told["counters"]["counters"]] == [
        ("training", "loss", 40)
    ]
    assert [row["source"] for row in told["clocks"]["rows"]] == ["reference", "shared"]
    assert told["losses"]["recording"] == []

    page = Page(output.read_text())
    assert page.headings[0] == (1, "Run nightly")
    assert [row[1] for row in page.table("Step times of each rank")[1:]] == [
        str(20 - len(told["summary"]["warm_up"]))
    ] * 2
    assert [row[0] for row in page.table("Stages of a step;")[1:]] == [
        "dataloader", "forward", "backward", "backward > all_reduce", "in no marker"
    ]  # fmt: skip
    assert page.table("training: loss")[1][-1] == "1"
    assert "Nothing, as far as the traces tell." in page.text
    assert "All ranks share one clock." in page.text


@pytest.mark.parametrize("inputs", ["dlrm_8gpu", "torch_2.13_quirks/names.json.gz"])
def test_real_traces_have_the_figures_of_summary_and_stragglers(
    traces: RealTraces, inputs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = str(traces / inputs)
    told = document(["report", named, "-o", str(tmp_path / "report.html")], capsys)
    assert told["summary"] == document(["summary", named], capsys)
    assert told["stragglers"] == document(["stragglers", named], capsys)
    page = Page((tmp_path / "report.html").read_text())
    devices = [str(rank["rank"]) for rank in told["summary"]["ranks"] for _ in rank["devices"]]
    if devices:
        assert [row[0] for row in page.table("How busy each device is")[1:]] == devices
    else:
        assert "No kernel" in page.text


def test_report_goes_to_any_storage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = rank_trace(tmp_path / "rank0.json", 0)
    assert main(["report", str(trace), "-o", "memory://reports/run.html"]) == 0
    assert "wrote memory://reports/run.html" in capsys.readouterr().out
    with fsspec.open("memory://reports/run.html", "rt", encoding="utf-8") as file:
        assert Page(file.read()).headings[0] == (1, "Run run")


def test_exit_codes_are_those_of_the_other_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = str(tmp_path / "report.html")
    assert main(["report"]) == 2
    assert main(["report", str(tmp_path / "nothing*"), "-o", output]) == 1
    (tmp_path / "text.json").write_text("this is not a trace")
    assert main(["report", str(tmp_path / "text.json"), "-o", output]) == 1
    assert not Path(output).exists()
    damaged = rank_trace(tmp_path / "rank0.json", 0)
    damaged.write_text(damaged.read_text().replace('"dur": 10000', '"dur": -1', 1))
    assert main(["report", str(damaged), "-o", output]) == 3
    assert main(["report", "-f", str(damaged), "-o", output]) == 3
    assert "since they have no usable time or duration: 1 event." in Page(Path(output).read_text()).text
    assert "Traceback" not in capsys.readouterr().err


def test_build_of_the_package_holds_what_the_page_is_made_of(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "tracekit", source / "tracekit", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    setup = "from setuptools import setup; setup()"
    command = [sys.executable, "-c", setup, "-q", "build_py", "--build-lib", "../built"]
    subprocess.run(command, cwd=source, check=True, timeout=280, capture_output=True)
    built = tmp_path / "built" / "tracekit" / "view"
    for name in ("static/style.css", "static/plots.css", "templates/report.html"):
        assert (built / name).is_file()
