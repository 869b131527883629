"""``JSONTraceHandler(merged_filename=...)`` in real processes: the merge, the waiting at the exit, and the log."""

from __future__ import annotations

import gzip
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.object_store import BUCKET, ObjectStore
from tracekit.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240
NEVER_S = 1000  # longer than the patience of the tests

PROLOGUE = """
import os, signal, sys
from tracekit import JSONTraceHandler, Profiler

rank = int(sys.argv[1])

def profiler_of(name="rank{rank}.json", merged="merged.json", schedule=None, profiler={}, **options):
    handler = JSONTraceHandler(name, merged_filename=merged, **{"merge_timeout": %d, **options})
    process = {"rank": rank, "world_size": 2, "run_id": "RUN", "record_batches": False}
    return Profiler(handler, schedule, **{**process, **profiler})

def say(word):
    os.write(1, f"{word}\\n".encode())
""" % (PATIENCE_S - 60)  # noqa: UP031 - the braces of the program
RANK_1 = "with profiler_of() as profiler: profiler.marker('one').instant()"


def start(program: str, folder: Path, rank: int = 0, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(program), str(rank)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.fspath(ROOT), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, errors
    # On a busy machine the exit says that it waits.
    return "".join(line for line in errors.splitlines(True) if not line.startswith("tracekit: waiting up to "))


def run(program: str, folder: Path, rank: int = 0, code: int = 0, **variables: str) -> str:
    return finish(start(program, folder, rank, **variables), code)


def merging_process(log: str) -> int:
    """Return the process that a log says goes on with a merge."""
    (pid,) = set(re.findall(r"process (\d+) goes on with it", log))
    return int(pid)


def wait_for_end(pid: int) -> None:
    """Wait for the end of a process of another parent."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            ready, _, _ = select.select([descriptor], [], [], PATIENCE_S)
            assert ready, f"process {pid} did not end"
        finally:
            os.close(descriptor)


def instants(path: Path) -> list[str]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return sorted(
        event["name"] for event in json.loads(data)["traceEvents"] if event["ph"] == "i" and event.get("cat") != "clock"
    )


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def said(folder: Path) -> str:
    return "".join(log.read_text("utf-8") for log in logs(folder))


def merge_by_hand(log: str) -> int:
    """Run the command in a log, and return its exit code."""
    commands = set(re.findall(r"[Tt]o merge it(?: again| by hand)?: tracekit (merge .*)$", log, re.MULTILINE))
    (command,) = commands
    return main(shlex.split(command))


def test_a_recording_that_nobody_stops_is_merged_at_the_exit(tmp_path: Path) -> None:
    assert run("p = profiler_of(profiler={'world_size': 1})\np.start()\np.marker('m').instant()", tmp_path) == ""
    assert instants(tmp_path / "merged.json") == ["m"]
    assert logs(tmp_path) == []


def test_packed_traces_and_the_files_of_children_are_merged(tmp_path: Path) -> None:
    program = """
    from multiprocessing import get_context

    def work(recording):
        import tracekit
        with recording:
            tracekit.marker("child").instant()

    with profiler_of("{run_id}/rank{rank}.json.gz", "m.pftrace", profiler={"world_size": 1}) as profiler:
        child = get_context("fork").Process(target=work, args=(profiler.child_recording("decoder"),))
        child.start()
        child.join()
    """
    assert run(program, tmp_path) == ""
    assert len(list((tmp_path / "RUN").glob("rank0*.json.gz"))) == 2
    assert b"rank 0 \xc2\xb7 decoder" in (tmp_path / "m.pftrace").read_bytes()


def test_a_name_that_is_taken_gets_the_next_number(tmp_path: Path) -> None:
    (tmp_path / "merged.json").write_text("mine")
    assert run(RANK_1.replace("profiler_of()", "profiler_of(profiler={'world_size': 1})"), tmp_path) == ""
    assert (tmp_path / "merged.json").read_text() == "mine"
    assert instants(tmp_path / "merged-2.json") == ["one"]


def test_each_window_is_merged_when_it_ends(tmp_path: Path) -> None:
    program = """
    from tracekit import cyclic_schedule
    options = {"schedule": cyclic_schedule(warmup=0, wait=1, active=1, repeat=2, skip_first=1), "merge_every_window": True}
    with profiler_of("w{batch}-rank{rank}.json", "merged-{batch}.json", **options, profiler={"record_batches": True}) as profiler:
        for step in range(11):
            profiler.marker(f"{step} of {rank}").instant()
            profiler.step()
        profiler.flush()
        say("ends")
        sys.stdin.readline()
    """
    ranks = [start(program, tmp_path, rank) for rank in (0, 1)]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ends\n"
    assert [finish(ranks[number]) for number in (1, 0)] == ["", ""]
    assert sorted(path.name for path in tmp_path.glob("merged*")) == ["merged-2.json", "merged-4.json"]
    for batch in (2, 4):
        assert instants(tmp_path / f"merged-{batch}.json") == [f"{batch} of 0", f"{batch} of 1"]


def merged_without_waiting(folder: Path) -> str:
    """Run rank 0, which waits for half a second, until its merge has ended. Return what it logged."""
    log = run("with profiler_of(merge_timeout=0.5) as profiler: profiler.marker('zero').instant()", folder)
    if "goes on with it" in log:
        wait_for_end(merging_process(log))
    return log


def test_a_rank_that_was_killed_is_merged_as_far_as_it_came_and_named(tmp_path: Path) -> None:
    program = "p = profiler_of()\np.start()\np.marker('one').instant()\np.flush()\nos.kill(os.getpid(), signal.SIGKILL)"
    run(program, tmp_path, 1, -signal.SIGKILL)
    log = merged_without_waiting(tmp_path)
    assert instants(tmp_path / "merged.json") == ["one", "zero"]
    assert "rank 1 has no end record" in log + said(tmp_path)
    os.unlink(tmp_path / "merged.json")
    assert merge_by_hand(log.replace(" --force ", " ")) == 3, "there is no end to come"


def test_files_on_the_disk_of_another_host_are_named_and_no_error_of_the_training(tmp_path: Path) -> None:
    log = merged_without_waiting(tmp_path)
    assert instants(tmp_path / "merged.json") == ["zero"]
    assert "rank 1 has no rank trace" in log + said(tmp_path)
    run(RANK_1, tmp_path, 1)  # somebody copies them
    os.unlink(tmp_path / "merged.json")
    assert merge_by_hand(log.replace(" --force ", " ")) == 0
    assert instants(tmp_path / "merged.json") == ["one", "zero"]


# Programs of rank 0 that end without waiting, and their exit codes.
UNWAITED = {
    "SIGINT in the block": (
        "with profiler_of(merge_timeout=NEVER): signal.raise_signal(signal.SIGINT)",
        -signal.SIGINT,
    ),
    "an exception after it": (
        "profiler = profiler_of(merge_timeout=NEVER)\nprofiler.start()\nprofiler.stop()\n1 / 0",
        1,
    ),
    "merge_wait=False": (
        """
        import logging
        logging.basicConfig(level=logging.INFO)
        with profiler_of(merge_timeout=NEVER, merge_wait=False): pass
        """,
        0,
    ),
    "SIGINT while it waits": (
        """
        import threading
        with profiler_of(merge_timeout=NEVER): pass
        from tracekit.handlers import merge_process
        wait = merge_process._wait
        def interrupted(*args):
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
            wait(*args)
        merge_process._wait = interrupted
        """,
        0,
    ),
    "SIGTERM with a handler of one's own": (
        """
        import threading
        came = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: came.set())
        with profiler_of(merge_timeout=NEVER, profiler={"sigterm_grace": 60.0}):
            signal.raise_signal(signal.SIGTERM)
            came.wait()
        """,
        0,
    ),
    "a fork": (
        """
        with profiler_of(merge_timeout=NEVER): pass
        child = os.fork()
        if not child:
            sys.exit()  # with its exit hooks
        assert os.waitpid(child, 0)[1] == 0
        from tracekit.handlers.merge_process import wait_for_merges
        wait_for_merges(wait=False)
        """,
        0,
    ),
}


@pytest.mark.parametrize("how", UNWAITED)
def test_rank_0_does_not_wait_and_the_merge_is_made_in_the_background(tmp_path: Path, how: str) -> None:
    program, code = UNWAITED[how]
    variables = {"TRACEKIT_STRICT": "0", "NVTX_INJECTION64_PATH": "lib"}
    log = run(textwrap.dedent(program).replace("NEVER", str(NEVER_S)), tmp_path, 0, code, **variables)
    pid = merging_process(log)
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"TRACEKIT_STRICT" not in environment
    assert b"INJECTION" not in environment
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert os.getsid(pid) == pid
    assert [path.stat().st_mode & 0o777 for path in logs(tmp_path)] == [0o600]
    try:
        run(RANK_1, tmp_path, 1)
        wait_for_end(pid)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert instants(tmp_path / "merged.json") == ["one"]
    assert "merged 2 files of 2 ranks" in said(tmp_path)
    assert merge_by_hand(log) == 1, "it is there already"


def test_sigterm_to_all_ranks_merges_nothing_and_logs_the_command(tmp_path: Path) -> None:
    program = f"""
    import threading
    profiler = profiler_of(merge_timeout={NEVER_S}, profiler={{"sigterm_grace": 60.0}})
    profiler.start()
    profiler.marker("work").instant()
    say("ready")
    threading.Event().wait()
    """
    ranks = [start(program, tmp_path, rank) for rank in (0, 1)]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
        rank.terminate()
    log = "".join(finish(rank, -signal.SIGTERM) for rank in ranks)
    assert "SIGTERM ended the recording" in log
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.json", "rank1.json"]
    assert merge_by_hand(log) == 0
    assert instants(tmp_path / "merged.json") == ["work", "work"]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    pytest.importorskip("moto", reason="moto is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    store = ObjectStore()
    yield store
    store.stop()


def test_the_segments_of_all_ranks_in_an_object_store_are_merged_into_it(tmp_path: Path, store: ObjectStore) -> None:
    program = f"""
    names = "s3://{BUCKET}/{{run_id}}/rank{{rank}}.json.gz", "s3://{BUCKET}/{{run_id}}/merged.json"
    with profiler_of(*names, rotate_bytes=500, spool="spool", profiler={{"shutdown_timeout": 120.0}}) as profiler:
        for _ in range(5):
            profiler.marker(f"of {{rank}}").instant()
            profiler.flush()
    """
    variables: Mapping[str, Any] = store.environment()
    ranks = [start(program, tmp_path, rank, **variables) for rank in (0, 1)]
    assert [finish(rank) for rank in ranks] == ["", ""]
    assert len(store.keys("RUN/rank1-part")) > 1
    events = json.loads(store.get("RUN/merged.json"))["traceEvents"]
    found = [event["name"] for event in events if event["ph"] == "i" and event.get("cat") != "clock"]
    assert sorted(found) == ["of 0"] * 5 + ["of 1"] * 5
