"""Slow ranks and long steps of whole traces: from stage times with known delays, and from collectives."""

from __future__ import annotations

import json
import re
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.collective_traces import MS, SECOND, START_NS, Done, seen, torch_trace, write_ranks
from tracekit import find_stragglers, summarize_traces
from tracekit.check.schemas import compile_schema
from tracekit.errors import ConfigError
from tracekit.explain.stragglers_text import straggler_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    Times = list[list[list[int]]]

STAGES = ("load", "forward", "backward", "sync", "update")
SYNC = 3


def run(
    seed: int, ranks: int = 4, steps: int = 30, slow: dict[tuple[int, int], float] | None = None, noise: float = 0.1
) -> Times:
    """Return stage times, in ns, of ranks that wait for each other in one stage; ``slow`` adds ms to (rank, stage)."""
    random = Random(seed)
    times: Times = [[] for _ in range(ranks)]
    arrived = [0.0] * ranks
    for _ in range(steps):
        lengths = [
            [1e6 * (5 * random.lognormvariate(0, noise) + (slow or {}).get((rank, stage), 0.0)) for stage in range(5)]
            for rank in range(ranks)
        ]
        for rank in range(ranks):
            arrived[rank] += sum(lengths[rank][:SYNC])
        over = max(arrived) + 1e6
        for rank in range(ranks):
            lengths[rank][SYNC] = over - arrived[rank]
            arrived[rank] = over + lengths[rank][SYNC + 1]
            times[rank].append([round(length) for length in lengths[rank]])
    return times


def write(folder: Path, times: Times, skews_us: Sequence[int] = (0, 0, 0, 0), missing: int = 0) -> str:
    """Write stage times as rank traces."""
    for rank, own in enumerate(times):
        pid = 10 + rank
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "tracekit_metadata", "pid": pid, "tid": pid, "args": {"rank": rank, "pid": pid}}
        ]
        at = skews_us[rank] * 1000
        for step, lengths in enumerate(own):
            place = {"ph": "X", "pid": pid, "tid": pid}
            batch = {**place, "name": "batch", "cat": "training loop", "tid": 1, "args": {"batch": step}}
            if step >= missing * rank:
                events.append({**batch, "ts": at / 1000, "dur": sum(lengths) / 1000})
            for name, length in zip(STAGES, lengths, strict=True):
                events.append({**place, "name": name, "cat": "", "ts": at / 1000, "dur": length / 1000})
                at += length
        (folder / f"rank{rank}.json").write_text(json.dumps(events))
    return str(folder)


def test_straggler_is_named_with_its_stage_its_cost_and_where_to_look(tmp_path: Path) -> None:
    report = find_stragglers([write(tmp_path, run(1, slow={(2, 1): 3.0}))])
    (one,) = report.stragglers
    assert (one.rank, one.stage, one.source, one.of) == (2, "forward", "stages", 29)
    assert one.mean_ns == pytest.approx(3e6, rel=0.2)
    assert one.sure > 0.999
    assert len(one.look_at) == 3
    assert report.together_after == "sync"
    assert [note.split(":")[0] for note in report.notes] == ["a delay inside of sync itself looks like waiting there"]
    text = "\n".join(straggler_lines(report))
    assert "rank 2 holds the others up in forward: " in text
    assert f"tracekit merge --ranks 2 --steps {one.look_at[0]}:{one.look_at[0] + 1}" in text
    summary = summarize_traces([str(tmp_path)])
    assert summary.stragglers == report.stragglers
    assert compile_schema("summary")(json.loads(json.dumps(summary.as_dict()))) is None
    assert summary.verdict.imbalanced
    assert any(line.startswith("Rank 2 holds the others up in forward: ") for line in summary.verdict.sentences)
    assert summary.verdict.sentences[-1].startswith("Next: tracekit stragglers")


