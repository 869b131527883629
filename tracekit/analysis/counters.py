"""Counters over time, in bounded memory: of each the least, the most and the mean of some dozens of equal times."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.event_fields import raw_number, time_field
from tracekit.formats.trace_event import decode_or_none

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.formats.trace_event import Event

__all__ = ["MOST_SERIES", "CounterCollector", "CounterPoint", "CounterSeries"]

MOST_SERIES: Final = 20_000
"""Further counters are left out, and that is said; each takes 2 kB."""

SPANS: Final = 64
_FIRST_SPAN_NS: Final = 1_000_000
_MOST_TIME_NS: Final = 2**61
_MOST_VALUE: Final = 1e300
_MOST_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class CounterPoint:
    """A counter in one of the times.

    Attributes:
        start_ns: When that begins.
        end_ns: When it ends.
        low: The least value in it.
        mean: The mean of its values.
        high: The largest value in it.
    """

    start_ns: int
    end_ns: int
    low: float
    mean: float
    high: float


class CounterSeries:
    """One number of a counter of one process. Its times are those of its file.

    Attributes:
        count: How many values there were.
        last: The value with the latest time.
    """

    __slots__ = ("_counts", "_highs", "_last_ns", "_lows", "_origin_ns", "_span_ns", "_sums", "_top", "count", "last")

    def __init__(self) -> None:
        self.count = 0
        self.last = 0.0
        self._last_ns = -_MOST_TIME_NS
        self._origin_ns, self._span_ns, self._top = 0, _FIRST_SPAN_NS, 0
        self._clear()

    def add(self, time_ns: int, value: float) -> None:
        """Take a value; times may come in any order."""
        if not self.count:
            self._origin_ns = time_ns
        self.count += 1
        if time_ns >= self._last_ns:
            self._last_ns, self.last = time_ns, value
        at = (time_ns - self._origin_ns) // self._span_ns
        while not 0 <= at < SPANS:
            if at < 0 and self._top - at < SPANS:
                self._shift(-at)
            else:
                self._widen()
            at = (time_ns - self._origin_ns) // self._span_ns
        self._top = max(self._top, at)
        self._join(at, 1, value, value, value)

    def points(self, base_ns: int) -> Iterator[CounterPoint]:
        """Yield the times in which there are values, in order.

        Args:
            base_ns: What the times of the file are relative to.
        """
        for at, count in enumerate(self._counts):
            if count:
                start_ns = base_ns + self._origin_ns + at * self._span_ns
                mean = self._sums[at] / count
                yield CounterPoint(start_ns, start_ns + self._span_ns, self._lows[at], mean, self._highs[at])

    def _clear(self) -> None:
        self._counts = array("q", bytes(8 * SPANS))
        self._sums, self._lows, self._highs = (array("d", bytes(8 * SPANS)) for _ in range(3))

    def _join(self, at: int, count: int, total: float, low: float, high: float) -> None:
        known = self._counts[at]
        self._lows[at] = min(self._lows[at], low) if known else low
        self._highs[at] = max(self._highs[at], high) if known else high
        self._counts[at] = known + count
        self._sums[at] += total

    def _shift(self, by: int) -> None:
        """Make room for earlier times."""
        self._origin_ns -= by * self._span_ns
        self._top += by
        self._counts = array("q", bytes(8 * by)) + self._counts[: SPANS - by]
        self._sums, self._lows, self._highs = (
            array("d", bytes(8 * by)) + column[: SPANS - by] for column in (self._sums, self._lows, self._highs)
        )

    def _widen(self) -> None:
        """Make two times one."""
        cells = list(zip(self._counts, self._sums, self._lows, self._highs, strict=True))
        self._span_ns *= 2
        self._top //= 2
        self._clear()
        for at, (count, total, low, high) in enumerate(cells):
            if count:
                self._join(at // 2, count, total, low, high)


class CounterCollector:
    """Collects the counters of one file.

    Args:
        most: How many series it may keep.

    Attributes:
        series: By process, name of the counter, and name of the number.
        left_out: How many values are of further series, or no finite numbers.
    """

    def __init__(self, most: int) -> None:
        self.series: dict[tuple[Any, str, str], CounterSeries] = {}
        self.left_out = 0
        self._most = most

    def take(self, event: Event) -> None:
        """Take in a counter event."""
        time_ns = time_field(event.ts)
        name, args = decode_or_none(event.name), decode_or_none(event.args)
        if time_ns is None or abs(time_ns) >= _MOST_TIME_NS or not isinstance(args, dict):
            self.left_out += 1
            return
        for key, value in args.items():
            # An integer may be too large for a double; what is no number compares as none.
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not -_MOST_VALUE < value < _MOST_VALUE:
                self.left_out += 1
                continue
            known = (raw_number(event.pid), str(name)[:_MOST_CHARACTERS], str(key)[:_MOST_CHARACTERS])
            series = self.series.get(known)
            if series is None:
                if len(self.series) >= self._most:
                    self.left_out += 1
                    continue
                series = self.series[known] = CounterSeries()
            series.add(time_ns, float(value))
