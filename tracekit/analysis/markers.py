"""What the slices of a trace are: each name with its category is a marker, known by a number, and of a kind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Final

from tracekit.formats.trace_event import decode_json

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DEVICE", "MOST_MARKERS", "OTHERS", "TRANSPARENT", "Kind", "Label", "Marker", "Markers"]

Label = tuple[bytes, bytes]
"""Name and category as they stand in the file, as JSON text; empty where there is none."""

MOST_MARKERS: Final = 100_000
OTHERS: Final = "(all other names)"
"""What is told of names beyond the first `MOST_MARKERS`: a trace that numbers its names has no end of them."""

_MOST_CHARACTERS: Final = 500
_LONG_BYTES: Final = 2000

_PROFILER_STEP: Final = re.compile(r"ProfilerStep#\d{1,18}", re.ASCII)
_LOADING: Final = re.compile(r"data[ _-]?load|dataiter|next_batch|get_batch", re.IGNORECASE)
_COMMUNICATION_KERNEL: Final = re.compile(
    r"nccl|rccl|hccl|ncclx|nvshmem|all_?reduce|reduce_?scatter|all_?gather", re.IGNORECASE
)
_COLLECTIVE: Final = re.compile(
    r"nccl:|gloo:|mpi:|ucc:|all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|barrier|broadcast", re.IGNORECASE
)


class Kind(IntFlag):
    """What a marker stands for. Of several, those of the enclosing slices hold inside of it as well."""

    STEP = 1
    """A whole training step: tracekit's ``batch`` in "training loop", or torch.profiler's ``ProfilerStep#N``."""
    FRAME = 2
    """A function of Python, a span of the profiler, a whole epoch: it encloses stages and is none."""
    LOADING = 4
    """Waiting for the data loader."""
    COMPUTE = 8
    """A kernel on a device that computes."""
    COMMUNICATION = 16
    """A kernel on a device that exchanges data with other ranks."""
    MEMORY = 32
    """A copy or fill on a device."""
    SHADOW = 64
    """A span on a device's track in which nothing happens itself, such as a mirrored annotation."""
    COLLECTIVE = 128
    """A collective on the CPU side: there a rank waits for the others."""


DEVICE: Final = Kind.COMPUTE | Kind.COMMUNICATION | Kind.MEMORY
"""What keeps a device busy."""
TRANSPARENT: Final = Kind.STEP | Kind.FRAME
"""What encloses the stages of a step."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A name with its category.

    Attributes:
        name: As it is shown; very long ones are shortened.
        category: As it stands in the trace; empty where there is none.
        kind: What it stands for.
    """

    name: str
    category: str
    kind: Kind


class Markers(dict[Label, int]):
    """The number of each label; unknown ones get the next number. Shared by all files of an analysis.

    Attributes:
        table: The markers by their numbers.
        kinds: Their kinds as integers, by their numbers.
        refused: How many slices had a name that was one too many.
    """

    def __init__(self, most: int = MOST_MARKERS) -> None:
        super().__init__()
        self._most = most
        self._shown: dict[tuple[str, str], int] = {}
        self.table: list[Marker] = []
        self.kinds: list[int] = []
        self.refused = 0

    def __missing__(self, label: Label) -> int:
        """Return the number of a label that was not seen before."""
        name, category = _text(label[0]), _text(label[1])
        full = len(self.table) >= self._most and (name, category) not in self._shown
        if full:
            self.refused += 1
            name = category = OTHERS
        number = self._shown.get((name, category))
        if number is None:
            number = self._shown[name, category] = len(self.table)
            marker = Marker(name, category, _kind(name, category))
            self.table.append(marker)
            self.kinds.append(int(marker.kind))
        if not full and len(label[0]) + len(label[1]) <= _LONG_BYTES:
            self[label] = number
        return number

    def look_through(self, names: Sequence[str]) -> None:
        """Take the markers of these names for frames, which enclose stages and are none."""
        for number, marker in enumerate(self.table):
            if marker.name in names:
                self.kinds[number] |= Kind.FRAME

    def numbers(self, labels: Sequence[Label]) -> list[int]:
        """Return the numbers of labels."""
        return list(map(self.__getitem__, labels))


def _text(raw: bytes) -> str:
    if not raw:
        return ""
    try:
        value = decode_json(raw)
    except ValueError:
        value = raw.decode("utf-8", "replace")
    text = value if isinstance(value, str) else raw.decode("utf-8", "replace")
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


def _kind(name: str, category: str) -> Kind:
    if category in ("kernel", "Kernel", "collective_comm"):
        return Kind.COMMUNICATION if _COMMUNICATION_KERNEL.search(name) else Kind.COMPUTE
    if category in ("gpu_memcpy", "Memcpy", "gpu_memset", "Memset"):
        return Kind.MEMORY
    if category in ("gpu_user_annotation", "cuda_sync", "cuda_event", "hardware_counters", "mtia_ccp_events"):
        return Kind.SHADOW
    if category == "training loop":
        return Kind.STEP if name == "batch" else Kind.FRAME
    if category in ("user_annotation", "cpu_op", "Operator", "") and _PROFILER_STEP.fullmatch(name):
        return Kind.STEP
    if category in ("python_function", "Trace") or name == OTHERS:
        return Kind.FRAME
    if _LOADING.search(name):
        return Kind.LOADING
    return Kind.COLLECTIVE if _COLLECTIVE.search(name) else Kind(0)
