"""Fault tests: real faults, and a promise that is asserted on the file that remains.

A test runs a recording script in a process of its own (`Child`), does something bad to it, and looks at what it left::

    @writers("object at close", "python buffer")
    def test_what_was_flushed_opens_after_a_kill(tmp_path, engine, writer):
        with bites(writer), Child('''
            profiler = record()
            with profiler.marker("step"):
                pass
            profiler.flush()
            say("flushed")
            hear()
        ''', tmp_path, writer=writer) as child:
            child.hear("flushed")
            child.kill()
            remains = left_in(tmp_path)
            opens(engine, remains)
            assert remains.count("X") == 1

The words of the promises: a file *opens* when Perfetto's engine loads it unmodified, without an error, and with as many slices
as there are in it; the *loss window* begins with the last delivery, which the file must hold; the
*identity* is ``emitted == recorded + dropped``. Each test is also run against deliberately bad writers
(`tests.faults.bad_writers`) and must fail there: see `writers` and `bites`.
"""

from __future__ import annotations

from tests.faults.bad_writers import GOOD
from tests.faults.biting import bites, in_the_long_run, writers
from tests.faults.processes import Child, wait_until
from tests.faults.remains import Remains, left_in, opens, read_trace
from tests.faults.tally import Tally

__all__ = [
    "GOOD",
    "Child",
    "Remains",
    "Tally",
    "bites",
    "in_the_long_run",
    "left_in",
    "opens",
    "read_trace",
    "wait_until",
    "writers",
]
