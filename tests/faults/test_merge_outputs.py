"""M4, M6: a merge that is killed, finds the disk full, or is fed a bomb. The output is whole or not there; inputs stay."""

from __future__ import annotations

import gzip
import hashlib
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.bad_traces import rank_trace, slice_
from tests.faults.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine


def make_inputs(folder: Path, ranks: int = 2, slices: int = 3000) -> dict[str, str]:
    folder.mkdir()
    for rank in range(ranks):
        events = (slice_(10 * number, 5, f"slice {number}") for number in range(1, slices + 1))
        (folder / f"rank{rank}.json").write_bytes(rank_trace(*events, rank=rank, pid=100 + rank))
    return digests(folder)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


LIMITED = """
import os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.{limit}, ({value}, {value}))
from tracekit.cli import main
{more}
sys.exit(main(sys.argv[1:]))
"""


def run_under(
    limit: str, value: int, folder: Path, *arguments: str, more: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of tracekit under a limit of the system."""
    return subprocess.run(
        [sys.executable, "-c", LIMITED.format(limit=limit, value=value, more=more), *arguments],
        cwd=folder,
        # Python does not notice that it has written half a .pyc, and every later process would fail at it.
        env={"PYTHONPATH": str(ROOT), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1", **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


# The kernel kills a process that writes beyond RLIMIT_FSIZE, at exactly that byte, unless it catches SIGXFSZ as Python does.
KILLED_BY_SIZE = "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)"


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_merge_that_is_killed_while_it_writes_leaves_no_output(tmp_path: Path, size: int) -> None:
    before = make_inputs(tmp_path / "in")
    done = run_under("RLIMIT_FSIZE", size, tmp_path, "merge", "-o", "out.json", "in", more=KILLED_BY_SIZE)
    assert done.returncode == -signal.SIGXFSZ, done.stderr
    assert not (tmp_path / "out.json").exists()
    assert digests(tmp_path / "in") == before
    # What the killed one left does not stand in the way of the next.
    assert run_under("RLIMIT_CORE", 0, tmp_path, "merge", "-o", "out.json", "in").returncode == 0


@pytest.mark.parametrize("function", ["fsync", "replace", "link"])
def test_a_merge_that_is_killed_at_its_last_step_leaves_all_or_nothing(
    tmp_path: Path, engine: Engine, function: str
) -> None:
    before = make_inputs(tmp_path / "in")
    killed = f"os.{function} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)"
    done = run_under("RLIMIT_CORE", 0, tmp_path, "merge", "-o", "out.json", "in", more=killed)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    assert (tmp_path / "out.json").exists() == (done.returncode == 0)
    assert digests(tmp_path / "in") == before
    if done.returncode == 0:
        with engine.load(tmp_path / "out.json") as trace:
            assert trace.errors() == []
            assert trace.scalar("select count(*) from slice where category is not 'clock'") == 6000


PACKED_BEHIND = "from tracekit.formats import gzip_codec; gzip_codec._TOGETHER_BYTES = 1"


@pytest.mark.parametrize(
    ("name", "workers", "more"),
    [("out.json", "1", ""), ("out.json", "2", ""), ("out.json.gz", "1", PACKED_BEHIND), ("out.json.gz", "2", "")],
)
def test_a_full_disk_ends_a_merge_with_one_sentence_and_no_output(
    tmp_path: Path, name: str, more: str, workers: str
) -> None:
    before = make_inputs(tmp_path / "in")
    done = run_under("RLIMIT_FSIZE", 4096, tmp_path, "merge", "--workers", workers, "-o", name, "in", more=more)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert name in done.stderr
    assert digests(tmp_path / "in") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


BOMBS = {
    "white space": lambda: rank_trace(slice_(10, 5, "first"))[:-3] + b" " * (200 << 20) + b"\n]\n",
    "one string": lambda: b'[\n{"ph":"X","name":"' + b"x" * (64 << 20) + b'"}]\n',
    "open brackets": lambda: b"[" * (50 << 20),
}


@pytest.mark.parametrize(
    "bomb", ["open brackets", *(pytest.param(other, marks=pytest.mark.slow) for other in ("white space", "one string"))]
)
def test_a_bomb_ends_in_a_merge_or_a_sentence_in_bounded_memory(tmp_path: Path, bomb: str) -> None:
    make_inputs(tmp_path / "in", slices=3)
    (tmp_path / "in" / "rank7.json.gz").write_bytes(gzip.compress(BOMBS[bomb](), 1))
    done = run_under("RLIMIT_AS", 512 << 20, tmp_path, "merge", "--force", "-o", "out.json", "in")
    assert done.returncode in (0, 1, 3), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert (tmp_path / "out.json").exists() == (done.returncode != 1)
