"""Timers across ranks, without processes: nobody waits for ever, ranks are matched by name, who is missing is named."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import MemoryTraceHandler, Profiler, TimerError, Timers
from tracekit.events import Label
from tracekit.timers import Timer, ranks
from tracekit.timers import timers as timers_module
from tracekit.timers.ranks import process_group

if TYPE_CHECKING:
    from collections.abc import Callable

MS = 1_000_000


class Store:
    """A store of torch.distributed, as far as it is used."""

    def __init__(self, extended: bool = True) -> None:
        self.values: dict[str, bytes] = {}
        self.extended = extended
        self.broken = False

    def set(self, key: str, value: bytes | str) -> None:
        if self.broken:
            raise RuntimeError("Connection reset by peer\nException raised from recv at ...")
        self.values[key] = value if isinstance(value, bytes) else value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        if not self.extended:
            raise NotImplementedError
        return [self.values[key] for key in keys]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def delete_key(self, key: str) -> bool:
        return self.values.pop(key, None) is not None

    def has_extended_api(self) -> bool:
        return self.extended


class Group:
    """``torch.distributed`` of one rank of several that are all in this process."""

    def __init__(self, store: Store, world_size: int) -> None:
        self._of_thread = threading.local()
        self.world_size = world_size
        self.barriers: list[tuple[int, Any]] = []
        self.distributed_c10d = SimpleNamespace(_get_default_store=lambda: store)
        self.initialized = True

    @property
    def rank(self) -> int:
        return getattr(self._of_thread, "rank", 0)

    @rank.setter
    def rank(self, rank: int) -> None:
        self._of_thread.rank = rank

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.initialized

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.world_size

    def barrier(self, group: Any = None) -> None:
        self.barriers.append((self.rank, group))

    def get_process_group_ranks(self, group: list[int]) -> list[int]:
        return group


class World:
    """Ranks with timers of their own. What a rank does before another stands in the store, as if it were faster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *levels: int, option: str = "minmax", **options: Any) -> None:
        self.store = Store()
        self.group = Group(self.store, len(levels))
        self.now_s = 0.0
        monkeypatch.setitem(sys.modules, "torch.distributed", self.group)
        monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._pause))
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        self.said: list[str] = []
        self.ranks = [
            self.numbered(lambda level=level: Timers(level, option, output=self.said.append, **options))
            for level in levels
        ]

    def numbered(self, make: Callable[[], Any]) -> Any:
        """Make something as a process of its own would, which has made no timers before."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(timers_module, "_numbers", defaultdict(itertools.count))
            return make()

    def _pause(self, seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            self.now_s += seconds
        else:
            time.sleep(0.0005)  # the other ranks are about to come

    def together(self, call: Callable[[Timers, int], Any]) -> list[Any]:
        """Run something on all ranks at once, each in a thread; returns what each returns."""
        with ThreadPoolExecutor(len(self.ranks)) as threads:
            return list(threads.map(lambda rank: call(self.on(rank), rank), range(len(self.ranks))))

    def on(self, rank: int) -> Timers:
        self.group.rank = rank
        return self.ranks[rank]

    def log(self, *seconds: float) -> None:
        """Set the timer "x" of each rank, and log."""
        for rank, value in enumerate(seconds):
            self.on(rank)("x").set_elapsed(value)
            self.on(rank).log()


@pytest.mark.parametrize("extended", [True, False], ids=["many keys at once", "one key at a time"])
def test_timers_are_matched_by_name(extended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """T13: there the columns of ranks that made their timers in another order are mixed up; T3: other names hang."""
    world = World(monkeypatch, 2, 2, 2)
    world.store.extended = extended
    world.on(0)("a").set_elapsed(1)
    world.on(0)("b").set_elapsed(2)
    world.on(1)("b").set_elapsed(4)
    world.on(1)("a").set_elapsed(3)
    world.on(1)("only on 1").set_elapsed(5)
    for rank in range(3):
        world.on(rank).log(normalizer=1)
    (text,) = world.said
    assert text.splitlines() == [
        "(min, max) time across ranks (ms):",
        "    a ..............................................: (1000.00, 3000.00)",
        "    b ..............................................: (2000.00, 4000.00)",
        "    only on 1 ......................................: (5000.00, 5000.00)",
    ]
    assert world.now_s == 0.0, "nobody had to wait"


def test_the_text_is_the_same_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 reads what all have put into the store, and the others read what it has made of that."""
    world = World(monkeypatch, *[2] * 5, option="max", timeout=60)

    def report(timers: Timers, rank: int) -> tuple[Any, ...]:
        timers("a").set_elapsed(rank)
        return (
            timers.get_all_timers_string(normalizer=2),
            timers.get_global_min_max_time(["a", "b", "nobody's"], normalizer=2),
            timers.gather(rank=None),
        )

    found = world.together(report)
    assert all(one == found[0] for one in found)
    text, extremes, table = found[0]
    assert text == "max time across ranks (ms / 2):\n    a ..............................................: 2000.00"
    assert extremes == {"a": (0.5, 2.0)}, "of rank 0, which has measured nothing, nothing"
    assert sorted(table.ranks) == [0, 1, 2, 3, 4]


