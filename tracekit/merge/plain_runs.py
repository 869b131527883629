"""What the first pass notes of each run of an input: whether its events are plain, so that the second need not decode them.

Plain is what needs nothing but another ``pid``, ``tid``, ``ts`` and ids; see `tracekit.merge.plain`.
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.event_fields import is_usual
from tracekit.formats.trace_event import UNSET, encode_json

if TYPE_CHECKING:
    from tracekit.formats.trace_event import Event

__all__ = ["FLOWS", "METADATA", "PHASES", "PLAIN_COUNTER", "SUM_MASK", "PlainRuns"]

_JSON_NUMBER: Final = rb"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,30})?(?:[eE][+-]?\d{1,2})?"
PLAIN_COUNTER: Final = re.compile(rb'\{\s*(?:"[^"\\]*"\s*:\s*' + _JSON_NUMBER + rb"\s*(?:,\s*(?!\})|(?=\})))+\}")
"""The arguments of a counter whose values are numbers of ordinary size: viewers take them as they are."""

PHASES: Final = ("X", "s", "t", "f", "i", "I", "C")
"""Of plain events."""

METADATA: Final = "M"
_NOTED: Final = (*PHASES, METADATA)
_NONE: Final = (0,) * len(_NOTED)
FLOWS: Final = frozenset("stf")
SUM_MASK: Final = 2**63 - 1
"""Sums of times are compared as far as 63 bits tell."""

_MAX_DURATION_DIGITS: Final = 15  # of whole microseconds
_DIRECT_IDS: Final = re.compile(rb"\[(?:\d{1,9}[,\]])*")
_MOST_EVENTS: Final = 0xFFFF


class PlainRuns:
    """Notes of the first pass on each run of an input, in the order of the file. Can be pickled.

    Takes 32 bytes for each 256 KiB of input.
    """

    __slots__ = ("_phases", "_sizes", "_sums")

    def __init__(self) -> None:
        self._phases = array("H")  # how many events of each of _NOTED; none: the run is not plain
        self._sums = array("q")
        self._sizes = array("q")

    def note(self, text: bytes | None, run: list[Event], counts: dict[Any, int], times: list[int | None]) -> None:
        """Note the next run.

        Args:
            text: The events as they stand in the file; None when the run is known not to be plain.
            run: The events without metadata, each with a pid and a time, and the slices with a duration that needs no repair.
            counts: How many there are of each phase.
            times: The time of each, ns.
        """
        plain = text is not None and _is_plain(text, run, counts)
        self.note_counts(counts, sum(times) & SUM_MASK if plain else None, len(text or b""))  # type: ignore[arg-type]

    def note_counts(self, counts: dict[str, int], checksum: int | None, size: int) -> None:
        """Note the next run.

        Args:
            counts: How many events it has of each phase.
            checksum: The sum of their times; None if it is not plain.
            size: How long its text is.
        """
        if checksum is None or not counts.get(METADATA, 0) < sum(counts.values()) <= _MOST_EVENTS:
            self._phases.extend(_NONE)
            self._sums.append(0)
            self._sizes.append(0)
        else:
            self._phases.extend(map(counts.get, _NOTED, _NONE))
            self._sums.append(checksum)
            self._sizes.append(size)

    def text_size(self, number: int) -> int:
        """Return how long the text of a run is that may be rewritten as text; 0 for any other."""
        return self._sizes[number] if number < len(self._sizes) else 0

    def counts(self, number: int) -> array[int]:
        """Return how many events of each of the phases ``XstfiICM`` a run has."""
        return self._phases[number * len(_NOTED) : (number + 1) * len(_NOTED)]

    def phases(self, number: int) -> dict[str, int]:
        """Return how many events of each phase a run has."""
        return {phase: count for phase, count in zip(_NOTED, self.counts(number), strict=True) if count}

    def checksum(self, number: int) -> int:
        """Return the sum of the times of a run."""
        return self._sums[number]


def _is_plain(text: bytes, run: list[Event], counts: dict[Any, int]) -> bool:
    """Tell whether nothing in a run needs a change but places, times and ids."""
    # With \\u a key may be written so that the text does not show it.
    if not counts.keys() <= set(_NOTED) or (b"\\" in text and b"\\u" in text):
        return False
    if [event for event in run if event.bind_id is not UNSET] or not all(map(is_usual, run)):
        return False
    durations = [bytes(event.dur) for event in run if event.ph == "X" and event.dur is not UNSET]
    if any(len(duration.partition(b".")[0]) > _MAX_DURATION_DIGITS for duration in durations):
        return False
    if not counts.keys().isdisjoint("stf"):
        try:
            ids = encode_json([event.id for event in run if event.ph in FLOWS])
        except TypeError:
            # A flow without an id.
            return False
        if not _DIRECT_IDS.fullmatch(ids):
            return False
    if "C" in counts:
        values = [event.args for event in run if event.ph == "C"]
        if UNSET in values or not all(map(PLAIN_COUNTER.fullmatch, values)):  # type: ignore[arg-type]
            return False
    # A global instant becomes one of its process.
    return counts.keys().isdisjoint("iI") or b'"g"' not in text
