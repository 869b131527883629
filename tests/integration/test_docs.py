"""The documentation is true: its code runs, its site builds without a warning, and it lists every environment variable."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tracekit.auto.configuration import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in [*DOCS.glob("*.md"), *(DOCS / "guides").glob("*.md")] if page.stem != "clusters")
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    blocks = BLOCK.findall(page.read_text("utf-8"))
    if any("import torch" in code for _, code in blocks):
        pytest.importorskip("torch", reason="torch is not installed")
    for number, (language, code) in enumerate(blocks):
        if language == "python":
            (tmp_path / f"block{number}.py").write_text(code, "utf-8")  # a file: workers import it
            command = [sys.executable, f"block{number}.py"]
        else:
            command = ["sh", "-e", "-c", code]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr


def test_the_environment_page_lists_every_variable() -> None:
    page = (DOCS / "environment.md").read_text("utf-8")
    sources = [path.read_text("utf-8") for path in (ROOT / "tracekit").rglob("*.py")]
    used = {name for text in sources for name in re.findall(r"\bTRACEKIT_[A-Z][A-Z_]*[A-Z]\b", text)}
    used |= {f"TRACEKIT_{name.upper()}" for name in OPTIONS}
    assert used == set(re.findall(r"\bTRACEKIT_[A-Z_]+", page))


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert built.returncode == 0, built.stderr
    commands = (tmp_path / "site" / "commands" / "index.html").read_text("utf-8")
    assert "tracekit stragglers" in commands
    names = (tmp_path / "site" / "python" / "index.html").read_text("utf-8")
    assert "JSONTraceHandler" in names
