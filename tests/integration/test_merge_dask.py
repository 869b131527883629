"""A merge on a Dask cluster, from S3 to S3: a real scheduler, two real workers, and a real S3-compatible server on loopback.

The workers share no folder with the merging process: all they have in common is the object store.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.object_store import BUCKET, ObjectStore, free_port
from tests.faults.processes import wait_until
from tests.merge_inputs import event, meta, write
from tests.merge_inputs import rank_trace as rank_trace_of
from tests.merge_inputs import torch_trace as torch_trace_of
from tracekit.cli import main
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


pytest.importorskip("distributed", reason="Dask is not installed: pip install 'tracekit-ml[dask]'")

ROOT = Path(__file__).resolve().parents[2]
RANKS = 4
MERGE = "import sys\nfrom tracekit.cli import main\nsys.exit(main(sys.argv[1:]))"

# Merges as the command does, with patience as a test wants it; prints what became of it.
DRIVER = """
import json, sys
from tracekit.errors import TracekitError
from tracekit.merge import merge_traces
from tracekit.merge.execute.dask_cluster import DaskExecutor

address, output, inputs, lost_s = json.loads(sys.argv[1])
try:
    with DaskExecutor(address, lost_s=lost_s) as executor:
        merge_traces(output, [inputs], executor=executor)
    print("merged")
except TracekitError as error:
    print(type(error).__name__, error, sep=": ")
"""

# Loaded by workers: one that has uploaded a part, or is in the middle of it, is killed, as long as the folder holds a token.
KILLED = """
import os, signal
from pathlib import Path
from tracekit.merge.execute import part_store
from tracekit.storage import filesystem_of

upload = getattr(part_store.upload, "original", part_store.upload)  # Dask loads this twice

def die():
    for token in Path({folder!r}).glob("token-*"):
        try:
            token.unlink()
        except FileNotFoundError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)

def upload_and_die(local, url, upload=upload):
    if "{kind}" == "upload" and list(Path({folder!r}).glob("token-*")):
        filesystem, inner = filesystem_of(url)
        bucket, key, _ = filesystem.split_path(inner)
        filesystem.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
        die()
    upload(local, url)
    if "{kind}" == "part":
        die()

upload_and_die.original = upload
part_store.upload = upload_and_die
"""

# Loaded by workers that do not get on with their work.
HALTED = """
import threading
from pathlib import Path
from tracekit.merge.execute import executor

def halt(*arguments, **options):
    Path({folder!r}, "halted").touch()
    threading.Event().wait()

