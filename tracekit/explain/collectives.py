"""The collectives of a run: the time that computing does not hide, and the time that ranks wait for late members.

All members leave a collective that synchronises at one moment, so that who is in it for the shortest time has come last, and
the others have waited for it. Durations are enough for that: the clocks need not be synchronised.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from tracekit.explain.arrays import np
from tracekit.explain.ranges import Cover
from tracekit.explain.stragglers_results import CollectiveReport, Member
from tracekit.formats.decimal_time import format_us
from tracekit.formats.trace_event import UNSET, Event, Raw, encode_json
from tracekit.structs import Struct
from tracekit.traces.collectives.collector import NAMES_OF_COLLECTIVES, Collective, CollectiveCollector, by_group
from tracekit.traces.collectives.matching import match

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracekit.explain.run import Run

_MAX_EVENTS: Final = 20_000
_NAMED: Final = " OR ".join(f"starts_with(name, '{name[1:].decode()}')" for name in NAMES_OF_COLLECTIVES)
_COUNT: Final = """
SELECT count(*) AS events FROM events WHERE phase = 'X' AND ({named}) AND NOT starts_with(name, 'ProfilerStep#')"""
_EVENTS: Final = """
SELECT coalesce(rank, -1) AS rank, file, pid, tid, category, name, start_ns, duration_ns, a.args FROM (
    SELECT * EXCLUDE (args) FROM events WHERE phase = 'X' AND ({named})
    QUALIFY row_number() OVER (PARTITION BY file, rank, left(name, 6) ORDER BY id) <= {most}
) LEFT JOIN event_args a USING (file, id) ORDER BY file, id"""

# Only torch.profiler's operators show when a CPU computes. An operator with children computes in these, and waits elsewhere.
_PROFILED: Final = """
SELECT DISTINCT rank, step FROM slice WHERE category = 'cpu_op' AND step IS NOT NULL AND kind = 'stage'"""
_TIMES: Final = """
SELECT rank, pid, start_ns, start_ns + duration_ns AS end_ns, kind = 'collective' AS is_collective FROM slice
WHERE kind = 'collective' OR category = 'cpu_op' AND self_ns = duration_ns"""
_STAGES: Final = """
SELECT rank, label, start_ns, start_ns + duration_ns AS end_ns FROM slice WHERE label IN ({labels})"""


def exposed_shares(run: Run, stages: Collection[str]) -> dict[int, dict[str, float]]:
    """Return the share of the steps of each rank in which a collective runs on a CPU thread and no operator computes.

    Only the steps that torch.profiler recorded count. A rank without such a step, or without a collective, is left out. Each
    stage that is named has a part of the time; the name "" stands for the whole time.
    """
    if all(kind != "collective" for _, _, kind in run.labels):
        return {}
    profiled: dict[int, list[int]] = {}
    for rank, step in run.database.run(_PROFILED):
        profiled.setdefault(rank, []).append(step)
    times = _arrays(run, _TIMES)
    talks = times["is_collective"].astype(bool)
    labels = run.labels_of(stages, ("stage",))
    named = ", ".join(str(label) for own in labels.values() for label in own)
    in_stages = _arrays(run, _STAGES.format(labels=named or "NULL"))
    shares: dict[int, dict[str, float]] = {}
    for rank, steps in run.steps.ranks.items():
        counted = steps.counts & np.isin(steps.numbers, profiled.get(rank, []))
        own = times["rank"] == rank
        talking = own & talks
        if not counted.any() or not talking.any():
            continue
        # A process without a collective, such as that of a data loader, does not compute for the step.
        computing = own & ~talks & np.isin(times["pid"], np.unique(times["pid"][talking]))
        # Of millions of operators, only those that run during a collective matter.
        begun = np.searchsorted(np.sort(times["start_ns"][talking]), times["end_ns"][computing], side="left")
        ended = np.searchsorted(np.sort(times["end_ns"][talking]), times["start_ns"][computing], side="right")
        computing[computing] = begun > ended
        talk, work = ([times[name][chosen] for name in ("start_ns", "end_ns")] for chosen in (talking, computing))
        starts, ends = steps.starts[counted], steps.ends[counted]
        total = float((ends - starts).sum())
        exchange_ns = Cover(talk, work).within(starts, ends) - Cover(work).within(starts, ends)
        shares[rank] = {"": exchange_ns / total}
        for name, found in labels.items():
            inside = (in_stages["rank"] == rank) & np.isin(in_stages["label"], found)
            stage = [in_stages[name][inside] for name in ("start_ns", "end_ns")]
            # The part of the exchange in the stage: both together, less the time with either.
            either_ns = Cover(stage, talk, work).within(starts, ends) - Cover(stage, work).within(starts, ends)
            shares[rank][name] = (exchange_ns - either_ns) / total
    return shares


def _arrays(run: Run, sql: str) -> dict[str, Any]:
    return {name: np.asarray(values) for name, values in run.database.columns(sql).items()}


class Waits(Struct, frozen=True):
    """Waiting in collectives."""

    report: CollectiveReport | None  # None where no collective was found on two ranks or more
    late_ns: dict[int, list[float]]  # of each rank, its delay behind the median of the other members in each collective
    starts_ns: dict[int, list[int]]  # of each rank, when it came to each of these
    unmatched: list[str]  # why those of some pairs of ranks could not be matched, in words


def collective_waits(run: Run) -> Waits:
    """Find the time that each rank waited for others in collectives."""
    groups: dict[tuple[str, str], dict[int, list[Collective]]] = {}
    for rank, own in sorted(_read_collectives(run).items()):
        for group, found in by_group(own):
            groups.setdefault(group, {})[rank] = found
    matched: list[dict[int, Collective]] = []
    unmatched: list[str] = []
    for _, logs in sorted(groups.items()):
        (hub, ours), *others = logs.items()
        sets: dict[int, dict[int, Collective]] = {id(one): {hub: one} for one in ours}
        for rank, theirs in others:
            pairs = match(ours, theirs)
            if isinstance(pairs, str):
                unmatched.append(f"ranks {hub} and {rank}: {pairs}")
                continue
            for one, other in pairs:
                sets[id(one)][rank] = other
        matched += [one for one in sets.values() if len(one) > 1]
    late: dict[int, list[float]] = {}
    sums: dict[int, list[int]] = {}  # of each rank: the time that it waited, the time after, and how often it came last
    spreads = sorted(_take(one, late, sums) for one in matched)
    if not spreads:
        return Waits(None, {}, {}, unmatched)
    members = []
    for rank, (wait, transfer, last) in sorted(sums.items()):
        mean_ns = fmean(late[rank])
        counts = {"count": len(late[rank]), "last": last}
        members.append(Member(rank=rank, wait_ns=wait, transfer_ns=transfer, mean_late_ns=mean_ns, **counts))
    report = CollectiveReport(
        count=len(spreads),
        spread_median_ns=spreads[len(spreads) // 2],
        spread_longest_ns=spreads[-1],
        members=members,
    )
    starts = {rank: [one[rank].start_ns for one in matched if rank in one] for rank in late}
    return Waits(report, late, starts, unmatched)


def _take(found: dict[int, Collective], late: dict[int, list[float]], sums: dict[int, list[int]]) -> int:
    """Add up one collective; returns how far apart the first and the last came."""
    lengths = {rank: one.end_ns - one.start_ns for rank, one in found.items()}
    transfer = min(lengths.values())
    last = min(lengths, key=lambda rank: (lengths[rank], rank))
    ordered = sorted(lengths.values())
    places = (len(ordered) - 2) // 2, (len(ordered) - 1) // 2
    for rank, length in lengths.items():
        # The median of the others: the sorted lengths without the own one.
        others = fmean(ordered[place + (length <= ordered[place])] for place in places)
        late.setdefault(rank, []).append(others - length)
        before = sums.get(rank, [0, 0, 0])
        sums[rank] = [before[0] + length - transfer, before[1] + transfer, before[2] + (rank == last)]
    return max(lengths.values()) - transfer


def _read_collectives(run: Run) -> dict[int, list[Collective]]:
    """Return the collectives of each rank in the order of their ends; of each kind of event, at most the first 20,000."""
    run.database.derive("collective_count", _COUNT.format(named=_NAMED))
    ((count,),) = run.database.run("SELECT events FROM collective_count")
    if not count:
        return {}
    found: dict[tuple[int, int], CollectiveCollector] = {}
    run.database.derive("collective_event", _EVENTS.format(named=_NAMED, most=4 * _MAX_EVENTS), args=True)
    for rank, file, pid, tid, category, name, start_ns, duration_ns, args in run.database.iterate(
        "SELECT * FROM collective_event"
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
