"""The clocks: how fine they are, how well they can be compared, and whether the wall clock is kept right."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.diagnosis.findings import Section
from tracekit.distributed import detect_process
from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["examine_clocks"]

_READS: Final = 2000
_COARSE_NS: Final = 10_000
_LOOSE_NS: Final = 100_000
_YEAR_2020_NS: Final = 1_577_836_800_000_000_000


def examine_clocks(clock: Clock = SYSTEM_CLOCK) -> Section:
    """Read the clocks many times, and tell what shows.

    Args:
        clock: The clocks; for tests.
    """
    section = Section("clocks")
    wall_step_ns, wall_back = _step(clock.wall_ns)
    step_ns, back = _step(clock.monotonic_ns)
    first = clock.anchor()
    last = clock.anchor()
    try:
        boot_id = detect_process().boot_id
    except ConfigError:
        boot_id = None
    section.facts = {
        "wall_resolution_ns": wall_step_ns,
        "monotonic_resolution_ns": step_ns,
        "comparison_error_ns": min(first.error_ns, last.error_ns),
        "boot_id": boot_id,
    }
    if step_ns is None or step_ns > _COARSE_NS:
        section.problems.append("the monotonic clock is coarser than 10 µs: short slices will have no length")
    if back:
        section.problems.append("the monotonic clock has gone backwards: times of this machine cannot be trusted")
    if wall_back:
        section.problems.append("the wall clock has gone backwards just now: is it being set? see chronyc tracking")
    if min(first.error_ns, last.error_ns) > _LOOSE_NS:
        section.problems.append(
            "wall and monotonic clock cannot be compared better than to 0.1 ms: this machine is very busy, or its clock slow"
        )
    if clock.wall_ns() < _YEAR_2020_NS:
        section.problems.append(
            "the wall clock is years behind: set it, or ranks of other hosts will be placed wrongly"
        )
    if boot_id is None:
        section.notes.append(
            "the boot has no id here: ranks of one host are known by the host's name alone to share a clock"
        )
    return section


def _step(read: Callable[[], int]) -> tuple[int | None, bool]:
    """Return the smallest step of a clock, None if it stood still, and whether it went backwards."""
    times = [read() for _ in range(_READS)]
    steps = [later - earlier for earlier, later in pairwise(times)]
    return min((step for step in steps if step > 0), default=None), any(step < 0 for step in steps)
