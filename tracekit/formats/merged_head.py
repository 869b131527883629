"""The metadata of a merged trace: before its events, after those of each rank, and at its end.

Before the events stand the decisions: how pids are numbered, and the clocks. After the events of a rank follow its
names and the facts for a further merge. Traces that were merged before format version 2 have all of that before the
events, in one to some kB for each input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.stack_frames import STACK_FRAMES
from tracekit.formats.trace_event import encode_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "END_EVENT",
    "INPUT_EVENT",
    "MAX_HEAD_BYTES",
    "MAX_KEYS",
    "MAX_VALUE_BYTES",
    "MERGED_KEY",
    "PROCESS_EVENT",
    "TABLE_EVENTS",
    "TOTALS_KEY",
    "RankOfPid",
    "merge_decisions",
    "merged_ranks",
    "truncate_header",
]

MAX_HEAD_BYTES: Final = 64 * 1024 * 1024
"""A head that is larger is not read."""

MERGED_KEY: Final = "tracekit"
"""The key of the object form that holds most of it."""

PROCESS_EVENT: Final = "tracekit_process"
"""Metadata behind the events of a rank: what a process and its threads were before the merge."""

INPUT_EVENT: Final = "tracekit_input"
"""Metadata behind the events of a rank: what an input says about itself."""

END_EVENT: Final = "tracekit_merge_end"
"""The last event."""

TABLE_EVENTS: Final = frozenset({PROCESS_EVENT, INPUT_EVENT, END_EVENT})
"""Metadata that a merge writes anew."""

TOTALS_KEY: Final = "tracekitTotals"
"""The key behind the events that holds what only all of them tell."""

MAX_VALUE_BYTES: Final = 4096
"""Maximum size, as JSON, of a value beside the events of an input that a merged trace keeps."""

MAX_KEYS: Final = 64
"""Maximum number of such values."""

_INFO: Final = "distributedInfo"
# What the merged trace has in another form.
_MERGED_KEYS: Final = frozenset(
    {"traceEvents", "deviceProperties", "displayTimeUnit", "schemaVersion", "tracekit", STACK_FRAMES}
)


class RankOfPid(Mapping[Any, int]):
    """The ranks of pids that are numbered ``rank * stride + 1, + 2 ...``.

    Iterating yields one pid of each rank.

    Args:
        stride: How far apart the pids of two ranks are.
        ranks: The ranks, as (first, last) of each row of them.
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
    """Return what the header of a merged trace says of how it was merged; nothing where that is damaged."""
    own = header.get(MERGED_KEY)
    merge = own.get("merge") if isinstance(own, dict) else None
    return merge if isinstance(merge, dict) else {}


def merged_ranks(header: Mapping[str, Any]) -> Mapping[Any, int]:
    """Return the rank of each pid of a merged trace, as far as its header has it."""
    own = header.get(MERGED_KEY)
    if not isinstance(own, dict):
        return {}
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
    """Return the keys and values of the header of an input that a merged trace keeps, and the names of the other keys.

    It leaves out long values: a log, a whole configuration or the process groups of thousands of ranks would make its head so
    large that no reader takes it. Of ``distributedInfo`` that is too long, it keeps what is short, such as rank and backend.
    """
    kept: dict[str, Any] = {}
    left: list[str] = []
    for key, value in header.items():
        if key in _MERGED_KEYS:
            continue
        short, long = _short_part(value) if key == _INFO else (value, [])
        if len(kept) < MAX_KEYS and not _is_long(short):
            kept[key] = short
            left += [f"{key}.{name}" for name in long]
        else:
            left.append(key)
    return kept, left


def _short_part(value: Any) -> tuple[Any, list[str]]:
    """Return a value without what is long in it, and the names of that."""
    if not isinstance(value, dict) or not _is_long(value):
        return value, []
    long = [name for name, item in value.items() if _is_long(item)]
    return {name: item for name, item in value.items() if name not in long}, long


def _is_long(value: Any) -> bool:
    return not isinstance(value, (int, float)) and len(encode_json(value)) > MAX_VALUE_BYTES
