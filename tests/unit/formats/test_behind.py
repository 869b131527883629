"""Behind: everything is put away once and in order, and no error is lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.formats.gzip_codec import Behind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def give_all(put: Callable[[int], object], items: Iterable[int]) -> None:
    with Behind[int](put) as behind:
        for item in items:
            behind.give(item)


def test_items_are_put_away_in_order_by_another_thread() -> None:
    found: list[tuple[int, int]] = []
    with Behind[int](lambda item: found.append((item, threading.get_ident()))) as behind:
        for item in range(100):
            behind.give(item)
    assert [item for item, _ in found] == list(range(100))
    assert len({thread for _, thread in found} - {threading.get_ident()}) == 1


def test_few_items_wait_at_a_time() -> None:
    may_go = threading.Semaphore(5)
    given: list[int] = []

    def items() -> Iterator[int]:
        for item in range(10):
            given.append(item)
            yield item

    giver = threading.Thread(target=give_all, args=(lambda _: may_go.acquire(), items()))
    giver.start()
    giver.join(0.2)
    assert giver.is_alive()
    assert len(given) <= 9  # five are put away, three wait, and one is to be given
    may_go.release(5)
    giver.join(60)
    assert not giver.is_alive()


@pytest.mark.parametrize("count", [100, 4], ids=["of an early item", "of the last item"])
def test_an_error_comes_back_and_what_waits_is_left(count: int) -> None:
    found: list[int] = []

    def put(item: int) -> None:
        if item == 3:
            raise OSError(28, "No space left on device")
        found.append(item)

    with pytest.raises(OSError, match="No space left"):
        give_all(put, range(count))
    assert found[:3] == [0, 1, 2]
    assert len(found) < 10


def test_an_error_of_the_caller_is_not_held_up_by_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def put(item: int) -> None:
        begun.set()
        go_on.wait(60)
        found.append(item)

    def items() -> Iterator[int]:
        yield from (1, 2)
        begun.wait(60)
        raise KeyError

    shutdown = ThreadPoolExecutor.shutdown

    def shut_down(self: ThreadPoolExecutor, **options: Any) -> None:
        shutdown(self, **{**options, "wait": False})
        go_on.set()  # only now, when what waits has been taken away
        shutdown(self)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", shut_down)

    with pytest.raises(KeyError):
        give_all(put, items())
    assert found == [1]


@pytest.mark.parametrize("threads", [0, 2])
def test_where_no_thread_can_be_started_the_caller_puts_away(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    submit, submitted = ThreadPoolExecutor.submit, []

    def refuse(self: ThreadPoolExecutor, *args: Any) -> Any:
        submitted.append(args)
        if len(submitted) > threads:
            raise RuntimeError("can't start new thread")
        return submit(self, *args)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    found: list[int] = []
    give_all(found.append, range(10))
    assert found == list(range(10))
    assert len(submitted) == threads + 1
