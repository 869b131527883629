"""The merged trace as Chrome JSON: the object form of the Trace Event Format, which every viewer reads."""

from __future__ import annotations

from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.final_backslash import without_final_backslash
from tracekit.formats.rank_trace import BASE_TIME_KEY
from tracekit.formats.stack_frames import STACK_FRAMES
from tracekit.formats.trace_event import encode_json
from tracekit.merge.losses import for_metadata, recording_losses
from tracekit.merge.process_key import CHILD, CPU, GPU
from tracekit.merge.told import kept_of_header
from tracekit.storage import printable_name
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.merge.input import Input
    from tracekit.merge.namespaces import Process
    from tracekit.merge.outputs.merged import Merged

__all__ = ["JsonOutput", "JsonPart", "describe"]

_LISTED: Final = 64


class JsonPart:
    """The events of one input, as they are."""

    writes_out_frames = False

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

    def head(self, write: Callable[[bytes], object]) -> int:
        """Write everything up to the first event of an input; returns how many metadata events that holds."""
        before = b""
        for piece in describe(self._merged):
            write(without_final_backslash(before))
            before = piece
        write(without_final_backslash(before[:-1]) + b',"traceEvents":[\n')
        declared = 0
        for order, process in enumerate(self._merged.processes):
            events = _declare(process, order)
            text = b",\n".join(map(encode_json, events))
            write((self.separator if declared and events else b"") + without_final_backslash(text))
            declared += len(events)
        return declared

    def part(self, unit: int) -> JsonPart:
        """Return the encoder of an input."""
        del unit
        return JsonPart()

    def tail(self, stack_frames: bytes) -> bytes:
        """Return what follows the last event: the table of stack frames, where there are any."""
        return b'\n],\n"%b":%b}\n' % (STACK_FRAMES.encode(), stack_frames) if stack_frames else b"\n]}\n"


def describe(merged: Merged) -> Iterator[bytes]:
    """Yield, as the text of a JSON object, what a merged trace says about itself beside its events.

    These are its processes, devices and inputs, each written before the next is looked at.
    """
    inputs = merged.inputs
    own = encode_json({"merge": {"format_version": 1, "tracekit_version": __version__}})[:-1]
    yield b'{"schemaVersion":1,"tracekit":%b,"processes":[' % own
    yield from _listed(map(_process_metadata, merged.processes))
    yield b'],"inputs":['
    yield from _listed(_inputs_metadata(inputs))
    yield b'],"losses":%b,"clocks":{"ranks":[' % encode_json(for_metadata(recording_losses(inputs)))
    yield from _listed(map(encode_json, merged.clocks.metadata()))
    yield b'],"domains":%b}},"deviceProperties":[' % encode_json(merged.clocks.domains)
    info = _DistributedInfo()
    yield from _listed(_devices(inputs, info))
    rest: dict[str, Any] = {"displayTimeUnit": "ms"}
    if info.of_all(inputs):
        rest["distributedInfo"] = info.of_all(inputs)
    if merged.base_ns:
        rest[BASE_TIME_KEY] = merged.base_ns
    yield b"],%b" % encode_json(rest)[1:]


def _listed(items: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the elements of a JSON array, many at a time."""
    left, before = iter(items), b""
    while some := list(islice(left, _LISTED)):
        yield before + b",".join(some)
        before = b","


def _process_metadata(process: Process) -> bytes:
    return encode_json(
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
    )


def _devices(inputs: list[Input], info: _DistributedInfo) -> Iterator[bytes]:
    """Yield the properties of all devices, each once, and take in what the inputs say of the run."""
    told: set[bytes] = set()
    for item in inputs:
        header = item.scan.head().header
        info.take(header.get("distributedInfo"))
        properties = header.get("deviceProperties")
        for device in map(encode_json, properties if isinstance(properties, list) else []):
            if device not in told:
                told.add(device)
                yield device


def _inputs_metadata(inputs: list[Input]) -> Iterator[bytes]:
    """Yield what all inputs say about themselves; of an earlier merge, what its inputs said.

    In an order that does not depend on the steps in which they were merged.
    """
    # Of an input of its own, only the place is kept until it is its turn.
    found: list[tuple[int, str, int | bytes]] = []
    for number, item in enumerate(inputs):
        if item.scan.kind != "merged":
            found.append((item.rank or 0, item.scan.kind, number))
            continue
        earlier = item.scan.head().header["tracekit"].get("inputs")
        ranks = item.ranks if item.unwanted_pids else None  # of a selection
        found += [
            (entry.get("rank") or 0, str(entry.get("kind")), encode_json(entry))
            for entry in (earlier if isinstance(earlier, list) else [])
            if isinstance(entry, dict) and (ranks is None or entry.get("rank") in ranks)
        ]
    for _, alike in groupby(sorted(found, key=_rank_and_kind), key=_rank_and_kind):
        yield from sorted(
            entry if isinstance(entry, bytes) else encode_json(_input_metadata(inputs[entry])) for _, _, entry in alike
        )


def _rank_and_kind(entry: tuple[int, str, int | bytes]) -> tuple[int, str]:
    return entry[:2]


def _input_metadata(item: Input) -> dict[str, Any]:
    """Return what an input says about itself."""
    own = item.scan.head()
    header, left_out = kept_of_header(own.header)
    return {
        "file": printable_name(item.path),
        "kind": item.scan.kind,
        "rank": item.rank,
        "host": item.host,
        "header": header,
        "metadata": own.metadata,
        **({"header_left_out": left_out} if left_out else {}),
    }


class _DistributedInfo:
    """What is true of all inputs: one rank's own information, or backend and size of the run they share."""

    def __init__(self) -> None:
        self._first: dict[str, Any] | None = None
        self._shared: dict[str, Any] = {}

    def take(self, info: Any) -> None:
        """Take in what an input says, if it says anything."""
        if not isinstance(info, dict):
            return
        if self._first is None:
            self._first, self._shared = info, {key: info[key] for key in ("backend", "world_size") if key in info}
        self._shared = {key: value for key, value in self._shared.items() if info.get(key) == value}

    def of_all(self, inputs: list[Input]) -> dict[str, Any]:
        """Return what to say of these inputs."""
        if self._first is not None and (
            len(inputs) == 1
            or (len({item.rank for item in inputs}) == 1 and not any(item.merged_processes for item in inputs))
        ):
            return self._first
        return self._shared


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
