"""Merges whose workers share a remote storage only: the same output, and nothing left behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.integration.test_cli_merge import rank_trace, slice_
from tracekit.errors import MergeError, StorageError
from tracekit.merge import merge_traces
from tracekit.merge import remote_parts as rooms
from tracekit.spill import Run
from tracekit.storage import exists, filesystem_of, open_read, remove_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOT = "memory://remote-parts"
RANKS = 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rank traces with slices that overlap, here and on the remote storage."""
    filesystem, inner = filesystem_of(ROOT)
    filesystem.makedirs(f"{inner}/run", exist_ok=True)
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in range(RANKS):
        slices = [slice_(rank, f"slice {number}", 2 * number, 3 + number % 3) for number in range(600)]
        (folder / f"rank{rank}.json").write_text(rank_trace(rank, *slices))
        filesystem.put_file(str(folder / f"rank{rank}.json"), f"{inner}/run/rank{rank}.json")
    return folder


@pytest.fixture(autouse=True)
def storage() -> Iterator[None]:
    yield
    remove_all(ROOT)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as executor:
        yield executor


def names() -> list[str]:
    filesystem, inner = filesystem_of(ROOT)
    return [str(name).removeprefix(inner).lstrip("/") for name in filesystem.find(inner)]


INPUTS = [f"run/rank{rank}.json" for rank in range(RANKS)]


@pytest.mark.parametrize("ending", [".json", ".json.gz", ".pftrace", ".tar"])
@pytest.mark.parametrize("join_parts", [2, 64])
def test_the_output_is_that_of_a_merge_here(
    folder: Path, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, ending: str, join_parts: int
) -> None:
    monkeypatch.setattr(rooms, "_JOIN_PARTS", join_parts)
    # Groups are for storages that join by themselves; that the way is right can be seen on any.
    monkeypatch.setattr(rooms, "joins_by_itself", lambda _: True)
    local = folder.parent / f"merged{ending}"
    report = merge_traces(str(local), [str(folder)])
    output = f"{ROOT}/merged{ending}"
    remote = merge_traces(output, [f"{ROOT}/run"], executor=executor)
    with open_read(output) as file:
        assert file.read() == local.read_bytes()
    assert remote.overlaps_moved == report.overlaps_moved
    assert remote.events_out == report.events_out
    assert names() == sorted([f"merged{ending}", *INPUTS])


def test_what_travels_holds_no_times(folder: Path, executor: ThreadPoolExecutor) -> None:
    with rooms.RemoteWorkshop(f"{ROOT}/merged.json", executor) as workshop:
        scanner = workshop.scanner([f"{ROOT}/run/rank0.json"])
        found = scanner(f"{ROOT}/run/rank0.json", None)
        runs = [
            run
            for process in found.processes.values()
            for thread in process.threads.values()
            for run in (*thread.slices.whole, *thread.slices.pairs)
        ]
        assert sum(run.length for run in runs) == 600
        assert all(isinstance(run, Run) and run.path.startswith(f"{ROOT}/.merged.json.") for run in runs)


def test_a_strict_merge_that_is_refused_leaves_nothing(folder: Path, executor: ThreadPoolExecutor) -> None:
    filesystem, inner = filesystem_of(ROOT)
    filesystem.pipe_file(f"{inner}/run/rank7.json", b'[{"ph": "X", "name": ')
    with pytest.raises(MergeError, match="strict"):
        merge_traces(f"{ROOT}/merged.json", [f"{ROOT}/run"], strict=True, executor=executor)
    assert names() == [*INPUTS, "run/rank7.json"]


def test_an_output_that_came_meanwhile_is_not_replaced(folder: Path, executor: ThreadPoolExecutor) -> None:
    filesystem, inner = filesystem_of(ROOT)

    def progress(share: float, _: str) -> None:
        if share > 0.9 and not exists(f"{ROOT}/merged.json"):
            filesystem.pipe_file(f"{inner}/merged.json", b"another")

    with pytest.raises(StorageError, match="already exists"):
        merge_traces(f"{ROOT}/merged.json", [f"{ROOT}/run"], progress=progress, executor=executor)
    assert filesystem.cat_file(f"{inner}/merged.json") == b"another"
    assert names() == sorted(["merged.json", *INPUTS])


def test_a_scratch_space_that_fails_is_not_the_fault_of_an_input(
    folder: Path, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upload(_: str, url: str) -> None:
        raise StorageError(f"{url}: full")

    monkeypatch.setattr(rooms, "upload", upload)
    with pytest.raises(MergeError, match=r"the scratch space of the merge cannot be written: .*full"):
        merge_traces(f"{ROOT}/merged.json", [f"{ROOT}/run"], executor=executor)
    assert names() == INPUTS


def test_a_worker_that_comes_too_late_takes_away_what_it_wrote(folder: Path, tmp_path: Path) -> None:
    scratch = rooms._Scratch(f"{ROOT}/scratch/")
    file = tmp_path / "part"
    file.write_bytes(b"part")
    with pytest.raises(MergeError, match="the merge was ended"):
        scratch.put(str(file), scratch.new("part"))
    with pytest.raises(MergeError, match="the merge was ended"):
        rooms._scan_job(f"{ROOT}/run/rank0.json", scratch)
    with pytest.raises(MergeError, match="the merge was ended"):
        rooms._join_job([], scratch)
    assert names() == INPUTS


def test_long_work_ends_soon_after_the_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = rooms._Scratch(f"{ROOT}/scratch/")
    check = scratch.checker()
    check(1)  # not yet due
    monkeypatch.setattr(rooms, "_CHECK_S", -1.0)
    with pytest.raises(MergeError, match="the merge was ended"):
        scratch.checker()(1)


def test_who_works_together_on_what() -> None:
    with ThreadPoolExecutor(1) as threads:
        assert type(rooms.workshop_for("s3://bucket/out.json", threads)) is rooms.RemoteWorkshop
        assert type(rooms.workshop_for("out.json", threads)) is not rooms.RemoteWorkshop
        assert type(rooms.workshop_for("s3://bucket/out.json", None)) is not rooms.RemoteWorkshop
