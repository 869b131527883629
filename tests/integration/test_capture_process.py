"""Running jobs that are captured from outside: real ranks, the real command, real signals, ranks that hang and die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import merge_traces, validate_trace
from tracekit.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.perfetto import Engine

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120

LEAD_S = 1.5  # half a second otherwise: a busy machine may keep a rank from reading the common start before it comes

LOOP = f"""
import os, signal, sys, time
import tracekit.capture.coordinator
from tracekit import JSONTraceHandler, Profiler, SystemProfiler, TorchProfiler, on_demand

tracekit.capture.coordinator._LEAD_S = {LEAD_S}

def train(*, sources=(), work=lambda: time.sleep(0.005), **options):
    capture = on_demand("run/control", look_interval=0.25, **options)
    name = "run/rank{{rank}}-{{batch}}.json"
    end = time.monotonic() + {4 * DEADLINE_S}
    with Profiler(JSONTraceHandler(name), capture, sources=sources, run_id="test") as profiler:
        while not os.path.exists("end") and time.monotonic() < end:
            with profiler.marker("forward"):
                work()
            profiler.step()
"""


GATED = """
def work():
    while not os.path.exists("go"):
        time.sleep(0.005)
    time.sleep(0.005)

train(work=work)
"""


class Job:
    """Ranks that step in a loop until they are told to end."""

    def __init__(self, folder: Path, program: str, ranks: int = 2, started: int | None = None) -> None:
        self.folder = folder
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", LOOP + program],
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "OMP_NUM_THREADS": "1",
                    "RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                },
            )
            for rank in range(ranks if started is None else started)
        ]

    def end(self) -> None:
        """Have the ranks end, and see that they do so well."""
        (self.folder / "end").touch()
        for process in self.processes:
            assert process.wait(DEADLINE_S) in (0, -signal.SIGKILL)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    @property
    def control(self) -> Path:
        return self.folder / "run" / "control"

    def statuses(self) -> dict[int, dict[str, Any]]:
        documents = [json.loads(path.read_text()) for path in sorted((self.control / "ranks").glob("rank*.json"))]
        return {document["rank"]: document for document in documents}

    def states(self) -> dict[int, str | None]:
        return {rank: (status["capture"] or {}).get("state") for rank, status in self.statuses().items()}

    def files(self, rank: int) -> list[str]:
        return sorted(path.name for path in (self.folder / "run").glob(f"rank{rank}-*.json"))


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Job]]:
    monkeypatch.setattr("tracekit.capture.coordinator._LEAD_S", LEAD_S)
    jobs: list[Job] = []

    def start_job(program: str = "train()", **options: int) -> Job:
        job = Job(tmp_path, program, **options)
        jobs.append(job)
        wait_for(lambda: len(job.statuses()) == len(job.processes), "every rank listens")
        return job

    yield start_job
    for job in jobs:
        job.kill()


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        threading.Event().wait(0.02)


def capture(job: Job, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run ``tracekit capture --json``; return its exit code and what it says."""
    code = main(["capture", str(job.folder / "run"), "--json", *arguments])
    printed = capsys.readouterr()
    return code, json.loads(printed.out)


def batches(path: str | Path, name: str = "forward") -> list[int]:
    events: list[dict[str, Any]] = json.loads(Path(path).read_text("utf-8"))
    return [event["args"]["batch"] for event in events if event["name"] == name and event["ph"] in "XB"]


def test_two_ranks_are_captured_twice_at_the_same_batch_and_merge(
    start: Callable[..., Job], tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: Engine
) -> None:
    job = start()
    results = []
    for steps in (3, 5):
        code, said = capture(job, capsys, "--steps", str(steps), "-o", str(tmp_path / f"merged{steps}.json.gz"))
        assert code == 0, said
        assert [rank["state"] for rank in said["ranks"]] == ["done", "done"]
        (first,) = {rank["first_batch"] for rank in said["ranks"]}
        assert [rank["late_batches"] for rank in said["ranks"]] == [0, 0]
        assert len(said["files"]) == 2
        for path in said["files"]:
            assert batches(path) == batches(path, "batch") == list(range(first, first + steps))
        results.append(first)
        with engine.load(tmp_path / f"merged{steps}.json.gz") as trace:
            assert trace.errors() == []
            counts = dict(trace.rows("select name, count(*) from slice where category is not 'clock' group by name"))
            assert counts == {"forward": 2 * steps, "batch": 2 * steps}
        assert validate_trace(str(tmp_path / f"merged{steps}.json.gz")).counts == {}
    assert results[1] > results[0] + 3
    job.end()
    assert [len(job.files(rank)) for rank in (0, 1)] == [2, 2], "and nothing else was recorded"


