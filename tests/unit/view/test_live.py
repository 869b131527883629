"""Looks at recordings: their content, their limits, and the state of a rank as its files and the clock go on."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.watched import STEP_NS, only_rank, only_run, record, train
from tracekit import FlightRecorder, Profiler, cyclic_schedule
from tracekit.errors import StorageError
from tracekit.testing import FakeClock
from tracekit.traces.rank_head import Head, read_head
from tracekit.view.live import Watch, stages
from tracekit.view.live import watch as watching
from tracekit.view.live.files import Machine
from tracekit.view.live.states import CUT_AFTER_NS, classify

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
START_NS = 1_800_000_000 * S


@pytest.fixture(autouse=True)
def alive(monkeypatch: pytest.MonkeyPatch) -> dict[int, bool]:
    """No process is known, except those that a test puts here by their rank."""
    known: dict[int, bool] = {}
    monkeypatch.setattr(Machine, "is_process_alive", lambda _, head: known.get(head.rank))
    return known


class Now(FakeClock):
    """A clock that shows the time of the file system."""

    def __init__(self, folder: Path) -> None:
        probe = folder / ".probe"
        probe.touch()
        super().__init__(wall_ns=probe.stat().st_mtime_ns)


def file_of(folder: Path, rank: int = 0) -> Path:
    return folder / "run" / f"rank{rank}.json"


def recorded(folder: Path, steps: int, clock: FakeClock | None = None, **options: Any) -> Path:
    """Record a run of some steps to its end; return the file of its rank."""
    clock = clock or FakeClock()
    with record(folder, clock=clock, **options) as profiler:
        train(profiler, clock, steps)
    return file_of(folder, options.get("rank", 0))


def killed(folder: Path, steps: int = 3, clock: FakeClock | None = None, **options: Any) -> Path:
    """Leave the file of a recording that was killed; return it."""
    clock = clock or FakeClock()
    path = file_of(folder, options.get("rank", 0))
    with record(folder, clock=clock, **options) as profiler:
        train(profiler, clock, steps)
        data = path.read_bytes()
    path.write_bytes(data)
    return path


# The content of a look.


def test_look_at_finished_run_tells_its_ranks_steps_stages_and_slowest(tmp_path: Path) -> None:
    for rank in range(2):
        clock = FakeClock()
        with record(tmp_path, rank=rank, world_size=2, clock=clock) as profiler:
            profiler.next_epoch()
            train(profiler, clock, 4, slow=2.0 if rank else 1.0)
    look = Watch(str(tmp_path)).look()
    run = only_run(look)
    assert (run.run_id, run.folder, run.state) == ("run", str(tmp_path / "run"), "finished")
    assert run.paths == (str(file_of(tmp_path, 0)), str(file_of(tmp_path, 1)))
    assert (run.world_size, run.missing_count, run.step, run.unhealthy, look.notes) == (2, 0, 4, False, ())
    first, second = run.ranks
    assert (first.rank, first.state, first.epoch, first.batch, first.steps_seen) == (0, "finished", 1, 4, 4)
    assert [step.number for step in first.steps] == [0, 1, 2, 3]
    assert (first.last_step_ns, first.median_step_ns) == (STEP_NS, STEP_NS)
    shares = {stage.name: round(stage.share, 3) for stage in first.stages}
    assert shares == {"backward": 0.5, "forward": 0.25, "backward > all_reduce": 0.2, "dataloader": 0.05}
    assert [stage.name for stage in first.stages if stage.waiting] == ["backward > all_reduce"]
    assert first.own_step_ns == STEP_NS * 8 // 10
    assert second.own_step_ns == STEP_NS - 8_000_000 + 10_000_000
    assert run.slowest is not None
    assert (run.slowest.rank, run.slowest.by_ns, run.slowest.stage) == (1, 10_000_000, "forward")
    assert run.median_step_ns == STEP_NS + 5_000_000


def test_rank_that_others_wait_for_is_slowest_although_all_steps_are_alike(tmp_path: Path) -> None:
    for rank in range(3):
        clock = FakeClock()
        with record(tmp_path, rank=rank, world_size=3, clock=clock) as profiler:
            for _ in range(5):
                late = 20_000_000 if rank == 2 else 0
                with profiler.marker("backward"):
                    clock.advance(10_000_000 + late)
                with profiler.marker("all_reduce"):
                    clock.advance(30_000_000 - late)
                profiler.step()
    slowest = only_run(Watch(str(tmp_path)).look()).slowest
    assert slowest is not None
    assert (slowest.rank, slowest.by_ns, slowest.share, slowest.stage) == (2, 20_000_000, 2.0, "backward")


def test_live_file_is_read_on_and_tells_open_slices_counters_and_evaluation(tmp_path: Path) -> None:
    clock = FakeClock()
    watch = Watch(str(tmp_path))
    with record(tmp_path, clock=clock) as profiler:
        assert (only_rank(watch).steps_seen, only_rank(watch).batch) == (0, None)
        profiler.marker("loss").counter({"loss": 3})
        profiler.marker("loss").counter({"loss": 1})
        profiler.marker("learning rate").counter({"encoder": 0.5, "decoder": 0.25})
        train(profiler, clock, 3)
        rank = only_rank(watch)
        assert rank.counters == {"loss": 1.0, "learning rate.encoder": 0.5, "learning rate.decoder": 0.25}
        assert (rank.steps_seen, rank.evaluating, rank.evaluations) == (3, False, 0)
        with profiler.marker("forward"):
            clock.advance(S // 2)
            with profiler.marker("attention"):
                clock.advance(S // 2)
                profiler.flush()
                assert only_rank(watch).doing == ("forward", "attention")
        profiler.step()
        train(profiler, clock, 1)
        rank = only_rank(watch)
        assert (rank.state, rank.steps_seen, rank.last_step_ns, rank.doing) == ("recording", 5, STEP_NS, ())
        assert rank.steps[3].duration_ns == S
        with profiler.marker("evaluation"):
            clock.advance(S)
            profiler.flush()
            assert only_rank(watch).evaluating
        train(profiler, clock, 2)
        rank = only_rank(watch)
        assert (rank.evaluating, rank.evaluations) == (False, 1)
        # As in the event table, a step that overlaps an evaluation is none of those that are measured.
        assert (rank.batch, rank.steps_seen) == (7, 7)
        assert [step.number for step in rank.steps] == [0, 1, 2, 3, 4, 6]
        assert "evaluation" not in {stage.name for stage in rank.stages}
    assert only_rank(watch).state == "finished"


# The limits of a look.


def test_second_look_reads_only_new_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    watch = Watch(str(tmp_path))
    read: list[int] = []
    real = os.pread

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        data = real(descriptor, length, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", pread)
    with record(tmp_path, clock=clock) as profiler:
        train(profiler, clock, 200)
        watch.look()
        read.clear()
        watch.look()
        assert read == []
        before = file_of(tmp_path).stat().st_size
        train(profiler, clock, 1)
        watch.look()
        assert sum(read) <= file_of(tmp_path).stat().st_size - before + 64


def test_of_file_beyond_window_only_its_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = recorded(tmp_path, 500).stat().st_size
    monkeypatch.setattr(watching, "_WINDOW_BYTES", 20_000)
    rank = only_rank(Watch(str(tmp_path)))
    assert size - 21_000 <= rank.skipped_bytes < size - 19_000
    assert (rank.batch, rank.steps[-1].number, rank.state) == (500, 499, "finished")
    assert 5 < rank.steps_seen < 100
    assert round(sum(stage.share for stage in rank.stages), 3) == 1.0


def test_look_reads_no_more_than_it_may_and_next_ones_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(30):
        recorded(tmp_path, 60, rank=rank, world_size=30)
    monkeypatch.setattr(watching, "_MIN_WINDOW_BYTES", 1 << 20)
    watch = Watch(str(tmp_path), max_bytes=1)  # taken for a megabyte
    run = only_run(watch.look())
    size = sum(rank.size_bytes for rank in run.ranks)
    behind = sum(rank.behind_bytes for rank in run.ranks)
    assert (1 << 20) <= size - behind <= (1 << 20) + 100_000
    while any(rank.behind_bytes for rank in run.ranks):
        run = only_run(watch.look())
    assert {rank.steps_seen for rank in run.ranks} == {60}


def test_of_runs_that_nobody_follows_only_end_is_read(tmp_path: Path) -> None:
    for name in ("old", "new"):
        recorded(tmp_path, 300, run_id=name)
    watch = Watch(str(tmp_path))
    for run in watch.look(()).runs:
        assert (run.state, run.step) == ("finished", 300)
        assert run.ranks[0].steps_seen < 30
    found = {run.run_id: run.ranks[0] for run in watch.look(("old",)).runs}
    assert (found["old"].steps_seen, found["old"].skipped_bytes) == (300, 0)
    assert found["new"].steps_seen < 30


def test_large_packed_file_of_run_that_nobody_follows_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, 300, name="{run_id}/rank{rank}.json.gz")
    monkeypatch.setattr(watching, "_TAIL_BYTES", 100)
    watch = Watch(str(tmp_path))
    rank = only_run(watch.look(())).ranks[0]
    assert (rank.steps_seen, rank.behind_bytes) == (0, 0)
    assert rank.skipped_bytes > 10_000
    rank = only_rank(watch)
    assert (rank.steps_seen, rank.skipped_bytes, rank.state) == (300, 0, "finished")


def test_names_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_MAX_LABELS", 20)
    clock = FakeClock()
    with record(tmp_path, clock=clock) as profiler:
        for number in range(40):
            with profiler.marker(f"name {number}"):
                clock.advance(1_000_000)
            profiler.step()
    look = Watch(str(tmp_path)).look()
    assert look.notes == ("there are more than 20 names; the others are no stages",)
    assert len(only_run(look).ranks[0].stages) <= 20


def test_slices_of_a_step_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_MAX_SLICES", (10, 100))
    clock = FakeClock()
    watch = Watch(str(tmp_path))
    with record(tmp_path, clock=clock) as profiler:
        for _ in range(1000):
            with profiler.marker("forward"):
                clock.advance(1_000_000)
        profiler.flush()
        watch.look()
        profiler.step()
        train(profiler, clock, 2)
    rank = only_rank(watch)
    assert rank.steps_seen == 3
    assert sum(stage.total_ns for stage in rank.stages) < 300_000_000


# The state of a rank.

QUIET = {"quiet_ns": CUT_AFTER_NS + 1}
LIVE = {"there": True, "read": True, "ended": False, "closed": False, "remote": False, "alive": None, "quiet_ns": 0}


@pytest.mark.parametrize(
    ("known", "state"),
    [
        ({"there": False, "alive": True}, "lost"),
        ({"there": False, "ended": True}, "lost"),
        ({"ended": True, "closed": True}, "finished"),
        ({"ended": True, "closed": True, **QUIET}, "finished"),
        ({"ended": True, "remote": True, "closed": True, **QUIET}, "finished"),
        ({}, "recording"),
        ({"closed": True}, "recording"),
        ({"alive": True, **QUIET}, "recording"),
        ({"alive": True, "closed": True, **QUIET}, "recording"),
        ({"alive": False}, "cut"),
        ({"alive": False, "closed": True}, "finished"),
        ({"alive": False, "closed": True, "remote": True}, "cut"),
        (QUIET, "cut"),
        ({"closed": True, **QUIET}, "finished"),
        ({"closed": True, "remote": True, **QUIET}, "cut"),
        ({"quiet_ns": CUT_AFTER_NS}, "recording"),
        ({"read": False, "alive": False, **QUIET}, "recording"),
        ({"read": False, "ended": True}, "finished"),
        ({"quiet_ns": 11, "cut_after_ns": 10}, "cut"),
    ],
)
def test_state_follows_from_what_is_known(known: dict[str, Any], state: str) -> None:
    evidence: Any = {**LIVE, **known}
    found, reason = classify(**evidence)
    assert found == state
    assert reason


def test_quiet_file_is_cut_after_a_while_and_lives_again_when_it_grows(tmp_path: Path) -> None:
    now = Now(tmp_path)
    path = killed(tmp_path)
    watch = Watch(str(tmp_path), clock=now.clock)
    assert only_rank(watch).state == "recording"
    now.advance(CUT_AFTER_NS)
    assert only_rank(watch).state == "recording"
    now.advance(2 * S)
    rank = only_rank(watch)
    assert (rank.state, rank.unhealthy, only_run(watch.look()).state) == ("cut", True, "cut")
    with path.open("ab") as file:
        file.write(b'{"ph":"M","name":"x","pid":1,"tid":1,"args":{}},\n')
    rank = only_rank(watch)
    assert (rank.state, rank.quiet_ns) == ("recording", 0)


@pytest.mark.parametrize(
    ("later_s", "cut_after_s", "state"),
    [(85, 90, "recording"), (200, 90, "cut"), (4, 5, "recording"), (6, 5, "cut"), (-1000, 90, "recording")],
)
def test_first_look_goes_by_time_of_file(tmp_path: Path, later_s: int, cut_after_s: float, state: str) -> None:
    now = Now(tmp_path)
    os.utime(killed(tmp_path), ns=(now.wall_ns, now.wall_ns))  # however long that took
    now.advance(later_s * S)
    rank = only_rank(Watch(str(tmp_path), clock=now.clock, cut_after_s=cut_after_s))
    assert rank.state == state
    assert abs(rank.quiet_ns - max(0, later_s) * S) < S, "a clock of the storage that is ahead counts as now"


def test_running_process_is_not_cut_and_one_that_is_gone_is_at_once(tmp_path: Path, alive: dict[int, bool]) -> None:
    now = Now(tmp_path)
    for rank in range(2):
        killed(tmp_path, rank=rank, world_size=2)
    alive.update({0: True, 1: True})
    watch = Watch(str(tmp_path), clock=now.clock)
    now.advance(2 * CUT_AFTER_NS)
    assert [rank.state for rank in only_run(watch.look()).ranks] == ["recording", "recording"]
    alive[1] = False
    first, second = only_run(watch.look()).ranks
    assert (first.state, second.state, second.reason) == ("recording", "cut", "its process is gone")
    # A process that was never seen may have its number in a container only, where others of this machine are not.
    alive[0] = False
    assert only_run(Watch(str(tmp_path), clock=Now(tmp_path).clock).look()).state == "recording"


def test_process_that_ends_during_a_look_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends between the list of the files and the question whether it runs."""
    clock = FakeClock()
    runs = True
    monkeypatch.setattr(Machine, "is_process_alive", lambda _, _head: runs)
    watch = Watch(str(tmp_path))
    read = watching.Watch._read
    with record(tmp_path, clock=clock) as profiler:
        train(profiler, clock, 3)
        assert only_rank(watch).state == "recording"

        def ends(self: Watch, follow: None) -> None:
            nonlocal runs
            read(self, follow)
            profiler.stop()
            runs = False

        with monkeypatch.context() as patched:
            patched.setattr(watching.Watch, "_read", ends)
            assert only_rank(watch).state == "recording"
        assert only_rank(watch).state == "finished"


