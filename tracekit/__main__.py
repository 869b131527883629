"""``python -m tracekit``: the same as the ``tracekit`` command."""

from __future__ import annotations

from tracekit.cli import entry_point

if __name__ == "__main__":
    entry_point()
