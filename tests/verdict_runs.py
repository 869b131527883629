"""Simulated runs as traces, put through the commands."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.verdict_simulation import NOISES, STAGES, WAIT, draw_seed, own_times, with_waiting
from tracekit.cli import main as tracekit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.verdict_simulation import Floats

BACKWARD = STAGES.index("backward")


def write_run(folder: Path, times: Floats, *, collectives: bool = True, starts_ns: Sequence[int] = ()) -> str:
    """Write stage times, ns, shape (ranks, steps, stages), as rank traces to a new folder, and return it.

    Without ``collectives``, the exchange has a name that shows none. ``starts_ns`` are the starts of the ranks.
    """
    folder.mkdir()
    names = [name if collectives or name != "all_reduce" else "sync" for name in STAGES]
    for rank, own in enumerate(np.round(times).astype(int).tolist()):
        thread = {"pid": 10 + rank, "tid": 1}
        events = [{**thread, "ph": "M", "name": "tracekit_metadata", "args": {"rank": rank, "pid": 10 + rank}}]
        at = starts_ns[rank] if starts_ns else 0
        for step, lengths in enumerate(own):
            batch = {"name": "batch", "cat": "training loop", "args": {"batch": step}, "pid": 10 + rank, "tid": 2}
            events.append({**batch, "ph": "X", "ts": at / 1000, "dur": sum(lengths) / 1000})
            for name, length in zip(names, lengths, strict=True):
                events.append({**thread, "ph": "X", "cat": "", "name": name, "ts": at / 1000, "dur": length / 1000})
                at += length
        (folder / f"rank{rank}.json").write_text(json.dumps(events))
    return str(folder)


def drawn_times(random: np.random.Generator, kind: str, shape: tuple[int, int], layout: str, run: int) -> Floats:
    """Return the stage times of equal ranks."""
    times = own_times(random, NOISES[kind], shape, shared=run // 2 % 2 == 0)
    if layout == "collectives":
        return with_waiting(times, WAIT)
    return times if run % 2 else with_waiting(times, BACKWARD)


def command(arguments: Sequence[str]) -> tuple[int, str]:
    """Run a command; return its exit code and its output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        return tracekit(arguments), output.getvalue()


@dataclass
class Alarms:
    """False alarms of equal ranks and runs."""

    seed: int
    stragglers: int = 0  # runs with a slow rank, by ``tracekit stragglers``
    gates: int = 0  # pairs of runs that ``tracekit diff --fail-above 5%`` fails


def count_alarms(kind: str, layout: str, runs: int, shape: tuple[int, int]) -> Alarms:
    """Put equal ranks and equal runs through the commands."""
    found = Alarms(draw_seed((kind, layout)))
    random = np.random.default_rng(found.seed)
    with tempfile.TemporaryDirectory() as folder:
        for run in range(runs):
            pair = [
                write_run(
                    Path(folder, f"{run}{side}"),
                    drawn_times(random, kind, shape, layout, run),
                    collectives=layout == "collectives",
                )
                for side in "ab"
            ]
            found.stragglers += command(["stragglers", pair[0]])[0] != 0
            found.gates += command(["diff", *pair, "--fail-above", "5%"])[0] != 0
    return found
