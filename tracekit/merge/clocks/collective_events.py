"""Arrows between the members of a collective, and how far apart they came: events that a merge adds when it is asked to.

The arrows lead from who came first, and waits, over the others to who came last, whom all were waiting for. How long the
first has waited for the last is a counter beside the lowest rank, one for each process group.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.decimal_time import format_us
from tracekit.formats.trace_event import Raw, encode_json
from tracekit.merge.ids import NAMESPACE
from tracekit.merge.patch import Lanes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.merge.clocks.collective_sets import Member
    from tracekit.merge.namespaces import InputMap
    from tracekit.merge.selection.event_filter import EventFilter

__all__ = ["Added", "collective_events"]

_CATEGORY: Final = "collective"


@dataclass(frozen=True, slots=True)
class Added:
    """Events that follow those of an input in the merged trace.

    Attributes:
        text: JSON objects with ``,`` between them.
        phases: How many there are of each phase.
    """

    text: bytes = b""
    phases: Counter[str] = field(default_factory=Counter)


def collective_events(
    sets: Sequence[Sequence[Member]], maps: Sequence[InputMap], filters: Sequence[EventFilter | None]
) -> list[Added]:
    """Return what is to be added to each input.

    Args:
        sets: The collectives with their members, in merged time.
        maps: How the inputs are rewritten.
        filters: What is selected of them; a member that is left out has no arrow.
    """
    events: list[list[dict[str, Any]]] = [[] for _ in maps]
    tracks = _Tracks(maps)
    # After all ids of the inputs.
    flow = len(maps) * NAMESPACE
    for members in ([member for member in found if _is_selected(member, filters)] for found in sets):
        if len({member.number for member in members}) < 2:
            continue  # an earlier merge has drawn these, where anybody wanted them
        flow += 1
        # Of two that came at once, the order of the file, in which viewers take them.
        ordered = sorted(members, key=lambda member: (member.part.start_ns, member.number, member.rank))
        first, last = ordered[0], ordered[-1]
        for member in ordered:
            pid, tid = tracks.of(member)
            event: dict[str, Any] = {
                "ph": "s" if member is first else "f" if member is last else "t",
                "cat": _CATEGORY,
                "name": member.part.label.kind,
                "id": flow,
                "pid": pid,
                "tid": tid,
                "ts": Raw(format_us(member.part.start_ns)),
            }
            events[member.number].append({**event, "bp": "e"} if member is last else event)
        lowest = min(members, key=lambda member: (member.rank, member.number))
        events[lowest.number].append(_spread(lowest, last.part.start_ns - first.part.start_ns, last, tracks))
    return [Added(b",\n".join(map(encode_json, found)), Counter(event["ph"] for event in found)) for found in events]


def _is_selected(member: Member, filters: Sequence[EventFilter | None]) -> bool:
    chosen, part = filters[member.number], member.part
    if chosen is None:
        return True
    end_ns = part.file_ns + part.end_ns - part.start_ns
    return chosen.takes_rank_of(part.pid) and not chosen.judge(
        (part.pid, part.tid), b"", part.category, part.file_ns, end_ns, sliced=True
    )


def _spread(lowest: Member, spread_ns: int, last: Member, tracks: _Tracks) -> dict[str, Any]:
    group = lowest.part.label.group[0]
    pid, tid = tracks.of(lowest)
    return {
        "ph": "C",
        "cat": _CATEGORY,
        "name": f"arrival spread of group {group}" if group else "arrival spread of collectives",
        "pid": pid,
        "tid": tid,
        "ts": Raw(format_us(last.part.start_ns)),
        "args": {"µs": Raw(format_us(spread_ns))},
    }


class _Tracks:
    """Finds the tracks of members in the merged trace."""

    def __init__(self, maps: Sequence[InputMap]) -> None:
        self._maps = maps
        self._read: dict[int, InputMap] = {}
        self._lanes: dict[int, Lanes] = {}

    def of(self, member: Member) -> tuple[int, int]:
        """Return process and thread."""
        part = member.part
        target = self._read.get(member.number)
        if target is None:
            target = self._read[member.number] = self._maps[member.number]
        pid, tids = target.processes[part.pid]
        track = tids[part.tid]
        if isinstance(track, int):
            return pid, track
        lanes = self._lanes.get(id(track))
        if lanes is None:
            lanes = self._lanes[id(track)] = Lanes(track)
        return pid, lanes.lane_at(part.file_ns)
