"""Small shared libraries for tests, compiled where they are needed: the real packages are then tested against a stand-in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["compiled"]

FOLDER = Path(__file__).resolve().parent


def compiled(name: str, folder: Path, library: str | None = None) -> Path:
    """Compile ``tests/native/NAME.c`` into a shared library in a folder; skip the test where there is no C compiler.

    Args:
        name: The source's name, without its suffix.
        folder: Where the library goes.
        library: What it is called; the source's name where None.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler for the stand-in library")
    path = folder / (library or f"lib{name}.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", path, FOLDER / f"{name}.c"], check=True)
    return path
