"""The answers at the top of the page: slow ranks, time, losses and clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.explain.stragglers_text import negative_sentence, outlier_parts, straggler_parts
from tracekit.explain.text import duration
from tracekit.view.report.content import Answer, Name, which_ranks
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.explain.run_report import RunReport
    from tracekit.explain.summary_results import RankSummary

_MUCH_UNRECORDED: Final = 0.2
_GOOD_ERROR_NS: Final = 1_000_000


def answers(report: RunReport) -> list[Answer]:
    """Return the answers."""
    return [_slowest(report), _time(report), _lost(report), _clocks(report)]


def mean_stages(timed: list[RankSummary]) -> dict[str, float]:
    """Return the mean time of each stage in a step, over all ranks, in the order within a step."""
    means = dict.fromkeys((stage.name for rank in timed for stage in rank.stages), 0.0)
    for rank in timed:
        for name, mean_ns in rank.stage_means_ns.items():
            means[name] += mean_ns / len(timed)
    return means


def _slowest(report: RunReport) -> Answer:
    summary, stragglers = report.summary, report.stragglers.stragglers
    question = "Which rank is slow?"
    if stragglers:
        words = _sentence(straggler_parts(stragglers[0]), len(stragglers))
        return Answer(question, "look", words, "stragglers")
    if report.stragglers.outliers:
        words = _sentence(
            outlier_parts(report.stragglers.outliers[0], report.stragglers), len(report.stragglers.outliers)
        )
        return Answer(question, "look", [f"{negative_sentence(report.stragglers)} ", *words], "stragglers")
    timed = summary.timed
    if not timed:
        return Answer(
            question, "unknown", "No trace tells of steps, so ranks cannot be compared step by step.", "steps"
        )
    if len(timed) == 1:
        only = f"There is one rank: {duration(timed[0].steps.mean_ns)} a step. Name the traces of all ranks to compare them."
        return Answer(question, "unknown", only, "steps")
    state = "unknown" if report.stragglers.sensitivity is None and report.stragglers.collectives is None else "good"
    return Answer(question, state, negative_sentence(report.stragglers), "stragglers")


def _sentence(parts: tuple[str, str, str], count: int) -> list[str | Name]:
    """Return a sentence with the name of a stage in it, and how many more findings there are."""
    before, name, after = parts
    others = f" {counted(count - 1, 'more case')} below." if count > 1 else ""
    return [f"{before[:1].upper()}{before[1:]}", *([Name(name)] if name else []), f"{after}.{others}"]


def _time(report: RunReport) -> Answer:
    question = "Where does the time go?"
    summary = report.summary
    timed = summary.timed
    if timed:
        unrecorded = sum(rank.unrecorded_ns for rank in timed) / (sum(rank.steps.total_ns for rank in timed) or 1)
        words = " ".join(summary.verdict.sentences[:2])
        if unrecorded >= 0.005 and summary.verdict.bound != "unknown":
            words += f" {unrecorded:.0%} of the step is in no marker."
        state = "look" if unrecorded > _MUCH_UNRECORDED or summary.verdict.bound != "compute" else "good"
        return Answer(question, state, words, "stages")
    if summary.verdict.bound != "unknown":
        return Answer(question, "look", f"No steps were recorded. {summary.verdict.sentences[0]}", "devices")
    longest = max(summary.named_markers, key=lambda marker: marker.self_ns, default=None)
    if longest is None:
        return Answer(question, "unknown", "No slice was recorded.", "stages")
    found: list[str | Name] = [
        "No steps were recorded. The marker with the longest time of its own is ",
        Name(longest.name),
        f" on rank {longest.rank:,}: {duration(longest.self_ns)}.",
    ]
    return Answer(question, "unknown", found, "markers")


def _lost(report: RunReport) -> Answer:
    losses, question = report.losses, "What was lost?"
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
        return Answer(question, "look", " ".join(parts), "losses")
    if losses.stated:
        return Answer(question, "good", "Nothing, as far as the traces tell.", "losses")
    words = "Everything in the files could be read. They are of a tool that does not tell what it did not record."
    return Answer(question, "unknown", words, "losses")


def _clocks(report: RunReport) -> Answer:
    clocks, question = report.clocks, "How good are the clocks?"
    steps = sum(row.clock_steps for row in clocks.rows)
    stepped = (
        f" Wall clocks were set, or machines slept, {counted(steps, 'time')}; durations do not suffer." if steps else ""
    )
    if len(clocks.rows) < 2:
        words = "There is one rank: nothing is to be aligned." + stepped
        return Answer(question, "good" if clocks.rows else "unknown", words, "clocks")
    placed = "A merge has placed the ranks on one clock" if clocks.merged else "The ranks' clocks were compared"
    if clocks.unaligned:
        whose = which_ranks(clocks.unaligned)
        words = f"It is not known how the clock of {whose} stands to the others'. Durations do not suffer."
        return Answer(question, "look", words + stepped, "clocks")
    if clocks.worst_ns is None:
        return Answer(question, "unknown", f"{placed}; how far off they may be is not known of all.{stepped}", "clocks")
    if not clocks.worst_ns:
        return Answer(question, "good", f"All ranks share one clock.{stepped}", "clocks")
    state = "good" if clocks.worst_ns <= _GOOD_ERROR_NS else "look"
    return Answer(question, state, f"{placed}, to ± {duration(clocks.worst_ns)} at worst.{stepped}", "clocks")
