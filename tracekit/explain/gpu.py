"""Split the time of the GPUs: idle time and its causes, kernels by type, launches, copies and memory.

An idle time in which torch.profiler paused, as between the windows of its schedule, does not count.

All figures come from the event table. They use the definitions of HolisticTraceAnalysis where it has one, and
say so where they differ. A GPU is idle while none of its streams has an activity; an activity is a kernel, a copy or a fill.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from tracekit.explain.arrays import np
from tracekit.explain.gpu_results import Collectives, Copies, GPUReport, GPUTime, Kernel, Launches, Memory, Stream
from tracekit.explain.ranges import NEVER, Busy, Cover
from tracekit.formats.kineto import COLLECTIVE_NAMES, CPU_OPERATORS, GPU_ACTIVITIES, GPU_SHADOWS, RUNTIME_CALLS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from tracekit.explain.arrays import Ints
    from tracekit.explain.results import ResultT
    from tracekit.table.derived import RunDatabase

_PIECE: Final = 500_000  # activities of a GPU in memory


def explain_gpu(table: RunDatabase) -> GPUReport:
    """Explain the time of all GPUs in the event table."""
    return GPUReport(
        gpus=gpu_times_and_gaps(table, 0)[0],
        streams=_structs(Stream, table, _STREAMS),
        kernels=_structs(Kernel, table, _KERNELS),
        launches=_structs(Launches, table, _LAUNCHES),
        copies=_structs(Copies, table, _COPIES),
        memory=_structs(Memory, table, _MEMORY, args=True),
        collectives=_structs(Collectives, table, _COLLECTIVES, args=True),
    )


def gpu_times_and_gaps(table: RunDatabase, most: int) -> tuple[list[GPUTime], list[tuple[Any, ...]]]:
    """Return the time of each GPU, and the longest idle times: rank, device, start and length in ns, and the names around."""
    table.derive("gpu_activity", _ACTIVITIES.format(activities=GPU_ACTIVITIES, calls=RUNTIME_CALLS))
    table.derive("profiler_pause", _PAUSES)
    others = ("python_function", "Trace", *GPU_ACTIVITIES, *GPU_SHADOWS)
    table.derive("cpu_collective", _CPU_COLLECTIVES.format(collective=COLLECTIVE_NAMES, others=others))
    free = _CPU_FREE.format(operators=CPU_OPERATORS, calls=RUNTIME_CALLS)
    table.derive("cpu_free", free, of=("cpu_collective",))
    times: list[GPUTime] = []
    gaps: list[str] = []
    for gpu in (_GPU(*row) for row in table.run(_GPUS)):
        time, longest, _ = _gpu_time(table, gpu, most)
        times.append(time)
        gaps += [str(gap[1:]) for gap in longest]
    return times, list(table.run(_GAPS.format(gaps=", ".join(gaps)))) if gaps else []


def free_times_in(table: RunDatabase, stages: Mapping[str, str]) -> Counter[str]:
    """Return the part of all ``host_free_ns`` in each stage, after `gpu_times_and_gaps`.

    A stage is a query of slices, with ``rank``, ``start_ns`` and ``end_ns``.
    """
    found: Counter[str] = Counter()
    for gpu in (_GPU(*row) for row in table.run(_GPUS)):
        free = _ranges(table, "cpu_free", gpu.rank)
        own = [_ranges(table, f"({sql})", gpu.rank) for sql in stages.values()]
        covers = [cover for ranges in own for cover in (Cover(ranges), Cover(ranges, free))]
        time, _, within = _gpu_time(table, gpu, 0, covers)
        for name, own_ns, either_ns in zip(stages, within[::2], within[1::2], strict=True):
            found[name] += own_ns + (time.host_free_ns or 0) - either_ns
    return found


class _GPU(NamedTuple):
    rank: int | None
    device: int
    name: str | None
    activities: int
    first_ns: int  # the start of the first activity
    last_ns: int  # that of the last


def _literal(rank: int | None) -> str:
    return "NULL" if rank is None else str(rank)


def _ranges(table: RunDatabase, name: str, rank: int | None) -> list[Ints]:
    """Return the starts and ends of the ranges of a rank."""
    return [*table.columns(_OF_RANK.format(table=name, rank=_literal(rank))).values()]


def _gpu_time(
    table: RunDatabase, gpu: _GPU, most: int, parts: Sequence[Cover] = ()
) -> tuple[GPUTime, list[tuple[int, ...]], list[int]]:
    """Return the time of a GPU, its longest idle times, and its waiting for launches in each of some parts of the time.

    An idle time is minus its length, its start, and the file and id of the activity after it.
    """
    every, compute, communication, kernels, memory = (Busy() for _ in range(5))
    pause_ns = host_bound_ns = 0
    known = "profiler_pause", "cpu_collective", "cpu_free"
    pauses, exchange, free = (Cover(_ranges(table, name, gpu.rank)) for name in known)
    covers = exchange, free, *parts
    within = [0] * len(covers)
    gaps: list[tuple[int, ...]] = []
    pieces = -(-gpu.activities // _PIECE)
    edges = [gpu.first_ns + (gpu.last_ns + 1 - gpu.first_ns) * number // pieces for number in range(pieces + 1)]
    for first, end in pairwise(edges):
        piece = table.columns(_OF_GPU.format(rank=_literal(gpu.rank), device=gpu.device, first=first, end=end))
        starts, ends = piece["start_ns"], piece["end_ns"]
        computes, communicates = piece["computes"], piece["communicates"]
        of_kernels = computes | communicates
        until = every.add(starts, ends)
        kinds = {compute: computes, communication: communicates, kernels: of_kernels, memory: ~of_kernels}
        for busy, chosen in kinds.items():
            busy.add(starts[chosen], ends[chosen])
        idle = (until > NEVER) & (starts > until)
        pausing = idle & (pauses.until(starts) > pauses.until(until))
        pause_ns += int((starts[pausing] - until[pausing]).sum())
        idle &= ~pausing
        waits = idle & (piece["call_ns"] > until)
        host_bound_ns += int((starts[waits] - until[waits]).sum())
        for place, cover in enumerate(covers):
            within[place] += cover.within(until[waits], starts[waits])
        at = np.flatnonzero(idle)
        at = at[np.argsort(until[at] - starts[at], kind="stable")[:most]]
        columns = (until - starts, until, piece["file"], piece["id"])
        gaps += zip(*(values[at].tolist() for values in columns), strict=True)
    span_ns = every.until_ns - gpu.first_ns - pause_ns
    time = GPUTime(
        rank=gpu.rank,
        device=gpu.device,
        name=gpu.name or f"GPU {gpu.device}",
        span_ns=span_ns,
        busy_ns=every.total_ns,
        compute_ns=compute.total_ns,
        communication_ns=communication.total_ns,
        hidden_ns=compute.total_ns + communication.total_ns - kernels.total_ns,
        memory_ns=memory.total_ns,
        idle_ns=span_ns - every.total_ns,
        host_bound_ns=host_bound_ns,
        host_communication_ns=within[0],
        host_free_ns=within[1] if free else None,
    )
    return time, sorted(gaps, key=itemgetter(0))[:most], within[2:]


def _structs(kind: type[ResultT], table: RunDatabase, sql: str, *, args: bool = False) -> list[ResultT]:
    """Return the rows of a query about activities, whose columns have the order of the fields."""
    fields, name = kind.fields(), f"gpu_{kind.__name__.lower()}"
    columns = ", ".join(f'"{field}"' for field in fields)  # one of them is a word of SQL
    table.derive(name, f"FROM ({sql}) found({columns})", of=("gpu_activity", "profiler_pause"), args=args)
    return [kind(**dict(zip(fields, row, strict=True))) for row in table.run(f"FROM {name}")]


# The pattern is matched once for each name, which takes half as long as for each activity. A materialized CTE would hold all
# columns of the events.
# Correlation ids repeat, as in each attempt of a rank: an activity is of the last call before it, else of the first one.
_ACTIVITIES: Final = """
WITH device_event AS NOT MATERIALIZED (
    SELECT * FROM events WHERE phase = 'X' AND category IN {activities}
), device_name AS (
    SELECT name, regexp_matches(name,
        'nccl|rccl|hccl|nvshmem|all_?reduce|reduce_?scatter|all_?gather|all_?to_?all', 'i') AS communicates
    FROM (SELECT DISTINCT name FROM device_event)
), activity AS (
    SELECT id, file, rank, coalesce(device, pid, 0) AS device, coalesce(stream, tid) AS stream, name, process,
        start_ns, start_ns + coalesce(duration_ns, 0) AS end_ns, correlation, bytes,
        CASE WHEN category IN ('gpu_memcpy', 'Memcpy', 'gpu_memset', 'Memset') THEN 'memory'
            WHEN category = 'collective_comm' OR communicates THEN 'communication'
            ELSE 'compute' END AS type
    FROM device_event JOIN device_name USING (name)
), call AS (
    SELECT file, rank, correlation, start_ns AS call_ns, start_ns + coalesce(duration_ns, 0) AS called_ns,
        CASE WHEN lag(start_ns) OVER (PARTITION BY file, rank, correlation ORDER BY start_ns) IS NULL
            THEN -9223372036854775807 ELSE start_ns END AS from_ns
    FROM events WHERE category IN {calls} AND phase = 'X' AND correlation IS NOT NULL
)
SELECT a.*, c.call_ns, c.called_ns FROM activity a ASOF LEFT JOIN call c
    ON a.file = c.file AND a.rank IS NOT DISTINCT FROM c.rank AND a.correlation = c.correlation AND a.start_ns >= c.from_ns"""

# Functions of Python and shadows enclose or copy the slices that exchange data.
_CPU_COLLECTIVES: Final = """
SELECT rank, start_ns, start_ns + duration_ns AS end_ns FROM events JOIN (
    SELECT name FROM (SELECT DISTINCT name FROM events WHERE phase IN ('X', 'b'))
    WHERE regexp_matches(name, '{collective}', 'i') AND NOT regexp_matches(name, '^(aten|prims)::')
) USING (name)
WHERE phase IN ('X', 'b') AND duration_ns > 0
    AND coalesce(category, '') NOT IN {others}"""

# Nothing runs before the first operator.
_CPU_FREE: Final = """
WITH work AS (
    SELECT rank, start_ns, start_ns + duration_ns AS end_ns FROM events
    WHERE phase = 'X' AND duration_ns > 0 AND (category IN {operators} OR category IN {calls})
    UNION ALL FROM cpu_collective
), until AS (
    SELECT rank, start_ns, max(end_ns) OVER (PARTITION BY rank ORDER BY start_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until_ns
    FROM work WHERE coalesce(rank, -1) IN (SELECT coalesce(rank, -1) FROM events WHERE category IN {operators})
)
SELECT rank, coalesce(until_ns, least(0, start_ns)) AS start_ns, start_ns AS end_ns FROM until
WHERE until_ns IS NULL OR start_ns > until_ns"""

# torch.profiler writes one slice of this category for each time that it records.
_PAUSES: Final = """
SELECT rank, until_ns AS start_ns, start_ns AS end_ns FROM (
    SELECT rank, start_ns, max(start_ns + duration_ns) OVER (PARTITION BY rank ORDER BY start_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until_ns
    FROM events WHERE category = 'Trace' AND phase = 'X'
) WHERE start_ns > until_ns"""

_OF_RANK: Final = "SELECT start_ns, end_ns FROM {table} WHERE rank IS NOT DISTINCT FROM {rank}"

_GPUS: Final = """
SELECT rank, device, any_value(process), count(*), min(start_ns), max(start_ns) FROM gpu_activity GROUP BY rank, device
ORDER BY rank, device"""

# An activity without a known launch has the time `NEVER`.
_OF_GPU: Final = """
SELECT start_ns, end_ns, coalesce(call_ns, -1 - 9223372036854775807) AS call_ns, type = 'compute' AS computes,
    type = 'communication' AS communicates, file, id FROM gpu_activity
WHERE rank IS NOT DISTINCT FROM {rank} AND device = {device} AND start_ns >= {first} AND start_ns < {end}
ORDER BY start_ns, end_ns, id"""

# The activity before an idle time is the one that ends last.
_GAPS: Final = """
SELECT coalesce(b.rank, -1), b.device, until_ns, b.start_ns - until_ns, max(a.name), any_value(b.name)
FROM (VALUES {gaps}) g(until_ns, file, id) JOIN gpu_activity b ON g.file = b.file AND g.id = b.id
JOIN gpu_activity a ON a.end_ns = until_ns AND a.device = b.device AND a.rank IS NOT DISTINCT FROM b.rank
GROUP BY b.rank, b.device, until_ns, b.start_ns"""

# While a stream waits, what is busy is the other streams: the time that the GPU was busy before the end of the gap, less
# that before its start.
_STREAMS: Final = """
WITH ordered AS (
    SELECT *, max(end_ns) OVER before AS until_ns FROM gpu_activity
    WINDOW before AS (PARTITION BY rank, device, stream ORDER BY start_ns, end_ns, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), on_gpu AS (
    SELECT *, coalesce(start_ns > max(end_ns) OVER before, true) AS begins FROM gpu_activity
    WINDOW before AS (PARTITION BY rank, device ORDER BY start_ns, end_ns, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), numbered AS (
    SELECT *, sum(begins::INTEGER) OVER before AS number FROM on_gpu
    WINDOW before AS (PARTITION BY rank, device ORDER BY start_ns, end_ns, id ROWS UNBOUNDED PRECEDING)
), busy AS (
    SELECT rank, device, min(start_ns) AS start_ns, max(end_ns) - min(start_ns) AS length_ns FROM numbered
    GROUP BY rank, device, number
), clock AS (
    SELECT *, sum(length_ns) OVER (PARTITION BY rank, device ORDER BY start_ns) - length_ns AS before_ns FROM busy
), gap AS (
    SELECT *, start_ns - until_ns AS gap_ns, coalesce(call_ns > until_ns, false) AS host_bound FROM ordered
    WHERE start_ns > until_ns AND NOT EXISTS (FROM profiler_pause p
        WHERE p.rank IS NOT DISTINCT FROM ordered.rank AND p.start_ns < ordered.start_ns AND p.end_ns > until_ns)
), dependent AS (
    SELECT gap.*, last.before_ns + least(gap.start_ns - last.start_ns, last.length_ns)
        - first.before_ns - least(gap.until_ns - first.start_ns, first.length_ns) AS dependency_ns
    FROM gap
    ASOF JOIN clock AS last
        ON gap.rank IS NOT DISTINCT FROM last.rank AND gap.device = last.device AND gap.start_ns >= last.start_ns
    ASOF JOIN clock AS first
        ON gap.rank IS NOT DISTINCT FROM first.rank AND gap.device = first.device AND gap.until_ns >= first.start_ns
), gaps AS (
    SELECT rank, device, stream, sum(gap_ns) FILTER (host_bound) AS host_bound_ns,
        sum(dependency_ns) FILTER (NOT host_bound) AS dependency_ns, sum(gap_ns) FILTER (NOT host_bound) AS bound_ns
    FROM dependent GROUP BY ALL
), change AS (
    SELECT rank, device, stream, call_ns AS at_ns, 1 AS added FROM gpu_activity WHERE call_ns <= start_ns
    UNION ALL
    SELECT rank, device, stream, start_ns, -1 FROM gpu_activity WHERE call_ns <= start_ns
), queued AS (
    SELECT *, sum(added) OVER moment AS queued, lead(at_ns) OVER moment - at_ns AS for_ns FROM change
    WINDOW moment AS (PARTITION BY rank, device, stream ORDER BY at_ns, added DESC ROWS UNBOUNDED PRECEDING)
), queues AS (
    SELECT rank, device, stream, sum(queued * for_ns) / nullif(sum(for_ns), 0) AS mean_queued, max(queued) AS max_queued
    FROM queued GROUP BY ALL
), streams AS (
    SELECT rank, device, stream, count(*) AS activities,
        sum(greatest(0, end_ns - greatest(start_ns, coalesce(until_ns, start_ns)))) AS busy_ns
    FROM ordered GROUP BY ALL
)
SELECT s.rank, s.device, s.stream, activities, busy_ns::BIGINT, coalesce(host_bound_ns, 0)::BIGINT,
    coalesce(dependency_ns, 0)::BIGINT, coalesce(bound_ns - dependency_ns, 0)::BIGINT,
    coalesce(mean_queued, 0)::DOUBLE, coalesce(max_queued, 0)::BIGINT
FROM streams AS s
LEFT JOIN gaps AS g ON s.rank IS NOT DISTINCT FROM g.rank AND s.device = g.device AND s.stream = g.stream
LEFT JOIN queues AS q ON s.rank IS NOT DISTINCT FROM q.rank AND s.device = q.device AND s.stream = q.stream
ORDER BY s.rank, s.device, s.stream"""

_KERNELS: Final = """
WITH of_rank AS (
    SELECT name, type, rank, count(*) AS count, sum(end_ns - start_ns) AS total_ns, max(end_ns - start_ns) AS longest_ns
    FROM gpu_activity GROUP BY name, type, rank
)
SELECT name, type, count(*), sum(count)::BIGINT, sum(total_ns)::BIGINT AS all_ns, min(total_ns)::BIGINT, max(total_ns)::BIGINT,
    arg_max(rank, (total_ns, -rank)), max(longest_ns)
FROM of_rank GROUP BY name, type ORDER BY all_ns DESC, name"""

_LAUNCHES: Final = """
WITH calls AS (
    SELECT rank, device, sum(called_ns - call_ns) AS calls_ns
    FROM (SELECT DISTINCT rank, device, correlation, call_ns, called_ns FROM gpu_activity WHERE call_ns IS NOT NULL)
    GROUP BY rank, device
), latency AS (
    SELECT *, greatest(0, start_ns - called_ns) AS latency_ns FROM gpu_activity WHERE call_ns IS NOT NULL
)
SELECT l.rank, l.device, count(*), any_value(calls_ns)::BIGINT, quantile_cont(latency_ns, 0.5)::BIGINT,
    quantile_cont(latency_ns, 0.99)::BIGINT, max(latency_ns),
    count(*) FILTER (type <> 'memory' AND end_ns - start_ns < called_ns - call_ns)
FROM latency AS l JOIN calls AS c ON l.rank IS NOT DISTINCT FROM c.rank AND l.device = c.device
GROUP BY l.rank, l.device ORDER BY l.rank, l.device"""

_COPIES: Final = """
SELECT rank, device, CASE WHEN name LIKE 'Memset%' THEN 'fill'
        ELSE coalesce(nullif(regexp_extract(name, '[HDPA]to[HDPA]'), ''), 'copy') END AS direction,
    count(*), coalesce(sum(bytes), 0)::BIGINT, sum(end_ns - start_ns)::BIGINT AS total_ns
FROM gpu_activity WHERE type = 'memory' GROUP BY rank, device, direction ORDER BY rank, device, total_ns DESC, direction"""

# Arguments may be of any type, and JSON that the engine refuses: ``try`` makes them NULL then.
# The device types of torch: 0 is the CPU. Its allocator has no reserve.
_MEMORY: Final = """
WITH change AS (
    SELECT rank, start_ns, try((args->>'Bytes')::BIGINT) AS bytes, try((args->>'Total Allocated')::BIGINT) AS allocated_bytes,
        try((args->>'Total Reserved')::BIGINT) AS reserved_bytes, try((args->>'Device Type')::INTEGER) AS device_type,
        try((args->>'Device Id')::INTEGER) AS device
    FROM (SELECT rank, file, id, start_ns FROM events WHERE name = '[memory]') JOIN event_args a USING (file, id)
)
SELECT rank, CASE WHEN device_type = 0 THEN -1 ELSE device END AS device, count(*) FILTER (bytes > 0),
    least(coalesce(sum(bytes) FILTER (bytes > 0), 0), 9223372036854775807)::BIGINT, max(allocated_bytes),
    max(reserved_bytes) FILTER (device_type <> 0), arg_max(start_ns, allocated_bytes)
FROM change WHERE allocated_bytes IS NOT NULL GROUP BY rank, CASE WHEN device_type = 0 THEN -1 ELSE device END ORDER BY 1, 2"""

# NCCL's factors: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
_COLLECTIVES: Final = """
WITH told AS (
    SELECT a.rank, a.start_ns, a.end_ns, lower(replace(try(args->>'Collective name'), '_', '')) AS name,
        try(args->>'Process Group Name') AS pg, try(args->>'Process Group Description') AS description,
        try(args->>'Process Group Ranks') AS members, try((args->>'Group size')::INTEGER) AS group_size,
        try((args->>'Seq')::BIGINT) AS seq, try((args->>'In msg nelems')::BIGINT) AS taken,
        try((args->>'Out msg nelems')::BIGINT) AS given,
        CASE lower(try(args->>'dtype')) WHEN 'double' THEN 8 WHEN 'long' THEN 8 WHEN 'float' THEN 4 WHEN 'int' THEN 4
            WHEN 'half' THEN 2 WHEN 'bfloat16' THEN 2 WHEN 'short' THEN 2 ELSE 1 END AS item_bytes
    FROM gpu_activity AS a JOIN event_args USING (file, id)
    WHERE type = 'communication' AND args LIKE '%"Collective name"%'
), sized AS (
    SELECT *, try(item_bytes * CASE WHEN name LIKE '%gather%' OR name LIKE '%scatter%' THEN greatest(taken, given)
            ELSE taken END) AS size_bytes,
        CASE WHEN seq IS NULL THEN end_ns - start_ns
            ELSE min(end_ns - start_ns) OVER (PARTITION BY pg, members, name, seq) END AS transfer_ns
    FROM told WHERE taken IS NOT NULL AND group_size > 0
)
SELECT coalesce(pg, '')
        || CASE WHEN description IS NULL OR description IN ('', 'undefined') THEN '' ELSE ' (' || description || ')' END AS team,
    group_size, name, size_bytes, count(*), quantile_cont(end_ns - start_ns, 0.5)::BIGINT,
    sum(size_bytes) * 1e9 / nullif(sum(transfer_ns), 0),
    sum(size_bytes) * 1e9 / nullif(sum(transfer_ns), 0) * CASE WHEN name LIKE 'allreduce%' THEN 2 * (group_size - 1) / group_size
        WHEN name LIKE '%gather%' OR name LIKE '%scatter%' OR name LIKE 'alltoall%' THEN (group_size - 1) / group_size ELSE 1 END
FROM sized WHERE size_bytes IS NOT NULL
GROUP BY team, group_size, name, size_bytes ORDER BY sum(end_ns - start_ns) DESC, team, name, size_bytes"""
