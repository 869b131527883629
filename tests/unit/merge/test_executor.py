"""The work of a merge, shared with workers: each task is done once, and the shared storage is clean afterwards."""

from __future__ import annotations

import pickle
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.merge_inputs import event, rank_trace, write
from tracekit.errors import MergeError, StorageError
from tracekit.merge import merge_traces
from tracekit.merge.execute import executor as merge_executor
from tracekit.merge.execute import part_store as stores
from tracekit.merge.execute.executor import MergeExecutor
from tracekit.merge.execute.part_store import PartStore, part_store
from tracekit.merge.execute.scratch import ScratchStore
from tracekit.storage import exists, filesystem_of, open_read, remove_all
from tracekit.worker_processes import process_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Deal(Executor):
    """Shared work whose batches a test finishes when it wants to. Work done here yields its number."""

    def __init__(self, stack: ExitStack, sizes: list[int], running: int, max_size: int = 10**9) -> None:
        self.started: list[list[int]] = []
        self.futures: list[Future[Any]] = []
        self.finished: list[int] = []
        store = stack.enter_context(ScratchStore())
        executor = MergeExecutor("", store, self, PartStore(""))
        executor.max_running = running
        self.results = executor.share(sizes, max_size, self._here, fail, int, list, self.finished.append)

    def _here(self, number: int, poll: Callable[[], None]) -> int:
        self.poll = poll
        return number

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        del fn, kwargs
        self.started.append(args[0])
        self.futures.append(Future())
        return self.futures[-1]

    def finish(self, index: int) -> None:
        self.futures[index].set_result(self.started[index])

    def unfinished(self) -> list[int]:
        return [index for index, future in enumerate(self.futures) if not future.done()]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_the_first_task_is_done_here_while_workers_begin_at_the_end(stack: ExitStack) -> None:
    deal = Deal(stack, [10] * 5, 2)
    assert next(deal.results) == 0
    assert deal.started == [[4], [3]]
    deal.finish(0)
    deal.poll()
    assert deal.started == [[4], [3], [2]]
    assert deal.finished == [10]
    assert next(deal.results) == 1
    deal.finish(2)
    deal.finish(1)
    assert list(deal.results) == [2, 3, 4]


def test_small_tasks_go_to_a_worker_together_and_fewer_at_the_end(stack: ExitStack) -> None:
    deal = Deal(stack, [1] * 1000, 1)
    next(deal.results)
    while deal.started[-1][0] > 1:
        deal.finish(len(deal.started) - 1)
        deal.poll()
    lengths = [len(batch) for batch in deal.started]
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], lengths[-1]) == (249, 1)
    assert len(lengths) < 40


@given(st.lists(st.integers(0, 20), max_size=40), st.integers(0, 4), st.integers(1, 30), st.randoms())
def test_every_task_is_done_once_and_the_results_are_in_order(
    sizes: list[int], running: int, max_size: int, random: Any
) -> None:
    with ExitStack() as stack:
        deal = Deal(stack, sizes, running, max_size)
        found: list[int] = []
        while len(found) + sum(map(len, deal.started)) < len(sizes):
            found.append(next(deal.results))
            unfinished = deal.unfinished()
            for index in random.sample(unfinished, random.randint(0, len(unfinished))):
                deal.finish(index)
        for index in deal.unfinished():
            deal.finish(index)
        assert [*found, *deal.results] == list(range(len(sizes)))
        assert running or not deal.started
        assert sum(deal.finished) == sum(sizes[number] for batch in deal.started for number in batch)


def fail(*_: object) -> None:
    raise MergeError("no such luck")


def test_the_error_of_a_worker_is_raised_at_the_next_poll(tmp_path: Path) -> None:
    polls: list[Callable[[], None]] = []
    with ThreadPoolExecutor(1) as executor, ScratchStore(str(tmp_path)) as store:
        parts = PartStore(str(tmp_path))
        with parts, MergeExecutor(str(tmp_path), store, executor, parts) as workers:
            results = workers.share([1, 1], 1, lambda _, poll: polls.append(poll), fail, int, list, lambda _: None)
            next(results)
            parts.check()
            wait(list(workers._running))
            with pytest.raises(MergeError, match="no such luck"):
                polls[0]()
        # Whoever still works for this merge is told that it ended.
        with pytest.raises(MergeError, match="the merge was ended"):
            parts.check()


