"""Shows on every run that a fault test bites: it must hold for the writer of tracekit, and fail for bad ones."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.faults.bad_writers import BAD, GOOD
from tests.perfetto import EngineError
from tracekit import MergeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.mark import ParameterSet

__all__ = ["bites", "in_the_long_run", "writers"]


def writers(*bad: str) -> pytest.MarkDecorator:
    """Run a test with tracekit's own writer, and in the long run with each of these bad ones, as its argument ``writer``."""
    assert set(bad) <= set(BAD), f"unknown writers: {sorted(set(bad) - set(BAD))}; there are {sorted(BAD)}"
    return pytest.mark.parametrize("writer", [GOOD, *map(in_the_long_run, bad)])


def in_the_long_run(*values: object) -> ParameterSet:
    """Return a parameter set that only ``scripts/test --all`` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


@contextmanager
def bites(writer: str) -> Iterator[None]:
    """Run the body as it is for the good writer; for a bad one require that an assertion in it, the engine or a merge fails.

    Everything else that is raised is an error of the test itself, whoever writes.
    """
    try:
        yield
    except (AssertionError, EngineError, MergeError):
        if writer == GOOD:
            raise
    else:
        assert writer == GOOD, f"this test does not bite: it holds for the bad writer {writer!r}, too"
