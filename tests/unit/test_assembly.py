"""Parts that are made in any order stand in the output in theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tracekit.merge.assembly import Assembly, Task

if TYPE_CHECKING:
    from random import Random


@given(st.lists(st.binary(max_size=5), max_size=9), st.integers(1, 5), st.binary(max_size=3), st.randoms())
def test_the_output_does_not_depend_on_who_is_when_done(
    parts: list[bytes], workers: int, head: bytes, random: Random
) -> None:
    assembly = Assembly(len(parts), len(head))
    output = bytearray(head)
    files: dict[int, bytes] = {}
    running: list[Task] = []

    def write(at: int, part: bytes) -> None:
        output.extend(bytes(max(0, at + len(part) - len(output))))
        output[at : at + len(part)] = part

    while True:
        while len(running) < workers and (task := assembly.next()) is not None:
            running.append(task)
        if not running:
            break
        task = running.pop(random.randrange(len(running)))
        if task.at is None:
            files[task.number] = parts[task.number]
        else:
            write(task.at, files.pop(task.number) if task.made else parts[task.number])
        if not task.made:
            assembly.made(task.number, len(parts[task.number]))
    assert bytes(output) == head + b"".join(parts)
    assert assembly.at == len(output)
    assert not files


def test_one_worker_writes_all_in_place() -> None:
    assembly = Assembly(3, 10)
    for number in range(3):
        assert assembly.next() == Task(number, 10 + 5 * number)
        assembly.made(number, 5)
    assert assembly.next() is None


def test_two_workers_meet_in_the_middle() -> None:
    assembly = Assembly(4, 0)
    assert [assembly.next(), assembly.next()] == [Task(0, 0), Task(3, None)]
    assembly.made(0, 5)
    assembly.made(3, 5)
    assert [assembly.next(), assembly.next()] == [Task(1, 5), Task(2, None)]
    assembly.made(2, 5)
    assert assembly.next() is None  # where they go is not known before part 1 is there
    assembly.made(1, 7)
    assert [assembly.next(), assembly.next()] == [Task(2, 12, made=True), Task(3, 17, made=True)]
    assert assembly.at == 22
