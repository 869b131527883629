"""What pyproject.toml cannot say of the compiled core: when it is left out, and that one build serves all later CPythons.

TRACEKIT_PURE_PYTHON=1 builds without it. So does a CPython without the interpreter lock, which has no stable ABI: the core
runs under that lock, and Python does the same there.
"""

import os
import sysconfig

from setuptools import Distribution, setup

PURE = os.environ.get("TRACEKIT_PURE_PYTHON", "") not in ("", "0") or bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class TracekitDistribution(Distribution):
    """Has extension modules, or not."""

    def has_ext_modules(self) -> bool:
        """Say whether they are built, and so whether a wheel is for one kind of machine."""
        return not PURE and super().has_ext_modules()


setup(distclass=TracekitDistribution, options={} if PURE else {"bdist_wheel": {"py_limited_api": "cp310"}})