def test_the_matrix_of_elapsed_times_has_a_row_for_each_rank_and_a_column_for_each_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Megatron's ``_get_elapsed_time_all_ranks``, by whose name tools call it; there it is in single precision (T12)."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    world = World(monkeypatch, *[2] * 3, timeout=60)

    def report(timers: Timers, rank: int) -> tuple[Any, ...]:
        timers("a").set_elapsed(rank)
        if rank == 1:
            timers("b").set_elapsed(100_000.001)
        kept = timers._get_elapsed_time_all_ranks(names=["b", "a", "nobody's"], reset=False, barrier=True)
        return kept, timers._get_elapsed_time_all_ranks(["a"], True, False), timers("a").elapsed()

    found = world.together(report)
    kept, reset, elapsed = found[2]
    assert kept.shape == (3, 3)
    assert kept.tolist() == [[0.0, 0.0, 0.0], [100_000.001, 1.0, 0.0], [0.0, 2.0, 0.0]]
    assert (reset.tolist(), elapsed) == ([[0.0], [1.0], [2.0]], 0.0)
    assert all(torch.equal(one[0], kept) for one in found)
    assert len(world.group.barriers) == 3
    world.on(1)("a").set_elapsed(1)
    assert world.on(1)._get_elapsed_time_all_ranks(None, False, False).tolist() == [
        [0.0, 0.0],
        [1.0, 100_000.001],
        [0.0, 0.0],
    ]
    assert "ranks 0, 2 did not report" in caplog.messages[0]
    assert world.on(1)._get_elapsed_time_all_ranks([], False, False) is None


def test_the_texts_by_megatrons_private_names_have_seconds_for_their_normalizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 2, 2, option="max", timeout=60)

    def report(timers: Timers, rank: int) -> list[str | None]:
        timers("a").set_elapsed(1 + rank)
        return [
            timers._get_global_min_max_time_string(["a"], False, False, 10 / 1000.0, True),
            timers._get_global_min_max_time_string(["a"], False, False, 1 / 1000.0, max_only=False),
            timers._get_all_ranks_time_string(["a", "b"], True, True, normalizer=1 / 1000.0),
            timers._get_global_min_max_time_string(["a"], False, False, 1.0, True),
        ]

    for texts in world.together(report):
        assert texts == [
            "max time across ranks (ms / 10):\n    a ..............................................: 200.00",
            "(min, max) time across ranks (ms):\n    a ..............................................: (1000.00, 2000.00)",
            "times across ranks (ms):\n  a:\n     rank  0: 1000.00\n     rank  1: 2000.00",
            None,
        ]


def test_without_rank_0_nothing_is_passed_on_and_nobody_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(monkeypatch, *[2] * 12, timeout=10)
    world.on(1)("a").set_elapsed(1)
    assert world.on(1).get_global_min_max_time() == {"a": (1.0, 1.0)}
    assert world.now_s == pytest.approx(15, abs=0.1)
    assert "ranks 0, 2-11 did not report within 10 s" in caplog.messages[0]


