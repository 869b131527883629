"""The page: one HTML file with everything in it, that runs no script, loads nothing, and says so to the browser."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime, timezone
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from tracekit.explain.stragglers_results import negative_sentence, outlier_parts, straggler_parts
from tracekit.explain.text import duration, shortened
from tracekit.version import __version__
from tracekit.view.pages import Pages
from tracekit.view.report.content import Answer, Name, Words, which_ranks
from tracekit.view.report.detail_sections import counter_section, device_section, marker_section
from tracekit.view.report.timing_sections import rank_section, stage_section, step_section, straggler_section
from tracekit.view.report.trust_sections import clock_section, file_section, loss_section
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.explain.run_report import RunReport

_MUCH_UNRECORDED: Final = 0.2
_GOOD_ERROR_NS: Final = 1_000_000


def answers(report: RunReport) -> list[Answer]:
    """Return the answers."""
    return [
        Answer("Which rank is slow?", *_slowest(report)),
        Answer("Where does the time go?", *_time(report)),
        Answer("What was lost?", *_lost(report), "losses"),
        Answer("How good are the clocks?", *_clocks(report), "clocks"),
    ]


# Each answer is a state, words, and the section with the details.


def _slowest(report: RunReport) -> tuple[str, Words, str]:
    found, timed = report.stragglers, report.summary.timed
    if found.stragglers:
        return "look", _sentence(straggler_parts(found.stragglers[0]), len(found.stragglers)), "stragglers"
    if found.outliers:
        words = _sentence(outlier_parts(found.outliers[0], found), len(found.outliers))
        return "look", [f"{negative_sentence(found)} ", *words], "stragglers"
    if not timed:
        return "unknown", "No trace tells of steps, so ranks cannot be compared step by step.", "steps"
    if len(timed) == 1:
        only = f"There is one rank: {duration(timed[0].steps.mean_ns)} a step. Name the traces of all ranks to compare them."
        return "unknown", only, "steps"
    state = "unknown" if found.sensitivity is None and found.collectives is None else "good"
    return state, negative_sentence(found), "stragglers"


def _sentence(parts: tuple[str, str, str], count: int) -> list[str | Name]:
    """Return a sentence with the name of a stage in it, and how many more findings there are."""
    before, name, after = parts
    others = f" {counted(count - 1, 'more case')} below." if count > 1 else ""
    return [f"{before[:1].upper()}{before[1:]}", *([Name(name)] if name else []), f"{after}.{others}"]


def _time(report: RunReport) -> tuple[str, Words, str]:
    summary = report.summary
    timed, verdict = summary.timed, summary.verdict
    if timed:
        unrecorded = sum(rank.unrecorded_ns for rank in timed) / (sum(rank.steps.total_ns for rank in timed) or 1)
        words = " ".join(verdict.sentences[:2])
        if unrecorded >= 0.005 and verdict.bound != "unknown":
            words += f" {unrecorded:.0%} of the step is in no marker."
        return "look" if unrecorded > _MUCH_UNRECORDED or verdict.bound != "compute" else "good", words, "stages"
    if verdict.bound != "unknown":
        return "look", f"No steps were recorded. {verdict.sentences[0]}", "devices"
    longest = max(summary.named_markers, key=lambda marker: marker.self_ns, default=None)
    if longest is None:
        return "unknown", "No slice was recorded.", "stages"
    before = "No steps were recorded. The marker with the longest time of its own is "
    after = f" on rank {longest.rank:,}: {duration(longest.self_ns)}."
    return "unknown", [before, Name(longest.name), after], "markers"


def _lost(report: RunReport) -> tuple[str, Words]:
    losses = report.losses
    parts = []
    if losses.lost_events:
        ranks = sorted({loss.rank for loss in losses.recording if loss.kind == "dropped"})
        parts.append(f"{counted(losses.lost_events, 'event')} while recording, on {which_ranks(ranks)}.")
    elif any(loss.kind == "dropped" for loss in losses.recording):
        parts.append("Events while recording; nobody knows how many.")
    if losses.cut:
        parts.append(f"The recording of {which_ranks(losses.cut)} did not end: killed, or still running.")
    failed = sum(loss.count or 1 for loss in losses.recording if loss.kind == "failed")
    if failed:
        parts.append(f"Something failed {counted(failed, 'time')} while recording.")
    if losses.unreadable:
        parts.append(f"{counted(losses.unreadable, 'place')} in the files cannot be read or used.")
    if losses.unfinished:
        parts.append(f"{counted(losses.unfinished, 'slice')} began and never ended.")
    if parts:
        return "look", " ".join(parts)
    if losses.stated:
        return "good", "Nothing, as far as the traces tell."
    words = "Everything in the files could be read. They are of a tool that does not tell what it did not record."
    return "unknown", words


def _clocks(report: RunReport) -> tuple[str, Words]:
    clocks = report.clocks
    steps = sum(row.clock_steps for row in clocks.rows)
    stepped = (
        f" Wall clocks were set, or machines slept, {counted(steps, 'time')}; durations do not suffer." if steps else ""
    )
    if len(clocks.rows) < 2:
        return "good" if clocks.rows else "unknown", f"There is one rank: nothing is to be aligned.{stepped}"
    placed = "A merge has placed the ranks on one clock" if clocks.merged else "The ranks' clocks were compared"
    if clocks.unaligned:
        words = f"It is not known how the clock of {which_ranks(clocks.unaligned)} stands to the others'."
        return "look", f"{words} Durations do not suffer.{stepped}"
    if clocks.worst_ns is None:
        return "unknown", f"{placed}; how far off they may be is not known of all.{stepped}"
    if not clocks.worst_ns:
        return "good", f"All ranks share one clock.{stepped}"
    state = "good" if clocks.worst_ns <= _GOOD_ERROR_NS else "look"
    return state, f"{placed}, to ± {duration(clocks.worst_ns)} at worst.{stepped}"


def report_page(report: RunReport, title: str | None = None) -> str:
    """Return the page as HTML of less than 2 MB, with the name of the run as its heading if no title is given."""
    pages = Pages("report", "A report")
    static = files("tracekit.view").joinpath("static")
    style = "".join(static.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "plots.css"))
    parts = (step_section, rank_section, stage_section, straggler_section, device_section, marker_section)
    sections = [part(report) for part in (*parts, counter_section, clock_section, loss_section, file_section)]
    values = {
        "title": shortened(title or _title(report), 120),
        "about": _about(report),
        "style": style,
        "style_hash": base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        "answers": answers(report),
        "sections": sections,
        "titles": {section.key: section.title for section in sections},
        "version": __version__,
    }
    return pages.render("report.html", values)


def _title(report: RunReport) -> str:
    return f"Run {report.runs[0]}" if len(report.runs) == 1 else "Training run"


def _about(report: RunReport) -> list[str | Name]:
    """Return the line below the heading: when, where, how much."""
    summary = report.summary
    parts: list[str | Name] = []
    if report.start_ns is not None and 0 < report.start_ns < 4_102_444_800 * 10**9:
        began = datetime.fromtimestamp(report.start_ns // 10**9, tz=timezone.utc)
        parts.append(f"began {began:%Y-%m-%d %H:%M:%S} UTC · ")
    ranks = counted(len(summary.ranks), "rank")
    if report.world_size is not None and report.world_size != len(summary.ranks):
        ranks += f" of {report.world_size:,}"
    parts.append(f"{ranks} · ")
    if 0 < len(report.hosts) <= 4:
        for host in report.hosts:
            parts += [Name(host, 32), " · "]
    elif report.hosts:
        parts.append(f"{counted(len(report.hosts), 'host')} · ")
    events = sum(file.events for file in summary.files)
    parts.append(
        f"{counted(len(report.points), 'step')} · {counted(events, 'event')} in {counted(len(summary.files), 'file')}"
    )
    return parts
