"""Runs as the pages know them: names, addresses, what belongs to which, and what is served of it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.served import rank_trace
from tracekit.view.serve.catalog import Catalog

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.view.serve.runs import Run


def write(folder: Path, run: str, *ranks: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        (folder / f"{run}-rank{rank}.json").write_text(rank_trace(rank, run=run))


def by_name(catalog: Catalog) -> dict[str, Run]:
    runs, notes, problem = catalog.runs()
    assert (notes, problem) == ((), "")
    assert len({run.id for run in runs}) == len(runs)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", run.id) for run in runs)
    return {run.name: run for run in runs}


def test_run_is_called_after_its_folder_and_two_in_one_folder_after_themselves(tmp_path: Path) -> None:
    write(tmp_path / "team a" / "llama", "first", 0, 1)
    write(tmp_path / "both", "second", 0, 1)
    write(tmp_path / "both", "third", 0)
    catalog = Catalog(str(tmp_path))
    runs = by_name(catalog)

    assert set(runs) == {"team a/llama", "both · second", "both · third"}
    assert runs["team a/llama"].id.startswith("team-a-llama-")
    assert runs["both · third"].rank_words == "1 of 2 ranks"
    assert runs["both · third"].ranks[-1].name == "1"
    assert runs["both · third"].ranks[-1].state == "lost"
    found = catalog.find(runs["team a/llama"].id)
    assert found is not None
    assert (found.name, found.step) == ("team a/llama", 20)
    assert Catalog(str(tmp_path)).find(found.id) is not None, "an address outlives the server"
    for name in ("", "..", "team a/llama", "both", "../both"):
        assert catalog.find(name) is None


@pytest.mark.parametrize(("run", "name"), [("only", "only"), ("", "(unnamed)")])
def test_run_at_the_root_is_called_after_itself(tmp_path: Path, run: str, name: str) -> None:
    write(tmp_path, run, 0)
    assert set(by_name(Catalog(str(tmp_path)))) == {name}


def test_all_of_a_folder_is_merged_unless_others_are_in_it(tmp_path: Path) -> None:
    write(tmp_path / "alone", "first", 0, 1)
    (tmp_path / "alone" / "torch-rank0.json").write_text('{"traceEvents": []}')
    write(tmp_path / "outer", "second", 0, 1)
    write(tmp_path / "outer" / "inner", "third", 0, 1)
    catalog = Catalog(str(tmp_path))
    runs = by_name(catalog)

    alone = catalog.inputs(runs["alone"])
    assert (alone.names, alone.notes) == ((str(tmp_path / "alone"),), ())
    outer = catalog.inputs(runs["outer"])
    assert outer.names == tuple(str(tmp_path / "outer" / f"second-rank{rank}.json") for rank in (0, 1))
    assert outer.notes != ()
    assert catalog.inputs(runs["outer/inner"]).names == (str(tmp_path / "outer" / "inner"),)

    assert {name for name, run in runs.items() if run.shared} == {"outer"}
    (tmp_path / "alone" / "torch-rank0.json").write_text('{"traceEvents": [] }')
    assert catalog.inputs(runs["alone"]).key != alone.key


def test_traces_of_other_tools_are_one_run_a_folder_unless_they_belong_to_a_recorded_run(tmp_path: Path) -> None:
    trace = json.dumps({"schemaVersion": 1, "traceEvents": []})
    jax = "jax/plugins/profile/2026_11_27/host.trace.json"
    for name in ("torch/rank-0.json", "torch/rank-1.json", "torch/later/rank-0.json", "run/torch/rank-0.json", jax):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(trace)
    (tmp_path / "settings.json").write_text('{"learning_rate": 0.1}')
    write(tmp_path / "run", "run", 0, 1)
    catalog = Catalog(str(tmp_path))
    runs = by_name(catalog)

    assert set(runs) == {"run", "torch", "torch/later", "jax/2026_11_27"}
    assert (runs["torch"].rank_words, runs["torch"].states) == ("2 ranks", (("finished", 2),))
    assert [rank.name for rank in runs["torch"].ranks] == ["0", "1"]
    assert catalog.inputs(runs["torch"]).names == tuple(
        str(tmp_path / "torch" / f"rank-{rank}.json") for rank in (0, 1)
    )
    assert catalog.inputs(runs["run"]).names == (str(tmp_path / "run"),)


def test_only_what_is_below_the_root_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    write(root / "run", "run", 0)
    (root / "link.json").symlink_to(tmp_path / "secret.json")
    (root / "circle.json").symlink_to(root / "circle.json")
    (tmp_path / "secret.json").write_text("[]")
    catalog = Catalog(str(root))
    inside = str(root / "run" / "run-rank0.json")

    outside = [
        str(tmp_path / "secret.json"),
        str(root / ".." / "secret.json"),
        str(root / "link.json"),
        str(tmp_path / "root2" / "x.json"),
        "s3://bucket/x.json",
        f"file://{tmp_path}/secret.json",
        str(root / "l?nk.json"),
        str(root / "run" / "gone.json"),
        "run/run-rank0.json",
        str(root / "circle.json"),
        str(root / "nul\0.json"),
        str(root / "half\ud800.json"),
        str(root / ("long" * 2000)),
    ]
    monkeypatch.chdir(root)
    assert catalog.inputs_of([inside, *outside]).names == (inside,)
    bucket = Catalog("memory://bucket/runs")
    assert bucket.holds("memory://bucket/runs/a/b.json")
    for other in (
        "memory://bucket/runs2/b.json",
        "memory://bucket/runs/../b.json",
        "/etc/passwd",
        "s3://bucket/runs/b",
    ):
        assert not bucket.holds(other)


@pytest.mark.parametrize(
    "name", ["a.json", "rank2.json.tmp", "a.pftrace.gz", "rank0.recovered.json", "1/" * 13 + "a.json"]
)
def test_no_link_out_of_the_root_is_merged_whatever_its_name(tmp_path: Path, name: str) -> None:
    root, secret = tmp_path / "root", tmp_path / "secret.json"
    write(root / "run", "run", 0, 1)
    secret.write_text("[]")
    catalog = Catalog(str(root))
    assert catalog.inputs(by_name(catalog)["run"]).names == (str(root / "run"),)
    outside = tmp_path / "outside"
    write(outside, "secret", 0)
    (root / "linked").symlink_to(outside)
    (root / "own").mkdir()
    (root / "own" / "rank0.json").symlink_to(outside / "secret-rank0.json")
    link = root / "run" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(secret)

    runs = by_name(Catalog(str(root)))
    assert set(runs) == {"run"}
    inputs = catalog.inputs(runs["run"])
    assert inputs.names == tuple(str(root / "run" / f"run-rank{rank}.json") for rank in (0, 1))
    assert inputs.notes == ("links that lead to other folders are not followed",)
