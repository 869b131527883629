"""A row of tasks, shared between this process and the workers of an executor.

This process takes the first task left, the workers take batches from the end. So this process can write the result of each
of its tasks to its place in the output, and only the results of workers are copied. Without workers it does all tasks.
"""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import MergeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import BrokenExecutor, Executor, Future

    from tracekit.merge.execute.part_store import PartStore
    from tracekit.merge.execute.scratch import ScratchStore

_MAX_RUNNING: Final = 1024
"""Limit of batches in progress on an executor of unknown size. Each takes 10 to 30 kB here."""


class Workers:
    """The workers of an executor. Use it in a ``with``, which ends when none of them works for this merge any more.

    They stop when ``parts`` says that the merge has ended.

    Without workers, ``max_running`` is 0.
    """

    def __init__(self, executor: Executor | None, parts: PartStore | None) -> None:
        self._executor = executor
        self._parts = parts
        self._futures: set[Future[Any]] = set()
        self.max_running = 0
        if executor is not None:
            from tracekit.worker_processes import ProcessPool

            self.max_running = executor.workers - 1 if isinstance(executor, ProcessPool) else _MAX_RUNNING

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._parts is not None:
            self._parts.end()
        if not self._futures:
            return
        from concurrent.futures import wait  # loaded where there are workers

        for future in self._futures:
            future.cancel()
        wait(self._futures)

    def submit(self, function: Callable[..., Any], *args: object) -> Future[Any]:
        """Call a function on a worker."""
        from concurrent.futures import BrokenExecutor

        assert self._executor is not None
        try:
            future = self._executor.submit(function, *args)
        except BrokenExecutor as error:
            raise _died(error) from error
        self._futures.add(future)
        return future

    def result(self, future: Future[Any]) -> Any:
        """Return the result of a call, or raise its exception."""
        from concurrent.futures import BrokenExecutor

        self._futures.discard(future)
        try:
            return future.result()
        except BrokenExecutor as error:
            raise _died(error) from error


def _died(error: BrokenExecutor) -> MergeError:
    return MergeError(
        f"a worker of the merge ended before its work was done, perhaps killed for want of memory; nothing was written "
        f"({error}); try fewer workers"
    )


class SharedWork:
    """Tasks 0 to n - 1, done from both ends at the same time. Call `take` until it returns None, then iterate `results`.

    ``start`` submits a batch to a worker; ``finished`` is called with its size.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        max_size: int,
        workers: Workers,
        start: Callable[[range], Future[Any]],
        store: ScratchStore,
        finished: Callable[[int], None],
    ) -> None:
        self._sizes = sizes
        self._max_size = max_size
        self._workers = workers
        self._start = start
        self._store = store
        self._finished = finished
        self._first, self._end = 0, len(sizes)
        self._left = sum(sizes)
        self._batches: list[range] = []  # in the order they were submitted: the last tasks first
        self._running: dict[Future[Any], range] = {}
        self._done: SimpleQueue[Future[Any]] = SimpleQueue()
        self._stored: dict[int, int] = {}  # first task of a batch to the place of its result

    def take(self) -> int | None:
        """Return a task for this process, None when all tasks are taken."""
        number = self._first if self._first < self._end else None
        if number is not None:
            self._first += 1
            self._left -= self._sizes[number]
        self.poll()
        return number

    def poll(self) -> None:
        """Keep the workers busy. To be called now and then during a long task."""
        while not self._done.empty():
            self._receive()
        while self._first < self._end and len(self._running) < self._workers.max_running:
            self._submit()

    def results(self) -> Iterator[Any]:
        """Yield the results of the batches in the order of the tasks."""
        for batch in reversed(self._batches):
            while batch.start not in self._stored:
                self._receive()
            yield self._store.get(self._stored.pop(batch.start))

    def _submit(self) -> None:
        # Ever smaller batches, so that all end at about the same time.
        limit = min(self._max_size, self._left // (2 * (self._workers.max_running + 1)))
        start, size = self._end - 1, self._sizes[self._end - 1]
        while start > self._first and size + self._sizes[start - 1] <= limit:
            start -= 1
            size += self._sizes[start]
        batch = range(start, self._end)
        self._end = start
        self._left -= size
        self._batches.append(batch)
        future = self._start(batch)
        self._running[future] = batch
        future.add_done_callback(self._done.put)

    def _receive(self) -> None:
        future = self._done.get()
        batch = self._running.pop(future)
        self._stored[batch.start] = self._store.put(self._workers.result(future))
        self._finished(sum(self._sizes[number] for number in batch))
