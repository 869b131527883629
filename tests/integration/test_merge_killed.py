"""Merges that are killed by SIGKILL, and what the next one to the same output finds and removes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.bad_traces import rank_trace, slice_
from tracekit.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

pytestmark = pytest.mark.skipif(not BOOT_ID.exists(), reason="the kernel tells no boot, so that nothing is judged")

MERGE = """
import os, signal, sys
{before}
from tracekit.cli import main
if __name__ == "__main__":
    sys.exit(main(["merge", "-q", "--force", *sys.argv[1:]]))
"""
KILLED_WHEN_WRITTEN = "os.fsync = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"


def merge(folder: Path, *arguments: str, before: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MERGE.format(before=before), *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


HELD_WHILE_IT_WRITES = """
import os
from tracekit.merge.execute import executor
write = executor.write_unit
def held(*arguments, **options):
    pipe = os.open({pipe!r}, os.O_RDONLY)
    os.read(pipe, 1)  # until the other end is closed
    return write(*arguments, **options)
executor.write_unit = held
"""


@contextmanager
def merge_that_writes(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a merge that is in the middle of writing; give it, and what it waits for until it is closed."""
    pipe = folder / f"pipe{len(list(folder.iterdir()))}"
    os.mkfifo(pipe)
    with merge(folder, *arguments, before=HELD_WHILE_IT_WRITES.format(pipe=str(pipe))) as process:
        descriptor = os.open(pipe, os.O_WRONLY)  # waits for who reads
        try:
            yield process, descriptor
        finally:
            with suppress(OSError):
                os.close(descriptor)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            pipe.unlink()


def hidden(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(".")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(2):
        events = (slice_(10 * number, 5, f"slice {number}") for number in range(1, 500))
        (tmp_path / f"rank{rank}.json").write_bytes(rank_trace(*events, rank=rank, pid=100 + rank))
    return tmp_path


@pytest.mark.parametrize(("name", "workers"), [("out.json", "2"), ("out.pftrace.gz", "1"), ("out.zip", "1")])
def test_the_next_merge_removes_what_one_has_left_that_was_killed_while_it_wrote(
    folder: Path, name: str, workers: str
) -> None:
    arguments = ["--workers", workers, "-o", name, "rank0.json", "rank1.json"]
    with merge(folder, *arguments, before=KILLED_WHEN_WRITTEN) as killed:
        killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL
    [left] = hidden(folder)
    assert any(path.suffix == ".tmp" and path.stat().st_size > 100 for path in (folder / left).iterdir())
    with merge(folder, "-o", f"other-{name}", "rank0.json") as other:
        other.communicate(timeout=240)
    assert hidden(folder) == {left}
    with merge(folder, *arguments) as following:
        _, said = following.communicate(timeout=240)
    assert (following.returncode, said) == (0, "")
    assert hidden(folder) == set()
    assert (folder / name).stat().st_size > 100


def test_a_merge_that_runs_keeps_its_folder_and_one_that_was_killed_does_not(folder: Path) -> None:
    arguments = ("--force", "-o", "out.json", "rank1.json")
    with (
        merge_that_writes(folder, *arguments) as (running, descriptor),
        merge_that_writes(folder, *arguments) as (killed, _),
    ):
        assert len(hidden(folder)) == 2
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate(timeout=240)
        assert len(hidden(folder)) == 2
        assert main(["merge", "-q", "-o", str(folder / "out.json"), str(folder / "rank0.json")]) == 0
        [kept] = hidden(folder)
        assert (folder / kept / "owner").is_file()
        os.close(descriptor)
        _, said = running.communicate(timeout=240)
        assert (running.returncode, said) == (0, "")
        assert hidden(folder) == set()
        merged = json.loads((folder / "out.json").read_bytes())
        assert merged["tracekit"]["merge"]["ranks"] == [[1, 1]]