def test_clocks_that_are_apart_by_seconds_change_nothing(tmp_path: Path) -> None:
    times = run(2, slow={(3, 4): 2.0})
    skewed = tmp_path / "skewed"
    skewed.mkdir()
    report = find_stragglers([write(tmp_path, times)])
    other = find_stragglers([write(skewed, times, skews_us=(0, 5_000_000, -3_000_000, 17_000_000))])
    assert [(one.rank, one.stage) for one in report.stragglers] == [(3, "update")]
    assert other.stragglers == report.stragglers


def test_only_steps_that_all_ranks_have_are_compared(tmp_path: Path) -> None:
    report = find_stragglers([write(tmp_path, run(1, steps=50, slow={(2, 1): 3.0}), missing=4)])
    assert report.steps == 50 - 12 - 1
    assert [(one.rank, one.stage) for one in report.stragglers] == [(2, "forward")]


def test_what_cannot_be_compared_is_told(tmp_path: Path) -> None:
    report = find_stragglers([write(tmp_path, run(1, ranks=1))])
    assert report.stragglers == []
    assert report.notes == ["stages cannot be compared: fewer than two ranks have steps with stages in them"]
    assert "Nothing could be compared" in "\n".join(straggler_lines(report))


@pytest.mark.parametrize("name", ["at_least", "sure"])
def test_shares_are_checked(name: str) -> None:
    with pytest.raises(ConfigError, match="a share from 0 to below 1"):
        find_stragglers(["x.json"], **{name: 1.5})


def late_run(late_rank: int | None, count: int = 40) -> list[Done]:
    random = Random(9)
    found = []
    for number in range(count):
        waits = {rank: random.randrange(1 * MS, 2 * MS) for rank in range(4)}
        if late_rank is not None:
            waits[late_rank] = random.randrange(0, MS // 2)
        start_ns = START_NS + number * 20 * MS + random.randrange(10 * MS)
        found.append(Done(start_ns, members=(0, 1, 2, 3), waits_ns=waits, sequence=number, step=number // 4))
    return found


def test_rank_that_comes_late_to_collectives_is_named_whatever_the_clocks_say(tmp_path: Path) -> None:
    clocks = [seen(), seen(4 * SECOND), seen(-2 * SECOND, 20.0), seen(7 * SECOND)]
    write_ranks(tmp_path, [torch_trace(rank, late_run(2), clock, world_size=4) for rank, clock in enumerate(clocks)])
    report = find_stragglers([str(tmp_path)])
    (one,) = report.stragglers
    assert (one.rank, one.source, one.stage) == (2, "collectives", "before collectives")
    assert one.mean_ns == pytest.approx(1.2 * MS, rel=0.2)
    assert (one.late, one.of) == (40, 40)
    assert report.collectives is not None
    waits = {member.rank: member.wait_ns for member in report.collectives.members}
    assert waits[2] < min(waits[rank] for rank in (0, 1, 3)) / 20
    assert "rank 2 comes late to collectives" in "\n".join(straggler_lines(report))


def test_share_of_a_late_rank_is_that_of_the_steps_with_the_collectives(tmp_path: Path) -> None:
    texts = [torch_trace(rank, late_run(2, 200), seen(), world_size=4) for rank in range(4)]
    # The ranks have 10 of 50 steps in common.
    texts[3] = re.sub(r"ProfilerStep#(?=[1-4]\d)", "other", texts[3])
    write_ranks(tmp_path, texts)
    report = find_stragglers([str(tmp_path)])
    (one,) = [one for one in report.stragglers if one.source == "collectives"]
    assert (one.rank, one.of, report.steps) == (2, 200, 10)
    assert one.share_of_step == pytest.approx(4 * one.mean_ns / report.step_ns)


def test_ranks_that_come_at_random_are_left_in_peace(tmp_path: Path) -> None:
    write_ranks(tmp_path, [torch_trace(rank, late_run(None), seen(rank * SECOND), world_size=4) for rank in range(4)])
    report = find_stragglers([str(tmp_path)])
    assert report.stragglers == []
    assert report.collectives is not None
    assert report.collectives.count == 40
