"""Runs: which processes belong together, and what their ranks say of each other."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Final

from tracekit.watching.states import RunState, Slowest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.watching.heads import Head
    from tracekit.watching.states import RankState

__all__ = ["folder_of", "run_keys", "run_state"]

_MOST_MISSING: Final = 1000


def folder_of(path: str) -> str:
    """Return the folder or prefix that a file is in."""
    return path.rpartition("/")[0]


def run_keys(heads: Iterable[tuple[str, Head]]) -> dict[str, bool]:
    """Tell of each run, by its name, whether each folder is a run of its own.

    A run may write to many folders (one for each node). But where two folders have the same rank and attempt of different
    processes, they are two runs of one name: as launchers give it that do not name runs, or a copy.

    Args:
        heads: Each file that was written by a rank itself, with its head.
    """
    places: dict[tuple[str, int, int], dict[str, set[tuple[object, ...]]]] = defaultdict(lambda: defaultdict(set))
    keys: dict[str, bool] = {}
    for path, head in heads:
        keys.setdefault(head.run_id, False)
        own = places[head.run_id, head.rank, head.attempt]
        own[folder_of(path)].add(head.process)
        if len(own) > 1 and len(set.union(*own.values())) > 1:
            keys[head.run_id] = True
    return keys


def run_state(run_id: str, folder: str, ranks: Sequence[RankState], paths: Sequence[str]) -> RunState:
    """Return the state of a run.

    Args:
        run_id: Its name.
        folder: Where its files are.
        ranks: Its ranks, in order.
        paths: All of its files.
    """
    # After a restart with other ranks, those of the last attempt count.
    latest = max(rank.attempt for rank in ranks)
    world_size = max(rank.world_size for rank in ranks if rank.attempt == latest)
    present = {rank.rank for rank in ranks}
    missing: list[int] = []
    for rank in range(world_size):
        if rank not in present:
            missing.append(rank)
            if len(missing) >= _MOST_MISSING:
                break
    batches = [rank.batch for rank in ranks if rank.batch is not None]
    recording = [rank.batch for rank in ranks if rank.batch is not None and rank.state == "recording"]
    medians = [rank.median_step_ns for rank in ranks if rank.median_step_ns is not None]
    return RunState(
        run_id=run_id,
        folder=folder,
        ranks=tuple(ranks),
        world_size=world_size,
        missing=tuple(missing),
        missing_count=world_size - sum(1 for rank in present if rank < world_size),
        paths=tuple(paths),
        start_ns=min(rank.start_ns for rank in ranks),
        step=max(batches, default=None),
        step_skew=max(recording) - min(recording) if recording else 0,
        median_step_ns=round(median(medians)) if medians else None,
        slowest=_slowest(ranks),
    )


def _slowest(ranks: Sequence[RankState]) -> Slowest | None:
    # Those that have ended tell of another time.
    recording = [rank for rank in ranks if rank.state == "recording"] or ranks
    own = [(step_ns, rank) for rank in recording if (step_ns := rank.own_step_ns) is not None]
    if len(own) < 2:
        return None
    longest, slowest = max(own, key=lambda pair: (pair[0], -pair[1].rank))
    others = [rank for _, rank in own if rank is not slowest]
    typical = median(step_ns for step_ns, rank in own if rank is not slowest)
    by_ns = round(longest - typical)
    return Slowest(slowest.rank, by_ns, by_ns / typical if typical else 0.0, _slow_stage(slowest, others))


def _slow_stage(slowest: RankState, others: Sequence[RankState]) -> str:
    """Return in which stage a rank takes most longer than the median of the others, of what it does itself."""
    times: dict[str, list[float]] = defaultdict(list)
    staged = 0
    for rank in others:
        staged += bool(rank.staged_ns)
        for stage in rank.stages:
            times[stage.name].append(stage.share * (rank.median_step_ns or 0))
    found, most = "", 0.0
    for stage in slowest.stages:
        known = times[stage.name]
        typical = median(known + [0.0] * (staged - len(known))) if staged else 0.0
        more = stage.share * (slowest.median_step_ns or 0) - typical
        if not stage.waiting and more > most:
            found, most = stage.name, more
    return found
