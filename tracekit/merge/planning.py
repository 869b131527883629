"""The plan of a merge: where everything of every input goes, made rank by rank and laid on a shelf.

Ranks share nothing but the order in which they are shown, so that a thousand of them take no more memory than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, overload

from tracekit.merge.namespaces import (
    InputMap,
    Process,
    add_threads,
    better_name,
    display_order,
    fill,
    free_tids,
    number_processes,
    number_threads,
    spread,
    used_processes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.merge.clocks.clock_map import ClockMap
    from tracekit.merge.input import Input
    from tracekit.merge.lanes import Moves
    from tracekit.merge.namespaces import RankTrack, Track, Used
    from tracekit.merge.plain_runs import PlainRuns
    from tracekit.merge.process_key import ProcessKey
    from tracekit.merge.shelf import Shelf

__all__ = ["Plan", "plan"]

_STRIDE: Final = 1000


class Plan(Sequence[InputMap]):
    """Where everything of every input goes: how each input is rewritten, read from the shelf when it is asked for.

    Args:
        shelf: Where it lies.
        warps: What is added to the times of each input, where its clock drifts.

    Attributes:
        moved: How many slices move to a lane of their own.
        titles: What the viewer shows as the names of the processes of each rank.
    """

    def __init__(self, shelf: Shelf, warps: list[ClockMap | None]) -> None:
        self.moved = 0
        self.titles: dict[int, list[str]] = {}
        self._shelf = shelf
        self._warps = warps
        self._maps: list[int] = []
        self._processes: list[int] = []
        self._batches: list[int] = []

    def __len__(self) -> int:
        return len(self._maps)

    @overload
    def __getitem__(self, number: int) -> InputMap: ...

    @overload
    def __getitem__(self, number: slice) -> list[InputMap]: ...

    def __getitem__(self, number: int | slice) -> InputMap | list[InputMap]:
        if isinstance(number, slice):
            return [self[place] for place in range(*number.indices(len(self)))]
        return self.with_plain(number)[0]

    def with_plain(self, number: int) -> tuple[InputMap, PlainRuns]:
        """Return how an input is rewritten, and which of its runs need not be decoded for that."""
        found: tuple[InputMap, PlainRuns] = self._shelf.get(self._maps[number])
        found[0].warp = self._warps[number]
        return found

    @property
    def processes(self) -> Iterable[Process]:
        """The processes in the order of display; they can be gone through any number of times."""
        return _Processes(self._shelf, self._processes)

    def processes_beside(self, number: int) -> list[Process]:
        """Return the processes of an input, and those of the inputs that were planned with it."""
        found: list[Process] = self._shelf.get(self._processes[self._batches[number]])
        return found

    def put(self, maps: list[tuple[InputMap, PlainRuns]], processes: list[Process]) -> None:
        """Add the next inputs, with the runs that need not be decoded again, and the processes that only they have."""
        for process in processes:
            self.titles.setdefault(process.rank, []).append(process.title)
        self._maps += [self._shelf.put(target) for target in maps]
        self._batches += [len(self._processes)] * len(maps)
        self._processes.append(self._shelf.put(processes))


@dataclass(frozen=True, slots=True)
class _Processes:
    shelf: Shelf
    places: list[int]

    def __iter__(self) -> Iterator[Process]:
        for place in self.places:
            yield from self.shelf.get(place)


def plan(
    inputs: list[Input],
    shifts_ns: list[int],
    warps: list[ClockMap | None],
    shelf: Shelf,
    assign: Callable[[list[RankTrack]], list[list[Moves | None]]],
    *,
    together: int = 1,
) -> Plan:
    """Give every used process and thread its place.

    Args:
        inputs: In the order of the output, which is that of their ranks.
        shifts_ns: What is added to the times of each.
        warps: What is added besides, where a clock drifts.
        shelf: Where the plan is laid down.
        assign: Does what `assign_lanes` does, for many tracks at once.
        together: How many inputs are planned together at least.

    Raises:
        MergeError: More processes than 32-bit process ids can name.
    """
    made = Plan(shelf, warps)
    stride = _stride(inputs)
    for numbers in _batches(inputs, together):
        _plan_some(made, inputs, numbers, shifts_ns, assign, stride)
    return made


def _batches(inputs: list[Input], together: int) -> Iterator[range]:
    """Yield the inputs by number, as few together as have no rank in common with any other."""
    start = 0
    highest = -1
    for number, item in enumerate(inputs):
        if number - start >= together and min(item.ranks) > highest:
            yield range(start, number)
            start = number
        highest = max(highest, *item.ranks)
    yield range(start, len(inputs))


def _plan_some(
    made: Plan,
    inputs: list[Input],
    numbers: range,
    shifts_ns: list[int],
    assign: Callable[[list[RankTrack]], list[list[Moves | None]]],
    stride: int,
) -> None:
    """Do it for inputs whose ranks no other input has."""
    tracks_of = {number: inputs[number].scan.tracks() for number in numbers}
    places = {number: list(used_processes(inputs[number], tracks_of[number][0])) for number in numbers}
    processes, owners = _join(inputs, places)
    ordered = sorted(processes.values(), key=display_order)
    number_processes(ordered, stride)
    found = {
        number: [(scan, processes[rank, key]) for _, scan, (rank, key, _) in used] for number, used in places.items()
    }
    for number in numbers:
        for process_scan, process in found[number]:
            add_threads(process, process_scan, number)
    for process in ordered:
        number_threads(process)
    maps = {
        number: InputMap(
            number, shifts_ns[number], {}, any(len(owners[id(process)]) > 1 for _, process in found[number])
        )
        for number in numbers
    }
    tracks: dict[int, Track] = {}
    threads = [(process, thread) for process in ordered for thread in process.threads.values() if thread.scans]
    found_moves = assign(
        [
            (process.rank, [(scan.slices, shifts_ns[number]) for number, scan in thread.scans])
            for process, thread in threads
        ]
    )
    # In order of their numbers, so that lanes are numbered alike whatever was merged before.
    in_order = sorted(zip(threads, found_moves, strict=True), key=lambda found: (found[0][0].pid, found[0][1].tid))
    tids_left: dict[int, Iterator[int]] = {}
    for (process, thread), moves in in_order:
        if any(moves):
            if id(process) not in tids_left:
                tids_left[id(process)] = free_tids(process)
            made.moved += spread(process, thread, moves, tracks, tids_left[id(process)])
    for number in numbers:
        fill(maps[number], tracks_of[number][0], found[number], tracks)
        # What was needed to tell its processes from others.
        inputs[number].identities = {}
        inputs[number].process_keys = {}
    for process in ordered:
        process.inputs = sorted({number for thread in process.threads.values() for number, _ in thread.scans})
        for thread in process.threads.values():
            thread.scans = []
    made.put([(maps[number], tracks_of[number][1]) for number in numbers], ordered)


def _join(
    inputs: list[Input], places: dict[int, list[Used]]
) -> tuple[dict[tuple[int, ProcessKey], Process], dict[int, set[int]]]:
    """Return the processes of some inputs, and which inputs each is in, by its ``id``."""
    processes: dict[tuple[int, ProcessKey], Process] = {}
    owners: dict[int, set[int]] = {}
    for number, used in places.items():
        item = inputs[number]
        for raw, _, (rank, key, name) in used:
            process = processes.setdefault((rank, key), Process(rank, key))
            process.name = better_name(process.name, name, rank)
            process.host = process.host or item.merged_hosts.get(raw) or item.host
            process.identity = process.identity or item.identities.get(raw)
            owners.setdefault(id(process), set()).add(number)
    return processes, owners


def _stride(inputs: list[Input]) -> int:
    """Return how far apart the numbers of two ranks are: more than any rank has processes."""
    most: dict[int, int] = {}
    for item in inputs:
        for rank in item.ranks:
            most[rank] = most.get(rank, 0) + item.scan.process_count
    if max(most.values(), default=0) < _STRIDE:
        return _STRIDE
    counts: dict[int, set[ProcessKey]] = {}
    for item in inputs:
        for _, _, (rank, key, _) in used_processes(item, item.scan.tracks()[0]):
            counts.setdefault(rank, set()).add(key)
    stride = _STRIDE
    while stride <= max(map(len, counts.values()), default=0):
        stride *= 10
    return stride
