"""Children of any start method that record by `Profiler.child_recording`: processes, pools, and the parent's schedule."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults import read_trace
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from tests.perfetto import Engine

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import multiprocessing, os, sys, time
import tracekit, tracekit.recording.profiler

tracekit.recording.profiler.SHUTDOWN_TIMEOUT_S = 60.0  # a busy child may need longer than 2 s to end its file

def wait_until(condition):
    end = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)
"""

PROCESSES = """
def work(recording, sent):
    with recording:
        with tracekit.marker("found"), sent:
            pass

def killed(recording, flushed):
    recording.start()
    with tracekit.marker("found"):
        pass
    tracekit.active_profiler().flush()
    flushed.set()
    time.sleep(600)

def job(number):
    with tracekit.marker("job"):
        return number * number

def main(method):
    context = multiprocessing.get_context(method)
    handler = tracekit.JSONTraceHandler("t{rank}.json")
    profiler = tracekit.Profiler(handler, rank=3, world_size=8, record_batches=False, shutdown_timeout=60)
    decoder = profiler.child_recording("decoder")  # before the start, which is all the same
    with profiler:
        process = context.Process(target=work, args=(decoder, profiler.marker("sent")))
        process.start()
        process.join()
        assert process.exitcode == 0
        flushed = context.Event()
        process = context.Process(target=killed, args=(profiler.child_recording("a/killed {one}"), flushed))
        process.start()
        flushed.wait()
        process.terminate()
        process.join()
        with context.Pool(2, initializer=profiler.child_recording("pool")) as pool:
            assert pool.map(job, range(40), chunksize=1) == [number * number for number in range(40)]
            pool.close()
            pool.join()

if __name__ == "__main__":
    main(sys.argv[1])
"""

SCHEDULE = """
def work(recording, word, stop):
    with recording:
        marker = tracekit.marker("work")
        action = tracekit.ProfilerAction.SKIP
        while not stop.is_set():
            with marker:
                pass
            now = tracekit.active_profiler().action
            if now is not action:
                action = now
                for _ in range(3):  # before the word, at which the parent goes on
                    with marker:
                        pass
                word.put(action.value)
            time.sleep(0.002)

def main(method):
    context = multiprocessing.get_context(method)
    schedule = tracekit.cyclic_schedule(wait=1, warmup=0, active=1, repeat=0)
    profiler = tracekit.Profiler(tracekit.JSONTraceHandler("t.json"), schedule, rank=0, shutdown_timeout=60)
    word, stop = context.SimpleQueue(), context.Event()
    with profiler:
        process = context.Process(target=work, args=(profiler.child_recording("child"), word, stop))
        process.start()
        profiler.step()
        heard = [word.get()]
        while "skip" not in heard:
            profiler.step()
            heard.append(word.get())
        profiler.step()
        heard.append(word.get())
    # The end of the parent's recording is one of the child's as well.
    heard.append(word.get())
    stop.set()
    process.join()
    assert heard == ["active_and_save", "skip", "active_and_save", "skip"], heard

if __name__ == "__main__":
    main(sys.argv[1])
"""

METHODS = [
    pytest.param("fork", marks=pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")),
    "spawn",
    pytest.param("forkserver", marks=pytest.mark.slow),
]


def run(folder: Path, program: str, method: str) -> None:
    script = folder / "program.py"
    script.write_text(HEAD + program)
    done = subprocess.run(
        [sys.executable, str(script), method],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("method", METHODS)
def test_processes_and_pools_of_every_start_method_record(tmp_path: Path, engine: Engine, method: str) -> None:
    run(tmp_path, PROCESSES, method)
    names = sorted(path.name.rpartition("-")[0] for path in tmp_path.glob("t3-*.json"))
    assert names[:2] == ["t3-a_killed_one_", "t3-decoder"]
    (decoder,) = (read_trace(path) for path in tmp_path.glob("t3-decoder-*"))
    assert sorted(event["name"] for event in decoder.of("XBiC")) == ["found", "sent"]
    assert decoder.closed
    jobs = [read_trace(path).count("XB", "job") for path in tmp_path.glob("t3-pool-*")]
    assert sum(jobs) == 40
    report = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path / "t*.json")], strict=True)
    pools = ["rank 3 · pool"] * len(jobs)
    assert report.ranks[0].processes == ["rank 3", "rank 3 · a/killed {one}", "rank 3 · decoder", *pools]
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.errors() == []
        assert trace.rows("select name, count(*) from slice group by name order by name") == [
            ("found", 2),
            ("job", 40),
            ("sent", 1),
        ]


@pytest.mark.parametrize("method", METHODS[:2])
def test_a_child_records_when_the_schedule_of_its_parent_says_so(tmp_path: Path, method: str) -> None:
    run(tmp_path, SCHEDULE, method)
    (path,) = tmp_path.glob("t-child-*.json")
    remains = read_trace(path)
    assert remains.count("XB", "work") > 2
    assert remains.closed
