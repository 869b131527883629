"""Simulate equal and unequal ranks and runs, and count false alarms and detections.

``python -m tests.verdict_simulation`` prints the table; ``--help`` lists the options. Every cell draws a
fresh seed and prints it. A step takes 100 ms: dataloader 10, forward 30, backward 40, all_reduce 5, optimizer 15.
Sigma is the noise of the step. In one half of the runs all stages of a rank share their noise, in the other each
stage has its own.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracekit.explain.arrays import median_of_others
from tracekit.explain.cycles import find_cycles
from tracekit.explain.noise import Correction, block_means
from tracekit.explain.run_change import StageCosts, compare_runs, find_causes
from tracekit.explain.slow_ranks import compare_ranks, find_outlier_steps, slow_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

REPEATS: Final = "TRACEKIT_REQUIRE_ENGINE" in os.environ
"""In .ci/run, runs are the same each time, as the examples of properties are; see tests/conftest.py."""

STEP_NS: Final = 100e6
STAGES: Final = ("dataloader", "forward", "backward", "all_reduce", "optimizer")
SHARES: Final = np.array([0.10, 0.30, 0.40, 0.05, 0.15])
WAIT: Final = 3
BLOCK: Final = 32
"""Steps of autoregressive noise that are computed together."""
LAYOUTS: Final = ("markers", "collectives")
OF_400: Final = (8, 14)
"""Alarms in 400 runs that 95 % of the cells, and that all cells, must not exceed."""


@dataclass(frozen=True)
class Noise:
    """A kind of noise.

    Attributes:
        name: Its name.
        sigma: Standard deviation of the step, as a share.
        make: Returns noise of standard deviation 1 and this shape; the last axis is time.
        spikes: Share of steps with a spike on a rank.
        drift: Amplitude of a drift that all ranks share.
        required: True if the false-alarm rates are required to hold.
    """

    name: str
    sigma: float
    make: Callable[[np.random.Generator, tuple[int, ...]], Floats]
    spikes: float = 0.0
    drift: float = 0.0
    required: bool = True


def white(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return independent noise."""
    return random.standard_normal(shape)


