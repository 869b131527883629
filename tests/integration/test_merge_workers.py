"""A merge by several workers: the same to the byte, and a clean end whatever happens to them."""

from __future__ import annotations

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.bad_traces import rank_trace, slice_
from tracekit.cli import main
from tracekit.errors import MergeError, StorageError
from tracekit.merge import merge_traces
from tracekit.merge.execute import executor as merge_executor
from tracekit.merge.execute.part_store import PartStore
from tracekit.merge.plan.plan import UnitJob
from tracekit.worker_processes import process_pool

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Rank traces, a torch trace with slices that overlap, a packed one, a broken one and one that is none."""
    folder = tmp_path / "in"
    folder.mkdir()
    for rank in range(5):
        lines = (slice_(10 * number, 15 if number % 7 == rank else 5, f"s {number}") for number in range(1, 300))
        (folder / f"rank{rank}.json").write_bytes(rank_trace(*lines, rank=rank, pid=100 + rank))
    events = [
        {"ph": "X", "name": "op", "pid": 101, "tid": 101, "ts": 7.5 * n, "dur": 9, "args": {"correlation": n}}
        for n in range(100)
    ]
    events += [{"ph": ph, "name": "flow", "id": 3, "pid": 101, "tid": 101, "ts": 75} for ph in "sf"]
    torch = {"schemaVersion": 1, "distributedInfo": {"rank": 1}, "baseTimeNanoseconds": 10**18, "traceEvents": events}
    (folder / "torch1.json.gz").write_bytes(gzip.compress(json.dumps(torch).encode()))
    (folder / "rank5.json").write_bytes(rank_trace(slice_(1, 5, "a"), rank=5, pid=105)[:-20])
    (folder / "settings.json").write_text('{"learning_rate": 0.1}')
    return folder


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["out.json", "out.json.gz", "out.pftrace", "out.pftrace.gz"])
def test_the_output_the_report_and_progress_do_not_depend_on_who_works(inputs: Path, tmp_path: Path, name: str) -> None:
    alone = merge_traces(str(tmp_path / f"alone.{name}"), [str(inputs)])
    assert alone.overlaps_moved
    with ThreadPoolExecutor(3) as threads, process_pool(2) as processes:
        for number, executor in enumerate((threads, processes)):
            output, seen = tmp_path / f"{number}.{name}", list[float]()
            report = merge_traces(
                str(output), [str(inputs)], executor=executor, progress=lambda share, _, seen=seen: seen.append(share)
            )
            assert output.read_bytes() == (tmp_path / f"alone.{name}").read_bytes()
            assert {**report.to_json(), "output": ""} == {**alone.to_json(), "output": ""}
            assert seen == sorted(seen)
            assert seen[-1] == 1
    assert left(tmp_path) == [f"0.{name}", f"1.{name}", f"alone.{name}", "in"]


def outside(folder: Path, code: str) -> str:
    """Return what a program prints that has nothing but its main thread when it begins."""
    head = "import threading\nfrom tracekit.merge import merge_traces\n"
    head += "from tracekit.worker_processes import process_pool\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert not done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux" or sys.version_info < (3, 11), reason="nothing is forked here")
@pytest.mark.parametrize("threads", [0, 1])
def test_workers_are_forked_where_there_is_no_other_thread(inputs: Path, tmp_path: Path, threads: int) -> None:
    merge_traces(str(tmp_path / "alone.json"), [str(inputs)])
    code = f"""
done = threading.Event()
for _ in range({threads}):
    threading.Thread(target=done.wait).start()
with process_pool(2) as executor:
    said = executor.submit(eval, "'forked' if __import__('sys').modules['__main__'].__dict__.get('done') else 'spawned'")
    print(said.result())
    merge_traces("out.json", ["in"], executor=executor)
done.set()
"""
    assert outside(tmp_path, code) == ("spawned\n" if threads else "forked\n")
    assert (tmp_path / "out.json").read_bytes() == (tmp_path / "alone.json").read_bytes()


def test_an_input_that_no_worker_can_read_is_told_as_without_workers(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "rank0.json").write_bytes(b"PK\x03\x04")
    command = ["merge", "-q", "-o", str(tmp_path / "out.json"), str(tmp_path / "rank0.json"), "--workers"]
    said = [(main([*command, workers]), capsys.readouterr().err) for workers in ("1", "2")]
    assert said[0] == said[1]
    assert said[0][0] == 1
    assert left(tmp_path) == ["rank0.json"]


MERGE_UNASKED = """
from tracekit import worker_processes as workers
from tracekit.merge.execute import executor
executor._MIN_BYTES = dict.fromkeys(executor._MIN_BYTES, {worth})
executor.usable_processors = lambda: {processors}
made = []
class Counted(workers.ProcessPool):
    def __init__(self, count):
        made.append(count)
        {refuse}
        super().__init__(count)
workers.ProcessPool = Counted
from tracekit.cli import main
if __name__ == "__main__":
    code = main(["merge", "-q", "-f", "-o", "out.json", "in"])
    print(code, made)
