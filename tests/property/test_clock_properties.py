"""What holds of alignment whatever the clocks, the groups and the gaps: found within the stated error, in any order."""

from __future__ import annotations

import json
import random
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.collective_traces import MS, SECOND, START_NS, Done, seen, torch_trace, write_ranks
from tests.merged_tables import rank_of_pid
from tests.unit.merge.test_clocks import away, recorded
from tracekit.errors import TracekitError
from tracekit.formats.decimal_time import parse_us
from tracekit.merge import merge_traces


@st.composite
def runs(draw: st.DrawFn, *, drift: bool = False, hard: bool = False) -> tuple[list[str], list[tuple[int, float]]]:
    """The torch traces of a few ranks whose groups hang together, and how their clocks go.

    Hard ones have few collectives, over up to ten minutes, of which many are missing.
    """
    size = draw(st.integers(2, 5))
    chance = random.Random(draw(st.integers(0, 2**32)))
    numbered, steps = draw(st.booleans()), draw(st.booleans())
    noise_ns = draw(st.sampled_from([0, 2_000, 20_000, *([100_000] if hard else [])]))
    most_ppm = 100 if hard else 60
    gaps = draw(st.sampled_from([1, 50, 1000, 3000])) if hard else 50 if drift else 1
    clocks = [
        (
            draw(st.integers(-5 * SECOND, 5 * SECOND)) if rank else 0,
            draw(st.floats(-most_ppm, most_ppm)) if rank and drift else 0.0,
        )
        for rank in range(size)
    ]
    # One group of all, or a chain of pairs.
    groups = [range(size)] if draw(st.booleans()) else [(rank, rank + 1) for rank in range(size - 1)]
    done: list[Done] = []
    for name, members in enumerate(groups):
        time = START_NS + name * MS
        for count in range(draw(st.integers(1, 40) if hard else st.integers(24, 40))):
            time += chance.randint(2 * MS, 9 * MS) * gaps
            done.append(
                Done(
                    time,
                    kind=chance.choice(["allreduce", "_allgather_base", "barrier"]),
                    group=str(name),
                    members=members,
                    step=count // 6,
                    waits_ns={rank: chance.randint(0, MS) for rank in members},
                    late_ns={rank: chance.randint(0, noise_ns) for rank in members},
                    sequence=count if numbered else None,
                )
            )
    missing = draw(st.sampled_from([0.0, 0.1, *([0.4] if hard else [])]))
    texts = []
    for rank, (offset, ppm) in enumerate(clocks):
        kept = [one for one in done if chance.random() >= missing]
        texts.append(torch_trace(rank, kept, seen(offset, ppm), steps=steps))
    return texts, clocks


def kernels(path: Path) -> dict[int, list[int]]:
    """Return for each rank the ends of its kernels in the merged trace, ns since the epoch."""
    merged: dict[str, Any] = json.loads(path.read_text(), parse_float=str)
    ranks = rank_of_pid(merged)
    found: dict[int, list[int]] = {}
    for event in merged["traceEvents"]:
        if event.get("cat") == "kernel":
            start, length = (parse_us(str(event[key]).encode()) or 0 for key in ("ts", "dur"))
            found.setdefault(ranks[event["pid"]], []).append(int(merged["baseTimeNanoseconds"]) + start + length)
    return found


@given(runs())
def test_offsets_are_found_within_the_stated_error(run: tuple[list[str], list[tuple[int, float]]]) -> None:
    texts, clocks = run
    with tempfile.TemporaryDirectory() as folder:
        report = merge_traces(f"{folder}/merged.json", write_ranks(Path(folder), texts), strict=True)
    assert report.causality is not None
    assert report.causality.violations == 0
    for rank, (offset, _) in zip(report.ranks, clocks, strict=True):
        assert rank.error_ns is not None
        assert abs(rank.offset_ns + offset) <= rank.error_ns
        assert rank.error_ns < 60_000 * len(clocks)


def assert_within_stated_errors(texts: list[str], clocks: list[tuple[int, float]], **options: Any) -> None:
    """Merge the traces, and compare where the kernels of aligned ranks are with where they truly were."""
    with tempfile.TemporaryDirectory() as folder:
        report = merge_traces(f"{folder}/merged.json", write_ranks(Path(folder), texts), **options)
        ends = kernels(Path(folder) / "merged.json")
    stated = {rank.rank: rank for rank in report.ranks}
    for rank, ((offset, ppm), text) in enumerate(zip(clocks, texts, strict=True)):
        if rank not in stated or not stated[rank].aligned:
            continue
        error = stated[rank].error_ns
        assert error is not None
        own = json.loads(text, parse_float=str)
        shown = [
            int(own["baseTimeNanoseconds"]) + sum(parse_us(str(event[key]).encode()) or 0 for key in ("ts", "dur"))
            for event in own["traceEvents"]
            if event["cat"] == "kernel"
        ]
        for before, after in zip(shown, ends.get(rank, []), strict=True):
            # The true time of what the rank's clock shows: the clock turned round.
            true = START_NS + (before - START_NS - offset) / (1 + ppm / 1e6)
            assert abs(after - true) <= error + 300  # a double's step


