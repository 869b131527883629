"""Fault tests: real faults, and a promise that is asserted on the file that remains.

A test runs a recording script in a process of its own (`Child`), does something bad to it, and looks at what it left::

    def test_what_was_flushed_opens_after_a_kill(tmp_path, engine):
        with Child('''
            profiler = record()
            with profiler.marker("step"):
                pass
            profiler.flush()
            say("flushed")
            hear()
        ''', tmp_path) as child:
            child.hear("flushed")
            child.kill()
            remains = opened(engine, tmp_path)
            assert remains.count("X") == 1

The words of the promises: a file *opens* when Perfetto's engine loads it unmodified, without an error, and with as many slices
as there are in it; the *loss window* begins with the last delivery, which the file must hold; the *identity* is
``emitted == recorded + dropped``. `test_biting` runs tests with deliberately bad writers (`bad_writers`), where they must fail.
"""

from __future__ import annotations

from tests.faults.processes import Child, wait_until
from tests.faults.remains import Remains, left_in, opened, opens, read_trace
from tests.faults.tally import Tally
from tests.faults.writers import in_process_writer

__all__ = ["Child", "Remains", "Tally", "in_process_writer", "left_in", "opened", "opens", "read_trace", "wait_until"]
