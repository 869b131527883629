"""Tasks that are shared between this process and workers: each is done once, and in its place."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.errors import MergeError
from tracekit.merge.execute.executor import SharedWork, Workers
from tracekit.merge.execute.part_store import PartStore
from tracekit.merge.execute.scratch import ScratchStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Deal:
    """Shared work whose batches a test finishes when it wants to."""

    def __init__(self, stack: ExitStack, sizes: list[int], running: int, max_size: int = 10**9) -> None:
        workers = stack.enter_context(Workers(None, None))
        workers.max_running = running
        self.started: list[range] = []
        self.futures: list[Future[Any]] = []
        self.finished: list[int] = []
        store = stack.enter_context(ScratchStore())
        self.work = SharedWork(sizes, max_size, workers, self._start, store, self.finished.append)

    def _start(self, batch: range) -> Future[Any]:
        self.started.append(batch)
        self.futures.append(Future())
        return self.futures[-1]

    def finish(self, index: int) -> None:
        self.futures[index].set_result(list(self.started[index]))

    def unfinished(self) -> list[int]:
        return [index for index, future in enumerate(self.futures) if not future.done()]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(("sizes", "running"), [([5, 1, 7], 0), ([10], 8)], ids=["no workers", "a single task"])
def test_all_tasks_are_done_here_in_order(stack: ExitStack, sizes: list[int], running: int) -> None:
    deal = Deal(stack, sizes, running)
    assert [deal.work.take() for _ in range(len(sizes) + 1)] == [*range(len(sizes)), None]
    assert list(deal.work.results()) == []
    assert deal.started == []


def test_the_first_task_is_done_here_while_workers_begin_at_the_end(stack: ExitStack) -> None:
    deal = Deal(stack, [10] * 5, 2)
    assert deal.work.take() == 0
    assert deal.started == [range(4, 5), range(3, 4)]
    deal.finish(0)
    deal.work.poll()
    assert deal.started == [range(4, 5), range(3, 4), range(2, 3)]
    assert deal.finished == [10]
    assert deal.work.take() == 1
    assert deal.work.take() is None
    deal.finish(2)
    deal.finish(1)
    assert list(deal.work.results()) == [[2], [3], [4]]


def test_small_tasks_go_to_a_worker_together_and_fewer_at_the_end(stack: ExitStack) -> None:
    deal = Deal(stack, [1] * 1000, 1)
    deal.work.take()
    while deal.started[-1].start > 1:
        deal.finish(len(deal.started) - 1)
        deal.work.poll()
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
        found = []
        while (number := deal.work.take()) is not None:
            found.append(number)
            unfinished = deal.unfinished()
            for index in random.sample(unfinished, random.randint(0, len(unfinished))):
                deal.finish(index)
        assert found == list(range(len(found)))
        for index in deal.unfinished():
            deal.finish(index)
        for batch in deal.work.results():
            found += batch
        assert found == list(range(len(sizes)))
        assert sum(deal.finished) == sum(sizes[number] for batch in deal.started for number in batch)


def fail() -> None:
    raise MergeError("no such luck")


def test_the_error_of_a_worker_is_raised_at_the_next_poll(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor, ScratchStore(str(tmp_path)) as store:
        parts = PartStore(str(tmp_path))
        with Workers(executor, parts) as workers:
            submitted: list[Future[Any]] = []

            def start(_: range) -> Future[Any]:
                submitted.append(workers.submit(fail))
                return submitted[-1]

            work = SharedWork([1, 1], 1, workers, start, store, lambda _: None)
            assert work.take() == 0
            wait(submitted)
            with pytest.raises(MergeError, match="no such luck"):
                work.poll()
        # Whoever still works for this merge is told that it ended.
        with pytest.raises(MergeError, match="the merge was ended"):
            parts.check()
