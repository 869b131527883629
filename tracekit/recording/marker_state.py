"""The states of a marker, and the table of their transitions. The classes in Python and ``core/marker.c`` implement it."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

FREE: Final = 0
"""The slot has no slice."""

STACKED: Final = 2
"""The slot has no slice, but the stacks have. Greater values are TAKEN: the start of the slice in the slot."""


class MarkerState(IntEnum):
    """The state of a marker. There is a class for each state, so that no event has to test it.

    * ASLEEP: not used since the schedule changed. The first use wakes the marker.
    * IDLE: records nothing. Counts the slices that start now.
    * RECORDING: records.
    * OBSERVED: records, and notifies an observer or records instants at the edges of its slices.
    * SHARED: passes the slices of each thread to a clone for that thread.

    The slot (``_start``) is the second half of the state. It holds one open recorded slice. All further ones, and those
    that an observer needs, are on the stacks.

    The events are the start and the end of a slice (enter, exit), and the change of the schedule to an action during
    which the marker records or does not record (record, pause). A cell names the possible next states, or only the slot
    if the state stays the same. Which of them comes depends on the slices that are still open, on the thread and on the
    observer. ON is RECORDING or, with an observer, OBSERVED. A marker that wakes enters from FREE. ``-`` is impossible::

        state and slot    | enter              | exit                 | record                  | pause
        ASLEEP FREE       | wakes              | -                    | FREE                    | FREE
        IDLE FREE         | FREE               | FREE                 | ASLEEP FREE, ON STACKED | ASLEEP FREE, FREE
        IDLE TAKEN        | TAKEN              | TAKEN, STACKED, FREE | ON TAKEN                | TAKEN
        IDLE STACKED      | STACKED            | STACKED, FREE        | ON STACKED              | STACKED
        RECORDING FREE    | TAKEN              | -                    | ASLEEP FREE             | ASLEEP FREE
        RECORDING TAKEN   | TAKEN, SHARED TAKEN | TAKEN, STACKED, FREE | TAKEN                   | IDLE TAKEN
        RECORDING STACKED | STACKED            | STACKED, FREE        | STACKED                 | IDLE STACKED, IDLE FREE
        OBSERVED FREE     | TAKEN, STACKED     | -                    | ASLEEP FREE             | ASLEEP FREE
        OBSERVED TAKEN    | TAKEN              | TAKEN, STACKED, FREE | TAKEN                   | IDLE TAKEN
        OBSERVED STACKED  | STACKED            | STACKED, FREE        | STACKED                 | IDLE STACKED, IDLE FREE
        SHARED FREE       | FREE               | FREE                 | ASLEEP FREE, FREE       | ASLEEP FREE, FREE
        SHARED TAKEN      | TAKEN              | TAKEN, STACKED, FREE | TAKEN                   | TAKEN
        SHARED STACKED    | STACKED            | STACKED, FREE        | STACKED                 | STACKED

    A marker that its profiler releases becomes IDLE FREE, and its open slices count as not recorded; so does a marker in a
    forked child. A marker that a profiler adopts becomes IDLE or ON, and STACKED instead of FREE if it records and has
    open slices.

    The tests play all short sequences of events against this table.
    """

    ASLEEP = 0
    IDLE = 1
    RECORDING = 2
    OBSERVED = 3
    SHARED = 4
