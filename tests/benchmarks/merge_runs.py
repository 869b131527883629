"""Run merges and measure their time, their memory and the number of their open files.

Every measurement starts a new process, so that no merge profits from the one before.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.benchmarks.measure import Spread
from tests.benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.benchmarks.merge_inputs import Dataset

ROOT = Path(__file__).resolve().parents[2]
SAMPLE_S = 0.01


class NotMeasuredError(Exception):
    """Why something cannot be measured here, in words for the table."""


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a process.

    Attributes:
        dataset: The inputs.
        how: ``tracekit``, its function; ``command``, ``tracekit merge`` with the start of Python; ``parts``, its function in
            each process for a part of the inputs; or a function of `tests.benchmarks.merge_peers`.
        suffix: The end of the name of the output.
        workers: The number of processes of the merge; 1 is the process itself.
        pure: True to merge without the compiled core.
        align: The method of tracekit to align clocks.
    """

    dataset: Dataset
    how: str = "tracekit"
    suffix: str = ".json"
    workers: int = 1
    pure: bool = False
    align: str = "auto"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The cost of a job.

    Attributes:
        seconds: Time of the merge.
        rate: Unpacked input in 10^6 bytes per second.
        cpu_rate: The same per second of CPU time, of all processes together: what others do on the machine shows less.
        peak_mb: The most resident memory that its processes had together.
        open_files: The most files, sockets and pipes that they had open together.
    """

    seconds: float
    rate: float
    cpu_rate: float
    peak_mb: float
    open_files: float


def run(job: Job, folder: Path, *, keep: Path | None = None) -> Outcome:
    """Run a job in a new process.

    Args:
        job: The job.
        folder: The folder of the output.
        keep: The new name of the output; it is removed if None.

    Raises:
        NotMeasuredError: tracekit cannot do that yet, a program is missing, or the merge failed.
    """
    output = keep or folder / f"merged{job.suffix}"
    inputs = [str(path) for path in job.dataset.paths]
    told = {"how": job.how, "workers": job.workers, "align": job.align, "output": str(output), "inputs": inputs}
    # Users have compiled modules; a process that may not keep them compiles them each time.
    environment = os.environ | {"TRACEKIT_PURE_PYTHON": "1" if job.pure else "0", "PYTHONDONTWRITEBYTECODE": ""}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-m", "tests.benchmarks.merge_job"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes) as process:
        watch = _Watch(process.pid)
        answer, complaint = process.communicate(json.dumps(told))
        watch.stop()
    if process.returncode != 0:
        output.unlink(missing_ok=True)
        raise NotMeasuredError(f"failed: {complaint.strip().splitlines()[-1:]}")
    found = json.loads(answer)
    if "missing" in found:
        raise NotMeasuredError(found["missing"])
    if keep is None:
        output.unlink()
    return Outcome(
        seconds=found["seconds"],
        rate=job.dataset.megabytes / found["seconds"],
        cpu_rate=job.dataset.megabytes / max(found["cpu_seconds"], 1e-3),
        peak_mb=max(watch.peak_bytes, found["peak_bytes"]) / 1e6,
        open_files=watch.open_files,
    )


class Measured:
    """Outcomes of jobs that took turns.

    Attributes:
        missing: Why a job could not be run, by its name.
    """

    def __init__(self, jobs: Mapping[str, Job], folder: Path, rounds: int) -> None:
        self._outcomes: dict[str, list[Outcome]] = {}
        self.missing: dict[str, str] = {}
        for _ in range(rounds):
            for name, job in jobs.items():
                if name not in self.missing:
                    try:
                        self._outcomes.setdefault(name, []).append(run(job, folder))
                    except NotMeasuredError as error:
                        self.missing[name] = str(error)

    def row(
        self,
        benchmark: str,
        what: str,
        jobs: Sequence[str],
        figures: Callable[[], Spread],
        unit: str,
        remarks: Callable[[], str] = str,
        **bound: float | None,
    ) -> Row:
        """Return a row of the table, or one that says why one of its jobs could not be run."""
        reason = next((self.missing[job] for job in jobs if job in self.missing), None)
        if reason is not None:
            return Row(benchmark, what, None, unit, remarks=reason, **bound)
        return Row(benchmark, what, figures(), unit, remarks=remarks(), **bound)

    def spread(self, field: str, job: str, other: str | None = None) -> Spread:
        """Return a field of the outcomes of a job by rounds, or how many times as much as that of another job it is."""
        found = [getattr(outcome, field) for outcome in self._outcomes[job]]
        if other is not None:
            below = [getattr(outcome, field) for outcome in self._outcomes[other]]
            found = [one / two for one, two in zip(found, below, strict=True)]
        return Spread.of(found)

    def median(self, name: str) -> Outcome:
        """Return the medians of the costs of a job."""
        return Outcome(*(statistics.median(found) for found in zip(*map(astuple, self._outcomes[name]), strict=True)))


class _Watch:
    """Looks at a process and those it has started, until it is stopped."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self.open_files = 0
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            # Processes end while they are looked at.
            with contextlib.suppress(psutil.Error):
                group = [self._process, *self._process.children(recursive=True)]
                self.peak_bytes = max(self.peak_bytes, sum(process.memory_info().rss for process in group))
                self.open_files = max(self.open_files, sum(process.num_fds() for process in group))