def test_process_is_known_by_its_number_and_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    with record(tmp_path, name="rank{rank}.json"):
        assert only_rank(Watch(str(tmp_path))).reason == "its process runs"
    data = (tmp_path / "rank0.json").read_text().removesuffix("\n]\n").replace("tracekit_summary", "x") + ",\n"
    ticks = json.loads(data.split("\n")[1].rstrip(","))["args"]["start_ticks"]
    (tmp_path / "rank0.json").write_text(data.replace(f'"start_ticks":{ticks}', f'"start_ticks":{ticks + 1}'))
    assert only_rank(Watch(str(tmp_path))).reason == "it was written to lately"


def test_removed_file_is_lost_and_a_new_one_is_gone_on_with(tmp_path: Path) -> None:
    for rank in range(2):
        killed(tmp_path, rank=rank, world_size=2)
    watch = Watch(str(tmp_path))
    watch.look()
    data = file_of(tmp_path, 1).read_bytes()
    file_of(tmp_path, 1).unlink()
    run = only_run(watch.look())
    assert [(rank.state, rank.steps_seen) for rank in run.ranks] == [("recording", 3), ("lost", 3)]
    assert (run.unhealthy, run.missing_count) == (True, 0)
    file_of(tmp_path, 1).write_bytes(data)
    assert [rank.state for rank in only_run(watch.look()).ranks] == ["recording", "recording"]
    shutil.rmtree(tmp_path / "run")
    assert watch.look().runs == ()


