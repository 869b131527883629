"""Times far from the base of a file, which a viewer does not read to the nanosecond.

Perfetto takes ``ts`` for a double of microseconds, multiplies it by 1000 and rounds. That gives back every nanosecond but in
two places: from 2^42 to 2^52 / 1000 µs after the base (day 50.9 to 52.1) the product's own rounding makes every fourth time
one nanosecond too late, and from 2^43 µs (day 101.8) on a double has no room for every nanosecond. A slice that begins where
the one before it ends overlaps it then, and Perfetto drops it. `base_time_ns` keeps traces that start shortly before the
first place away from it; a longer run comes there all the same. So its times are moved back to those that are read as they
are written: by 10 ns at most in the first place, by 1 ns in the second. Begins and ends are moved alike, so that what nested
and what did not overlap stays so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.events import WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EXACT_NS", "exact_records", "exact_time", "is_exact"]

EXACT_NS: Final = 2**43 * 1000
"""From here on, counted from the base, a double of microseconds does not hold every nanosecond."""

_FIRST_HOLE_NS: Final = (2**42 * 1000, 2**52)


def exact_records(records: Sequence[Any], shift_ns: int, newest_ns: int = 0) -> Sequence[Any]:
    """Return the records of a batch with times that a viewer reads as they are.

    Args:
        records: As in `tracekit.events.EventBatch`.
        shift_ns: What to add to their times to get those in the file.
        newest_ns: A time that none of them is later than, 0 if it is not known.
    """
    if not records:
        return records
    newest_ns = (newest_ns or max(map(max, (records[1::WIDTH], records[2::WIDTH])))) + shift_ns
    if newest_ns < _FIRST_HOLE_NS[0]:
        return records
    if newest_ns < EXACT_NS and min(records[1::WIDTH]) + shift_ns >= _FIRST_HOLE_NS[1]:
        return records
    moved = list(records)
    moved[1::WIDTH] = [exact_time(time + shift_ns) - shift_ns for time in records[1::WIDTH]]
    # The end of a slice, or what kind of event it is, which is below 0.
    moved[2::WIDTH] = [exact_time(time + shift_ns) - shift_ns if time >= 0 else time for time in records[2::WIDTH]]
    return moved


def exact_time(ns: int) -> int:
    """Return the latest time up to this one that a viewer reads as it is written, in ns after the base."""
    while not is_exact(ns):
        ns -= 1
    return ns


def is_exact(ns: int) -> bool:
    """Tell whether a viewer reads a time to the nanosecond."""
    read = ns / 1000 * 1000
    whole = int(read)
    return whole + (read - whole >= 0.5) == ns  # not round(): halves are rounded up there, and to even numbers here
