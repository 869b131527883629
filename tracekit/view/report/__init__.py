"""A report on a run as one HTML file that loads nothing."""

from __future__ import annotations

__all__: list[str] = []
