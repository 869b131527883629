"""Match the collectives of two ranks: find which of one rank is which of the other.

Sequence numbers decide where traces have them. Elsewhere two ranks may have recorded different parts of the run, so the k-th
collective of one is not the k-th of the other. Then every pair that could be one collective (same step of the profiler, kind,
group and sizes) votes for the offset between its ends. The offset with most votes within the least time wins, unless another
one has half as many votes: by a period of the training loop, or by chance.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from tracekit.traces.collectives.collector import Collective

    Key = Callable[[Collective], Hashable]
    Ends = dict[Hashable, list[tuple[int, int]]]
    Pairs = list[tuple[Collective, Collective]]

MIN_NUMBERED: Final = 3
MIN_VOTES: Final = 4

_WIDTHS_NS: Final = (20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000)
_NEAR_NS: Final = 100_000
_TIMES_CHANCE: Final = 8
_RIVAL_WIDTHS: Final = 8
_SHARE: Final = 0.5
_MAX_VOTES: Final = 20_000
_MAX_DRIFT_VOTES: Final = 4_000
_MAX_RATES: Final = 200
_MIN_VOTERS: Final = 20
_MAX_STRETCHES: Final = 8
_STRETCH_NS: Final = 10_000_000_000
"""Within a stretch, clocks that drift apart by 100 ppm still vote within the largest width."""
_MAX_DRIFT: Final = 200e-6


def match(ours: Sequence[Collective], theirs: Sequence[Collective], *, min_numbered: int = MIN_NUMBERED) -> Pairs | str:
    """Find the pairs of one collective in the traces of two ranks of a process group, or the reason why none can be trusted.

    Both are the synchronising collectives of the group in the order of their ends, which is also that of the pairs.
    ``min_numbered`` is the smallest number of pairs with equal sequence numbers that is trusted.
    """
    if not ours or not theirs:
        return "no collectives of a process group of both"
    our_numbered = [one for one in ours if one.sequence is not None]
    their_numbered = [one for one in theirs if one.sequence is not None]
    if our_numbered and their_numbered:
        pairs = _by_number(our_numbered, their_numbered, min_numbered)
        if not isinstance(pairs, str) or (len(our_numbered), len(their_numbered)) == (len(ours), len(theirs)):
            return pairs
    if all(one.step is not None for one in (*ours, *theirs)):
        pairs = _by_vote(ours, theirs, lambda one: (one.step, one.label))
        if not isinstance(pairs, str):
            return pairs
    return _by_vote(ours, theirs, lambda one: one.label)


def match_near(ours: Sequence[Collective], theirs: Sequence[Collective], within_ns: int) -> Pairs:
    """Find the pairs as `match`, where the times of both are on one clock already, up to ``within_ns``."""
    if ours and theirs and all(one.sequence is not None for one in (*ours, *theirs)):
        pairs = _by_number(ours, theirs, 1)
        return [] if isinstance(pairs, str) else pairs
    ends = _ends(theirs, lambda one: one.label)
    return _follow(ours, theirs, lambda one: one.label, ends, 0, within_ns + _NEAR_NS, len(ours) // 2) if ours else []


def _by_number(ours: Sequence[Collective], theirs: Sequence[Collective], minimum: int) -> Pairs | str:
    def once(collectives: Sequence[Collective]) -> dict[tuple[str, int | None], Collective]:
        numbered = [((one.label.kind, one.sequence), one) for one in collectives]
        counts = Counter(number for number, _ in numbered)
        return {number: one for number, one in numbered if counts[number] == 1}

    others = once(theirs)
    pairs = [(one, others[number]) for number, one in once(ours).items() if number in others]
    if len(pairs) < minimum:
        return f"only {len(pairs)} collectives with the same sequence number, {minimum} are needed"
    return pairs


def _by_vote(ours: Sequence[Collective], theirs: Sequence[Collective], key: Key) -> Pairs | str:
    ends = _ends(theirs, key)
    reason = ""
    for first, last in _stretches(ours, ends, key):
        found = _elect(ours[first:last], ends, key)
        if not isinstance(found, str):
            return _follow(ours, theirs, key, ends, *found, (first + last) // 2)
        reason = reason or found
    for rate in _rates(ours, ends, key):
        found = _elect(ours, ends, key, rate, _WIDTHS_NS[-2:])
        if not isinstance(found, str):
            return _follow(ours, theirs, key, ends, *found, len(ours) // 2, rate)
    return reason


def _rates(ours: Sequence[Collective], ends: Ends, key: Key) -> Iterator[float]:
    """Yield the drifts to try where the collectives are few and long apart, the smallest first."""
    span_ns = ours[-1].end_ns - ours[0].end_ns
    if span_ns > _STRETCH_NS and sum(len(ends.get(key(one), ())) for one in ours) <= _MAX_DRIFT_VOTES:
        step = _WIDTHS_NS[-1] / span_ns
        for number in range(1, min(round(_MAX_DRIFT / step) + 1, _MAX_RATES)):
            yield from (number * step, -number * step)


def _ends(collectives: Sequence[Collective], key: Key) -> Ends:
    """Return the ends of the collectives of each key in order, each with its place."""
    ends: Ends = {}
    for place, one in enumerate(collectives):
        ends.setdefault(key(one), []).append((one.end_ns, place))
    return ends


def _stretches(ours: Sequence[Collective], ends: Ends, key: Key) -> Iterator[tuple[int, int]]:
    """Yield ranges of collectives that vote together: the middle ones, then short stretches for clocks that drift."""
    votes = [len(ends.get(key(one), ())) for one in ours]
    first, last = _around(len(ours) // 2, votes)
    yield first, last
    if ours[last - 1].end_ns - ours[first].end_ns <= _STRETCH_NS:
        return
    times = [one.end_ns for one in ours]
    starts = [bisect_left(times, time) for time in range(times[0], times[-1] + 1, _STRETCH_NS)]
    ranges = [(start, end) for start, end in pairwise([*starts, len(ours)]) if end - start >= MIN_VOTES]
    ranges.sort(key=lambda found: (-min(found[1] - found[0], 100), abs(sum(found) - len(ours))))
    for start, end in ranges[:_MAX_STRETCHES]:
        low, high = _around((start + end) // 2, votes)
        yield max(start, low), min(end, high)


def _around(middle: int, votes: list[int]) -> tuple[int, int]:
    """Return the range around a place that has about `_MAX_VOTES` votes, and `_MIN_VOTERS` collectives."""
    first = last = middle
    count = 0
    while (count < _MAX_VOTES or last - first < _MIN_VOTERS) and (first > 0 or last < len(votes)):
        if last < len(votes):
            count += votes[last]
            last += 1
        if first > 0:
            first -= 1
            count += votes[first]
    return first, last


def _elect(
    ours: Sequence[Collective], ends: Ends, key: Key, rate: float = 0.0, widths_ns: Sequence[int] = _WIDTHS_NS
) -> tuple[int, int] | str:
    """Return the offset that most pairs agree on and within which width, or the reason for a refusal.

    ``rate`` is the drift between the clocks, in ns per ns; the offset is the one in the middle of ``ours``. ``widths_ns`` are
    the largest distances between votes that agree, smallest first.
    """
    possible = sum(min(count, len(ends.get(label, ()))) for label, count in Counter(map(key, ours)).items())
    if possible < MIN_VOTES:
        return f"only {possible} collectives could be the same, {MIN_VOTES} are needed"
    middle_ns = ours[len(ours) // 2].end_ns
    votes = sorted(
        end - one.end_ns - (round(rate * (one.end_ns - middle_ns)) if rate else 0)
        for one in ours
        for end, _ in ends.get(key(one), ())
    )
    span_ns = max(votes[-1] - votes[0], ours[-1].end_ns - ours[0].end_ns)
    why = f"of {possible} collectives that could be the same, too few agree on an offset"
    if _densest(votes, widths_ns[-1])[0] < max(MIN_VOTES, _SHARE * possible):
        return why  # within a smaller width there are not more
    for width_ns in widths_ns:
        count, at = _densest(votes, width_ns)
        # As many as these lie within any such width by chance; with some times more, hardly any time.
        by_chance = len(votes) * width_ns / max(span_ns, width_ns)
        if count < max(MIN_VOTES + _TIMES_CHANCE * by_chance, _SHARE * possible):
            continue
        # By chance, a wrong offset may fit better than the true one. The votes of the true one are then somewhat
        # farther apart.
        wide_ns = min(_RIVAL_WIDTHS * width_ns, _WIDTHS_NS[-1])
        low = votes[at]
        others = votes[: bisect_left(votes, low - wide_ns)] + votes[bisect_left(votes, low + width_ns + wide_ns + 1) :]
        if 2 * _densest(others, wide_ns)[0] > count:
            why = "their collectives fit at more than one offset"
            continue
        return votes[at + count // 2], width_ns
    return why


def _densest(votes: list[int], width_ns: int) -> tuple[int, int]:
    """Return the largest number of sorted votes that lie within a width, and the place of the first of these."""
    best, at = 0, 0
    for end, vote in enumerate(votes):
        # One more than the best so far fits, or the window just moves on: each vote is looked at once.
        if vote - votes[end - best] <= width_ns:
            at = end - best
            best += 1
    return best, at


def _follow(
    ours: Sequence[Collective],
    theirs: Sequence[Collective],
    key: Key,
    ends: Ends,
    offset_ns: int,
    width_ns: int,
    middle: int,
    drift: float = 0.0,
) -> Pairs:
    """Pair all with the known offset, from the middle outwards, and follow the drift."""
    taken: set[int] = set()
    pairs: list[tuple[int, int]] = []
    begun_ns = ours[middle].end_ns
    for way in (range(middle, len(ours)), range(middle - 1, -1, -1)):
        offset, rate, seen_ns = offset_ns, drift, begun_ns
        for mine in way:
            now_ns = ours[mine].end_ns
            predicted = offset + round(rate * (now_ns - seen_ns))
            tolerance = 2 * width_ns + round(abs(now_ns - seen_ns) * _MAX_DRIFT)
            near = _nearest(ends.get(key(ours[mine]), []), now_ns + predicted)
            if near is None or abs(near[0] - now_ns - predicted) > tolerance or near[1] in taken:
                continue
            taken.add(near[1])
            pairs.append((mine, near[1]))
            # A part of the way only: a single end may be late.
            offset, seen_ns = predicted + (near[0] - now_ns - predicted) // 4, now_ns
            if abs(now_ns - begun_ns) * _MAX_DRIFT > width_ns:
                rate = max(-_MAX_DRIFT, min((offset - offset_ns) / (now_ns - begun_ns), _MAX_DRIFT))
    return [(ours[mine], theirs[place]) for mine, place in sorted(pairs)]


def _nearest(ends: list[tuple[int, int]], expected: int) -> tuple[int, int] | None:
    at = bisect_left(ends, (expected, 0))
    return min(ends[max(at - 1, 0) : at + 1], key=lambda end: abs(end[0] - expected), default=None)