@pytest.mark.parametrize(
    ("world_size", "taken", "missing"),
    [(5, 5, (0, 2, 3, 4)), (9_999_999, 9_999_999, None), (10**30, 2, (0,)), (-5, 2, (0,)), ("many", 2, (0,))],
)
def test_ranks_without_file_are_missing_and_a_world_of_any_size_costs_nothing(
    tmp_path: Path, world_size: object, taken: int, missing: tuple[int, ...] | None
) -> None:
    path = killed(tmp_path, rank=1, world_size=3)
    path.write_text(path.read_text().replace('"world_size":3', f'"world_size":{json.dumps(world_size)}'))
    run = only_run(Watch(str(tmp_path)).look())
    assert (run.world_size, run.missing_count, run.unhealthy) == (taken, taken - 1, True)
    assert run.missing == missing if missing else len(run.missing) == 1000


# Files that change.


def test_file_that_is_cut_back_or_replaced_is_read_again(tmp_path: Path) -> None:
    path = killed(tmp_path, steps=10)
    data = path.read_bytes()
    watch = Watch(str(tmp_path))
    assert only_rank(watch).steps_seen == 10
    seventh = next(line for line in data.split(b"\n") if b'"name":"batch"' in line and b'"batch":6' in line)
    with path.open("r+b") as file:
        file.truncate(data.index(seventh))
    watch.look()
    assert only_rank(watch).steps_seen == 6
    path.write_bytes(data)
    assert only_rank(watch).steps_seen == 10
    other = killed(tmp_path / "other", steps=2, clock=FakeClock(wall_ns=START_NS + 10**17))
    shutil.copyfile(other, path)  # the same inode
    shutil.rmtree(tmp_path / "other")
    watch.look()
    assert only_rank(watch).steps_seen == 2


