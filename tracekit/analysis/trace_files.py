"""Traces that the user named, read once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.analysis.counters import MOST_SERIES, CounterCollector
from tracekit.analysis.file_checks import check_copies, check_runs
from tracekit.analysis.file_reading import FileReading, file_size
from tracekit.analysis.inputs import find_traces, merged_ranks
from tracekit.analysis.reading import Reading
from tracekit.collectives.parts import CollectiveCollector
from tracekit.errors import TraceFormatError
from tracekit.formats.trace_reader import TraceReader
from tracekit.storage import basename

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.analysis.ordered_rows import Scratch

__all__ = ["read_traces"]

_MOST_COLLECTIVES: Final = 20_000


def read_traces(
    patterns: Sequence[str],
    scratch: Scratch,
    progress: Callable[[float, str], None] | None = None,
    *,
    collectives: bool = False,
    counters: bool = False,
) -> Reading:
    """Read the slices of traces.

    Args:
        patterns: Files, folders, globs or URLs; merged traces or those of single ranks, JSON or Perfetto's own, plain or gzip.
        scratch: Where rows go that are too many for memory; it must stay open as long as the result is used.
        progress: Called with the share that has been read, and the file.
        collectives: Whether to look for the collectives in torch's traces, too; of each process the first 20,000.
        counters: Whether to keep what counters tell, too; of the first 20,000 that there are.

    Raises:
        ConfigError: Nothing was named, several runs of one rank, or one trace twice.
        StorageError: Something cannot be read.
        TraceFormatError: It is no trace.
    """
    reading = Reading(scratch)
    found = find_traces(patterns)
    sizes = [file_size(path) for path, _ in found] if progress is not None else [0] * len(found)
    whole = sum(sizes) or 1
    done = series = 0
    left_out: list[TraceFormatError] = []
    for (path, named), size in zip(found, sizes, strict=True):
        try:
            with TraceReader(path) as reader:
                merged = merged_ranks(reader.header) is not None
                if merged and not named and len(found) > 1:
                    reading.notes.append(f"{reader.path} is left out: it is the result of a merge; name it to read it")
                    continue
                file = FileReading(
                    reading,
                    reader,
                    CollectiveCollector(_MOST_COLLECTIVES) if collectives else None,
                    CounterCollector(MOST_SERIES - series) if counters else None,
                )
                for share in file.read(size):
                    if progress is not None:
                        progress(min(1.0, (done + share * size) / whole), basename(path))
                reading.files[-1].source = path
                series += file.series
        except TraceFormatError as error:
            if named:
                raise
            left_out.append(error)
        done += size
    if left_out and not reading.files:
        raise left_out[0]
    reading.notes += [f"{error.path} is left out: {error.reason}" for error in left_out]
    check_runs(reading.files)
    reading.notes += check_copies(reading.files)
    _assume_ranks(reading)
    return reading


def _assume_ranks(reading: Reading) -> None:
    """Give a rank to the files that state none."""
    unknown = [number for number, file in enumerate(reading.files) if file.rank is None and not file.merged]
    taken = {process.rank for process in reading.processes}
    free = 0
    for number in unknown:
        while free in taken:
            free += 1
        taken.add(free)
        if len(reading.files) > 1:
            reading.notes.append(f"{reading.files[number].path} does not state its rank; it is called rank {free}")
        reading.files[number].rank = free
        for process in reading.processes:
            if process.file == number:
                process.rank = free
