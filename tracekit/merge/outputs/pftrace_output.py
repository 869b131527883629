"""The merged trace in Perfetto's own format: exact ns since the epoch, nested tracks, units, arrows that cannot go wrong."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from tracekit.formats.pftrace import Sequence, clock_snapshot, metadata_value, root_track
from tracekit.merge.outputs.json_output import describe
from tracekit.merge.outputs.pftrace_part import PftracePart
from tracekit.merge.outputs.pftrace_tracks import describe_tracks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.merge.outputs.merged import Merged

__all__ = ["PftraceOutput"]

_HEAD: Final = 1
"""The head's sequence of packets; those of the parts follow."""


class PftraceOutput:
    """A merged trace as Perfetto's TrackEvent packets.

    Inputs that have processes in common are one unit, since the order of what happens on a track at the same time counts.

    Args:
        merged: What is true of all of it.
    """

    separator = b""

    def __init__(self, merged: Merged) -> None:
        self._base_ns = merged.base_ns
        self._processes = merged.processes
        self._description = b"".join(describe(merged))
        self._merge = sha256(self._description).hexdigest()
        self._start_ns = min(
            (item.scan.start_ns for item in merged.inputs if item.scan.start_ns is not None), default=0
        )
        self.units = _units(merged)

    def head(self, write: Callable[[bytes], object]) -> int:
        """Write everything up to the first event of an input; returns how many tracks that describes."""
        sequence = Sequence(_HEAD)
        write(sequence.definitions())
        if self._start_ns:
            # Not at the base, which may lie months before the first event and would be part of the timeline.
            write(sequence.plain(clock_snapshot(self._start_ns, self._start_ns)))
        write(sequence.plain(metadata_value("tracekit", self._description)))
        self._description = b""
        write(sequence.describe(root_track()))
        described = 0
        for description in describe_tracks(self._processes):
            write(sequence.describe(description))
            described += 1
        return described

    def part(self, unit: int) -> PftracePart:
        """Return the encoder of some inputs."""
        return PftracePart(_HEAD + 1 + unit, self._base_ns, self._merge)

    def tail(self, stack_frames: bytes) -> bytes:
        """Return nothing: packets need no end, and events have their stack frames as an argument."""
        del stack_frames
        return b""


def _units(merged: Merged) -> list[list[int]]:
    """Return the inputs by number, together those that have a process in common."""
    unit_of = list(range(len(merged.inputs)))

    def find(number: int) -> int:
        while unit_of[number] != number:
            number = unit_of[number]
        return number

    for process in merged.processes:
        found = sorted({find(number) for number in process.inputs})
        for number in found[1:]:
            unit_of[number] = found[0]
    units: dict[int, list[int]] = {}
    for number in range(len(merged.inputs)):
        units.setdefault(find(number), []).append(number)
    return list(units.values())