def test_packed_files_of_rotation_are_one_recording(tmp_path: Path) -> None:
    clock = FakeClock()
    watch = Watch(str(tmp_path))
    name = "{run_id}/rank{rank}-{part}.json.gz"
    with record(tmp_path, clock=clock, name=name, handler={"rotate_every": "2ba"}) as profiler:
        for steps in range(1, 12):
            train(profiler, clock, 1)
            # A later look reads the file that is packed at this moment.
            rank = next(rank for _ in range(1000) if (rank := only_rank(watch)).steps_seen == steps)
            assert (rank.state, rank.unreadable) == ("recording", 0)
    rank = only_rank(watch)
    assert (rank.state, rank.steps_seen, rank.skipped_bytes) == ("finished", 11, 0)
    assert rank.files == len(list((tmp_path / "run").glob("*.gz"))) > 3
    again = only_rank(Watch(str(tmp_path)))
    assert (again.state, again.steps, again.stages) == ("finished", rank.steps, rank.stages)


def test_files_that_a_limit_removes_are_no_loss(tmp_path: Path) -> None:
    clock = FakeClock()
    watch = Watch(str(tmp_path))
    handler = {"rotate_every": "2ba", "num_traces_to_keep": 2}
    with record(tmp_path, clock=clock, name="{run_id}/rank{rank}-{part}.json", handler=handler) as profiler:
        for _ in range(12):
            train(profiler, clock, 1)
            assert only_rank(watch).state == "recording"
    rank = only_rank(watch)
    assert (rank.state, rank.steps_seen, rank.lost_events) == ("finished", 12, 0)


