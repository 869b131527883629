"""TracekitProfiler: what ``Trainer(profiler=...)`` takes, with a slice for everything that Lightning does."""

from __future__ import annotations

import logging
import marshal
import os
from typing import TYPE_CHECKING

from tracekit.clock import SYSTEM_CLOCK
from tracekit.errors import StorageError
from tracekit.integrations.lightning.actions import ActionSlices
from tracekit.integrations.lightning.framework import LightningProfiler
from tracekit.storage import atomic_write

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.clock import Clock

logger = logging.getLogger("tracekit")


class TracekitProfiler(ActionSlices, LightningProfiler):
    """Records every hook and action of Lightning as a slice in the trace of the active tracekit profiler.

    Example::

        trainer = Trainer(profiler=TracekitProfiler(), callbacks=[TracekitCallback("traces/{run_id}/rank{rank}.json")])

    It makes no trace by itself: `TracekitCallback`, or a `tracekit.Profiler` around ``trainer.fit``, does. Without one
    there is the summary, which Lightning prints (or writes to ``filename``) when the run is over, as for its
    ``SimpleProfiler``; it counts from the making of this object on, over all runs.

    Actions may nest, overlap, and run on any number of threads at the same time. As with ``SimpleProfiler``, a start of an
    action that is open and a stop of one that is not raise ``ValueError``. A stop does not raise while an exception is being
    handled, which it would hide; that is logged once. Your own ``with trainer.profiler.profile("tokenise"):`` makes slices too.

    Args:
        dirpath: Folder for ``filename``; by default that of the first logger.
        filename: File of the summary, without its suffix ``.txt``; by default to the log.
        extended: Show all columns in the summary, not only total and mean.
        dump_stats: Also write the calls and total of each action to ``dirpath``, one ``.prof`` file each, which `pstats` reads.
        clock: The clock to read for the summary; for tests.
    """

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str | None = None,
        extended: bool = True,
        dump_stats: bool = False,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        LightningProfiler.__init__(self, dirpath=dirpath, filename=filename)
        ActionSlices.__init__(self, clock, strict=True)
        self.extended = extended
        self.dump_stats = dump_stats

    def describe(self) -> None:
        """Write the summary, and with ``dump_stats`` the files; Lightning calls this when a run is over."""
        if self.dump_stats:
            self._dump_stats()
        super().describe()

    def _dump_stats(self) -> None:
        if not self.dirpath:
            logger.warning("tracekit: TracekitProfiler(dump_stats=True) writes no files without a dirpath or a logger")
            return
        for title, durations in self.durations(by_title=True).items():
            seconds = durations.total_ns / 1e9
            # The form of pstats: by (file, line, function) the calls, primitive calls, own time, total time and callers.
            found: tuple[object, ...] = (durations.count, durations.count, seconds, seconds, {})
            path = os.path.join(self.dirpath, self._prepare_filename(action_name=title, extension=".prof"))  # noqa: PTH118 - a URL
            try:
                with atomic_write(path) as file:
                    file.write(marshal.dumps({("~", 0, title): found}))
            except StorageError as error:
                logger.warning("tracekit: TracekitProfiler(dump_stats=True): %s", error)
                return

    def summary(self) -> str:
        """Return a table of all actions in seconds, the largest total first; empty if no action was recorded."""
        found = ActionSlices.summary(self)
        stage = f"{self._stage.upper()} " if self._stage is not None else ""
        return f"{stage}Profiler Report{os.linesep}{os.linesep}{found}{os.linesep}" if found else ""
