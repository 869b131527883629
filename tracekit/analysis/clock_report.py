"""How the clocks of the ranks stand to each other, as merged traces state it and as rank traces have measured it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.analysis.text import duration

if TYPE_CHECKING:
    from tracekit.analysis.file_account import FileAccount
    from tracekit.analysis.reading import Reading, TraceFile

__all__ = ["ClockReport", "ClockRow", "clocks_of"]


@dataclass(frozen=True, slots=True)
class ClockRow:
    """The clock of a rank.

    Attributes:
        rank: Whose.
        host: Where it ran; None where that is not known.
        source: What places it: the words of `RankClock` for a merged trace; "reference", "shared" (one boot with the
            reference), "measured" (a clock exchange) or "wall" (nothing but the wall clock) for one that is not merged.
        aligned: Whether it is known how it stands to the reference, and for a merged trace: whether it was placed so.
        offset_ns: What was added to its times, or is to be added; None where that is not known.
        error_ns: How far it may be off; None where that is not known.
        drift_ppm: By how many µs a second the offset grows; None where that is not known.
        clock_steps: How often its wall clock was set, or the machine slept.
        largest_step_ns: The largest of these.
        words: The same for people.
    """

    rank: int
    host: str | None
    source: str
    aligned: bool
    offset_ns: int | None
    error_ns: int | None
    drift_ppm: float | None
    clock_steps: int
    largest_step_ns: int
    words: str


@dataclass(frozen=True, slots=True)
class ClockReport:
    """The clocks of all ranks.

    Attributes:
        merged: Whether a merge has placed them; else the times of each rank are those of its own clock.
        rows: By rank.
    """

    merged: bool
    rows: list[ClockRow]

    @property
    def worst_ns(self) -> int | None:
        """How far any of them may be off at most; None where that is not known of one of them."""
        errors = [row.error_ns for row in self.rows]
        return None if None in errors else max((error for error in errors if error is not None), default=None)

    @property
    def unaligned(self) -> list[int]:
        """The ranks of which it is not known how their clock stands to the others'."""
        return [row.rank for row in self.rows if not row.aligned]


def clocks_of(reading: Reading) -> ClockReport:
    """Return the clocks of the ranks that were read."""
    rows: dict[int, ClockRow] = {}
    for file in reading.files:
        steps = _clock_steps(file)
        hosts = {recording.rank: recording.process[0] for recording in file.recordings}
        for clock in file.account.clocks:
            rows[clock.rank] = ClockRow(
                rank=clock.rank,
                host=host if isinstance(host := hosts.get(clock.rank), str) else None,
                source=clock.source,
                aligned=clock.aligned,
                offset_ns=clock.offset_ns,
                error_ns=clock.error_ns,
                drift_ppm=clock.drift_ppm,
                clock_steps=steps.get(clock.rank, (0, 0))[0],
                largest_step_ns=steps.get(clock.rank, (0, 0))[1],
                words=clock.words,
            )
    merged = bool(rows)
    own: dict[int, list[TraceFile]] = {}
    for file in reading.files:
        if not file.merged and file.rank is not None:
            own.setdefault(file.rank, []).append(file)
    reference = None if merged else _reference(own)
    boot = None if reference is None else _boot(own[reference])
    for rank, files in own.items():
        if rank not in rows:
            rows[rank] = _of_files(
                rank, files, is_reference=rank == reference, shared=boot is not None and _boot(files) == boot
            )
    return ClockReport(merged, [rows[rank] for rank in sorted(rows)])


def _reference(own: dict[int, list[TraceFile]]) -> int | None:
    """Return the rank whose clock the others were compared with, else the lowest; None where that was not read."""
    exchanges = [file.account.exchange for files in own.values() for file in files]
    named = {exchange.reference_rank for exchange in exchanges if exchange is not None}
    return min(named & own.keys(), default=None) if named else min(own, default=None)


def _clock_steps(file: TraceFile) -> dict[int, tuple[int, int]]:
    """Return how often the wall clock of each rank was set, and the largest step."""
    found: dict[int, tuple[int, int]] = {}
    for pid, (count, largest_ns) in file.account.clock_steps.items():
        rank = file.rank if file.ranks is None else file.ranks.get(pid)
        if rank is not None:
            before, most_ns = found.get(rank, (0, 0))
            found[rank] = before + count, max(most_ns, largest_ns, key=abs)
    return found


def _boot(files: list[TraceFile]) -> object:
    """Return the boot that all files of a rank are of; None where they are of several, or do not tell."""
    boot, *others = [file.account.metadata.get("boot_id") for file in files if file.account.metadata] or [None]
    return boot if isinstance(boot, str) and all(other == boot for other in others) else None


def _of_files(rank: int, files: list[TraceFile], *, is_reference: bool, shared: bool) -> ClockRow:
    accounts = [file.account for file in files]
    steps = [_clock_steps(file).get(rank, (0, 0)) for file in files]
    best: FileAccount | None = min(
        (account for account in accounts if account.exchange is not None),
        key=lambda account: account.exchange.error_ns if account.exchange is not None else 0,
        default=None,
    )
    host = next((host for account in accounts if isinstance(host := account.metadata.get("host"), str)), None)
    offset_ns: int | None = 0
    error_ns: int | None = 0
    drift_ppm = None
    if is_reference:
        source, words = "reference", "the others are compared with this clock"
    elif shared:
        source, words = "shared", "the same clock: same host and boot"
    elif best is not None and best.exchange is not None:
        exchange, count = best.exchange, sum(account.exchanges for account in accounts)
        source, offset_ns, error_ns = "measured", exchange.offset_ns, exchange.error_ns
        drift_ppm = None if best.drift_ppb is None else best.drift_ppb / 1000
        words = f"compared with rank {exchange.reference_rank} {count:,} times; best to ± {duration(exchange.error_ns)}"
    else:
        source, offset_ns, error_ns = "wall", None, None
        words = "wall clock; how it stands to the others is not in the traces"
    return ClockRow(
        rank=rank,
        host=host,
        source=source,
        aligned=source != "wall",
        offset_ns=offset_ns,
        error_ns=error_ns,
        drift_ppm=drift_ppm,
        clock_steps=sum(count for count, _ in steps),
        largest_step_ns=max((largest_ns for _, largest_ns in steps), key=abs, default=0),
        words=words,
    )