def test_file_that_is_packed_between_two_lists_is_read_on(tmp_path: Path) -> None:
    """One list of a folder may hold neither the plain file nor the packed one."""
    path = killed(tmp_path, steps=5)
    data = path.read_bytes()
    lines = data.split(b"\n")
    step = next(number for number, line in enumerate(lines) if b'"name":"batch"' in line)
    first_step = b"\n".join([*lines[: step + 1], b""])
    path.write_bytes(first_step)
    path.with_name("rank0-second.json").write_bytes(data.replace(b'"ts":12537', b'"ts":12538'))
    watch = Watch(str(tmp_path), clock=FakeClock(wall_ns=START_NS).clock)
    before = only_rank(watch).steps_seen
    path.unlink()
    assert only_rank(watch).steps_seen == before
    path.with_suffix(".json.gz").write_bytes(gzip.compress(first_step))
    rank = only_rank(watch)
    assert (rank.steps_seen, rank.files, rank.skipped_bytes) == (before, 2, 0)


def test_windows_with_nothing_between_are_finished_after_a_while(tmp_path: Path) -> None:
    """Such a recording ends without a summary if it ends between two windows: a closed file is finished after a while."""
    now = Now(tmp_path)
    clock = FakeClock()
    schedule = cyclic_schedule(wait=1, warmup=0, active=2, repeat=1)
    with record(tmp_path, clock=clock, name="{run_id}/rank{rank}-{batch}.json", schedule=schedule) as profiler:
        train(profiler, clock, 8)
        watch = Watch(str(tmp_path), clock=now.clock)
        assert only_rank(watch).state == "recording"
    assert only_rank(watch).state == "recording"
    now.advance(CUT_AFTER_NS + S)
    rank = only_rank(watch)
    assert (rank.state, rank.reason, rank.steps_seen) == ("finished", "its file is complete, and no other came", 2)