def test_the_command_says_what_happens_and_what_to_do_next(
    start: Callable[..., Job], capsys: pytest.CaptureFixture[str]
) -> None:
    job = start()
    assert main(["capture", str(job.control), "--stop"]) == 0
    assert capsys.readouterr().out == "no capture is in force\n"
    assert main(["capture", str(job.control), "--steps", "2", "--seconds", "60"]) == 0
    lines = capsys.readouterr().out.splitlines()
    batch = int(lines[0].removeprefix("2 ranks start with batch "))
    assert lines[1] == f"ranks 0-1: batches {batch} to {batch + 1}"
    assert lines[2:4] == [str(job.folder / "run" / f"rank{rank}-{batch}.json") for rank in (0, 1)]
    assert lines[4].startswith("merge them: tracekit merge -o merged.json.gz ")
    merged = subprocess.run(
        [sys.executable, "-m", *lines[4].removeprefix("merge them: ").split()],
        cwd=job.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
    )
    assert merged.returncode == 0, merged.stderr
    assert main(["capture", str(job.control), "--status"]) == 0
    assert capsys.readouterr().out.count(f"listens; capture done (from batch {batch} to {batch + 1})") == 2
    assert main(["capture", str(job.control), "-q", "--steps", "1", "--ranks", "1", "--now"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(job.folder / "run" / job.files(1)[-1])]
    assert len(job.files(0)) == 1
    job.end()
    assert main(["capture", str(job.control), "--steps", "2"]) == 1
    assert "the run has ended" in capsys.readouterr().err


def test_a_start_can_be_named(start: Callable[..., Job], capsys: pytest.CaptureFixture[str]) -> None:
    job = start(GATED)  # in batch 0 until both ranks know
    ahead = 20

    def let_go() -> None:
        wait_for(lambda: job.states() == {0: "waiting", 1: "waiting"}, "both ranks know the start")
        (job.folder / "go").touch()

    gate = threading.Thread(target=let_go)
    gate.start()
    code, said = capture(job, capsys, "--at-batch", str(ahead), "--steps", "1")
    gate.join()
    assert code == 0
    assert [rank["first_batch"] for rank in said["ranks"]] == [ahead, ahead]
    code, said = capture(job, capsys, "--at-time", "+1", "--seconds", "0.1")
    assert code == 0
    for rank in said["ranks"]:
        assert rank["first_batch"] > ahead
        assert 0 <= rank["last_batch"] - rank["first_batch"] < 30, "0.1 s of batches of 5 ms"
    job.end()


@pytest.mark.parametrize("all_ranks", [False, True])
def test_a_signal_to_one_rank_captures_it_or_all_at_the_same_batch(start: Callable[..., Job], all_ranks: bool) -> None:
    job = start(f"train(on_signal=signal.SIGUSR2, signal_all_ranks={all_ranks}, steps=3)")
    done = {0: "done" if all_ranks else None, 1: "done"}
    for number in (1, 2):
        job.processes[1].send_signal(signal.SIGUSR2)
        wait_for(lambda: job.states() == done and len(job.files(1)) == number, "it is done")  # noqa: B023
        captures = [status["capture"] for status in job.statuses().values() if status["capture"]]
        assert {found["last_batch"] - found["first_batch"] for found in captures} == {2}
        assert len({found["first_batch"] for found in captures}) == 1
    job.end()
    assert len(job.files(0)) == 2 * all_ranks


@pytest.mark.slow
def test_a_rank_that_hangs_is_left_out_and_does_not_start_when_it_wakes(
    start: Callable[..., Job], capsys: pytest.CaptureFixture[str]
) -> None:
    job = start()
    job.processes[0].send_signal(signal.SIGSTOP)
    code, said = capture(job, capsys, "--steps", "2", "--timeout", "5")
    assert code == 3
    assert [rank["state"] for rank in said["ranks"]] == [None, "done"]
    job.processes[0].send_signal(signal.SIGCONT)
    code, said = capture(job, capsys, "--steps", "2")
    assert code == 0
    firsts = [rank["first_batch"] for rank in said["ranks"]]  # not one: the ranks may be too far apart by now
    job.end()
    assert job.files(0) == [f"rank0-{firsts[0]}.json"]


def test_a_rank_that_dies_while_it_is_captured_is_named_and_its_trace_opens(
    start: Callable[..., Job], engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    job = start()
    command = [sys.executable, "-m", "tracekit", "capture", str(job.folder / "run"), "--until-stop", "--json"]
    driver = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: set(job.states().values()) == {"recording"}, "both ranks record")
        wait_for(lambda: job.statuses()[1]["capture"]["files"], "rank 1 has begun a file")
        job.processes[1].kill()
        job.processes[1].wait()
        assert main(["capture", str(job.control), "--steps", "1"]) == 1, "one is running"
        assert "rank 0 is in a capture already" in capsys.readouterr().err
        assert main(["capture", str(job.control), "--stop", "-q"]) == 0
        assert capsys.readouterr().out.splitlines() == [str(job.folder / "run" / job.files(0)[0])]
        out, err = driver.communicate(timeout=DEADLINE_S)
    finally:
        driver.kill()
        driver.communicate()
    assert driver.returncode == 3, err
    said = json.loads(out)
    assert [rank["state"] for rank in said["ranks"]] == ["done", "recording"]
    assert [rank["note"] for rank in said["ranks"]] == [None, "its process has died"]
    assert len(said["files"]) == 2
    merged = job.folder / "merged.json"
    report = merge_traces(str(merged), said["files"])
    assert len(report.inputs) == 2
    with engine.load(merged) as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(distinct upid) from thread join thread_track using (utid)") == 2
        assert trace.scalar("select count(*) from slice where name = 'forward'") > 4
    job.end()


@pytest.mark.parametrize("length", ["--until-stop", pytest.param("--steps=1000000", marks=pytest.mark.slow)])
def test_an_interrupt_ends_the_capture_and_still_names_the_files(start: Callable[..., Job], length: str) -> None:
    job = start()
    command = [sys.executable, "-m", "tracekit", "capture", str(job.folder / "run"), length]
    driver = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: set(job.states().values()) == {"recording"}, "both ranks record")
        driver.send_signal(signal.SIGINT)
        out, err = driver.communicate(timeout=DEADLINE_S)
    finally:
        driver.kill()
        driver.communicate()
    assert (driver.returncode, err) == (0, "")
    assert "stopping" in out
    assert out.count("merge them:") == 1
    assert set(job.states().values()) == {"done"}
    job.end()


