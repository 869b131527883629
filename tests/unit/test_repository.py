"""The repository works on any machine: its scripts say what is missing, and no file names one machine or registry."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tracekit.version import __version__

ROOT = Path(__file__).resolve().parents[2]

# Spelled so that this file does not contain what it forbids.
MACHINE_PATHS = ["/work" + "/", "/root" + "/", "/opt" + "/"]
REGISTRY_HOSTS = ["pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "download.pytorch" + ".org"]
FORBIDDEN = re.compile(
    "|".join([*(rf"(?<![\w.}}-]){path}" for path in MACHINE_PATHS), *(re.escape(host) for host in REGISTRY_HOSTS)])
)

SCRIPTS = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "scripts").iterdir() if path.is_file() and path.suffix == ""
)

PAGES = sorted(
    path.relative_to(ROOT)
    for path in [
        *ROOT.glob("*.md"),
        *(path for place in ("docs", "examples", "tests") for path in (ROOT / place).rglob("*.md")),
    ]
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)


def tracked_files() -> list[Path]:
    """Return the files in git, or skip where this is no checkout."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout, so there is no list of its files")
    listing = subprocess.run(
        [git, "-c", f"safe.directory={ROOT}", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    return [path for name in listing.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("script", [*SCRIPTS, ".ci/run"])
def test_scripts_can_be_run_and_have_no_syntax_error(script: str) -> None:
    path = ROOT / script
    assert os.access(path, os.X_OK)
    shell = path.read_text(encoding="utf-8").splitlines()[0].split("/")[-1].split()[-1]
    checked = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_setup_without_a_usable_python_says_what_to_do(tmp_path: Path) -> None:
    checkout, programs = tmp_path / "checkout", tmp_path / "bin"
    (checkout / "scripts").mkdir(parents=True)
    programs.mkdir()
    shutil.copy(ROOT / "scripts" / "setup", checkout / "scripts" / "setup")
    shutil.copy(ROOT / "pyproject.toml", checkout / "pyproject.toml")
    for name in ("cat", "cksum", "dirname", "grep", "sh"):
        program = shutil.which(name)
        assert program is not None
        (programs / name).symlink_to(program)

    done = subprocess.run(
        [str(programs / "sh"), "scripts/setup"],
        cwd=checkout,
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("scripts/setup: no Python from 3.10 on")
    assert done.stderr.count("\n") == 1
    assert not (checkout / ".venv").exists()


def test_the_names_of_tests_are_the_same_in_every_process(request: pytest.FixtureRequest) -> None:
    # The workers of pytest-xdist must find the same tests. gzip writes the second into what it packs, without mtime=0.
    names = [item.nodeid for item in request.session.items]
    packed = [name for name in names if r"\x1f\x8b\x08" in name]
    assert [name for name in packed if r"\x1f\x8b\x08\x00\x00" not in name] == []
    assert [name for name in names if " at 0x" in name or "frozenset({" in name] == []


def test_no_test_asserts_how_long_something_takes() -> None:
    """A bound that protects from a hang is at least 30 s, so that no test fails because the machine is busy."""
    clock = r"(?:monotonic|perf_counter|time)(?:_ns)?\(\)"
    elapsed = re.compile(rf"assert .*{clock} - \w+ <|assert .*<=? *{clock} - |assert \w*(?:took|elapsed)\w* <")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if elapsed.search(line) and path != Path(__file__)
    ]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_links_and_paths_of_a_page_lead_somewhere(page: Path) -> None:
    text = (ROOT / page).read_text("utf-8")
    links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", text)
    paths = re.findall(r"`((?:tracekit|tests|scripts|examples|schemas|docs)/[\w./-]+)`", text)
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert missing == []


def test_the_recipe_for_conda_has_the_version_and_requirements_of_the_package() -> None:
    jinja2 = pytest.importorskip("jinja2", reason="jinja2 is not installed")
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    template = jinja2.Template((ROOT / "scripts" / "conda" / "meta.yaml").read_text("utf-8"))
    recipe = yaml.safe_load(template.render(compiler="{}_compiler".format, stdlib="{}_stdlib".format, PYTHON="python"))
    assert recipe["package"] == {"name": "tracekit-ml", "version": __version__}
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (listed,) = re.findall(r"^dependencies = (\[.*\])$", project, re.MULTILINE)
    needed = {name.partition(";")[0].replace(">=", " >=") for name in re.findall(r'"([^"]+)"', listed)}
    assert needed <= set(recipe["requirements"]["run"])
    assert recipe["requirements"]["build"] == ["c_compiler", "c_stdlib"]
    assert recipe["build"]["entry_points"] == ["tracekit = tracekit.cli:entry_point"]
    assert (ROOT / recipe["about"]["license_file"]).exists()
