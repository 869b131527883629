r"""The words of a rank trace: what tracekit writes for one process, and what readers look for.

A rank trace is Chrome's Trace Event Format in its *array* form, one event a line::

    [
    {"ph":"M","name":"tracekit_metadata","pid":4711,"tid":4711,"args":{"rank":0,...,"baseTimeNanoseconds":...}},
    {"ph":"M","name":"process_name",...},
    {"ph":"X","name":"forward","cat":"model","ts":4360038729919.997,"dur":1234.567,"pid":4711,"tid":4711,"args":{...}},
    ...
    {"ph":"M","name":"tracekit_summary",...}
    ]

* The array form, because Perfetto loads an array that was cut anywhere and refuses a cut object. ``tracekit_metadata``
  is in the first write, so a file that exists is never empty and always names its rank.
* ``ts`` and ``dur`` are microseconds with exactly three decimals, written from integer nanoseconds.
  Absolute time in ns = ``baseTimeNanoseconds + ts * 1000``. The base is Kineto's own grid as a rule (see `base_time_ns`),
  so that a rank trace and torch.profiler's traces need no shift, and Perfetto reads every ``ts`` to the nanosecond (see
  `tracekit.formats.decimal_time` for runs that go on beyond the quarter).
* Slices are ``X``; a slice that was open when an earlier part of the file was written is a ``B`` there and an ``E``
  later, so that a process that hangs or is killed shows what it was in. On one (pid, tid) slices nest and never overlap.
* tracekit's own metadata are ``M`` events whose names Perfetto does not know and passes over.

Source of the rules: the Trace Event Format document; Perfetto's importer (``json_trace_tokenizer.cc``).
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BASE_TIME_KEY",
    "CLOCK_ANCHOR_EVENT",
    "CLOCK_OFFSET_EVENT",
    "CLOCK_STEP_EVENT",
    "COMPANION_EVENT",
    "COMPOSER_RANK_EVENT",
    "COMPOSER_SYNC_ERROR_EVENT",
    "COMPOSER_SYNC_EVENT",
    "DUMP_EVENT",
    "FORMAT_VERSION",
    "GAP_EVENT",
    "GRID_SECONDS",
    "LOSS_EVENT",
    "LOST_EVENTS_KEY",
    "METADATA_EVENT",
    "SUMMARY_EVENT",
    "TIMESTAMP_EVENT",
    "base_time_ns",
]

FORMAT_VERSION: Final = 1

METADATA_EVENT: Final = "tracekit_metadata"
"""First event of the file. ``args``: see ``schemas/rank_metadata.schema.json``."""

TIMESTAMP_EVENT: Final = "tracekit_timestamp"
"""The training `Timestamp` from ``ts`` on; ``args`` is its state dict."""

COMPOSER_RANK_EVENT: Final = "global_rank"
COMPOSER_SYNC_EVENT: Final = "clock_sync_timestamp_us"
COMPOSER_SYNC_ERROR_EVENT: Final = "clock_sync_error_bound"
"""What Composer's ``JSONTraceHandler`` writes in each window it records; ``args`` {"value"}. The last two: when the rank left a
barrier, in us since the epoch, and within how many us all ranks did."""

CLOCK_ANCHOR_EVENT: Final = "tracekit_clock_anchor"
"""A pair of readings: ``args`` {"wall_ns", "monotonic_ns", "error_ns"}."""

CLOCK_STEP_EVENT: Final = "tracekit_clock_step"
"""The wall clock was set, or the machine slept: ``args`` {"step_ns", "monotonic_ns", "suspended_ns"}; the file's own
timeline goes on unbroken."""

CLOCK_OFFSET_EVENT: Final = "tracekit_clock_offset"
"""What to add to this process's times to get those of the reference rank: ``args`` are the fields of `ClockOffset`."""

COMPANION_EVENT: Final = "tracekit_companion"
"""Another trace file of the same process: ``args`` {"file": its name, "path": the way there from the folder of this file, where
it is in another one and the recording is not private}."""

DUMP_EVENT: Final = "tracekit_dump"
"""The file is a dump of a flight recorder: ``args`` {"reasons", "events": kept, "dropped": events older than these}."""

LOSS_EVENT: Final = "tracekit_loss"
"""How many events this file lacks because it could not be written: ``args`` {`LOST_EVENTS_KEY`: n}, padded with spaces to a
fixed width and kept right in place, so that it holds also when the disk stays full and the process is killed."""

LOST_EVENTS_KEY: Final = "lost_events"

GAP_EVENT: Final = "tracekit.gap"
"""An instant, at the time of the first event that is missing: ``args`` {"lost_events", "from_ns", "to_ns"}."""

SUMMARY_EVENT: Final = "tracekit_summary"
"""Last event of a file that was closed: ``args`` holds the counts of what was written and what was lost."""

BASE_TIME_KEY: Final = "baseTimeNanoseconds"
"""Kineto's name for the base that every ``ts`` of a file is relative to; tracekit uses the same."""

GRID_SECONDS: Final = 7_889_238
"""A quarter of a year, the grid of Kineto's bases (libkineto's ChromeTraceLogger, kineto PR #928)."""


_INEXACT_S: Final = (2**42 // 10**6, 2**52 // 10**9 + 1)
_RUN_S: Final = 16 * 86_400
_STEP_S: Final = 2_600_000


def base_time_ns(wall_ns: int) -> int:
    """Return the base for a trace that starts at ``wall_ns``: Kineto's grid, in ns since the epoch, but for 17 days of 91.

    Perfetto takes ``ts`` for a double, multiplies it by 1000 and rounds. From 2^42 to 2^52 / 1000 microseconds, day 50.9 to
    52.1 after the base, the product's own rounding makes every fourth ``ts`` a nanosecond too late; slices that touch overlap
    then, and Perfetto drops one of them. A trace that starts there, or up to 16 days before, gets a base that lies later.
    """
    grid_ns = GRID_SECONDS * 1_000_000_000
    base_ns = wall_ns // grid_ns * grid_ns
    from_s, to_s = _INEXACT_S
    if from_s - _RUN_S <= (wall_ns - base_ns) // 1_000_000_000 < to_s:
        base_ns += _STEP_S * 1_000_000_000
    return base_ns
