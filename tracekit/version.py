"""The version of tracekit, and the name to install it by."""

from __future__ import annotations

from typing import Final

DISTRIBUTION: Final = "tracekit-ml"
"""The name to install. "tracekit" on the package index belongs to another project."""

__version__: Final = "0.1.0"
