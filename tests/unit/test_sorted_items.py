"""Items that are put in order with bounded memory."""

from __future__ import annotations

import pickle
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.errors import StorageError
from tracekit.merge.sorted_items import SortedItems

ITEMS = st.lists(st.tuples(st.integers(-(2**70), 2**70), st.integers(0, 3), st.binary(max_size=5)), unique=True)


@given(ITEMS, st.sampled_from([0, 600, 1 << 20]))
def test_items_come_in_order_as_often_as_wanted(items: list[tuple[Any, ...]], memory_bytes: int) -> None:
    held = SortedItems(memory_bytes)
    for item in items:
        held.add(item, len(item[2]))
    assert list(held) == list(held) == sorted(items)
    held.close()


def test_only_what_may_be_held_is_in_memory() -> None:
    held = SortedItems(100_000)
    for number in range(5_000):
        held.add((-number, b"x" * 100), 100)
        assert len(held._items) * 350 <= 100_350
    assert [number for number, _ in held] == list(range(-4_999, 1))
    held.close()
    assert list(held) == []


def test_it_can_be_sent_to_another_process_while_it_is_empty() -> None:
    held = pickle.loads(pickle.dumps(SortedItems()))
    held.add((1,), 0)
    assert list(held) == [(1,)]


def test_no_room_for_the_file_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(StorageError, match=r"no room for temporary data in .*No space left"):
        SortedItems(0).add((1,), 0)
