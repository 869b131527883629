"""Batches: what ends them in the core does what Python does."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.both_recorders import other_clock
from tracekit import Profiler, Timestamp, TraceHandler, cyclic_schedule
from tracekit.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from tracekit.clock import Clock


class Calls(TraceHandler):
    """Keeps the hooks and the slices in their order, without times."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        for method in ("epoch_start", "epoch_end", "batch_start", "batch_end"):
            setattr(self, method, partial(self._note, method))

    def _note(self, method: str, timestamp: Timestamp) -> None:
        self.found.append((method, counters(timestamp)))

    def process_duration_event(self, name: str, categories: Any, is_start: bool, timestamp: Timestamp, _: int) -> None:
        self.found.append((name, is_start, counters(timestamp)))


def counters(timestamp: Timestamp) -> list[int]:
    return [value for name, value in timestamp.state_dict().items() if not name.endswith("_us")]


def played(seed: int, clock: Clock) -> tuple[list[Any], list[int], Any, int]:
    """Record a loop; return the calls of a handler, the counters in the end, the failures and the slices."""
    source, handler = Random(seed), Calls()
    with Profiler(handler, clock=clock, flush_interval=3600) as profiler:
        marker = profiler.marker("work")
        for _ in range(source.randrange(60)):
            kind = source.random()
            if kind < 0.6:
                profiler.step(source.choice([0, 1, 300, 2**40, True, -1, "4sp"]), source.choice([0, 5]))  # type: ignore[arg-type]
            elif kind < 0.8:
                with marker:
                    pass
            elif kind < 0.9:
                profiler.next_epoch()
            elif kind < 0.95:
                profiler.begin_batch()
            else:
                assert profiler.flush(60)
    return handler.found, counters(profiler.timestamp), profiler.stats.failures, profiler.stats.slices


@pytest.mark.core
@pytest.mark.parametrize("seed", range(40))
def test_a_loop_calls_the_same_hooks_with_the_same_times_in_c_and_in_python(seed: int) -> None:
    assert played(seed, SYSTEM_CLOCK) == played(seed, other_clock())


@pytest.mark.core
def test_steps_end_in_c_unless_something_hears_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_plain(**options: Any) -> bool:
        with Profiler(**options) as profiler:
            profiler.step()
            return profiler._batches.end_plain(1, 2)

    assert is_plain()
    assert not is_plain(clock=other_clock())
    assert not is_plain(schedule=cyclic_schedule(wait=0, active=5))
    monkeypatch.setenv("TRACEKIT_STRICT", "1")
    assert not is_plain()


@pytest.mark.core
def test_a_count_beyond_64_bits_is_left_to_python() -> None:
    with Profiler(timestamp=Timestamp(sample=2**63 - 1)) as profiler:
        profiler.step()
        assert not profiler._batches.end_plain(1, 0)
        assert profiler._batches.end_plain(0, 0)


@pytest.mark.core
def test_a_step_without_room_for_its_slice_is_counted_and_still_ends_the_batch() -> None:
    with Profiler(max_buffered_events=64, flush_interval=3600) as profiler:
        for _ in range(300):
            profiler.step()
        assert profiler.timestamp.batch == 300
    stats = profiler.stats
    assert stats.slices + sum(stats.dropped.values()) == 300 == stats.recorded
