"""The sections on the quality of the data: clocks, losses, and files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.explain.text import duration
from tracekit.formats.merged_head import CUT, FAILED
from tracekit.storage import common_folder
from tracekit.view.report.content import Name, Section, Table, more
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.explain.run_report import RunReport

_MOST_ROWS: Final = 64
_MOST_FILES: Final = 40
_MOST_NOTES: Final = 20
_SOURCES: Final = {
    "reference": "reference",
    "shared": "same clock",
    "sync": "clock exchanges",
    "measured": "clock exchanges",
    "collectives": "collectives",
    "earlier_merge": "an earlier merge",
    "by_hand": "given by hand",
    "wall": "wall clock",
    "none": "not asked for",
}
_KINDS: Final = {CUT: "did not end", FAILED: "failed"}


def clock_section(report: RunReport) -> Section:
    """Return the section on clocks."""
    clocks = report.clocks
    if not clocks.rows:
        return Section("clocks", "Clocks", ["The traces do not tell whose they are, and nothing of their clocks."])
    words = [
        "A merge has put the times of all ranks on one clock. The error is how far a rank can be off."
        if clocks.merged
        else "These traces are not merged: each rank's times are those of its own clock, and tracekit merge aligns them. "
        "Durations, and with them all figures above, do not depend on that."
    ]
    if len(clocks.rows) > 1 and clocks.worst_ns is None:
        words.append(
            "ClockSync() among the sources compares the clocks of hosts while recording; with torch.profiler's collectives in "
            "the traces, tracekit merge finds offsets and errors from these."
        )
    # Of many, those that are least certain.
    ordered = sorted(
        clocks.rows,
        key=lambda row: (row.aligned, row.error_ns is not None, -(row.error_ns or 0), row.rank),
    )[:_MOST_ROWS]
    rows = [
        (
            str(row.rank),
            Name(row.host or "–", 32),
            "yes" if row.aligned else "NO",
            _SOURCES.get(row.source, "not known"),
            "not known" if row.offset_ns is None else _signed(row.offset_ns),
            "not known" if row.error_ns is None else f"± {duration(row.error_ns)}",
            "–" if not row.drift_ppm else f"{row.drift_ppm:+.3f} ppm".replace("-", "−"),
            f"{row.clock_steps:,}, by up to {_signed(row.largest_step_ns)}" if row.clock_steps else "none",
            Name(row.words, 120),
        )
        for row in sorted(ordered, key=lambda row: row.rank)
    ]
    head = ("rank", "host", "aligned", "by", "offset", "error", "drift", "clock set", "in words")
    left = more(len(clocks.rows) - _MOST_ROWS, "rank", ". These are the least certain ones.")
    table = Table("The clock of each rank", head, rows, left, text=(1, 2, 3, 4, 9))
    return Section("clocks", "Clocks", words, tables=[table])


def loss_section(report: RunReport) -> Section:
    """Return the section on losses."""
    losses, folder = report.losses, _folder(report)
    words: list[str | Name] = []
    if losses.nothing:
        words.append("Nothing is known to be lost: every event in the files was read.")
    if not losses.stated:
        words.append("No trace tells what its recording lost: only those of tracekit do.")
    if losses.unusable:
        words.append(f"Not counted, since they have no usable time or duration: {counted(losses.unusable, 'event')}.")
    if losses.unfinished:
        words.append(f"Not counted, since they began and never ended: {counted(losses.unfinished, 'slice')}.")
    tables = []
    if losses.recording:
        rows = [
            (
                str(loss.rank),
                _KINDS.get(loss.kind, "lost events"),
                Name(loss.reason, 120),
                "not known" if loss.count is None else f"{loss.count:,}",
                Name(loss.path.removeprefix(folder)),
            )
            for loss in losses.recording[:_MOST_ROWS]
        ]
        head = ("rank", "what", "why, in the words of the trace", "how many", "file")
        left = more(len(losses.recording) - _MOST_ROWS, "line", "")
        tables.append(Table("Lost while recording", head, rows, left, text=(1, 2, 3, 4, 5)))
    if losses.reading:
        damage = [
            (Name(loss.path.removeprefix(folder)), loss.kind.replace("_", " "), f"{loss.count:,}")
            for loss in losses.reading[:_MOST_ROWS]
        ]
        left = more(len(losses.reading) - _MOST_ROWS, "line", "")
        tables.append(Table("Could not be read", ("file", "what", "places"), damage, left, text=(1, 2)))
    return Section("losses", "What was lost", words, (), tables)


def file_section(report: RunReport) -> Section:
    """Return the section on files."""
    files, folder = report.summary.files, _folder(report)
    notes = [f"Note: {note}" for note in report.summary.notes[:_MOST_NOTES]]
    notes += filter(None, [more(len(report.summary.notes) - _MOST_NOTES, "note", ": see tracekit summary")])
    words = [Name(note, 300, stands_out=False) for note in notes]
    rows = [(Name(one.file.removeprefix(folder), 100), f"{one.events:,}") for one in files[:_MOST_FILES]]
    table = Table("Files", ("file", "events"), rows, more(len(files) - _MOST_FILES, "file"))
    return Section("files", "What was read", words, (), [table])


def _folder(report: RunReport) -> str:
    """Return the folder of all files, which the page does not show: it may be sent to others."""
    return common_folder(one.file for one in report.summary.files)


def _signed(ns: int) -> str:
    return f"{'+' if ns > 0 else ''}{duration(ns)}".replace("-", "−")
