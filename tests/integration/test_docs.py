"""The documentation is true: its code runs, its site builds without a warning, and it lists every option and variable."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.native.cores import project
from tests.unit.test_layers import FOUNDATION, MAY_USE
from tracekit import JSONTraceHandler, Profiler
from tracekit.auto.options import DEFAULTS, OPTIONS, READERS
from tracekit.cli import make_parser
from tracekit.recording.options import SETTINGS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ALL_PAGES = sorted(DOCS.rglob("*.md"))
COMING_FROM = sorted((DOCS / "coming_from").glob("*.md"))
PAGES = [page for page in ALL_PAGES if page not in COMING_FROM]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"python", "sh", "ipython", "console", "toml", "json", "yaml", "text"}
"""Tests run python, sh and ipython, and read console, toml and json; the others are pictures and parts of foreign files."""
NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in CELLS:
    shell.run_cell(cell).raise_error()
"""
STAND_INS = {
    "composer": (
        "import sys, types\n"
        "from unittest.mock import MagicMock\n"
        "Trainer, core = MagicMock(), types.ModuleType('composer.core')\n"
        "core.Callback, core.Event = object, MagicMock()\n"
        "sys.modules.update({'composer': types.ModuleType('composer'), 'composer.core': core})\n"
    ),
    "jax_profiler": (
        "from types import SimpleNamespace\n"
        "epoch, batches, state = 0, [[1], [2]], None\n"
        "trainer = SimpleNamespace(log_path='runs/0', state=SimpleNamespace(params={}))\n"
        "def train_step(state, batch): return state, {}\n"
    ),
    "megatron_timers": (
        "from unittest.mock import MagicMock\n"
        "from tracekit import JSONTraceHandler, Profiler, Timers\n"
        "writer, run, mlflow, iteration, step, log_interval = MagicMock(), MagicMock(), MagicMock(), 1, 1, 1\n"
        "with Profiler(JSONTraceHandler('traces/RUN/rank0.json'), rank=0):\n"
        "    with Timers(1, 'max')('warm-up'): pass\n"
    ),
    "thunder_time_profiler": "from unittest.mock import MagicMock\nTrainer = MagicMock()\n",
}
"""The objects of a user's program in which a page shows what to change."""
LONG = {"composer", "data_loader", "ddp", "jax_profiler", "run", "thunder_time_profiler"}
"""Pages whose code starts ranks, other frameworks or torch several times: only ``scripts/test --all`` runs it."""
NEEDED = {"jax_profiler": "jax", "megatron_timers": "torch", "thunder_time_profiler": "lightning"}


def long_ones_slow(pages: list[Path]) -> list[Any]:
    """Return the pages as parameters."""
    return [pytest.param(page, marks=pytest.mark.slow) if page.stem in LONG else page for page in pages]


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    return [found for found in BLOCK.findall(page.read_text("utf-8")) if found[0] in languages]


