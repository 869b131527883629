"""Traces with stack frames, and what their events' stacks are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

Frames = dict[str, dict[str, Any]]


def write(path: Path, frames: Any, *events: dict[str, Any], rank: int = 0, late: bool = True) -> str:
    """Write a trace of a rank with a table of stack frames behind its events, or before them."""
    head = {"distributedInfo": {"rank": rank}, "schemaVersion": 1, "baseTimeNanoseconds": 1_700_000_000_000_000_000}
    # In the order in which the merge writes the keys of an event that it had to decode.
    full = [
        {"ph": "X", "name": event["name"], "pid": 7, "tid": 7, "ts": 10 * number, "dur": 5, **event}
        for number, event in enumerate(events, 1)
    ]
    table = {"stackFrames": frames}
    trace = {**head, **({} if late else table), "traceEvents": full, **(table if late else {})}
    path.write_text(json.dumps(trace, separators=(",", ":")))
    return str(path)


def stack_of(trace: dict[str, Any], name: Any) -> Any:
    """Return the stack that an id names, from the innermost function; the id itself where the trace has no such frame."""
    frames = trace.get("stackFrames") or {}
    at = str(int(name) if isinstance(name, float) else name)
    if at not in frames:
        return name
    found: list[Any] = []
    seen = set()
    while at in frames and at not in seen:
        seen.add(at)
        frame = frames[at]
        found.append({key: value for key, value in frame.items() if key != "parent"})
        at = str(frame.get("parent"))
    return found


def stacks(trace: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the stacks of all events that have any, by the names of the events."""
    return {
        event["name"]: [stack_of(trace, event[key]) for key in ("sf", "esf") if key in event]
        for event in trace["traceEvents"]
        if "sf" in event or "esf" in event
    }
