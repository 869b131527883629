"""What a merged trace keeps for further merges, wherever it stands."""

from __future__ import annotations

from typing import Any

__all__ = ["as_before_format_2", "inputs", "losses", "process_of_pid", "processes", "rank_of_pid", "thread_of_tid"]


def _tables(merged: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [event for event in merged["traceEvents"] if event["ph"] == "M" and event.get("name") == name]


def processes(merged: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the processes in the order of display, without the numbers that the merge gave them."""
    return [event["args"] for event in _tables(merged, "tracekit_process")]


def inputs(merged: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the inputs say about themselves."""
    return [event["args"] for event in _tables(merged, "tracekit_input")]


def losses(merged: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the ranks lost while they recorded."""
    found: list[dict[str, Any]] = merged["tracekitTotals"]["losses"]
    return found


def as_before_format_2(merged: dict[str, Any]) -> dict[str, Any]:
    """Return a merged trace as it was written before format version 2: with all tables before the events."""
    own = merged["tracekit"]
    tables = [
        {"pid": event["pid"], **event["args"]} for event in merged["traceEvents"] if event["name"] == "tracekit_process"
    ]
    head = {
        **own,
        "merge": {"format_version": 1, "tracekit_version": own["merge"]["tracekit_version"]},
        "processes": tables,
        "inputs": inputs(merged),
        "losses": losses(merged),
    }
    written = ("tracekit_process", "tracekit_input", "tracekit_merge_end")
    events = [event for event in merged["traceEvents"] if event["name"] not in written]
    rest = {key: value for key, value in merged.items() if key not in ("tracekit", "traceEvents", "tracekitTotals")}
    return {"schemaVersion": rest.pop("schemaVersion"), "tracekit": head, **rest, "traceEvents": events}


def rank_of_pid(merged: dict[str, Any]) -> dict[int, int]:
    """Return the rank of each pid, as the table says."""
    found = {event["pid"]: event["args"]["rank"] for event in _tables(merged, "tracekit_process")}
    stride = merged["tracekit"]["merge"]["pid_stride"]
    assert all(pid // stride == rank for pid, rank in found.items())
    return found


def process_of_pid(merged: dict[str, Any]) -> dict[int, tuple[Any, ...]]:
    """Return rank, key and name of each process."""
    return {
        event["pid"]: (event["args"]["rank"], tuple(event["args"]["key"]), event["args"]["name"])
        for event in _tables(merged, "tracekit_process")
    }


def thread_of_tid(merged: dict[str, Any]) -> dict[tuple[int, int], tuple[Any, int]]:
    """Return what each thread was in its input, and which lane of that it is, by pid and tid."""
    return {
        (event["pid"], tid): (key, lane)
        for event in _tables(merged, "tracekit_process")
        for tid, key, lane in event["args"]["threads"]
    }