def test_torch_profiler_and_counters_are_captured_with_the_markers(
    start: Callable[..., Job], tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: Engine
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("psutil", reason="psutil is not installed")
    job = start(
        """
import torch
left, right = torch.ones(64, 64), torch.ones(64, 64)

def work():
    torch.mm(left, right)
    time.sleep(0.005)

train(work=work, sources=[TorchProfiler("run/torch-rank{rank}-{batch}.json.gz"), SystemProfiler(0.01)])
""",
        ranks=1,
    )
    merged = tmp_path / "merged.json.gz"
    for number in (1, 2):
        code, said = capture(job, capsys, "--steps", "3", "-f", "-o", str(merged), "--timeout", str(DEADLINE_S))
        assert code == 0, said
        (rank,) = said["ranks"]
        rank_trace, torch_trace = said["files"]
        assert Path(torch_trace).name == f"torch-rank0-{rank['first_batch']}.json.gz"
        assert len(batches(rank_trace)) == 4, "a warm-up, then three"
        with engine.load(merged) as trace:
            assert trace.errors() == []
            assert trace.scalar("select count(*) from slice where name = 'aten::mm'") == 3
            steps = trace.rows("select name from slice where name like 'ProfilerStep%' order by ts")
            first = rank["first_batch"]
            assert [name for (name,) in steps] == [f"ProfilerStep#{batch}" for batch in range(first, first + 3)]
            assert trace.scalar("select count(*) from counter") > 0
        assert len(list((job.folder / "run").glob("torch-*"))) == number
    job.end()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["{empty}"], 1, "no run listens"),
        (["{run}", "--steps", "0"], 2, "not a whole number from 1"),
        (["{run}", "--seconds", "0"], 2, "seconds"),
        (["{run}", "--steps", "5", "--until-stop"], 2, "leave out"),
        (["{run}", "--ranks", "1-"], 2, "0,8-15"),
        (["{run}", "--ranks", "7"], 2, "there is no rank 7; the run has 1 rank"),
        (["{run}", "--at-time", "tomorrow"], 2, "--at-time"),
        (["{run}", "--now", "--at-batch", "3"], 2, "not allowed"),
        (["{run}", "--stop", "--status"], 2, "not allowed"),
        (["{run}", "--timeout", "nan"], 2, "--timeout"),
        (["{run}", "--timeout", "1e300"], 2, "--timeout must be at most 1,000,000,000 seconds"),
        (["{run}", "-o", "{run}/control/request.json"], 1, "already exists"),
    ],
)
def test_every_wrong_argument_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    from tracekit.capture.control_folder import ControlFolder, RankStatus, Request

    control = ControlFolder(tmp_path / "run" / "control")
    control.make()
    control.write(RankStatus(rank=0, world_size=1, run_id="r", host="h", pid=os.getpid()))
    control.write(Request(id="before"))
    (tmp_path / "empty").mkdir()
    filled = [argument.format(run=tmp_path / "run", empty=tmp_path / "empty") for argument in arguments]
    assert main(["capture", *filled]) == code
    assert words in capsys.readouterr().err
    assert control.read_request() == Request(id="before"), "nobody was asked"
