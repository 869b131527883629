"""Which collective of one rank is which of another.

Where traces tell sequence numbers, these decide. Elsewhere two ranks may have recorded different parts of the run, so that
the k-th of one is not the k-th of the other. Then every pair that could be one collective (same step of the profiler, kind,
group and sizes) votes for the offset it stands for; the offset that most of them agree on, within the least time, is taken,
unless another one has half as many votes: with a period of its own, or by chance.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from tracekit.collectives.parts import Collective

    Key = Callable[[Collective], Hashable]

__all__ = ["match", "match_near"]

LEAST_NUMBERED: Final = 3
LEAST_VOTES: Final = 4

_WIDTHS_NS: Final = (20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000)
_NEAR_NS: Final = 100_000
_TIMES_CHANCE: Final = 8
_SHARE: Final = 0.5
_MOST_VOTES: Final = 100_000
_DRIFT_PPM: Final = 100


def match(ours: Sequence[Collective], theirs: Sequence[Collective]) -> list[tuple[Collective, Collective]] | str:
    """Find the pairs of one collective in the traces of two ranks of a process group.

    Args:
        ours: What synchronised the group in one trace, in the order of the ends.
        theirs: The same of the other.

    Returns:
        The pairs in that order; or, in words, why there are none that can be trusted.
    """
    if not ours or not theirs:
        return "no collectives of a process group of both"
    if all(one.sequence is not None for one in (*ours, *theirs)):
        return _by_number(ours, theirs)
    if all(one.step is not None for one in (*ours, *theirs)):
        pairs = _by_vote(ours, theirs, lambda one: (one.step, one.label))
        if not isinstance(pairs, str):
            return pairs
    return _by_vote(ours, theirs, lambda one: one.label)


def match_near(
    ours: Sequence[Collective], theirs: Sequence[Collective], within_ns: int
) -> list[tuple[Collective, Collective]]:
    """Find the pairs of one collective where the times of both are on one clock already.

    Args:
        ours: What synchronised the group in one trace, in the order of the ends.
        theirs: The same of the other.
        within_ns: How far the clocks can be apart.
    """
    if ours and theirs and all(one.sequence is not None for one in (*ours, *theirs)):
        pairs = _by_number(ours, theirs, least=1)
        return [] if isinstance(pairs, str) else pairs
    return _follow(ours, theirs, lambda one: one.label, 0, within_ns + _NEAR_NS, len(ours) // 2) if ours else []


def _by_number(
    ours: Sequence[Collective], theirs: Sequence[Collective], least: int = LEAST_NUMBERED
) -> list[tuple[Collective, Collective]] | str:
    def once(collectives: Sequence[Collective]) -> dict[Any, Collective]:
        counts = Counter(_number(one) for one in collectives)
        return {_number(one): one for one in collectives if counts[_number(one)] == 1}

    others = once(theirs)
    pairs = [(one, others[number]) for number, one in once(ours).items() if number in others]
    if len(pairs) < least:
        return f"only {len(pairs)} collectives with the same sequence number, {least} are needed"
    return pairs


def _number(one: Collective) -> tuple[str, int | None]:
    return one.label.kind, one.sequence


def _by_vote(
    ours: Sequence[Collective], theirs: Sequence[Collective], key: Key
) -> list[tuple[Collective, Collective]] | str:
    places: dict[Hashable, list[int]] = {}
    for place, one in enumerate(theirs):
        places.setdefault(key(one), []).append(place)
    first, last = _voters(ours, places, key)
    possible = sum((Counter(map(key, ours[first:last])) & Counter(map(key, theirs))).values())
    if possible < LEAST_VOTES:
        return f"only {possible} collectives could be the same, {LEAST_VOTES} are needed"
    votes = sorted(theirs[place].end_ns - one.end_ns for one in ours[first:last] for place in places.get(key(one), ()))
    why = f"of {possible} collectives that could be the same, too few agree on an offset"
    for width_ns in _WIDTHS_NS:
        count, at = _densest(votes, width_ns)
        # As many as these lie within any such width by chance; with some times more, hardly any time.
        by_chance = (
            len(votes) * width_ns / max(votes[-1] - votes[0], ours[last - 1].end_ns - ours[first].end_ns, width_ns)
        )
        if count < max(LEAST_VOTES + _TIMES_CHANCE * by_chance, _SHARE * possible):
            continue
        low = votes[at]
        others = [vote for vote in votes if not low - width_ns <= vote <= low + 2 * width_ns]
        if 2 * _densest(others, width_ns)[0] > count:
            why = "their collectives fit at more than one offset"
            continue
        return _follow(ours, theirs, key, votes[at + count // 2], width_ns, (first + last) // 2)
    return why


def _voters(ours: Sequence[Collective], places: dict[Hashable, list[int]], key: Key) -> tuple[int, int]:
    """Return which of ours vote: all, or as many from the middle as there is time for."""
    first = last = len(ours) // 2
    votes = 0
    while votes < _MOST_VOTES and (first > 0 or last < len(ours)):
        if last < len(ours):
            votes += len(places.get(key(ours[last]), ()))
            last += 1
        if first > 0:
            first -= 1
            votes += len(places.get(key(ours[first]), ()))
    return first, last


def _densest(votes: list[int], width_ns: int) -> tuple[int, int]:
    """Return how many votes lie within a width at most, and the first of these."""
    best, at, start = 0, 0, 0
    for end, vote in enumerate(votes):
        while vote - votes[start] > width_ns:
            start += 1
        if end - start + 1 > best:
            best, at = end - start + 1, start
    return best, at


def _follow(
    ours: Sequence[Collective], theirs: Sequence[Collective], key: Key, offset_ns: int, width_ns: int, middle: int
) -> list[tuple[Collective, Collective]]:
    """Pair all with the known offset, from the middle outwards, so that a drift can be followed."""
    ends: dict[Hashable, list[tuple[int, int]]] = {}
    for place, one in enumerate(theirs):
        ends.setdefault(key(one), []).append((one.end_ns, place))
    taken: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for way in (range(middle, len(ours)), range(middle - 1, -1, -1)):
        offset, seen_ns = offset_ns, ours[middle].end_ns
        for mine in way:
            expected = ours[mine].end_ns + offset
            tolerance = 2 * width_ns + abs(ours[mine].end_ns - seen_ns) * _DRIFT_PPM // 1_000_000
            near = _nearest(ends.get(key(ours[mine]), []), expected)
            if near is None or abs(near[0] - expected) > tolerance or near[1] in taken:
                continue
            taken.add(near[1])
            pairs.append((mine, near[1]))
            # A part of the way only: a single end may be late.
            offset += (near[0] - expected) // 4
            seen_ns = ours[mine].end_ns
    return [(ours[mine], theirs[place]) for mine, place in sorted(pairs)]


def _nearest(ends: list[tuple[int, int]], expected: int) -> tuple[int, int] | None:
    at = bisect_left(ends, (expected, 0))
    return min(ends[max(at - 1, 0) : at + 1], key=lambda end: abs(end[0] - expected), default=None)
