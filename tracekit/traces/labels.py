"""Parallelism labels: the place of a rank in each dimension of a parallel run, such as tp1 dp2.

Labels come from file names and from the process groups that Kineto writes into ``distributedInfo``. Names of directories and
of runs often state sizes ("llama-tp8-pp2"), so that only the conventions of known projects count.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.trace_event import Raw, decode_or_none

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Labels = dict[str, int]  # the place of a rank in each known dimension

DIMENSIONS: Final = ("tp", "dp", "pp", "ep", "cp", "dcp", "etp", "edp")
"""Tensor, data, pipeline, expert, context, decode context, expert tensor and expert data parallelism; the order of display."""

_MAX_PLACE: Final = 10**7
_LABEL: Final = r"(?:tp|dp|pp|ep|cp|dcp|etp|edp)\d{1,7}"

# Each pattern finds the labels of one convention, in lower case.
_NAMES: Final = (
    # sglang: 1767553776.97-TP-1-DP-0-PP-0-EP-1.trace.json.gz, bs-8-1767553785.46-TP-0-EXTEND.trace.json.gz
    re.compile(r"-tp-\d{1,7}(?:-(?:dp|pp|ep|cp)-\d{1,7})*(?=[-.])"),
    # vLLM: dp0_pp0_tp1_dcp0_ep1_rank1.1767553785.pt.trace.json.gz
    re.compile(rf"(?<![a-z0-9])dp\d{{1,7}}_pp\d{{1,7}}_tp\d{{1,7}}_(?:{_LABEL}_)*(?=rank\d)"),
    # Forks of Megatron, and caches of sglang: memory_profile_rank0_dp0_pp0_tp0.json, rank_tp1_pp0_dp0.json
    re.compile(rf"(?<=rank)\d{{0,7}}(?:_{_LABEL}){{2,}}(?![a-z0-9])"),
    # Megatron: trace_tp_rank_1_pp_rank_0.json; DeepSpeed: zero_pp_rank_3_mp_rank_01.json
    re.compile(r"(?<![a-z0-9])(?:(?:zero_pp|tp|dp|pp|ep|cp|mp)[-_]rank[-_]?\d{1,7}(?:[-_.]|$))+"),
)
_ONE_LABEL: Final = re.compile(r"(zero_pp|mp|dcp|etp|edp|tp|dp|pp|ep|cp)(?:[-_]rank)?[-_]?(\d{1,7})")
_ALIASES: Final = {"mp": "tp", "zero_pp": "dp"}
"""DeepSpeed's words: it calls tensor parallelism model parallelism, and ranks of ZeRO's partitions are data parallel."""

_RANK_ORDERS: Final = (("tp",), ("dp",), ("pp",), ("dp", "tp"), ("pp", "tp"), ("pp", "dp"), ("pp", "dp", "tp"))
"""Dimensions that may determine a rank, slowest first; the fewest that do are taken."""

_LONG_NAMES: Final = {
    "tensor": "tp",
    "tensormodel": "tp",
    "model": "tp",
    "data": "dp",
    "pipeline": "pp",
    "pipelinemodel": "pp",
    "expert": "ep",
    "expertmodel": "ep",
    "context": "cp",
    "decodecontext": "dcp",
    "experttensor": "etp",
    "expertdata": "edp",
}
"""What descriptions of process groups say before "parallel"; "model" alone is DeepSpeed's word for tensor parallelism."""

# torch's DeviceMesh: mesh_tp; Megatron: TENSOR_MODEL_PARALLEL_GROUP, with a purpose after a comma; vLLM: tp:0
_GROUP: Final = re.compile(r"(?:mesh_)?([a-z_ ]+?)([ _]parallel(?:[ _]group)?)?(?::\d+)?")
_SPLIT_DATA: Final = {"dp_replicate": 0, "dp_shard": 1, "fsdp": 1}
"""torchtitan's two halves of data parallelism, outer before inner."""


