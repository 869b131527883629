"""The merge itself: scan every input, plan, rewrite every input into one output."""

from __future__ import annotations

import gzip
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from tracekit.errors import ConfigError, MergeError, StorageError
from tracekit.formats.rank_trace import BASE_TIME_KEY
from tracekit.formats.trace_reader import TraceReader, encode_json
from tracekit.merge.clocks import describe_clocks, place
from tracekit.merge.inputs import find_inputs, gather
from tracekit.merge.namespaces import plan
from tracekit.merge.patch import Patcher
from tracekit.merge.processes import CHILD, CPU, GPU
from tracekit.merge.report import Drop, InputReport, MergeReport, OmissionReport, RankReport, Repair
from tracekit.storage import atomic_write, basename, exists, size_bytes, without_secrets
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracekit.merge.inputs import Input
    from tracekit.merge.namespaces import Process

__all__ = ["merge_traces"]

_GZIP_LEVEL: Final = 1
_SCAN_SHARE: Final = 0.4
_MAX_KEPT_KEYS: Final = 64
_MAX_KEPT_BYTES: Final = 4096
_OWN_KEYS: Final = frozenset(
    {"traceEvents", "deviceProperties", "distributedInfo", "displayTimeUnit", "schemaVersion", "tracekit"}
)


def merge_traces(
    output: str,
    inputs: Sequence[str],
    *,
    overwrite: bool = False,
    strict: bool = False,
    ranks: Mapping[str, int] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> MergeReport:
    """Merge rank traces of tracekit and traces of torch.profiler into one trace for Perfetto.

    Processes, threads and the ids of flows, async events and correlations become unique for each rank; times are put on
    one clock in integer nanoseconds; slices that overlap get tracks on which nothing is lost. What is broken is repaired
    or left out, and the report says so. The result does not depend on the order of the inputs, which are only read. The
    output appears whole or not at all.

    Args:
        output: The file or URL to write: ``.json``, or ``.json.gz`` to pack it.
        inputs: Files, folders, globs and URLs of Chrome JSON traces, plain or gzip.
        overwrite: Whether an output that is there already may be replaced.
        strict: Whether to write nothing when an event would be lost, an input left out, or a clock assumed.
        ranks: Ranks of inputs that do not tell theirs (or tell it wrongly), by path or file name.
        progress: Called now and then with the share that is done, 0 to 1, and with what is being done.

    Returns:
        What was merged, repaired and left out.

    Raises:
        ConfigError: The output is one of the inputs, or nothing was named.
        MergeError: The inputs do not fit together; or, under ``strict``, the merge would not be complete.
        TraceFormatError: None of the inputs is a trace.
        StorageError: An input cannot be read, or the output cannot be written or is there already.
    """
    if isinstance(inputs, str):
        inputs = [inputs]
    if not output.endswith((".json", ".json.gz")):
        raise ConfigError(f"{without_secrets(output)}: the output must end with .json or .json.gz")
    files = find_inputs(output, inputs)
    if not overwrite and exists(output):
        # Said before the inputs are read, which may take long; atomic_write looks again.
        raise StorageError(
            f"{without_secrets(output)}: already exists; choose another name, or pass --force to replace it"
        )
    items, omissions = gather(files, ranks or {}, _scan_progress(progress, [path for path, _ in files]))
    base_ns, shifts, warnings = place(items)
    processes, maps, moved = plan(items, shifts)
    omitted = [OmissionReport(item.path, item.reason, item.harmless) for item in omissions]
    patchers = [
        Patcher(target, id_args=item.scan.kind in ("torch", "merged"), epoch_only=item.scan.base_ns == 0)
        for item, target in zip(items, maps, strict=True)
    ]
    with atomic_write(output, overwrite=overwrite) as file, ExitStack() as stack:
        sink = file
        if output.endswith(".gz"):
            packed = gzip.GzipFile(filename="", mode="wb", compresslevel=_GZIP_LEVEL, fileobj=file, mtime=0)
            sink = cast("BinaryIO", stack.enter_context(packed))
        head, added = _head(items, processes, base_ns)
        sink.write(head)
        first = added == 0
        total = sum(item.scan.bytes_read for item in items) or 1
        done = 0
        for item, patcher in zip(items, patchers, strict=True):
            for text, read_bytes in _rewrite(item, patcher):
                sink.write(text if first else b",\n" + text)
                first = False
                if progress is not None:
                    share = (done + read_bytes) / total
                    progress(_SCAN_SHARE + (1 - _SCAN_SHARE) * share, f"writing {basename(item.path)}")
            done += item.scan.bytes_read
        sink.write(b"\n]}\n")
        report = _report(output, base_ns, items, processes, patchers, omitted, added, moved, warnings)
        if strict:
            _refuse(report)
    if progress is not None:
        progress(1.0, "done")
    return replace(report, output_bytes=size_bytes(output) or 0)


def _scan_progress(
    progress: Callable[[float, str], None] | None, paths: list[str]
) -> Callable[[str, int], None] | None:
    if progress is None:
        return None
    numbers = {path: number for number, path in enumerate(paths)}

    def tell(path: str, done_bytes: int) -> None:
        # How much a packed file unpacks to is not known: approach the end without reaching it.
        inside = done_bytes / (done_bytes + 64_000_000)
        progress(_SCAN_SHARE * (numbers[path] + inside) / len(paths), f"reading {basename(path)}")

    return tell


def _rewrite(item: Input, patcher: Patcher) -> Iterator[tuple[bytes, int]]:
    """Yield the rewritten runs of an input, each with the number of bytes read so far."""
    expected = sum(item.scan.phases.values())
    seen = 0
    try:
        with TraceReader(item.path) as reader:
            for run in reader.runs():
                # A trace that is still being recorded may have grown since it was scanned.
                part = run[: expected - seen]
                seen += len(part)
                text = patcher.patch(part)
                if text:
                    yield text, reader.bytes_read
                if seen >= expected:
                    break
    except KeyError as error:
        raise MergeError(f"{item.scan.path}: the file changed while it was merged; merge it again") from error
    if seen != expected:
        raise MergeError(f"{item.scan.path}: the file changed while it was merged; merge it again")


def _head(items: list[Input], processes: list[Process], base_ns: int) -> tuple[bytes, int]:
    """Return everything up to the first event of an input, and how many metadata events that holds."""
    devices: dict[bytes, Any] = {}
    for item in items:
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
                }
                for process in processes
            ],
            "inputs": [_input_metadata(item) for item in items],
        },
        "deviceProperties": list(devices.values()),
        "displayTimeUnit": "ms",
    }
    info = _distributed_info(items)
    if info:
        head["distributedInfo"] = info
    if base_ns:
        head[BASE_TIME_KEY] = base_ns
    events = [event for order, process in enumerate(processes) for event in _declare(process, order)]
    text = encode_json(head)[:-1] + b',"traceEvents":[\n' + b",\n".join(encode_json(event) for event in events)
    return text, len(events)


