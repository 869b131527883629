"""A look as JSON: see ``schemas/top.schema.json``."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

from tracekit.watching.states import RankState

if TYPE_CHECKING:
    from tracekit.watching.states import Look, RunState

__all__ = ["look_document", "run_document"]

_PLAIN: Final = tuple(field.name for field in fields(RankState) if field.name not in ("steps", "stages", "doing"))
_DERIVED: Final = ("last_step_ns", "own_step_ns", "unhealthy")


def look_document(look: Look, shown: RunState | None) -> dict[str, Any]:
    """Return a look with one of its runs in full, and of the others what they are.

    Args:
        look: The look.
        shown: The run to be told of in full.
    """
    return {
        "time_ns": look.time_ns,
        "run": None if shown is None else run_document(shown),
        "other_runs": [_run(run) for run in look.runs if run is not shown],
        "notes": list(look.notes),
    }


def run_document(run: RunState) -> dict[str, Any]:
    """Return a run with all of its ranks."""
    return {**_run(run), "ranks": [_rank(rank) for rank in run.ranks]}


def _run(run: RunState) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "folder": run.folder,
        "state": run.state,
        "unhealthy": run.unhealthy,
        "world_size": run.world_size,
        "missing": list(run.missing),
        "missing_count": run.missing_count,
        "start_ns": run.start_ns,
        "step": run.step,
        "step_skew": run.step_skew,
        "median_step_ns": run.median_step_ns,
        "slowest": None if run.slowest is None else asdict(run.slowest),
        "lost_events": run.lost_events,
    }


def _rank(rank: RankState) -> dict[str, Any]:
    return {
        **{name: getattr(rank, name) for name in _PLAIN},
        **{name: getattr(rank, name) for name in _DERIVED},
        "stages": [asdict(stage) for stage in rank.stages],
        "doing": list(rank.doing),
    }
