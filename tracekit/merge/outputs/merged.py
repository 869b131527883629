"""What is true of a whole merge, whatever it is written as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.merge.clocks.placement import Placement
    from tracekit.merge.input import Input
    from tracekit.merge.namespaces import Process

__all__ = ["Merged"]


@dataclass(frozen=True, slots=True)
class Merged:
    """What is true of the whole merge.

    Attributes:
        base_ns: What all times are relative to, ns since the epoch; 0 when no input tells its clock.
        inputs: In the order of the output.
        processes: In the order of display, with their threads; they can be gone through any number of times.
        clocks: What is said of the clocks.
    """

    base_ns: int
    inputs: list[Input]
    processes: Iterable[Process]
    clocks: Placement
