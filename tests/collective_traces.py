"""Torch traces of ranks that do collectives, made for tests: what happened on one true clock, as each rank's clock saw it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracekit.formats.decimal_time import format_us

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

BASE_NS = 1_790_857_026_000_000_000
START_NS = BASE_NS + 1_000_000_000_000
MS = 1_000_000
SECOND = 1_000_000_000


@dataclass
class Done:
    """A collective: when it ended on the true clock, and how long before that each member had come."""

    end_ns: int
    kind: str = "allreduce"
    group: str = "0"
    members: Sequence[int] = (0, 1)
    elements: int = 1024
    step: int = 0
    waits_ns: dict[int, int] = field(default_factory=dict)
    late_ns: dict[int, int] = field(default_factory=dict)
    sequence: int | None = None


def seen(offset_ns: int = 0, drift_ppm: float = 0.0) -> Callable[[int], int]:
    """Return the clock of a rank: what it shows at a true time."""
    return lambda true_ns: true_ns + offset_ns + round((true_ns - START_NS) * drift_ppm / 1e6)


def number(ns: int) -> Any:
    return f"@{format_us(ns).decode()}@"


def torch_trace(
    rank: int,
    done: Sequence[Done],
    clock: Callable[[int], int],
    *,
    base_ns: int = BASE_NS,
    host: str | None = None,
    steps: bool = True,
    more: Sequence[dict[str, Any]] = (),
    world_size: int = 8,
) -> str:
    """Return what a rank writes of the collectives that it is a member of."""
    events: list[dict[str, Any]] = []

    def add(name: str, start: int, end: int, cat: str, pid: int, tid: int, **args: Any) -> None:
        shown = clock(start)
        times = {"ts": number(shown - base_ns), "dur": number(clock(end) - shown)}
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **times, "args": args})

    mine = [one for one in done if rank in one.members]
    spans: dict[int, list[int]] = {}
    for external, one in enumerate(mine, 1):
        end = one.end_ns + one.late_ns.get(rank, 0)
        start = one.end_ns - 50_000 - one.waits_ns.get(rank, 0)
        comms = {
            "Collective name": one.kind,
            "In msg nelems": one.elements,
            "Out msg nelems": one.elements,
            "dtype": "Float",
            "Process Group Name": one.group,
            "Process Group Ranks": str(list(one.members)),
            "External id": external,
        }
        sequence = {} if one.sequence is None else {"Seq": one.sequence}
        add("record_param_comms", start - 20_000, start - 10_000, "cpu_op", 100 + rank, 1, **comms, **sequence)
        add("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", start, end, "kernel", 0, 20, correlation=external, **comms)
        span = spans.setdefault(one.step, [start - 30_000, end])
        span[:] = min(span[0], start - 30_000), max(span[1], end)
    if steps:
        for step, (start, end) in sorted(spans.items()):
            add(f"ProfilerStep#{step}", start, end, "user_annotation", 100 + rank, 1)
    header: dict[str, Any] = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": world_size}}
    if host is not None:
        header["host_name"] = host
    if base_ns:
        header["baseTimeNanoseconds"] = base_ns
    text = json.dumps({**header, "traceEvents": [*events, *more]})
    return text.replace('"@', "").replace('@"', "")


def write_ranks(folder: Path, texts: Sequence[str]) -> list[str]:
    """Write the traces of ranks 0, 1 ... and return their paths."""
    paths = []
    for rank, text in enumerate(texts):
        path = folder / f"rank{rank}.json"
        path.write_text(text)
        paths.append(str(path))
    return paths


def irregular(count: int, *, gap_ns: int = 3 * MS, **more: Any) -> list[Done]:
    """Return collectives at intervals that never repeat."""
    found, time = [], START_NS
    for place in range(count):
        time += gap_ns + (place * place * 7919) % (2 * gap_ns)
        found.append(Done(time, step=place // 4, **more))
    return found
