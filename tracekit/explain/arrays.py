"""Import numpy: the only module that does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.errors import MissingExtraError

try:
    import numpy as np
except ImportError as error:
    raise MissingExtraError("numpy", "explain", "Analysing traces") from error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.intp]

__all__ = ["median_of_others", "medians", "np", "robust_deviation"]

NORMAL_MAD = 1.4826  # standard deviation of normal values as a multiple of their median absolute deviation


def robust_deviation(values: Floats, middle: Floats | None = None) -> Floats:
    """Estimate the standard deviation along the last axis from the median absolute deviation; ``middle`` are known medians."""
    middle = medians(values)[..., None] if middle is None else middle
    deviation: Floats = NORMAL_MAD * medians(np.abs(values - middle))
    return deviation


def medians(values: Floats) -> Floats:
    """Return the medians along the last axis; sorting is faster than numpy's own median."""
    ordered = np.sort(values, axis=-1)
    count = values.shape[-1]
    middle: Floats = (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
    return middle


def median_of_others(values: Floats) -> Floats:
    """Return, for each of two rows or more, the median of all other rows, element by element."""
    others = len(values) - 1
    low, high = (others - 1) // 2, others // 2
    ordered = np.sort(values, axis=0)

    def of_others(place: int) -> Floats:
        """Return the value at a place of the sorted values, leaving out the own one."""
        other: Floats = np.where(values <= ordered[place], ordered[place + 1], ordered[place])
        return other

    middle: Floats = of_others(low) if low == high else (of_others(low) + of_others(high)) / 2
    return middle
