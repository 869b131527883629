"""Whose an input is: the rank that it states, inside or by its name, or that was given by hand."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from tracekit.errors import ConfigError, MergeError, StorageError, TraceFormatError
from tracekit.formats.event_fields import raw_number
from tracekit.formats.kineto import rank_in_name, rank_of_header
from tracekit.formats.rank_trace import METADATA_EVENT
from tracekit.formats.segment_index import INDEX_KEY, INDEX_SUFFIX
from tracekit.formats.trace_event import decode_json, decode_or_none
from tracekit.formats.trace_reader import TraceReader
from tracekit.formats.xprof import ANCHOR_EVENT
from tracekit.merge.identities import ProcessIdentity
from tracekit.merge.input_scan import ThreadScan
from tracekit.merge.process_key import CHILD, CPU
from tracekit.storage import basename, file_identity, is_remote, open_read, printable_name

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from tracekit.merge.input import Input
    from tracekit.merge.selection.selection import Selection

__all__ = ["RanksByHand", "UnknownRankError", "find_ranks", "select_ranks", "told_ranks"]


_MAX_INDEX_BYTES: Final = 16 * 1024 * 1024


class UnknownRankError(MergeError):
    """A trace does not say whose it is."""


class RanksByHand:
    """Ranks given by hand, by path or file name.

    Attributes:
        ranks: The ranks by what they are given for.
    """

    def __init__(self, ranks: Mapping[str, int]) -> None:
        self.ranks = ranks
        self._found: dict[Hashable, list[str]] = {}
        for name in ranks:
            keys: set[Hashable] = {name} if is_remote(name) else {name, file_identity(name)}
            for key in keys:
                self._found.setdefault(key, []).append(name)

    def names(self, path: str) -> list[str]:
        """Return what a rank is given for that is this file: its path, its name, or another path to it."""
        found = [*self._found.get(path, ()), *self._found.get(basename(path), ())]
        if not is_remote(path):
            own = PurePath(path).name
            found += [name for name in self._found.get(file_identity(path), ()) if PurePath(name).name == own]
        return list(dict.fromkeys(found))


def told_ranks(path: str, ranks: RanksByHand) -> set[int] | None:
    """Return whose a file is, as far as its first bytes tell; None when they do not, or it is no trace.

    Told is only what no later part of the file can change.

    Args:
        path: The file.
        ranks: Ranks given by hand.
    """
    try:
        if path.endswith(INDEX_SUFFIX):
            with open_read(path) as file:
                index = decode_json(file.read(_MAX_INDEX_BYTES))
            return {index["rank"]} if INDEX_KEY in index and isinstance(index["rank"], int) else None
        with TraceReader(path) as reader:
            own = reader.header.get("tracekit")
            if isinstance(own, dict) and "merge" in own:
                return {int(entry["rank"]) for entry in own["processes"]} or None
            by_hand = ranks.names(path)
            if by_hand:
                return {ranks.ranks[by_hand[0]]}
            stated = rank_of_header(reader.header)
            if stated is not None and stated[1] in ("distributedInfo.rank", "tracekit.rank"):
                return {stated[0]}
            for event in next(reader.runs(), []) if reader.form == "array" else []:
                if event.ph == "M" and decode_or_none(event.name) == METADATA_EVENT:
                    args = decode_or_none(event.args)
                    rank = args.get("rank") if isinstance(args, dict) else None
                    return {rank} if isinstance(rank, int) and rank >= 0 else None
    except (TraceFormatError, StorageError, KeyError, TypeError, ValueError, OSError):
        pass  # the scan says what is wrong
    return None


def find_ranks(inputs: list[Input], ranks: RanksByHand, unread: Sequence[str] = ()) -> None:
    """Set rank and ``rank_source`` of the inputs.

    Args:
        inputs: After their scan.
        ranks: Ranks given by hand.
        unread: Further files that were found, and are not read.

    Raises:
        UnknownRankError: A trace does not say whose it is.
        MergeError: The table of an earlier merge is damaged.
        ConfigError: A rank is given by hand for a file that is not there.
    """
    unused = set(ranks.ranks)
    unused.difference_update(*(ranks.names(path) for path in unread))
    companions: dict[str, int] = {}
    for item in inputs:
        if item.scan.kind == "merged":
            _read_merged(item)
        rank = item.scan.own_rank
        if rank is not None:
            companions.update((basename(name), rank) for name in item.scan.companions)
        for known in item.identities.values():
            companions.update((name, known.rank) for name in known.companions)
    on_host: dict[str | None, list[Input]] = {}
    # Traces of XLA's profiler last: they may take the rank of a rank trace.
    for item in sorted(inputs, key=lambda item: item.scan.kind == "xprof"):
        by_hand = ranks.names(item.path)
        unused.difference_update(by_hand)
        if item.scan.kind == "merged":
            pass
        elif by_hand:
            item.rank, item.rank_source = ranks.ranks[by_hand[0]], "--rank"
        else:
            found = _stated_rank(item, companions)
            if found is None and item.scan.kind == "xprof":
                found = _rank_on_host(item, on_host.get(item.host, []))
            if found is not None:
                item.rank, item.rank_source = found
            elif not unread and _are_of_one_process(inputs):
                item.rank, item.rank_source = 0, "assumed, as all inputs are of one process"
            elif len(inputs) + len(unread) == 1:
                item.rank, item.rank_source = 0, "assumed, as it is the only input"
            else:
                name = printable_name(item.path)
                raise UnknownRankError(
                    f"{item.scan.path}: the trace does not say its rank, neither inside nor by its name; "
                    f"pass it with --rank {name}=N"
                )
        if item.scan.kind == "tracekit" and item.host is not None:
            on_host.setdefault(item.host, []).append(item)
    if unused:
        raise ConfigError(f"--rank {min(unused)}: no input has this path or file name")


def _stated_rank(item: Input, companions: Mapping[str, int]) -> tuple[int, str] | None:
    own = item.scan.own_rank
    if own is not None and own >= 0:
        return own, "tracekit_metadata"
    stated = item.scan.stated_rank
    if stated is not None and stated[1] == "distributedInfo.rank":
        return stated
    if item.scan.profile is not None and "rank" in item.scan.profile.identity:
        return item.scan.profile.identity["rank"], ANCHOR_EVENT
    name = printable_name(item.path)
    if name in companions:
        return companions[name], "tracekit_companion"
    if stated is not None:
        return stated
    in_name = rank_in_name(name)
    return None if in_name is None else (in_name, "file name")


def _rank_on_host(item: Input, recorded: Sequence[Input]) -> tuple[int, str] | None:
    """Return the rank whose process, or whose host, a trace of XLA's profiler names; None where there are several.

    Args:
        item: The trace.
        recorded: The rank traces of its host.
    """
    found = {other.rank for other in recorded if not item.pids or other.pids & item.pids}
    if len(found) != 1:
        return None
    return found.pop(), "the only one of its process" if item.pids else "the only one on its host"


def _are_of_one_process(inputs: Sequence[Input]) -> bool:
    """Tell whether all inputs are of XLA's profiler, and of one process."""
    return (
        all(item.scan.kind == "xprof" and item.pids for item in inputs)
        and len({(item.host, item.pids) for item in inputs}) == 1
    )


