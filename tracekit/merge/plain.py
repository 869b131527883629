"""Runs of plain events, rewritten as the text that they are: only the digits that change are touched.

Most events of a trace need nothing but another ``pid``, ``tid``, ``ts`` and ids. The first pass, which decodes every event,
notes the runs in which that is true of all. The second need not decode them: it cuts the text at these numbers, replaces
them, a column at a time, and joins it again. What is not changed is never looked at.

Why a number that is replaced is the right one: every event of such a run has a ``pid`` (the first pass saw to that), and as
many ``"pid"`` stand in the text as there are events, so that none of them is inside of ``args`` or of a string. Each must be
followed by ``tid`` and ``ts``, as all writers do that are known; and where times change, their sum must be that of the decoded
events. Any doubt sends the run the general way (`tracekit.merge.patch`).

Metadata among them, as tracekit writes it at every batch, is taken out first where each stands on a line of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tracekit import core
from tracekit.formats.time_columns import format_all_us, have_three_decimals, parse_column_us
from tracekit.formats.trace_event import decode_json, decode_run
from tracekit.merge.ids import add_to_column, move_arg_ids
from tracekit.merge.plain_runs import FLOWS, METADATA, PHASES, SUM_MASK

if TYPE_CHECKING:
    from tracekit.core import _merge
    from tracekit.formats.trace_event import Event
    from tracekit.merge.patch import Lanes, Patcher
    from tracekit.merge.plain_runs import PlainRuns

__all__ = ["TextPatcher"]

_METADATA_SIGN: Final = b'"ph":"M"'
_MOST_NEWS: Final = 64
# A pattern that begins with plain text is searched for several times as fast, and without a quote faster still. What stands
# between is looked at once for each different text, by the pattern below.
_PLACE: Final = re.compile(rb'pid"(?:(?<="pid")([^t]{0,99}tid"[^t]{0,99}ts"[\s:]*)([\d.]+)(?=[,\s}]))?')
_VALUE: Final = rb'(-?\d{1,18}|"[^"\\]*")'
_PLACE_PARTS: Final = re.compile(rb"(\s*:\s*)" + _VALUE + rb'(\s*,\s*"tid"\s*:\s*)' + _VALUE + rb'\s*,\s*"ts"\s*:\s*')
_FLOW_ID: Final = re.compile(rb'("id"[\s:]*)(\d{1,9}(?=[,\s}]))?')
_MAX_PLACES: Final = 10_000


class TextPatcher:
    """Rewrites plain runs of one input.

    Args:
        patcher: The general way, whose places, shift and namespace these are, and which counts what is written.
        plain: What the first pass noted.
    """

    def __init__(self, patcher: Patcher, plain: PlainRuns) -> None:
        self._patcher = patcher
        self._plain = plain
        self._places: dict[bytes, bytes] = {}
        self._lanes: dict[bytes, Lanes] = {}
        self._core: _merge.Patcher | None = _make_core(patcher)
        self._numbered: list[Lanes] = []

    def patch(self, text: bytes, number: int) -> bytes | None:
        """Return the events of a run as they go into the merged trace; None when they must go the general way.

        Args:
            text: JSON objects with ``,`` between them.
            number: Which run it is.
        """
        phases = self._plain.phases(number)
        metadata: list[Event] = []
        if METADATA in phases:
            found = _take_out_metadata(text, phases.pop(METADATA), sum(phases.values()))
            if found is None:
                return None
            text, metadata = found
        moved = self._patch_compiled(text, number, phases) or self._patch_columns(text, number, phases)
        if moved is None:
            return None
        for phase, count in phases.items():
            self._patcher.written[phase] += count
        kept = self._patcher.patch(metadata) if metadata else b""
        return b"%b,\n%b" % (kept, moved) if kept else moved

    def _patch_compiled(self, text: bytes, number: int, phases: dict[str, int]) -> bytes | None:
        """Do what `_patch_columns` does, faster; None also where only this does not understand the run."""
        if self._core is None:
            return None
        counts, checksum = tuple(self._plain.counts(number)[: len(PHASES)]), self._plain.checksum(number)
        news = 0
        while isinstance(moved := self._core.patch(text, counts, checksum), tuple):
            news += 1  # each time it begins anew, so that a run of many new tracks is better left to Python
            if not self._add_place(self._core, *moved) or news > _MOST_NEWS:
                return None
        if moved is None or not self._numbered:
            return moved
        found = [(lanes, count) for lanes, count in zip(self._numbered, self._core.lane_counts(), strict=True) if count]
        return moved if self._pass_lanes(found, slices_only=phases.keys() == {"X"}) else None

    def _add_place(self, compiled: _merge.Patcher, pid: bytes, tid: bytes) -> bool:
        """Tell the core where a track goes; returns whether that is known."""
        found = self._patcher.place(decode_json(pid), decode_json(tid))
        if found is None:
            return False
        new_pid, new_tid = found
        number = -1
        if not isinstance(new_tid, int):
            lanes, new_tid = new_tid, new_tid.tid
            if lanes not in self._numbered:
                self._numbered.append(lanes)
            number = self._numbered.index(lanes)
        compiled.add_place(pid, tid, new_pid, new_tid, number)
        return True

    def _patch_columns(self, text: bytes, number: int, phases: dict[str, int]) -> bytes | None:
        count = sum(phases.values())
        pieces: list[Any] = _PLACE.split(text)
        places = pieces[1::3]
        if len(places) != count or None in places:
            return None
        moved_places = self._move_places(places)
        moved_times = None if moved_places is None else self._move_times(pieces[2::3], self._plain.checksum(number))
        if moved_places is None or moved_times is None:
            return None
        pieces[1::3], pieces[2::3] = moved_places, moved_times
        moved = b"".join(pieces)
        offset = self._patcher.offset
        if offset:
            with_ids = _move_flow_ids(moved, offset, sum(phases.get(phase, 0) for phase in FLOWS))
            if with_ids is None:
                return None
            moved = with_ids
        if self._lanes:
            met = Counter(places)
            found: dict[Lanes, int] = {}
            for place in self._lanes.keys() & met.keys():
                found[self._lanes[place]] = found.get(self._lanes[place], 0) + met[place]
            if not self._pass_lanes(list(found.items()), slices_only=phases.keys() == {"X"}):
                return None
        return move_arg_ids(moved, offset) if self._patcher.moves_arg_ids else moved

    def _move_times(self, texts: list[bytes], checksum: int) -> list[bytes] | None:
        column = b"[%b]" % b",".join(texts)
        shift = self._patcher.shift_ns
        times = parse_column_us(column)
        if times is None or sum(times) & SUM_MASK != checksum or min(times) < self._patcher.least_ns:
            return None
        if max(times) + shift > self._patcher.most_ns:
            return None
        if shift == 0 and have_three_decimals(column):
            return texts
        return format_all_us([time + shift for time in times] if shift else times)[1:-1].split(b",")

    def _move_places(self, places: list[bytes]) -> list[bytes] | None:
        known = self._places
        try:
            return [known[place] for place in places]
        except KeyError:
            pass
        if len(known) > _MAX_PLACES:
            known.clear()
            self._lanes.clear()
        for place in set(places).difference(known):
            match = _PLACE_PARTS.fullmatch(place)
            found = match and self._patcher.place(decode_json(match[2]), decode_json(match[4]))
            if not match or not found:
                return None
            pid, tid = found
            if not isinstance(tid, int):
                self._lanes[place] = tid
                tid = tid.tid
            known[place] = b'pid"%b%d%b%d%b' % (match[1], pid, match[3], tid, place[match.end(4) :])
        return [known[place] for place in places]

    @staticmethod
    def _pass_lanes(found: list[tuple[Lanes, int]], *, slices_only: bool) -> bool:
        """Pass by so many slices of tracks of which some leave; returns whether none of these does."""
        if not found:
            return True
        # The number of slices is that of the events only where there is nothing else.
        if not slices_only or not all(lanes.stay(count) for lanes, count in found):
            return False
        for lanes, count in found:
            lanes.skip(count)
        return True


def _make_core(patcher: Patcher) -> _merge.Patcher | None:
    if core.merge is None:
        return None
    try:
        made: _merge.Patcher = core.merge.Patcher(
            patcher.shift_ns, patcher.least_ns, patcher.most_ns, patcher.offset, patcher.moves_arg_ids
        )
    except OverflowError:
        # Beyond 64 bits, where no time of the file has a place.
        return None
    return made


def _take_out_metadata(text: bytes, count: int, others: int) -> tuple[bytes, list[Event]] | None:
    """Return a run without the metadata in it, and that metadata; None where events do not stand on lines of their own.

    Args:
        text: The run.
        count: How many of its events are metadata.
        others: How many are not.
    """
    if text.count(b"\n") != count + others - 1:
        return None
    rest: list[bytes] = []
    lines: list[bytes] = []
    after = 0
    at = text.find(_METADATA_SIGN)
    while at >= 0:
        start, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at) + 1 or len(text)
        rest.append(text[after:start])
        lines.append(text[start:end].rstrip(b",\n"))
        after = end
        at = text.find(_METADATA_SIGN, end)
    rest.append(text[after:])
    try:
        events = decode_run(b",".join(lines))
    except ValueError:
        return None
    if len(events) != count or any(event.ph != METADATA for event in events):
        return None
    return b"".join(rest).rstrip(b",\n"), events


def _move_flow_ids(text: bytes, offset: int, flows: int) -> bytes | None:
    if not flows:
        return text
    pieces = _FLOW_ID.split(text)
    ids = pieces[2::3]
    if len(ids) != flows or None in ids:
        return None
    pieces[2::3] = add_to_column(ids, offset)
    return b"".join(pieces)
