"""The rank of each input, and its process: that of the rank, one of its attempts, or one of its children.

A rank comes from the content of a file, from its name, or from the user. A pid alone does not identify a process: pids are
reused, two hosts have the same pids, and the first process of every container has pid 1. Rank traces also contain host, boot
and the start of the process. Torch's traces contain at most the pid. They belong to the process that names them as companions,
or else to the last process with their pid that had started by then. Merged traces keep these facts, so that a merge in several
steps gives the same result as a single merge.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError, MergeError, StorageError, TraceFormatError
from tracekit.formats.rank_trace import INDEX_KEY, INDEX_SUFFIX
from tracekit.formats.trace_event import decode_json
from tracekit.merge.scan.merged_tables import check_merged, read_tables
from tracekit.merge.scan.probe import probe
from tracekit.storage import basename, file_identity, is_remote, open_read, printable_name
from tracekit.traces.inputs import CERTAIN_RANKS, stated_rank
from tracekit.traces.labels import labels_in_name, ranks_of_labels
from tracekit.traces.process_identity import CHILD, CPU, SAME_PID, KnownProcess

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from tracekit.merge.scan.input import Input
    from tracekit.merge.selection.selection import Selection
    from tracekit.traces.process_identity import ProcessIdentity, ProcessKey

    _Known = tuple[ProcessIdentity, ProcessKey]

_MAX_INDEX_BYTES: Final = 16 * 1024 * 1024
_CERTAIN: Final = CERTAIN_RANKS | {"tracekit.rank"}  # the sources of a rank that no later part of the file can change


class RanksByHand:
    """Ranks set by the user, by path or file name."""

    def __init__(self, ranks: Mapping[str, int]) -> None:
        self.ranks = ranks
        self._found: dict[Hashable, list[str]] = {}
        for name in ranks:
            for key in {name} if is_remote(name) else {name, file_identity(name)}:
                self._found.setdefault(key, []).append(name)

    def names(self, path: str) -> list[str]:
        """Return the keys of `ranks` that match a file: its path, its name, or another path to it."""
        if not self.ranks:
            return []
        found = [*self._found.get(path, ()), *self._found.get(basename(path), ())]
        if not is_remote(path):
            own = PurePath(path).name
            found += [name for name in self._found.get(file_identity(path), ()) if PurePath(name).name == own]
        return list(dict.fromkeys(found))


def told_ranks(path: str, ranks: RanksByHand) -> set[int] | None:
    """Return the ranks of a file from its first bytes, or None if they are unknown or it is not a trace.

    Uses only facts that no later part of the file can change.
    """
    try:
        if path.endswith(INDEX_SUFFIX):
            with open_read(path) as file:
                index = decode_json(file.read(_MAX_INDEX_BYTES))
            return {index["rank"]} if INDEX_KEY in index and isinstance(index["rank"], int) else None
        item = probe(path, head_only=True)
    except (TraceFormatError, StorageError, KeyError, TypeError, ValueError, OSError):
        return None  # the scan will report the problem
    if item.kind == "merged":
        return set(item.rank_of_pid.values()) or None
    by_hand = ranks.names(path)
    if by_hand:
        return {ranks.ranks[by_hand[0]]}
    found = _stated_rank(item, {})
    return {found[0]} if found is not None and found[1] in _CERTAIN else None


def find_ranks(inputs: list[Input], ranks: RanksByHand, unread: Sequence[str]) -> bool:
    """Set rank and ``rank_source`` of the inputs. Return False if one of the ``unread`` files may state a missing rank."""
    unused = set(ranks.ranks).difference(*map(ranks.names, (*unread, *(item.path for item in inputs))))
    if unused:
        raise ConfigError(f"--rank {min(unused)}: no input has this path or file name")
    for item in inputs:
        if item.kind == "merged":
            check_merged(item)
            item.rank, item.rank_source = min(item.rank_of_pid.values(), default=0), "earlier merge"
    companions = _companions(inputs)
    by_labels: dict[str, int] | None = {} if unread else None
    on_host: dict[str | None, list[Input]] = {}
    # Traces of XLA's profiler last: they may take the rank of a rank trace.
    for item in sorted(inputs, key=lambda item: item.kind == "xprof"):
        if item.kind == "merged":
            continue
        by_hand = ranks.names(item.path)
        found = (ranks.ranks[by_hand[0]], "--rank") if by_hand else _stated_rank(item, companions)
        if found is None and item.kind == "xprof":
            found = _rank_on_host(item, on_host.get(item.host, []))
        if found is None and by_labels is None:
            by_labels = _ranks_by_labels(inputs, ranks, companions)
        if found is None and by_labels is not None and item.path in by_labels:
            found = by_labels[item.path], "order of the labels in file names"
        if found is None and not unread and _are_of_one_process(inputs):
            found = 0, "assumed, as all inputs are of one process"
        if found is None and not unread and len(inputs) == 1:
            found = 0, "assumed, as it is the only input"
        if found is None and unread:
            return False
        if found is None:
            name = printable_name(item.path)
            is_shared = [printable_name(other.path) for other in inputs].count(name) > 1
            raise MergeError(
                f"{item.shown}: the trace does not say its rank, neither inside nor by its name; "
                f"pass it with --rank {item.shown if is_shared else name}=N"
            )
        item.rank, item.rank_source = found
        if item.kind == "tracekit" and item.host is not None:
            on_host.setdefault(item.host, []).append(item)
    return True


def _companions(inputs: Sequence[Input]) -> dict[str, int]:
    companions: dict[str, int] = {}
    if any(item.kind != "merged" and _stated_rank(item, {}) is None for item in inputs):
        for item in inputs:
            if item.kind == "merged":
                read_tables(item)
    for item in inputs:
        if item.rank_inside is not None:
            companions.update((basename(name), item.rank_inside[0]) for name in item.companions)
        for known in item.processes.values():
            if known.identity is not None:
                companions.update((name, known.rank) for name in known.identity.companions)
    return companions


def _stated_rank(item: Input, companions: Mapping[str, int]) -> tuple[int, str] | None:
    anchored = None if item.profile is None else item.profile.identity.get("rank")
    return stated_rank(item.path, item.rank_inside, companions, anchored)


def _ranks_by_labels(inputs: Sequence[Input], ranks: RanksByHand, companions: Mapping[str, int]) -> dict[str, int]:
    """Return the ranks of inputs if the names of all of them contain exactly labels, otherwise an empty dict."""
    if any(ranks.names(item.path) for item in inputs):
        return {}
    found = ranks_of_labels([labels_in_name(item.name) for item in inputs]) or []
    stated = [_stated_rank(item, companions) for item in inputs]
    # The names of some inputs may contain a rank, like the name of the first one.
    agree = all(one in (None, (rank, "file name")) for one, rank in zip(stated, found, strict=False))
    return {item.path: rank for item, rank in zip(inputs, found, strict=False)} if agree else {}


def _rank_on_host(item: Input, recorded: Sequence[Input]) -> tuple[int, str] | None:
    """Return the rank of the process, or of the host, in a trace of XLA's profiler. Return None if there are several."""
    found = {other.rank for other in recorded if not item.pids or other.pids & item.pids}
    why = "the only one of its process" if item.pids else "the only one on its host"
    return (found.pop(), why) if len(found) == 1 else None


