"""``tracekit doctor``: what is right is said, what is wrong is found, and nothing is left behind."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

import tracekit
from tracekit import core
from tracekit.check.doctor import examine_clocks, examine_environment, examine_packages, examine_place, examine_rank
from tracekit.clock import Clock
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Cli

YEAR_2026_NS = 1_790_857_026_000_000_000


def ticking(start_ns: int, *steps_ns: int) -> Callable[[], int]:
    """Return a clock that advances by these steps in turn, one for each reading."""
    state = [start_ns, 0]

    def read() -> int:
        state[0] += steps_ns[state[1] % len(steps_ns)]
        state[1] += 1
        return state[0]

    return read


def test_doctor_of_a_machine_that_is_fine_finds_no_problem_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**12))
    document = json.loads(cli("doctor --json").out)
    assert document["problems"] == []
    facts = {section["title"]: section["facts"] for section in document["sections"]}
    storages = ["storage .", f"storage {os.environ['TRACEKIT_SPOOL']}"]
    assert list(facts) == ["environment", "rank", "clocks", *storages, "packages"]
    assert facts["environment"]["tracekit"] == __version__
    assert (facts["rank"]["rank"], facts["rank"]["source"]) == (0, "default")
    assert facts["storage ."] == {"writes": True, "renames": True, "links": True, "free_bytes": 10**12}
    assert list(tmp_path.iterdir()) == []
    assert cli("doctor").out.splitlines()[-1] == "no problems found"
    assert cli("doctor -q").out == ""


@pytest.mark.parametrize("option", ["", "-q"])
def test_doctor_says_what_is_wrong_by_its_exit_code_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str, cli: Cli
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**12))
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "file").write_text("x")
    out = cli(f"doctor {option} {tmp_path}/file", 3).out
    assert "WRONG: WORLD_SIZE is 2, which does not fit rank 5: look at what sets the variables of torchrun" in out
    assert f"WRONG: {tmp_path}/file: is not a folder" in out
    assert out.endswith("2 problems found\n") == (not option)


def test_the_rank_and_what_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    section = examine_rank()
    assert (section.facts["rank"], section.facts["world_size"], section.facts["source"]) == (3, 8, "slurm")
    assert section.problems == []
    monkeypatch.setenv("RANK", "three")
    (problem,) = examine_rank().problems
    assert "RANK" in problem


@pytest.mark.parametrize(("found", "word"), [(object(), "compiled"), (None, "pure Python")])
def test_which_core_records_and_merges(monkeypatch: pytest.MonkeyPatch, found: object, word: str) -> None:
    monkeypatch.setattr(core, "merge", found)
    monkeypatch.setattr(core, "record", found)
    facts = examine_environment().facts
    assert facts["merge_core"] == facts["recording_core"] == word


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("TRACEKIT_STRICT", "1", "1"),
        ("TRACEKIT_API_TOKEN", "s3cr3t", "set"),
        ("TRACEKIT_S3_SECRET_ACCESS", "s3cr3t", "set"),
        ("TRACEKIT_PASSWORD", "", ""),
        ("TRACEKIT_UI", "https://jane:s3cr3t@ui.example/x?sig=abc#y", "https://ui.example/x"),
        ("TRACEKIT_TO", "s3://a:b@c/d, s3://e:f@g/h@i", "s3://c/d, s3://g/h@i"),
        ("TRACEKIT_SPOOL", "/a/b?c@d", "/a/b?c@d"),
    ],
)
def test_variables_are_shown_without_their_secrets(
    name: str, value: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert examine_environment().facts["variables"][name] == shown


def test_missing_packages_are_notes_unless_nothing_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("s3fs", "orjson") else object())
    section = examine_packages()
    assert (section.facts["s3fs"], section.facts["orjson"]) == (None, None)
    assert section.notes == ["s3fs is not installed (s3:// storage): pip install 'tracekit-ml[s3]'"]
    assert section.problems == ["orjson, which tracekit needs for writing, is not installed: install tracekit-ml again"]


def test_a_bundle_holds_findings_versions_and_checks_but_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setenv("TRACEKIT_API_TOKEN", "s3cr3t")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "good.json").write_text('[{"ph":"X","name":"hidden","pid":1,"tid":1,"ts":1,"dur":1}]')
    (tmp_path / "runs" / "bad.json").write_text("no trace")
    assert "wrote bug.zip" in cli("doctor --bundle bug.zip runs", (0, 3)).out
    with zipfile.ZipFile("bug.zip") as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert json.loads(texts["doctor.json"])["sections"][0]["facts"]["tracekit"] == __version__
    assert "pytest==" in texts["packages.txt"]
    bad, good = json.loads(texts["traces.json"])
    assert (bad["file"], good["file"]) == ("bad.json", "good.json")
    assert good["checks"][0]["events"] == 1
    assert "bad.json" in bad["error"]
    assert not any("s3cr3t" in text or "hidden" in text for text in texts.values())
    assert cli("doctor --bundle bug.zip", 1).err.endswith("or pass --force to replace it\n")
    cli("doctor --bundle bug.zip --force", (0, 3))


def test_another_distribution_with_a_package_of_this_name_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    assert examine_packages().problems == []
    installed = {"tracekit": ["tracekit-ml", "tracekit", "tracekit"], "numpy": ["numpy"]}
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: installed)
    (problem,) = examine_packages().problems
    assert problem.startswith("the distribution tracekit installs a package tracekit, too")
    assert problem.endswith("pip uninstall tracekit, then pip install --force-reinstall tracekit-ml")


@pytest.mark.parametrize(
    ("folder", "warns"), [("tracekit-0.11.dist-info", True), ("tracekit_ml-0.1.0.dist-info", False)]
)
def test_import_beside_the_other_distribution_warns(tmp_path: Path, folder: str, warns: bool) -> None:
    (tmp_path / "tracekit").mkdir()
    for name in ("__init__.py", "version.py"):
        (tmp_path / "tracekit" / name).write_bytes((Path(tracekit.__file__).parent / name).read_bytes())
    (tmp_path / folder).mkdir()
    done = subprocess.run(
        [sys.executable, "-c", "import tracekit"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ("pip uninstall tracekit, then" in done.stderr) == warns
    assert warns or not done.stderr


GOOD_NS = ticking(YEAR_2026_NS, 50)


@pytest.mark.parametrize(
    ("wall_ns", "monotonic_ns", "words"),
    [
        (GOOD_NS, ticking(0, 50), []),
        (GOOD_NS, ticking(0, 20_000), ["coarser than 10 µs"]),
        (GOOD_NS, lambda: 7, ["coarser than 10 µs"]),
        (GOOD_NS, ticking(10**9, 100, -50), ["monotonic clock has gone backwards"]),
        (ticking(YEAR_2026_NS, 100, -50), ticking(0, 50), ["wall clock has gone backwards"]),
        (ticking(0, 50), ticking(0, 50), ["years behind"]),
        (GOOD_NS, ticking(0, 400_000), ["coarser", "cannot be compared"]),
    ],
)
def test_clocks_that_cannot_be_trusted(wall_ns: Any, monotonic_ns: Any, words: list[str]) -> None:
    problems = examine_clocks(Clock(wall_ns, monotonic_ns)).problems
    assert len(problems) == len(words), problems
    assert all(word in problem for problem, word in zip(problems, words, strict=True))


def test_a_folder_that_is_not_there_is_looked_at_where_it_would_be_made(tmp_path: Path) -> None:
    section = examine_place(str(tmp_path / "a" / "b"))
    assert section.facts["writes"]
    assert section.notes == [f"{tmp_path}/a/b is not there; looked at {tmp_path}, where it would be made"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("refused", "error", "writes", "links", "problem"),
    [
        ("fsync", OSError(28, "No space left on device"), False, None, "No space left on device: traces cannot"),
        ("link", PermissionError(1, "Operation not permitted"), True, False, "only 5 MB are free; a full disk loses"),
    ],
)
def test_a_folder_on_a_disk_that_refuses_or_is_nearly_full(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: str,
    error: OSError,
    writes: bool,
    links: bool | None,
    problem: str,
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5_000_000))
    monkeypatch.setattr(os, refused, refuse)
    section = examine_place(str(tmp_path))
    assert (section.facts["writes"], section.facts.get("links")) == (writes, links)
    (found,) = section.problems
    assert found.startswith(f"{tmp_path}: {problem}")
    assert list(tmp_path.iterdir()) == []


def test_a_remote_storage_is_written_and_left_as_it_was() -> None:
    section = examine_place("memory://doctor/run/")
    assert (section.facts, section.problems) == ({"writes": True, "reads": True}, [])
    assert list(fsspec.filesystem("memory").find("/doctor")) == []
    assert "nothing-like-it" in examine_place("nothing-like-it://x").problems[0]
