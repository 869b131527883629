"""Sorted rows, in memory and in files, are the same rows."""

from __future__ import annotations

import pickle
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit import spill
from tracekit.errors import StorageError
from tracekit.merge.lanes import BEGIN, END, Slices, assign_lanes
from tracekit.spill import Lookup, RowSorter, Run, merged

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = st.lists(st.tuples(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1)), max_size=40)


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """Few rows are many here."""
    with mock.patch.object(spill, "MAX_ROWS", 7), mock.patch.object(spill, "_INLINE_ROWS", 2):
        yield


def all_rows(run: Run | None, count: int = 3) -> list[tuple[int, ...]]:
    return [] if run is None else [row for window in run.windows(count) for row in window]


@given(ROWS)
def test_a_sorter_gives_all_rows_in_order(rows: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path in (None, str(Path(folder) / "rows")):
            sorter = RowSorter(2, path)
            for row in rows:
                sorter.add(row)
            run = sorter.run()
            # Another process reads the same.
            assert all_rows(pickle.loads(pickle.dumps(run))) == sorted(rows)


@given(st.lists(ROWS, max_size=5), st.integers(1, 9))
def test_sources_are_merged(sources: list[list[tuple[int, int]]], count: int) -> None:
    def windows(rows: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
        rows = sorted(rows)
        return (rows[start : start + count] for start in range(0, len(rows), count))

    found = list(merged([windows(list(rows)) for rows in sources]))
    assert [row for rows in found for row in rows] == sorted(row for rows in sources for row in rows)


@given(st.dictionaries(st.integers(0, 60), st.integers(1, 9), min_size=1), st.lists(st.integers(-1, 61)))
def test_a_lookup_finds_what_is_there(table: dict[int, int], keys: list[int]) -> None:
    sorter = RowSorter(2, None)
    for row in table.items():
        sorter.add(row)
    run = sorter.run()
    assert run is not None
    lookup = Lookup(run)
    assert [lookup.get(key, 0) for key in keys] == [table.get(key, 0) for key in keys]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.sampled_from("XXXXBE")), max_size=40),
    st.integers(0, 2**32),
    st.integers(-3, 3),
)
def test_where_slices_go_does_not_depend_on_how_many_fit_in_memory(
    events: list[tuple[int, int, str]], seed: int, shift: int
) -> None:
    def moves(path: str | None, every: int) -> list[object]:
        parts = []
        for events_of_part in (events, random.Random(seed).sample(events, len(events))):
            slices = Slices()
            for number, (start, duration, phase) in enumerate(events_of_part):
                if phase == "X":
                    slices.rows.append((start, -start - duration))
                else:
                    slices.rows.append((start, 1, 1, BEGIN if phase == "B" else END))
                    slices.mixed = True
                if number % every == every - 1:
                    slices.settle(path)
            slices.finish(path)
            parts.append(slices)
        found = assign_lanes([(parts[0], 0), (parts[1], shift)], path)
        return [part and (all_rows(part.events), all_rows(part.starts), part.lanes, part.count) for part in found]

    with tempfile.TemporaryDirectory() as folder:
        assert moves(str(Path(folder) / "a"), 3) == moves(str(Path(folder) / "b"), 10) == moves(None, 1000)


def test_a_file_that_cannot_be_written_is_told_by_name(tmp_path: Path) -> None:
    sorter = RowSorter(1, str(tmp_path / "missing" / "rows"))
    for number in range(6):
        sorter.add((number,))
    with pytest.raises(StorageError, match="rows: cannot be written: No such file"):
        sorter.add((6,))