@pytest.mark.parametrize("damage", ["unpacks to gigabytes", "torn"])
def test_packed_file_that_cannot_be_unpacked_is_told_of(tmp_path: Path, damage: str) -> None:
    path = recorded(tmp_path, 300)
    data = bytearray(gzip.compress(path.read_bytes() + b" " * (33 << 20 if damage == "unpacks to gigabytes" else 0)))
    if damage == "torn":
        data[len(data) // 2 : len(data) // 2 + 40] = b"\xff" * 40
    path.unlink()
    path.with_suffix(".json.gz").write_bytes(data)
    rank = only_rank(Watch(str(tmp_path)))
    assert rank.unreadable >= 1
    assert rank.behind_bytes == 0


# Foreign files, and files that belong together.

METADATA = b'[\n{"ph":"M","name":"tracekit_metadata","pid":1,"tid":1'
FOREIGN = {
    "empty": b"",
    "space": b" \n",
    "torch": b'{"schemaVersion": 1, "traceEvents": [{"ph":"X","name":"a","ts":1,"dur":1,"pid":1,"tid":1}]}',
    "array": b'[\n{"ph":"X","name":"a","ts":1,"dur":1,"pid":1,"tid":1}\n]',
    "text": b"hello",
    "binary": bytes(range(256)) * 100,
    "no rank": METADATA + b',"args":{"run_id":"a"}},\n',
    "bad rank": METADATA + b',"args":{"run_id":"a","rank":-1}},\n',
    "true rank": METADATA + b',"args":{"run_id":"a","rank":true}},\n',
    "no args": METADATA + b"},\n",
    "list args": METADATA + b',"args":[1]},\n',
    "broken": METADATA + b',"args":{"run_id":"a","rank":0,]},\n',
    "deep": METADATA + b',"args":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}},\n",
    "long": METADATA + b',"args":{"x":"' + b"x" * 2_000_000,
}


@pytest.mark.parametrize("packed", [False, True])
def test_other_files_are_passed_over(tmp_path: Path, packed: bool) -> None:
    path = killed(tmp_path)
    for name, data in FOREIGN.items():
        (path.parent / f"{name}.json{'.gz' * packed}").write_bytes(gzip.compress(data) if packed else data)
    (path.parent / "folder.json").mkdir()
    (path.parent / "broken link.json").symlink_to("nowhere")
    (path.parent / "loop").symlink_to(tmp_path)
    watch = Watch(str(tmp_path))
    for _ in range(2):
        look = watch.look()
        assert [rank.path for rank in only_run(look).ranks] == [str(path)]
        assert look.notes == ()


def test_head_that_comes_late_or_is_long_is_read(tmp_path: Path) -> None:
    path = killed(tmp_path)
    data = path.read_bytes()
    head = read_head(data[:8192], packed=False)
    assert isinstance(head, Head)
    assert (head.start_ns, head.first_ns) == (START_NS, START_NS)
    watch = Watch(str(tmp_path))
    for length in (0, 1, 30, 200):
        path.write_bytes(data[:length])
        assert watch.look().runs == ()
    path.write_bytes(data.replace(b'"host":"', b'"more":"%s","host":"' % (b"x" * 20_000)))
    assert only_rank(watch).steps_seen == 3


def test_dumps_and_children_are_no_recordings_of_their_own(tmp_path: Path) -> None:
    clock = FakeClock()
    dumps = FlightRecorder(f"{tmp_path}/{{run_id}}/rank{{rank}}-dump{{dump}}.json", on_close=True)
    profiler = record(tmp_path, clock=clock)
    with Profiler(
        [*profiler.trace_handlers, dumps], clock=clock.clock, rank=0, world_size=1, run_id="run", flush_interval=3600
    ) as profiler:
        train(profiler, clock, 3)
    lines = file_of(tmp_path).read_text().split("\n")
    child = lines[1].replace('"attempt":0', '"attempt":0,"parent_pid":1,"worker":0')
    loss = next(line for line in lines if "tracekit_loss" in line).replace('"lost_events":0', '"lost_events":7')
    (tmp_path / "run" / "rank0-worker0-5.json").write_text("\n".join(["[", child, loss, *lines[5:]]))
    run = only_run(Watch(str(tmp_path)).look())
    (rank,) = run.ranks
    assert (rank.steps_seen, rank.state, rank.lost_events) == (3, "finished", 7)
    assert len(run.paths) == 3


def test_attempts_of_a_rank_are_one_rank_whose_metadata_are_those_of_the_last(tmp_path: Path) -> None:
    name = "{run_id}/a/rank{rank}-{attempt}.json"
    for attempt in range(3):
        clock = FakeClock(wall_ns=START_NS + attempt * S)
        place = {"rank": 5, "world_size": 8, "local_rank": 1, "node": 2, "attempt": attempt}
        recorded(tmp_path, 1 + attempt, clock, name=name, **place)
    rank = only_rank(Watch(str(tmp_path)))
    assert (rank.rank, rank.world_size, rank.local_rank, rank.node, rank.attempt) == (5, 8, 1, 2, 2)
    assert (rank.pid, rank.run_id, rank.path) == (os.getpid(), "run", str(tmp_path / "run" / "a" / "rank5-2.json"))
    assert (rank.steps_seen, rank.files) == (3, 3)


def test_run_of_one_name_in_two_folders_is_one_unless_a_rank_is_in_both(tmp_path: Path) -> None:
    """Launchers that do not name runs give all of them one name."""
    for rank in range(4):
        recorded(tmp_path / "nodes", 1, rank=rank, world_size=4, node=rank // 2, name="node{node}/rank{rank}.json")
    run = only_run(Watch(str(tmp_path / "nodes")).look())
    assert (run.folder, len(run.ranks), run.missing_count) == (str(tmp_path / "nodes"), 4, 0)

    for number, day in enumerate(("monday", "tuesday")):
        for rank in range(2):
            clock = FakeClock(wall_ns=START_NS + (1000 * number + rank) * S)
            recorded(tmp_path / "days", 1 + number, clock, rank=rank, world_size=2, name=f"{day}/rank{{rank}}.json")
    runs = Watch(str(tmp_path / "days")).look().runs
    assert [(run.folder, run.step, len(run.ranks)) for run in runs] == [
        (str(tmp_path / "days" / "tuesday"), 2, 2),
        (str(tmp_path / "days" / "monday"), 1, 2),
    ]


# Losses.


def test_losses_are_told_while_file_cannot_grow(tmp_path: Path) -> None:
    path = killed(tmp_path)
    watch = Watch(str(tmp_path))
    assert only_rank(watch).lost_events == 0
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(data.index(b'"lost_events":0') + len(b'"lost_events":'))
        file.write(b"12345")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))
    rank = only_rank(watch)
    assert (rank.lost_events, rank.unhealthy) == (12345, True)


