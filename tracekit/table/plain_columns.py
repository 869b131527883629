"""The plain Python equivalent of the core's ``Columns``: the reference that it is tested against."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Any, Final

from tracekit.formats.kineto import GPU_CATEGORIES
from tracekit.traces.pairs import OpenSlices

NO_VALUE: Final = -(2**63)  # NULL in a column of integers

NO_BEGIN: Final = -1  # the number of the begin of a whole slice

MAX_BEGUN: Final = 200_000
"""The maximum number of slices, and of async slices, that have begun and not ended; further ones are left out."""

COLUMNS: Final = {
    "events": (
        *("track", "category", "name", "phase", "start_ns", "duration_ns", "depth", "parent", "self_ns", "step_index"),
        *("correlation", "flow", "stream", "device", "bytes", "process_group"),
    ),
    "counters": ("track", "name", "series", "time_ns", "value"),
    "flows": ("track", "phase", "time_ns", "category", "name", "id"),
    "args": ("id", "args"),
}
"""The columns of the tables of a file, as the core has them."""

DEVICE_CATEGORIES: Final = tuple(sorted(category.strip(b'"') for category in GPU_CATEGORIES))
"""The categories of events on a device."""

NO_ARGS, ALL_ARGS, KEY_ARGS = range(3)
"""Which events have a row in the table ``args``: none, all, or those with `has_key_args`."""

_KEY_NAMES: Final = (b"nccl", b"gloo:", b"record_param_comms", b"[memory]", b"tracekit.gap")
_MAX_OPEN: Final = 512
_MAX_SEARCH: Final = 100
_MAX_LAUNCHES: Final = 4 * 1024 * 1024


def has_key_args(category: bytes | None, name: bytes, args: bytes | None) -> bool:
    """Return True for events whose arguments answer questions: collectives, memory, and gaps of a recording."""
    return name.startswith(_KEY_NAMES) or (category in DEVICE_CATEGORIES and b'"Collective name"' in (args or b""))


class PlainColumns:
    """The plain equivalent of the core's ``Columns``: the same methods, and `rows`."""

    def __init__(self, *, keeps_args: int = NO_ARGS) -> None:
        self._keeps_args = keeps_args
        self._tables: dict[str, list[list[Any]]] = {name: [] for name in COLUMNS}
        self._tracks: dict[tuple[bytes, bytes], int] = {}
        self._slices: list[tuple[int, int, int, int, int]] = []  # start, -end, number of the begin, row, track
        self._launches: dict[int, int] = {}
        self._begun: dict[int, OpenSlices[tuple[bytes, int]]] = {}
        self._begins = 0

    def track(self, pid: bytes, tid: bytes, /) -> int:
        """Return the number of a track."""
        return self._tracks.setdefault((pid, tid), len(self._tracks))

    def tracks(self) -> list[tuple[bytes, bytes]]:
        """Return pid and tid of each track, as JSON."""
        return list(self._tracks)

    def add_event(self, *row: Any) -> int:
        """Add a row, and return its number; the arguments are those of the core's method."""
        track, category, name, phase, start_ns, duration_ns, correlation, *others, args, nests, begin = row
        rows = self._tables["events"]
        number = len(rows)
        if nests:
            self._slices.append((start_ns, -start_ns - duration_ns, begin, number, track))
            is_launch = correlation not in (NO_VALUE, -1) and category not in DEVICE_CATEGORIES
            if is_launch and len(self._launches) < _MAX_LAUNCHES:
                self._launches.setdefault(correlation, start_ns)
        late = [NO_VALUE] * 4
        rows.append([track, category, name, phase, start_ns, duration_ns, *late, correlation, *others])
        is_kept = self._keeps_args == ALL_ARGS or (self._keeps_args == KEY_ARGS and has_key_args(category, name, args))
        if is_kept and args is not None:
            self._tables["args"].append([number, args])
        return number

    def add_slices(self, tracks: bytes, starts_ns: bytes, durations_ns: bytes, /) -> None:
        """Add slices without a name; each argument is an array of 64-bit integers."""
        none = (NO_VALUE,) * 5
        for track, start, duration in zip(*(array("q", one) for one in (tracks, starts_ns, durations_ns)), strict=True):
            self.add_event(track, None, b"", ord("X"), start, duration, *none, None, None, True, NO_BEGIN)

    def begin(self, track: int, start_ns: int, name: bytes, category: bytes, text: bytes, /) -> bool:
        """Begin a slice; return False if too many have begun."""
        del start_ns
        if sum(map(len, self._begun.values())) >= MAX_BEGUN:
            return False
        self._begun.setdefault(track, OpenSlices(_MAX_SEARCH)).begin(name, category, (text, self._begins))
        self._begins += 1
        return True

    def end(self, track: int, name: bytes, category: bytes, /) -> tuple[bytes, int] | None:
        """End the innermost slice that a name and category fit, and return its event and the number of its begin."""
        begun = self._begun.get(track)
        return None if begun is None else begun.end(name, category)

    def begun(self) -> list[tuple[int, bytes]]:
        """Return the track and event of each slice that has not ended."""
        return [(track, text) for track, begun in sorted(self._begun.items()) for text, _ in begun.slices]

    def add_counter(self, track: int, name: bytes, series: bytes, time_ns: int, value: float, /) -> None:
        """Add a value of a counter."""
        self._tables["counters"].append([track, name, series, time_ns, value])

    def add_flow(
        self, track: int, phase: bytes, time_ns: int, category: bytes | None, name: bytes, id_: int, /
    ) -> None:
        """Add an end or a step of a flow."""
        self._tables["flows"].append([track, phase, time_ns, category, name, id_])

    def finish(self, groups: bytes, steps: bytes, /) -> dict[str, int]:
        """Nest the slices and find the steps of rows; return the number of rows of each table."""
        self._nest()
        self._find_steps(array("q", groups), array("q", steps))
        return {name: len(rows) for name, rows in self._tables.items()}

    def span(self) -> tuple[int, int] | None:
        """Return the least start of the events and their latest end; None without events."""
        start, duration = COLUMNS["events"].index("start_ns"), COLUMNS["events"].index("duration_ns")
        spans = [(row[start], row[start] + max(0, row[duration])) for row in self._tables["events"]]
        return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None

    def used(self) -> dict[str, list[str]]:
        """Return the columns of each table that are not NULL in all rows; those that are filled last count as such."""
        late = ("depth", "parent", "self_ns", "step_index")
        return {
            name: [
                column
                for at, column in enumerate(columns)
                if self._tables[name]
                and (column in late or any(row[at] not in (None, NO_VALUE) for row in self._tables[name]))
            ]
            for name, columns in COLUMNS.items()
        }

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Return the rows of a table: NULL is None, and texts are strings."""
        return [tuple(_cell(value) for value in row) for row in self._tables[table]]

    def _nest(self) -> None:
        depth, parent, own = (COLUMNS["events"].index(name) for name in ("depth", "parent", "self_ns"))
        rows = self._tables["events"]
        open_: dict[int, list[list[int]]] = {}  # of each track: [end, covered until, row]
        for start, minus_end, _, number, track in sorted(self._slices):
            row, end = rows[number], -minus_end
            stack = open_[track] = [slice_ for slice_ in open_.get(track, ()) if slice_[0] > start]
            row[depth], row[own] = 0, end - start
            for outer in reversed(stack):
                if outer[0] < end:
                    continue
                above = rows[outer[2]]
                row[depth], row[parent] = above[depth] + 1, outer[2]
                above[own] -= max(0, end - max(start, outer[1]))
                outer[1] = max(end, outer[1])
                break
            if len(stack) < _MAX_OPEN:
                stack.append([end, start, number])

    def _find_steps(self, groups: array[int], steps: array[int]) -> None:
        spans = [tuple(steps[at : at + 4]) for at in range(0, len(steps), 4)]
        starts = [(group, start) for group, start, _, _ in spans]
        index, start_at = COLUMNS["events"].index("step_index"), COLUMNS["events"].index("start_ns")
        correlation = COLUMNS["events"].index("correlation")
        for row in self._tables["events"]:
            time = row[start_at]
            if row[1] in DEVICE_CATEGORIES:
                time = self._launches.get(row[correlation], time)
            group = groups[row[0]]
            at = bisect_right(starts, (group, time)) - 1
            if at >= 0 and spans[at][0] == group and time < spans[at][2]:
                row[index] = spans[at][3]


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8")
    return None if value == NO_VALUE else value
