"""The verdict on a run: what limits it, in at most five sentences."""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from tracekit.explain.stragglers_results import negative_sentence, outlier_parts, sentence, straggler_parts
from tracekit.explain.summary_results import Verdict
from tracekit.explain.text import duration, share, shortened
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.explain.gpu_results import GPUTime
    from tracekit.explain.stragglers_results import StragglerReport
    from tracekit.explain.summary_results import RankSummary

_MUCH: Final = 0.1
_TEXTS: Final = {
    "input": "The run is input-bound: waiting for data takes {share} of the step{most}.",
    "launch": "The run is launch-bound: for {share} of the time, GPUs are idle until the CPU launches work{most}.",
    "cpu": "The run is CPU-bound: for {share} of the time, GPUs are idle while the CPU runs no operator{part}{most}.",
    "copy": "The run is copy-bound: copies and fills take {share} of the {whole}{most}.",
    "unknown": "GPUs are idle for {share} of the time{most}. The traces have no launches to show why: record the CPU, too.",
    "communication": "The run is communication-bound: {part} takes {share} of the {whole}{most}.",
    "compute": "The run is compute-bound: {part} takes {share} of the {whole}{most}.",
}


def verdict_of(
    ranks: list[RankSummary], found: StragglerReport, exposed: dict[int, dict[str, float]], free_stage: str
) -> Verdict:
    """Return the verdict on a run; ``free_stage`` is the stage with most of ``GPUTime.host_free_ns``, or empty."""
    timed = [rank for rank in ranks if rank.steps.count]
    devices = [(rank.rank, device) for rank in ranks for device in rank.devices]
    if not timed and not devices:
        nothing = "No steps: the traces hold neither batches of tracekit nor ProfilerStep#N of torch.profiler."
        return Verdict(bound="unknown", share=None, imbalanced=False, sentences=[nothing])
    bound, explained, words = _bound(timed, devices, exposed, free_stage)
    sentences = []
    if timed:
        mean, steps = fmean(rank.steps.mean_ns for rank in timed), max(rank.steps.count for rank in timed)
        over = f"{counted(steps, 'step')} of {counted(len(timed), 'rank')}"
        sentences.append(f"A step takes {duration(mean)} on average, over {over}.")
    sentences.append(words)
    waits = max((rank.loading_share or 0.0 for rank in timed), default=0.0)
    copies = max((_copying_ns(gpu) / (gpu.span_ns or 1) for _, gpu in devices if bound != "copy"), default=0.0)
    if bound != "input" and waits >= max(_MUCH, copies):
        sentences.append(f"Waiting for data takes up to {share(waits)} of the step.")
    elif copies >= _MUCH:
        sentences.append(f"Copies and fills take up to {share(copies)} of the time of a GPU.")
    imbalanced = found.blames
    if found.stragglers:
        sentences.append(sentence(straggler_parts(found.stragglers[0]), len(found.stragglers)))
    if found.outliers and len(sentences) < 4:
        sentences.append(sentence(outlier_parts(found.outliers[0], found), len(found.outliers)))
    if found.sensitivity is not None and not found.stragglers and len(sentences) < 4:
        sentences.append(negative_sentence(found))
    sentences.append(_next(bound, timed, devices, imbalanced=imbalanced or bool(found.outliers)))
    return Verdict(bound=bound, share=explained, imbalanced=imbalanced, sentences=sentences)


def _copying_ns(gpu: GPUTime) -> int:
    """Return the time of a GPU with copies and fills alone."""
    return gpu.busy_ns - gpu.compute_ns - gpu.communication_ns + gpu.hidden_ns


