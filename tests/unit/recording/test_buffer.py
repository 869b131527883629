"""Limits of the record buffer: what counts as waiting, and what is refused beyond them; in C and in Python."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit import core
from tracekit.events import BEGIN, COUNTER, COUNTER_BYTES, RECORD_BYTES, SERIES_BYTES, WIDTH, size_bytes
from tracekit.recording import buffer as module
from tracekit.recording.buffer import RecordBuffer

PLENTY = 1 << 40


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.core), False], ids=["core", "python"])
def buffer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RecordBuffer:
    """A buffer with the records of the core, or with a list."""
    if request.param:
        assert core.record is not None
    else:
        monkeypatch.setattr(module, "new_records", list)
    return RecordBuffer()


def add_instants(buffer: RecordBuffer, count: int) -> None:
    label, track = buffer.label("instant"), buffer.new_track("track")
    for number in range(count):
        buffer.add(label, 1000 + number, -1, track)


def waiting(buffer: RecordBuffer) -> int:
    return len(buffer.records) // WIDTH


def test_byte_limit_counts_the_series_of_counters(buffer: RecordBuffer) -> None:
    limit_bytes = 100 * (RECORD_BYTES + COUNTER_BYTES + 3 * SERIES_BYTES)
    buffer.limit(PLENTY, limit_bytes, None)
    label = buffer.label("counter")
    for number in range(200):
        buffer.add(label, 1000 + number, COUNTER, {"a": 1.0, "b": 2.0, "c": 3.0})
    # Python rounds up the size of each counter to whole entries of its list.
    assert 0.9 * limit_bytes <= size_bytes(buffer.records) <= 1.01 * limit_bytes
    assert buffer.refused == (0, 200 - waiting(buffer))


def test_taken_records_count_as_waiting_until_the_writer_passes_them_on(buffer: RecordBuffer) -> None:
    buffer.limit(10, PLENTY, None)
    add_instants(buffer, 6)
    assert len(buffer.take(4 * WIDTH)) == 4 * WIDTH
    assert len(buffer.take(2 * WIDTH)) == 2 * WIDTH
    add_instants(buffer, 10)
    assert waiting(buffer) == 4
    buffer.hold(1, RECORD_BYTES)
    add_instants(buffer, 10)
    assert waiting(buffer) == 9


def test_taken_records_count_towards_the_byte_limit(buffer: RecordBuffer) -> None:
    buffer.limit(PLENTY, 10 * RECORD_BYTES, None)
    while sum(buffer.refused) == 0:
        add_instants(buffer, 1)
    most = waiting(buffer)
    buffer.take((most - 2) * WIDTH)
    add_instants(buffer, 10)
    assert waiting(buffer) == 2
    buffer.hold(0, 0)
    add_instants(buffer, most)
    assert waiting(buffer) == most


@pytest.mark.parametrize("limits", [(2, PLENTY), (PLENTY, 2 * RECORD_BYTES)], ids=["events", "bytes"])
def test_full_buffer_refuses_events_and_starts_of_slices_and_counts_both(
    buffer: RecordBuffer, limits: tuple[int, int]
) -> None:
    buffer.limit(*limits, None)
    while sum(buffer.refused) == 0:
        add_instants(buffer, 1)
    label: Any = buffer.label("slice")
    assert not buffer.add_edge(label, 2000, BEGIN, 1)
    assert sum(buffer.refused) == 2
    assert min(buffer.refused) >= 0
    if limits[0] == PLENTY:
        assert buffer.refused == (0, 2)
    else:
        assert waiting(buffer) == 2


def test_full_buffer_takes_an_event_when_waiting_made_room(buffer: RecordBuffer) -> None:
    def take_all() -> bool:
        buffer.take(len(buffer.records))
        buffer.hold(0, 0)
        return True

    buffer.limit(2, PLENTY, take_all)
    add_instants(buffer, 5)
    assert waiting(buffer) == 1
    assert buffer.refused == (0, 0)
