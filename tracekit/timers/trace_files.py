"""The timers of all ranks from the traces that they have written: the same table, without a word between the ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_paths
from tracekit.errors import TraceFormatError
from tracekit.formats.event_fields import raw_field, time_field
from tracekit.formats.rank_trace import BASE_TIME_KEY, METADATA_EVENT
from tracekit.formats.trace_event import UNSET, Event, decode_or_none
from tracekit.formats.trace_reader import TraceReader
from tracekit.statistics import DurationStatistics
from tracekit.storage import expand, without_secrets
from tracekit.timers.table import TimerTable
from tracekit.timers.timer import NESTED, TIMER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from msgspec import Raw, UnsetType

    from tracekit.arguments import StrPath

__all__ = ["read_timers"]

_SUFFIXES: Final = (".json", ".json.gz")
_AT_ONCE: Final = 4096


def read_timers(*paths: StrPath) -> TimerTable:
    """Return what the timers of all ranks have measured, from their rank traces.

    Every slice of category "timer" counts, on whatever thread or in whatever child process of the rank, and over all files and
    attempts of a rank. Slices that had not ended when the recording did are left out. The times are those of the trace: of the
    host, and of the batches that the schedule has recorded.

    Args:
        paths: Rank traces, folders or globs of them, or URLs. In a folder other files are passed over.

    Raises:
        StorageError: Nothing is there.
        TraceFormatError: A file that was named is no rank trace (give the ranks' own traces, not merged ones), or no file of a
            folder is one.
    """
    reading = _Reading()
    for name in check_paths("paths", paths):
        files = expand(name, _SUFFIXES)
        found = [reading.take(file) for file in files]
        if not any(found):
            raise TraceFormatError(
                without_secrets(name),
                "this is no rank trace of tracekit, so it is not known whose timers these are; give the files that "
                "JSONTraceHandler has written"
                if len(files) == 1
                else "the files hold no rank trace of tracekit",
            )
    return reading.finish()


@dataclass(slots=True)
class _File:
    """What is known of the file that is read."""

    rank: int
    process: tuple[Any, ...]
    base_ns: int
    # By thread, the innermost last: its timer (None for what is none), and its start.
    open: dict[Any, list[tuple[str | None, int | None]]] = field(default_factory=dict)


class _Reading:
    """Collects the calls of all files."""

    def __init__(self) -> None:
        self._ranks: dict[int, dict[str, DurationStatistics]] = {}
        self._names: dict[bytes, str] = {}
        self._durations: dict[tuple[int, str], list[int]] = {}
        self._first_ns: dict[tuple[int, str], int] = {}  # an inner slice ends, and is written, before its outer one
        # Slices that a file begins and ends with two events: one that is cut by the end of a file goes on in the next one.
        self._pieces: dict[tuple[Any, ...], list[tuple[int, int]]] = {}

    def take(self, path: str) -> bool:
        """Read a file; returns whether it is a rank trace."""
        with TraceReader(path) as reader:
            file: _File | None = None
            for run in reader.runs():
                if file is None:
                    file = _file_of(run)
                    if file is None:
                        return False
                    self._ranks.setdefault(file.rank, {})
                for event in run:
                    self._take_event(event, file)
        return file is not None

    def _take_event(self, event: Event, file: _File) -> None:
        if event.ph == "X":
            if _is_timer(event):
                start_ns, duration_ns = time_field(event.ts), time_field(event.dur)
                if start_ns is not None and duration_ns is not None and duration_ns >= 0:
                    self._add(file.rank, self._name(event.name), file.base_ns + start_ns, duration_ns)
        elif event.ph == "B":
            name = self._name(event.name) if _is_timer(event) else None
            file.open.setdefault(event.tid, []).append((name, time_field(event.ts)))
        elif event.ph == "E" and file.open.get(event.tid):
            name, start_ns = file.open[event.tid].pop()
            end_ns = time_field(event.ts)
            if name is not None and start_ns is not None and end_ns is not None:
                key = (file.rank, *file.process, event.tid, name)
                self._pieces.setdefault(key, []).append((file.base_ns + start_ns, file.base_ns + end_ns))

    def finish(self) -> TimerTable:
        """Put together what goes on from one file to the next; return the table."""
        for key, pieces in self._pieces.items():
            pieces.sort()
            start_ns, end_ns = pieces[0]
            for next_start_ns, next_end_ns in pieces[1:]:
                if next_start_ns != end_ns:
                    self._add(key[0], key[-1], start_ns, end_ns - start_ns)
                    start_ns = next_start_ns
                end_ns = next_end_ns
            self._add(key[0], key[-1], start_ns, end_ns - start_ns)
        for rank, name in self._durations:
            self._fold(rank, name)
        return TimerTable(
            {
                rank: {name: found[name] for name in sorted(found, key=lambda name: self._first_ns[rank, name])}
                for rank, found in sorted(self._ranks.items())
            }
        )

    def _add(self, rank: int, name: str, start_ns: int, duration_ns: int) -> None:
        durations = self._durations.setdefault((rank, name), [])
        first_ns = self._first_ns.get((rank, name))
        if first_ns is None or start_ns < first_ns:
            self._first_ns[rank, name] = start_ns
        durations.append(duration_ns)
        if len(durations) >= _AT_ONCE:
            self._fold(rank, name)

    def _fold(self, rank: int, name: str) -> None:
        durations = self._durations[rank, name]
        self._ranks[rank].setdefault(name, DurationStatistics()).add_all(durations)
        durations.clear()

    def _name(self, field: Raw | UnsetType) -> str:
        text = raw_field(field)
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = str(decode_or_none(field))
        return name


def _file_of(run: Iterable[Event]) -> _File | None:
    """Return whose file it is, from its first events."""
    for event in run:
        if event.ph == "M" and decode_or_none(event.name) == METADATA_EVENT:
            metadata = decode_or_none(event.args)
            if isinstance(metadata, dict) and isinstance(metadata.get("rank"), int):
                process = tuple(metadata.get(key) for key in ("host", "pid", "start_ticks", "attempt"))
                base_ns = metadata.get(BASE_TIME_KEY)
                return _File(metadata["rank"], process, base_ns if isinstance(base_ns, int) else 0)
    return None


def _is_timer(event: Event) -> bool:
    """Tell whether a slice is a call of a timer, and none within another call of the same timer."""
    if event.cat is UNSET or TIMER.encode() not in bytes(event.cat):
        return False
    categories = str(decode_or_none(event.cat)).split(",")
    return TIMER in categories and NESTED not in categories
