"""Rules on the slices of one track, a (pid, tid): they must nest."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.event_fields import MAX_DEPTH

if TYPE_CHECKING:
    from tracekit.validation.report import Findings

__all__ = ["Tracks"]

_FOREVER: Final = 2**63 - 1
_ANY: Final = 0
"""Stands for a name or category that an E does not give: it ends any slice."""


TrackKey = tuple[Any, Any]
"""pid and tid, as the file has them."""


class _Track:
    """What was seen on a track: 24 bytes for each X, 32 for each B and E, whatever their names."""

    __slots__ = ("edges", "slices")

    def __init__(self) -> None:
        self.slices = array("q")  # number, start, end of each X
        self.edges = array("q")  # number (negative for an E), time, hash of name, hash of category


class Tracks:
    """Collects slices in the order of the file, and checks each track in the order of time at the end."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._tracks: dict[TrackKey, _Track] = {}

    def _track(self, key: TrackKey) -> _Track:
        track = self._tracks.get(key)
        if track is None:
            track = self._tracks[key] = _Track()
        return track

    def add_slice(self, number: int, key: TrackKey, start_ns: int, dur_ns: int) -> None:
        """Add an X."""
        self._track(key).slices.extend((number, start_ns, min(start_ns + dur_ns, _FOREVER)))

    def add_begin(self, number: int, key: TrackKey, time_ns: int, name: object, category: object) -> None:
        """Add a B."""
        self._track(key).edges.extend((number, time_ns, hash(name), hash(category)))

    def add_end(self, number: int, key: TrackKey, time_ns: int, name: object, category: object) -> None:
        """Add an E; ``name`` and ``category`` are None where it does not give them."""
        by_name = _ANY if name is None else hash(name)
        by_category = _ANY if category is None else hash(category)
        self._track(key).edges.extend((-number, time_ns, by_name, by_category))

    def check(self) -> None:
        """Report what does not nest, and forget everything."""
        while self._tracks:
            (pid, tid), track = self._tracks.popitem()
            where = f"pid {pid} tid {tid}"
            values = track.slices
            spans = [
                (values[at + 1], False, -values[at + 2], values[at], values[at + 2]) for at in range(0, len(values), 3)
            ]
            spans += [(start, True, 0, number, end) for number, start, end in self._pairs(track.edges, where)]
            # Perfetto's order: by time; X before B, whatever the order of the file; the longer X first.
            spans.sort()
            self._check_nesting(spans, where)

    def _pairs(self, edges: array[int], where: str) -> list[tuple[int, int, int]]:
        """Match each B with its E; return (number, start, end) of each."""
        order = sorted(range(0, len(edges), 4), key=lambda at: (edges[at + 1], abs(edges[at])))
        opened: list[tuple[int, int, int, int]] = []
        pairs = []
        for at in order:
            number, time_ns, name, category = edges[at : at + 4]
            if number > 0:
                opened.append((number, time_ns, name, category))
                continue
            for index in range(len(opened) - 1, -1, -1):
                if name in (_ANY, opened[index][2]) and category in (_ANY, opened[index][3]):
                    break
            else:
                self._findings.add(
                    "perfetto-end-without-begin",
                    -number,
                    f"E on {where} fits no open B (by time, name and category); write the B, or the same name in both",
                )
                continue
            begin = opened.pop(index)
            if index != len(opened):
                self._findings.add(
                    "perfetto-misplaced-end",
                    -number,
                    f"E on {where} ends the slice of event {begin[0]}, in which event {opened[-1][0]} is still open; "
                    "end the inner slice first",
                )
            pairs.append((begin[0], begin[1], time_ns))
        for number, start, _, _ in opened:
            self._findings.add("unclosed-begin", number, f"B on {where} has no E; it is drawn to the end of the trace")
            pairs.append((number, start, _FOREVER))
        return pairs

    def _check_nesting(self, spans: list[tuple[int, bool, int, int, int]], where: str) -> None:
        stack: list[tuple[int, int, bool]] = []  # end, number, whether it is a B and E
        too_deep = deepest = 0
        for start, is_pair, _, number, end in spans:
            while stack and stack[-1][0] <= start:
                stack.pop()
            if stack and end > stack[-1][0]:
                parent_end, parent, parent_is_pair = stack[-1]
                if is_pair and parent_is_pair:
                    pass  # reported as a misplaced end
                elif is_pair:
                    self._findings.add(
                        "perfetto-overlap-open",
                        number,
                        f"B on {where} is cut short where the slice of event {parent} ends, in which it begins; "
                        "write that slice as B and E too, or put one of them on another tid",
                    )
                    end = parent_end  # noqa: PLW2901 - as Perfetto does
                elif parent_is_pair:
                    self._findings.add(
                        "perfetto-overlap-open",
                        number,
                        f"slice on {where} sticks {end - parent_end} ns out of the slice of event {parent}; "
                        "put one of them on another tid",
                    )
                else:
                    self._findings.add(
                        "perfetto-overlap",
                        number,
                        f"slice on {where} ends {end - parent_end} ns after the slice of event {parent} that it begins in; "
                        "put one of them on another tid, or write them as b/e with id2.local",
                    )
                    continue  # Perfetto drops it, so it is nobody's parent
            stack.append((end, number, is_pair))
            if len(stack) > MAX_DEPTH:
                too_deep += 1
                if too_deep == 1:
                    deepest = number
        if too_deep:
            self._findings.add(
                "perfetto-depth",
                deepest,
                f"{where} is nested deeper than {MAX_DEPTH} slices; record fewer levels",
                count=too_deep,
            )
