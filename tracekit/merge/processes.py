"""Which process each input is of: a rank's own, one of its attempts, or one of its children.

A pid alone does not name a process: pids are used again, two hosts have the same ones, and the first process of every container
is 1. Rank traces tell host, boot and the process's start beside it. Torch's traces tell the pid at best, and go with the
process that named them, or else with the last one of their pid that had begun by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import MergeError
from tracekit.storage import basename

if TYPE_CHECKING:
    from tracekit.merge.inputs import Input

__all__ = [
    "CHILD",
    "CPU",
    "DEVICE",
    "GPU",
    "OVERHEAD",
    "PROFILER",
    "ProcessKey",
    "assign_keys",
    "check_claims",
    "identity_of",
    "main_thread",
]

ProcessKey = tuple[int, int | str]
"""What a process is within its rank: (kind, its number or name). It is written into merged traces."""

CPU, GPU, DEVICE, OVERHEAD, PROFILER, CHILD = range(6)

_SAME_PID: Final = 2**32
"""What the number of a `CPU` process is raised by for each earlier process of its rank that had the same pid."""


def main_thread(key: ProcessKey) -> int | str:
    """Return the thread id of the main thread of a process: its pid as it was recorded."""
    kind, value = key
    if kind == CPU and isinstance(value, int):
        return value % _SAME_PID
    if kind == CHILD and isinstance(value, str):
        return int(value.rpartition(" ")[2])
    return value


def check_claims(inputs: list[Input]) -> None:
    """Refuse two different processes that claim one rank.

    A restarted rank, the rank's children, and several files of one process are fine.

    Raises:
        MergeError: There are such.
    """
    by_rank: dict[int, list[Input]] = {}
    for item in inputs:
        if item.scan.kind in ("tracekit", "torch"):
            by_rank.setdefault(item.rank, []).append(item)
    for rank, items in by_rank.items():
        for position, item in enumerate(items):
            others = items[:position]
            if not others or any(
                _same_process(item, other) or _restarted(item, other) or _related(item, other) for other in others
            ):
                continue
            other = others[0]
            raise MergeError(
                f"{other.scan.path} and {item.scan.path} both claim rank {rank}, but are different processes "
                f"({_who(other)} and {_who(item)}); merge one of them, or tell their ranks with --rank FILE=N"
            )


@dataclass(frozen=True, slots=True)
class _Known:
    """A process whose rank traces are among the inputs."""

    key: ProcessKey
    began_ns: int
    attempt: Any
    companions: set[str]


def assign_keys(inputs: list[Input]) -> None:
    """Set ``process_keys`` of the inputs, so that the files of one process share a key and no two processes do."""
    files: dict[tuple[Any, ...], list[Input]] = {}
    for item in inputs:
        if item.scan.kind == "tracekit" and isinstance(item.identity.get("pid"), int):
            files.setdefault((item.rank, *identity_of(item)), []).append(item)
    taken: dict[tuple[int, int], list[_Known]] = {}  # by rank and pid
    for group in sorted(files.values(), key=_began):
        first = group[0]
        pid = int(first.identity["pid"])
        same_pid = taken.setdefault((first.rank, pid), [])
        if _is_child(first):
            key: ProcessKey = (CHILD, _child_key(first, _began(group), pid))
        else:
            key = (CPU, pid + _SAME_PID * sum(found.key[0] == CPU for found in same_pid))
        companions = {basename(name) for item in group for name in item.scan.companions}
        same_pid.append(_Known(key, _began(group), first.identity.get("attempt"), companions))
        for item in group:
            item.process_keys[pid] = key
    for item in inputs:
        if item.scan.kind == "torch":
            for pid in item.pids:
                known = taken.get((item.rank, pid))
                if known:
                    item.process_keys[pid] = _owner(item, known)


def _owner(item: Input, known: list[_Known]) -> ProcessKey:
    """Return the key of the process that a torch trace is of, among those of its pid, which are in order of time."""
    for found in known:
        if basename(item.path) in found.companions:
            return found.key
    attempt, start_ns = item.identity.get("attempt"), item.scan.start_ns
    possible = [found for found in known if attempt is None or found.attempt == attempt] or known
    earlier = [found for found in possible if start_ns is None or found.began_ns <= start_ns]
    return earlier[-1].key if earlier else possible[0].key


def _child_key(item: Input, began_ns: int, pid: int) -> str:
    """Return a key that sorts children as they are shown: by number, then by name, then by time."""
    worker = item.identity.get("worker")
    name = f"{worker:08d}" if isinstance(worker, int) else f"~{_name(item, pid)}"
    return f"{name} {began_ns:020d} {pid}"


def _name(item: Input, pid: int) -> str:
    process = item.scan.processes.get(pid)
    return (process.name if process is not None else None) or ""


def identity_of(item: Input) -> tuple[Any, ...]:
    """Return what the process of a rank trace is known by, beside its rank."""
    own = item.identity
    return own.get("host"), own.get("boot_id"), own.get("pid"), own.get("start_ticks"), own.get("attempt")


def _began(group: list[Input]) -> int:
    """Return when the first recording of a process began, ns since the epoch."""
    times = []
    for item in group:
        clock = item.identity.get("clock")
        wall_ns = clock.get("wall_ns") if isinstance(clock, dict) else None
        times.append(wall_ns if isinstance(wall_ns, int) else item.scan.start_ns or 0)
    return max(min(times), 0)


def _is_child(item: Input) -> bool:
    return isinstance(item.identity.get("parent_pid"), int)


def _same_process(first: Input, second: Input) -> bool:
    if first.host and second.host and first.host != second.host:
        return False
    one, two = first.identity, second.identity
    for key in ("boot_id", "start_ticks"):
        if one.get(key) is not None and two.get(key) is not None and one[key] != two[key]:
            return False
    if not first.pids or not second.pids:
        return True
    return not first.pids.isdisjoint(second.pids)


def _restarted(first: Input, second: Input) -> bool:
    one, two = first.identity, second.identity
    if not one or not two or one.get("attempt") == two.get("attempt"):
        return False
    return bool(one.get("run_id") == two.get("run_id"))


def _related(first: Input, second: Input) -> bool:
    """Tell whether one is of a child of the other, or of the other's parent."""
    for child, other in ((first, second), (second, first)):
        if _is_child(child):
            if other.identity:
                return bool(child.identity.get("run_id") == other.identity.get("run_id"))
            return not other.pids or child.identity["parent_pid"] in other.pids
    return False


def _who(item: Input) -> str:
    pids = ", ".join(map(str, sorted(item.pids)[:3])) or "unknown"
    return f"pid {pids}" + (f" on {item.host}" if item.host else "")
