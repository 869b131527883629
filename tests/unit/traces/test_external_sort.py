"""Items that are sorted with bounded memory."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.errors import StorageError
from tracekit.traces.external_sort import ExternalSort

if TYPE_CHECKING:
    from pathlib import Path

ITEMS = st.lists(st.tuples(st.integers(-(2**70), 2**70), st.integers(0, 3), st.binary(max_size=5)), unique=True)


@given(ITEMS, st.sampled_from([0, 600, 1 << 20]))
def test_items_come_in_order_as_often_as_wanted(items: list[tuple[Any, ...]], memory_bytes: int) -> None:
    sort = ExternalSort(None, memory_bytes)
    for item in items:
        sort.add(item, len(item[2]))
    assert list(sort) == list(sort) == sorted(items)
    sort.close()


def test_only_what_the_limit_allows_is_in_memory() -> None:
    sort = ExternalSort(None, 100_000)
    for number in range(5_000):
        sort.add((-number, b"x" * 100), 100)
        assert len(sort._items) * 350 <= 100_350
    assert [number for number, _ in sort] == list(range(-4_999, 1))
    sort.close()
    assert list(sort) == []


def test_it_can_be_sent_to_another_process_while_it_is_empty() -> None:
    sort = pickle.loads(pickle.dumps(ExternalSort()))
    sort.add((1,))
    assert list(sort) == [(1,)]


def test_no_room_for_the_file_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"no room for temporary data in .*missing: .*No such file"):
        ExternalSort(str(tmp_path / "missing"), 0).add((1,))
