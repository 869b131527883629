"""The compiled core as tests want it: built with sanitizers, or with counted edges, or under valgrind.

``python -m tests.native.cores FOLDER -m MODULE ARGS`` runs a program with the extension modules that lie in a folder, in
place of those of the package; all tools of the tests that build the core take the list from pyproject.toml.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it along
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CANNOT",
    "ROOT",
    "SANITIZERS",
    "VARIANTS",
    "Extension",
    "build",
    "extensions",
    "find_compiler",
    "project",
    "run_with",
    "sanitizer_variables",
    "take",
]

ROOT = Path(__file__).resolve().parents[2]
CANNOT = 77
"""The exit code of a tool that lacks something on this machine; its last line says what."""
SANITIZERS = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-DTRACEKIT_FAILING_MEMORY"]
VARIANTS: list[list[str]] = [[], ["-U__SSE2__"]]
"""What the core is built with beside that: with the instructions of x86-64, and as on other processors."""


@dataclass(frozen=True)
class Extension:
    """An extension module of the package.

    Attributes:
        name: As it is imported, for example ``tracekit.core._merge``.
        sources: Its C files.
    """

    name: str
    sources: tuple[Path, ...]

    @property
    def stem(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]


def project() -> dict[str, Any]:
    """Return what pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def extensions() -> list[Extension]:
    """Return the extension modules that pyproject.toml declares."""
    told = project()["tool"]["setuptools"]["ext-modules"]
    return [Extension(each["name"], tuple(ROOT / source for source in each["sources"])) for each in told]


def find_compiler() -> str | None:
    """Return gcc, whose sanitizers and edges the tools use."""
    return shutil.which("gcc") or shutil.which("cc")


def build(extension: Extension, folder: Path, compiler: str, flags: Sequence[str], more: Sequence[Path] = ()) -> Path:
    """Build an extension module into a folder.

    Args:
        extension: Which one.
        folder: Where it goes.
        compiler: The program.
        flags: What is added to what every shared library needs.
        more: Files beside its own: C files are compiled without the flags about coverage, objects are linked.

    Raises:
        subprocess.CalledProcessError: It cannot be built.
    """
    output = folder / f"{extension.stem}.so"
    include = f"-I{sysconfig.get_paths()['include']}"
    usual = [compiler, "-shared", "-fPIC", "-g", "-fno-omit-frame-pointer", "-fvisibility=hidden", "-w"]
    subprocess.run([*usual, *flags, include, *extension.sources, *more, "-o", output], check=True)
    return output


def sanitizer_variables(compiler: str) -> dict[str, str]:
    """Return what the environment of a process holds that loads a module with sanitizers: their library comes first."""
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    # Python leaves memory behind at its end.
    return {"LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}


def take(folder: Path) -> dict[str, Any]:
    """Load the modules that lie in a folder in place of the package's, which must not have been imported yet."""
    assert "tracekit.core" not in sys.modules
    taken = {}
    for extension in extensions():
        path = folder / f"{extension.stem}.so"
        if path.exists():
            loader = importlib.machinery.ExtensionFileLoader(extension.name, str(path))
            spec = importlib.util.spec_from_file_location(extension.name, str(path), loader=loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            sys.modules[extension.name] = taken[extension.stem] = module
    return taken


def run_with(
    folder: Path, arguments: Sequence[str], under: Sequence[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m tests.native.cores FOLDER ARGUMENTS`` and return its end, with both outputs in one text.

    Args:
        folder: Of the modules.
        arguments: ``-m``, a module and what that is told.
        under: A command in front of it.
        **variables: Variables of its environment.
    """
    # Python's own allocator would hide from the tools where an object ends.
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "PYTHONPATH": str(ROOT), **variables}
    environment.pop("TRACEKIT_PURE_PYTHON", None)
    return subprocess.run(
        [*under, sys.executable, "-m", "tests.native.cores", str(folder), *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


def main() -> None:
    """Take the modules and become the program."""
    folder, option, module, *arguments = sys.argv[1:]
    assert option == "-m"
    assert take(Path(folder)), f"{folder} holds no module of the core"
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
