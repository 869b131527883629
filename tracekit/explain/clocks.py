"""The clocks of the ranks, as merged traces state them and as rank traces have measured them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.explain.results import Result
from tracekit.explain.run import recordings_of
from tracekit.explain.text import duration

if TYPE_CHECKING:
    from tracekit.explain.run import Run

    Facts = dict[str, Any]


class ClockRow(Result, frozen=True, kw_only=True):
    """The clock of a rank.

    Attributes:
        source: The method that places it: those of a merge, or "reference", "shared" (one boot with the reference), "measured"
            (a clock exchange) or "wall" (only the wall clock).
    """

    rank: int  # the rank
    host: str | None  # its host; null if that is unknown
    source: str
    aligned: bool  # true if its relation to the reference is known, and a merged trace has placed it so
    offset_ns: int | None  # the number added to its times, or to add; null if it is unknown
    error_ns: int | None  # the error bound; null if it is unknown
    drift_ppm: float | None  # the growth of the offset, µs a second; null if it is unknown
    clock_steps: int  # the number of times that its wall clock was set, or the machine slept
    largest_step_ns: int  # the largest of these
    words: str  # the same for people


class ClockReport(Result, frozen=True, kw_only=True):
    """The clocks of all ranks."""

    merged: bool  # true if a merge has placed them; otherwise each rank has the times of its clock
    rows: list[ClockRow]  # by rank

    @property
    def worst_ns(self) -> int | None:
        """The largest error bound; None if one is unknown."""
        errors = [row.error_ns for row in self.rows]
        return None if None in errors else max((error for error in errors if error is not None), default=None)

    @property
    def unaligned(self) -> list[int]:
        """The ranks without a known relation to the other clocks."""
        return [row.rank for row in self.rows if not row.aligned]


def resolution_of(run: Run) -> float:
    """Return the largest error of durations that an alignment can cause, as a share of them; 0 for traces that are not merged.

    A wrong offset moves all times of a rank and changes no duration. Errors of up to E at both ends of a trace stretch it by
    2 E at most.
    """
    shares = [0.0]
    for facts in run.facts:
        start, end = facts["span"]
        errors = [clock["error_ns"] or 0 for clock in facts["account"]["clocks"]]
        if errors and start is not None and end > start:
            shares.append(2 * max(errors) / (end - start))
    return max(shares)


def clocks_of(run: Run) -> ClockReport:
    """Return the clocks of the ranks of a run."""
    rows: dict[int, ClockRow] = {}
    own: dict[int, list[Facts]] = {}
    for facts in run.facts:
        hosts = {recording.rank: recording.process[0] for recording in recordings_of(facts)}
        for clock in facts["account"]["clocks"]:
            host = hosts.get(clock["rank"])
            count, largest = _clock_steps([facts], clock["rank"])
            rows[clock["rank"]] = ClockRow(
                **clock, host=host if isinstance(host, str) else None, clock_steps=count, largest_step_ns=largest
            )
        if not facts["is_merged"] and facts["rank"] is not None:
            own.setdefault(facts["rank"], []).append(facts)
    merged = bool(rows)
    reference = None if merged else _reference(own)
    boot = None if reference is None else _boot(own[reference])
    for rank, files in own.items():
        if rank not in rows:
            rows[rank] = _of_files(
                rank, files, is_reference=rank == reference, shared=boot is not None and _boot(files) == boot
            )
    return ClockReport(merged=merged, rows=[rows[rank] for rank in sorted(rows)])


def _reference(own: dict[int, list[Facts]]) -> int | None:
    """Return the reference rank of clock comparisons, else the lowest; None if it was not read."""
    exchanges = [facts["account"]["exchange"] for files in own.values() for facts in files]
    named = {exchange["reference_rank"] for exchange in exchanges if exchange is not None}
    return min(named & own.keys(), default=None) if named else min(own, default=None)


def _clock_steps(files: list[Facts], rank: int) -> tuple[int, int]:
    """Return how often the wall clock of a rank was set, and the largest step."""
    steps = [step for facts in files for step in facts["account"]["clock_steps"] if step[0] == rank]
    return sum(count for _, count, _ in steps), max((largest for _, _, largest in steps), key=abs, default=0)


def _boot(files: list[Facts]) -> object:
    """Return the boot that all files of a rank share; None if they have several, or state none."""
    metadata = [facts["account"]["metadata"] for facts in files]
    boot, *others = [one.get("boot_id") for one in metadata if one] or [None]
    return boot if isinstance(boot, str) and all(other == boot for other in others) else None


def _of_files(rank: int, files: list[Facts], *, is_reference: bool, shared: bool) -> ClockRow:
    exchanges = [facts["account"]["exchange"] for facts in files if facts["account"]["exchange"] is not None]
    best = min(exchanges, key=lambda exchange: exchange["error_ns"], default=None)
    host = next((host for facts in files if isinstance(host := facts["account"]["metadata"].get("host"), str)), None)
    drift_ppm = None
    placed: tuple[str, str, int | None, int | None]
    if is_reference:
        placed = "reference", "the others are compared with this clock", 0, 0
    elif shared:
        placed = "shared", "the same clock: same host and boot", 0, 0
    elif best is not None:
        count = sum(exchange["count"] for exchange in exchanges)
        words = f"compared with rank {best['reference_rank']} {count:,} times; best to ± {duration(best['error_ns'])}"
        placed = "measured", words, best["offset_ns"], best["error_ns"]
        drift_ppm = None if best["drift_ppb"] is None else best["drift_ppb"] / 1000
    else:
        placed = "wall", "wall clock; its relation to the others is not in the traces", None, None
    source, words, offset_ns, error_ns = placed
    count, largest = _clock_steps(files, rank)
    return ClockRow(
        rank=rank,
        host=host,
        source=source,
        aligned=source != "wall",
        offset_ns=offset_ns,
        error_ns=error_ns,
        drift_ppm=drift_ppm,
        clock_steps=count,
        largest_step_ns=largest,
        words=words,
    )
