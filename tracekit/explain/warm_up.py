"""Warm-up: the first steps of a run, which compile, allocate and fill caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.explain.arrays import np, robust_deviation
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.explain.arrays import Floats

_MIN_STEPS: Final = 10
_MAX_SHARE: Final = 0.2
_MAX_WARM_UP: Final = 200
_LONGER: Final = 0.1
_DEVIATIONS: Final = 5.0


def count_warm_up(lengths: Floats) -> int:
    """Return how many steps at the beginning are longer than the steps that follow them.

    A step belongs to the warm-up if it is 10 % and 5 robust deviations longer than the median of the steps after the first
    fifth; one shorter step may lie between two of them.

    Args:
        lengths: Step times in order, in any unit.
    """
    most = min(_MAX_WARM_UP, int(len(lengths) * _MAX_SHARE))
    if len(lengths) < _MIN_STEPS:
        return 0
    after = lengths[most : most + max(3 * most, 50)]
    usual = float(np.median(after))
    is_long = lengths[: most + 1] > usual + max(_LONGER * usual, _DEVIATIONS * float(robust_deviation(after)))
    found = 0
    for step in range(most):
        if is_long[step]:
            found = step + 1
        elif not is_long[step + 1]:
            break
    return found


def warm_up_note(numbers: Sequence[int], lengths: Floats, found: int) -> str:
    """Return a note that names the warm-up steps.

    Args:
        numbers: Numbers of the steps.
        lengths: Step times.
        found: The result of `count_warm_up`, 1 or more.
    """
    which = f"step {numbers[0]} is" if found == 1 else f"steps {numbers[0]} to {numbers[found - 1]} are"
    times = float(lengths[:found].max() / np.median(lengths[found:]))
    return f"{which} warm-up (up to {times:.1f} x the usual step) and not counted: {counted(found, 'step')}"
