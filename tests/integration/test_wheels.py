"""What `scripts/wheels` builds: wheels with the compiled core and one without, each whole; those for here record and merge.

The wheels for aarch64 and musl are checked by auditwheel and abi3audit, and not run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.native.cores import ROOT, extensions, find_compiler, project
from tests.perfetto import UnavailableError
from tests.wheel_tools import wheel_tools

PROGRAM = """
from tracekit import JSONTraceHandler, Profiler
with Profiler(trace_handlers=[JSONTraceHandler("traces/rank{rank}.json")]) as profiler:
    for _ in profiler.iterate(range(3), "dataloader"):
        with profiler.marker("forward"):
            pass
        profiler.step()
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # a minute and more on a quiet machine


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
    # Stands in the way of the tools, if this Python has them.
    folder = tmp_path_factory.mktemp("wheels")
    (folder / "ziglang.py").write_text("raise ImportError")
    return build(folder / "built", PYTHONPATH=str(folder))


def build(folder: Path, **variables: str) -> dict[str, Path]:
    """Build the wheels into a folder, and what the script says on standard error beside it; return them by their tags."""
    command = [ROOT / "scripts" / "wheels", folder, "--no-build-isolation"]  # setuptools is here
    done = run(*command, folder=folder.parent, PYTHON=sys.executable, **variables)
    (folder.parent / "said").write_text(done.stderr)
    found = sorted(folder.iterdir())
    assert done.stdout.splitlines() == [str(path) for path in found]
    return {"-".join(path.stem.split("-")[2:]): path for path in found}


