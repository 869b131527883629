"""The merged trace as Chrome JSON: the object form of the Trace Event Format, which every viewer reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.final_backslash import without_final_backslash
from tracekit.formats.rank_trace import BASE_TIME_KEY
from tracekit.formats.trace_reader import encode_json
from tracekit.merge.losses import for_metadata, recording_losses
from tracekit.merge.processes import CHILD, CPU, GPU
from tracekit.storage import basename
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.merge.inputs import Input
    from tracekit.merge.namespaces import Process
    from tracekit.merge.outputs.output import Merged

__all__ = ["JsonOutput", "JsonPart", "describe"]

_MAX_KEPT_KEYS: Final = 64
_MAX_KEPT_BYTES: Final = 4096
_OWN_KEYS: Final = frozenset(
    {"traceEvents", "deviceProperties", "distributedInfo", "displayTimeUnit", "schemaVersion", "tracekit"}
)


class JsonPart:
    """The events of one input, as they are."""

    def encode(self, number: int, events: bytes) -> bytes:
        """Return the events, as Perfetto can read them."""
        del number
        return without_final_backslash(events)

    def finish(self) -> Iterable[bytes]:
        """Return nothing: nothing is kept."""
        return ()


class JsonOutput:
    """A merged trace in JSON.

    Args:
        merged: What is true of all of it.
    """

    separator = b",\n"

    def __init__(self, merged: Merged) -> None:
        self.units = [[number] for number in range(len(merged.inputs))]
        self._merged = merged

    def head(self) -> tuple[bytes, int]:
        """Return everything up to the first event of an input, and how many metadata events that holds."""
        events = [event for order, process in enumerate(self._merged.processes) for event in _declare(process, order)]
        head = encode_json(describe(self._merged))
        text = head[:-1] + b',"traceEvents":[\n' + b",\n".join(encode_json(event) for event in events)
        return without_final_backslash(text), len(events)

    def part(self, unit: int) -> JsonPart:
        """Return the encoder of an input."""
        del unit
        return JsonPart()

    def tail(self) -> bytes:
        """Return what follows the last event."""
        return b"\n]}\n"


def describe(merged: Merged) -> dict[str, Any]:
    """Return what a merged trace says about itself beside its events: its processes, devices, and inputs."""
    inputs, processes = merged.inputs, merged.processes
    devices: dict[bytes, Any] = {}
    for item in inputs:
        properties = item.scan.header.get("deviceProperties")
        for device in properties if isinstance(properties, list) else []:
            devices.setdefault(encode_json(device), device)
    head: dict[str, Any] = {
        "schemaVersion": 1,
        "tracekit": {
            "merge": {"format_version": 1, "tracekit_version": __version__},
            "processes": [
                {
                    "pid": process.pid,
                    "rank": process.rank,
                    "key": list(process.key),
                    "name": process.name,
                    "host": process.host,
                    "identity": None if process.identity is None else process.identity.to_json(),
                    # What each thread id stands for: [tid, the input's, lane]. Also of threads whose events are all left out,
                    # since they have a number that no other thread can get.
                    "threads": sorted([thread.tid, thread.key, thread.lane] for thread in process.threads.values()),
                }
                for process in processes
            ],
            "inputs": _inputs_metadata(inputs),
            "losses": for_metadata(recording_losses(inputs)),
            "clocks": merged.clocks,
        },
        "deviceProperties": list(devices.values()),
        "displayTimeUnit": "ms",
    }
    info = _distributed_info(inputs)
    if info:
        head["distributedInfo"] = info
    if merged.base_ns:
        head[BASE_TIME_KEY] = merged.base_ns
    return head


def _inputs_metadata(inputs: list[Input]) -> list[dict[str, Any]]:
    """Return what all inputs say about themselves; of an earlier merge, what its inputs said."""
    found: list[dict[str, Any]] = []
    for item in inputs:
        if item.scan.kind == "merged":
            earlier = item.scan.header["tracekit"].get("inputs")
            found += [entry for entry in earlier if isinstance(entry, dict)] if isinstance(earlier, list) else []
        else:
            found.append(_input_metadata(item))
    # In an order that does not depend on the steps in which they were merged.
    return sorted(found, key=lambda entry: (entry.get("rank") or 0, str(entry.get("kind")), encode_json(entry)))


def _input_metadata(item: Input) -> dict[str, Any]:
    """Return what an input says about itself; large values (logs, whole configurations) are left to the input."""
    header: dict[str, Any] = {}
    for key, value in item.scan.header.items():
        if key not in _OWN_KEYS and len(header) < _MAX_KEPT_KEYS and len(encode_json(value)) <= _MAX_KEPT_BYTES:
            header[key] = value
    info = item.scan.header.get("distributedInfo")
    if isinstance(info, dict) and len(encode_json(info)) <= _MAX_KEPT_BYTES:
        header["distributedInfo"] = info
    return {
        "file": basename(item.path),
        "kind": item.scan.kind,
        "rank": item.rank,
        "host": item.host,
        "header": header,
        "metadata": item.scan.metadata,
    }


def _distributed_info(inputs: list[Input]) -> dict[str, Any]:
    """Return what is true of all inputs: one rank's own information, or backend and size of the run they share."""
    infos = [
        item.scan.header["distributedInfo"]
        for item in inputs
        if isinstance(item.scan.header.get("distributedInfo"), dict)
    ]
    if not infos:
        return {}
    if len(inputs) == 1 or (
        len({item.rank for item in inputs}) == 1 and not any(item.merged_processes for item in inputs)
    ):
        return dict(infos[0])
    keys = ("backend", "world_size")
    return {
        key: infos[0][key] for key in keys if key in infos[0] and all(info.get(key) == infos[0][key] for info in infos)
    }


def _declare(process: Process, order: int) -> list[dict[str, Any]]:
    """Return the metadata events of a process and its threads."""

    def event(event_name: str, tid: int, **args: Any) -> dict[str, Any]:
        return {"ph": "M", "name": event_name, "pid": process.pid, "tid": tid, "args": args}

    kind, number = process.key
    events = [
        event("process_name", process.pid, name=process.title),
        event("process_sort_index", process.pid, sort_index=order),
    ]
    if kind in (CPU, GPU):
        events.append(event("process_labels", process.pid, labels="CPU" if kind == CPU else f"GPU {number}"))
    for thread in sorted(process.threads.values(), key=lambda thread: thread.tid):
        if thread.name is not None:
            events.append(event("thread_name", thread.tid, name=thread.name))
        # The main thread first, whatever the numbers of the others.
        sort_index = -1 if thread.main and kind in (CPU, CHILD) else thread.sort_index
        if sort_index is not None:
            events.append(event("thread_sort_index", thread.tid, sort_index=sort_index))
    return events
