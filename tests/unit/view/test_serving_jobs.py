"""Long work: in a process of its own, once for each key, and gone at the end."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.errors import ConfigError
from tracekit.view.serve.jobs import DONE, FAILED, RUNNING, WAITING, Job, Jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 200


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    jobs = Jobs(at_once=1)
    yield jobs
    jobs.close()


def add(first: int, second: int, *, progress: Callable[[float, str], None]) -> tuple[int, int]:
    progress(0.5, "adding")
    return first + second, os.getpid()


def refuse(what: str, *, progress: Callable[[float, str], None]) -> None:
    raise ConfigError(what)


def break_down(*, progress: Callable[[float, str], None]) -> None:
    raise ZeroDivisionError("one by zero")


def die(*, progress: Callable[[float, str], None]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_in(folder: str, *, progress: Callable[[float, str], None]) -> None:
    with tempfile.TemporaryDirectory(dir=folder):
        (Path(folder) / "here").write_text(str(os.getpid()))
        threading.Event().wait(PATIENCE_S)


def ended(job: Job) -> Job:
    assert not concurrent.futures.wait([job.future], PATIENCE_S).not_done
    return job


def wait_for(condition: Callable[[], Any]) -> None:
    for _ in range(PATIENCE_S * 100):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("in vain")


def test_work_is_done_in_another_process_and_once(jobs: Jobs) -> None:
    job = ended(jobs.start("sum", add, 2, 3))
    assert (job.state, job.result[0], job.error) == (DONE, 5, "")
    assert job.result[1] != os.getpid()
    assert jobs.start("sum", add, 2, 3) is job
    assert jobs.find("sum") is job
    again = ended(jobs.start("sum", add, 2, 4, again=True))
    assert again is not job
    assert again.result[0] == 6


def test_what_goes_wrong_is_told_and_nothing_else_breaks(jobs: Jobs) -> None:
    refused = ended(jobs.start(1, refuse, "this is not a trace"))
    assert (refused.state, refused.error) == (FAILED, "this is not a trace")
    assert ended(jobs.start(1, add, 1, 2, again=True)).result[0] == 3
    broken = ended(jobs.start(2, break_down))
    assert "ZeroDivisionError: one by zero" in broken.error
    dead = ended(jobs.start(3, die))
    assert "has died" in dead.error
    assert ended(jobs.start(4, add, 1, 1)).state == DONE


def test_only_so_many_run_and_wait(jobs: Jobs, tmp_path: Path) -> None:
    first = jobs.start(0, wait_in, str(tmp_path))
    wait_for((tmp_path / "here").exists)
    waiting = [jobs.start(number, add, 1, 1) for number in range(1, 33)]
    assert (first.state, {job.state for job in waiting}) == (RUNNING, {WAITING})
    refused = jobs.start(33, add, 1, 1)
    assert (refused.state, refused.error) == (FAILED, "too much is being done already; try again in a while")
    assert jobs.find(33) is None


def test_work_is_ended_with_the_service_and_leaves_nothing(tmp_path: Path) -> None:
    jobs = Jobs()
    job = jobs.start("long", wait_in, str(tmp_path))
    here = tmp_path / "here"
    wait_for(lambda: here.exists() and here.read_text())  # it is there before what is in it
    process = int(here.read_text())
    jobs.close()
    assert job.state == FAILED
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["here"], "its temporary folder is gone"
    assert jobs.start("more", add, 1, 1).state == FAILED
