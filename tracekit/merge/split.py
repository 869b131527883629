"""Split one trace into several independent traces, by time or by rank."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Final

from tracekit.errors import ConfigError, MergeError
from tracekit.merge import MergeReport, Selection, merge_traces
from tracekit.merge.execute.scratch import ScratchStore
from tracekit.merge.report import happened
from tracekit.merge.scan.inputs import gather
from tracekit.merge.scan.probe import probe
from tracekit.storage import refuse_existing, remove_all, without_secrets
from tracekit.structs import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.merge.scan.input import Input

_MOST_PARTS: Final = 1000
_HOLE: Final = "{part}"


class Part(Struct, frozen=True):
    """One part of a trace.

    Attributes:
        name: "000", "001" ... for time ranges, "rank0" ... for ranks.
        words: Description of the content.
        select: The content as a selection for a merge.
        output: The file or URL of the part.
        report: The report of the merge, or None for an empty part, which is not written.
    """

    name: str
    words: str
    select: Selection
    output: str
    report: MergeReport | None = None


def split(
    path: str,
    output: str,
    *,
    seconds: Decimal | None = None,
    overwrite: bool = False,
    progress: Callable[[float, str], None] | None = None,
) -> list[Part]:
    """Write the parts of a trace. Read the trace once, and then once for each part.

    A slice that crosses the border between two time ranges is complete in both parts.

    Args:
        path: The trace.
        output: The file or URL of a part, with the placeholder ``{part}``.
        seconds: Length of a part. None makes a part of each rank.
        overwrite: True to replace existing files.
        progress: Called from time to time with the completed share, 0 to 1, and the current activity.

    Returns:
        All parts, including empty ones.

    Raises:
        ConfigError: The output has no placeholder, or there would be too many parts.
        MergeError: The trace has no events.
        StorageError: The trace cannot be read, or a part exists or cannot be written.
        TraceFormatError: The file is not a trace.
    """
    if _HOLE not in output:
        raise ConfigError(f"{output}: the name of the parts needs a place for their number: {_HOLE}")
    if seconds is not None and not 0 < seconds < 10**9:
        raise ConfigError(f"the length of a part must be a number of seconds above 0, not {seconds}")
    if progress is not None:
        progress(0.0, f"reading {without_secrets(path)}")
    with ScratchStore() as store:
        # The latest event may be anywhere: torch writes GPUs behind CPUs, and a merge one rank behind the other.
        scan = partial(probe, whole=seconds is not None)
        (item,), _ = gather([(path, True)], {}, make_scanner=lambda _: scan, store=store)
    contents = [(f"rank{rank}", f"rank {rank}", Selection(ranks={rank})) for rank in sorted(item.ranks)]
    if seconds is not None:
        contents = _spans(item, seconds)
    parts = [Part(name, words, select, output.replace(_HOLE, name)) for name, words, select in contents]
    if not overwrite:
        for part in parts:
            refuse_existing(part.output)
    return [_write(path, part, number / len(parts), overwrite, progress) for number, part in enumerate(parts)]


def _spans(item: Input, seconds: Decimal) -> list[tuple[str, str, Selection]]:
    lowest = item.first_ns
    if lowest is None or item.highest_ns is None:
        raise MergeError(f"{item.shown}: holds no events that could be split")
    count = int(Decimal(item.highest_ns - lowest) / 10**9 / seconds) + 1
    if count > _MOST_PARTS:
        raise ConfigError(
            f"{item.shown}: parts of {seconds} s would be {count:,}; give a length that makes at most {_MOST_PARTS:,}"
        )
    spans = ((number * seconds, (number + 1) * seconds) for number in range(count))
    return [
        (f"{number:03d}", f"{start:f} s to {end:f} s", Selection(time_window=(start, end)))
        for number, (start, end) in enumerate(spans)
    ]


def _write(path: str, part: Part, done: float, overwrite: bool, progress: Callable[[float, str], None] | None) -> Part:
    if progress is not None:
        progress(done, f"writing {part.words}")
    report = merge_traces(part.output, [path], overwrite=overwrite, select=part.select)
    if happened(report.events_out):
        return replace(part, report=report)
    remove_all(part.output)
    return part
