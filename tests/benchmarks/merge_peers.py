"""The merges of other projects, written from descriptions of them, to be timed on the same input.

* ``sglang`` (its ProfileMerger): every file is loaded whole, the processes of a rank get a text in front of their pid, all
  events are kept in one list, and the list is written by one call; packed output with gzip's own default, level 9.
* ``composer`` (its json_trace_merger): every file is loaded three times, for its rank, for its clock and for its events; a
  rank's processes and threads fall into one process; every event is written by a separate call.
* ``cat``: the program of that name writes the bytes into one file. No merge can be faster.

Neither makes flow ids unique or moves times exactly; they are timed, not recommended.
"""

from __future__ import annotations

import gzip
import json
import subprocess
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def cat(output: Path, inputs: list[Path]) -> None:
    """Write the inputs one after another with ``cat``."""
    with output.open("xb") as target:
        subprocess.run(["cat", *map(str, inputs)], stdout=target, check=True)


def jq(output: Path, inputs: list[Path]) -> None:
    """Read and print every event with ``jq``. Raises FileNotFoundError if jq is missing."""
    with output.open("xb") as target:
        for path in inputs:
            subprocess.run(["jq", "-c", ".traceEvents[]", str(path)], stdout=target, check=True)


def sglang(output: Path, inputs: list[Path]) -> None:
    """Merge as sglang does; ``.gz`` by name."""
    merged: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    for rank, path in enumerate(inputs):
        with _open(path, "r") as file:
            trace = json.load(file)
        for event in trace.pop("traceEvents"):
            pid = event.get("pid")
            if event.get("name") == "process_sort_index" and isinstance(pid, int) and pid < 1000:
                event["args"]["sort_index"] = rank * 1000 + pid
            event["pid"] = f"[TP{rank:02d}] {pid}"
            events.append(event)
        merged = merged or trace
    merged["traceEvents"] = events
    with _open(output, "w") as file:
        json.dump(merged, file)


def composer(output: Path, inputs: list[Path]) -> None:
    """Merge as Composer does. The clocks of these inputs agree, so that nothing is added to the times."""
    clocks = {_rank_of(_load(path)): _clock_of(_load(path)) for path in inputs}
    first = clocks[min(clocks)]
    with output.open("x", encoding="utf-8") as file:
        file.write("[\n")
        comma = ""
        for path in inputs:
            trace = _load(path)
            rank = _rank_of(trace)
            shift = first - clocks[rank]
            threads = set()
            for event in trace["traceEvents"]:
                if "pid" not in event or "tid" not in event or "PyTorch Profiler" in str(event["tid"]):
                    continue
                if "ts" in event:
                    event["ts"] += shift
                event["pid"] = rank
                if event["tid"] not in threads:
                    threads.add(event["tid"])
                    order = {"name": "thread_sort_index", "ph": "M", "pid": rank, "tid": event["tid"]}
                    file.write(comma)
                    json.dump({**order, "args": {"sort_index": 99999}}, file)
                    comma = ",\n"
                file.write(comma)
                json.dump(event, file)
        file.write("\n]\n")


def _load(path: Path) -> dict[str, Any]:
    with path.open(encoding="utf-8") as file:
        loaded: dict[str, Any] = json.load(file)
    return loaded


def _rank_of(trace: dict[str, Any]) -> int:
    return int(trace["distributedInfo"]["rank"])


def _clock_of(trace: dict[str, Any]) -> float:
    """Return the time that all ranks passed together, as the rank's clock had it."""
    return next((event["ts"] for event in trace["traceEvents"] if event["name"] == "clock_sync"), 0.0)


def _open(path: Path, mode: str) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, f"{mode}t", encoding="utf-8")  # type: ignore[return-value]
    return path.open(mode, encoding="utf-8")
