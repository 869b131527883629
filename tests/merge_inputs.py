"""Small traces of ranks for tests of the merge, and what a merged trace shows of them."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BASE_NS = 1_790_857_026_000_000_000


def event(
    name: str, ts: Any = 5, dur: Any = 2, *, ph: str = "X", pid: Any = 100, tid: Any = 100, **more: Any
) -> dict[str, Any]:
    found = {"ph": ph, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, **more}
    return found if ph == "X" else {key: value for key, value in found.items() if key != "dur"}


def meta(event_name: str, on: Any, tid: Any = 0, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": event_name, "pid": on, "tid": tid, "args": args}


def rank_trace(*events: dict[str, Any], rank: int = 0, pid: int = 100, **metadata: Any) -> list[dict[str, Any]]:
    """Return a trace as tracekit records it."""
    own = {"rank": rank, "pid": pid, "host": "h", "run_id": "r", "attempt": 0, "baseTimeNanoseconds": BASE_NS}
    return [meta("tracekit_metadata", pid, pid, **{**own, **metadata}), *events]


def torch_trace(*events: dict[str, Any], **header: Any) -> dict[str, Any]:
    """Return a trace as torch.profiler writes it."""
    return {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, **header, "traceEvents": list(events)}


def write(folder: Path, files: Mapping[str, Any]) -> list[str]:
    """Write traces by the names of their files, packed where a name ends with .gz, and return their paths."""
    for name, value in files.items():
        data = value if isinstance(value, bytes) else (value if isinstance(value, str) else json.dumps(value)).encode()
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return [str(folder / name) for name in files]


def timed(merged: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the events that have a time, by name."""
    return {found["name"]: found for found in merged["traceEvents"] if found["ph"] != "M"}


def names(merged: dict[str, Any]) -> list[str]:
    """Return the names of the events that have a time, but for the clocks that a merge adds."""
    return [found["name"] for found in merged["traceEvents"] if found["ph"] != "M" and found.get("cat") != "clock"]


def titles(merged: dict[str, Any]) -> dict[int, str]:
    """Return the names of the processes, in the order in which viewers show them."""
    told: dict[str, dict[int, Any]] = {"process_name": {}, "process_sort_index": {}}
    for found in merged["traceEvents"]:
        if found.get("name") in told:
            told[found["name"]][found["pid"]] = found["args"]
    order, name = told["process_sort_index"], told["process_name"]
    return {pid: name[pid]["name"] for pid in sorted(order, key=lambda pid: order[pid]["sort_index"])}


def threads(merged: dict[str, Any]) -> dict[tuple[int, int], str]:
    """Return the names of the threads, by pid and tid."""
    return {
        (found["pid"], found["tid"]): found["args"]["name"]
        for found in merged["traceEvents"]
        if found.get("name") == "thread_name"
    }