def test_a_rank_that_does_not_come_is_named_and_waited_for_only_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T3: there the report hangs for ever."""
    world = World(monkeypatch, 2, 2, 2, timeout=10)
    world.on(2)("x").set_elapsed(1)
    for number in range(3):
        world.on(0).log(reset=False)
        world.on(2).log(reset=False)
        assert world.now_s == pytest.approx(10, abs=0.2 * (number + 1)), "the first time only"
    assert len(world.said) == 3
    assert [message for message in caplog.messages if "rank 1 did not report within 10 s" in message] == caplog.messages
    assert len(caplog.messages) == 1
    before_s = world.now_s
    world.on(1)("x").set_elapsed(2)
    for _ in range(5):
        world.on(1).log(reset=False)  # it comes to itself, and catches up
    for _ in range(2):
        world.on(0).log(reset=False)
        world.on(2).log(reset=False)
    assert "(1000.00, 2000.00)" in world.said[-1]
    assert world.now_s == before_s


OUT_OF_STEP = "the ranks have called this a different number of times"


@pytest.mark.parametrize("method", ["get_global_min_max_time", "get_all_timers_string"])
def test_a_table_that_was_made_without_a_rank_is_not_shown_there(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that only rank 0 makes leaves a table behind, which is not what rank 1 asks for later."""
    world = World(monkeypatch, 2, 2, timeout=1)
    world.on(0)("x").set_elapsed(7)
    getattr(world.on(0), method)()
    for seconds in (1, 2):
        for rank in (0, 1):
            world.on(rank)("x").set_elapsed(seconds + 10 * rank)
            found = getattr(world.on(rank), method)()
            own = seconds + 10 * rank
            assert str(found).endswith(
                f"({own}.0, {own}.0)}}" if method.endswith("time") else f"({own}000.00, {own}000.00)"
            )
    assert [OUT_OF_STEP in message for message in caplog.messages] == [False, True]
    assert "rank 1 did not report" in caplog.messages[0]


def test_values_that_a_rank_has_left_in_a_call_of_its_own_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(monkeypatch, 2, 2, option="all", timeout=1)
    world.on(0)("x").set_elapsed(7)
    world.on(0).log()  # which only the last rank would read
    for rank in (0, 1):
        world.on(rank)("x").set_elapsed(rank + 1)
        world.on(rank).gather(rank=1)
        world.on(rank).log()
    assert world.said == ["times across ranks (ms):\n  x:\n     rank  1: 2000.00"]
    assert [OUT_OF_STEP in message for message in caplog.messages if "rank 0" in message] == [True]


def test_a_call_of_another_report_that_a_rank_makes_alone_spoils_no_report(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(monkeypatch, 2, 2, option="all", timeout=1)
    world.on(0).get_all_timers_string()
    caplog.clear()
    world.log(1, 2)
    assert world.said == ["times across ranks (ms):\n  x:\n     rank  0: 1000.00\n     rank  1: 2000.00"]
    assert caplog.messages == []


def test_two_writes_of_one_step_are_two_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """NeMo's recipe writes its setup as step 0, and the first iteration as well."""
    world, written = World(monkeypatch, 2, 2), list[Any]()
    run = SimpleNamespace(log=lambda values, step: written.extend((*item, step) for item in values.items()))
    for name in ("setup", "iteration"):
        for rank in (0, 1):
            world.on(rank)(name).set_elapsed(5 - rank)
            world.on(rank).write_to_wandb([name], run if rank else None, 0)
    for rank in (0, 1):
        world.on(rank).write_to_wandb(["iteration"], run if rank else None, 1)
        world.on(rank)("iteration").set_elapsed(9 - rank)
        world.on(rank).write_to_wandb(["iteration"], run if rank else None, 0)  # a run that went back to it
    assert written == [("setup-time", 5.0, 0), ("iteration-time", 5.0, 0), ("iteration-time", 9.0, 0)]


def test_only_ranks_with_a_writer_wait_and_steps_match_the_ranks_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world, written = World(monkeypatch, 2, 2, timeout=1), list[Any]()
    writer = SimpleNamespace(add_scalar=lambda *scalar: written.append(scalar))
    for step in (1, 2, 3):
        for rank in range(2):
            world.on(rank)("x").set_elapsed(10 * step * (2 - rank))
            if (step, rank) != (2, 0):
                world.on(rank).write(["x"], writer if rank == 1 else None, step)
        assert (world.now_s > 0) == (step > 1), "only where a rank has skipped a write"
    assert written == [("x-time", 20.0, 1), ("x-time", 20.0, 2), ("x-time", 60.0, 3)]
    assert "rank 0 did not report" in caplog.text


def test_gather_returns_the_table_on_one_rank_and_names_who_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 2, 2, 2)
    for rank in (2, 1, 0):
        for seconds in range(3):
            world.on(rank)("x").set_elapsed(rank % 2 + seconds)
    assert [world.on(rank).gather() for rank in (2, 1)] == [None, None]
    table = world.on(0).gather()
    assert table is not None
    assert (table.names, table.missing, table.slowest("x")) == (["x"], (), 1)
    assert [found.count for found in table.of("x").values()] == [1, 1, 1]
    assert [world.on(rank).gather(lifetime=True) for rank in (2, 1)] == [None, None]
    lifetime = world.on(0).gather(lifetime=True)
    assert lifetime is not None
    assert lifetime.across("x").count == 9
    assert world.now_s == 0.0
    with pytest.raises(TimerError, match="ranks 1-2 did not report within 3 s"):
        world.on(0).gather(timeout=3)
    assert world.now_s == pytest.approx(3, abs=0.1)
    table = world.on(0).gather(allow_missing=True)
    assert table is not None
    assert (table.missing, list(table.ranks)) == ((1, 2), [0])


