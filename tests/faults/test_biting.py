"""The harness itself: it holds for a good writer, notices each bad one, and says when a test does not bite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults import GOOD, Child, bites, left_in, opens, writers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

FLUSHED = """
    profiler = record()
    for number in range(3000):
        profiler.marker("n").counter({"n": number})
    profiler.flush()
    profiler.marker("open").start()
    profiler.flush()
    say("flushed")
    hear()
"""


@writers("loses silently", "object at close", "object form", "only whole slices", "python buffer", "tears records")
def test_what_was_flushed_opens_after_a_kill(tmp_path: Path, engine: Engine, writer: str) -> None:
    with bites(writer), Child(FLUSHED, tmp_path, writer=writer) as child:
        child.hear("flushed")
        child.kill()
        remains = left_in(tmp_path)
        opens(engine, remains)
        assert remains.values("n", "n") == list(range(3000))
        assert remains.open_slices() == ["open"]
        assert (remains.torn, remains.closed) == (b"", False)


def test_a_test_that_holds_for_a_bad_writer_fails() -> None:
    with bites(GOOD):
        pass
    with pytest.raises(AssertionError, match="does not bite"), bites("object form"):
        pass
    with pytest.raises(AssertionError, match="mine"), bites(GOOD):
        raise AssertionError("mine")
    with bites("object form"):
        raise AssertionError("mine")


def test_a_mistake_of_the_test_itself_is_no_bite() -> None:
    with pytest.raises(NameError), bites("object form"):
        raise NameError
