"""The plot of how a merge grows: time above, memory below, by the size of the input and by the number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.benchmarks.merge_growth import Point

_COLUMNS: Final = {"size": ("megabytes", "input, unpacked, MB"), "ranks": ("ranks", "ranks, small files")}
_LINES: Final = {"seconds": ("time, s", "#0b5fa5"), "peak_mb": ("most memory, MB", "#b4540a")}


def draw(points: Sequence[Point], path: Path) -> None:
    """Write the plot as SVG; the same points make the same bytes.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    # Text stays text, so that the file is small and can be searched.
    fonts = {"font.size": 9, "font.sans-serif": ["DejaVu Sans"]}
    style: Any = {**fonts, "svg.hashsalt": "tracekit", "svg.fonttype": "none", "axes.spines.top": False}
    with mpl.rc_context({**style, "axes.spines.right": False}):
        figure, axes = plt.subplots(len(_LINES), len(_COLUMNS), figsize=(7, 4.2), sharex="col", layout="constrained")
        for column, (series, (grows, title)) in enumerate(_COLUMNS.items()):
            shown = sorted((point for point in points if point.series == series), key=lambda point: point.megabytes)
            for row, (measured, (name, color)) in enumerate(_LINES.items()):
                axis = axes[row][column]
                places = [getattr(point, grows) for point in shown]
                heights = [getattr(point, measured) for point in shown]
                axis.plot(places, heights, marker="o", markersize=4, color=color)
                axis.set_xlim(left=0)
                axis.set_ylim(0, 1.1 * max(heights))
                axis.locator_params(nbins=4)
                axis.grid(color="#dddddd", linewidth=0.6)
                if column == 0:
                    axis.set_ylabel(name)
            axes[-1][column].set_xlabel(title)
        figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)
