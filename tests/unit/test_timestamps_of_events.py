"""Which training timestamp belongs to a time: kept by the training thread, shortened by the writer, asked for by any."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.events import Timestamps
from tracekit.timestamp import Timestamp


@pytest.fixture
def timestamps() -> Timestamps:
    """Of a hundred batches of 10 ns."""
    found = Timestamps(Timestamp())
    for batch in range(1, 101):
        found.append(batch * 10, Timestamp(batch=batch))
    return found


def test_each_time_has_the_timestamp_that_was_current(timestamps: Timestamps) -> None:
    assert [int(timestamps.at(time_ns).batch) for time_ns in (-5, 0, 9, 10, 999, 1000, 10**18)] == [
        *(0, 0, 0, 1, 99, 100, 100)
    ]


def test_what_is_forgotten_is_what_no_later_time_needs(timestamps: Timestamps) -> None:
    timestamps.forget_before(905)
    assert [int(stamp.batch) for _, stamp in timestamps.since(905)] == list(range(90, 101))
    assert int(timestamps.at(905).batch) == 90
    assert int(timestamps.at(5).batch) == 90


def test_a_thread_that_asks_while_the_writer_forgets_gets_its_timestamp(
    timestamps: Timestamps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gave the one of another batch, or an IndexError in the training loop, where a handler is called inline."""
    forgotten = False

    def time_of(entry: tuple[int, Any]) -> int:
        nonlocal forgotten
        if not forgotten:
            forgotten = True
            timestamps.forget_before(900)
        return entry[0]

    monkeypatch.setattr("tracekit.events._time", time_of)
    assert int(timestamps.at(905).batch) == 90
    assert forgotten
