"""The rank of an input, from its content, from its name or set by the user."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from tracekit.errors import ConfigError, MergeError, StorageError, TraceFormatError
from tracekit.formats.rank_trace import INDEX_KEY, INDEX_SUFFIX
from tracekit.formats.trace_event import decode_json
from tracekit.merge.scan.merged_tables import check_merged, read_tables
from tracekit.merge.scan.probe import probe
from tracekit.storage import basename, file_identity, is_remote, open_read, printable_name
from tracekit.traces.inputs import CERTAIN_RANKS, stated_rank
from tracekit.traces.labels import labels_in_name, ranks_of_labels

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from tracekit.merge.input import Input
    from tracekit.merge.selection.selection import Selection

_MAX_INDEX_BYTES: Final = 16 * 1024 * 1024
_CERTAIN: Final = CERTAIN_RANKS | {"tracekit.rank"}
"""The sources of a rank that no later part of the file can change."""


class UnknownRankError(MergeError):
    """The rank of a trace is unknown."""


class RanksByHand:
    """Ranks set by the user, by path or file name."""

    def __init__(self, ranks: Mapping[str, int]) -> None:
        self.ranks = ranks
        self._found: dict[Hashable, list[str]] = {}
        for name in ranks:
            keys: set[Hashable] = {name} if is_remote(name) else {name, file_identity(name)}
            for key in keys:
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


def find_ranks(inputs: list[Input], ranks: RanksByHand, unread: Sequence[str] = ()) -> None:
    """Set rank and ``rank_source`` of the inputs. ``unread`` are files that were found, but are not read."""
    unused = set(ranks.ranks).difference(*(ranks.names(path) for path in (*unread, *(item.path for item in inputs))))
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
        if found is None:
            if by_labels is None:
                by_labels = _ranks_by_labels(inputs, ranks, companions)
            if item.path in by_labels:
                found = by_labels[item.path], "order of the labels in file names"
        if found is None and not unread and _are_of_one_process(inputs):
            found = 0, "assumed, as all inputs are of one process"
        if found is None and len(inputs) + len(unread) == 1:
            found = 0, "assumed, as it is the only input"
        if found is None:
            raise UnknownRankError(
                f"{item.shown}: the trace does not say its rank, neither inside nor by its name; "
                f"pass it with --rank {printable_name(item.path)}=N"
            )
        item.rank, item.rank_source = found
        if item.kind == "tracekit" and item.host is not None:
            on_host.setdefault(item.host, []).append(item)


def _companions(inputs: Sequence[Input]) -> dict[str, int]:
    companions: dict[str, int] = {}
    merges = [item for item in inputs if item.kind == "merged"]
    if merges and any(item.kind != "merged" and _stated_rank(item, {}) is None for item in inputs):
        for item in merges:
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
    found = ranks_of_labels([labels_in_name(printable_name(item.path)) for item in inputs]) or []
    stated = [_stated_rank(item, companions) for item in inputs]
    # The names of some inputs may contain a rank, like the name of the first one.
    agree = all(one in (None, (rank, "file name")) for one, rank in zip(stated, found, strict=False))
    return {item.path: rank for item, rank in zip(inputs, found, strict=False)} if agree else {}


def _rank_on_host(item: Input, recorded: Sequence[Input]) -> tuple[int, str] | None:
    """Return the rank of the process, or of the host, in a trace of XLA's profiler. Return None if there are several."""
    found = {other.rank for other in recorded if not item.pids or other.pids & item.pids}
    if len(found) != 1:
        return None
    return found.pop(), "the only one of its process" if item.pids else "the only one on its host"


def _are_of_one_process(inputs: Sequence[Input]) -> bool:
    """Return True if all inputs are traces of XLA's profiler from one process."""
    return (
        all(item.kind == "xprof" and item.pids for item in inputs)
        and len({(item.host, item.pids) for item in inputs}) == 1
    )


def select_ranks(inputs: list[Input], select: Selection) -> tuple[list[Input], list[Input]]:
    """Return the inputs of the wanted ranks, and the others. In an earlier merge, select only the wanted processes."""
    kept, others = [], []
    for item in inputs:
        unwanted = frozenset(rank for rank in item.ranks if not select.wants_rank(rank))
        if unwanted >= item.ranks:
            others.append(item)
            continue
        if unwanted:
            item.unwanted_ranks = unwanted
            item.rank = min(item.ranks)
        kept.append(item)
    if not kept:
        raise MergeError("none of the inputs is of a rank that the selection names")
    return kept, others
