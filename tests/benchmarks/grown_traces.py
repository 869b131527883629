"""Real traces made longer: their events again and again, each time later, as a longer recording of the same program would be.

Metadata stands once, at its place in the first copy; each copy begins where the one before ends. Only Kineto's layout is read.
"""

from __future__ import annotations

import gzip
import random
import re
from typing import TYPE_CHECKING

from tests.real_traces import real_traces_folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DLRM", "GLOO", "grow", "real_ranks"]

DLRM = "dlrm_8gpu/worker*.json.gz"
GLOO = "torch_2.13_gloo/full_rank*.json.gz"
OVERLAPS = 0.005
_END = "\n  }"
_TIME = re.compile(r'("ts": )(\d+)(\.\d+)?')
_SLICE = re.compile(r'("ts": )(\d+)(\.\d+)?(,\s*"dur": )(\d+)(\.\d+)?')
_GAP_US = 1_000


def real_ranks(pattern: str) -> list[Path]:
    """Return the files of one of the real runs, in order of their ranks; none where they are not here."""
    return sorted(real_traces_folder().glob(pattern))


def grow(source: Path, target: Path, size_bytes: int, *, overlaps: float = 0.0) -> None:
    """Write a longer trace.

    Args:
        source: The real trace, packed.
        target: The file to write.
        size_bytes: The minimum size.
        overlaps: The share of slices that get a second one on their track, which begins in their middle and ends after them.
    """
    text = gzip.decompress(source.read_bytes()).decode()
    begin = text.index('"traceEvents"')
    begin = text.index("[", begin) + 1
    end = text.rindex(_END) + len(_END)
    events = [event + _END for event in text[begin : end - len(_END)].split(_END + ",")]
    if overlaps:
        events = _with_overlaps(events, overlaps)
    rest = [event for event in events if '"ph": "M"' not in event]
    pieces = _TIME.split(",".join(rest))
    times = [int(time) for time in pieces[2::4]]
    step = max(times) - min(times) + _GAP_US
    with target.open("x", encoding="utf-8") as file:
        file.write(text[:begin] + ",".join(events))
        copies = 0
        while file.tell() < size_bytes:
            copies += 1
            pieces[2::4] = [str(time + copies * step) for time in times]
            file.write("," + "".join([piece or "" for piece in pieces]))
        file.write(text[end:])


def _with_overlaps(events: list[str], share: float) -> list[str]:
    """Return the events with another one behind each slice that is drawn."""
    source = random.Random(len(events))
    found = []
    for event in events:
        found.append(event)
        match = _SLICE.search(event) if '"ph": "X"' in event else None
        if match is not None and int(match[5]) > 1 and source.random() < share:
            start = int(match[2]) + int(match[5]) // 2
            later = f"{match[1]}{start}{match[3] or ''}{match[4]}{match[5]}{match[6] or ''}"
            found.append(event[: match.start()] + later + event[match.end() :])
    return found
