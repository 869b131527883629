"""Which process each input is of: a rank's own, one of its attempts, or one of its children.

A pid alone does not name a process: pids are used again, two hosts have the same ones, and the first process of every container
is 1. Rank traces tell host, boot and the process's start beside it. Torch's traces tell the pid at best, and go with the
process that named them, or else with the last one of their pid that had begun by then. Earlier merges tell what they knew,
so that merging in steps comes to the same as merging at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.errors import MergeError
from tracekit.merge.process_key import CHILD, CPU, SAME_PID
from tracekit.storage import printable_name

if TYPE_CHECKING:
    from tracekit.merge.identities import ProcessIdentity
    from tracekit.merge.input import Input
    from tracekit.merge.process_key import ProcessKey

__all__ = ["assign_keys", "check_claims"]


def check_claims(inputs: list[Input]) -> None:
    """Refuse two different processes that claim one rank.

    A restarted rank, the rank's children, and several files of one process are fine.

    Raises:
        MergeError: There are such.
    """
    by_rank: dict[int, list[list[_Claim]]] = {}
    for item in inputs:
        # What one file holds together is together.
        groups: dict[int, list[_Claim]] = {}
        for claim in _claims(item):
            groups.setdefault(claim.rank, []).append(claim)
        for rank, group in groups.items():
            by_rank.setdefault(rank, []).append(group)
    for rank, found in by_rank.items():
        found.sort(key=lambda group: not any(claim.recorded for claim in group))
        for position, group in enumerate(found):
            others = [other for earlier in found[:position] for other in earlier]
            if not others or any(_together(claim, other) for claim in group for other in others):
                continue
            claim, other = group[0], others[0]
            raise MergeError(
                f"{other.path} and {claim.path} both claim rank {rank}, but are different processes "
                f"({_who(other)} and {_who(claim)}); merge one of them, or tell their ranks with --rank FILE=N"
            )


@dataclass(frozen=True, slots=True)
class _Claim:
    """A process that says which rank it is, with what is known about it."""

    rank: int
    path: str
    own: dict[str, Any]
    host: str | None
    pids: frozenset[int]
    recorded: bool


def _claims(item: Input) -> list[_Claim]:
    path = item.scan.path
    if item.scan.kind in ("tracekit", "torch"):
        return [_Claim(item.rank, path, item.scan.identity, item.host, item.pids, item.scan.kind == "tracekit")]
    return [
        _Claim(known.rank, path, known.own, known.host, frozenset({known.pid}), known.recorded)
        for known in item.identities.values()
    ]


def assign_keys(inputs: list[Input]) -> None:
    """Set keys and identities of the processes of the inputs: files of one process share a key, and no two processes do."""
    processes: dict[tuple[Any, ...], ProcessIdentity] = {}
    places: dict[tuple[Any, ...], list[tuple[Input, int]]] = {}
    loose: list[tuple[Input, int, ProcessIdentity]] = []  # of torch, which tells less
    for item in inputs:
        found = item.identities
        if item.scan.kind == "tracekit" and isinstance(item.scan.identity.get("pid"), int):
            pid = int(item.scan.identity["pid"])
            found = {pid: item.identity(pid)}
        elif item.scan.kind == "torch":
            found = {pid: item.identity(pid) for pid in sorted(item.pids)}
        for pid, identity in found.items():
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
    item.identities[pid] = identity
    if pid in item.merged_processes:
        rank, _, name = item.merged_processes[pid]
        item.merged_processes[pid] = rank, key, name
    else:
        item.process_keys[pid] = key


def _cpu_key(identity: ProcessIdentity, same_pid: list[tuple[ProcessIdentity, ProcessKey]]) -> ProcessKey:
    return CPU, identity.pid + SAME_PID * sum(key[0] == CPU for _, key in same_pid)


def _owner(
    item: Input, identity: ProcessIdentity, known: list[tuple[ProcessIdentity, ProcessKey]]
) -> tuple[ProcessIdentity, ProcessKey] | None:
    """Return the process that a torch trace is of, among those of its pid, which are in order of time; None for another."""
    for found in known:
        if printable_name(item.path) in found[0].companions:
            return found
    attempt = identity.own.get("attempt")
    possible = [found for found in known if attempt is None or found[0].own.get("attempt") in (attempt, None)]
    start_ns = identity.began_ns
    earlier = [found for found in possible if not start_ns or found[0].began_ns <= start_ns]
    return max(earlier, key=lambda found: found[0].began_ns) if earlier else next(iter(possible), None)


def _child_key(identity: ProcessIdentity) -> str:
    """Return a key that sorts children as they are shown: by number, then by name, then by time."""
    worker = identity.own.get("worker")
    name = f"{worker:08d}" if isinstance(worker, int) else f"~{identity.name}"
    return f"{name} {identity.began_ns:020d} {identity.pid}"


def _together(first: _Claim, second: _Claim) -> bool:
    return _same_process(first, second) or _restarted(first, second) or _related(first, second)


def _same_process(first: _Claim, second: _Claim) -> bool:
    if first.host and second.host and first.host != second.host:
        return False
    one, two = first.own, second.own
    for key in ("boot_id", "start_ticks"):
        if one.get(key) is not None and two.get(key) is not None and one[key] != two[key]:
            return False
    if not first.pids or not second.pids:
        return True
    return not first.pids.isdisjoint(second.pids)


def _restarted(first: _Claim, second: _Claim) -> bool:
    one, two = first.own, second.own
    if not one or not two or one.get("attempt") == two.get("attempt"):
        return False
    return bool(one.get("run_id") == two.get("run_id"))


def _related(first: _Claim, second: _Claim) -> bool:
    """Tell whether one is of a child of the other, or of the other's parent."""
    for child, other in ((first, second), (second, first)):
        if isinstance(child.own.get("parent_pid"), int):
            if other.own:
                return bool(child.own.get("run_id") == other.own.get("run_id"))
            return not other.pids or child.own["parent_pid"] in other.pids
    return False


def _who(claim: _Claim) -> str:
    pids = ", ".join(map(str, sorted(claim.pids)[:3])) or "unknown"
    return f"pid {pids}" + (f" on {claim.host}" if claim.host else "")
