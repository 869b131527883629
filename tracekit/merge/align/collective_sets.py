"""The collectives of a merge with all their members, on the merged timeline; and whether their order can be true.

No member leaves a synchronising collective before all have come, and no receive ends before its send begins. A merged
trace that violates this by more than the errors of the clocks has a wrong clock.

A merge adds arrows between the members when it is asked to. They lead from who came first, and waits, over the others to who
came last, whom all were waiting for. A counter on the lowest rank has the wait of the first for the last, for each process
group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.formats.decimal_time import format_us
from tracekit.formats.trace_event import Raw
from tracekit.merge.align.measure import CollectiveLog, members_of_groups
from tracekit.merge.report import Causality
from tracekit.structs import Struct
from tracekit.traces.collectives.matching import match_near

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.formats.merged_head import RankClock
    from tracekit.merge.align.placement import Placement
    from tracekit.merge.selection.event_filter import EventFilter
    from tracekit.traces.collectives.collector import Collective

_CATEGORY: Final = "collective"


class Member(NamedTuple):
    """One rank's part of a collective, in merged time (ns after the merge's base)."""

    rank: int
    number: int
    part: Collective


def find_sets(placed: Placement) -> list[list[Member]]:
    """Return the collectives with at least two known members, each in the order of ranks."""
    return sorted(_gathered(placed), key=lambda members: (members[0].part.end_ns, members[0][:2]))


def check_causality(placed: Placement) -> Causality:
    """Check the order of what collectives and messages between ranks must have in order."""
    beyond = []
    for members in _gathered(placed, only_extremes=True):
        leaves = min(members, key=lambda member: member.part.end_ns)
        comes = max((one for one in members if one is not leaves), key=lambda member: member.part.start_ns)
        apart_ns = _apart(placed.clocks, comes.rank, leaves.rank)
        beyond.append(comes.part.start_ns - leaves.part.end_ns - apart_ns)
    for (sender, sent_ns), (receiver, received_ns) in _messages(placed):
        beyond.append(sent_ns - received_ns - _apart(placed.clocks, sender, receiver))
    wrong = [excess for excess in beyond if excess > 0]
    return Causality(len(beyond), len(wrong), max(wrong, default=0))


def _gathered(placed: Placement, *, only_extremes: bool = False) -> Iterator[list[Member]]:
    """Yield the members of each collective with more than one, by rank; a process group of a rank is in memory at a time."""
    aligned = [log for log in placed.logs if placed.clocks[log.rank].aligned]
    for group, logs in sorted(members_of_groups(aligned).items()):
        waiting = logs
        # Several groups may lack a name: unmatched collectives begin new sets.
        while len(waiting) > 1:
            hub, *others = waiting
            ours = _merged(placed, hub, hub.of_group(group))
            found = {id(one): [Member(hub.rank, hub.number, one)] for one in ours}
            waiting = []
            for log in others:
                in_file = log.of_group(group)
                theirs = _merged(placed, log, in_file)
                pairs = match_near(ours, theirs, _apart(placed.clocks, hub.rank, log.rank))
                for own, their in pairs:
                    members = found[id(own)]
                    members.append(Member(log.rank, log.number, their))
                    if only_extremes:
                        members[:] = _extremes(members)
                paired = {id(their) for _, their in pairs}
                left = [one for one, moved in zip(in_file, theirs, strict=True) if id(moved) not in paired]
                if left:
                    waiting.append(CollectiveLog.of(log.number, log.rank, log.domain, log.to_domain_ns, left))
            yield from (members for members in found.values() if len(members) > 1)


def _extremes(members: list[Member]) -> list[Member]:
    """Return the member that leaves first and the two that come last, in their order."""
    leaves = min(members, key=lambda member: member.part.end_ns)
    latest = sorted(members, key=lambda member: -member.part.start_ns)[:2]
    return [member for member in members if member is leaves or member in latest]


def _merged(placed: Placement, log: CollectiveLog, collectives: list[Collective]) -> list[Collective]:
    return [
        one._replace(start_ns=placed.time_ns(log.number, one.start_ns), end_ns=placed.time_ns(log.number, one.end_ns))
        for one in collectives
    ]


def _apart(clocks: Mapping[int, RankClock], first: int, second: int) -> int:
    return sum(clocks[rank].error_ns or 0 for rank in {first, second})


def _messages(placed: Placement) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return who began a send and when, and who ended the receive that has its number, and when."""
    found: dict[tuple[Any, ...], tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for log in placed.logs:
        if not placed.clocks[log.rank].aligned:
            continue
        for one in log.messages():
            sent, received = found.setdefault((one.label.group, one.label.peers, one.sequence), ([], []))
            if one.sequence is not None and one.label.kind == "send":
                sent.append((log.rank, placed.time_ns(log.number, one.start_ns)))
            elif one.sequence is not None:
                received.append((log.rank, placed.time_ns(log.number, one.end_ns)))
    return [(sent[0], received[0]) for sent, received in found.values() if len(sent) == len(received) == 1]


class AddedEvent(Struct, frozen=True):
    """An event that the merge adds behind those of an input.

    Process and thread are those of the input, the time is that of the merged trace.
    """

    phase: str
    pid: Any
    tid: Any
    time_ns: int
    fields: dict[str, Any]


def collective_events(
    sets: Sequence[Sequence[Member]], count: int, filters: Sequence[EventFilter | None], first_id: int
) -> list[list[AddedEvent]]:
    """Return the events to add to each input. A member outside of the selection has no arrow."""
    events: list[list[AddedEvent]] = [[] for _ in range(count)]
    flow = first_id - 1
    for members in ([member for member in found if _is_selected(member, filters)] for found in sets):
        if len({member.number for member in members}) < 2:
            continue  # an earlier merge has drawn these, where anybody wanted them
        flow += 1
        # Simultaneous members keep the order of the file, as in viewers.
        ordered = sorted(members, key=lambda member: (member.part.start_ns, member.number, member.rank))
        first, last = ordered[0], ordered[-1]
        for member in ordered:
            phase = "s" if member is first else "f" if member is last else "t"
            fields: dict[str, Any] = {"cat": _CATEGORY, "name": member.part.label.kind, "id": flow}
            if member is last:
                fields["bp"] = "e"
            part = member.part
            events[member.number].append(AddedEvent(phase, part.pid, part.tid, part.start_ns, fields))
        lowest = min(members, key=lambda member: (member.rank, member.number))
        group = lowest.part.label.group[0]
        name = f"arrival spread of group {group}" if group else "arrival spread of collectives"
        spread = {"µs": Raw(format_us(last.part.start_ns - first.part.start_ns))}
        fields = {"cat": _CATEGORY, "name": name, "args": spread}
        events[lowest.number].append(AddedEvent("C", lowest.part.pid, lowest.part.tid, last.part.start_ns, fields))
    return events


def _is_selected(member: Member, filters: Sequence[EventFilter | None]) -> bool:
    chosen, part = filters[member.number], member.part
    if chosen is None:
        return True
    end_ns = part.file_ns + part.end_ns - part.start_ns
    return chosen.takes_rank_of(part.pid) and not chosen.judge(
        part.pid, b"", part.category, part.file_ns, end_ns, sliced=True
    )
