"""The slower way for inputs whose clock drifts: every event is moved by what its time asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.formats.decimal_time import format_us, parse_us
from tracekit.formats.trace_event import UNSET, Event, Raw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.merge.clocks.clock_map import ClockMap

__all__ = ["warp_durations"]


def warp_durations(run: list[Event], times: Sequence[int | None], warp: ClockMap) -> None:
    """Make the durations of a run those between the two moved ends, in place; what is no duration is left as it is.

    Args:
        run: The events.
        times: When each begins, ns in the file's time.
        warp: What is added to a time.
    """
    for event, start in zip(run, times, strict=True):
        if start is None or event.dur is UNSET:
            continue
        length = parse_us(bytes(event.dur))
        if length is not None and length > 0:
            event.dur = Raw(format_us(length + warp.offset_at(start + length) - warp.offset_at(start)))
