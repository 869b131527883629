"""The processes, threads and inputs of an earlier merge, for further inputs of the same ranks."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import MergeError
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.merged_head import INPUT_EVENT, MERGED_KEY, PROCESS_EVENT, RankOfPid
from tracekit.formats.trace_event import decode_or_none, decode_run, decode_text, encode_json
from tracekit.traces.process_identity import CHILD, CPU, KnownProcess, ProcessIdentity

if TYPE_CHECKING:
    from tracekit.merge.scan.input import Input

_MAX_NS: Final = 2**62
_IDS: Final = 2**32
_WORDS: Final = (f'"{PROCESS_EVENT}"'.encode(), f'"{INPUT_EVENT}"'.encode())


def check_merged(item: Input) -> None:
    """Refuse an earlier merge with a damaged head."""
    if not isinstance(item.rank_of_pid, RankOfPid):
        read_tables(item)  # it is in the head
    elif not item.rank_of_pid:
        raise _damaged(item)


def read_tables(item: Input) -> None:
    """Take over the processes, threads and inputs of an earlier merge as they were before it."""
    if item.processes:
        return
    try:
        if isinstance(item.rank_of_pid, RankOfPid):
            processes, inputs = _in_events(item)
        else:
            own = item.head().header[MERGED_KEY]
            processes, inputs = own["processes"], own.get("inputs")
        for entry in processes:
            _take_process(item, entry)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise _damaged(item) from error
    item.tables = [
        (rank, str(entry.get("kind")), encode_json(entry))
        for entry in (inputs if isinstance(inputs, list) else [])
        if isinstance(entry, dict) and _is_rank(rank := entry.get("rank") or 0) and rank in item.ranks
    ]
    item.processes = {pid: known for pid, known in item.processes.items() if known.rank not in item.unwanted_ranks}


def _take_process(item: Input, entry: Any) -> None:
    kind, value = int(entry["key"][0]), entry["key"][1]
    if not CPU <= kind <= CHILD or not isinstance(value, (int, str)):
        raise ValueError
    pid, rank = int(entry["pid"]), int(entry["rank"])
    if not _is_rank(rank):
        raise ValueError
    host = entry.get("host")
    threads = {
        int(tid): (key if isinstance(key, int) else str(key), int(lane)) for tid, key, lane in entry.get("threads", ())
    }
    if not all(0 < tid < _IDS and lane >= 0 for tid, (_, lane) in threads.items()):
        raise ValueError
    item.processes[pid] = KnownProcess(
        rank,
        (kind, value),
        ProcessIdentity.from_json(rank, entry.get("identity"), item.shown),
        str(entry["name"]),
        host if isinstance(host, str) else None,
        threads,
    )


def _is_rank(value: Any) -> bool:
    return type(value) is int and 0 <= value < _IDS


def _in_events(item: Input) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    processes: list[dict[str, Any]] = []
    inputs: list[dict[str, Any]] = []
    with TraceReader(item.path, limit_bytes=item.stamp.limit_bytes) as reader:
        for run in reader.runs(lambda text: decode_run(text) if any(word in text for word in _WORDS) else []):
            for event in run:
                name = decode_text(event.name) if event.ph == "M" else ""
                if name == PROCESS_EVENT:
                    processes.append({"pid": event.pid, **decode_or_none(event.args)})
                elif name == INPUT_EVENT:
                    inputs.append(decode_or_none(event.args))
    return processes, inputs


def _damaged(item: Input) -> MergeError:
    return MergeError(
        f"{item.shown}: this is an earlier merge, but its table of processes is damaged; merge its inputs instead"
    )


def stated_clocks(item: Input) -> list[dict[str, Any]]:
    """Return the clocks that an earlier merge states, those of them that can be read."""
    clocks = item.head().header.get("tracekit", {}).get("clocks")
    found = clocks.get("domains") if isinstance(clocks, dict) else None
    domains = found if isinstance(found, list) else []
    return [one for one in domains if isinstance(one, dict) and _is_map(one.get("knots"))]


def _is_map(knots: Any) -> bool:
    if not isinstance(knots, list) or not all(isinstance(knot, list) and len(knot) == 2 for knot in knots):
        return False
    are_times = all(type(value) is int and abs(value) < _MAX_NS for knot in knots for value in knot)
    return bool(knots) and are_times and all(first[0] < second[0] for first, second in pairwise(knots))