def _read_merged(item: Input) -> None:
    """Take over the processes of an earlier merge as they were before it."""
    processes, _ = item.scan.tracks()
    try:
        for entry in item.scan.head().header["tracekit"]["processes"]:
            kind, value = int(entry["key"][0]), entry["key"][1]
            if not CPU <= kind <= CHILD or not isinstance(value, (int, str)):
                raise ValueError
            pid, rank = int(entry["pid"]), int(entry["rank"])
            item.merged_processes[pid] = (rank, (kind, value), str(entry["name"]))
            if isinstance(entry.get("host"), str):
                item.merged_hosts[pid] = entry["host"]
            identity = ProcessIdentity.from_json(rank, entry.get("identity"), item.scan.path)
            if identity is not None:
                item.identities[pid] = identity
            if pid in processes:
                process = processes[pid]
                for tid, key, lane in entry.get("threads", ()):
                    process.thread_keys[int(tid)] = (key if isinstance(key, int) else str(key), int(lane))
                    process.threads.setdefault(int(tid), ThreadScan())
        item.rank = min((rank for rank, _, _ in item.merged_processes.values()), default=0)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise MergeError(
            f"{item.scan.path}: this is an earlier merge, but its table of processes is damaged; merge its inputs instead"
        ) from error
    unknown = [
        raw for raw, process in processes.items() if process.used and raw_number(raw) not in item.merged_processes
    ]
    if unknown:
        raise MergeError(
            f"{item.scan.path}: this is an earlier merge, but its process {unknown[0]} is not in its own table; "
            "merge its inputs instead"
        )
    item.scan.put_processes(processes)
    item.rank_source = "earlier merge"


def select_ranks(inputs: list[Input], select: Selection) -> tuple[list[Input], list[Input]]:
    """Return the inputs of the wanted ranks, and the others; of an earlier merge, take only the wanted processes.

    Raises:
        MergeError: There is none.
    """
    kept, others = [], []
    for item in inputs:
        unwanted = {pid for pid, (rank, _, _) in item.merged_processes.items() if not select.wants_rank(rank)}
        if unwanted.issuperset(item.merged_processes) and (unwanted or not select.wants_rank(item.rank)):
            others.append(item)
            continue
        if unwanted:
            item.unwanted_pids = frozenset(unwanted)
            for pid in unwanted:
                del item.merged_processes[pid]
                item.identities.pop(pid, None)
            item.rank = min(item.ranks)
        kept.append(item)
    if not kept:
        raise MergeError("none of the inputs is of a rank that the selection names")
    return kept, others
