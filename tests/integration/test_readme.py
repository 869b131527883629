"""The README is true: its Python runs, its commands run, and its two scripts are what CI runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Before any other import: what `pip install .` does not install cannot be imported.
BARE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "psutil", "numpy", "rich"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    lines = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # The commands of a virtual environment stand beside its python.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment["TRACEKIT_RUN_ID"] = "RUN"
    environment.pop("TRACEKIT_QUIET", None)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def serves(command: list[str], folder: Path) -> None:
    """Start a server, see the run on its page, and end it as Ctrl-C does."""
    program = Path(sys.executable).with_name(command[0])
    server = subprocess.Popen([program, *command[1:], "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = next(line for line in server.stdout if "http://127.0.0.1:" in line)
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+/\?token=\S+", line)
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(url, timeout=240) as page:
            assert "RUN" in page.read().decode()
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=240)
    assert server.returncode == 0


def test_the_readme_fits_two_screens_and_every_command_is_tested_here_or_in_ci() -> None:
    assert len(README.splitlines()) <= 100
    assert {" ".join(command[:2]) for command in commands()} == {
        "scripts/demo", "scripts/test", "pip install", "tracekit diff", "tracekit merge", "tracekit open", "tracekit run",
        "tracekit serve", "tracekit summary",
    }  # fmt: skip
    ci = (ROOT / ".ci" / "run").read_text("utf-8")
    assert re.search(r"^scripts/demo\b", ci, re.MULTILINE)
    assert re.search(r"^scripts/test --all\b", ci, re.MULTILINE)


def test_every_command_that_is_named_exists() -> None:
    named = set(re.findall(r"(?<=`)tracekit (\w+)|(?<=`)(\w+)`(?=,| and| \()", README))
    known = subprocess.run(
        [sys.executable, "-m", "tracekit", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert {"mcp", "stragglers", "gpu", "report", "query"} <= {first or second for first, second in named}
    assert all(re.search(rf"^ +{first or second}\b", known, re.MULTILINE) for first, second in named)


def test_the_python_runs_and_the_commands_merge_and_check_what_it_recorded(tmp_path: Path) -> None:
    example, _ = blocks("python")
    recorded = run([sys.executable, "-c", BARE + example], tmp_path)
    assert recorded.returncode == 0, recorded.stderr
    assert (tmp_path / "traces" / "RUN" / "rank0.json").exists()
    assert recorded.stdout == ""
    assert recorded.stderr.endswith(" Next: tracekit open traces/RUN/merged.json.gz\n")
    assert (tmp_path / "traces" / "RUN" / "merged.json.gz").exists()
    offline = [command for command in commands() if command[0] == "tracekit" and command[1] != "run"]
    assert len(offline) == 5
    for command in offline:
        if command[1] == "serve":
            serves(command, tmp_path)
            continue
        # Nobody will come for the trace: a browser opens it in tests/browser.
        nobody = ["--no-browser", "--timeout", "0.1"] if command[1] == "open" else []
        done = run([*command, *nobody], tmp_path)
        assert done.returncode == (1 if nobody else 0), done.stderr
        assert not nobody or done.stdout.startswith("http://127.0.0.1:")
        assert "Traceback" not in done.stderr
    assert (tmp_path / "merged.json.gz").exists()


@pytest.mark.slow
def test_the_command_records_an_unmodified_script_on_both_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    shutil.copy(ROOT / "examples" / "train.py", tmp_path)
    (command,) = [command for command in commands() if command[:2] == ["tracekit", "run"]]
    at = command.index("torchrun")
    command[at : at + 3] = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    recorded = run(command, tmp_path)
    assert recorded.returncode == 0, recorded.stderr
    assert recorded.stdout == ""
    assert recorded.stderr.endswith("tracekit: Next: tracekit open traces/RUN/merged.json.gz\n")
    folder = tmp_path / "traces" / "RUN"
    assert (folder / "merged.json.gz").exists()
    assert sorted(path.name.partition("-pid")[0] for path in folder.glob("torch-*")) == ["torch-rank0", "torch-rank1"]


def test_the_second_snippet_runs_with_its_extras(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("psutil", reason="psutil is not installed")
    first, second = blocks("python")
    loop = "with profiler:\n    for _ in range(6):\n        profiler.step()\n"
    recorded = run([sys.executable, "-c", first.partition("\n")[0] + "\n" + second + loop], tmp_path)
    assert recorded.returncode == 0, recorded.stderr
    assert [path.name for path in (tmp_path / "traces" / "RUN").glob("torch-*")] == ["torch-rank0-2.json.gz"]


@pytest.mark.slow
def test_the_package_installs_with_what_recording_and_merging_need_and_no_more(tmp_path: Path) -> None:
    installs = [command for command in commands() if command[:2] == ["pip", "install"]]
    assert [command[2] for command in installs] == ["tracekit-ml", "tracekit-ml[all]"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--retries", "10"]
    for command in installs:
        done = run([*pip, "--dry-run", command[2].replace("tracekit-ml", ".")], ROOT)
        assert done.returncode == 0, done.stderr
    done = run([*pip, "--no-deps", "--target", str(tmp_path), "."], ROOT)
    assert done.returncode == 0, done.stderr
    check = "import tracekit.check.schemas as schema, pathlib; print(pathlib.Path(schema.__file__).parents[1])"
    where = run([sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {check}"], tmp_path)
    assert where.stdout.strip() == str(tmp_path / "tracekit"), where.stderr
    schemas = {path.name for path in (tmp_path / "tracekit" / "schemas").iterdir()}
    assert schemas == {path.name for path in (ROOT / "schemas").iterdir()}
    assert (tmp_path / "tracekit" / "py.typed").exists()
