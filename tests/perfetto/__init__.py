"""Perfetto's own engine and its real UI, for tests.

Tests take them through the fixtures ``engine`` and ``browser`` of ``tests/conftest.py``::

    def test_every_slice_arrives(engine, tmp_path):
        ...
        with engine.load(tmp_path / "trace.json") as trace:
            assert trace.errors() == []
            assert trace.scalar("select count(*) from slice") == 3
"""

from __future__ import annotations

from tests.perfetto.browser import Browser, Screen
from tests.perfetto.engine import Engine, EngineError, LoadedTrace, LoadError, QueryError
from tests.perfetto.install import UnavailableError

__all__ = [
    "Browser",
    "Engine",
    "EngineError",
    "LoadError",
    "LoadedTrace",
    "QueryError",
    "Screen",
    "UnavailableError",
]