executor.probe = executor.write_unit = halt
"""


def rank_trace(rank: int, events: int = 3000) -> list[dict[str, Any]]:
    """Return a rank trace with markers; more than is kept in memory, some of which overlap."""
    pid, chance = 100 + rank, random.Random(rank)
    markers = [
        event(f"marker {number}", 2 * number, chance.choice([1.5, 3.25, 4.75]), pid=pid, tid=pid + number % 2)
        for number in range(events)
    ]
    return rank_trace_of(*markers, rank=rank, pid=pid, boot_id="b")


def torch_trace(rank: int, events: int = 3000) -> dict[str, Any]:
    """Return a torch trace of the same process: its operators lie on the threads of the markers."""
    pid = 100 + rank
    operators = [
        event(f"aten::{number}", 2 * number + 0.5, 1.0 + number % 5, pid=pid, tid=pid + number % 2, cat="cpu_op")
        for number in range(events)
    ]
    return torch_trace_of(meta("process_name", pid, name="python"), *operators, distributedInfo={"rank": rank})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    for rank in range(RANKS):
        write(folder, {f"rank{rank}.json": rank_trace(rank), f"torch-rank{rank}.json": torch_trace(rank)})
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> bytes:
    """What the merge on one machine makes of it."""
    output = folder.parent / "expected.json"
    report = merge_traces(str(output), [str(folder)])
    assert report.overlaps_moved > 1000  # so that times really travel between the workers
    return output.read_bytes()


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[ObjectStore]:
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 50_000)
    server = ObjectStore()
    for path in folder.iterdir():
        server.client.upload_file(str(path), BUCKET, f"run/{path.name}")
    yield server
    server.stop()
    monkeypatch.undo()


@pytest.fixture
def inputs(store: ObjectStore) -> Iterator[list[str]]:
    """The names of the inputs; whatever a merge leaves beside them is a mistake."""
    before = store.keys()
    yield before
    assert store.unfinished() == []
    left = [key for key in store.keys() if key not in before and key != "merged.json"]  # noqa: SIM118 - no dict
    store.client.delete_object(Bucket=BUCKET, Key="merged.json")
    assert left == []


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _scheduler(tmp_path_factory.mktemp("scheduler")) as address:
        yield address


@contextmanager
def _scheduler(folder: Path) -> Iterator[str]:
    """Run a scheduler; yields its address."""
    file = folder / "scheduler.json"
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    command = ["distributed.cli.dask_scheduler", *options, "--scheduler-file", str(file)]
    with _process(command, folder, dict(os.environ)) as process:
        (folder / "pid").write_text(str(process.pid))
        wait_until(lambda: file.exists() and file.read_text().endswith("}"))
        yield json.loads(file.read_text())["address"]


@contextmanager
def _process(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module in a process until the block ends, and everything that it has started."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Workers:
    """Starts workers in processes of their own, each in a folder of its own."""

    def __init__(self, scheduler: str, folder: Path, environment: dict[str, str], stack: ExitStack) -> None:
        self._scheduler = scheduler
        self._folder = folder
        self._environment = environment
        self._stack = stack

    def start(
        self, count: int = 2, *, kill_after: str = "", kills: int = 0, nanny: bool = False, program: str = KILLED
    ) -> list[Any]:
        """Start them; those that put an object of a kind into the scratch space are killed, so many times."""
        preload = self._folder / "preload.py"
        preload.write_text(program.replace("{kind}", kill_after).replace("{folder!r}", repr(str(self._folder))))
        for number in range(kills):
            (self._folder / f"token-{number}").touch()
        found = []
        for number in range(count):
            folder = self._folder / f"worker-{number}"
            folder.mkdir()
            command = ["distributed.cli.dask_worker", self._scheduler, "--nthreads", "1", "--no-dashboard"]
            command += ["--nanny" if nanny else "--no-nanny", "--host", "127.0.0.1", "--preload", str(preload)]
            environment = {**self._environment, "TMPDIR": str(folder)}
            found.append(
                self._stack.enter_context(_process([*command, "--local-directory", str(folder)], folder, environment))
            )
        # How long they take to start is not what a merge is to be patient with.
        for number in range(count):
            log = self._folder / f"worker-{number}" / "log"
            wait_until(lambda log=log: b"Registered to:" in log.read_bytes())  # type: ignore[misc]
        return found


@pytest.fixture
def environment(store: ObjectStore) -> dict[str, str]:
    return {**os.environ, **store.environment(), "PYTHONPATH": str(ROOT)}


@pytest.fixture
def workers(scheduler: str, tmp_path: Path, environment: dict[str, str]) -> Iterator[Workers]:
    with ExitStack() as stack:
        yield Workers(scheduler, tmp_path, environment, stack)


@pytest.fixture
def merge(scheduler: str, environment: dict[str, str], tmp_path: Path) -> Callable[..., str]:
    """Merge in a process that has a folder of its own, and return what became of it."""

    def _merge(output: str = "merged.json", *, lost_s: float = 30) -> str:
        options = [scheduler, f"s3://{BUCKET}/{output}", f"s3://{BUCKET}/run", lost_s]
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, json.dumps(options)],
            env={**environment, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.stdout.count("\n") == 1, done.stderr
        return done.stdout.strip()

    return _merge


def command(environment: dict[str, str], *arguments: str, program: str = MERGE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, "merge", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.slow
def test_the_output_is_that_of_one_machine(
    workers: Workers,
    scheduler: str,
    environment: dict[str, str],
    inputs: list[str],
    store: ObjectStore,
    expected: bytes,
) -> None:
    workers.start()
    done = command(environment, "--dask", scheduler, "-o", f"s3://{BUCKET}/merged.json", f"s3://{BUCKET}/run")
    assert (done.returncode, [line for line in done.stderr.splitlines() if "%" not in line]) == (0, [])  # progress
    assert done.stdout.startswith(f"merged {2 * RANKS} files of {RANKS} ranks")
    assert store.get("merged.json") == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["upload", "part"])
def test_what_a_killed_worker_was_at_is_done_by_another(
    workers: Workers, merge: Any, inputs: list[str], store: ObjectStore, expected: bytes, tmp_path: Path, kind: str
) -> None:
    processes = workers.start(kill_after=kind, kills=1)
    assert merge() == "merged"
    assert list(tmp_path.glob("token-*")) == []
    assert sorted(process.poll() is None for process in processes) == [False, True]
    assert store.get("merged.json") == expected


@pytest.mark.slow
def test_a_merge_whose_workers_all_die_fails_and_leaves_nothing(
    workers: Workers, merge: Any, inputs: list[str], store: ObjectStore
) -> None:
    workers.start(kill_after="part", kills=2)
    message = merge(lost_s=2)
    assert message.startswith("MergeError: --dask tcp://127.0.0.1:")
    assert message.endswith(": the cluster has no worker any more; nothing was written")
    assert "merged.json" not in store.keys()  # noqa: SIM118 - no dict


@pytest.mark.slow
def test_work_that_kills_every_worker_is_given_up(
    workers: Workers, merge: Any, inputs: list[str], store: ObjectStore
) -> None:
    workers.start(kill_after="part", kills=100, nanny=True)  # a nanny starts a new worker for each that dies
    message = merge(lost_s=300)  # on a busy machine, a new one may take longer than the usual 30 s
    assert "different workers, but all those workers died" in message
    assert "merged.json" not in store.keys()  # noqa: SIM118 - no dict


@pytest.mark.slow
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:{port}", "nonsense://x"])
def test_what_cannot_be_connected_to_is_named(environment: dict[str, str], address: str) -> None:
    address = address.format(port=free_port())
    patient = f"from tracekit.merge.execute import dask_cluster\ndask_cluster._CONNECT_S = 1\n{MERGE}"
    done = command(environment, "--dask", address, "x.json", program=patient)
    assert done.returncode == 1
    assert done.stderr.startswith(f"tracekit: --dask {address}: the scheduler cannot be reached: ")
    assert done.stderr.count("\n") == 1


def test_without_dask_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["merge", "--dask", "tcp://127.0.0.1:1", "x.json"]) == 1
    assert capsys.readouterr().err == (
        "tracekit: Merging on a Dask cluster needs distributed: pip install 'tracekit-ml[dask]'\n"
    )


@pytest.mark.slow
def test_a_scheduler_that_is_lost_ends_the_merge_in_a_sentence(
    environment: dict[str, str], inputs: list[str], store: ObjectStore, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        (tmp_path / "scheduler").mkdir()
        address = stack.enter_context(_scheduler(tmp_path / "scheduler"))
        Workers(address, tmp_path, environment, stack).start(program=HALTED)
        driver = stack.enter_context(
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    DRIVER,
                    json.dumps([address, f"s3://{BUCKET}/merged.json", f"s3://{BUCKET}/run", 2]),
                ],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        wait_until((tmp_path / "halted").exists)
        os.kill(int((tmp_path / "scheduler" / "pid").read_text()), signal.SIGKILL)
        stdout, stderr = driver.communicate(timeout=400)
    assert stdout.startswith(f"MergeError: --dask {address}: ")
    assert stderr == ""


ANOTHER_VERSION = "from tracekit.merge.execute import dask_cluster\ndask_cluster.__version__ = '0.0.1'\n"


ENDLESS = """
from tracekit.merge.execute import executor

def endless(*arguments, **options):
    return endless(*arguments)

executor.write_unit = endless
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "says"),
    [
        (ANOTHER_VERSION, r"MergeError: --dask tcp://127.0.0.1:.* has tracekit 0\.0\.1, and this is"),
        ("", r"MergeError: --dask tcp://127.0.0.1:.*no worker is ready"),
        (ENDLESS, r"MergeError: a worker failed \(RecursionError: "),
    ],
    ids=["another version", "no workers", "an unexpected fault"],
)
def test_a_cluster_that_cannot_do_the_work_is_told_in_a_sentence(
    workers: Workers, merge: Any, inputs: list[str], program: str, says: str
) -> None:
    if program:
        workers.start(1, program=program)
    assert re.match(says, merge(lost_s=30 if program else 1))
