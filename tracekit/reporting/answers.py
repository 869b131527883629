"""The answers at the top of the page: who is slow, where the time goes, what was lost, how good the clocks are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.analysis.text import certainty, duration, share
from tracekit.reporting.content import Answer, Name, which_ranks
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.analysis.run_report import RunReport
    from tracekit.analysis.stragglers_report import Straggler
    from tracekit.analysis.summary_report import RankSummary

__all__ = ["answers", "mean_stages"]

_SAME: Final = 0.02
_MUCH_UNRECORDED: Final = 0.2
_MUCH_LOADING: Final = 0.1
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
        return Answer(question, "look", _straggler(stragglers[0], len(stragglers)), "stragglers")
    timed = summary.timed
    if not timed:
        return Answer(
            question, "unknown", "No trace tells of steps, so ranks cannot be compared step by step.", "steps"
        )
    slowest = summary.slowest
    if slowest is None:
        words = f"There is one rank: {duration(timed[0].step_mean_ns)} a step. Name the traces of all ranks to compare them."
        return Answer(question, "unknown", words, "steps")
    more_ns = slowest.step_mean_ns - slowest.median_ns
    words = (
        f"Rank {slowest.rank:,} takes longest: {duration(slowest.step_mean_ns)} a step, {duration(more_ns)} more than the "
        "median rank. "
    )
    if more_ns >= _SAME * slowest.median_ns:
        return Answer(question, "look", f"{words}No stage shows it to hold the others up for sure.", "ranks")
    same = f"No rank holds the others up. All {len(timed):,} take about the same time: {duration(slowest.median_ns)} a step. "
    last = f"Rank {slowest.rank:,} takes longest, by {duration(more_ns)}." if more_ns >= 1 else ""
    return Answer(question, "good", same + last, "ranks")


def _straggler(one: Straggler, count: int) -> list[str | Name]:
    others = f" {counted(count - 1, 'more case')} below." if count > 1 else ""
    if one.source == "collectives":
        late = f"it comes {duration(one.mean_ns)} late to collectives on average, last at {one.late:,} of {one.of:,}"
        return [f"Rank {one.rank:,} holds the others up: {late} ({certainty(one.sure)} sure).{others}"]
    cost = f": {duration(one.mean_ns)} a step, {share(one.share_of_step)} of it, behind all others in {one.late:,} of "
    how_sure = f"{counted(one.of, 'step')} ({certainty(one.sure)} sure).{others}"
    return [f"Rank {one.rank:,} holds the others up in ", Name(one.stage), cost + how_sure]


def _time(report: RunReport) -> Answer:
    question = "Where does the time go?"
    timed = report.summary.timed
    devices = [device.time for rank in report.summary.ranks for device in rank.devices]
    busy = sum(time.busy_ns for time in devices) / (sum(time.span_ns for time in devices) or 1)
    device_words = f" Devices are busy {busy:.0%} of the time." if devices else ""
    if not timed:
        longest = max(
            (marker for marker in report.summary.markers if not marker.frame),
            key=lambda marker: marker.self_ns,
            default=None,
        )
        if longest is None:
            return Answer(question, "unknown", "No slice was recorded.", "stages")
        words: list[str | Name] = [
            "No steps were recorded. The marker with the longest time of its own is ",
            Name(longest.name),
            f" on rank {longest.rank:,}: {duration(longest.self_ns)}.{device_words}",
        ]
        return Answer(question, "unknown", words, "markers")
    whole = sum(rank.step_mean_ns for rank in timed) / len(timed)
    stages = sorted(mean_stages(timed).items(), key=lambda item: -item[1])[:3]
    words = [f"A step takes {duration(whole)} on average"]
    for at, (name, mean) in enumerate(stages):
        words += [": " if not at else ", ", Name(name, 40), f" {share(mean / whole if whole else None)}"]
    unrecorded = sum(rank.unrecorded_ns for rank in timed) / (sum(rank.steps_ns for rank in timed) or 1)
    loading = max((rank.loading.share_of_steps or 0 for rank in timed if rank.loading is not None), default=0)
    notes = f". {unrecorded:.0%} of it is in no marker." if unrecorded >= 0.005 else "."
    if loading >= _MUCH_LOADING:
        notes += f" Up to {loading:.0%} is waiting for data."
    state = "look" if unrecorded > _MUCH_UNRECORDED or loading >= _MUCH_LOADING else "good"
    return Answer(question, state, [*words, notes + device_words], "stages")


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
    if losses.counters_left_out:
        parts.append(f"{counted(losses.counters_left_out, 'value')} of counters cannot be used.")
    if parts:
        return Answer(question, "look", " ".join(parts), "losses")
    if losses.told:
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
