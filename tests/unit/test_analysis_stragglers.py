"""Who holds the others up: from stage times that were made with known delays, and from collectives."""

from __future__ import annotations

import json
from random import Random
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import pytest

from tests.collective_traces import MS, SECOND, START_NS, Done, seen, torch_trace, write_ranks
from tracekit.analysis import find_stragglers, summarize_traces
from tracekit.analysis import frontier as frontier_module
from tracekit.analysis.evidence import chance_above_zero, normal_of_t
from tracekit.analysis.frontier import find_frontier
from tracekit.analysis.stragglers_text import straggler_lines
from tracekit.analysis.summary_text import summary_lines
from tracekit.errors import ConfigError
from tracekit.formats.schema import compile_schema

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracekit.analysis.frontier import Frontier, Times

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


def find(times: Times, known: bool = False) -> Frontier:
    frontier = find_frontier(times, [False, *[True] * (len(times[0]) - 1)], [known and at == SYNC for at in range(5)])
    assert frontier is not None
    return frontier


def named(frontier: Frontier) -> list[tuple[int, str]]:
    return [
        (delay.rank, STAGES[delay.stage])
        for delay in frontier.delays
        if delay.chance < 0.01 and delay.mean_ns > 0.01 * frontier.length_ns
    ]


def test_the_frontier_of_two_steps_by_hand() -> None:
    # Rank 1 takes 3 more in the first stage, and the others wait for it in the second.
    times = [[[10, 23], [10, 23], [10, 23]], [[13, 20], [13, 20], [13, 20]], [[10, 23], [10, 23], [10, 23]]]
    frontier = find_frontier(times, [False, True, True], [False, True])
    assert frontier is not None
    assert (frontier.together_after, frontier.order, frontier.length_ns) == (1, [0, 1], 33)
    assert [(cost.exposed_ns, cost.median_ns) for cost in frontier.costs] == [(13, 10), (20, 23)]
    assert frontier.costs[0].led == [0, 3, 0]
    first = frontier.delays[0]
    assert (first.rank, first.stage, first.mean_ns, first.late_steps, first.chance) == (1, 0, 3, 3, 0)
    assert all(delay.mean_ns <= 0 for delay in frontier.delays[1:])


@pytest.mark.parametrize("known", [True, False], ids=["known", "found"])
@pytest.mark.parametrize("stage", [0, 1, 2, 4], ids=[name for name in STAGES if name != "sync"])
def test_a_delay_is_found_in_its_rank_and_stage_and_nowhere_else(stage: int, known: bool) -> None:
    for seed in range(5):
        rank = seed % 4
        frontier = find(run(seed, slow={(rank, stage): 1.5}), known)
        assert STAGES[frontier.together_after] == "sync"
        assert named(frontier) == [(rank, STAGES[stage])]
        # Where it was ahead by chance before, the delay costs nobody so much.
        assert 0.7e6 < frontier.delays[0].mean_ns < 1.7e6
        quiet = find(run(seed, slow={(rank, stage): 1.5}, noise=0.01), known)
        assert quiet.delays[0].mean_ns == pytest.approx(1.5e6, rel=0.1)


def test_two_slow_ranks_are_both_found() -> None:
    frontier = find(run(7, ranks=8, slow={(2, 0): 3.0, (5, 4): 2.0}))
    assert set(named(frontier)) == {(2, "load"), (5, "update")}


def test_equal_ranks_are_left_in_peace() -> None:
    # 1 % of runs may be wrong by chance, were it not for the share of a step that a delay must have as well.
    false = sum(bool(named(find(run(seed, noise=0.05 + seed % 5 / 10)))) for seed in range(300))
    assert false <= 6


def test_waiting_costs_nothing() -> None:
    frontier = find(run(3, slow={(1, 1): 10.0}, noise=0.01))
    assert frontier.costs[SYNC].exposed_ns == pytest.approx(1e6, rel=0.2)
    assert frontier.costs[SYNC].median_ns == pytest.approx(11e6, rel=0.1)
    assert frontier.costs[1].exposed_ns == pytest.approx(15e6, rel=0.05)


def test_ranks_that_never_wait_are_told_from_those_that_do() -> None:
    random = Random(6)
    alone = [[[random.randrange(4_000_000, 6_000_000) for _ in range(5)] for _ in range(40)] for _ in range(4)]
    assert not find(alone).waiting
    assert all(find(run(seed)).waiting for seed in range(20))


@pytest.mark.parametrize(("ranks", "steps"), [(1, 30), (4, 2)])
def test_too_little_tells_nothing(ranks: int, steps: int) -> None:
    times = run(1, ranks=ranks, steps=steps)
    assert find_frontier(times, [False, *[True] * (steps - 1)], [False] * 5) is None


# Chance.


def test_student_s_t_becomes_a_normal_deviate() -> None:
    # t for 97.5 % and 99.5 %, by degrees of freedom, from tables.
    for freedom, t, share in ((3, 3.182, 0.975), (5, 4.032, 0.995), (10, 2.228, 0.975), (30, 2.750, 0.995)):
        assert NormalDist().cdf(normal_of_t(t, freedom)) == pytest.approx(share, abs=0.002)
        assert normal_of_t(-t, freedom) == -normal_of_t(t, freedom)


def test_chance_is_what_it_is_called() -> None:
    random = Random(5)
    for make in (lambda: random.gauss(0, 1), lambda: random.uniform(-1, 1), lambda: random.gauss(0, 1) ** 3):
        chances = [chance_above_zero([make() for _ in range(20)]) for _ in range(1000)]
        assert sum(chance < 0.05 for chance in chances) < 75
    assert sum(chance_above_zero([random.gauss(1, 1) for _ in range(20)]) < 0.01 for _ in range(100)) > 85


