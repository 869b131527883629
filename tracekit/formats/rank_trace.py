r"""The format of a rank trace, the file of one process: names of events and keys, the base of its times, and its index.

A rank trace is Chrome's Trace Event Format in its *array* form, with one event per line::

    [
    {"ph":"M","name":"tracekit_metadata","pid":4711,"tid":4711,"args":{"rank":0,...,"baseTimeNanoseconds":...}},
    {"ph":"M","name":"process_name",...},
    {"ph":"X","name":"forward","cat":"model","ts":4360038729919.997,"dur":1234.567,"pid":4711,"tid":4711,"args":{...}},
    ...
    {"ph":"M","name":"tracekit_summary",...}
    ]

* It uses the array form, because Perfetto loads an array that is cut anywhere, and rejects a cut object.
  ``tracekit_metadata`` is in the first write, so a file is never empty and always contains its rank.
* ``ts`` and ``dur`` are microseconds with exactly three decimals, written from integer nanoseconds.
  Absolute time in ns = ``baseTimeNanoseconds + ts * 1000``. The base is usually on Kineto's grid (see `base_time_ns`),
  so that a rank trace and torch.profiler's traces need no shift, and Perfetto reads every ``ts`` to the nanosecond (see
  `tracekit.formats.decimal_time` for runs that are longer than a quarter of a year).
* Slices are ``X``. A slice that was open when an earlier part of the file was written is a ``B`` there and an ``E``
  later, so that the trace of a hung or killed process shows its open slices. Slices of one (pid, tid) nest and never
  overlap.
* tracekit's metadata are ``M`` events with names that Perfetto ignores.

Source of the rules: the Trace Event Format document; Perfetto's importer (``json_trace_tokenizer.cc``).
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FORMAT_VERSION: Final = 1

METADATA_EVENT: Final = "tracekit_metadata"  # first event of the file. args: see schemas/rank_metadata.schema.json.
TIMESTAMP_EVENT: Final = "tracekit_timestamp"  # the training `Timestamp` from ts on; args is its state dict
# Events that Composer's ``JSONTraceHandler`` writes in each recorded window, with args {"value"}. The last two contain the
# time at which the rank left a barrier, in µs since the epoch, and the error bound in µs.
COMPOSER_RANK_EVENT: Final = "global_rank"
COMPOSER_SYNC_EVENT: Final = "clock_sync_timestamp_us"
COMPOSER_SYNC_ERROR_EVENT: Final = "clock_sync_error_bound"
CLOCK_ANCHOR_EVENT: Final = "tracekit_clock_anchor"  # a pair of readings: args {"wall_ns", "monotonic_ns", "error_ns"}
# The wall clock was set, or the machine slept: ``args`` {"step_ns", "monotonic_ns", "suspended_ns"}. The timeline of
# the file has no step.
CLOCK_STEP_EVENT: Final = "tracekit_clock_step"
# The offset from this process's clock to the clock of the reference rank: ``args`` are the fields of `ClockOffset`.
CLOCK_OFFSET_EVENT: Final = "tracekit_clock_offset"
# Another trace file of the same process: ``args`` {"file": its name, "path": its path relative to the folder of this
# file, if it is in another folder and the recording is not private}.
COMPANION_EVENT: Final = "tracekit_companion"
# The file is a dump of a flight recorder: ``args`` {"reasons", "events": kept, "dropped": events older than these}.
DUMP_EVENT: Final = "tracekit_dump"
# Number of events that are missing because the file could not be written: ``args`` {`LOST_EVENTS_KEY`: n}, padded with
# spaces to a fixed width and updated in place. So it is correct even if the disk stays full and the process is killed.
LOSS_EVENT: Final = "tracekit_loss"
LOST_EVENTS_KEY: Final = "lost_events"

# An instant at the time of the first missing event: ``args`` {"lost_events", "from_ns", "to_ns"}.
GAP_EVENT: Final = "tracekit.gap"
# Last event of a closed file: ``args`` contains the counts of written and lost events.
SUMMARY_EVENT: Final = "tracekit_summary"
BASE_TIME_KEY: Final = "baseTimeNanoseconds"  # the key of the base of every ts in a file, as in Kineto
# A quarter of a year, the grid of Kineto's bases (libkineto's ChromeTraceLogger, kineto PR #928).
GRID_SECONDS: Final = 7_889_238


_INEXACT_S: Final = (2**42 // 10**6, 2**52 // 10**9 + 1)
_RUN_S: Final = 16 * 86_400
_STEP_S: Final = 2_600_000


def base_time_ns(wall_ns: int) -> int:
    """Return the base for a trace that starts at ``wall_ns``, in ns since the epoch.

    It is on Kineto's grid, except on 17 of 91 days.

    Perfetto parses ``ts`` as a double, multiplies it by 1000 and rounds. From 2^42 to 2^52 / 1000 microseconds, day
    50.9 to 52.1 after the base, the rounding of the product makes every fourth ``ts`` a nanosecond too late. Slices
    that touch then overlap, and Perfetto drops one of them. A trace that starts in that range, or up to 16 days before
    it, gets a later base.
    """
    grid_ns = GRID_SECONDS * 1_000_000_000
    base_ns = wall_ns // grid_ns * grid_ns
    from_s, to_s = _INEXACT_S
    if from_s - _RUN_S <= (wall_ns - base_ns) // 1_000_000_000 < to_s:
        base_ns += _STEP_S * 1_000_000_000
    return base_ns


INDEX_KEY: Final = "tracekit_index"
INDEX_SUFFIX: Final = ".index.json"
_VERSION: Final = 1
# The fields that differ between the segments of one recording, with the text that usually precedes them.
_VARYING: Final = re.compile(r"[-_.]?(?:part|dump|batch|epoch|ep|b|w|p)?\{(?:part|dump|batch|epoch)[^{}]*\}")


@dataclass(slots=True)
class Segment:
    """One file of a recording.

    Its state is "open" while it is written (it stays "open" if the process is killed), "waiting", "delivered" or "dropped".
    """

    number: int  # in the spool, from 0
    file: str  # the name of the uncompressed file in the spool folder
    url: str  # the destination; for a name that ends with ``.gz``, the segment is compressed first
    state: str = "open"
    events: int = 0
    start_ns: int = 0  # since the epoch, like the end; 0 if unknown
    end_ns: int = 0
    size_bytes: int = 0
    sha256: str = ""


def index_name(template: str) -> str:
    """Return the name template of the index for the name template of the segments.

    Example::

        s3://bucket/{run_id}/rank{rank}-part{part:04d}.json.gz  ->  s3://bucket/{run_id}/rank{rank}.index.json
    """
    folder, slash, name = template.rpartition("/")
    stem = _VARYING.sub("", name).removesuffix(".gz").removesuffix(".json").strip("-_.")
    while _VARYING.search(folder):  # one folder per window: put the index above them
        folder, slash, _ = folder.rpartition("/")
    return f"{folder}{slash}{stem or 'trace'}{INDEX_SUFFIX}"


def index_document(
    header: Mapping[str, Any], segments: Iterable[Segment], index_url: str, *, complete: bool
) -> dict[str, Any]:
    """Return the index of a recording.

    Args:
        header: Identity of the recording; see `Spool`.
        segments: The files of the recording.
        index_url: Destination of the index. Names are relative to it.
        complete: True if the recording has ended and all its segments were delivered.
    """
    folder = index_url.rpartition("/")[0]
    finished = [segment for segment in segments if segment.state != "open"]
    dropped = [segment for segment in finished if segment.state == "dropped"]
    return {
        INDEX_KEY: _VERSION,
        **{key: header.get(key) for key in ("id", "run_id", "rank", "attempt", "pid", "tracekit_version")},
        "complete": complete and not dropped,
        "segments": [
            {
                "name": posixpath.relpath(f"/{segment.url}", f"/{folder}"),
                "state": "uploaded" if segment.state == "delivered" else segment.state,
                "events": segment.events if segment.end_ns else None,
                "start_ns": segment.start_ns,
                "end_ns": segment.end_ns,
                "bytes": segment.size_bytes,
                "sha256": segment.sha256 or None,
            }
            for segment in finished
        ],
        "dropped": {"segments": len(dropped), "events": sum(segment.events for segment in dropped)},
    }


def listed_segments(document: Any, index_url: str) -> list[tuple[str, str]] | None:
    """Return path and state of every segment in an index, or None if the document is not an index."""
    if not isinstance(document, dict) or INDEX_KEY not in document:
        return None
    folder, slash, _ = index_url.rpartition("/")
    segments = document.get("segments")
    return [
        (f"{folder}{slash}{segment['name']}", str(segment.get("state")))
        for segment in (segments if isinstance(segments, list) else [])
        # tracekit writes no names that lead out of the folder.
        if isinstance(segment, dict) and isinstance(segment.get("name"), str) and ".." not in segment["name"].split("/")
    ]
