"""Slow ranks and long steps of whole traces, through the function and the command: runs with known delays, and equal ones."""

from __future__ import annotations

import json
import re
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.collective_traces import MS, SECOND, START_NS, Done, seen, torch_trace, write_ranks
from tests.verdict_runs import command, count_alarms, drawn_times, write_run
from tests.verdict_simulation import LAYOUTS, NOISES, STAGES, STEP_NS, WAIT, draw_seed, own_times, with_waiting
from tracekit import find_stragglers, summarize_traces
from tracekit.check.schemas import compile_schema
from tracekit.errors import ConfigError
from tracekit.explain.stragglers_results import straggler_lines

if TYPE_CHECKING:
    from pathlib import Path

    from tests.verdict_simulation import Floats

DATALOADER, FORWARD, _, _, OPTIMIZER = range(len(STAGES))


def equal_ranks(seed: int, ranks: int, steps: int, noise: str = "independent 3%") -> Floats:
    return own_times(np.random.default_rng(seed), NOISES[noise], (ranks, steps), shared=True)


def slow_run(folder: Path, rank: int, stage: int, **options: Any) -> str:
    """Write 50 steps of four ranks that wait for each other; one rank takes 10 % of the step longer in a stage."""
    times = equal_ranks(1, 4, 50)
    times[rank, :, stage] += 0.1 * STEP_NS
    return write_run(folder, with_waiting(times, WAIT), **{"collectives": False, **options})


def test_slow_rank_is_named_with_its_stage_its_cost_and_where_to_look(tmp_path: Path) -> None:
    folder = slow_run(tmp_path / "run", 2, FORWARD)
    report = find_stragglers([folder])
    (one,) = report.stragglers
    assert (one.rank, one.stage, one.source, one.of) == (2, "forward", "stages", 49)
    assert one.mean_ns == pytest.approx(10e6, rel=0.2)
    assert one.sure > 0.999
    assert len(one.look_at) == 3
    assert report.together_after == "sync"
    assert [note.split(":")[0] for note in report.notes] == ["a delay inside of sync itself looks like waiting there"]
    code, text = command(["stragglers", folder])
    assert code == 3
    assert "the ranks are together at the end of sync" in text
    assert "\nrank 2 holds the others up in forward: " in text
    assert f"tracekit merge --ranks 2 --steps {one.look_at[0]}:{one.look_at[0] + 1}" in text
    assert command(["stragglers", "--at-least", "40%", folder])[0] == 0
    summary = summarize_traces([folder])
    assert summary.stragglers == report.stragglers
    assert compile_schema("summary")(json.loads(json.dumps(summary.as_dict()))) is None
    assert summary.verdict.imbalanced
    assert any(line.startswith("Rank 2 holds the others up in forward: ") for line in summary.verdict.sentences)
    assert summary.verdict.sentences[-1].startswith("Next: tracekit stragglers")


def test_slow_rank_holds_nobody_up_where_ranks_do_not_wait_and_its_names_do_not_speak_to_the_terminal(
    tmp_path: Path,
) -> None:
    times = equal_ranks(3, 4, 100)
    times[2, :, FORWARD] += 0.1 * STEP_NS
    folder = write_run(tmp_path / "run", times, collectives=False)
    for path in (tmp_path / "run").iterdir():
        path.write_text(path.read_text().replace("forward", "\\u001b[31mevil"))
    code, text = command(["stragglers", folder])
    assert code == 3
    assert re.search("\nrank 2 is slower in [^\x1b]*evil: ", text)
    assert "holds" not in text


def test_clocks_that_are_apart_by_seconds_change_nothing(tmp_path: Path) -> None:
    report = find_stragglers([slow_run(tmp_path / "run", 3, OPTIMIZER)])
    skewed = slow_run(tmp_path / "skewed", 3, OPTIMIZER, starts_ns=(0, 5 * SECOND, -3 * SECOND, 17 * SECOND))
    assert [(one.rank, one.stage) for one in report.stragglers] == [(3, "optimizer")]
    assert find_stragglers([skewed]).stragglers == report.stragglers


def test_only_steps_that_all_ranks_have_are_compared(tmp_path: Path) -> None:
    folder = slow_run(tmp_path / "run", 2, FORWARD)
    for rank in range(4):
        path = tmp_path / "run" / f"rank{rank}.json"
        events = json.loads(path.read_text())
        path.write_text(json.dumps([one for one in events if one.get("args", {}).get("batch", 99) >= 4 * rank]))
    report = find_stragglers([folder])
    assert report.steps == 50 - 12 - 1
    assert [(one.rank, one.stage) for one in report.stragglers] == [(2, "forward")]