@pytest.fixture(scope="module")
def tools() -> Path:
    """What the script builds and checks wheels for other machines with."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        pytest.skip("wheels for other machines are built on 64-bit Linux")
    try:
        return wheel_tools()
    except UnavailableError as error:
        pytest.skip(f"what builds wheels for other machines: {error}")


@pytest.fixture(scope="module")
def all_wheels(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """With the tools: the wheels for all machines, by their tags."""
    return build(tmp_path_factory.mktemp("all") / "built", PYTHONPATH=str(tools))


ALL_TAGS = {
    f"cp310-abi3-{system}"
    for machine in ("x86_64", "aarch64")
    for system in (f"manylinux2014_{machine}.manylinux_2_17_{machine}", f"musllinux_1_2_{machine}")
} | {"py3-none-any"}


@pytest.mark.core
def test_with_the_tools_there_are_wheels_for_all_machines(all_wheels: dict[str, Path]) -> None:
    assert set(all_wheels) == ALL_TAGS
    modules = {f"{each.name.replace('.', '/')}.abi3.so" for each in extensions()}
    for tag, wheel in all_wheels.items():
        assert names(wheel) == files_of_the_package() | (modules if "-abi3-" in tag else set())


@pytest.mark.core
@pytest.mark.parametrize("tag", sorted(ALL_TAGS - {"py3-none-any"}))
def test_the_core_is_for_the_machine_and_library_of_its_tag_and_names_no_folder(
    all_wheels: dict[str, Path], tag: str
) -> None:
    with zipfile.ZipFile(all_wheels[tag]) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                code = archive.read(name)
                assert code[18] == (183 if "aarch64" in tag else 62)  # the machine in the head of an ELF file
                # Each needs its libc alone; one by the other's name would be found nowhere else.
                assert (b"\0libc.so.6\0" in code, b"\0libc.so\0" in code) == ("manylinux" in tag, "musllinux" in tag)
                assert sys.prefix.encode() not in code
                assert sys.base_prefix.encode() not in code


@pytest.mark.core
def test_auditwheel_and_abi3audit_find_nothing(tools: Path, all_wheels: dict[str, Path], tmp_path: Path) -> None:
    compiled = {tag: path for tag, path in all_wheels.items() if "-abi3-" in tag}
    run(sys.executable, "-m", "abi3audit", "--strict", *compiled.values(), folder=tmp_path, PYTHONPATH=str(tools))
    for tag, path in compiled.items():
        # auditwheel looks for what musl's libc is called here, and finds glibc's.
        if "manylinux" in tag:
            said = run(sys.executable, "-m", "auditwheel", "show", path, folder=tmp_path, PYTHONPATH=str(tools)).stdout
            assert f'platform tag: "{tag.rpartition(".")[2]}"' in " ".join(said.split())


def pythons() -> list[Path]:
    """Return each Python from 3.10 on that is here, one for each minor version, and those without the interpreter lock."""
    homes = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin/python3")
    on_path = (shutil.which(f"python3.{minor}{kind}") for minor in range(10, 30) for kind in ("", "t"))
    found = {}
    show = "import sys, sysconfig, venv; print(sys.version_info[:2], sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
    for python in [*map(str, sorted(homes)), *filter(None, on_path)]:
        done = subprocess.run([python, "-c", show], capture_output=True, text=True, check=False)
        if done.returncode == 0 and int(done.stdout.split(", ")[1].partition(")")[0]) >= 10 and done.stdout[1] == "3":
            found[done.stdout] = Path(python)
    return list(found.values())


@pytest.mark.core
@pytest.mark.parametrize("python", pythons(), ids=lambda python: python.parts[-3] + "-" + python.name)
def test_each_python_here_takes_the_wheel_that_serves_it(
    all_wheels: dict[str, Path], tmp_path: Path, python: Path
) -> None:
    run(python, "-m", "venv", "--without-pip", "venv", folder=tmp_path)
    inside = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", inside, "install", "-qq"]
    needed = subprocess.run(
        [*pip, "--only-binary", ":all:", *project()["project"]["dependencies"]],
        capture_output=True,
        text=True,
        check=False,
    )
    if needed.returncode != 0:
        pytest.skip(f"what tracekit needs cannot be installed for {python}: {needed.stderr}")
    folder = all_wheels["py3-none-any"].parent
    run(*pip, "--no-deps", "--no-index", "--find-links", folder, "tracekit-ml", folder=tmp_path)
    free = run(
        python, "-c", "import sysconfig; print(sysconfig.get_config_var('Py_GIL_DISABLED') or 0)", folder=tmp_path
    )
    check_records_and_merges(inside, tmp_path, "pure Python" if free.stdout.strip() == "1" else "compiled")


@pytest.fixture(scope="module")
def compiled(wheels: dict[str, Path]) -> Path:
    return next(path for tag, path in wheels.items() if tag != "py3-none-any")


@pytest.fixture(scope="module")
def pure(wheels: dict[str, Path]) -> Path:
    return wheels["py3-none-any"]


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name and name[-1] != "/"}


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


def test_the_wheels_hold_the_package_for_what_their_tags_say_and_one_line_says_which_are_not_built(
    wheels: dict[str, Path], compiled: Path, pure: Path
) -> None:
    system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert set(wheels) == {"py3-none-any", f"cp310-abi3-{system}"}
    modules = {f"{each.name.replace('.', '/')}.abi3.so" for each in extensions()}
    assert names(pure) == files_of_the_package()
    assert names(compiled) == files_of_the_package() | modules
    (line,) = (pure.parent.parent / "said").read_text().splitlines()
    assert line.startswith("scripts/wheels: no manylinux and musllinux wheels for x86-64 and aarch64 are built; ")
    assert line.endswith(" -m pip install --group wheels brings the tools for them.")


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
    options = ["-qq", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", *options]
    # No program is found by its name, and the compiler that Python was built with is not there.
    done = run(*pip, folder=tmp_path, PATH=str(tmp_path / "bin"), CC="/nonexistent/gcc")
    assert (done.stdout, done.stderr) == ("", "")
    (wheel,) = wheels.iterdir()
    assert names(wheel) == files_of_the_package()
    python = installed(tmp_path, wheel)
    check_records_and_merges(python, tmp_path, "pure Python")
    show = "import logging, sys; logging.basicConfig(level=logging.DEBUG, stream=sys.stdout); import tracekit.core"
    lines = run(python, "-c", show, folder=tmp_path).stdout.splitlines()
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