def labels_in_name(name: str) -> Labels:
    """Return the labels that a file name states by the convention of a known project."""
    name = name.lower()
    found = next(filter(None, (pattern.search(name) for pattern in _NAMES)), None)
    labels = _ONE_LABEL.findall(found[0]) if found else []
    return {_ALIASES.get(dimension, dimension): int(place) for dimension, place in labels}


def labels_of_groups(info: Any, rank: int) -> Labels:
    """Return the labels that the process groups in Kineto's ``distributedInfo`` give a rank.

    The place in a dimension is the place in the ranks of its group.
    """
    config = info.get("pg_config") if isinstance(info, dict) else None
    labels: Labels = {}
    data: list[tuple[int, int] | None] = [None, None]
    for group in config if isinstance(config, list) else ():
        if not isinstance(group, dict):
            continue
        description = str(group.get("pg_desc", "")).partition(",")[0].strip().lower()
        half, dimension = _SPLIT_DATA.get(description.removeprefix("mesh_")), None
        if half is None and (match := _GROUP.fullmatch(description)) is not None:
            words = match[1].replace(" ", "").replace("_", "")
            dimension = _LONG_NAMES.get(words) if match[2] else match[1] if match[1] in DIMENSIONS else None
        if (half is None and dimension is None) or rank not in (ranks := _ranks(group.get("ranks"))):
            continue
        if half is not None:
            data[half] = ranks.index(rank), len(ranks)
        elif dimension is not None:
            labels.setdefault(dimension, ranks.index(rank))
    if "dp" not in labels and any(data):
        (outer, _), (inner, size) = (half or (0, 1) for half in data)
        labels["dp"] = outer * size + inner
    return labels


def labels_of_trace(name: str, header: Mapping[str, Any], rank: int) -> Labels:
    """Return the labels of a trace of one rank: what its process groups say, and its name where they say nothing."""
    return labels_in_name(name) | labels_of_groups(header.get("distributedInfo"), rank)


def labels_from_json(value: Any) -> Labels:
    """Return the labels that a merged trace keeps of a rank, without what is not valid."""
    if not isinstance(value, dict):
        return {}
    return {
        dimension: value[dimension]
        for dimension in DIMENSIONS
        if type(value.get(dimension)) is int and 0 <= value[dimension] <= _MAX_PLACE
    }


def shown_dimensions(labels: Iterable[Labels]) -> tuple[str, ...]:
    """Return the dimensions that differ between ranks, in order; for one rank, those with a place above 0."""
    of_ranks = list(labels)
    if len(of_ranks) == 1:
        return tuple(dimension for dimension in DIMENSIONS if of_ranks[0].get(dimension))
    return tuple(dimension for dimension in DIMENSIONS if len({one.get(dimension) for one in of_ranks}) > 1)


def labels_text(labels: Labels, dimensions: Iterable[str] = DIMENSIONS) -> str:
    """Return labels as text, such as "tp1 dp2"."""
    return " ".join(f"{dimension}{labels[dimension]}" for dimension in dimensions if dimension in labels)


def ranks_of_labels(labels: Sequence[Labels]) -> list[int] | None:
    """Return the ranks of traces from their labels, or None where labels do not determine ranks.

    They do where the places in few dimensions are all there, each once: tensor parallelism varies fastest, then data, then
    pipeline parallelism, which is the order of Megatron, vLLM and sglang.
    """
    distinct = {tuple(one.get(dimension) for dimension in DIMENSIONS) for one in labels}
    for dimensions in _RANK_ORDERS:
        places = [tuple(one.get(dimension, -1) for dimension in dimensions) for one in labels]
        sizes = [max(column) + 1 for column in zip(*places, strict=True)]
        found = sorted(set(places))
        if len(found) == len(distinct) == prod(sizes) and min(map(min, found)) == 0:
            return [found.index(place) for place in places]
    return None


def _ranks(value: Any) -> list[int]:
    """Return the ranks of a group: a list, or its text as Kineto's on-demand traces have it."""
    if isinstance(value, str):
        value = decode_or_none(Raw(value.encode()))
    return [rank for rank in value if type(rank) is int] if isinstance(value, list) else []
