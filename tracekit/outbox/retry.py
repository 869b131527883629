"""Retry: how long to wait for an answer, and how long before asking again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Pace", "Retry"]

_LONGEST_ANSWER_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Retry:
    """The times of an upload, in seconds.

    Attributes:
        warm_up_s: How long the start of a recording waits to hear from the storage.
        answer_s: How long one request may take at first; doubled each time that this was too short, because a slow
            network needs longer than a dead one is worth.
        first_s: The pause after the first failure; doubled with each further one in a row.
        longest_s: The longest pause.
        index_s: The index is uploaded at most this often.
    """

    warm_up_s: float = 5.0
    answer_s: float = 30.0
    first_s: float = 1.0
    longest_s: float = 60.0
    index_s: float = 30.0


@dataclass(slots=True)
class Pace:
    """How it goes: grows slower with every failure, and is as at first after a success."""

    retry: Retry
    failures: int = 0
    answer_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.answer_s = self.retry.answer_s

    def succeeded(self) -> None:
        """Note a request that worked."""
        self.failures = 0

    def failed(self, *, too_slow: bool) -> float:
        """Note one that failed; return how long to pause.

        The pause is random within its half, so that the ranks of a job do not all come back at once.
        """
        self.failures += 1
        if too_slow:
            self.answer_s = min(self.answer_s * 2, max(_LONGEST_ANSWER_S, self.retry.answer_s))
        longest_s = min(self.retry.longest_s, self.retry.first_s * 2.0 ** min(self.failures - 1, 60))
        return longest_s * random.uniform(0.5, 1.0)
