"""The metadata of a merged trace: before its events, after the events of each rank, and at its end.

The merge decisions, such as the numbering of pids and the clocks, come before the events. The names of a rank, and the
facts for a further merge, come after its events. Traces merged before format version 2 have all metadata before the
events, with one to several kB per input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.stack_frames import STACK_FRAMES
from tracekit.formats.trace_event import encode_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_HEAD_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a head that is read."""

MERGED_KEY: Final = "tracekit"
"""The key of the object form with most of the metadata."""

PROCESS_EVENT: Final = "tracekit_process"
"""Metadata after the events of a rank: the identity of a process and its threads before the merge."""

INPUT_EVENT: Final = "tracekit_input"
"""Metadata after the events of a rank: the header of an input."""

END_EVENT: Final = "tracekit_merge_end"
"""The last event."""

TABLE_EVENTS: Final = frozenset({PROCESS_EVENT, INPUT_EVENT, END_EVENT})
"""Metadata that each merge writes again."""

TOTALS_KEY: Final = "tracekitTotals"
"""The key after the events with the totals over all events."""

MAX_VALUE_BYTES: Final = 4096
"""Maximum JSON size of a header value of an input that a merged trace keeps."""

MAX_KEYS: Final = 64
"""Maximum number of such values."""

_INFO: Final = "distributedInfo"
# Keys that the merged trace has in another form.
_MERGED_KEYS: Final = frozenset(
    {"traceEvents", "deviceProperties", "displayTimeUnit", "schemaVersion", "tracekit", STACK_FRAMES}
)


class RankOfPid(Mapping[Any, int]):
    """The ranks of pids that are numbered ``rank * stride + 1, + 2 ...``.

    Iterating yields one pid of each rank.

    Args:
        ranks: The ranks, as (first, last) of each range.
    """

    __slots__ = ("_ranks", "stride")

    def __init__(self, stride: int, ranks: Sequence[tuple[int, int]]) -> None:
        self.stride = stride
        self._ranks = ranks

    def __getitem__(self, pid: Any) -> int:
        if type(pid) is int:
            rank = pid // self.stride
            if any(first <= rank <= last for first, last in self._ranks):
                return rank
        raise KeyError(pid)

    def __iter__(self) -> Iterator[int]:
        return (rank * self.stride + 1 for first, last in self._ranks for rank in range(first, last + 1))

    def __len__(self) -> int:
        return sum(last + 1 - first for first, last in self._ranks)


def merge_decisions(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge decisions in the header of a merged trace; empty if they are damaged."""
    own = header.get(MERGED_KEY)
    merge = own.get("merge") if isinstance(own, dict) else None
    return merge if isinstance(merge, dict) else {}


def merged_ranks(header: Mapping[str, Any]) -> Mapping[Any, int] | None:
    """Return the rank of each pid of a merged trace, as far as its header contains it; None for any other trace."""
    own = header.get(MERGED_KEY)
    if not isinstance(own, dict) or own.keys().isdisjoint(("merge", "processes")):
        return None
    merge = merge_decisions(header)
    if "pid_stride" in merge:
        stride, rows = merge["pid_stride"], merge.get("ranks")
        if type(stride) is not int or stride < 1 or not isinstance(rows, list):
            return {}
        ranks = [
            (row[0], row[1])
            for row in rows
            if isinstance(row, list) and len(row) == 2 and all(type(end) is int and 0 <= end < 2**32 for end in row)
        ]
        return RankOfPid(stride, ranks)
    table = own.get("processes")
    return {
        entry["pid"]: entry["rank"]
        for entry in (table if isinstance(table, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("pid"), int) and isinstance(entry.get("rank"), int)
    }


def truncate_header(header: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the part of an input's header that a merged trace keeps, and the names of the other keys.

    Long values are dropped: a log, a whole configuration or the process groups of thousands of ranks would make the
    head too large for readers. If ``distributedInfo`` is too long, its short values, such as rank and backend, are
    kept.
    """
    kept: dict[str, Any] = {}
    left: list[str] = []
    for key, value in header.items():
        if key in _MERGED_KEYS:
            continue
        long: list[str] = []
        if key == _INFO and isinstance(value, dict) and _is_long(value):
            long = [name for name, item in value.items() if _is_long(item)]
            value = {name: item for name, item in value.items() if name not in long}  # noqa: PLW2901
        if len(kept) < MAX_KEYS and not _is_long(value):
            kept[key] = value
            left += [f"{key}.{name}" for name in long]
        else:
            left.append(key)
    return kept, left


def _is_long(value: Any) -> bool:
    return not isinstance(value, (int, float)) and len(encode_json(value)) > MAX_VALUE_BYTES