def test_gaps_count_until_the_summary_has_the_last_word(tmp_path: Path) -> None:
    path = killed(tmp_path)
    gap = b'{"ph":"i","name":"tracekit.gap","cat":"tracekit","s":"p","pid":1,"tid":1,"ts":1.000,"args":{"lost_events":40}},\n'
    summary = b'{"ph":"M","name":"tracekit_summary","pid":1,"tid":1,"args":{"dropped":{"a":50,"b":60}}}\n]\n'
    watch = Watch(str(tmp_path))
    for line, lost, state in ((gap, 40, "recording"), (gap, 80, "recording"), (summary, 110, "finished")):
        with path.open("ab") as file:
            file.write(line)
        rank = only_rank(watch)
        assert (rank.lost_events, rank.state) == (lost, state)


BATCH = b'{"ph":"X","name":"batch","cat":"training loop","pid":1,"tid":1,'


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"{",
        b'{"ph":"X"}',
        b'{"ph":"X","name":[],"cat":{},"ts":null,"dur":true,"pid":1,"tid":1}',
        b'{"ph":"X","name":"a","ts":1e999,"dur":1,"pid":1,"tid":1}',
        b'{"ph":"X","name":"a","ts":1,"dur":-5,"pid":1,"tid":1}',
        BATCH + b'"ts":99999999999999999999,"dur":5}',
        BATCH + b'"ts":1.000,"dur":5.000,"args":{"batch":-1}}',
        b'{"ph":"E","name":"a","ts":1.000,"pid":1,"tid":1}',
        b'{"ph":"B","ts":1.000,"pid":[],"tid":{}}',
        b'{"ph":"M","name":"tracekit_timestamp","args":[]}',
        b'{"ph":"M","name":"tracekit_timestamp","args":{"batch":"x","epoch":null}}',
        b'{"ph":"i","name":"tracekit.gap","args":{"lost_events":-1e30}}',
        b'{"ph":7,"name":"a"}',
        b"[" * 200_000,
        b'{"args":' * 100_000,
        b'"\xff\xfe\x00',
        b"x" * 3_000_000,
    ],
    ids=lambda line: repr(line[:24]),
)
def test_line_that_is_no_event_disturbs_no_other(tmp_path: Path, line: bytes) -> None:
    path = recorded(tmp_path, 3)
    lines = path.read_bytes().split(b"\n")
    half = len(lines) // 2
    path.write_bytes(b"\n".join([*lines[:half], line + b",", *lines[half:]]))
    watch = Watch(str(tmp_path))
    rank = only_rank(watch)
    # A line that is too long also hides the lines before it in the same piece.
    steps = 3 + (b'"batch":-1' in line)
    assert rank.steps_seen in (range(4) if len(line) > 1_000_000 else (steps,))
    assert rank.behind_bytes == 0
    assert only_rank(watch).unreadable == rank.unreadable  # and it is met once


