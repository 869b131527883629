"""Merged traces are kept as long as there is room, and known by what went into them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tracekit.errors import StorageError
from tracekit.traces.trace_store import Entry
from tracekit.view.serve.store import Store, key_of

if TYPE_CHECKING:
    from pathlib import Path


def keep(store: Store, key: str, size_bytes: int, age_s: int) -> None:
    path = store.path(key)
    path.write_bytes(bytes(size_bytes))
    path.with_suffix(".report").write_text('{"bytes": 1}')
    os.utime(path.with_suffix(".report"), (1_000_000 - age_s,) * 2)


def test_a_key_is_of_names_sizes_times_and_objects_in_any_order() -> None:
    first, second = Entry("a", 1, 2, "x"), Entry("b", 1, 2, "x")
    key = key_of([first, second])
    assert key == key_of([second, first])
    others = [Entry("c", 1, 2, "x"), Entry("a", 9, 2, "x"), Entry("a", 1, 9, "x"), Entry("a", 1, 2, "y")]
    keys = {key, key_of([first]), *(key_of([other, second]) for other in others)}
    assert len(keys) == 6
    assert all(len(each) == 32 for each in keys)


def test_what_was_asked_for_longest_ago_goes_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "cache", 250)
    assert (tmp_path / "new" / "cache").stat().st_mode & 0o777 == 0o700
    keys = [character * 32 for character in "abcd"]
    for age_s, key in enumerate(keys):
        keep(store, key, 100, age_s)
    (store.folder / "mine.txt").write_text("stays")
    changed_ns = store.path(keys[3]).stat().st_ctime_ns
    assert store.find(keys[3]) == {"bytes": 1}, "and so it is the last one that was asked for"
    assert store.path(keys[3]).stat().st_ctime_ns == changed_ns, "its event table stays valid"

    store.make_room(keys[1])

    assert [key for key in keys if store.find(key) is not None] == [keys[1], keys[3]]
    assert (store.folder / "mine.txt").exists()
    assert {path.suffix for path in store.folder.iterdir()} == {".gz", ".report", ".txt"}
    assert len(list(store.folder.iterdir())) == 5


def test_what_is_not_there_or_broken_is_not_found(tmp_path: Path) -> None:
    store = Store(tmp_path, 10)
    assert store.find("a" * 32) is None
    store.path("a" * 32).write_bytes(b"x")
    assert store.find("a" * 32) is None, "no report"
    store.path("a" * 32).with_suffix(".report").write_text("{")
    assert store.find("a" * 32) is None
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be made"):
        Store(tmp_path / "file" / "cache", 10)
