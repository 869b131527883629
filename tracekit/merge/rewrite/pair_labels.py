"""Pair the halves of slices of an earlier merge before its lanes go back to their tracks.

An ``E`` ends the innermost open ``B`` of its lane. Once the lanes are back on one track, name and category no longer
identify that one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tracekit.formats.json.reader import TraceReader
from tracekit.formats.trace_event import raw_field, raw_number, time_field
from tracekit.traces.pairs import OpenSlices

if TYPE_CHECKING:
    from tracekit.merge.plan.unit import UnitInput


def has_lanes(item: UnitInput) -> bool:
    """Return True for an earlier merge with lanes."""
    return any(lane for known in item.source.processes.values() for _, lane in known.threads.values())


def pair_labels(item: UnitInput) -> list[int]:
    """Return a label for every ``B`` and ``E`` of a file, in its order; both halves of a slice have the same.

    Those of ranks that are not selected are not counted.
    """
    chosen = None if item.chosen is None else item.chosen.fresh()
    halves: dict[tuple[object, object], list[tuple[int, int, bool, bytes, bytes]]] = {}
    count = 0
    with TraceReader(item.source.path, limit_bytes=item.source.stamp.limit_bytes) as reader:
        for run in reader.runs():
            for event in run if chosen is None else chosen.of_ranks(run):
                phase = event.ph[:1] if type(event.ph) is str else ""
                if phase not in ("B", "E"):
                    continue
                time = time_field(event.ts)
                if time is not None:
                    own = time, count, phase == "B", raw_field(event.name), raw_field(event.cat)
                    halves.setdefault((raw_number(event.pid), raw_number(event.tid)), []).append(own)
                count += 1
    labels = [number << 32 | number for number in range(1, count + 1)]  # neither half is 0, which matches anything
    for found in halves.values():
        open_: OpenSlices[int] = OpenSlices(sys.maxsize)
        for _, number, is_begin, *fields in sorted(found):
            name, category = (field if field != b'""' else b"" for field in fields)
            if is_begin:
                open_.begin(name, category, number)
            elif (begun := open_.end(name, category)) is not None:
                labels[number] = labels[begun]
    return labels
