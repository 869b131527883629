"""Times far from the base of a file, which a viewer's doubles no longer hold to the nanosecond.

Viewers read ``ts`` as a double of microseconds. Up to 2^43 µs (101.8 days) from the base, doubles are dense enough for every
nanosecond. Kineto's grid leaves a run that starts at its end 10 days of that. Later a viewer reads some times a nanosecond
too early or late, and a slice that begins where the one before it ends overlaps it then: Perfetto drops it. So such times
are moved back, by one nanosecond at most, to those that a double does hold. Begins and ends are moved alike, so that what
nested and what did not overlap stays so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.events import WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EXACT_NS", "exact_records", "exact_time", "is_exact"]

EXACT_NS: Final = 2**43 * 1000
"""Before this many ns from the base every time is exact."""


def exact_records(records: Sequence[Any], shift_ns: int, newest_ns: int = 0) -> Sequence[Any]:
    """Return the records of a batch with times that a viewer reads as they are.

    Args:
        records: As in `tracekit.events.EventBatch`.
        shift_ns: What to add to their times to get those in the file.
        newest_ns: A time that none of them is later than, 0 if it is not known.
    """
    if not records:
        return records
    newest_ns = newest_ns or max(map(max, (records[1::WIDTH], records[2::WIDTH])))
    if newest_ns + shift_ns < EXACT_NS:
        return records
    moved = list(records)
    for column in (1, 2):  # the second holds the end of a slice, or what kind of event it is
        moved[column::WIDTH] = [
            time if time + shift_ns < EXACT_NS else exact_time(time + shift_ns) - shift_ns
            for time in records[column::WIDTH]
        ]
    return moved


def exact_time(ns: int) -> int:
    """Return the latest time up to this one that reads the same as a double of microseconds, in ns."""
    while not is_exact(ns):
        ns -= 1
    return ns


def is_exact(ns: int) -> bool:
    """Tell whether a time reads the same as a double of microseconds, whether the reader rounds it or cuts it off."""
    read = ns / 1000 * 1000
    return int(read) == round(read) == ns
