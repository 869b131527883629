"""The collectives of a trace: which they are, between whom, and when they began and ended.

Collectives are the kernels of NCCL and RCCL, gloo's annotations, and the entries of flight-recorder dumps. Arguments that a
kernel lacks (torch 2.1 and before write none, and until 2026 no sequence number) come from the CPU: from
``record_param_comms`` with the same ``External id``, or from the ``nccl:all_to_all`` annotations, in the order of the kernels.

Source: torch's ``ParamCommsUtils``, ``profiler/util.h`` and Kineto's output of the years 2022 to 2026.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from sys import intern
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.formats.trace_event import Event, decode_dict, raw_field, raw_number, time_field
from tracekit.traces.collectives.search import find_events, find_sampled_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

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
ANNOTATION: Final = b'"user_annotation"'
FLIGHT_RECORDER: Final = b'"flight_recorder"'
_UNDER_OTHER_NAMES: Final = {"": ("all_to_all", "send", "recv", "gather", "scatter"), "all_reduce": ("barrier",)}
"""What NCCL does by kernels that say no more than SendRecv, or by those of another kind."""

_STEP: Final = re.compile(rb'"ProfilerStep#(\d{1,18})"')
_KERNEL_KIND: Final = re.compile(rb'"nccl(?:Dev)?Kernel_([A-Za-z]+)')


class Label(NamedTuple):
    """The properties that all members of one collective share."""

    kind: str  # "all_reduce" and so on; empty where it is not known
    group: tuple[str, str]  # name and members of the process group as written; empty where unknown
    sizes: str  # type and number of elements, empty where they are unknown or may differ between members
    peers: tuple[int, int] | None = None  # source and destination rank of a send or receive


class Collective(NamedTuple):
    """One member's part of a collective. Times are ns in the file's own time."""

    label: Label
    sequence: int | None  # number of the collective in its group, or None
    step: int | None  # N of the ``ProfilerStep#N`` that launched it, or None
    start_ns: int  # when this member came and when it left
    end_ns: int
    pid: Any
    tid: Any
    category: bytes = b""
    file_ns: int = 0  # when this member came, in the file's own time also where the others are moved

    @property
    def synchronises(self) -> bool:
        """True if its end is the same moment for all members."""
        return self.label.kind in SYNCHRONISING

    @property
    def on_gpu(self) -> bool:
        """True for a kernel."""
        return self.category not in (ANNOTATION, FLIGHT_RECORDER)

    @property
    def ends_on_time(self) -> bool:
        """False for the flight recorder, which notices ends up to 100 ms late."""
        return self.category != FLIGHT_RECORDER


def kind_of(name: str) -> str:
    """Return the kind of collective that a name of NCCL, gloo or torch means; empty if that is unknown."""
    plain = name.lower().replace("_", "").replace("-", "")
    return next((kind for word, kind in _KINDS if word in plain), "")


class CollectiveCollector:
    """Collects the collectives of an input while it is read for something else.

    ``most`` limits the number of kernels, calls and so on, which bounds the memory. ``in_order`` is True if it gets all
    events, so the k-th annotation can belong to the k-th kernel.
    """

    def __init__(self, most: int | None = None, *, in_order: bool = True) -> None:
        self._in_order = in_order
        self._most = 1 << 62 if most is None else most
        self._roles: dict[Any, dict[str, list[Any]]] = {}  # by pid, as ranks may be known later, and by role

    def add(self, event: Event) -> None:
        """Process one event."""
        name, start, length = raw_field(event.name), time_field(event.ts), time_field(event.dur)
        if event.ph != "X" or start is None or length is None or length < 0:
            return
        found = _role_of(event, name, start, start + length)
        # Annotations are paired with kernels by order, which a sample lacks.
        if found is not None and (self._in_order or found[0] != "annotation"):
            kept = self._roles.setdefault(raw_number(event.pid), {}).setdefault(found[0], [])
            if len(kept) < self._most:
                kept.append(found[1])

    def result(self, ranks: Mapping[Any, int] | None = None) -> dict[int | None, list[Collective]]:
        """Return the collectives of each rank in the order of their ends.

        ``ranks`` has the rank of each ``pid``; without it, all collectives belong to the rank None.
        """
        joined: dict[int | None, dict[str, list[Any]]] = {}
        for pid, roles in self._roles.items():
            rank = None if ranks is None else ranks.get(pid)
            if ranks is None or rank is not None:
                for role, ones in roles.items():
                    joined.setdefault(rank, defaultdict(list))[role] += ones
        return {rank: found for rank, roles in joined.items() if (found := _collectives(roles))}


def read_collectives(
    path: str,
    ranks: Mapping[Any, int] | None = None,
    *,
    most: int | None = None,
    sampled: bool = False,
    follow: Callable[[Iterator[bytes]], Iterator[bytes]] = iter,
) -> dict[int | None, list[Collective]] | None:
    """Read the collectives of a trace, by rank; None where a sample is asked for and would not be much smaller.

    See `CollectiveCollector` for ``ranks`` and ``most``, `find_sampled_events` for ``sampled``, and `find_events` for ``follow``,
    which a sample ignores.
    """
    names, found = NAMES_OF_COLLECTIVES, CollectiveCollector(most, in_order=not sampled)
    events = find_sampled_events(path, names) if sampled else find_events(path, names, follow)
    if events is None:
        return None
    for event in events:
        found.add(event)
    return found.result(ranks)


def thinned(collectives: list[Collective], most: int) -> list[Collective]:
    """Limit the collectives of each process group, keeping the same ones for every member as far as possible.

    Keep the multiples of a power of two of the sequence numbers, or else the first and the last collectives.
    """
    kept: list[Collective] = []
    for _, members in _grouped(collectives):
        found, stride = members, 1
        while len(found) > most and all(one.sequence is not None for one in found):
            stride *= 2
            found = [one for one in members if (one.sequence or 0) % stride == 0]
        kept += found if len(found) <= most else found[: most // 2] + found[-(most - most // 2) :]
    return sorted(kept, key=_order)


def _role_of(event: Event, name: bytes, start_ns: int, end_ns: int) -> tuple[str, Any] | None:
    """Return the role of an event for the collectives of its rank, and the part to keep; None without a role.

    The roles are "kernel" (with its ``External id``), "silent" (a kernel that does not name its collective), "gloo" and "flight";
    "call" (with its ``External id``), "annotation" (of NCCL) and "step".
    """
    category = raw_field(event.cat)
    if name.startswith(b'"ProfilerStep#'):
        step = _STEP.fullmatch(name)
        return ("step", (start_ns, end_ns, int(step[1]))) if step and category == ANNOTATION else None
    args = decode_dict(event.args)
    external = args.get("External id")
    external = external if isinstance(external, int) else None
    label, sequence = _label(args) if "Collective name" in args else (None, None)
    if name.startswith(b'"record_param_comms'):
        is_known = external is not None and label is not None
        return ("call", (external, (start_ns, label, sequence))) if is_known else None
    role = "kernel" if name.startswith(_KERNELS) else "flight" if category == FLIGHT_RECORDER else ""
    if role == "kernel" and label is None:
        own = _KERNEL_KIND.match(name)
        role, label = "silent", Label(kind_of(own[1].decode()) if own else "", ("", ""), "")
    elif role == "flight" and label is not None:
        # torch.profiler may number the collectives of the same group in another way.
        label = label._replace(group=(intern(f"flight recorder {label.group[0]}"), label.group[1]))
    elif not role and category == ANNOTATION and name.startswith(_CALLS):
        kind, dims = kind_of(name.decode("utf-8", "replace")), str(args.get("Input Dims", ""))
        if not name.startswith(b'"gloo:'):
            return "annotation", (start_ns, kind, dims)
        role, label, sequence = "gloo", Label(kind, ("", ""), dims if kind in _EVEN else ""), None
    if not role or label is None:
        return None
    track = raw_number(event.pid), raw_number(event.tid)
    found = Collective(label, sequence, None, start_ns, end_ns, *track, category, start_ns)
    return role, (found, external) if role == "kernel" else found


def _label(args: dict[str, Any]) -> tuple[Label, int | None]:
    kind = kind_of(str(args["Collective name"]))
    source, target, sequence = args.get("Src Rank"), args.get("Dst Rank"), args.get("Seq")
    known = kind in ("send", "recv") and isinstance(source, int) and isinstance(target, int)
    sizes = f"{args.get('dtype', '')} {args.get('In msg nelems', '')} {args.get('Out msg nelems', '')}"
    # The list of a large group's ranks is long, and every collective has it.
    group = intern(str(args.get("Process Group Name", ""))), intern(str(args.get("Process Group Ranks", "")))
    label = Label(kind, group, sizes if kind in _EVEN else "", (source, target) if known else None)  # type: ignore[arg-type]
    is_number = isinstance(sequence, int) and not isinstance(sequence, bool) and sequence >= 0
    return label, sequence if is_number else None


def _collectives(roles: dict[str, list[Any]]) -> list[Collective]:
    """Return the collectives of a rank in the order of their ends, completed by the CPU's events."""
    steps: list[tuple[int, int, int]] = sorted(roles["step"])
    silent: list[Collective] = sorted(roles["silent"], key=lambda one: (one.start_ns, one.end_ns))
    calls: dict[int | None, tuple[int, Label, int | None]] = dict(roles["call"])
    found: list[Collective] = []
    for one, annotation in zip(silent, _annotations_of(roles["annotation"], silent), strict=True):
        found.append(one)
        if annotation is not None:
            launched_ns, kind, sizes = annotation
            kind = one.label.kind or kind
            label = one.label._replace(kind=kind, sizes=sizes if kind in _EVEN else "")
            found[-1] = one._replace(label=label, step=_step_at(steps, launched_ns))
    for one, external in roles["kernel"]:
        found.append(one)
        if (call := calls.get(external)) is not None:
            launched_ns, asked, number = call
            group = one.label.group if any(one.label.group) else asked.group
            label = one.label._replace(group=group, peers=one.label.peers or asked.peers)
            number = number if one.sequence is None else one.sequence
            found[-1] = one._replace(label=label, sequence=number, step=_step_at(steps, launched_ns))
    if found:  # annotations of the CPU are not the collectives then, and dumps do not hold the launch
        return sorted([*found, *roles["flight"]], key=_order)
    cpu = [one._replace(step=_step_at(steps, one.start_ns)) for one in (*roles["gloo"], *roles["flight"])]
    return sorted(cpu, key=_order)


