"""Rules on several events: the slices of one track, a (pid, tid), must nest; a flow starts once."""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.event_fields import MAX_DEPTH
from tracekit.traces.pairs import OpenSlices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.check.validation.report import Findings

_FOREVER: Final = 2**63 - 1
TrackKey = tuple[Any, Any]
"""pid and tid, as the file has them."""


class Tracks:
    """Collects slices in the order of the file, and checks each track in the order of time at the end.

    An X takes 24 bytes, a B or an E 32, whatever their names.
    """

    def __init__(self, findings: Findings) -> None:
        self._add = findings.add
        # Number, start and end of each X; number (negative for an E), time, hash of name and of category of each B and E.
        self._tracks: defaultdict[TrackKey, tuple[array[int], array[int]]]
        self._tracks = defaultdict(lambda: (array("q"), array("q")))

    def add_slice(self, number: int, key: TrackKey, start_ns: int, dur_ns: int) -> None:
        """Add an X."""
        self._tracks[key][0].extend((number, start_ns, min(start_ns + dur_ns, _FOREVER)))

    def add_edge(self, number: int, key: TrackKey, time_ns: int, name: bytes, category: bytes) -> None:
        """Add a B, or with a negative number an E; the name and the category may be empty."""
        # Empty texts have the hash 0.
        self._tracks[key][1].extend((number, time_ns, hash(name), hash(category)))

    def check(self) -> None:
        """Report what does not nest, and forget everything."""
        while self._tracks:
            (pid, tid), (slices, edges) = self._tracks.popitem()
            where = f"pid {pid} tid {tid}"
            spans = [
                (slices[at + 1], 0, -slices[at + 2], slices[at], slices[at + 2]) for at in range(0, len(slices), 3)
            ]
            spans += [(start, 1, 0, number, end) for number, start, end in self._pairs(edges, where)]
            # Perfetto's order: by time, not by place in the file; X before B; the longer X first.
            spans.sort()
            self._check_nesting(spans, where)

    def _pairs(self, edges: array[int], where: str) -> list[tuple[int, int, int]]:
        order = sorted(range(0, len(edges), 4), key=lambda at: (edges[at + 1], abs(edges[at])))
        opened: OpenSlices[tuple[int, int]] = OpenSlices()
        pairs = []
        for at in order:
            number, time_ns, name, category = edges[at : at + 4]
            if number > 0:
                opened.begin(name, category, (number, time_ns))
                continue
            innermost = opened.innermost if len(opened) else None
            begin = opened.end(name, category)
            if begin is None:
                message = (
                    f"E on {where} fits no open B (by time, name and category); write the B, or the same name in both"
                )
                self._add("perfetto-end-without-begin", -number, message)
                continue
            if begin is not innermost:
                self._add(
                    "perfetto-misplaced-end",
                    -number,
                    f"E on {where} ends the slice of event {begin[0]}, in which event {opened.innermost[0]} is still open; "
                    "end the inner slice first",
                )
            pairs.append((*begin, time_ns))
        for number, start in opened.slices:
            self._add("unclosed-begin", number, f"B on {where} has no E; it is drawn to the end of the trace")
            pairs.append((number, start, _FOREVER))
        return pairs

    def _check_nesting(self, spans: list[tuple[int, int, int, int, int]], where: str) -> None:
        stack: list[tuple[int, int, int]] = []  # end, number, 1 for a B and E
        first = too_deep = 0
        for start, is_pair, _, number, end in spans:
            while stack and stack[-1][0] <= start:
                stack.pop()
            if stack and end > stack[-1][0]:
                parent_end, parent, parent_is_pair = stack[-1]
                beyond_ns = end - parent_end
                if not is_pair and not parent_is_pair:
                    self._add(
                        "perfetto-overlap",
                        number,
                        f"slice on {where} ends {beyond_ns} ns after the slice of event {parent} that it begins in; "
                        "put one of them on another tid, or write them as b/e with id2.local",
                    )
                    continue  # Perfetto drops it, so it has no children
                if not is_pair:
                    self._add(
                        "perfetto-overlap-open",
                        number,
                        f"slice on {where} sticks {beyond_ns} ns out of the slice of event {parent}; "
                        "put one of them on another tid",
                    )
                elif not parent_is_pair:
                    self._add(
                        "perfetto-overlap-open",
                        number,
                        f"B on {where} is cut short where the slice of event {parent} ends, in which it begins; "
                        "write that slice as B and E too, or put one of them on another tid",
                    )
                    end = parent_end  # noqa: PLW2901 - as Perfetto does
                # Two pairs: reported as a misplaced end.
            stack.append((end, number, is_pair))
            if len(stack) > MAX_DEPTH:
                first = first or number
                too_deep += 1
        if too_deep:
            message = f"{where} is nested deeper than {MAX_DEPTH} slices; record fewer levels"
            self._add("perfetto-depth", first, message, count=too_deep)


class Flows:
    """Looks for flows that are started twice.

    Flows without an end or a start are normal in torch.profiler's traces (kineto writes an ``f`` for every runtime call).

    Args:
        findings: The list to add problems to.
        rank_of: The rank of each pid in a merged trace; empty in others.
    """

    def __init__(self, findings: Findings, rank_of: Mapping[Any, int]) -> None:
        self._add = findings.add
        self._rank_of = rank_of
        # Hashes instead of the keys: one in 2^64 is a small price for a third of the memory.
        self._started: dict[int, tuple[Any, int]] = {}

    def start(self, number: int, pid: Any, name: bytes, category: bytes, flow: int) -> None:
        """Add an ``s`` event."""
        other, first = self._started.setdefault(hash((category, name, flow)), (pid, number))
        if first != number:
            by, what = ("it", "flow") if other == pid else (f"pid {other}", "rank")
            rank = self._rank_of.get(pid)
            of_input = rank is not None and rank == self._rank_of.get(other)
            self._add(
                "input-flow-duplicate" if of_input else "perfetto-flow-duplicate",
                number,
                f"flow {flow} is started here by pid {pid}, and in event {first} by {by}; give each {what} ids of its own",
            )
