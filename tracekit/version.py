"""The version of tracekit, and the name to install it by."""

from __future__ import annotations

from typing import Final

DISTRIBUTION: Final = "tracekit-ml"
"""The name to install. "tracekit" on the package index belongs to another project."""

__version__: Final = "0.1.0"


def other_distribution(name: str) -> str:
    """Return what to say of another distribution that installs a package ``tracekit``."""
    return (
        f"the distribution {name} installs a package tracekit, too, over the files of {DISTRIBUTION}: "
        f"pip uninstall {name}, then pip install --force-reinstall {DISTRIBUTION}"
    )
