"""The corpus of commit a64288a merges, validates, recovers and adds up as it did; see tests/data/a64288a/README.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pinned_corpus import (
    ARCHIVES,
    CORPUS,
    MERGES,
    SETS,
    checks,
    corpus_files,
    expected,
    merge,
    rows,
    totals,
    unpack,
)
from tests.real_traces import OWN, ROOT
from tracekit import merge_traces

if TYPE_CHECKING:
    from tests.perfetto import Engine

OLD_FIXTURES = [
    *(f"torch_2.13_gloo/{kind}_rank{{0}}_step4.json.gz" for kind in ("plain", "shapes", "full")),
    *(f"torch_2.13_quirks/{name}.json.gz" for name in ("args_inf", "meta_quotes", "names", "pyexport", "stack_quotes")),
    "torch_2.13_quirks/threads.json.gz",
    "flight_recorder/_dump_fr_trace_json_rank{0}.bin",
    *(f"format1/{name}" for name in ("cut.json", "packed.json.gz", "whole.json")),
]
MERGE_ALL = """
import json, sys
from tracekit import core, merge_traces
assert core.merge is None
for output, inputs in json.load(sys.stdin).items():
    merge_traces(output, inputs)
"""


@pytest.fixture(scope="module")
def pinned() -> dict[str, Any]:
    return expected()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("corpus"))


def assert_same(found: dict[str, Any], pinned: dict[str, Any]) -> None:
    """Compare the rows of Perfetto with the pinned ones; name the rows that differ."""
    found = json.loads(json.dumps(found))
    for kind, rows_before in pinned.items():
        if isinstance(rows_before, list):
            lost = [row for row in rows_before if row not in found[kind]]
            new = [row for row in found[kind] if row not in rows_before]
            assert (lost[:3], new[:3]) == ([], []), kind
        assert found[kind] == rows_before, kind


def without_times(slices: list[Any]) -> list[Any]:
    """Return slices without their starts, which an archive states in its manifest."""
    return sorted([*found[:5], *found[6:]] for found in slices)


def test_corpus_is_small_and_every_part_of_it_is_pinned(corpus: Path, pinned: dict[str, Any]) -> None:
    assert sum(path.stat().st_size for path in CORPUS.iterdir()) < 600_000
    assert {path.name for path in corpus.iterdir()} == {*SETS, "merged"}
    assert {path.relative_to(corpus).as_posix() for path in corpus_files(corpus)} == set(pinned["files"])
    assert set(pinned["merges"]) == set(MERGES)
    merged = {each for inputs in MERGES.values() for each in inputs if each.startswith("merged/")}
    assert {f"merged/{path.name}" for path in (corpus / "merged").iterdir()} == merged | set(ARCHIVES.values())


@pytest.mark.parametrize("name", MERGES)
def test_corpus_merges_to_the_pinned_slices_and_merging_again_changes_nothing(
    engine: Engine, corpus: Path, pinned: dict[str, Any], tmp_path: Path, name: str
) -> None:
    output, again = tmp_path / "once.json", tmp_path / "twice.json"
    base_ns = merge(corpus, name, output)
    with engine.load(output) as trace:
        assert_same(rows(trace, base_ns), pinned["merges"][name])
    merge_traces(str(again), [str(output)])
    with engine.load(again) as trace:
        assert_same(rows(trace, base_ns), pinned["merges"][name])


@pytest.mark.parametrize("name", SETS)
def test_corpus_merges_to_the_pinned_slices_in_pftrace(
    engine: Engine, corpus: Path, pinned: dict[str, Any], tmp_path: Path, name: str
) -> None:
    merge(corpus, name, tmp_path / "merged.pftrace")
    with engine.load(tmp_path / "merged.pftrace") as trace:
        assert_same(rows(trace), pinned["pftrace"][name])


@pytest.mark.parametrize("name", ARCHIVES)
def test_inputs_in_an_old_archive_merge_to_the_pinned_slices(
    engine: Engine, corpus: Path, pinned: dict[str, Any], tmp_path: Path, name: str
) -> None:
    archive, output = corpus / ARCHIVES[name], tmp_path / "merged.json"
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as files:
            names = files.namelist()
            files.extractall(tmp_path / "in")
    else:
        with tarfile.open(archive) as tar:
            names = tar.getnames()
            tar.extractall(tmp_path / "in", **({"filter": "data"} if sys.version_info >= (3, 12) else {}))
    assert names[0] == "perfetto_manifest.json"
    merge_traces(str(output), [str(tmp_path / "in" / each) for each in names[1:]])
    with engine.load(output) as trace:
        assert without_times(rows(trace)["slices"]) == without_times(pinned["merges"][name]["slices"])


def test_corpus_files_validate_and_recover_as_before(
    engine: Engine, corpus: Path, pinned: dict[str, Any], tmp_path: Path
) -> None:
    output = tmp_path / "recovered.json"
    recovered = {}
    for path in corpus_files(corpus):
        name = path.relative_to(corpus).as_posix()
        assert json.loads(json.dumps(checks(corpus, path, output))) == pinned["files"][name], name
        if output.exists():
            with engine.load(output) as trace:
                recovered[name] = rows(trace)
            output.unlink()
    assert set(recovered) == set(pinned["recovered"])
    for name, found in recovered.items():
        assert_same(found, pinned["recovered"][name])


@pytest.mark.parametrize("name", SETS)
def test_summary_of_the_corpus_states_the_pinned_totals(corpus: Path, pinned: dict[str, Any], name: str) -> None:
    # The pinned number of events of a file counts its metadata, and an end as an event.
    expected = pinned["summaries"][name]
    expected["files"] = len(expected.pop("events"))
    found = json.loads(json.dumps(totals(corpus, name)))
    # The first step of each window is not counted any more.
    for windows in found.pop("windows"):
        for now, before in zip(found["ranks"], expected["ranks"], strict=True):
            assert now[2][0] == before[2][0] - windows
            assert now[2][1] < before[2][1]
            now[2] = before[2]
    assert found == expected


@pytest.mark.core
def test_pure_python_merges_the_corpus_and_the_old_fixtures_to_the_same_events(corpus: Path, tmp_path: Path) -> None:
    groups = [[str(corpus / each) for each in inputs] for inputs in MERGES.values()]
    for name in OLD_FIXTURES:
        groups.append([str(OWN / name.format(rank)) for rank in (range(2) if "{" in name else range(1))])
    outputs = {str(tmp_path / f"python{number}.json"): group for number, group in enumerate(groups)}
    environment = {**os.environ, "TRACEKIT_PURE_PYTHON": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-c", MERGE_ALL],
        input=json.dumps(outputs),
        text=True,
        env=environment,
        check=True,
        cwd=tmp_path,
    )
    for pure, group in outputs.items():
        output = Path(pure.replace("python", "core"))
        merge_traces(str(output), group)
        assert json.loads(output.read_bytes()) == json.loads(Path(pure).read_bytes()), group
