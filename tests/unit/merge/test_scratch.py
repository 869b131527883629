"""Scratch folders of dead merges are removed, and no other folders."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from tests.bad_traces import rank_trace, slice_
from tracekit import core
from tracekit.errors import StorageError
from tracekit.merge import merge_traces
from tracekit.merge.execute import scratch
from tracekit.merge.execute.scratch import OWNER, ScratchFolder, remove_stale
from tracekit.traces.external_sort import ExternalSort

if TYPE_CHECKING:
    from pathlib import Path

DAY_S = 24 * 3600


def left_by_a_dead_merge(parent: Path, **changed: Any) -> Path:
    """Make what a killed merge leaves: its lock is gone with it. ``changed`` is said by its owner instead of the truth."""
    made = ScratchFolder(parent, "out.json")
    (made.path / "part-0").write_bytes(b"part")
    owner = json.loads((made.path / OWNER).read_bytes())
    (made.path / OWNER).write_text(json.dumps({**owner, **changed}))
    os.close(made._lock)
    made._lock = -1
    return made.path


def make_old(folder: Path) -> None:
    before_s = time.time() - 3 * DAY_S
    for path in (*folder.iterdir(), folder):
        os.utime(path, (before_s, before_s))


@pytest.fixture(autouse=True)
def boot_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "boot_id", lambda: "this boot")


@pytest.mark.parametrize("at", ["out.json", "deep/er/out.json"])
def test_a_merge_removes_what_a_dead_one_left(tmp_path: Path, at: str) -> None:
    output = tmp_path / at
    output.parent.mkdir(parents=True, exist_ok=True)
    left = left_by_a_dead_merge(output.parent)
    # Links in it go, and their targets stay.
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"mine")
    (left / "to-folder").symlink_to(tmp_path / "precious", target_is_directory=True)
    (left / "to-file").symlink_to(tmp_path / "precious" / "file")
    (tmp_path / "rank0.json").write_bytes(rank_trace(slice_(1, 2, "a")))
    merge_traces(str(output), [str(tmp_path / "rank0.json")])
    assert [path.name for path in output.parent.iterdir() if path.name.startswith(".")] == []
    assert (tmp_path / "precious" / "file").read_bytes() == b"mine"


def test_merge_without_scratch_space_fails_instead_of_leaving_the_input_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: ExternalSort) -> None:
        raise StorageError("rows: cannot be written: No space left on device")

    monkeypatch.setattr(core, "merge", None)
    monkeypatch.setattr(ExternalSort, "__iter__", full)
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_bytes(rank_trace(slice_(1, 2, "a")))
    with pytest.raises(StorageError, match="No space left"):
        merge_traces(str(tmp_path / "out.json"), [str(tmp_path)])
    assert not (tmp_path / "out.json").exists()


def test_what_belongs_to_a_merge_that_runs_stays(tmp_path: Path) -> None:
    first = ScratchFolder(tmp_path, "out.json")
    (first.path / "part-0").write_bytes(b"part")
    make_old(first.path)
    remove_stale(tmp_path, "out.json")
    assert {path.name for path in first.path.iterdir()} == {OWNER, "part-0"}
    first.remove()


@pytest.mark.parametrize(
    "changed", [{"boot_id": "another boot"}, {"boot_id": None}, {"device": -1}, {"locked": False}, {"locked": 1}]
)
def test_what_cannot_be_judged_stays_and_is_named_when_it_is_old(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changed: dict[str, Any]
) -> None:
    left = left_by_a_dead_merge(tmp_path, host="node7", pid=4711, **changed)
    with caplog.at_level(logging.WARNING, "tracekit"):
        remove_stale(tmp_path, "out.json")
        assert caplog.messages == []
        make_old(left)
        remove_stale(tmp_path, "out.json")
        [said] = caplog.messages
        assert f"{left}: left by a merge (process 4711 on node7)" in said
        assert "nothing was written there for 72 hours" in said
        # One file that is written to is enough to be at work.
        (left / "part-1").write_bytes(b"")
        remove_stale(tmp_path, "out.json")
    assert len(caplog.messages) == 1
    assert {path.name for path in left.iterdir()} == {OWNER, "part-0", "part-1"}


def test_without_locks_a_folder_is_made_and_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", mock.Mock(side_effect=OSError(38, "no locks here")))
        left = left_by_a_dead_merge(tmp_path)
    assert json.loads((left / OWNER).read_bytes())["locked"] is False
    remove_stale(tmp_path, "out.json")
    assert left.is_dir()


def test_only_folders_of_that_output_are_looked_at(tmp_path: Path) -> None:
    left = left_by_a_dead_merge(tmp_path)
    others = [
        ".other.json.abcdefgh.parts",
        ".out.json.b.abcdefgh.parts",
        ".out.json.abcdefgh.tmp",
        ".out.json.abcdefghi.parts",
        ".out.json.ABCDEFGH.parts",
        ".out.json..parts",
        "out.json.abcdefgh.parts",
    ]
    for name in others:
        (tmp_path / name).mkdir()
        (tmp_path / name / OWNER).write_bytes((left / OWNER).read_bytes())
    remove_stale(tmp_path, "out.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)
    assert all((tmp_path / name / OWNER).is_file() for name in others)


OWNERS: dict[str, bytes | None] = {
    "none": None,
    "empty": b"",
    "array": b"[]",
    "no json": b"no json",
    "other keys": b'{"host":"here"}',
    "newer": b'{"tracekit_merge_scratch":2}',
    "long": b'{"a":"' + b"x" * 5000 + b'"}',
}


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
def test_a_folder_that_merely_looks_alike_stays(tmp_path: Path, owner: bytes | None) -> None:
    alike = tmp_path / ".out.json.abcdefgh.parts"
    alike.mkdir()
    (alike / "mine").write_bytes(b"mine")
    if owner is not None:
        (alike / OWNER).write_bytes(owner)
    make_old(alike)
    remove_stale(tmp_path, "out.json")
    assert (alike / "mine").read_bytes() == b"mine"


def test_a_file_or_a_pipe_that_looks_alike_stays(tmp_path: Path) -> None:
    (tmp_path / ".out.json.abcdefgh.parts").write_bytes(b"mine")
    folder = tmp_path / ".out.json.bcdefghi.parts"
    folder.mkdir()
    os.mkfifo(folder / OWNER)
    remove_stale(tmp_path, "out.json")
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_is_followed_through_links(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = left_by_a_dead_merge(elsewhere)
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / ".out.json.abcdefgh.parts").symlink_to(target, target_is_directory=True)
    owner_by_link = beside / ".out.json.bcdefghi.parts"
    owner_by_link.mkdir()
    (owner_by_link / OWNER).symlink_to(target / OWNER)
    remove_stale(beside, "out.json")
    assert {path.name for path in target.iterdir()} == {OWNER, "part-0"}
    assert len(list(beside.iterdir())) == 2


def test_a_folder_that_cannot_be_emptied_keeps_its_owner(tmp_path: Path) -> None:
    left = left_by_a_dead_merge(tmp_path)
    (left / "folder").mkdir()  # nothing that a merge makes
    remove_stale(tmp_path, "out.json")
    assert {path.name for path in left.iterdir()} >= {OWNER, "folder"}


@pytest.mark.parametrize(
    ("name", "value"), [("scratch.boot_id", None), ("os.geteuid", 4711)], ids=["no boot id", "another user's"]
)
def test_what_cannot_be_known_to_be_of_a_dead_merge_of_this_user_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    left = left_by_a_dead_merge(tmp_path)
    monkeypatch.setattr(name.replace("scratch", scratch.__name__), lambda: value)
    remove_stale(tmp_path, "out.json")
    assert left.is_dir()
