"""The collectives of a run, and the time that computing does not hide, from the event table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.explain.arrays import np
from tracekit.formats.decimal_time import format_us
from tracekit.formats.trace_event import UNSET, Event, Raw, encode_json
from tracekit.traces.collectives.collector import NAMES_OF_COLLECTIVES, Collective, CollectiveCollector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.explain.arrays import Bools, Ints
    from tracekit.explain.run import Run

_MAX_EVENTS: Final = 20_000
_NAMED: Final = " OR ".join(f"starts_with(name, '{name[1:].decode()}')" for name in NAMES_OF_COLLECTIVES)
_COUNT: Final = "SELECT count(*) FROM events WHERE phase = 'X' AND ({named}) AND NOT starts_with(name, 'ProfilerStep#')"
# The engine joins the arguments of few events only if these are not the result of another join.
_EVENTS: Final = """
SELECT coalesce(rank, -1), file, pid, tid, category, name, start_ns, duration_ns, args
FROM events WHERE phase = 'X' AND ({named})
QUALIFY row_number() OVER (PARTITION BY file, rank, left(name, 6) ORDER BY id) <= {most} ORDER BY file, id"""

# Only torch.profiler's operators show when a CPU computes. An operator with children computes in these, and waits elsewhere.
_PROFILED: Final = """
SELECT DISTINCT rank, step FROM slice WHERE category = 'cpu_op' AND step IS NOT NULL AND kind = 'stage'"""
_TIMES: Final = """
SELECT rank, start_ns, start_ns + duration_ns AS end_ns, kind = 'collective' AS is_collective FROM slice
WHERE kind = 'collective' OR category = 'cpu_op' AND self_ns = duration_ns
    AND (rank, pid) IN (SELECT (rank, pid) FROM slice WHERE kind = 'collective')"""
_STAGES: Final = """
SELECT rank, start_ns, start_ns + duration_ns AS end_ns FROM slice
WHERE label IN (SELECT unnest({labels}::INTEGER[])) AND kind = 'stage'"""


def exposed_shares(run: Run, stages: Iterable[str]) -> dict[int, dict[str, float]]:
    """Return the share of the steps of each rank in which a collective runs on a CPU thread and no operator computes.

    Only the steps that torch.profiler recorded count. A rank without such a step, or without a collective, is left out.

    Args:
        run: The run.
        stages: Names of stages, for the part of the time in each; the name "" stands for the whole time.
    """
    if all(kind != "collective" for _, _, kind in run.labels):
        return {}
    profiled: dict[int, list[int]] = {}
    for rank, step in run.database.run(_PROFILED):
        profiled.setdefault(rank, []).append(step)
    times = _arrays(run, _TIMES)
    talks = times["is_collective"].astype(bool)
    in_stages = {name: _arrays(run, _STAGES.format(labels=_labels(run, name))) for name in stages}
    shares: dict[int, dict[str, float]] = {}
    for rank, steps in run.steps.ranks.items():
        counted = steps.counts & np.isin(steps.numbers, profiled.get(rank, []))
        own = times["rank"] == rank
        if not counted.any() or not (own & talks).any():
            continue
        ranges = {
            "steps": (steps.starts[counted], steps.ends[counted]),
            "talks": (times["start_ns"][own & talks], times["end_ns"][own & talks]),
            "computes": (times["start_ns"][own & ~talks], times["end_ns"][own & ~talks]),
        }
        for name, found in in_stages.items():
            ranges[f"stage {name}"] = (found["start_ns"][found["rank"] == rank], found["end_ns"][found["rank"] == rank])
        edges = np.unique(np.concatenate([edge for pair in ranges.values() for edge in pair]))
        within = {name: _covers(starts, ends, edges[:-1]) for name, (starts, ends) in ranges.items()}
        lengths = np.diff(edges) * (within["steps"] & within["talks"] & ~within["computes"])
        total = float(np.diff(edges)[within["steps"]].sum())
        shares[rank] = {"": float(lengths.sum()) / total}
        for name in in_stages:
            shares[rank][name] = float(lengths[within[f"stage {name}"]].sum()) / total
    return shares


def _arrays(run: Run, sql: str) -> dict[str, Any]:
    return {name: np.asarray(values) for name, values in run.database.columns(sql).items()}


def _labels(run: Run, stage: str) -> list[int]:
    return [label for label, (name, _, _) in enumerate(run.labels) if name == stage]


def _covers(starts: Ints, ends: Ints, times: Ints) -> Bools:
    """Return True for each time that lies in one of the ranges; their ends do not."""
    begun = np.searchsorted(np.sort(starts), times, side="right")
    ended = np.searchsorted(np.sort(ends), times, side="right")
    covered: Bools = begun > ended
    return covered


def read_collectives(run: Run) -> dict[int, list[Collective]]:
    """Return the collectives of each rank in the order of their ends; of each kind of event, at most the first 20,000."""
    ((count,),) = run.database.run(_COUNT.format(named=_NAMED))
    if not count:
        return {}
    found: dict[tuple[int, int], CollectiveCollector] = {}
    for rank, file, pid, tid, category, name, start_ns, duration_ns, args in run.with_args.run(
        _EVENTS.format(named=_NAMED, most=4 * _MAX_EVENTS)
    ):
        event = Event(
            ph="X",
            name=Raw(encode_json(name)),
            cat=UNSET if category is None else Raw(encode_json(category)),
            pid=pid,
            tid=tid,
            ts=Raw(format_us(start_ns)),
            dur=Raw(format_us(duration_ns)),
            args=UNSET if args is None else Raw(args.encode()),
        )
        found.setdefault((rank, file), CollectiveCollector(_MAX_EVENTS)).add(event)
    collectives: dict[int, list[Collective]] = {}
    for (rank, _), collector in found.items():
        collectives.setdefault(rank, []).extend(collector.result().get(None, []))
    return {rank: own for rank, own in collectives.items() if own}
