"""The process of each input: that of a rank, one of its attempts, or one of its children.

A pid alone does not identify a process: pids are reused, two hosts have the same pids, and the first process of every
container has pid 1. Rank traces also contain host, boot and the start of the process. Torch's traces contain at most
the pid. They belong to the process that names them as companions, or else to the last process with their pid that had
started by then. Merged traces keep these facts, so that a merge in several steps gives the same result as a single
merge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.errors import MergeError
from tracekit.storage import printable_name
from tracekit.traces.process_identity import CHILD, CPU, SAME_PID, KnownProcess

if TYPE_CHECKING:
    from tracekit.merge.input import Input
    from tracekit.traces.process_identity import ProcessIdentity, ProcessKey


def check_claims(inputs: list[Input]) -> None:
    """Reject two different processes that claim the same rank.

    Accepts a restarted rank, the rank's children, and several files of one process.
    """
    by_rank: dict[int, list[list[ProcessIdentity]]] = {}
    for item in inputs:
        # Processes of one file belong together.
        groups: dict[int, list[ProcessIdentity]] = {}
        for identity in _identities(item).values():
            groups.setdefault(identity.rank, []).append(identity)
        for rank, group in groups.items():
            by_rank.setdefault(rank, []).append(group)
    for rank, found in by_rank.items():
        found.sort(key=lambda group: not any(identity.recorded for identity in group))
        for position, group in enumerate(found):
            others = [other for earlier in found[:position] for other in earlier]
            if not others or any(_together(identity, other) for identity in group for other in others):
                continue
            raise MergeError(
                f"{others[0].path} and {group[0].path} both claim rank {rank}, but are different processes "
                f"({_who(found[0])} and {_who(group)}); merge one of them, or tell their ranks with --rank FILE=N"
            )


def _identities(item: Input) -> dict[int, ProcessIdentity]:
    """Return the processes of an input by pid; -1 is the process of a trace that states no pid."""
    if item.kind in ("tracekit", "torch"):
        return {pid: item.process_identity(pid) for pid in sorted(item.pids) or [-1]}
    return {pid: known.identity for pid, known in item.processes.items() if known.identity is not None}


def assign_keys(inputs: list[Input]) -> None:
    """Set keys and identities of the processes of the inputs. Files share a key exactly if they are of one process."""
    processes: dict[tuple[Any, ...], ProcessIdentity] = {}
    places: dict[tuple[Any, ...], list[tuple[Input, int]]] = {}
    loose: list[tuple[Input, int, ProcessIdentity]] = []  # of torch, which has fewer facts
    for item in inputs:
        for pid, identity in _identities(item).items():
            if pid < 0 or (item.kind == "tracekit" and not isinstance(identity.own.get("pid"), int)):
                continue
            if not identity.recorded:
                loose.append((item, pid, identity))
                continue
            processes.setdefault(identity.key, identity).take(identity)
            places.setdefault(identity.key, []).append((item, pid))
    taken: dict[tuple[int, int], list[tuple[ProcessIdentity, ProcessKey]]] = {}
    for identity in sorted(processes.values(), key=lambda identity: identity.began_ns):
        same_pid = taken.setdefault((identity.rank, identity.pid), [])
        key: ProcessKey = (CHILD, _child_key(identity)) if identity.is_child else _cpu_key(identity, same_pid)
        same_pid.append((identity, key))
        for item, pid in places[identity.key]:
            _settle(item, pid, identity, key)
    for item, pid, identity in sorted(loose, key=lambda found: found[2].began_ns):
        known = taken.setdefault((identity.rank, identity.pid), [])
        owner = _owner(item, identity, known)
        if owner is None:
            owner = identity, _cpu_key(identity, known)
            known.append(owner)
        _settle(item, pid, *owner)


def _settle(item: Input, pid: int, identity: ProcessIdentity, key: ProcessKey) -> None:
    known = item.processes.setdefault(pid, KnownProcess(identity.rank, key))
    known.key, known.identity = key, identity


def _cpu_key(identity: ProcessIdentity, same_pid: list[tuple[ProcessIdentity, ProcessKey]]) -> ProcessKey:
    return CPU, identity.pid + SAME_PID * sum(key[0] == CPU for _, key in same_pid)


def _owner(
    item: Input, identity: ProcessIdentity, known: list[tuple[ProcessIdentity, ProcessKey]]
) -> tuple[ProcessIdentity, ProcessKey] | None:
    """Return the process of a torch trace among the known ones of its pid, sorted by time. None if it is another."""
    for found in known:
        if printable_name(item.path) in found[0].companions:
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
    return (
        _same_process(first, second)
        or _restarted(first, second)
        or _is_child(first, second)
        or _is_child(second, first)
    )


def _same_process(first: ProcessIdentity, second: ProcessIdentity) -> bool:
    one, two = first.own, second.own
    if first.host and second.host and first.host != second.host:
        return False
    for key in ("boot_id", "start_ticks"):
        if one.get(key) is not None and two.get(key) is not None and one[key] != two[key]:
            return False
    return first.pid == second.pid or min(first.pid, second.pid) < 0


def _restarted(first: ProcessIdentity, second: ProcessIdentity) -> bool:
    one, two = first.own, second.own
    return (
        first.is_described
        and second.is_described
        and one.get("attempt") != two.get("attempt")
        and bool(one.get("run_id") == two.get("run_id"))
    )


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
