"""Looks at a file that grows, held to any way of growing: in the end they have seen what one look at the whole file sees."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.watched import only_rank, only_run, record, train
from tracekit.testing import FakeClock
from tracekit.traces.rank_head import Head, read_head
from tracekit.view.live import Watch, tail

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.view.live import RankState

MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A recording with slices across steps and flushes, frames, collectives, odd names and slow steps."""
    folder = tmp_path_factory.mktemp("recorded")
    clock = FakeClock(tick_ns=100)
    with record(folder, clock=clock) as profiler:
        train(profiler, clock, 3)
        with profiler.marker("epoch of the user"):
            for step in range(4):
                with profiler.marker("across the step"):
                    with profiler.marker("all_reduce"), profiler.marker("broadcast"):
                        clock.advance(15_000_000)
                    profiler.flush()
                    profiler.step(samples=1)
                    clock.advance(1_000_000 * step)
                profiler.flush()
        with profiler.marker("naïve 名前 \x1b[2J"):
            clock.advance(1_000_000)
        train(profiler, clock, 70, slow=1.5)
        profiler.next_epoch()
    return (folder / "run" / "rank0.json").read_bytes()


def told(rank: RankState) -> RankState:
    """Return the state of a rank without the fields that depend on the time of reading."""
    return replace(rank, quiet_ns=0, written_ns=0, path="", reason="", state="recording", size_bytes=0)


@pytest.fixture
def whole(recorded: bytes, tmp_path: Path) -> RankState:
    """The state of the rank after one look at the whole file."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "rank0.json").write_bytes(recorded)
    return only_rank(Watch(str(tmp_path / "whole")))


def head_bytes(recorded: bytes) -> int:
    head = read_head(recorded[:8192], packed=False)
    assert isinstance(head, Head)
    assert head.loss is not None
    return head.loss[1] + 2


@MANY
@given(data=st.data())
def test_any_way_of_growing_gives_the_same(
    recorded: bytes, whole: RankState, tmp_path: Path, data: st.DataObject
) -> None:
    first = head_bytes(recorded)
    cuts = data.draw(st.lists(st.integers(first, len(recorded)), max_size=12))
    path = tmp_path / "grows" / "rank0.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(recorded[:first])
    watch = Watch(str(path.parent))
    watch.look()
    # While it is recorded, there is a comma where the bracket comes.
    live = recorded.removesuffix(b"\n]\n") + b",\n"
    for cut in [*sorted(cuts), len(live)]:
        with path.open("r+b") as file:
            file.write(live[:cut])
        watch.look()
    with path.open("r+b") as file:
        file.write(recorded)
    rank = only_rank(watch)
    assert (told(rank), rank.state) == (told(whole), "finished")


@MANY
@given(piece_bytes=st.integers(600, 5000))
def test_small_pieces_give_the_same(whole: RankState, tmp_path: Path, piece_bytes: int) -> None:
    with mock.patch.object(tail, "PIECE_BYTES", piece_bytes):
        assert told(only_rank(Watch(str(tmp_path / "whole")))) == told(whole)


@MANY
@given(data=st.data())
def test_a_file_that_is_packed_while_it_is_watched_gives_the_same(
    recorded: bytes, whole: RankState, tmp_path: Path, data: st.DataObject
) -> None:
    plain = tmp_path / "packed" / "rank0.json"
    plain.parent.mkdir(exist_ok=True)
    plain.with_suffix(".json.gz").unlink(missing_ok=True)
    plain.write_bytes(recorded[: data.draw(st.integers(head_bytes(recorded), len(recorded)))])
    watch = Watch(str(plain.parent))
    watch.look()
    plain.unlink()
    plain.with_suffix(".json.gz").write_bytes(gzip.compress(recorded))
    rank = only_rank(watch)
    assert (told(rank), rank.state) == (told(whole), "finished")


@MANY
@given(data=st.data())
def test_damage_is_bounded_and_told_of(recorded: bytes, tmp_path: Path, data: st.DataObject) -> None:
    """Bytes that are changed behind the head: no exception, and nothing is read twice."""
    damaged = bytearray(recorded)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(head_bytes(recorded), len(recorded) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged" / "rank0.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(damaged)
    rank = only_rank(Watch(str(path.parent)))
    assert rank.steps_seen <= 78
    assert rank.behind_bytes == 0


def stages_by_hand(
    slices: list[tuple[int, int, str]], steps: list[tuple[int, int]], inside: tuple[str, ...]
) -> dict[str, int]:
    """Return the times of stages by comparing each slice with all others; slices that cross are not in the recording."""
    frames = {slice_ for slice_ in slices if slice_[2] in inside or any(_holds(slice_, *step) for step in steps)}
    own = [slice_ for slice_ in slices if slice_ not in frames]
    found: Counter[str] = Counter()
    for start, end, name in own:
        outer = sorted((end - start, other) for other in own if other[:2] != (start, end) and _holds(other, start, end))
        stage = outer[-1][1] if outer else (start, end, name)
        step = next((step for step in steps if step[0] <= stage[0] < step[1]), None)
        if step is None:
            continue
        if not outer:
            found[name] += end - start
        elif name in WAITING and not any(other[2] in WAITING for _, other in outer):
            found[f"{stage[2]} > {name}"] += end - start
            found[stage[2]] -= end - start
    return {name: total_ns for name, total_ns in found.items() if total_ns}


def _holds(outer: tuple[int, int, str], start: int, end: int) -> bool:
    return outer[0] <= start and end <= outer[1]


WAITING = ("all_reduce", "broadcast")


@pytest.mark.parametrize("inside", [(), ("across the step",), ("backward",)])
def test_stages_equal_those_found_by_comparing_all_slices(
    recorded: bytes, tmp_path: Path, inside: tuple[str, ...]
) -> None:
    """A recording with fewer steps than a look keeps."""
    lines = recorded.split(b"\n")
    batches = [number for number, line in enumerate(lines) if b'"name":"batch"' in line]
    data = b"\n".join([*lines[: batches[60] + 1], b""])
    (tmp_path / "rank0.json").write_bytes(data)
    (rank,) = only_run(Watch(str(tmp_path), inside=inside).look()).ranks

    slices, steps = [], []
    open_: list[tuple[int, str]] = []
    for event in json.loads(data.rstrip().rstrip(b",") + b"]"):
        if event["ph"] == "B":
            open_.append((round(1000 * event["ts"]), event["name"]))
        elif event["ph"] == "E":
            start, name = open_.pop()
            slices.append((start, round(1000 * event["ts"]), name))
        elif event["ph"] == "X":
            start = round(1000 * event["ts"])
            end = start + round(1000 * event["dur"])
            if event["name"] == "batch":
                steps.append((start, end))
            else:
                slices.append((start, end, event["name"]))
    assert [step.duration_ns for step in rank.steps] == [end - start for start, end in steps]
    # The stages of the last step count when the next one has ended.
    assert {stage.name: stage.total_ns for stage in rank.stages} == stages_by_hand(slices, steps[:-1], inside)
    assert rank.staged_ns == sum(end - start for start, end in steps[:-1])
