"""TracekitProfiler: what ``Trainer(profiler=...)`` takes, with a slice for everything that Lightning does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tracekit.clock import SYSTEM_CLOCK
from tracekit.integrations.lightning.action_slices import ActionSlices
from tracekit.integrations.lightning.framework import LightningProfiler

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.clock import Clock

__all__ = ["TracekitProfiler"]


class TracekitProfiler(ActionSlices, LightningProfiler):
    """Records every hook and action of Lightning as a slice in the trace of the active tracekit profiler.

    Example::

        trainer = Trainer(profiler=TracekitProfiler(), callbacks=[TracekitCallback("traces/{run_id}/rank{rank}.json")])

    It makes no trace by itself: `TracekitCallback`, or a `tracekit.Profiler` around ``trainer.fit``, does. Without one
    there is the summary, which Lightning prints (or writes to ``filename``) when the run is over, as for its
    ``SimpleProfiler``; it counts from the making of this object on, over all runs.

    Actions may nest, be open more than once, and run on any number of threads. Nothing raises: a stop without a start, an
    error in ``SimpleProfiler``, is told of once. Your own ``with trainer.profiler.profile("tokenise"):`` are slices as well.

    Args:
        dirpath: Folder for ``filename``; by default that of the first logger.
        filename: Where the summary goes, without its suffix ``.txt``; by default to the log.
        clock: The clock to read for the summary; for tests.
    """

    def __init__(
        self, dirpath: str | Path | None = None, filename: str | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        LightningProfiler.__init__(self, dirpath=dirpath, filename=filename)
        ActionSlices.__init__(self, clock)

    def summary(self) -> str:
        """Return a table of all actions, those that took most first, in seconds; empty where there was none."""
        found = ActionSlices.summary(self)
        stage = f"{self._stage.upper()} " if self._stage is not None else ""
        return f"{stage}Profiler Report{os.linesep}{os.linesep}{found}{os.linesep}" if found else ""