"""


@pytest.mark.parametrize(
    ("worth", "processors", "refuse", "started"),
    [
        (10**9, 4, "", []),
        (1000, 1, "", []),
        (1000, 64, "", [8]),
        (1000, 3, "raise OSError(11, 'no process')", [3]),
        pytest.param(1000, 3, "raise NotImplementedError('no semaphores')", [3], marks=pytest.mark.slow),
        (1000, 3, "import os; del os.fork; os.fork = lambda: open(os.devnull + '/no process')", [3]),
    ],
    ids=["small", "one processor", "many processors", "no process", "no semaphores", "no fork"],
)
def test_large_inputs_are_merged_by_all_processors_unasked(
    inputs: Path, tmp_path: Path, worth: int, processors: int, refuse: str, started: list[int]
) -> None:
    (inputs / "settings.json").unlink()
    for number in (5, 6, 7):  # with the one of torch, 9: more files than the most workers
        (inputs / f"rank{number}.json").write_bytes(rank_trace(slice_(1, 5, "a"), rank=number, pid=100 + number))
    merge_traces(str(tmp_path / "alone.json"), [str(inputs)])
    code = MERGE_UNASKED.format(worth=worth, processors=processors, refuse=refuse or "pass")
    assert outside(tmp_path, code) == f"0 {started}\n"
    assert (tmp_path / "out.json").read_bytes() == (tmp_path / "alone.json").read_bytes()
    assert left(tmp_path) == ["alone.json", "in", "out.json"]


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("at_work", ["_probe_all", "_write_part"])
def test_a_worker_that_dies_ends_the_merge_with_one_sentence(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_work: str
) -> None:
    monkeypatch.setattr(merge_executor, at_work, die)
    with process_pool(2) as executor, pytest.raises(MergeError, match=r"worker .* ended .* nothing was written"):
        merge_traces(str(tmp_path / "out.json"), [str(inputs)], executor=executor)
    assert left(tmp_path) == ["in"]


class Broken(ThreadPoolExecutor):
    """An executor whose workers are gone before anything is asked of them."""

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        raise BrokenExecutor("all workers are gone")


def test_an_executor_without_workers_is_told(inputs: Path, tmp_path: Path) -> None:
    with Broken(1) as executor, pytest.raises(MergeError, match="all workers are gone"):
        merge_traces(str(tmp_path / "out.json"), [str(inputs)], executor=executor)
    assert left(tmp_path) == ["in"]


# A named pipe is an input that ends when the test wants it to; where it is opened, both sides wait for each other.
# The command refuses pipes, so that its check is taken away here.
ENDLESS = """
import sys
from tracekit import storage
from tracekit.cli import main
storage.refuse_pipe = lambda path: None
arguments = ["--workers", "2", "-o", "out.json", "in/rank0.json", "in/endless.json", "--rank", "endless.json=9"]
sys.exit(main(["merge", *arguments]))
"""


@contextmanager
def merge_without_end(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a merge, and give it and the pipe that one of its workers reads once it does."""
    os.mkfifo(folder / "in" / "endless.json")
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as merge:
        pipe = os.open(folder / "in" / "endless.json", os.O_WRONLY)
        try:
            os.write(pipe, b"[\n")
            yield merge, pipe
        finally:
            os.close(pipe)
            with suppress(ProcessLookupError):
                os.killpg(merge.pid, signal.SIGKILL)


def write_until_nobody_reads(pipe: int) -> None:
    with suppress(BrokenPipeError):
        while True:
            os.write(pipe, slice_(1, 5, "a") + b",\n")


def test_ctrl_c_ends_all_workers_and_leaves_nothing(inputs: Path, tmp_path: Path) -> None:
    assert inputs.is_dir()
    with merge_without_end(tmp_path) as (merge, pipe):
        os.killpg(merge.pid, signal.SIGINT)
        write_until_nobody_reads(pipe)
        _, said = merge.communicate(timeout=240)
        assert (merge.returncode, said) == (130, "tracekit: interrupted; nothing was left half done\n")
        assert left(tmp_path) == ["in"]


def test_workers_do_not_outlive_a_merge_that_is_killed(inputs: Path, tmp_path: Path) -> None:
    assert inputs.is_dir()
    with merge_without_end(tmp_path) as (merge, pipe):
        merge.kill()
        write_until_nobody_reads(pipe)
        # Ends when the last process that has it as its standard error has.
        merge.communicate(timeout=240)


@pytest.mark.parametrize("copied_bytes", [None, 0, 1000])
def test_parts_are_joined_where_the_kernel_cannot_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied_bytes: int | None
) -> None:
    """It has no such call, refuses it, or fails in the middle."""
    copy, before = os.copy_file_range, iter([copied_bytes] if copied_bytes else [])

    def fail(source: int, target: int, count: int) -> int:
        for limit in before:
            return copy(source, target, min(count, limit))
        raise OSError(errno.EXDEV, "not on this file system")

    if copied_bytes is None:
        monkeypatch.delattr(os, "copy_file_range")
    else:
        monkeypatch.setattr(os, "copy_file_range", fail)
    part, whole = tmp_path / "part", tmp_path / "whole"
    part.write_bytes(b"part" * 1000)
    whole.write_bytes(b"before after")
    with whole.open("r+b") as file:
        file.seek(7)
        PartStore(str(tmp_path)).append(str(part), file)
    assert whole.read_bytes() == b"before " + b"part" * 1000
    assert not part.exists()


def test_an_output_that_workers_cannot_write_is_told(tmp_path: Path) -> None:
    job = UnitJob([], 100_000, None, "out.json")
    with pytest.raises(StorageError, match=r"out\.json: cannot be written: No such file or directory"):
        merge_executor._write_part([job], PartStore(str(tmp_path / "missing")))
