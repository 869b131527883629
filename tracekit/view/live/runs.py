"""Group processes into runs, and compare the ranks of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING

from tracekit.storage import common_folder, is_remote, without_secrets
from tracekit.structs import Struct, field
from tracekit.traces.rank_head import Head
from tracekit.view.live.states import RankState, RunState, Slowest, State

if TYPE_CHECKING:
    from tracekit.view.live.files import FileCatalog, RecordingProcess


class RunFiles(Struct):
    """The files and processes of a run."""

    run_id: str
    folder: str = ""  # the folder of all files
    paths: list[str] = field(default_factory=list)
    ranks: dict[int, list[RecordingProcess]] = field(default_factory=lambda: defaultdict(list))  # the newest last
    children_lost: Counter[int] = field(default_factory=Counter)  # the events that the children of each rank have lost


def group_runs(catalog: FileCatalog) -> list[RunFiles]:
    """Return the runs of a catalog, which forgets processes without files."""
    heads = {path: known.what for path, known in catalog.files.items() if isinstance(known.what, Head)}
    split = _split_runs((path, head) for path, head in heads.items() if not head.child and not head.dump)

    def run_of(path: str, head: Head) -> tuple[str, str]:
        return head.run_id, path.rpartition("/")[0] if head.run_id in split else ""

    runs: dict[tuple[str, str], RunFiles] = {}
    for path, head in sorted(heads.items()):
        run = runs.setdefault(run_of(path, head), RunFiles(head.run_id))
        run.paths.append(path)
        if head.child:
            run.children_lost[head.rank] += head.lost_events
    for process in catalog.processes.values():
        newest = process.newest
        found = runs.get(run_of(newest.entry.path, newest.head))
        if found is not None:
            found.ranks[newest.head.rank].append(process)
    kept = [run for run in runs.values() if run.ranks]
    for run in kept:
        # The server opens a local folder, so its name must not change.
        names = [without_secrets(path) if is_remote(path) else path for path in run.paths]
        run.folder = common_folder(names).removesuffix("/")
        for processes in run.ranks.values():
            processes.sort(key=lambda own: (own.newest.head.attempt, own.newest.head.start_ns))
    catalog.keep(own for run in kept for processes in run.ranks.values() for own in processes)
    return kept


def _split_runs(heads: Iterable[tuple[str, Head]]) -> set[str]:
    """Return the run names that several runs share; each folder is then a separate run.

    A run may write to several folders, such as one per node. But if two folders have the same rank and attempt of different
    processes, they are two runs of one name: a launcher named none, or somebody made a copy.
    """
    places: dict[tuple[str, int, int], dict[str, set[tuple[object, ...]]]] = defaultdict(lambda: defaultdict(set))
    split = set()
    for path, head in heads:
        folders = places[head.run_id, head.rank, head.attempt]
        folders[path.rpartition("/")[0]].add(head.process)
        if len(folders) > 1 and len(set.union(*folders.values())) > 1:
            split.add(head.run_id)
    return split


def run_state(run: RunFiles, ranks: Sequence[RankState]) -> RunState:
    """Return the state of a run from those of its ranks."""
    # After a restart with another number of ranks, the last attempt counts.
    latest = max(rank.attempt for rank in ranks)
    world_size = max(rank.world_size for rank in ranks if rank.attempt == latest)
    present = {rank.rank for rank in ranks}
    missing_count = world_size - sum(1 for rank in present if rank < world_size)
    batches = [rank.batch for rank in ranks if rank.batch is not None]
    recording = [rank.batch for rank in ranks if rank.batch is not None and rank.state == "recording"]
    medians = [rank.median_step_ns for rank in ranks if rank.median_step_ns is not None]
    states = {rank.state for rank in ranks}
    order: tuple[State, ...] = ("recording", "cut", "lost", "finished")
    return RunState(
        run_id=run.run_id,
        folder=run.folder,
        state=next(state for state in order if state in states),
        unhealthy=bool(missing_count) or any(rank.unhealthy for rank in ranks),
        world_size=world_size,
        missing=tuple(islice((rank for rank in range(world_size) if rank not in present), 1000)),
        missing_count=missing_count,
        start_ns=min(rank.start_ns for rank in ranks),
        step=max(batches, default=None),
        step_skew=max(recording) - min(recording) if recording else 0,
        median_step_ns=round(median(medians)) if medians else None,
        slowest=_slowest(ranks),
        lost_events=sum(rank.lost_events for rank in ranks),
        ranks=tuple(ranks),
        paths=tuple(run.paths),
    )


def _slowest(ranks: Sequence[RankState]) -> Slowest | None:
    # The steps of ranks that have ended are from another time.
    recording = [rank for rank in ranks if rank.state == "recording"] or ranks
    own = [(rank.own_step_ns, rank) for rank in recording if rank.own_step_ns is not None]
    if len(own) < 2:
        return None
    longest, slowest = max(own, key=lambda pair: (pair[0], -pair[1].rank))
    typical = median(step_ns for step_ns, rank in own if rank is not slowest)
    by_ns = round(longest - typical)
    stage = _slow_stage(slowest, [rank for _, rank in own if rank is not slowest])
    return Slowest(rank=slowest.rank, by_ns=by_ns, share=by_ns / typical if typical else 0.0, stage=stage)


def _slow_stage(slowest: RankState, others: Sequence[RankState]) -> str:
    """Return the stage, without collectives, where a rank exceeds the median of the others most."""
    times: dict[str, list[float]] = defaultdict(list)
    staged = sum(bool(rank.staged_ns) for rank in others)
    for rank in others:
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