def _are_of_one_process(inputs: Sequence[Input]) -> bool:
    """Return True if all inputs are traces of XLA's profiler from one process."""
    return (
        all(item.kind == "xprof" and item.pids for item in inputs)
        and len({(item.host, item.pids) for item in inputs}) == 1
    )


def select_ranks(inputs: list[Input], select: Selection) -> tuple[list[Input], list[Input]]:
    """Return the inputs of the wanted ranks, and the others. In an earlier merge, select only the wanted processes."""
    kept: list[Input] = []
    others: list[Input] = []
    for item in inputs:
        unwanted = frozenset(rank for rank in item.ranks if not select.wants_rank(rank))
        (others if unwanted >= item.ranks else kept).append(item)
        if unwanted and unwanted < item.ranks:
            item.unwanted_ranks = unwanted
            item.rank = min(item.ranks)
    if not kept:
        raise MergeError("none of the inputs is of a rank that the selection names")
    return kept, others


def check_claims(identities: Sequence[Mapping[int, ProcessIdentity]]) -> None:
    """Reject two different processes that claim the same rank.

    Accepts a restarted rank, the rank's children, and several files of one process.
    """
    by_rank: dict[int, list[list[ProcessIdentity]]] = {}
    for own in identities:
        # Processes of one file belong together.
        groups: dict[int, list[ProcessIdentity]] = {}
        for identity in own.values():
            groups.setdefault(identity.rank, []).append(identity)
        for rank, group in groups.items():
            by_rank.setdefault(rank, []).append(group)
    for rank, found in by_rank.items():
        found.sort(key=lambda group: not any(identity.recorded for identity in group))
        others: list[ProcessIdentity] = []
        for group in found:
            if others and not any(_together(identity, other) for identity in group for other in others):
                raise MergeError(
                    f"{others[0].path} and {group[0].path} both claim rank {rank}, but are different processes "
                    f"({_who(found[0])} and {_who(group)}); merge one of them, or use tracekit merge --rank FILE=N"
                )
            others += group


def identities_of(item: Input) -> dict[int, ProcessIdentity]:
    """Return the processes of an input by pid; -1 is the process of a trace that states no pid."""
    if item.kind in ("tracekit", "torch"):
        return {pid: item.process_identity(pid) for pid in sorted(item.pids) or [-1]}
    return {pid: known.identity for pid, known in item.processes.items() if known.identity is not None}