@given(runs(drift=True))
def test_drifting_clocks_are_put_on_one_within_the_stated_error(run: tuple[list[str], list[tuple[int, float]]]) -> None:
    assert_within_stated_errors(*run, strict=True)


@given(runs(drift=True, hard=True))
def test_few_collectives_with_gaps_give_wide_errors_or_none(run: tuple[list[str], list[tuple[int, float]]]) -> None:
    assert_within_stated_errors(*run)


@given(runs(), st.randoms())
def test_the_order_of_the_inputs_does_not_matter(run: tuple[list[str], Any], order: random.Random) -> None:
    texts, _ = run
    with tempfile.TemporaryDirectory() as folder:
        paths = write_ranks(Path(folder), texts)
        merge_traces(f"{folder}/first.json", paths, collective_flows=True)
        order.shuffle(paths)
        merge_traces(f"{folder}/second.json", paths, collective_flows=True)
        assert Path(f"{folder}/first.json").read_bytes() == Path(f"{folder}/second.json").read_bytes()


@given(runs())
def test_ids_of_flows_are_unique_and_every_event_is_counted(run: tuple[list[str], Any]) -> None:
    texts, _ = run
    with tempfile.TemporaryDirectory() as folder:
        report = merge_traces(f"{folder}/m.json", write_ranks(Path(folder), texts), collective_flows=True)
        events = json.loads(Path(f"{folder}/m.json").read_text())["traceEvents"]
    assert len(events) == sum(report.events_out.values())
    arrows = [event for event in events if event["ph"] in "stf"]
    begun = [event["id"] for event in arrows if event["ph"] == "s"]
    assert len(begun) == len(set(begun))
    assert {event["id"] for event in arrows} == set(begun)
    ended = [event["id"] for event in arrows if event["ph"] == "f"]
    assert sorted(ended) == sorted(begun)


@given(st.integers(0, 2**32))
def test_collectives_that_do_not_correspond_are_refused(seed: int) -> None:
    """Every rank did as many of the same kind as the others, but not the same."""
    chance = random.Random(seed)
    texts = []
    for rank in range(2):
        time, done = START_NS, []
        for number in range(20):
            time += chance.randint(2 * MS, 40 * MS)
            done.append(Done(time, step=number // 4))
        texts.append(torch_trace(rank, done, seen(rank * SECOND), steps=False))
    with tempfile.TemporaryDirectory() as folder:
        report = merge_traces(f"{folder}/m.json", write_ranks(Path(folder), texts))
    assert (report.ranks[1].source, report.ranks[1].aligned, report.ranks[1].offset_ns) == ("wall", False, 0)


ODD: list[Any] = [0, -1, 1, 2**31, 2**62, 2**63, 10**30, -(10**30), 1.5, "x", None, True, [], {}, [[2, 1], [1, 2]]]
"""What may stand where a number, a text or a table of two clocks belongs."""


def spoil(chance: random.Random, part: dict[str, Any]) -> None:
    part[chance.choice(sorted(part))] = chance.choice(ODD)


@given(st.integers(0, 2**32))
def test_odd_words_about_clocks_do_no_harm(seed: int) -> None:
    """In rank traces and in what an earlier merge states: a merge says what is wrong, or goes on without it."""
    chance = random.Random(seed)
    first = recorded(0)
    second = away(1, "b2", "c", wall_off_ns=5 * MS, drift_ppm=chance.choice([0, 50]), minutes=chance.randint(1, 5))
    told = [event["args"] for event in second if event["name"] == "tracekit_clock_offset"]
    spoil(chance, chance.choice([*told, first[0]["args"]["clock"], second[0]["args"]["clock"]]))
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{rank}.json" for rank in (0, 1)]
        for path, events in zip(paths, (first, second), strict=True):
            Path(path).write_text(json.dumps(events))
        with suppress(TracekitError):
            report = merge_traces(f"{folder}/merged.json", paths)
            assert report.lines()
            merged = json.loads(Path(f"{folder}/merged.json").read_text())
            clocks = merged["tracekit"]["clocks"]
            spoil(chance, chance.choice([clocks, *clocks["ranks"], *clocks["domains"]]))
            Path(f"{folder}/spoilt.json").write_text(json.dumps(merged))
            assert merge_traces(f"{folder}/again.json", [f"{folder}/spoilt.json", paths[1]]).lines()
