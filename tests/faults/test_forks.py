"""F1, F2, F3: forks at any moment, and children that record and end in every way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.faults import Child, Remains, Tally, left_in, opens, processes, read_trace
from tests.faults.test_kills import assert_all_delivered_is_there
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

OWN = 10
"""Every so many forks, the child records."""

EMIT_AND_FORK = f"""
import tracekit, tracekit.recording.profiler
tracekit.recording.profiler.SHUTDOWN_TIMEOUT_S = 100.0  # of a child
profiler = record()
stop = threading.Event()

def emit(number):
    work, serial = profiler.marker("work"), profiler.marker("serial")
    while not stop.is_set():
        tally[number] += 1
        if tally[number] % 10 == 0:
            profiler.marker(f"unused {{number}} {{tally[number]}}")  # takes a lock
        with work:
            serial.counter({{str(number): tally[number]}})
        time.sleep(0.0005)

threads = [threading.Thread(target=emit, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()

def in_the_child(number):
    with profiler.marker("unrecorded"), profiler.marker(f"new {{number}}"), tracekit.marker("unrecorded as well"):
        pass
    if number % {OWN} == 0:
        with profiler.child_recording(f"child"), profiler.marker("work"), tracekit.marker("own"):
            pass
    os._exit(0)

for number in range(int(os.environ['FORKS'])):
    child = os.fork()
    if child == 0:
        in_the_child(number)
    deadline = time.monotonic() + float(os.environ["PATIENCE"])
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            tally[10] += 1
            break
        time.sleep(0.0005)
    if tally[10]:
        break
stop.set()
for thread in threads:
    thread.join()
profiler.stop()
say("done")
"""


@pytest.mark.parametrize("forks", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_forks_while_threads_record_hang_no_child_and_lose_nothing(tmp_path: Path, engine: Engine, forks: int) -> None:
    with Child(
        EMIT_AND_FORK, tmp_path, environment={"FORKS": str(forks), "PATIENCE": str(processes.PATIENCE_S)}
    ) as child:
        child.hear("done")
        assert child.end() == 0
        assert child.tally[10] == 0, "a child hangs"
        remains = left_in(tmp_path, "t.json")
        assert_whole(remains)
        assert {event["name"] for event in remains.of("XBEC")} == {"work", "serial"}
        counts = [child.tally[number] for number in range(4)]
        assert remains.count("XB", "work") == sum(counts)
        for number, count in enumerate(counts):
            values = [event["args"].get(str(number)) for event in remains.of("C")]
            assert [value for value in values if value is not None] == list(range(1, count + 1))
        opens(engine, remains)
        children = [read_trace(path) for path in tmp_path.glob("t-child-*.json")]
        assert len(children) == forks // OWN
        for own in children:
            assert_whole(own)
            assert sorted(event["name"] for event in own.of("XBiC")) == ["own", "work"]
            assert {event["pid"] for event in own.events} == {own.metadata["pid"]} != {remains.metadata["pid"]}
            assert own.metadata["parent_pid"] == remains.metadata["pid"]


FORK_UNDER_A_LOCK = """
from tracekit.recording.buffer import DETACHED
record().stop()
held, done = threading.Event(), threading.Event()

def hold():
    with DETACHED.lock:
        held.set()
        done.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)  # or it would hang
    with DETACHED.lock:
        os._exit(0)
say(f"status {os.waitpid(child, 0)[1]}")
done.set()
thread.join()
"""


def test_a_fork_while_a_thread_holds_the_lock_of_detached_markers_leaves_it_free_in_the_child(tmp_path: Path) -> None:
    with Child(FORK_UNDER_A_LOCK, tmp_path) as child:
        child.hear("status 0")
        assert child.end() == 0


def assert_whole(remains: Remains) -> None:
    """Assert that a file was completed, and that one process has written it."""
    assert remains.closed
    assert [event["name"] for event in remains.of("M")].count("tracekit_metadata") == 1
    assert len({event["pid"] for event in remains.events}) == 1


FORK_INSIDE = """
import tracekit, tracekit.recording.profiler
tracekit.recording.profiler.SHUTDOWN_TIMEOUT_S = 100.0  # of a child
profiler = record()
with profiler.marker("before"):
    pass
profiler.flush()
recording = profiler.child_recording("child")
with profiler.marker("around"), tracekit.marker("module"):
    profiler.marker("started").start()
    child = os.fork()
    if child == 0 and {records}:
        recording.start()
        with profiler.marker("around"), tracekit.marker("module"):
            with profiler.marker("later"):
                pass
profiler.marker("started").finish()
if child == 0:
    with profiler.marker("after"):
        pass
    sys.exit(0)
os.waitpid(child, 0)
profiler.stop()
say("done")
"""


@pytest.mark.parametrize("records", [True, False])
def test_a_fork_inside_a_marker_leaves_its_slice_to_the_parent(tmp_path: Path, engine: Engine, records: bool) -> None:
    with Child(FORK_INSIDE.format(records=records), tmp_path) as child:
        child.hear("done")
        assert child.end() == 0
        remains = left_in(tmp_path, "t.json")
        assert_whole(remains)
        # A cut in the midst makes B and E of a slice, and two pieces of the one that outlasts what is around it.
        names = [event["name"] for event in remains.of("XB")]
        assert set(names) == {"around", "before", "module", "started"}
        assert [names.count(name) for name in ("around", "before", "module")] == [1, 1, 1]
        opens(engine, remains)
        children = [read_trace(path) for path in tmp_path.glob("t-child-*.json")]
        assert len(children) == records
        for own in children:
            assert_whole(own)
            # Only what began in the child, and also on the way out of what began before.
            assert sorted(event["name"] for event in own.of("XBiC")) == ["after", "around", "later", "module"]
            opens(engine, own)


WAYS = {
    "_exit": "os._exit(0)",
    "exit": "sys.exit(0)",
    "exception": "raise RuntimeError('mine')",
    "sigterm": "os.kill(os.getpid(), signal.SIGTERM)",
    "exec": "os.execv(sys.executable, [sys.executable, '-c', ''])",
}
ORDERLY = {"exit", "exception"}

CHILDREN = f"""
import tracekit.recording.profiler
from tracekit.recording.profiler import active_profiler
tracekit.recording.profiler.SHUTDOWN_TIMEOUT_S = 100.0  # of a child
profiler = record()
with profiler.marker("before"):
    pass
profiler.flush()
for way, program in {WAYS!r}.items():
    child = os.fork()
    if child == 0:
        import tests.faults.tally
        tally = tests.faults.tally.Tally(f"tally-{{way}}.bin")
        profiler.child_recording(way).start()
        note_deliveries(active_profiler()._handlers[0], tally)
        marker, end = profiler.marker("work"), time.monotonic() + float(os.environ["PATIENCE"]) / 2
        while tally[tally.DELIVERIES] < 4 and time.monotonic() < end:  # deliveries; or it would hang
            with marker:
                pass
            tally[0] += 1
            time.sleep(0.001)
        exec(program)
        assert False
    os.waitpid(child, 0)
with profiler.marker("after"):
    pass
profiler.stop()
say("done")
"""


def test_children_of_every_end_keep_what_they_recorded(tmp_path: Path, engine: Engine) -> None:
    with Child(CHILDREN, tmp_path, environment={"PATIENCE": str(processes.PATIENCE_S)}) as child:
        child.hear("done")
        assert child.end() == 0
        assert "tracekit:" not in child.errors
        remains = left_in(tmp_path, "t.json")
        assert_whole(remains)
        assert [event["name"] for event in remains.of("XBiC")] == ["before", "after"]
        for way in WAYS:
            own = left_in(tmp_path, f"t-{way}-*.json")
            tally = Tally(tmp_path / f"tally-{way}.bin")
            assert_all_delivered_is_there(own, tally)
            if way in ORDERLY:
                assert_whole(own)
                assert own.count("XB", "work") == tally[Tally.EMITTED]
            opens(engine, own)
        report = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path / "t*.json")], strict=True)
        titles = [f"rank 0 · {way}" for way in sorted(WAYS)]
        assert report.ranks[0].processes == ["rank 0", *titles]
        with engine.load(tmp_path / "merged.json") as trace:
            assert trace.errors() == []
            shown = trace.rows("select name from process where pid > 0 order by name")
            assert [name for (name,) in shown] == ["rank 0", *titles]