@pytest.mark.parametrize("broken", [False, True])
def test_a_gather_that_fails_loses_nothing(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 2, 2)
    timers = world.on(0)
    timers("x").set_elapsed(1)
    timers.snapshot(reset=True)
    timers("x").set_elapsed(2)
    timers.snapshot(reset=True)
    with timers("x"):
        pass
    collect = timers._ranks.collect

    def collect_while_another_thread_times(*arguments: Any, **options: Any) -> Any:
        with timers("x"):
            pass
        return collect(*arguments, **options)

    monkeypatch.setattr(timers._ranks, "collect", collect_while_another_thread_times)
    world.store.broken = broken
    with pytest.raises(TimerError):
        timers.gather(reset=True, timeout=1)
    assert timers.snapshot().of("x")[0].count == 2
    assert timers.snapshot(lifetime=True).of("x")[0].count == 4
    world.store.broken = False
    assert timers.gather(reset=True, allow_missing=True) is not None
    assert timers.snapshot().of("x")[0].count == 1, "what has ended meanwhile"


def test_a_gather_that_fails_does_not_undo_a_reset_of_the_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 2, 2)
    timers = world.on(0)
    timers("x").set_elapsed(1)
    monkeypatch.setattr(timers._ranks, "collect", lambda *_, **__: (timers("x").reset(), ({}, [1]))[1])
    with pytest.raises(TimerError):
        timers.gather(reset=True)
    assert timers.snapshot().of("x") == {}


def test_a_store_that_breaks_does_not_reach_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(monkeypatch, 2, 2)
    world.store.broken = True
    world.log(1, 1)
    assert world.said[0].endswith(": (1000.00, 1000.00)"), "its own values"
    told = "tracekit: timers: the other ranks' timers cannot be read: RuntimeError: Connection reset by peer; the reports are "
    assert caplog.messages == [told + "of this rank alone"] * 2, "once a rank"
    with pytest.raises(TimerError, match="Connection reset by peer"):
        world.on(0).gather()


def test_a_process_group_without_a_store_does_not_reach_training_either(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(monkeypatch, 2, 0)
    world.group.distributed_c10d = SimpleNamespace()
    with world.on(0)("x", barrier=True):
        pass
    assert world.group.barriers == [(0, None)] * 2, "without the others' levels it is torch's barrier as ever"
    world.on(0).log(rank=0)
    world.on(1)("x", barrier=True)
    world.on(1).log(rank=0)
    assert len(world.said) == 1
    assert "cannot be read" in caplog.messages[-1]


def test_neither_the_store_nor_the_memory_of_steps_grows_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 2, 2)
    for step in range(300):
        for rank in range(2):
            world.on(rank).log()
            world.on(rank).write(None, None, step)
    assert len(world.store.values) < 100
    assert len(world.ranks[0]._ranks._step_counts) <= 256


