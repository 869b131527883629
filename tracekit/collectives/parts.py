"""The collectives of a trace: which they are, between whom, and when they began and ended.

Looked for are the kernels of NCCL and RCCL and gloo's annotations. What their arguments do not say (torch 2.1 and before
say nothing, until 2026 not the sequence number) is told by the CPU side: ``record_param_comms`` with the same
``External id``, or the ``nccl:all_to_all`` annotations, which come in the order of the kernels.

Source: torch's ``ParamCommsUtils``, ``profiler/util.h`` and Kineto's output of the years 2022 to 2026.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from sys import intern
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.formats.event_fields import raw_field, raw_number, time_field
from tracekit.formats.trace_event import UNSET, Event, decode_or_none
from tracekit.formats.trace_reader import TraceReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "NAMES_OF_COLLECTIVES",
    "SYNCHRONISING",
    "Collective",
    "CollectiveCollector",
    "Label",
    "by_group",
    "kind_of",
    "read_collectives",
    "thinned",
]

SYNCHRONISING: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Kinds that no member leaves before all have come: their ends are one moment. (Not so: broadcast, reduce, send, recv.)"""

_KINDS: Final = (
    # The longer word first: "all_reduce" holds "reduce".
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("barrier", "barrier"),
    ("broadcast", "broadcast"),
    ("sendrecv", ""),
    ("send", "send"),
    ("recv", "recv"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
)
_EVEN: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Kinds whose sizes are the same for every member as a rule."""

NAMES_OF_COLLECTIVES: Final = (b'"nccl', b'"gloo:', b'"record_param_comms', b'"ProfilerStep#')
"""How the names begin, as JSON, of all events that `CollectiveCollector` looks at."""

_KERNELS: Final = (b'"ncclKernel', b'"ncclDevKernel')
_CALLS: Final = (b'"nccl:', b'"gloo:')
_ANNOTATION: Final = b'"user_annotation"'
_UNDER_OTHER_NAMES: Final = {"": ("all_to_all", "send", "recv", "gather", "scatter"), "all_reduce": ("barrier",)}
"""What NCCL does by kernels that say no more than SendRecv, or by those of another kind."""

_STEP: Final = re.compile(rb'"ProfilerStep#(\d{1,18})"')
_KERNEL_KIND: Final = re.compile(rb'"nccl(?:Dev)?Kernel_([A-Za-z]+)')


class Label(NamedTuple):
    """What two members of one collective say alike.

    Attributes:
        kind: "all_reduce" and so on; empty where it is not known.
        group: Name and members of the process group as written; empty where unknown.
        sizes: Type and number of elements, empty where they are unknown or may differ between members.
        peers: Of a send or a receive, from which rank to which.
    """

    kind: str
    group: tuple[str, str]
    sizes: str
    peers: tuple[int, int] | None = None


class Collective(NamedTuple):
    """One member's part of a collective. Times are ns in the file's own time.

    Attributes:
        label: What its members have in common.
        sequence: Number of the collective in its group, None where the trace does not tell.
        step: N of the ``ProfilerStep#N`` in which it was launched, None outside of all.
        start_ns, end_ns: When this member came and when it left.
        pid, tid: Its track as it stands in the file.
        category: Of its event, as it stands in the file.
        file_ns: When this member came, in the file's own time also where the others are moved.
    """

    label: Label
    sequence: int | None
    step: int | None
    start_ns: int
    end_ns: int
    pid: Any
    tid: Any
    category: bytes = b""
    file_ns: int = 0

    @property
    def synchronises(self) -> bool:
        """Whether its end is the same moment for all members."""
        return self.label.kind in SYNCHRONISING


def kind_of(name: str) -> str:
    """Return the kind that a name of NCCL, gloo or torch stands for; empty where it is none or not certain."""
    plain = name.lower().replace("_", "").replace("-", "")
    return next((kind for word, kind in _KINDS if word in plain), "")


class _Told(NamedTuple):
    """What the arguments of an event say of a collective."""

    kind: str
    group: tuple[str, str]
    sizes: str
    peers: tuple[int, int] | None
    sequence: int | None


class _Part(NamedTuple):
    """A kernel or an annotation that is one member's part of a collective."""

    start_ns: int
    end_ns: int
    kind: str
    pid: Any
    tid: Any
    told: _Told | None
    external_id: int | None
    category: bytes


@dataclass(slots=True)
class _Side:
    """What one rank tells, in the order of the file."""

    kernels: list[_Part] = field(default_factory=list)
    gloo: list[_Part] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    calls: dict[int, tuple[int, _Told]] = field(default_factory=dict)
    annotations: list[tuple[int, str, str]] = field(default_factory=list)


class CollectiveCollector:
    """Collects the collectives of an input while it is read for something else.

    Args:
        most: How many kernels, calls and so on are looked at, None for all; a trace of any size takes bounded memory.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = 1 << 62 if most is None else most
        self._sides: dict[Any, _Side] = {}  # by pid, as whose it is may be known later

    def take(self, run: list[Event]) -> None:
        """Look for collectives in a run, and for what tells about them."""
        # A search through all names at once is several times as fast as a look at each.
        try:
            names = b"\n".join([event.name for event in run])  # type: ignore[misc]
        except TypeError:
            names = b"\n".join([b"" if event.name is UNSET else event.name for event in run])
        if names.count(b"\n") != len(run) - 1 and run:
            # A name that is no text, and stands on several lines.
            names = b"\n".join([b"" if event.name is UNSET else bytes(event.name).split(b"\n")[0] for event in run])
        names = b"\n" + names
        found = []
        for word in NAMES_OF_COLLECTIVES:
            at = names.find(b"\n" + word)
            while at >= 0:
                found.append(at)
                at = names.find(b"\n" + word, at + 1)
        number = after = 0
        for at in sorted(found):
            number += names.count(b"\n", after, at)
            after = at
            if run[number].ph == "X":
                self._one(run[number], bytes(run[number].name))  # type: ignore[arg-type]

    def _one(self, event: Event, name: bytes) -> None:
        start = time_field(event.ts)
        length = time_field(event.dur)
        if start is None or length is None or length < 0:
            return
        end = start + length
        side = self._sides.setdefault(raw_number(event.pid), _Side())
        category = raw_field(event.cat)
        if name.startswith(b'"ProfilerStep#'):
            step = _STEP.fullmatch(name)
            if step and category == _ANNOTATION and len(side.steps) < self._most:
                side.steps.append((start, end, int(step[1])))
            return
        args = decode_or_none(event.args)
        args = args if isinstance(args, dict) else {}
        external = args.get("External id")
        external = external if isinstance(external, int) else None
        if name.startswith(_KERNELS):
            if len(side.kernels) < self._most:
                told = _told(args) if "Collective name" in args else None
                own = _KERNEL_KIND.match(name)
                kind = told.kind if told else kind_of(own[1].decode()) if own else ""
                pid, tid = raw_number(event.pid), raw_number(event.tid)
                side.kernels.append(_Part(start, end, kind, pid, tid, told, external, category))
        elif name.startswith(b'"record_param_comms'):
            if external is not None and "Collective name" in args and len(side.calls) < self._most:
                side.calls[external] = start, _told(args)
        elif category == _ANNOTATION and name.startswith(_CALLS):
            kind, dims = kind_of(name.decode("utf-8", "replace")), str(args.get("Input Dims", ""))
            if name.startswith(b'"gloo:'):
                if len(side.gloo) < self._most:
                    told = _Told(kind, ("", ""), dims, None, None)
                    side.gloo.append(
                        _Part(start, end, kind, raw_number(event.pid), raw_number(event.tid), told, None, category)
                    )
            elif len(side.annotations) < self._most:
                side.annotations.append((start, kind, dims))

    def result(self, ranks: Mapping[Any, int] | None = None) -> dict[int | None, list[Collective]]:
        """Return the collectives of each rank in the order of their ends.

        Args:
            ranks: Whose a ``pid`` is; without it, all are of one rank, which is returned as None.
        """
        sides: dict[int | None, _Side] = {}
        for pid, side in self._sides.items():
            rank = None if ranks is None else ranks.get(pid)
            if ranks is not None and rank is None:
                continue
            joined = sides.setdefault(rank, _Side())
            joined.kernels += side.kernels
            joined.gloo += side.gloo
            joined.steps += side.steps
            joined.calls.update(side.calls)
            joined.annotations += side.annotations
        return {rank: found for rank, side in sides.items() if (found := _collectives(side))}


def read_collectives(path: str, events: int, ranks: Mapping[Any, int] | None) -> dict[int | None, list[Collective]]:
    """Read all collectives of an input, by rank.

    Args:
        path: File or URL.
        events: How many events it has; what a file that is still written has got since is left out.
        ranks: See `CollectiveCollector.result`.

    Raises:
        StorageError: It cannot be read.
    """
    found = CollectiveCollector()
    with TraceReader(path) as reader:
        for run in reader.runs():
            found.take(run[: max(0, events - reader.events + len(run))])
    return found.result(ranks)


def thinned(collectives: list[Collective], most: int) -> list[Collective]:
    """Return at most so many of each process group, the same ones for every member as far as possible.

    Where they are numbered, those whose number is a multiple of a power of two; else the first ones.
    """
    groups: dict[tuple[str, str], list[Collective]] = {}
    for one in collectives:
        groups.setdefault(one.label.group, []).append(one)
    kept: list[Collective] = []
    for _, members in sorted(groups.items()):
        found, stride = members, 1
        while len(found) > most and all(one.sequence is not None for one in found):
            stride *= 2
            found = [one for one in members if (one.sequence or 0) % stride == 0]
        kept += found[:most]
    return sorted(kept, key=_order)


def _told(args: dict[str, Any]) -> _Told:
    kind = kind_of(str(args["Collective name"]))
    source, target, sequence = args.get("Src Rank"), args.get("Dst Rank"), args.get("Seq")
    known = kind in ("send", "recv") and isinstance(source, int) and isinstance(target, int)
    return _Told(
        kind,
        # The list of a large group's ranks is long, and every collective has it.
        (intern(str(args.get("Process Group Name", ""))), intern(str(args.get("Process Group Ranks", "")))),
        f"{args.get('dtype', '')} {args.get('In msg nelems', '')} {args.get('Out msg nelems', '')}",
        (source, target) if known else None,  # type: ignore[arg-type]
        sequence if isinstance(sequence, int) and not isinstance(sequence, bool) and sequence >= 0 else None,
    )


def _collectives(side: _Side) -> list[Collective]:
    side.steps.sort()
    silent = sorted((part for part in side.kernels if part.told is None), key=lambda part: (part.start_ns, part.end_ns))
    found = [_of_silent(side, part, call) for part, call in zip(silent, _calls_of(side, silent), strict=True)]
    found += [_of_talking(side, part) for part in side.kernels if part.told is not None]
    # Where there are kernels, what the CPU did is not the collective itself.
    found = found or [_of_talking(side, part) for part in side.gloo]
    return sorted(found, key=_order)


def _order(one: Collective) -> tuple[Any, ...]:
    return one.end_ns, one.start_ns, one.label[:3], str(one.pid), str(one.tid)


def _of_talking(side: _Side, part: _Part) -> Collective:
    told = part.told
    assert told is not None
    launched_ns, call = side.calls.get(part.external_id if part.external_id is not None else -1, (None, told))
    if part.external_id is None and not side.kernels:
        launched_ns = part.start_ns  # gloo's annotation is the collective itself
    label = Label(
        told.kind,
        told.group if any(told.group) else call.group,
        told.sizes if told.kind in _EVEN else "",
        told.peers or call.peers,
    )
    sequence = call.sequence if told.sequence is None else told.sequence
    return _collective(side, part, label, sequence, launched_ns)


def _of_silent(side: _Side, part: _Part, call: tuple[int, str, str] | None) -> Collective:
    launched_ns, kind, sizes = (None, part.kind, "") if call is None else call
    kind = part.kind or kind
    return _collective(side, part, Label(kind, ("", ""), sizes if kind in _EVEN else ""), None, launched_ns)


def _collective(side: _Side, part: _Part, label: Label, sequence: int | None, launched_ns: int | None) -> Collective:
    step = None if launched_ns is None else _step_at(side.steps, launched_ns)
    return Collective(
        label, sequence, step, part.start_ns, part.end_ns, part.pid, part.tid, part.category, part.start_ns
    )


def _calls_of(side: _Side, silent: list[_Part]) -> list[tuple[int, str, str] | None]:
    """Return for each kernel without arguments the annotation that it was launched in: both come in one order.

    The first kernels may have been launched before the trace began, and the last calls may have no kernel any more.
    """
    calls = sorted(side.annotations)
    for first in range(len(silent)):
        pairs = list(zip(silent[first:], calls, strict=False))
        if all(
            call[0] <= part.start_ns and (call[1] == part.kind or call[1] in _UNDER_OTHER_NAMES.get(part.kind, ()))
            for part, call in pairs
        ):
            found = [call for _, call in pairs]
            return [None] * first + found + [None] * (len(silent) - first - len(found))
    return [None] * len(silent)


def _step_at(steps: list[tuple[int, int, int]], time_ns: int) -> int | None:
    at = bisect_right(steps, (time_ns, 1 << 63)) - 1
    return steps[at][2] if at >= 0 and time_ns < steps[at][1] else None


def by_group(collectives: list[Collective]) -> Iterator[tuple[tuple[str, str], list[Collective]]]:
    """Yield the process groups and what each synchronised."""
    groups: dict[tuple[str, str], list[Collective]] = {}
    for one in collectives:
        if one.synchronises:
            groups.setdefault(one.label.group, []).append(one)
    yield from sorted(groups.items())
