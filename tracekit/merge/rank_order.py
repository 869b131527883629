"""RankOrder: the parallelism labels of the ranks of a merge, and the order of the ranks in a viewer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracekit.errors import ConfigError
from tracekit.formats.merged_head import merge_decisions
from tracekit.storage import printable_name
from tracekit.traces.labels import DIMENSIONS, Labels, labels_from_json, labels_of_trace, labels_text, shown_dimensions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.merge.input import Input

GROUP_BY = ("tp", "dp", "pp", "ep", "node")
"""The choices of ``--group-by``."""


@dataclass(slots=True)
class RankOrder:
    """Labels and order of the ranks of a merge.

    Attributes:
        places: Position of each rank in the viewer: the rank itself if ranks are not grouped.
        shown: The dimensions in the titles.
        group_by: The dimension that sorts the ranks, or "node". None sorts by rank.
    """

    places: dict[int, int]
    labels: dict[int, Labels] = field(default_factory=dict)
    shown: tuple[str, ...] = ()
    group_by: str | None = None

    def metadata(self) -> dict[str, Any]:
        """Return the labels and the grouping as metadata of a merged trace."""
        return {
            **({"labels": sorted(self.labels.items())} if self.labels else {}),
            **({"shown_labels": self.shown} if self.shown else {}),
            **({"group_by": self.group_by} if self.group_by else {}),
        }

    def text(self, rank: int) -> str:
        """Return the labels of a rank as in its title."""
        return labels_text(self.labels.get(rank, {}), self.shown)

    def fits(self, item: Input) -> bool:
        """Return True if an earlier merge has the same title dimensions and grouping."""
        own = merge_decisions(item.head().header)
        return own.get("shown_labels", []) == list(self.shown) and own.get("group_by") == self.group_by


def order_ranks(inputs: Iterable[Input], group_by: str | None = None) -> RankOrder:
    """Find the labels of the ranks, and sort the ranks.

    Without a grouping, sort by rank, or like the only input if that is an earlier merge.
    """
    if group_by is not None and group_by not in GROUP_BY:
        raise ConfigError(f"group_by {group_by!r}: give one of {', '.join(GROUP_BY)}")
    ranks: set[int] = set()
    found: dict[int, Labels] = {}
    nodes: dict[int, str] = {}
    stated: list[Any] = []
    for item in inputs:
        ranks |= item.ranks
        header = item.head().header
        if item.kind == "merged":
            stated.append(merge_decisions(item.head().header).get("group_by"))
            for rank, labels in _labels_of_merge(item):
                if rank in item.ranks:
                    found[rank] = labels | found.get(rank, {})
            for known in item.processes.values():
                if known.host is not None:
                    nodes.setdefault(known.rank, known.host)
            continue
        stated.append(None)
        labels = labels_of_trace(printable_name(item.path), header, item.rank)
        if labels:
            found[item.rank] = labels | found.get(item.rank, {})
        if item.host is not None:
            nodes.setdefault(item.rank, item.host)
    if group_by is None and len(stated) == 1 and stated[0] in GROUP_BY:
        group_by = stated[0]
    elif group_by is not None:
        _check_grouping(group_by, found, nodes)
    shown = shown_dimensions(found.get(rank, {}) for rank in ranks)
    ordered = sorted(ranks, key=_order(group_by, found, nodes))
    return RankOrder(
        {rank: rank if group_by is None else place for place, rank in enumerate(ordered)},
        {rank: {key: labels[key] for key in DIMENSIONS if key in labels} for rank, labels in found.items()},
        shown,
        group_by,
    )


def _labels_of_merge(item: Input) -> Iterator[tuple[int, Labels]]:
    entries = merge_decisions(item.head().header).get("labels")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, list) and len(entry) == 2 and type(entry[0]) is int:
            yield entry[0], labels_from_json(entry[1])


def _check_grouping(group_by: str, labels: dict[int, Labels], nodes: dict[int, str]) -> None:
    if nodes if group_by == "node" else any(group_by in one for one in labels.values()):
        return
    missing = "host" if group_by == "node" else f"place in {group_by}"
    raise ConfigError(
        f"--group-by {group_by}: no input states its {missing}, neither by its name nor in its metadata; "
        "merge without --group-by"
    )


def _order(group_by: str | None, labels: dict[int, Labels], nodes: dict[int, str]) -> Any:
    """Return the sort key of ranks. Ranks without a position in the grouping come last."""
    first: dict[str, int] = {}
    for rank in sorted(nodes):
        first.setdefault(nodes[rank], rank)

    def key(rank: int) -> tuple[float, int]:
        if group_by is None:
            return 0, rank
        place = first.get(nodes.get(rank, "")) if group_by == "node" else labels.get(rank, {}).get(group_by)
        return float("inf") if place is None else place, rank

    return key
