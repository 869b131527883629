"""Counters over time, of all ranks on one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.explain.results import Result

if TYPE_CHECKING:
    from tracekit.explain.run import Run

TIMES: Final = 96  # the maximum number of points of a counter

MAX_COUNTERS: Final = 200

# Events of torch's allocator are counters of each device; the device type 0 is the CPU.
_MEMORY: Final = """
    UNION ALL
    SELECT coalesce(rank, -1), 'torch memory ' || CASE WHEN try((args->>'Device Type')::INTEGER) = 0 THEN 'CPU'
            ELSE 'GPU ' || try((args->>'Device Id')::BIGINT) END,
        unnest(['allocated_bytes', 'reserved_bytes']), start_ns,
        unnest([try((args->>'Total Allocated')::DOUBLE), try((args->>'Total Reserved')::DOUBLE)])
    FROM (SELECT rank, file, id, start_ns FROM events WHERE name = '[memory]') JOIN event_args USING (file, id)
    WHERE args LIKE '%"Total Allocated"%'"""

_FOUND: Final = """
CREATE TEMP VIEW counter_found AS
SELECT coalesce(rank, -1) AS rank, left(name, 200) AS name, left(series, 200) AS key, time_ns, value FROM counters{memory}"""

_VALUES: Final = """
CREATE TEMP TABLE counter_value AS
WITH kept AS (
    SELECT name, key FROM counter_found WHERE name IS NOT NULL GROUP BY name, key ORDER BY count(*) DESC, name, key LIMIT {most}
)
SELECT found.* FROM counter_found found SEMI JOIN kept USING (name, key) WHERE abs(value) < 1e300"""

_COUNTERS: Final = """
WITH of_rank AS (
    SELECT name, key, rank, count(*) AS count, arg_max(value, (time_ns, value)) AS last, min(value) AS low, max(value) AS high
    FROM counter_value GROUP BY name, key, rank
)
SELECT name, key, list(rank ORDER BY rank), sum(count)::BIGINT, list(last ORDER BY rank), min(low), max(high)
FROM of_rank GROUP BY name, key ORDER BY name, key"""

# favg: the last digit of avg depends on the order in which threads add.
_TIMES: Final = """
WITH place AS (
    SELECT min(time_ns) AS start_ns, greatest(1, ceil((max(time_ns) - min(time_ns) + 1) / {times})::BIGINT) AS width_ns
    FROM counter_value
), cell AS (
    SELECT name, key, rank, (time_ns - start_ns) // width_ns * width_ns AS at_ns, favg(value) AS mean, min(value) AS low,
        max(value) AS high
    FROM counter_value, place GROUP BY ALL
)
SELECT name, key, at_ns, min(low), median(mean), max(high) FROM cell GROUP BY name, key, at_ns ORDER BY name, key, at_ns"""


class CounterTime(Result, frozen=True):
    """A counter at a time."""

    time_ns: int  # the time since the first value of any counter
    low: float  # the least value of any rank
    median: float  # the median of the ranks' means
    high: float  # the largest value of any rank


class Counter(Result, frozen=True):
    """A number of a counter, of all processes that have it."""

    name: str  # the name of the counter
    key: str  # the name of the number
    ranks: list[int]  # the ranks that have it
    values: int  # the number of its values
    last: list[float]  # the last value of each rank
    low: float  # the least value
    high: float  # the largest value
    times: list[CounterTime]  # its values over time, in order


class CounterReport(Result, frozen=True):
    """The counters."""

    counters: list[Counter]  # those with the most values, at most 200, by name
    others: int  # the number of counters beyond them


def counters_of(run: Run) -> CounterReport:
    """Return the counters of a run, with the memory of torch's allocator."""
    database = run.database
    memory = database.run("SELECT 1 FROM events WHERE name = '[memory]' LIMIT 1")
    if memory:
        database.add_args()
    database.run(_FOUND.format(memory=_MEMORY if memory else ""))
    database.run(_VALUES.format(most=MAX_COUNTERS))
    ((whole,),) = database.run(
        "SELECT count(*) FROM (SELECT DISTINCT name, key FROM counter_found WHERE name IS NOT NULL)"
    )
    times: dict[tuple[str, str], list[CounterTime]] = {}
    for name, key, *values in database.run(_TIMES.format(times=TIMES)):
        times.setdefault((name, key), []).append(CounterTime(*values))
    found = [
        Counter(name, key, ranks, count, last, low, high, times[name, key])
        for name, key, ranks, count, last, low, high in database.run(_COUNTERS)
    ]
    return CounterReport(found, max(0, whole - MAX_COUNTERS))
