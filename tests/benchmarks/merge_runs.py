"""Merges, each in a process of its own: how long they take, and what memory and how many open files the processes have.

The process is started for every measurement, so that no merge profits from the one before.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.benchmarks.measure import Spread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.benchmarks.merge_inputs import Dataset

ROOT = Path(__file__).resolve().parents[2]
SAMPLE_S = 0.01
PURE_PYTHON = "TRACEKIT_PURE_PYTHON"


class NotMeasuredError(Exception):
    """Why something cannot be measured here, in words for the table."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is to do.

    Attributes:
        dataset: What is merged.
        how: ``tracekit``, its function; ``command``, ``tracekit merge`` with the start of Python; or a function of
            `tests.benchmarks.merge_peers`.
        suffix: What the name of the output ends with.
        workers: In how many processes tracekit merges; 1 is the process itself.
        pure: Whether it must do without its compiled core.
        align: How tracekit aligns clocks.
    """

    dataset: Dataset
    how: str = "tracekit"
    suffix: str = ".json"
    workers: int = 1
    pure: bool = False
    align: str = "auto"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job took.

    Attributes:
        seconds: Time of the merge.
        rate: Unpacked input in 10^6 bytes per second.
        cpu_rate: The same per second of CPU time, of all processes together: what others do on the machine shows less.
        output_bytes: Size of the output.
        peak_bytes: The most resident memory that its processes had together.
        open_files: The most files, sockets and pipes that they had open together.
    """

    seconds: float
    rate: float
    cpu_rate: float
    output_bytes: int
    peak_bytes: int
    open_files: int


def run(job: Job, folder: Path, *, keep: Path | None = None) -> Outcome:
    """Run a job in a process of its own.

    Args:
        job: What to do.
        folder: Where the output is written.
        keep: What to rename the output to; removed if None.

    Raises:
        NotMeasuredError: tracekit cannot do that yet, a program is missing, or the merge failed.
    """
    output = keep or folder / f"merged{job.suffix}"
    described = {
        "how": job.how,
        "workers": job.workers,
        "align": job.align,
        "output": str(output),
        "inputs": [str(path) for path in job.dataset.paths],
    }
    command = [sys.executable, "-m", "tests.benchmarks.merge_job"]
    # Users have compiled modules; a process that may not keep them compiles them each time.
    environment = os.environ | {PURE_PYTHON: "1" if job.pure else "0", "PYTHONDONTWRITEBYTECODE": ""}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        watch = _Watch(process.pid)
        answer, complaint = process.communicate(json.dumps(described))
        watch.stop()
    if process.returncode != 0:
        output.unlink(missing_ok=True)
        raise NotMeasuredError(f"failed: {complaint.strip().splitlines()[-1:]}")
    found = json.loads(answer)
    if "missing" in found:
        raise NotMeasuredError(found["missing"])
    size_bytes = output.stat().st_size
    if keep is None:
        output.unlink()
    peak_bytes = max(watch.peak_bytes, found["peak_bytes"])
    return Outcome(
        seconds=found["seconds"],
        rate=job.dataset.megabytes / found["seconds"],
        cpu_rate=job.dataset.megabytes / max(found["cpu_seconds"], 1e-3),
        output_bytes=size_bytes,
        peak_bytes=peak_bytes,
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

    def reason(self, *names: str) -> str:
        """Return why one of these jobs could not be run; empty if all were."""
        return next((self.missing[name] for name in names if name in self.missing), "")

    def ratio(self, name: str, other: str) -> Spread:
        """Return how many times as fast as another a job is, by rounds."""
        pairs = zip(self._outcomes[name], self._outcomes[other], strict=True)
        return Spread.of([one.rate / two.rate for one, two in pairs])

    def cpu_ratio(self, name: str, other: str) -> Spread:
        """Return the same by CPU time, which shows less of what others do on the machine."""
        pairs = zip(self._outcomes[name], self._outcomes[other], strict=True)
        return Spread.of([one.cpu_rate / two.cpu_rate for one, two in pairs])

    def cpu_rates(self, name: str) -> Spread:
        """Return the rates of a job in 10^6 bytes of unpacked input per second of CPU time, by rounds."""
        return Spread.of([outcome.cpu_rate for outcome in self._outcomes[name]])

    def rate(self, name: str) -> float:
        """Return the median rate of a job in 10^6 bytes of unpacked input per second."""
        return statistics.median(outcome.rate for outcome in self._outcomes[name])

    def peak(self, name: str) -> Spread:
        """Return the most memory a job took, in 10^6 bytes, by rounds."""
        return Spread.of([outcome.peak_bytes / 1e6 for outcome in self._outcomes[name]])

    def median(self, name: str) -> Outcome:
        """Return the medians of what a job took."""
        outcomes = [asdict(outcome) for outcome in self._outcomes[name]]
        return Outcome(**{field: statistics.median(found[field] for found in outcomes) for field in outcomes[0]})


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
