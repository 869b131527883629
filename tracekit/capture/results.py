"""The progress and the result of a capture, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tracekit.capture.documents import CaptureState
from tracekit.wording import rank_spans

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.capture.coordinator import CaptureCoordinator, RankView


def progress_words(coordinator: CaptureCoordinator) -> str:
    """Return the number of ranks in each state: "2 recording, 1 done"."""
    states = Counter(
        "lost" if view.lost is not None else "asked" if view.capture is None else view.capture.state.value
        for view in coordinator.ranks.values()
    )
    return ", ".join(f"{count:,} {state}" for state, count in states.items())


def results_of(coordinator: CaptureCoordinator) -> list[dict[str, Any]]:
    """Return the result of each rank for JSON, ordered by rank."""
    return [_result_of(coordinator.ranks[rank]) for rank in sorted(coordinator.ranks)]


def _result_of(view: RankView) -> dict[str, Any]:
    capture, refusal = view.capture, view.refusal
    return {
        "rank": view.rank,
        "state": "refused" if refusal is not None else None if capture is None else capture.state.value,
        "first_batch": None if capture is None else capture.first_batch,
        "last_batch": None if capture is None else capture.last_batch,
        "late_batches": 0 if capture is None else capture.late_batches,
        "note": refusal or view.lost or (None if capture is None else capture.note),
        "files": [] if capture is None else list(capture.files),
    }


def result_lines(results: Iterable[dict[str, Any]]) -> list[str]:
    """Return the results as text, with one line for all ranks with the same result."""
    alike: dict[str, list[int]] = {}
    for result in results:
        alike.setdefault(_result_line(result), []).append(result["rank"])
    return [f"{rank_spans(ranks)}: {line}" for line, ranks in alike.items()]


def _result_line(result: dict[str, Any]) -> str:
    first, last, late = result["first_batch"], result["last_batch"], result["late_batches"]
    if result["state"] is None:
        return result["note"] or "has not answered"
    parts = [result["state"]]
    if result["state"] == CaptureState.DONE:
        parts = [f"batch {first}" if first == last else f"batches {first} to {last}"]
    elif first is not None:
        parts.append(f"from batch {first} on")
    if late:
        parts.append(f"{late} batch{'' if late == 1 else 'es'} late")
    if result["note"]:
        parts.append(result["note"])
    return ", ".join(parts)
