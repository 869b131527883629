"""What `scripts/wheels` builds: one wheel with the compiled core and one without, each whole, and each records and merges."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.native.cores import ROOT, extensions, find_compiler

PROGRAM = """
from tracekit import JSONTraceHandler, Profiler
with Profiler(trace_handlers=[JSONTraceHandler("traces/rank{rank}.json")]) as profiler:
    for _ in profiler.iterate(range(3), "dataloader"):
        with profiler.marker("forward"):
            pass
        profiler.step()
"""

# setuptools is here and need not be fetched for each build.
WITH_WHAT_IS_HERE = ["--no-build-isolation"]


pytestmark = pytest.mark.slow


def clean_environment(**variables: str) -> dict[str, str]:
    """Return an environment in which nothing says where tracekit is, or which core it has."""
    names = ("PYTHONPATH", "TRACEKIT_PURE_PYTHON")
    return {name: value for name, value in os.environ.items() if name not in names} | variables


def run(*command: str | Path, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        cwd=folder,
        env=clean_environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels by their tags."""
    if find_compiler() is None:
        pytest.skip("no C compiler is here")
    folder = tmp_path_factory.mktemp("wheels")
    done = run(ROOT / "scripts" / "wheels", folder, *WITH_WHAT_IS_HERE, folder=folder, PYTHON=sys.executable)
    found = sorted(folder.iterdir())
    assert done.stdout.splitlines() == [str(path) for path in found]
    return {"-".join(path.stem.split("-")[2:]): path for path in found}


@pytest.fixture(scope="module")
def compiled(wheels: dict[str, Path]) -> Path:
    return next(path for tag, path in wheels.items() if tag != "py3-none-any")


@pytest.fixture(scope="module")
def pure(wheels: dict[str, Path]) -> Path:
    return wheels["py3-none-any"]


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def files_of_the_package() -> set[str]:
    """Return the files of the package, as git knows them."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout, so there is no list of its files")
    listing = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "tracekit", "schemas"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    files = {name for name in listing.split("\0") if name and (ROOT / name).is_file()}
    start = "tracekit-auto.pth"  # once more, where Python looks for such files
    return {f"tracekit/{name}" if name.startswith("schemas/") else name for name in files} | {start}


def test_the_tags_say_what_the_wheels_run_on(wheels: dict[str, Path]) -> None:
    platform, system = sorted(wheels, reverse=True)
    assert platform == "py3-none-any"
    machine = re.escape(sysconfig.get_platform().replace("-", "_").replace(".", "_").partition("_")[2])
    # Of several tags for several distributions, auditwheel joins the names by dots.
    assert re.fullmatch(rf"cp310-abi3-((manylinux\w+?|linux)_{machine}\.?)+", system)


def test_the_wheels_hold_the_package_and_nothing_else(compiled: Path, pure: Path) -> None:
    modules = {f"{each.name.replace('.', '/')}.abi3.so" for each in extensions()}
    assert names(pure) == files_of_the_package()
    assert names(compiled) == files_of_the_package() | modules


def installed(folder: Path, wheel: Path) -> Path:
    """Install a wheel into an environment of its own, which finds other packages where this Python does."""
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "-qq", "--no-deps", "--no-index", wheel, folder=folder)
    packages = Path(sysconfig.get_paths(vars={"base": str(folder / "venv")})["purelib"])
    (packages / "others.pth").write_text(
        "\n".join(sorted({sysconfig.get_paths()[key] for key in ("purelib", "platlib")}))
    )
    return python


def check_records_and_merges(python: Path, folder: Path, core: str) -> None:
    run(python, "-c", PROGRAM, folder=folder)
    program = python.with_name("tracekit")
    merged = run(program, "merge", "-o", "merged.json", "traces", folder=folder)
    assert merged.stderr == "" or "Traceback" not in merged.stderr
    events = json.loads((folder / "merged.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    assert [event["name"] for event in events].count("forward") >= 3
    started = "import sys; print('tracekit.auto.start' in sys.modules)"
    for value, expected in (("1", "True"), ("0", "False")):
        assert run(python, "-c", started, folder=folder, TRACEKIT_AUTO=value).stdout.strip() == expected
    told = run(python, "-c", "import tracekit; print(tracekit.__file__)", folder=folder).stdout
    assert Path(told).is_relative_to(folder)
    assert f'"merge_core": "{core}"' in run(program, "doctor", "--json", folder=folder).stdout


@pytest.mark.parametrize("core", ["compiled", "pure Python"])
def test_an_installed_wheel_records_and_merges_and_doctor_says_with_what(
    request: pytest.FixtureRequest, tmp_path: Path, core: str
) -> None:
    wheel = request.getfixturevalue("compiled" if core == "compiled" else "pure")
    check_records_and_merges(installed(tmp_path, wheel), tmp_path, core)


def copy_of_the_sources(folder: Path) -> Path:
    """Return a copy of what is installed, without what was built in place."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in ("tracekit", "schemas"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return source


def test_without_a_compiler_it_installs_without_a_word_and_is_pure_python(tmp_path: Path) -> None:
    source, wheels = copy_of_the_sources(tmp_path), tmp_path / "wheels"
    (tmp_path / "bin").mkdir()
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "-qq",
        "--no-deps",
        "--wheel-dir",
        wheels,
    ]
    pip += WITH_WHAT_IS_HERE
    # No program is found by its name, and the compiler that Python was built with is not there.
    done = run(*pip, source, folder=tmp_path, PATH=str(tmp_path / "bin"), CC="/nonexistent/gcc")
    assert (done.stdout, done.stderr) == ("", "")
    (wheel,) = wheels.iterdir()
    assert names(wheel) == files_of_the_package()
    python = installed(tmp_path, wheel)
    check_records_and_merges(python, tmp_path, "pure Python")
    show = "import logging, sys; logging.basicConfig(level=logging.DEBUG, stream=sys.stdout); import tracekit.core"
    lines = run(python, "-c", show, folder=tmp_path).stdout.splitlines()
    assert [line for line in lines if line.startswith("DEBUG:tracekit.core:")] == lines
    assert lines
    assert all(line.startswith("DEBUG:tracekit.core:pure Python: ") for line in lines)


def test_without_the_interpreter_lock_the_core_is_left_out(tmp_path: Path) -> None:
    source = copy_of_the_sources(tmp_path)
    # As CPython 3.13t, where setuptools refuses the stable ABI.
    program = (
        "import sysconfig, runpy, sys; true = sysconfig.get_config_var; "
        "sysconfig.get_config_var = lambda name: 1 if name == 'Py_GIL_DISABLED' else true(name); "
        "sys.argv = ['setup.py', '-q', 'bdist_wheel', '-d', 'built']; runpy.run_path('setup.py', run_name='__main__')"
    )
    run(sys.executable, "-W", "ignore", "-c", program, folder=source)
    (wheel,) = (source / "built").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert names(wheel) == files_of_the_package()