def assign_keys(inputs: Sequence[Input], identities: Sequence[Mapping[int, ProcessIdentity]]) -> None:
    """Set keys, identities and numbers of the processes of the inputs. Files share a key exactly if they are of one process.

    The numbers follow from the processes alone, so that merging in steps gives those of merging at once.
    """
    recorded: dict[tuple[Any, ...], tuple[ProcessIdentity, list[tuple[Input, int]]]] = {}
    loose: list[tuple[Input, int, ProcessIdentity]] = []  # of torch, which has fewer facts
    for item, own in zip(inputs, identities, strict=True):
        for pid, identity in own.items():
            if pid < 0 or (item.kind == "tracekit" and not isinstance(identity.own.get("pid"), int)):
                continue
            if not identity.recorded:
                loose.append((item, pid, identity))
                continue
            first, files = recorded.setdefault(identity.key, (identity, []))
            first.take(identity)
            files.append((item, pid))
    taken: dict[tuple[int, int], list[_Known]] = {}
    counts: defaultdict[int, int] = defaultdict(int)
    for _, (identity, files) in sorted(recorded.items(), key=lambda found: (found[1][0].began_ns, str(found[0]))):
        counts[identity.rank] += 1
        identity.number = counts[identity.rank]
        same_pid = taken.setdefault((identity.rank, identity.pid), [])
        key: ProcessKey = (CHILD, _child_key(identity)) if identity.is_child else _cpu_key(identity, same_pid)
        same_pid.append((identity, key))
        for item, pid in files:
            _settle(item, pid, identity, key)
    for item, pid, identity in sorted(loose, key=lambda found: (found[2].began_ns, found[2].pid)):
        known = taken.setdefault((identity.rank, identity.pid), [])
        owner = _owner(item, identity, known)
        if owner is None:
            counts[identity.rank] += 1
            identity.number = counts[identity.rank]
            owner = identity, _cpu_key(identity, known)
            known.append(owner)
        _settle(item, pid, *owner)


def _settle(item: Input, pid: int, identity: ProcessIdentity, key: ProcessKey) -> None:
    known = item.processes.setdefault(pid, KnownProcess(identity.rank, key))
    known.key, known.identity = key, identity


def _cpu_key(identity: ProcessIdentity, same_pid: list[_Known]) -> ProcessKey:
    return CPU, identity.pid + SAME_PID * sum(key[0] == CPU for _, key in same_pid)


def _owner(item: Input, identity: ProcessIdentity, known: list[_Known]) -> _Known | None:
    """Return the process of a torch trace among the known ones of its pid, sorted by time. None if it is another."""
    for found in known:
        if item.name in found[0].companions:
            return found
    attempt = identity.own.get("attempt")
    possible = [found for found in known if attempt is None or found[0].own.get("attempt") in (attempt, None)]
    start_ns = identity.began_ns
    earlier = [found for found in possible if not start_ns or found[0].began_ns <= start_ns]
    return max(earlier, key=lambda found: found[0].began_ns) if earlier else next(iter(possible), None)


def _child_key(identity: ProcessIdentity) -> str:
    """Return a key that sorts children by number, then by name, then by time."""
    worker = identity.own.get("worker")
    name = f"{worker:08d}" if isinstance(worker, int) else f"~{identity.name}"
    return f"{name} {identity.began_ns:020d} {identity.pid}"


def _together(first: ProcessIdentity, second: ProcessIdentity) -> bool:
    one, two = first.own, second.own
    is_restart = one.get("attempt") != two.get("attempt") and one.get("run_id") == two.get("run_id")
    return (
        _same_process(first, second)
        or (first.is_described and second.is_described and is_restart)
        or _is_child(first, second)
        or _is_child(second, first)
    )


def _same_process(first: ProcessIdentity, second: ProcessIdentity) -> bool:
    if first.host and second.host and first.host != second.host:
        return False
    stated = ((first.own.get(key), second.own.get(key)) for key in ("boot_id", "start_ticks"))
    if any(None not in pair and pair[0] != pair[1] for pair in stated):
        return False
    return first.pid == second.pid or min(first.pid, second.pid) < 0


def _is_child(child: ProcessIdentity, other: ProcessIdentity) -> bool:
    """Return True if one is a child of the other, or of the other's parent."""
    if not child.is_child:
        return False
    if other.is_described:
        return bool(child.own.get("run_id") == other.own.get("run_id"))
    return other.pid < 0 or child.own["parent_pid"] == other.pid


def _who(group: list[ProcessIdentity]) -> str:
    pids = ", ".join(str(pid) for pid in sorted(identity.pid for identity in group)[:3] if pid >= 0) or "unknown"
    return f"pid {pids}" + (f" on {group[0].host}" if group[0].host else "")