def _bound(
    timed: list[RankSummary], devices: list[tuple[int, GPUTime]], exposed: dict[int, dict[str, float]], free_stage: str
) -> tuple[str, float | None, str]:
    """Return what limits the run, the share of the step that it explains, and the sentence."""
    loading = [(rank.loading_share or 0.0, rank.rank) for rank in timed]
    input_share = median(one for one, _ in loading) if loading else 0.0
    shares: dict[str, list[tuple[float, int]]] = {"input": loading} if loading else {}
    words = {"part": "", "whole": "step", "most": ""}
    if devices:
        words["whole"] = "time of the GPUs"

        def shares_of(time: Callable[[GPUTime], int], less: float = 0.0) -> list[tuple[float, int]]:
            return [(max(0.0, time(gpu) / (gpu.span_ns or 1) - less), rank) for rank, gpu in devices]

        shares["communication"] = shares_of(
            lambda gpu: gpu.communication_ns - gpu.hidden_ns + gpu.host_communication_ns
        )
        # While the CPU waits for data or other ranks, it launches nothing.
        shares["launch"] = shares_of(lambda gpu: gpu.host_bound_ns - gpu.host_communication_ns, input_share)
        shares["unknown"] = shares_of(lambda gpu: 0 if gpu.host_bound_ns else gpu.idle_ns, input_share)
        shares["copy"] = shares_of(_copying_ns)
        compute = shares_of(lambda gpu: gpu.compute_ns)
        by_cpu = sum(gpu.host_communication_ns - gpu.communication_ns + gpu.hidden_ns for _, gpu in devices) > 0
        exchange = "exchanging data, mostly by the CPU while GPUs are idle,"
        hidden = "communication that computing does not hide"
        part = {"communication": exchange if by_cpu else hidden, "compute": "computing"}
    else:
        shares["communication"] = []
        for rank in timed:
            own = sum(stage.share_of_steps for stage in rank.stages if stage.collective)
            shares["communication"].append((max(own, exposed.get(rank.rank, {}).get("", 0.0)), rank.rank))
        longest, compute = _longest_stage(timed, exposed)
        part = {"communication": "exchanging data and waiting for it", "compute": shortened(longest)}
    middles = {bound: median(one for one, _ in values) for bound, values in shares.items()}
    bound = max(middles, key=lambda name: middles[name])
    unrecorded = median(_unmarked(rank, exposed.get(rank.rank, {})) for rank in timed) if timed else 0.0
    if not devices and unrecorded > max(_MUCH, middles[bound], median(one for one, _ in compute)):
        return "unknown", None, f"{share(unrecorded)} of the step is in no marker: put markers around its stages."
    if middles[bound] < max(_MUCH, median(one for one, _ in compute)):
        bound, shares["compute"] = "compute", compute
    if bound == "launch" and all(gpu.host_free_ns is not None for _, gpu in devices):
        shares["cpu"] = shares_of(lambda gpu: gpu.host_free_ns or 0, input_share)
        if median(one for one, _ in shares["cpu"]) > middles["launch"] / 2:
            bound, part["cpu"] = "cpu", f", most of it in {shortened(free_stage)}" if free_stage else ""
    explained = median(one for one, _ in shares[bound])
    most, slowest = max(shares[bound])
    if len(shares[bound]) > 1 and most > explained + 0.01:
        words["most"] = f", {share(most)} on {'a process without a rank' if slowest < 0 else f'rank {slowest}'}"
    words["part"] = part.get(bound, "")
    return bound, None if bound == "unknown" else explained, _TEXTS[bound].format(share=share(explained), **words)


def _longest_stage(
    timed: list[RankSummary], exposed: dict[int, dict[str, float]]
) -> tuple[str, list[tuple[float, int]]]:
    """Return the stage that computes longest, and its share on each rank without the exchange that another thread does.

    The name is empty without stages.
    """
    shares: dict[str, dict[int, float]] = {}
    for rank in timed:
        for stage in rank.stages:
            if not stage.collective:
                own = shares.setdefault(stage.name, {})
                waiting = exposed.get(rank.rank, {}).get(stage.name, 0.0)
                own[rank.rank] = own.get(rank.rank, 0.0) + stage.share_of_steps - waiting
    longest = max(shares, key=lambda name: sum(shares[name].values()), default="")
    return longest, [(shares.get(longest, {}).get(rank.rank, 0.0), rank.rank) for rank in timed]


def _unmarked(rank: RankSummary, exposed: dict[str, float]) -> float:
    """Return the share of the steps outside of all stages in which no collective is waited for."""
    waiting = exposed.get("", 0.0) - sum(own for stage, own in exposed.items() if stage)
    return (rank.unrecorded_share or 0.0) - max(0.0, waiting)


def _next(bound: str, timed: list[RankSummary], devices: list[tuple[int, GPUTime]], *, imbalanced: bool) -> str:
    if imbalanced and len(timed) > 1:
        return "Next: tracekit stragglers shows the cost of each stage and the steps to look at."
    if devices and bound != "cpu":
        return "Next: tracekit gpu shows kernels, launches and collectives."
    if len(timed) > 1:
        return "Next: tracekit stragglers compares the ranks, tracekit report draws the steps."
    return "Next: tracekit report draws the steps and stages."
