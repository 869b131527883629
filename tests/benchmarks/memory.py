"""Check in a separate process that memory stays flat while millions of slices are streamed to a file."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.measure import Spread
from tests.benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.measure import Effort

NAME = "memory"
ROOT = Path(__file__).resolve().parents[2]
BOUND_MB = 50.0
SLICES_IN_STEP = 1_000
STEPS_IN_FLUSH = 50


def rows(effort: Effort) -> Iterator[Row]:
    """Stream as fast as the thread can record, and again while the writer is given time to keep up."""
    millions = f"{effort.streamed_slices / 1e6:g} million"
    for what, waits in (
        (f"memory while streaming {millions} slices", False),
        ("the same, the writer keeping up", True),
    ):
        command = [sys.executable, "-m", "tests.benchmarks.memory", str(effort.streamed_slices), str(int(waits))]
        finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if finished.returncode != 0:
            yield Row(NAME, what, None, remarks=finished.stderr.strip().splitlines()[-1])
            continue
        found = json.loads(finished.stdout)
        remarks = f"in the end {found['end_mb']:.1f} MB; file {found['file_mb']:.0f} MB; dropped {found['dropped']:,}"
        yield Row(NAME, what, Spread.of([found["most_mb"]]), " MB above the start", at_most=BOUND_MB, remarks=remarks)


def main(slices: int, *, waits: bool) -> None:
    """Stream so many slices, and print what memory the process had meanwhile."""
    import psutil

    import tracekit

    resident = psutil.Process().memory_info
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        with tracekit.Profiler(tracekit.JSONTraceHandler(Path(folder) / "rank{rank}.json"), rank=0) as profiler:
            marker = profiler.marker("x")
            profiler.flush()
            start = most = resident().rss
            for step in range(max(1, slices // SLICES_IN_STEP)):
                for _ in repeat(None, SLICES_IN_STEP):
                    with marker:
                        pass
                profiler.step()
                if waits and step % STEPS_IN_FLUSH == 0:
                    profiler.flush(60)
                most = max(most, resident().rss)
            profiler.flush(60)
        end = resident().rss
        most = max(most, end)
        dropped = sum(profiler.stats.dropped.values())
        found = {"most_mb": (most - start) / 1e6, "end_mb": (end - start) / 1e6, "file_mb": path.stat().st_size / 1e6}
        print(json.dumps({**found, "dropped": dropped}))


if __name__ == "__main__":
    main(int(sys.argv[1]), waits=bool(int(sys.argv[2])))
