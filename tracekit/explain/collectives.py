"""The collectives of a run, from the event table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.formats.decimal_time import format_us
from tracekit.formats.trace_event import UNSET, Event, Raw, encode_json
from tracekit.traces.collectives.collector import NAMES_OF_COLLECTIVES, Collective, CollectiveCollector

if TYPE_CHECKING:
    from tracekit.explain.run import Run

__all__ = ["read_collectives"]

_MAX_EVENTS: Final = 20_000
_NAMED: Final = " OR ".join(f"starts_with(name, '{name[1:].decode()}')" for name in NAMES_OF_COLLECTIVES)
_COUNT: Final = "SELECT count(*) FROM events WHERE phase = 'X' AND ({named}) AND NOT starts_with(name, 'ProfilerStep#')"
# The engine joins the arguments of few events only if these are not the result of another join.
_EVENTS: Final = """
SELECT coalesce(rank, -1), file, pid, tid, category, name, start_ns, duration_ns, args
FROM events WHERE phase = 'X' AND ({named})
QUALIFY row_number() OVER (PARTITION BY file, rank, left(name, 6) ORDER BY id) <= {most} ORDER BY file, id"""


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