def autoregressive(correlation: float) -> Callable[[np.random.Generator, tuple[int, ...]], Floats]:
    """Return a maker of AR(1) noise of this lag-1 correlation."""
    lags = np.subtract.outer(np.arange(BLOCK), np.arange(BLOCK))
    # What each step of a block has of each step before.
    shares = np.where(lags < 0, 0.0, correlation ** np.maximum(lags, 0))

    def make(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        values = random.standard_normal(shape)
        values[..., 1:] *= np.sqrt(1 - correlation**2)
        for start in range(0, shape[-1], BLOCK):
            block = values[..., start : start + BLOCK]
            if start:
                block[..., 0] += correlation * values[..., start - 1]
            size = block.shape[-1]
            block[...] = block @ shares[:size, :size].T
        return values

    return make


def hidden(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return slow noise, AR(1) 0.95, below white noise of equal variance."""
    mixed: Floats = (autoregressive(0.95)(random, shape) + white(random, shape)) / np.sqrt(2)
    return mixed


NOISES: Final = {
    noise.name: noise
    for noise in (
        Noise("independent 3%", 0.03, white),
        Noise("independent 10%", 0.10, white),
        Noise("AR(1) 0.5 3%", 0.03, autoregressive(0.5)),
        Noise("AR(1) 0.5 10%", 0.10, autoregressive(0.5)),
        Noise("AR(1) 0.9 3%", 0.03, autoregressive(0.9)),
        Noise("AR(1) 0.9 10%", 0.10, autoregressive(0.9)),
        Noise("spiky", 0.03, white, spikes=0.02),
        Noise("drifting", 0.03, white, drift=0.2),
        Noise("slow below fast 10%", 0.10, hidden, required=False),
    )
}


def own_times(random: np.random.Generator, noise: Noise, shape: tuple[int, int], *, shared: bool) -> Floats:
    """Return stage times without waiting, ns, shape (ranks, steps, stages)."""
    ranks, steps = shape
    if shared:
        relative = noise.sigma * noise.make(random, shape)[:, :, None]
    else:
        relative = (
            noise.sigma / np.sqrt((SHARES**2).sum()) * noise.make(random, (ranks, len(SHARES), steps)).swapaxes(1, 2)
        )
    times: Floats = STEP_NS * SHARES * np.maximum(0.1, 1 + relative)
    if noise.drift:
        turns, phase = random.uniform(0.2, 2), random.uniform(0, 2 * np.pi)
        times *= 1 + noise.drift * np.sin(2 * np.pi * turns * np.arange(steps) / steps + phase)[None, :, None]
    if noise.spikes:
        hit = random.random(shape) < noise.spikes
        times[hit, random.integers(0, len(SHARES), hit.sum())] += random.exponential(0.5 * STEP_NS, hit.sum())
    return times


def with_waiting(times: Floats, stage: int) -> Floats:
    """Return the times of ranks that wait for each other at the end of a stage."""
    ahead = times[:, :, : stage + 1].sum(axis=2)
    ahead[:, 1:] += times[:, :-1, stage + 1 :].sum(axis=2)
    found = times.copy()
    found[:, :, stage] += ahead.max(axis=0) - ahead
    return found


Slow = tuple[int, str]
"""A rank and a stage."""


def simulate(
    random: np.random.Generator, noise: Noise, shape: tuple[int, int], layout: str, run: int, delay: float
) -> tuple[set[Slow], bool, Slow]:
    """Simulate a run of ranks.

    Returns:
        Ranks and stages that are named, whether outlier steps are reported that must not be, and the slow rank and stage.
    """
    times = own_times(random, noise, shape, shared=run // 2 % 2 == 0)
    waits = {"markers": None if run % 2 else 2, "collectives": WAIT}[layout]
    # A delay within the stage that hides the waiting cannot be seen.
    rank = int(random.integers(shape[0]))
    stage = int(random.choice([at for at in range(len(STAGES)) if at not in (waits, WAIT)]))
    if delay:
        times[rank, :, stage] += delay * STEP_NS
    if waits is not None:
        times = with_waiting(times, waits)
    cycles = find_cycles(
        times, [True] * shape[1], [layout == "collectives" and at == WAIT for at in range(len(STAGES))]
    )
    assert cycles is not None
    found = compare_ranks(cycles)
    assert found is not None
    named = {(one.row, "" if one.place is None else STAGES[cycles.order[one.place]]) for one in found.slow}
    outliers = find_outlier_steps(cycles)
    loud = any(one.is_recurrent for one in outliers) or (bool(outliers) and not noise.spikes)
    return named, loud, (rank, STAGES[stage])


@dataclass(frozen=True)
class Cell:
    """A cell of the table.

    Attributes:
        what: What is counted.
        noise: The noise.
        ranks, steps: How many.
        layout: The content of the traces.
        delay: Delay of the slow rank, as a share of the step.
        again: True where it is counted once more, of other runs.
    """

    what: str
    noise: str
    ranks: int
    steps: int
    layout: str
    delay: float = 0.0
    again: bool = False


@dataclass(frozen=True)
class Count:
    """Alarms or detections of a cell, with the number of runs and their seed."""

    cell: Cell
    seed: int
    runs: int
    alarms: int
    outliers: int = 0


def alarm_cells() -> Iterator[Cell]:
    """Yield the cells of false alarms of `compare_ranks`."""
    for ranks in (2, 8, 64):
        for steps in (150, 2000):
            for layout in LAYOUTS:
                for noise in NOISES:
                    yield Cell("alarm", noise, ranks, steps, layout)


def collective_cells() -> Iterator[Cell]:
    """Yield the cells of false alarms of `slow_rows` on delays at ten collectives a step."""
    for ranks, steps in ((2, 150), (8, 150), (8, 20), (64, 150)):
        for layout in ("steps known", "steps unknown"):
            for noise in NOISES:
                yield Cell("late alarm", noise, ranks, steps, layout)


def detection_cells() -> Iterator[Cell]:
    """Yield the cells of detections of `compare_ranks`."""
    for ranks in (2, 8, 64):
        for layout in LAYOUTS:
            for noise, steps, delay in (
                ("independent 10%", 200, 0.05),
                ("AR(1) 0.5 10%", 600, 0.05),
                ("AR(1) 0.9 3%", 600, 0.05),
                ("AR(1) 0.9 10%", 4000, 0.05),
                ("AR(1) 0.9 3%", 300, 0.25),
            ):
                yield Cell("detection", noise, ranks, steps, layout, delay)


def diff_cells() -> Iterator[Cell]:
    """Yield the cells of `compare_runs`: false alarms, and slow-downs of 8 % that a gate of 5 % must see."""
    for noise in NOISES:
        for steps in (150, 2000):
            for layout in ("one run a side", "four baselines"):
                yield Cell("diff alarm", noise, 2, steps, layout)
    for noise, steps in (("independent 10%", 600), ("AR(1) 0.5 10%", 2000), ("AR(1) 0.9 3%", 2000)):
        yield Cell("diff detection", noise, 2, steps, "one run a side", 0.08)


def cause_cells() -> Iterator[Cell]:
    """Yield the cells of `find_causes`: false alarms of equal runs, and the cause where one rank of a run is slow."""
    for ranks in (4, 64):
        for noise in NOISES:
            yield Cell("cause alarm", noise, ranks, 150, "collectives")
        for noise, steps, delay in (
            ("independent 10%", 200, 0.3),
            ("AR(1) 0.5 10%", 600, 0.3),
            ("AR(1) 0.9 3%", 600, 0.15),
        ):
            yield Cell("cause", noise, ranks, steps, "collectives", delay)


GROUPS: Final = {
    "equal ranks": alarm_cells,
    "equal ranks with many collectives": collective_cells,
    "equal runs": diff_cells,
    "causes": cause_cells,
    "delays": detection_cells,
}


def draw_seed(what: object) -> int:
    """Return a new seed; in .ci/run, that of a thing."""
    return zlib.crc32(repr(what).encode()) if REPEATS else secrets.randbits(32)


def count(cell: Cell, runs: int) -> Count:
    """Count the alarms or detections of a cell."""
    seed = draw_seed(cell)
    random = np.random.default_rng(seed)
    noise = NOISES[cell.noise]
    found = outliers = 0
    for run in range(runs):
        if cell.what.startswith("diff"):
            found += diff_alarm(random, noise, cell, run)
            continue
        if cell.what.startswith("cause"):
            found += cause_found(random, noise, cell, run)
            continue
        if cell.what == "late alarm":
            found += late_alarm(random, noise, cell, run)
            continue
        named, loud, slow = simulate(random, noise, (cell.ranks, cell.steps), cell.layout, run, cell.delay)
        # A detection names the slow rank and its stage, and no other rank.
        found += named == {slow} if cell.delay else bool(named)
        outliers += loud
    return Count(cell, seed, runs, found, outliers)


def late_alarm(random: np.random.Generator, noise: Noise, cell: Cell, run: int) -> bool:
    """Return True if a rank of equal ranks is said to come late to collectives."""
    each = 10
    own = own_times(random, noise, (cell.ranks, cell.steps), shared=run % 2 == 0).sum(axis=2)
    # Each collective shows its part of the delay of the step, and some noise.
    parts = np.tile(random.uniform(0.2, 1, each), cell.steps)
    late = np.repeat(own, each, axis=1) * parts + 0.01 * STEP_NS * random.standard_normal((cell.ranks, len(parts)))
    late -= median_of_others(late)
    blocks = block_means(late, cell.steps if cell.layout == "steps known" else 30)
    return bool(slow_rows(blocks, 0.002 * STEP_NS, Correction(cell.ranks, 0.99)))


def cause_found(random: np.random.Generator, noise: Noise, cell: Cell, run: int) -> bool:
    """Return True if a cause is found between equal runs; with a delay, if it is that of the slow rank and nothing else."""
    rank, stage = int(random.integers(cell.ranks)), int(random.choice([at for at in range(len(STAGES)) if at != WAIT]))
    meets = [at == WAIT for at in range(len(STAGES))]
    sides = []
    for is_slow in (False, bool(cell.delay)):
        times = own_times(random, noise, (cell.ranks, cell.steps), shared=run // 2 % 2 == 0)
        times[rank, :, stage] += is_slow * cell.delay * STEP_NS
        cycles = find_cycles(with_waiting(times, WAIT), [True] * cell.steps, meets)
        assert cycles is not None
        sides.append(StageCosts.of_cycles(cycles, range(cell.ranks), STAGES, meets))
    before, after = sides if run % 2 else sides[::-1]
    causes, waiting = find_causes([before], after, Correction(4 * len(STAGES), 0.99), 0.02)
    if not cell.delay:
        return bool(causes)
    return [(one.stage, one.ranks) for one in causes] == [(STAGES[stage], [rank])] and waiting == {STAGES[WAIT]}


def diff_alarm(random: np.random.Generator, noise: Noise, cell: Cell, run: int) -> bool:
    """Return True if equal runs differ or fail a gate of 5 %; with a delay, if they fail the gate."""
    several = cell.layout == "four baselines"
    sides = []
    for side in range(5 if several else 2):
        times = own_times(random, noise, (cell.ranks, cell.steps), shared=run % 2 == 0)
        # A stage below 1 % of the step that is 3 % faster or slower.
        small = 0.008 * STEP_NS * (1 + random.choice([-0.03, 0.03]) + 0.01 * random.standard_normal(times.shape[:2]))
        times = np.concatenate([times, small[:, :, None]], axis=2)
        if several:
            times *= np.exp(0.02 * random.standard_normal())
        if cell.delay and side:
            times[:, :, 1] += cell.delay * STEP_NS
        times = np.concatenate([times, times.sum(axis=2, keepdims=True)], axis=2)
        sides.append(times.mean(axis=0))
    gate = compare_runs([side[:, -1] for side in sides[:-1]], sides[-1][:, -1])
    assert gate is not None
    fails = gate.ratio > max(1.05, gate.reach(Correction(1, 0.99)))
    if cell.delay:
        return fails
    tests = Correction(2 * sides[0].shape[1], 0.99)
    for stage in range(sides[0].shape[1]):
        change = compare_runs([side[:, stage] for side in sides[:-1]], sides[-1][:, stage])
        assert change is not None
        least = 0.02 * gate.before
        fails |= change.chance(tests) <= 0.01 and abs(change.after - change.before) >= least
    return fails


def line(one: Count) -> str:
    """Return a cell as a line of the table."""
    cell = one.cell
    where = f"{cell.what:14s} {cell.noise:20s} {cell.ranks:3d} ranks {cell.steps:5d} steps  {cell.layout:15s}"
    outliers = f" outliers {one.outliers}" if cell.what == "alarm" else ""
    delay = f" delay {cell.delay:.0%}" if cell.delay else ""
    mark = "" if NOISES[cell.noise].required else "  (beyond the required kinds)"
    return f"{where} {one.alarms:4d} of {one.runs}{outliers}{delay}  seed {one.seed}{mark}"


def verdict(counts: list[Count]) -> list[str]:
    """Return what does not hold; empty if everything does."""
    wrong = [f"too few detections: {line(one)}" for one in counts if one.cell.delay and one.alarms < 0.9 * one.runs]
    alarms = [one for one in counts if not one.cell.delay and NOISES[one.cell.noise].required]
    for attribute in ("alarms", "outliers"):
        rates = [400 * getattr(one, attribute) / one.runs for one in alarms]
        wrong += [
            f"too many {attribute}: {line(one)}" for one, rate in zip(alarms, rates, strict=True) if rate > OF_400[1]
        ]
        if sum(rate > OF_400[0] for rate in rates) > 0.05 * len(rates):
            wrong.append(f"more than 5 % of the cells have more than {OF_400[0]} {attribute} in 400 runs")
    return wrong


def main() -> int:
    """Print the table; return 1 if something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400, help="runs of each cell of false alarms (default: 400)")
    parser.add_argument("--detections", type=int, default=100, help="runs of each cell of detections (default: 100)")
    parser.add_argument("--only", choices=GROUPS, help="only these cells")
    arguments = parser.parse_args()
    groups = [GROUPS[arguments.only]] if arguments.only else GROUPS.values()
    counts = []
    for cell in (cell for cells in groups for cell in cells()):
        counts.append(count(cell, arguments.detections if cell.delay else arguments.runs))
        print(line(counts[-1]), flush=True)
    wrong = verdict(counts)
    print(*(wrong or [f"all {len(counts)} cells hold"]), sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
