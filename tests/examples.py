"""How many examples hypothesis draws for a property: fewer in ``scripts/test``, all in ``scripts/test --all``."""

from __future__ import annotations

from hypothesis import settings

QUICK = 15
ALL = 150


def examples(count: int) -> int:
    """Return the number of examples of a property that needs its own: a quarter of them in the quick run."""
    return count if settings.default.max_examples >= ALL else -(-count // 4)
