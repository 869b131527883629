"""Find real traces: those recorded for tracekit in tests/data, and those of others where they are."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["OWN", "RealTraces", "real_traces_folder"]

ROOT = Path(__file__).resolve().parent.parent

OWN = ROOT / "tests" / "data"
OWN_FOLDERS = ("cuda_h200", "flight_recorder", "torch_2.13_gloo", "torch_2.13_quirks", "truths_h200")

# Read when it is imported, before any test clears the environment.
OTHERS = Path(os.environ.get("TRACEKIT_TRACES") or ROOT.parent / "shared" / "traces")
"""The folder of the traces that others recorded, which are no part of the project."""


def real_traces_folder() -> Path:
    """Return a folder with real traces to draw from: that of others, or the project's own."""
    return OTHERS if OTHERS.is_dir() else OWN


class RealTraces:
    """Behave like the path of one folder that holds all real traces.

    Skip a test that asks for a trace of others if that folder is missing.
    """

    def __truediv__(self, name: str) -> Path:
        """Return the path of a file or folder."""
        if name.partition("/")[0] in OWN_FOLDERS:
            return OWN / name
        if not OTHERS.is_dir():
            import pytest  # not at the top: the fuzzers of the core import this module without it

            pytest.skip(f"the real traces of others are not here: {OTHERS} (set TRACEKIT_TRACES to their folder)")
        return OTHERS / name

    def glob(self, pattern: str) -> list[Path]:
        """Return the files of one folder: ``"dlrm_8gpu/*.gz"``."""
        folder, _, names = pattern.partition("/")
        return sorted((self / folder).glob(names))

    @staticmethod
    def folders() -> list[Path]:
        """Return every folder that is here."""
        others = OTHERS.iterdir() if OTHERS.is_dir() else ()
        return [OWN / name for name in OWN_FOLDERS] + sorted(
            path for path in others if path.is_dir() and path.name not in OWN_FOLDERS
        )
