"""Answers about a run: slow ranks, outlier steps, changes between runs, and the time of GPUs.

Functions take arrays of times or the event table, and read no traces. They need numpy and DuckDB, which the extra
``explain`` installs.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CONFIDENCE", "MIN_SHARE", "MIN_VALUES"]

CONFIDENCE: Final = 0.99  # probability that equal ranks or runs give no verdict, by default

MIN_SHARE: Final = 0.02  # least effect to report, as a share of the step, by default

MIN_VALUES: Final = 5  # fewer values say nothing of their noise
