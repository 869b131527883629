"""Builds the compiled core for the stable ABI, so that one build serves all later CPythons, and installs AUTO.

TRACEKIT_PURE_PYTHON=1 leaves the core out. So does a CPython without the interpreter lock, which has no stable ABI: the core
needs that lock, and the Python version of each part runs in its place.
"""

import os
import sysconfig
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

PURE = os.environ.get("TRACEKIT_PURE_PYTHON", "") not in ("", "0") or bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

AUTO = "tracekit-auto.pth"
"""Python runs it at its start: TRACEKIT_AUTO=1 records without `tracekit run`. An editable install has none."""


class BuildPackages(build_py):
    """Puts the file next to the package, in the folder that Python searches for such files."""

    def run(self) -> None:
        """Build the packages, then copy the file."""
        super().run()
        if not self.editable_mode:
            self.copy_file(str(Path(__file__).parent / "tracekit" / "auto" / AUTO), str(Path(self.build_lib) / AUTO))


class TracekitDistribution(Distribution):
    """Has extension modules, or not."""

    def has_ext_modules(self) -> bool:
        """Say whether they are built, and so whether a wheel is for one kind of machine."""
        return not PURE and super().has_ext_modules()


setup(
    cmdclass={"build_py": BuildPackages},
    distclass=TracekitDistribution,
    options={} if PURE else {"bdist_wheel": {"py_limited_api": "cp310"}},
)
