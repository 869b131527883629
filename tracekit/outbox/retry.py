"""Retry: timeouts of requests, and the pauses between attempts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

_LONGEST_ANSWER_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Retry:
    """The times of an upload, in seconds.

    Attributes:
        warm_up_s: Maximum time that the start of a recording waits for the first answer of the storage.
        answer_s: Timeout of the first request. It doubles with each timeout: it is short for a dead network, and grows for a
            slow one.
        first_s: The pause after the first failure; doubled with each further failure in a row.
        longest_s: The longest pause.
        index_s: Minimum time between two uploads of the index.
    """

    warm_up_s: float = 5.0
    answer_s: float = 30.0
    first_s: float = 1.0
    longest_s: float = 60.0
    index_s: float = 30.0


@dataclass(slots=True)
class Pace:
    """The current timeout and pause of an upload.

    The pause grows with each failure in a row; a success resets it. The timeout grows with each request that takes too long.
    """

    retry: Retry
    failures: int = 0
    answer_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.answer_s = self.retry.answer_s

    def succeeded(self) -> None:
        """Note a request that succeeded."""
        self.failures = 0

    def failed(self, *, too_slow: bool) -> float:
        """Note a request that failed; return the pause in seconds.

        The pause is random between half and all of its nominal length, so that the ranks of a job do not retry simultaneously.
        """
        self.failures += 1
        if too_slow:
            self.answer_s = min(self.answer_s * 2, max(_LONGEST_ANSWER_S, self.retry.answer_s))
        longest_s = min(self.retry.longest_s, self.retry.first_s * 2.0 ** min(self.failures - 1, 60))
        return longest_s * random.uniform(0.5, 1.0)
