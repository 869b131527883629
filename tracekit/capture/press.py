"""What stands around a press of the button: where the run listens, whether it would be in vain, what came of it in words."""

from __future__ import annotations

import dataclasses
import shlex
from typing import TYPE_CHECKING, Any, Final

from tracekit.capture.documents import CaptureState
from tracekit.capture.drive import is_gone
from tracekit.capture.folder import RANKS
from tracekit.errors import ConfigError, TracekitError
from tracekit.wording import counted, rank_spans

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tracekit.capture.documents import Request
    from tracekit.capture.drive import Drive, RankView
    from tracekit.capture.folder import ControlFolder

__all__ = ["control_folder", "fit_for", "parse_ranks", "progress_words", "result_lines", "result_of"]

_MOST_RANKS: Final = 1_000_000


def control_folder(folder: Path) -> Path | None:
    """Return the control folder that a folder is, or has as ``control``; None where no run has listened."""
    for candidate in (folder, folder / "control"):
        if (candidate / RANKS).is_dir():
            return candidate.absolute()
    return None


def parse_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of a list such as "0,8-15".

    Raises:
        ConfigError: It is no such list, or one of more than a million ranks.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = (number.strip() for number in part.partition("-"))
        numbers = (first, last) if dash else (first,)
        fits = all(number.isascii() and number.isdecimal() and len(number) < 10 for number in numbers)
        count = int(numbers[-1]) - int(first) + 1 if fits else 0
        if not 1 <= count <= _MOST_RANKS - len(ranks):
            raise ConfigError(f"ranks {text[:100]}: give numbers and ranges, for example 0,8-15")
        ranks.update(range(int(first), int(first) + count))
    return tuple(sorted(ranks))


def fit_for(folder: ControlFolder, request: Request) -> Request:
    """Return a request as it fits a run: without the round for a common start where one rank is meant.

    Raises:
        ConfigError: It names ranks that the run has not.
        TracekitError: It is known to be in vain: nobody listens, or ranks are in a capture already.
        OSError: The folder cannot be read.
    """
    listening = {rank: status for rank, status in folder.statuses().items() if status.listening and not is_gone(status)}
    if not listening:
        raise TracekitError(f"{folder.path}: no rank listens here any more; the run has ended")
    busy = [
        rank
        for rank, status in sorted(listening.items())
        if request.selects(rank) and status.capture is not None and status.capture.in_force
        if status.capture.state != CaptureState.ACKNOWLEDGED
    ]
    if busy:
        raise TracekitError(
            f"{rank_spans(busy)} {'is' if len(busy) == 1 else 'are'} in a capture already; wait for it, or end it with "
            f"tracekit capture --stop {shlex.quote(str(folder.path))}"
        )
    size = max(status.world_size for status in listening.values())
    beyond = [rank for rank in request.ranks or () if rank >= size]
    if beyond:
        raise ConfigError(f"there is no {rank_spans(beyond)}; the run has {counted(size, 'rank')}")
    alone = size == 1 or (request.ranks is not None and len(request.ranks) == 1)
    return dataclasses.replace(request, together=request.together and not alone)


def progress_words(drive: Drive) -> str:
    """Return how many ranks are how far: "2 recording, 1 done"."""
    states: dict[str, int] = {}
    for view in drive.ranks.values():
        capture = drive.capture_of(view)
        state = "lost" if view.lost is not None else "asked" if capture is None else capture.state
        states[state] = states.get(state, 0) + 1
    return ", ".join(f"{count:,} {state}" for state, count in states.items())


def result_of(drive: Drive, view: RankView) -> dict[str, Any]:
    """Return what became of a rank, for JSON."""
    capture = drive.capture_of(view)
    refusal = drive.refusal_of(view)
    return {
        "rank": view.rank,
        "state": "refused" if refusal is not None else capture.state if capture is not None else None,
        "first_batch": None if capture is None else capture.first_batch,
        "last_batch": None if capture is None else capture.last_batch,
        "late_batches": 0 if capture is None else capture.late_batches,
        "note": refusal or view.lost or (None if capture is None else capture.note),
        "files": [] if capture is None else list(capture.files),
    }


def result_lines(results: Iterable[dict[str, Any]]) -> list[str]:
    """Return what became of the ranks, those with the same result in one line."""
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