@pytest.mark.parametrize(("agent", "host", "waits"), [("", 0, True), ("True", 0, False), ("", 1, False)])
def test_the_rank_that_keeps_the_store_waits_until_the_others_have_read(
    agent: str, host: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under torchrun the agent keeps the store, else rank 0 does."""
    world = World(monkeypatch, 2, 2, timeout=60)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", agent)
    other = 1 - host
    said_while_the_host_waited: list[int] = []

    def read_on_the_other_rank(_seconds: float) -> None:
        world.on(other).log(rank=other)
        world.group.rank = host
        said_while_the_host_waited.append(len(world.said))

    monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=read_on_the_other_rank))
    world.on(host)("x").set_elapsed(1)
    world.on(host).log(rank=other)
    assert said_while_the_host_waited == ([1] if waits else [])


def test_a_new_process_group_is_a_new_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 2, 2)
    world.log(1, 1)
    new = Store()
    world.group.distributed_c10d = SimpleNamespace(_get_default_store=lambda: new)
    world.log(2, 2)
    assert [text.rpartition("(")[2] for text in world.said] == ["1000.00, 1000.00)", "2000.00, 2000.00)"]
    assert new.values


class Named(Timers):
    """Timers of somebody's own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(2, "all", **options)


@pytest.mark.parametrize("kind", [Timers, Named, "named"])
def test_timers_that_only_one_rank_has_are_mixed_with_no_others(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one rank makes and reports for itself moves nothing of what the ranks have together."""
    world = World(monkeypatch, 2, 2, timeout=1)
    arguments: dict[str, Any] = {"output": world.said.append, "timeout": 1}

    def of_a_rank(rank: int) -> Timers:
        if rank == 0:
            own: Timers = Timers(2, "all", **arguments) if kind is Timers else Named(**arguments)
            world.group.rank = 0
            own("x").set_elapsed(9)
            own.log(rank=0)
        if kind == "named" and rank == 0:
            return Timers(2, "all", name="n", **arguments)
        if kind == "named":  # in another place
            return Timers(2, "all", name="n", **arguments)
        return Timers(2, "all", **arguments) if kind is Timers else Named(**arguments)

    world.ranks = [world.numbered(lambda rank=rank: of_a_rank(rank)) for rank in (0, 1)]
    world.log(1, 2)
    assert world.said[-1] == "times across ranks (ms):\n  x:\n     rank  0: 1000.00\n     rank  1: 2000.00"


def test_timers_made_in_one_place_are_told_apart_by_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 2, 2)
    pairs = [world.numbered(lambda: [Timers(2, "all", output=world.said.append) for _ in range(2)]) for _ in (0, 1)]
    for number in (1, 0):
        for rank, pair in enumerate(pairs):
            world.group.rank = rank
            pair[number]("x").set_elapsed(10 * number + rank)
            pair[number].log()
    assert [text.splitlines()[-1].split()[-1] for text in world.said] == ["11000.00", "1000.00"]
    assert ["rank  0: 10000.00" in text for text in world.said] == [True, False]


@pytest.mark.parametrize("broken", [SimpleNamespace(), None])
def test_without_a_process_group_there_are_no_other_ranks(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", broken)
    assert process_group() is None
    group = Group(Store(), 1)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert process_group() is None
    group.world_size = 2
    assert process_group() is group
    group.initialized = False
    assert process_group() is None


def test_a_barrier_is_torchs_and_a_slice_of_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: the ends of a barrier differ by 200 ms on many ranks; there that is only part of a number."""
    world = World(monkeypatch, 2, 2, 2)
    handler = MemoryTraceHandler()
    with Profiler([handler], rank=0, run_id="run"):
        for timer in (world.on(0)("x"), Timer("x")):
            timer.set_barrier_group([0, 2])
            world.on(2)._ranks.announce()
            world.group.rank = 0
            timer.start(barrier=True)
            timer.elapsed(barrier=True)
            timer.stop()
        timer = Timer("x")
        with timer.with_barrier():
            pass
    assert world.now_s == 0.0, "rank 1, which is not of the group, was not waited for"
    assert world.group.barriers == [(0, [0, 2])] * 4 + [(0, None)] * 2
    barriers = [begin.label for begin, _ in handler.slices if begin.label.name != "x"]
    assert barriers == [Label("x (barrier)", ("barrier",))] * 6


def test_a_barrier_that_ranks_with_a_lower_level_would_not_come_to_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T3: there rank 0 waits for ever for rank 1, where the timer is off."""
    world = World(monkeypatch, 2, 1)
    with caplog.at_level(logging.ERROR):
        world.on(1)("x").start(barrier=True)
    for _ in range(2):
        with world.on(0)("x", barrier=True):
            pass
    assert world.group.barriers == []
    assert len(caplog.messages) == 1
    assert "timer 'x' has level 2 and is off on rank 1" in caplog.messages[0]
    with world.on(0)("y", 1, barrier=True):
        pass
    assert len(world.group.barriers) == 2


@pytest.mark.parametrize("ask", ["start", "stop", "with_barrier"])
def test_a_timer_that_is_off_tells_the_others_wherever_a_barrier_is_asked_for(
    ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch, 2, 0)
    getattr(world.on(1)("x"), ask)(True)
    assert any("level" in key for key in world.store.values)


def test_a_rank_that_comes_to_no_barrier_is_named_and_reports_have_one_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 2, 2)
    with pytest.raises(TimerError, match="rank 1 has not come to any barrier of the timers within 600 s"):
        world.on(0)("x").start(barrier=True)
    world.on(0).log()
    assert world.group.barriers == []
    world.on(0).log(barrier=True)
    assert world.group.barriers == [(0, None)]
