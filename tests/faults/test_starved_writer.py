"""K7: the writer gets no turn, because other code keeps the interpreter lock; the recording thread writes by itself then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults import Child, opened, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

# What keeps the interpreter lock for good: C code that never lets go of it, and Python code that is not asked to.
KEEPS_THE_LOCK = {
    "catastrophic regex": "re.match(r'(a+)+$', 'a' * 60 + 'b')",
    "python loop": "collections.deque(itertools.repeat(0), maxlen=0)",
}


@pytest.mark.parametrize("hang", KEEPS_THE_LOCK)
def test_what_is_recorded_while_the_writer_is_starved_is_on_disk_at_once(
    tmp_path: Path, engine: Engine, hang: str
) -> None:
    """C code that keeps the interpreter lock starves every other thread; the recording thread must write by itself then."""
    program = f"""
        import collections, itertools, re
        from tracekit.recording import writer
        # A recording thread waits 50 ms at most, which on a loaded machine may be over before the writer had a processor.
        writer._WAIT_S = writer._BLOCKED_S = 60.0
        profiler = record()
        marker = profiler.marker("in the hang")
        profiler.flush()
        sys.setswitchinterval(1000)  # so that the writer gets no turn between the two pieces of C code
        say("starving")
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            re.match(r"(a+)+$", "a" * 18 + "b")
        marker.start()
        tally[2] = 1
        {KEEPS_THE_LOCK[hang]}
    """
    with Child(program, tmp_path) as child:
        child.hear("starving")
        wait_until(lambda: child.tally[2])
        child.kill()
    remains = opened(engine, tmp_path)
    assert remains.open_slices() == ["in the hang"]