ROOT = "memory://remote-parts"
OUTPUT = f"{ROOT}/merged.json"
INPUTS = [f"run/rank{rank}.json" for rank in range(5)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Rank traces with slices that overlap, here and on the remote storage."""
    filesystem, inner = filesystem_of(ROOT)
    filesystem.makedirs(f"{inner}/run", exist_ok=True)
    slices = [event(f"slice {number}", 2 * number, 3 + number % 3) for number in range(600)]
    for path in write(tmp_path, {name: rank_trace(*slices, rank=rank) for rank, name in enumerate(INPUTS)}):
        filesystem.put_file(path, f"{inner}/run/{path.rpartition('/')[2]}")
    yield tmp_path
    remove_all(ROOT)


@pytest.fixture
def merge_remotely(folder: Path) -> Iterator[Any]:
    """Merge the rank traces on the remote storage by workers of this process."""
    with ThreadPoolExecutor(3) as executor:
        yield lambda output=OUTPUT, **options: merge_traces(output, [f"{ROOT}/run"], executor=executor, **options)


def names() -> list[str]:
    filesystem, inner = filesystem_of(ROOT)
    return [str(name).removeprefix(inner).lstrip("/") for name in filesystem.find(inner)]


@pytest.mark.parametrize("ending", [".json", ".json.gz", ".pftrace", ".tar"])
def test_the_output_is_that_of_a_merge_here(folder: Path, merge_remotely: Any, ending: str) -> None:
    local = folder / f"merged{ending}"
    report = merge_traces(str(local), [str(folder / "run")])
    remote = merge_remotely(f"{ROOT}/merged{ending}")
    with open_read(f"{ROOT}/merged{ending}") as file:
        assert file.read() == local.read_bytes()
    assert remote.overlaps_moved == report.overlaps_moved
    assert remote.events_out == report.events_out
    assert names() == sorted([f"merged{ending}", *INPUTS])


def test_a_strict_merge_that_is_refused_leaves_nothing(merge_remotely: Any) -> None:
    filesystem, inner = filesystem_of(ROOT)
    filesystem.pipe_file(f"{inner}/run/rank7.json", b'[{"ph": "X", "name": ')
    with pytest.raises(MergeError, match="strict"):
        merge_remotely(strict=True)
    assert names() == [*INPUTS, "run/rank7.json"]


def test_an_output_that_came_meanwhile_is_not_replaced(merge_remotely: Any) -> None:
    filesystem, inner = filesystem_of(ROOT)

    def progress(share: float, _: str) -> None:
        if share > 0.9 and not exists(OUTPUT):
            filesystem.pipe_file(f"{inner}/merged.json", b"another")

    with pytest.raises(StorageError, match="already exists"):
        merge_remotely(progress=progress)
    assert filesystem.cat_file(f"{inner}/merged.json") == b"another"
    assert names() == sorted(["merged.json", *INPUTS])


def test_a_scratch_space_that_fails_is_not_the_fault_of_an_input(
    merge_remotely: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upload(_: str, url: str) -> None:
        raise StorageError(f"{url}: full")

    monkeypatch.setattr(stores, "upload", upload)
    with pytest.raises(MergeError, match=r"the scratch space of the merge cannot be written: .*full"):
        merge_remotely()
    assert names() == INPUTS


@pytest.mark.usefixtures("folder")
def test_a_worker_that_comes_too_late_takes_away_what_it_wrote() -> None:
    parts = PartStore(f"{ROOT}/scratch/")
    with pytest.raises(MergeError, match="the merge was ended"), parts.create() as (file, _):
        file.write(b"part")
    with pytest.raises(MergeError, match="the merge was ended"):
        merge_executor._write_part([], parts)
    [found] = merge_executor._probe_all([f"{ROOT}/run/rank0.json"], parts)
    with pytest.raises(MergeError, match="the merge was ended"):
        raise pickle.loads(found)
    assert names() == INPUTS


@pytest.mark.parametrize("is_remote", [True, False])
def test_long_work_ends_soon_after_the_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_remote: bool) -> None:
    parts = PartStore(f"{ROOT}/scratch/" if is_remote else str(tmp_path))
    with parts:
        monkeypatch.setattr(type(parts), "check_s", 1000)
        later = merge_executor._checker(parts)
        later(1)
        monkeypatch.setattr(type(parts), "check_s", -1.0)
        soon = merge_executor._checker(parts)
        soon(1)
        parts.end()
        later(1)  # not yet due
        with pytest.raises(MergeError, match="the merge was ended"):
            soon(1)


def test_workers_of_a_remote_output_share_its_storage_unless_they_are_processes_of_this_machine() -> None:
    with ThreadPoolExecutor(1) as threads, process_pool(2) as processes:
        assert part_store("s3://bucket/out.json", threads, "folder").is_remote
        assert not part_store("s3://bucket/out.json", processes, "folder").is_remote
        assert not part_store("out.json", threads, "folder").is_remote