# Object stores.


@pytest.fixture
def memory() -> str:
    import fsspec

    filesystem: Any = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    return "memory://bucket/runs"


def put(url: str, data: bytes) -> None:
    import fsspec

    with fsspec.open(url, "wb") as file:
        file.write(data)


def segments(folder: Path, count: int) -> list[bytes]:
    """Return the files of a recording that goes to another one every two steps."""
    clock = FakeClock()
    with record(folder, clock=clock, name="p{part:02d}.json", handler={"rotate_every": "2ba"}) as profiler:
        for _ in range(2 * count):
            train(profiler, clock, 1)
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def test_segments_of_an_object_store_are_read_as_they_come(tmp_path: Path, memory: str) -> None:
    now = FakeClock(wall_ns=time.time_ns())
    parts = segments(tmp_path, 4)
    with pytest.raises(StorageError, match="no such folder, or nothing is in it"):
        Watch(memory, clock=now.clock).look()
    put(f"{memory}/run/nothing.json", b"")
    watch = Watch(memory, clock=now.clock)
    for number, part in enumerate(parts[:-1]):
        put(f"{memory}/run/rank0-part{number:04d}.json", part)
        now.advance(6 * S)
        rank = only_rank(watch)
        assert (rank.state, rank.files) == ("recording", number + 1)
        assert watch.look().notes == ()
        seen = rank.steps_seen
    assert seen >= 5
    put(f"{memory}/run/rank0-part{len(parts):04d}.json", parts[-1])
    assert only_rank(watch).state == "recording"  # it is not listed again so soon
    now.advance(6 * S)
    rank = only_rank(watch)
    assert (rank.state, rank.steps_seen) == ("finished", 8)
    assert rank.path.endswith(f"/bucket/runs/run/rank0-part{len(parts):04d}.json")
    assert only_run(watch.look()).folder.endswith("/bucket/runs/run")


def test_segments_without_end_are_cut_unless_the_index_says_that_they_are_complete(tmp_path: Path, memory: str) -> None:
    now = FakeClock(wall_ns=time.time_ns())
    first = segments(tmp_path, 3)[0]
    put(f"{memory}/run/rank0-part0000.json", first)
    pid = json.loads(first.split(b"\n")[1].rstrip(b","))["args"]["pid"]
    index = {"tracekit_index": 1, "id": "x", "run_id": "run", "rank": 0, "attempt": 0, "pid": pid}
    put(f"{memory}/run/rank0.index.json", json.dumps({**index, "complete": False, "segments": []}).encode())
    watch = Watch(memory, clock=now.clock, cut_after_s=10)
    watch.look()
    now.advance(10**18)  # what is in the segment is far from the time of the storage
    assert only_rank(watch).state == "cut"
    put(f"{memory}/run/rank0.index.json", json.dumps({**index, "complete": True, "segments": []}).encode())
    now.advance(6 * S)
    assert only_rank(watch).state == "finished"