def _input_metadata(item: Input) -> dict[str, Any]:
    """Return what an input says about itself; large values (logs, whole configurations) are left to the input."""
    header: dict[str, Any] = {}
    for key, value in item.scan.header.items():
        if key not in _OWN_KEYS and len(header) < _MAX_KEPT_KEYS and len(encode_json(value)) <= _MAX_KEPT_BYTES:
            header[key] = value
    if item.scan.kind == "merged":
        inputs = item.scan.header["tracekit"].get("inputs")
        header["inputs"] = inputs if isinstance(inputs, list) else []
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


def _distributed_info(items: list[Input]) -> dict[str, Any]:
    """Return what is true of all inputs: one rank's own information, or backend and size of the run they share."""
    infos = [
        item.scan.header["distributedInfo"]
        for item in items
        if isinstance(item.scan.header.get("distributedInfo"), dict)
    ]
    if not infos:
        return {}
    if len({item.rank for item in items}) == 1 and not any(item.merged_processes for item in items):
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


def _report(
    output: str,
    base_ns: int,
    items: list[Input],
    processes: list[Process],
    patchers: list[Patcher],
    omitted: list[OmissionReport],
    added: int,
    moved: int,
    warnings: list[str],
) -> MergeReport:
    events_in: Counter[str] = Counter()
    events_out: Counter[str] = Counter({"M": added} if added else {})
    repaired: list[Repair] = []
    dropped: list[Drop] = []
    for item, patcher in zip(items, patchers, strict=True):
        path = item.scan.path
        events_in.update(item.scan.phases)
        events_out.update(patcher.written)
        repaired += [
            Repair(path, found.kind, found.count, found.offset_bytes, found.detail) for found in item.scan.repairs
        ]
        repaired += [Repair(path, kind, count, None, "") for kind, count in sorted(patcher.repaired.items())]
        dropped += [
            Drop(path, found.kind, found.count, found.offset_bytes, Drop.is_loss(found.kind))
            for found in item.scan.drops
        ]
        dropped += [
            Drop(path, reason, count, None, Drop.is_loss(reason)) for reason, count in sorted(patcher.dropped.items())
        ]
    clocks = describe_clocks(items)
    titles: dict[int, list[str]] = {rank: [] for rank in clocks}
    for process in processes:
        titles.setdefault(process.rank, []).append(process.title)
    return MergeReport(
        output=without_secrets(output),
        output_bytes=0,
        base_time_ns=base_ns,
        inputs=[
            InputReport(
                path=item.scan.path,
                kind=item.scan.kind,
                rank=item.rank,
                rank_source=item.rank_source,
                form=item.scan.form,
                generation=item.scan.generation,
                base_time_ns=item.scan.base_ns,
                host=item.host,
                events=sum(item.scan.phases.values()),
                bytes=item.scan.bytes_read,
            )
            for item in items
        ],
        omitted=omitted,
        ranks=[RankReport(rank, clocks.get(rank, "unknown"), names) for rank, names in sorted(titles.items())],
        events_in=dict(sorted(events_in.items())),
        events_out=dict(sorted(events_out.items())),
        metadata_added=added,
        overlaps_moved=moved,
        repaired=repaired,
        dropped=dropped,
        warnings=warnings,
    )


def _refuse(report: MergeReport) -> None:
    """Raise what ``--strict`` does not accept."""
    lost = [drop for drop in report.dropped if drop.lost]
    missing = [item for item in report.omitted if not item.harmless]
    if lost:
        raise MergeError(
            f"{lost[0].path}: {lost[0].count} events would be lost ({lost[0].reason}); nothing was written (strict)"
        )
    if missing:
        raise MergeError(f"{missing[0].path}: {missing[0].reason}; nothing was written (strict)")
    if report.warnings:
        raise MergeError(f"{report.warnings[0]}; nothing was written (strict)")
