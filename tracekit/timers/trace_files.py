"""read_timers: the timers of all ranks from the traces that they have written, without communication between the ranks."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_paths
from tracekit.errors import TraceFormatError
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.rank_trace import BASE_TIME_KEY, METADATA_EVENT
from tracekit.formats.trace_event import UNSET, Event, decode_dict, decode_text, time_field
from tracekit.statistics import DurationStatistics
from tracekit.storage import expand, without_secrets
from tracekit.timers.table import TimerTable
from tracekit.timers.timer import NESTED, TIMER

if TYPE_CHECKING:
    from tracekit.arguments import StrPath

_SUFFIXES: Final = (".json", ".json.gz")


def read_timers(*paths: StrPath) -> TimerTable:
    """Return the statistics of the timers of all ranks, from their rank traces.

    Every slice of category "timer" counts, on whatever thread or in whatever child process of the rank, and over all files and
    attempts of a rank. Slices that had not ended when the recording did are left out. The times are those of the trace: of the
    host, and of the batches that the schedule has recorded.

    Args:
        paths: Rank traces, folders or globs of them, or URLs. Other files in a folder are skipped.

    Raises:
        StorageError: Nothing is there.
        TraceFormatError: A file that was named is not a rank trace (give the ranks' own traces, not merged ones), or no file of a
            folder is one.
    """
    ranks: defaultdict[int, _Calls] = defaultdict(_Calls)
    for name in check_paths("paths", paths):
        files = expand(name, _SUFFIXES)
        if not sum(_read(file, ranks) for file in files):
            raise TraceFormatError(
                without_secrets(name),
                "this is no rank trace of tracekit, so it is not known whose timers these are; give the files that "
                "JSONTraceHandler has written"
                if len(files) == 1
                else "the files hold no rank trace of tracekit",
            )
    return TimerTable({rank: ranks[rank].statistics() for rank in sorted(ranks)})


class _Calls:
    """The calls of the timers of one rank."""

    def __init__(self) -> None:
        self._statistics: defaultdict[str, DurationStatistics] = defaultdict(DurationStatistics)
        self._first_ns: dict[str, int] = {}  # an inner slice ends, and is written, before its outer one
        # Start and end of slices with two events, by process, thread and timer. A slice that is cut by the end of a file
        # continues in the next one.
        self.pieces: defaultdict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)

    def add(self, name: str, calls: list[tuple[int, int]]) -> None:
        """Add the calls of a timer, by start and end."""
        self._statistics[name].add_all([end_ns - start_ns for start_ns, end_ns in calls])
        first_ns = min(calls)[0]
        self._first_ns[name] = min(first_ns, self._first_ns.get(name, first_ns))

    def statistics(self) -> dict[str, DurationStatistics]:
        """Join the slices that continue in another file, and return the statistics by timer, the first one first."""
        for (*_, name), pieces in self.pieces.items():
            joined: list[tuple[int, int]] = []
            for start_ns, end_ns in sorted(pieces):
                continues = bool(joined) and joined[-1][1] == start_ns
                joined.append((joined.pop()[0] if continues else start_ns, end_ns))
            self.add(name, joined)
        return {name: self._statistics[name] for name in sorted(self._first_ns, key=self._first_ns.__getitem__)}


def _read(path: str, ranks: defaultdict[int, _Calls]) -> bool:
    """Read the calls in a file; return whether it is a rank trace."""
    metadata: dict[str, Any] | None = None
    opened: defaultdict[Any, list[tuple[str | None, int | None]]] = defaultdict(list)  # by thread
    with TraceReader(path) as reader:
        for run in reader.runs():
            metadata = metadata or _metadata_of(run)
            if metadata is None:
                return False
            rank, base_ns = ranks[metadata["rank"]], metadata[BASE_TIME_KEY]
            process = [metadata.get(key) for key in ("host", "pid", "start_ticks", "attempt")]
            calls: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
            for event in run:
                time_ns = time_field(event.ts)
                if event.ph == "B":
                    opened[event.tid].append((_timer_of(event), time_ns))
                elif event.ph == "E" and opened[event.tid]:
                    name, start_ns = opened[event.tid].pop()
                    if name is not None and start_ns is not None and time_ns is not None:
                        key = (*process, event.tid, name)
                        rank.pieces[key].append((base_ns + start_ns, base_ns + time_ns))
                elif event.ph == "X" and (name := _timer_of(event)) is not None:
                    duration_ns = time_field(event.dur)
                    if time_ns is not None and duration_ns is not None and duration_ns >= 0:
                        calls[name].append((base_ns + time_ns, base_ns + time_ns + duration_ns))
            for name, found in calls.items():
                rank.add(name, found)
    return metadata is not None


def _metadata_of(run: list[Event]) -> dict[str, Any] | None:
    """Return the metadata of a rank trace from its first events; None for other files."""
    for event in run:
        if event.ph == "M" and decode_text(event.name) == METADATA_EVENT:
            metadata = decode_dict(event.args)
            if isinstance(metadata.get("rank"), int):
                return metadata if isinstance(metadata.get(BASE_TIME_KEY), int) else {**metadata, BASE_TIME_KEY: 0}
    return None


def _timer_of(event: Event) -> str | None:
    """Return the timer's name if a slice is a call of one; None for other slices, and for calls within another call."""
    if event.cat is UNSET or TIMER.encode() not in bytes(event.cat):
        return None
    categories = decode_text(event.cat).split(",")
    return decode_text(event.name) if TIMER in categories and NESTED not in categories else None