def run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("page", long_ones_slow(PAGES), ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    found = blocks(page, "python", "sh", "ipython")
    if any("import torch" in code for _, code in found):
        pytest.importorskip("torch", reason="torch is not installed")
    for number, (language, code) in enumerate(found):
        if language == "sh":
            run(["sh", "-e", "-c", code], tmp_path)
            continue
        if language == "ipython":
            pytest.importorskip("IPython", reason="IPython is not installed")
            code = NOTEBOOK.replace("CELLS", repr(code.split("\n\n")))  # noqa: PLW2901 - the same code as a program
        (tmp_path / f"block{number}.py").write_text(code, "utf-8")  # a file: workers import it
        run([sys.executable, f"block{number}.py"], tmp_path)


@pytest.mark.parametrize(
    "page", long_ones_slow([page for page in COMING_FROM if blocks(page, "python")]), ids=lambda page: page.stem
)
def test_the_code_of_a_page_for_users_of_another_profiler_runs(page: Path, tmp_path: Path) -> None:
    if page.stem in NEEDED:
        pytest.importorskip(NEEDED[page.stem], reason=f"{NEEDED[page.stem]} is not installed")
    code = STAND_INS[page.stem] + "\n".join(code for _, code in blocks(page, "python", "sh"))
    (tmp_path / "program.py").write_text(code, "utf-8")
    run([sys.executable, "program.py"], tmp_path)


def commands(page: Path) -> list[list[str]]:
    """Return the words of each command of a page that no test runs."""
    lines = [line for _, code in blocks(page, "console") for line in code.replace("\\\n", " ").splitlines()]
    found = [shlex.split(line.replace("$SLURM_JOB_ID", "7"), comments=True) for line in lines]
    return [words for words in found if words]


@pytest.mark.parametrize("page", [page for page in ALL_PAGES if blocks(page, "console")], ids=lambda page: page.stem)
def test_the_commands_of_a_page_are_accepted(page: Path) -> None:
    _, parsers = make_parser()
    extras = project()["project"]["optional-dependencies"]
    for words in commands(page):
        if words[:2] == ["pip", "install"]:
            (name, listed) = words[2].rstrip("]").split("[")
            assert name == "tracekit-ml"
            assert set(listed.split(",")) <= set(extras)
        elif "tracekit" in words and words[-1] != "tracekit":
            at = max(place for place, word in enumerate(words) if word == "tracekit")
            verb, *arguments = words[at + 1 :]
            parsers[verb].parse_args(arguments)
        elif words[0] == ".venv/bin/python" or words[0] == "python":
            assert "-m" in words
        else:
            assert words[0] in ("torchrun", "srun", "dask") or (ROOT / words[0]).exists(), words
        scripts = [word for word in words if word.startswith(("examples/", "tests/"))]
        assert all((ROOT / script).exists() for script in scripts)


def test_the_other_blocks_of_the_pages_can_be_read() -> None:
    for page in ALL_PAGES:
        assert {language for language, _ in blocks(page, *LANGUAGES)} == {
            language for language, _ in BLOCK.findall(page.read_text("utf-8"))
        }
        for _, code in blocks(page, "toml"):
            assert tomllib.loads(code)
        for _, code in blocks(page, "json"):
            assert json.loads(code)


def test_the_configuration_page_lists_every_option_with_its_variable_and_default() -> None:
    page = (DOCS / "environment.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `?([^|`]*)`? ?\|", page, re.MULTILINE)
    assert [(key, variable) for key, variable, _ in rows] == [(key, f"TRACEKIT_{key.upper()}") for key in OPTIONS]
    defaults = {**DEFAULTS, **{name: default for name, (default, _) in SETTINGS.items()}}
    for key, _, shown in rows:
        text, default = shown.strip(), defaults[key]
        if text in ("", "all"):
            assert default in (None, ())
        elif text in ("true", "false"):
            assert bool(default) == (text == "true")
        else:
            assert READERS[key](text) == default


def test_the_configuration_page_lists_every_variable() -> None:
    page = (DOCS / "environment.md").read_text("utf-8")
    sources = [path.read_text("utf-8") for path in (ROOT / "tracekit").rglob("*.py")]
    used = {name for text in sources for name in re.findall(r"\bTRACEKIT_[A-Z][A-Z_]*[A-Z]\b", text)}
    used |= {f"TRACEKIT_{name.upper()}" for name in OPTIONS}
    assert used == set(re.findall(r"\bTRACEKIT_[A-Z_]+", page))


def test_the_page_on_files_shows_events_as_they_are_written(tmp_path: Path) -> None:
    with Profiler(JSONTraceHandler(tmp_path / "rank{rank}.json"), rank=0, world_size=2, run_id="nightly") as profiler:
        with profiler.marker("forward"):
            pass
        profiler.marker("training").counter({"loss": 0.5})
        profiler.step()
    ((_, code),) = blocks(DOCS / "files.md", "json")
    written = {event["name"]: event for event in json.loads((tmp_path / "rank0.json").read_bytes())}
    for event in json.loads(code):
        assert set(event) == set(written[event["name"]])
        assert set(event["args"]) <= set(written[event["name"]]["args"])


def test_the_architecture_page_has_the_layers_that_are_enforced() -> None:
    page = (DOCS / "ARCHITECTURE.md").read_text("utf-8").partition("## Layers")[2].partition("\n## ")[0]
    shown = {}
    for folder, used in re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE):
        shown[folder] = set(re.findall(r"`(\w+)`", used)) | (FOUNDATION if used.startswith("foundation") else set())
    assert shown == {folder: used for folder, used in MAY_USE.items() if " " not in folder}


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert built.returncode == 0, built.stderr

    def text(name: str) -> str:
        return (tmp_path / "site" / name / "index.html").read_text("utf-8")

    assert "tracekit stragglers" in text("commands")
    assert "JSONTraceHandler" in text("python")
    assert "::</p>" not in text("python")
    assert all(f'id="{path.name.partition(".")[0]}"' in text("files") for path in (ROOT / "schemas").glob("*.json"))
    for page in (tmp_path / "site").rglob("index.html"):
        assert page.read_text("utf-8").count("<h1") == 1, page