def _order(one: Collective) -> tuple[Any, ...]:
    return one.end_ns, one.start_ns, one.label[:3], str(one.pid), str(one.tid)


def _annotations_of(
    annotations: list[tuple[int, str, str]], silent: list[Collective]
) -> list[tuple[int, str, str] | None]:
    """Return for each kernel without arguments the annotation that it was launched in: both come in one order.

    The first kernels may have been launched before the trace began, and the last calls may have no kernel any more.
    """
    calls = sorted(annotations)
    for first in range(len(silent)):
        pairs = list(zip(silent[first:], calls, strict=False))
        if all(
            call[0] <= one.start_ns
            and (call[1] == one.label.kind or call[1] in _UNDER_OTHER_NAMES.get(one.label.kind, ()))
            for one, call in pairs
        ):
            found = [call for _, call in pairs]
            return [None] * first + found + [None] * (len(silent) - first - len(found))
    return [None] * len(silent)


def _step_at(steps: list[tuple[int, int, int]], time_ns: int) -> int | None:
    at = bisect_right(steps, (time_ns, 1 << 63)) - 1
    return steps[at][2] if at >= 0 and time_ns < steps[at][1] else None


def by_group(collectives: list[Collective]) -> list[tuple[tuple[str, str], list[Collective]]]:
    """Return the process groups and what each synchronised."""
    return _grouped(one for one in collectives if one.synchronises)


def _grouped(collectives: Iterable[Collective]) -> list[tuple[tuple[str, str], list[Collective]]]:
    groups: dict[tuple[str, str], list[Collective]] = {}
    for one in collectives:
        groups.setdefault(one.label.group, []).append(one)
    return sorted(groups.items())
