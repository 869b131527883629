"""Real traces made longer: their events again and again, each time later, as a longer recording of the same program would be.

Metadata stands once, at its place in the first copy; each copy begins where the one before ends, with separate flows. Only
Kineto's layout is read.
"""

from __future__ import annotations

import gzip
import random
import re
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from tests.real_traces import OWN, real_traces_folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DLRM", "GLOO", "H200", "grow", "grow_rank", "real_ranks"]

DLRM = "dlrm_8gpu/worker*.json.gz"
GLOO = "torch_2.13_gloo/full_rank*.json.gz"
H200 = OWN / "cuda_h200" / "torch-rank0-10.json.gz"
_END = "\n  }"
_NUMBER = re.compile(r'("ts": |"id": )(\d+)(\.\d+)?')  # a time, or the number of a flow
_SLICE = re.compile(r'("ts": )(\d+)(\.\d+)?(,\s*"dur": )(\d+)(\.\d+)?')
_GAP_US = 1_000


def real_ranks(pattern: str) -> list[Path]:
    """Return the files of one of the real runs, in order of their ranks; none where they are not here."""
    return sorted(real_traces_folder().glob(pattern))


def grow(source: Path, target: Path, size_bytes: int, *, overlaps: float = 0.0) -> None:
    """Write a longer trace of at least this size.

    Args:
        source: The real trace, packed.
        target: The file to write.
        size_bytes: The minimum size.
        overlaps: The share of slices that get a second one on their track, which begins in their middle and ends after them.
    """
    head, events, tail = _parts(source)
    _write(target, head, _with_overlaps(events, overlaps) if overlaps else events, tail, size_bytes)


def grow_rank(target: Path, size_bytes: int, rank: int, world_size: int, *, base_later_s: int = 0) -> None:
    """Write one rank of a job on H200s, of about this size; a small one is the beginning of the real trace.

    Args:
        target: The file to write.
        size_bytes: Its size.
        rank: The rank in its header.
        world_size: The number of ranks in its header.
        base_later_s: The time to add to the base of the real trace.
    """
    head, events, tail = _parts(H200)
    for key, value in (("rank", rank), ("world_size", world_size)):
        head = re.sub(rf'"{key}": \d+', f'"{key}": {value}', head)
    head = re.sub(r'(?<="baseTimeNanoseconds": )\d+', lambda found: str(int(found[0]) + base_later_s * 10**9), head)
    ends = accumulate((len(event) + 1 for event in events), initial=len(head) + len(tail))
    events = events[: sum(end < size_bytes for end in ends)]
    _write(target, head, events, tail, size_bytes, earlier_us=base_later_s * 10**6)


@lru_cache
def _parts(source: Path) -> tuple[str, list[str], str]:
    """Return the text before the events of a trace, the events, and the text after them."""
    text = gzip.decompress(source.read_bytes()).decode()
    begin = text.index("[", text.index('"traceEvents"')) + 1
    end = text.rindex(_END) + len(_END)
    return text[:begin], [event + _END for event in text[begin : end - len(_END)].split(_END + ",")], text[end:]


def _write(target: Path, head: str, events: list[str], tail: str, size_bytes: int, *, earlier_us: int = 0) -> None:
    once, again = (
        _NUMBER.split(",".join(chosen)) for chosen in (events, [event for event in events if '"ph": "M"' not in event])
    )
    once[2::4] = [
        str(int(number) - earlier_us) if key == '"ts": ' else number
        for key, number in zip(once[1::4], once[2::4], strict=True)
    ]
    is_time = [key == '"ts": ' for key in again[1::4]]
    numbers = [int(number) for number in again[2::4]]
    times = [number for number, yes in zip(numbers, is_time, strict=True) if yes]
    step = max(times) - min(times) + _GAP_US
    most_flows = 1 + max(number for number, yes in zip([*numbers, 0], [*is_time, False], strict=True) if not yes)
    with target.open("x", encoding="utf-8") as file:
        file.write(head + "".join(piece or "" for piece in once))
        copies = 0
        while file.tell() < size_bytes - len(tail):
            copies += 1
            later, more = copies * step - earlier_us, copies * most_flows
            again[2::4] = [str(number + (later if yes else more)) for number, yes in zip(numbers, is_time, strict=True)]
            file.write("," + "".join(piece or "" for piece in again))
        file.write(tail)


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