@pytest.mark.parametrize(
    ("values", "chance"), [([], 1), ([1, 1], 1), ([0] * 10, 1), ([1] * 10, 0), ([-1] * 10, 1), ([5, 5, 5], 0)]
)
def test_chance_of_values_without_spread(values: Sequence[float], chance: float) -> None:
    assert chance_above_zero(values) == chance


# Whole traces.


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


def test_a_straggler_is_named_with_its_stage_its_cost_and_where_to_look(tmp_path: Path) -> None:
    report = find_stragglers([write(tmp_path, run(1, slow={(2, 1): 3.0}))])
    (one,) = report.stragglers
    assert (one.rank, one.stage, one.source, one.of) == (2, "forward", "stages", 28)
    assert one.mean_ns == pytest.approx(3e6, rel=0.2)
    assert one.sure > 0.999
    assert len(one.look_at) == 3
    assert report.together_after == "sync"
    assert [note.split(":")[0] for note in report.notes] == ["a delay inside of sync itself looks like waiting there"]
    assert summarize_traces([str(tmp_path)]).stragglers == report.stragglers
    text = "\n".join(straggler_lines(report))
    assert "rank 2 is slow in forward: " in text
    assert f"tracekit merge --ranks 2 --steps {one.look_at[0]}:{one.look_at[0] + 1}" in text


def test_the_summary_names_the_slowest_rank(tmp_path: Path) -> None:
    summary = summarize_traces([write(tmp_path, run(1, slow={(2, 1): 3.0}))])
    text = "\n".join(summary_lines(summary, 20))
    assert "slowest rank: 2, which is behind the others in forward by " in text
    assert compile_schema("summary")(json.loads(json.dumps(summary.as_dict()))) is None


def test_clocks_that_are_apart_by_seconds_change_nothing(tmp_path: Path) -> None:
    times = run(2, slow={(3, 4): 2.0})
    skewed = tmp_path / "skewed"
    skewed.mkdir()
    report = find_stragglers([write(tmp_path, times)])
    other = find_stragglers([write(skewed, times, skews_us=(0, 5_000_000, -3_000_000, 17_000_000))])
    assert [(one.rank, one.stage) for one in report.stragglers] == [(3, "update")]
    assert other.stragglers == report.stragglers


def test_only_steps_that_all_ranks_have_are_compared(tmp_path: Path) -> None:
    report = find_stragglers([write(tmp_path, run(1, slow={(2, 1): 3.0}), missing=4)])
    assert report.steps == 30 - 12 - 2
    assert [(one.rank, one.stage) for one in report.stragglers] == [(2, "forward")]


def test_what_cannot_be_compared_is_told(tmp_path: Path) -> None:
    report = find_stragglers([write(tmp_path, run(1, ranks=1))])
    assert report.stragglers == []
    assert report.notes == ["stages cannot be compared: fewer than two ranks tell of steps and of what is done in them"]
    assert "nothing could be compared" in "\n".join(straggler_lines(report))


@pytest.mark.parametrize("name", ["at_least", "sure"])
def test_shares_are_checked(name: str) -> None:
    with pytest.raises(ConfigError, match="a share from 0 to below 1"):
        find_stragglers(["x.json"], **{name: 1.5})


# Collectives.


def late_run(late_rank: int | None, count: int = 40) -> list[Done]:
    random = Random(9)
    found = []
    for number in range(count):
        early = {rank: random.randrange(1 * MS, 2 * MS) for rank in range(4)}
        if late_rank is not None:
            early[late_rank] = random.randrange(0, MS // 2)
        found.append(
            Done(
                START_NS + number * 20 * MS + random.randrange(10 * MS),
                members=(0, 1, 2, 3),
                waits_ns=early,
                sequence=number,
            )
        )
    return found


def test_the_rank_that_comes_late_to_collectives_is_named_whatever_the_clocks_say(tmp_path: Path) -> None:
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


def test_ranks_that_come_at_random_are_left_in_peace(tmp_path: Path) -> None:
    write_ranks(tmp_path, [torch_trace(rank, late_run(None), seen(rank * SECOND), world_size=4) for rank in range(4)])
    report = find_stragglers([str(tmp_path)])
    assert report.stragglers == []
    assert report.collectives is not None
    assert report.collectives.count == 40


def test_a_delay_is_by_how_much_more_a_rank_falls_behind_than_the_others() -> None:
    # Three stages of which all wait in the last; ranks 1 and 2 are equally late in the second step, which makes neither the last.
    times: Times = [[[10, at, 40] for at in own] for own in ([5, 5, 5], [9, 9, 5], [5, 9, 25], [5, 5, 5])]
    frontier = find_frontier(times, [False, True, True], [False, False, True])
    assert frontier is not None
    delays = {delay.rank: delay for delay in frontier.delays if delay.stage == 1}
    each = [delays[rank].each_ns for rank in range(4)]
    assert each == [[0, 0, 0], [4, 4, 0], [0, 4, 20], [0, 0, 0]]
    assert [delays[rank].late_steps for rank in range(4)] == [0, 1, 1, 0]
    for rank in range(4):
        more = [
            each[rank][step] - sum(own[step] for number, own in enumerate(each) if number != rank) / 3
            for step in range(3)
        ]
        assert delays[rank].mean_ns == pytest.approx(sum(more) / 3)


def test_the_ranks_are_not_compared_each_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0

    def counting(values: Sequence[float]) -> float:
        nonlocal taken
        values = list(values)
        taken += len(values)
        return sum(values) / len(values)

    monkeypatch.setattr(frontier_module, "fmean", counting)
    find(run(1, ranks=64, steps=5))
    assert taken < 3 * 64 * 5 * len(STAGES)
