"""The exchange of clocks through a store: bounds that hold, drift that is bounded, ranks that do not come."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit import ClockOffset, ClockSync, ConfigError
from tracekit.sources import clock_exchange
from tracekit.sources.clock_exchange import Answering, Drift

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

BOOT = "0f9a"
AHEAD_NS = 7_500_000_000
"""How far the monotonic clock of the rank that asks is ahead."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have both sides wait for as long as a busy machine may need; otherwise 2 s and 5 s."""
    monkeypatch.setattr(clock_exchange, "ANSWER_S", 60.0)
    monkeypatch.setattr(clock_exchange, "PATIENCE_S", 60.0)


class FakeStore:
    """A store for the threads of one process; each has a connection, which can be slow."""

    def __init__(self, parent: FakeStore | None = None, slow: Callable[[str, str], float] = lambda *_: 0.0) -> None:
        self.values: dict[str, bytes] = {} if parent is None else parent.values
        self.changed: threading.Condition = threading.Condition() if parent is None else parent.changed
        self.timeout_s = 2.0
        self._slow = slow

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout_s = timeout.total_seconds()

    def set(self, key: str, value: str) -> None:
        time.sleep(self._slow("set", key))
        with self.changed:
            self.values[key] = value.encode()
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, self.timeout_s):
                raise TimeoutError(key)
            value = self.values[key]
        time.sleep(self._slow("get", key))
        return value

    def check(self, keys: list[str]) -> bool:
        with self.changed:
            return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        with self.changed:
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(total).encode()
            return total

    def delete_key(self, key: str) -> bool:
        with self.changed:
            return self.values.pop(key, None) is not None


def answering(store: FakeStore) -> Answering:
    return Answering(store, rank=0, boot_id=BOOT, timeline_offset_ns=1_000_000, monotonic_ns=time.perf_counter_ns)


def ask(store: FakeStore, rank: int = 1, pause: Callable[[float], bool] | None = None) -> ClockOffset | None:
    return clock_exchange.measure(
        store,
        rank=rank,
        timeline_offset_ns=400_000,
        monotonic_ns=lambda: time.perf_counter_ns() + AHEAD_NS,
        pause=pause or threading.Event().wait,
    )


def measure(store: FakeStore, slow: Callable[[str, str], float] = lambda *_: 0.0) -> ClockOffset:
    answers = answering(store)
    found: list[ClockOffset | None] = []
    thread = threading.Thread(target=lambda: found.append(ask(FakeStore(store, slow))))
    thread.start()
    while not answers.waiting():
        time.sleep(0.001)
    answers.answer()
    thread.join()
    assert answers.ranks == {1}
    assert found[0] is not None
    return found[0]


# The way there or back takes 3 ms more, as it would through a busy interpreter: far more than the rest of a round trip.
@pytest.mark.parametrize("slow", ["nothing", "ping", "pong"])
def test_the_true_offset_lies_within_the_bound_however_unequal_the_ways_are(slow: str) -> None:
    store = FakeStore()
    offset = measure(store, lambda _, key: 0.003 if slow in key else 0.0)
    assert abs(offset.monotonic_offset_ns + AHEAD_NS) <= offset.error_ns
    assert offset.offset_ns == offset.monotonic_offset_ns + 600_000
    assert (offset.reference_rank, offset.reference_boot_id, offset.drift_ppb) == (0, BOOT, None)
    # A round trip that had to wait somewhere is tried again and again.
    if slow == "nothing":
        assert offset.round_trips >= 8
    else:
        assert offset.error_ns > 1_400_000
        assert offset.round_trips == 64


def test_nobody_asks_where_rank_0_has_not_come_or_has_left() -> None:
    store = FakeStore()
    assert ask(store) is None
    answers = answering(store)
    answers.leave()
    assert ask(store) is None
    assert set(store.values) == {"tracekit/clock/answered"}


def test_a_rank_that_lost_patience_is_passed_over_and_the_next_one_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()
    answers = answering(store)
    with monkeypatch.context() as impatient:
        impatient.setattr(clock_exchange, "PATIENCE_S", 0.0)
        assert ask(store, rank=2) is None
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(ask(store)))
    thread.start()
    while answers.waiting() or thread.is_alive():
        if answers.waiting():
            answers.answer()
    thread.join()
    assert found[0] is not None
    assert answers.ranks == {1}


def test_a_rank_that_ends_just_as_it_is_answered_keeps_rank_0_no_longer() -> None:
    store = FakeStore()
    reference = answering(store)
    thread = threading.Thread(target=reference.answer)

    def end(_: float) -> bool:
        # The recording ends between two looks, and rank 0 reads the request before it is taken back.
        thread.start()
        store.get(clock_exchange.PREFIX + "1/ready")
        return True

    assert ask(store, pause=end) is None
    thread.join(30)
    assert not thread.is_alive()
    assert reference.ranks == set()
    assert not reference.waiting()


def test_a_rank_that_dies_in_the_middle_costs_one_wait() -> None:
    store = FakeStore()
    answers = answering(store)
    store.timeout_s = 0.01
    store.set("tracekit/clock/1/request", "3")
    store.add("tracekit/clock/asked", 1)
    assert answers.waiting()
    with pytest.raises(TimeoutError):
        answers.answer()
    assert not answers.waiting()
    assert answers.ranks == set()


def test_nothing_is_left_in_the_store_but_the_counts_where_a_later_recording_goes_on() -> None:
    store = FakeStore()
    measure(store)
    assert sorted(store.values) == [f"tracekit/clock/{name}" for name in ("answered", "asked", "here")]
    assert not answering(store).waiting()
    measure(store)


def offset_at(monotonic_ns: int, offset_ns: int, error_ns: int, boot: str = BOOT) -> ClockOffset:
    return ClockOffset(
        monotonic_ns=monotonic_ns,
        offset_ns=offset_ns,
        monotonic_offset_ns=offset_ns,
        error_ns=error_ns,
        round_trips=8,
        reference_rank=0,
        reference_boot_id=boot,
    )


@given(
    st.integers(-200_000, 200_000),
    st.lists(st.tuples(st.integers(1, 10**11), st.integers(0, 10**7), st.floats(-1, 1)), min_size=2, max_size=20),
)
def test_the_true_drift_lies_within_its_bound(ppb: int, readings: list[tuple[int, int, float]]) -> None:
    drift, now_ns = Drift(), 5_000_000_000
    for number, (pause_ns, error_ns, share) in enumerate(readings):
        now_ns += pause_ns
        measured = offset_at(now_ns, ppb * now_ns // 10**9 + round(share * error_ns), error_ns)
        found = drift.add(measured)
        assert dataclasses.replace(found, drift_ppb=None, drift_error_ppb=None) == measured
        assert (found.drift_ppb is None) == (number == 0)
        if found.drift_ppb is not None and found.drift_error_ppb is not None:
            # Two for the rounding of the offsets above.
            assert abs(found.drift_ppb - ppb) <= found.drift_error_ppb + 1 + 2 * 10**9 // pause_ns


def test_a_reference_that_was_started_again_begins_anew() -> None:
    drift = Drift()
    drift.add(offset_at(10**9, 0, 10))
    assert drift.add(offset_at(2 * 10**9, 5_000, 10, boot="other")).drift_ppb is None
    assert drift.add(offset_at(3 * 10**9, 5_100, 10, boot="other")).drift_ppb == 100
    with pytest.raises(ConfigError, match="interval must be a number of seconds above 0"):
        ClockSync(0)