def test_steps_that_overlap_by_rounding_are_all_compared(tmp_path: Path) -> None:
    times = drawn_times(np.random.default_rng(4), "independent 3%", (2, 100), "markers", 0)
    folder = write_run(tmp_path / "run", times, collectives=False)
    for path in (tmp_path / "run").iterdir():
        events = json.loads(path.read_text())
        for event in events:
            if event["name"] == "batch":
                event["dur"] = round(event["dur"] + 0.001, 3)
        path.write_text(json.dumps(events))
    assert find_stragglers([folder]).steps >= 99


def test_one_rank_alone_is_not_compared_and_the_report_says_so(tmp_path: Path) -> None:
    report = find_stragglers([write_run(tmp_path / "run", equal_ranks(1, 1, 30), collectives=False)])
    assert report.stragglers == []
    assert report.notes == ["stages cannot be compared: fewer than two ranks have steps with stages in them"]
    assert "Nothing could be compared" in "\n".join(straggler_lines(report))


@pytest.mark.parametrize("name", ["at_least", "sure"])
def test_shares_of_the_function_are_checked(name: str) -> None:
    with pytest.raises(ConfigError, match="a share from 0 to below 1"):
        find_stragglers(["x.json"], **{name: 1.5})


@pytest.mark.parametrize("share", ["x", "-1%", "100%", "nan", "1e999"])
def test_wrong_share_of_the_command_is_exit_code_2(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["stragglers", f"--sure={share}", "x.json"])[0] == 2
    assert "is not a share from 0 to below 100%" in capsys.readouterr().err


def test_stall_is_reported_with_its_rank_stage_and_cost_and_warm_up_is_named(tmp_path: Path) -> None:
    times = equal_ranks(1, 8, 124, "AR(1) 0.9 3%")
    times[3, 20:23, DATALOADER] += 120e6
    times[:, :2] *= np.array([5, 2])[None, :, None]
    folder = write_run(tmp_path / "run", with_waiting(times, WAIT), collectives=True)
    code, text = command(["stragglers", folder])
    assert code == 0
    assert "steps 20 to 22: rank 3 stalled 120 ms each in dataloader; all ranks waited; 3" in text
    assert "steps 0 to 1 are warm-up (up to 5." in text
    assert "\nNo rank is slower by more than " in text
    document = json.loads(command(["stragglers", "--json", folder])[1])
    assert compile_schema("stragglers")(document) is None
    (outlier,) = document["outliers"]
    assert (outlier["rank"], outlier["stage"], outlier["steps"]) == (3, "dataloader", [20, 21, 22])
    assert outlier["cost_ns"] == pytest.approx(360e6, rel=0.1)
    assert (document["warm_up"], document["stragglers"]) == ([0, 1], [])
    assert document["sensitivity"]["noise"].keys() == {str(rank) for rank in range(8)}


def test_rank_that_stalls_again_and_again_is_exit_code_3(tmp_path: Path) -> None:
    times = equal_ranks(2, 4, 150, "independent 10%")
    times[1, 5::10, FORWARD] += 1.5 * STEP_NS
    code, text = command(["stragglers", write_run(tmp_path / "run", with_waiting(times, WAIT), collectives=True)])
    assert code == 3
    assert "rank 1 stalled 150 ms each in forward; all ranks waited; " in text or "rank 1 stalled 14" in text
    assert "; more often than chance gives to one of equal ranks" in text


# Collectives.


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


@pytest.mark.slow
@pytest.mark.parametrize("compared", [40, 10], ids="{} of 40 steps compared".format)
@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_equal_ranks_do_not_come_late_to_collectives(tmp_path: Path, rho: float, compared: int) -> None:
    seed = draw_seed((rho, compared))
    random = np.random.default_rng(seed)
    alarms = 0
    for _ in range(30):
        noise = random.normal(size=(160, 4)) * (1 - rho**2) ** 0.5
        for number in range(1, 160):
            noise[number] += rho * noise[number - 1]
        waits = (1.5 * MS + 0.5 * MS * noise).clip(0).astype(int).tolist()
        done = [
            Done(
                START_NS + number * 20 * MS,
                "allreduce",
                "0",
                range(4),
                1,
                number // 4,
                dict(enumerate(own)),
                {},
                number,
            )
            for number, own in enumerate(waits)
        ]
        texts = [torch_trace(rank, done, seen(), world_size=4) for rank in range(4)]
        if compared == 10:
            texts[3] = re.sub(r"ProfilerStep#(?=[1-3]\d)", "other", texts[3])
        write_ranks(tmp_path, texts)
        alarms += find_stragglers([str(tmp_path)], cache=False).stragglers != []
    assert alarms <= 2, seed


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [name for name, noise in NOISES.items() if noise.required])
def test_equal_runs_pass_stragglers_and_diff(kind: str, layout: str) -> None:
    # One in a hundred may be wrong: two of 10 have a chance of 1 in 230, and then six of 100 one of 1 in 1,800.
    found = count_alarms(kind, layout, 10, (4, 150))
    if max(found.stragglers, found.gates) > 1:
        found = count_alarms(kind, layout, 100, (4, 150))
    assert max(found.stragglers, found.gates) <= 5, found
