"""A disk that is full, gone, broken, slow or hangs (rows D1 to D7): training goes on; every event is there or counted."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import stat
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import Child, Remains, in_process_writer, opened, opens, read_trace, wait_until
from tracekit import (
    EventBatch,
    JSONTraceHandler,
    Profiler,
    Recording,
    Timestamp,
    TracekitError,
    validate_trace,
)
from tracekit.clock import Anchor
from tracekit.distributed import detect_process
from tracekit.events import BEGIN, END, INSTANT, Label, Timestamps, Track
from tracekit.formats.rank_trace import GAP_EVENT, LOSS_EVENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.perfetto import Engine

BATCHES = 40
UNWRITTEN = "events that could not be written"
GONE = "events of files that were removed"


def events_in(remains: Remains) -> int:
    """Count the events of a file as the profiler counts them: a slice at its finish; the gap is nobody's event."""
    return remains.count("XEiC") - remains.count("i", GAP_EVENT)


def told_lost(remains: Remains) -> int:
    """Return what the head of the file says of its losses."""
    told = [event["args"]["lost_events"] for event in remains.events if event["name"] == LOSS_EVENT]
    assert len(told) == 1, f"the file should tell once of its losses, not {told}"
    return int(told[0])


def gaps(remains: Remains) -> list[dict[str, Any]]:
    return [event["args"] for event in remains.events if event["name"] == GAP_EVENT]


# Does what the test says, until that is nothing. With RLIMIT_FSIZE the disk is full by a limit that is set here.
FULL_AND_FREE = """
import json, logging, resource
logging.basicConfig(level=logging.WARNING, format="%(message)s")
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
profiler = record("disk/t.json", flush_interval=0.05)

def limit():
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize("disk/t.json") + 1, limits[1]))

def burst(events):
    for _ in range(events):
        with profiler.marker("work"):
            pass
        tally[0] += 1
    profiler.flush()

def start(name):
    profiler.marker(name).start()
    profiler.flush()

def finish(name):
    profiler.marker(name).finish()
    tally[0] += 1
    profiler.flush()

burst(500)
start("across")
say("done")
while word := hear():
    exec(word)
    say("done")
profiler.stop()
say("summary " + json.dumps(dict(profiler.stats.dropped)))
say(f"failures {sum(profiler.stats.failures.values())}")
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root; RLIMIT_FSIZE is tested without")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.fixture(params=["RLIMIT_FSIZE", "tmpfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Callable[[Child], None], Callable[[Child], None]]:
    """How to fill a disk, and how to free it."""
    if request.param == "RLIMIT_FSIZE":
        (tmp_path / "disk").mkdir()
        return LIMITED
    filler = request.getfixturevalue("small_disk") / "filler"

    def fill(child: Child) -> None:
        del child
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    return fill, lambda _: filler.unlink()


def ask(child: Child, word: str) -> None:
    child.tell(word)
    child.hear("done")


LIMITED = (
    lambda child: ask(child, "limit()"),
    lambda child: ask(child, "resource.setrlimit(resource.RLIMIT_FSIZE, limits)"),
)


def test_d1_d2_d3_a_full_disk_loses_events_by_number_and_recording_resumes(
    tmp_path: Path, engine: Engine, disk: Any
) -> None:
    fill, free = disk
    with Child(FULL_AND_FREE, tmp_path) as child:
        child.hear("done")
        trace = tmp_path / "disk" / "t.json"
        fill(child)
        for _ in range(3):
            ask(child, "burst(200)")
        assert trace.exists()
        remains = read_trace(trace)  # as a kill would leave it
        opens(engine, remains)
        assert child.tally[0] == events_in(remains) + told_lost(remains)
        assert told_lost(remains) > 0
        assert remains.open_slices() == ["across"]
        ask(
            child, "start('starts in the gap'), start('is in the gap'), burst(200), finish('is in the gap'), burst(200)"
        )
        size = trace.stat().st_size
        free(child)
        ask(child, "burst(200)")
        wait_until(lambda: trace.stat().st_size > size)
        ask(child, "finish('starts in the gap'), finish('across'), burst(200)")
        child.tell()
        dropped = json.loads(child.hear("summary"))
        assert int(child.hear("failures")) == 0
        assert child.end() == 0
        remains = opened(engine, trace)
        assert validate_trace(str(trace)).counts == {}
        assert remains.closed
        assert remains.summary["dropped"] == dropped
        assert set(dropped) == {UNWRITTEN}
        assert 800 <= dropped[UNWRITTEN] <= 1001
        assert child.tally[0] == events_in(remains) + dropped[UNWRITTEN]
        assert told_lost(remains) == dropped[UNWRITTEN]
        # Gaps, which say how many and when; what reaches over them is whole.
        found = gaps(remains)
        assert sum(gap["lost_events"] for gap in found) == dropped[UNWRITTEN]
        assert all(gap["from_ns"] < gap["to_ns"] for gap in found)
        assert remains.open_slices() == []
        assert [remains.count("B", name) for name in ("across", "starts in the gap")] == [1, 1]
        if (tmp_path / "disk").stat().st_dev == tmp_path.stat().st_dev:  # not a byte has had room
            assert len(found) == 1
            assert dropped == {UNWRITTEN: 1001}
            assert remains.count("B", "is in the gap") == 0
        assert child.errors.count("cannot be written") == 1


class BadDisk:
    """Stands for ``os.write``: fails, or writes less than it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.fails: Callable[[int], bool] = lambda _: False
        self.error = errno.EIO
        self.shortest: int | None = None
        self.random = random.Random(1)
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, data: Any) -> int:
        self.calls += 1
        size = len(data)
        if self.shortest is not None and size > 1:
            size = self.random.randint(1, min(size - 1, self.shortest))
        if self.fails(self.calls):
            if size > 2:
                self._write(descriptor, data[: size // 2])  # a part of it is there, as after a full disk
            raise OSError(self.error, os.strerror(self.error))
        return self._write(descriptor, data[:size])


TABLES = ([Label("i"), Label("slice")], [Track(0, ""), Track(1, "one")])


def deliver(handler: JSONTraceHandler, batches: int) -> int:
    """Deliver batches of an instant and a slice that goes on in the next one; return how many events that are."""
    timestamps, emitted = Timestamps(Timestamp()), 0
    for number in range(1, batches + 1):
        records: list[Any] = [0, number * 100 + 50, INSTANT, 1, 1, number * 100 + 60, BEGIN, 1]
        if number > 1:
            records += [1, number * 100 + 40, END, 1]
        handler.process_events(EventBatch(records, *TABLES, timestamps, 1_800_000_000_000_000_000, number * 100 + 99))
        emitted += 1 + (number > 1)
    return emitted


def open_handler(path: Path) -> JSONTraceHandler:
    handler = JSONTraceHandler(path)
    process = detect_process(environ={"TRACEKIT_RUN_ID": "disk"})
    handler.open(Recording(process, Anchor(1_800_000_000_000_000_000, 0, 0), Timestamp()))
    return handler


def test_d4_whichever_write_fails_the_rest_is_there_and_the_loss_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BadDisk(monkeypatch)
    errors = [errno.EIO, errno.EDQUOT, errno.ENOSPC, errno.EROFS, errno.ESTALE, errno.EINTR]
    for which in range(1, BATCHES + 1):
        disk.calls, disk.fails = 0, lambda _: False
        handler = open_handler(tmp_path / f"{which}.json")
        disk.calls, disk.error = 0, errors[which % len(errors)]
        disk.fails = lambda call, which=which: call == which
        emitted = deliver(handler, BATCHES)
        if which < BATCHES:  # what came late is in the file again, and counted there
            assert handler._trace.segment is not None
            assert handler._trace.segment.events == emitted - 1
        handler.close()
        remains = read_trace(tmp_path / f"{which}.json")
        lost = handler.losses().get(UNWRITTEN, 0)
        assert lost == 1, which  # of the slices, both ends come late
        assert emitted == events_in(remains) + lost
        assert told_lost(remains) == lost
        assert remains.open_slices() == ["slice"]  # the last one


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_d4_a_disk_that_fails_again_and_again_leaves_a_file_without_a_tear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, share: float
) -> None:
    disk = BadDisk(monkeypatch)
    handler = open_handler(tmp_path / "t.json")
    disk.shortest = 50
    disk.fails = lambda _: disk.random.random() < share / 5  # a batch takes about five calls
    emitted = deliver(handler, 500)
    disk.fails = lambda _: False
    handler.close()
    remains = opened(engine, tmp_path / "t.json")
    lost = handler.losses()[UNWRITTEN]
    assert emitted == events_in(remains) + lost
    assert sum(gap["lost_events"] for gap in gaps(remains)) == told_lost(remains) == lost
    assert remains.open_slices() == ["slice"]


@pytest.mark.parametrize("shortest", [1, 4096])
def test_d4_short_writes_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shortest: int) -> None:
    for name, short in (("good", None), ("bad", shortest)):
        with monkeypatch.context() as patch:
            disk = BadDisk(patch)
            disk.shortest = short
            handler = open_handler(tmp_path / f"{name}.json")
            deliver(handler, 50)
            handler.close()
    assert (tmp_path / "good.json").read_bytes() == (tmp_path / "bad.json").read_bytes()


def test_d4_a_disk_that_cannot_even_be_cut_back_is_not_written_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BadDisk(monkeypatch)
    handler = open_handler(tmp_path / "t.json")
    emitted = deliver(handler, 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
        disk.fails = lambda call: call == disk.calls  # this one
        emitted += deliver(handler, 1)
        disk.fails = lambda _: False
        emitted += deliver(handler, 2)
    emitted += deliver(handler, 1)
    handler.close()
    remains = read_trace(tmp_path / "t.json")
    assert emitted == events_in(remains) + handler.losses()[UNWRITTEN]
    assert len(gaps(remains)) == 1


IN_THE_WAY: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: path.mkdir(),
    "fifo": os.mkfifo,
    "file": lambda path: path.write_text("precious"),
    "link": lambda path: path.symlink_to(path.parent),
    "device": lambda path: path.symlink_to("/dev/full"),
    "dangling link": lambda path: path.symlink_to(path.parent / "nowhere"),
}


@pytest.mark.parametrize("kind", [*IN_THE_WAY, "file for a folder", "name too long"])
def test_d5_what_is_in_the_way_is_refused_before_training_and_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "t.json"
    IN_THE_WAY.get(kind, IN_THE_WAY["file"])(path)
    before = path.lstat()
    name = {"file for a folder": path / "t.json", "name too long": tmp_path / ("x" * 300 + ".json")}.get(kind, path)
    with pytest.raises(TracekitError, match=r"exists already|cannot be written") as refused:
        Profiler(JSONTraceHandler(name), rank=0).start()
    assert str(name) in str(refused.value)
    assert ("File name too long" in str(refused.value)) == (kind == "name too long")
    assert path.lstat() == before
    assert list(tmp_path.iterdir()) == [path]


@contextlib.contextmanager
def recording(path: Path) -> Iterator[tuple[Profiler, Callable[[int], None]]]:
    """Record into a file, with a function that records so many events and flushes them."""
    with Profiler(in_process_writer(path), rank=0, record_batches=False, flush_interval=3600) as profiler:

        def burst(events: int) -> None:
            for _ in range(events):
                with profiler.marker("work"):
                    pass
            profiler.flush()

        yield profiler, burst


@pytest.mark.parametrize("what", ["folder", "file", "replaced"])
def test_d5_what_is_removed_during_the_recording_is_begun_again_and_counted(
    tmp_path: Path, engine: Engine, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    path = tmp_path / "disk" / "t.json"
    path.parent.mkdir(mode=0o755)
    with recording(path) as (profiler, burst), profiler.marker("around"):
        burst(100)
        if what == "folder":
            shutil.rmtree(path.parent)
        elif what == "replaced":
            (tmp_path / "other").write_text("precious")
            (tmp_path / "other").replace(path)
        else:
            path.unlink()
        burst(0)  # notices it
        burst(50)
        burst(25)
    assert caplog.text.count("removed or replaced") == 1
    if what == "replaced":
        assert path.read_text() == "precious"
        path = path.with_name("t-2.json")
    assert path.exists()
    remains = opened(engine, path)
    assert profiler.stats.dropped == {GONE: 100}
    assert events_in(remains) == 176 - 100
    assert gaps(remains)[0]["lost_events"] == 100
    assert remains.summary["dropped"] == {GONE: 100}
    assert remains.count("B", "around") == 1
    if what == "folder":
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_d5_a_folder_that_is_gone_and_cannot_be_made_loses_events_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "disk"
    with recording(folder / "t.json") as (profiler, burst):
        burst(10)
        shutil.rmtree(folder)
        folder.write_text("in the way")
        for _ in range(3):
            burst(20)
        folder.unlink()
        burst(5)
        burst(7)
        dropped = dict(profiler.stats.dropped)
    remains = read_trace(folder / "t.json")
    assert events_in(remains) + sum(dropped.values()) == 82
    assert dropped[UNWRITTEN] + dropped[GONE] >= 70 - 20
    assert sum(gap["lost_events"] for gap in gaps(remains)) == sum(dropped.values())
    assert remains.summary["dropped"] == dropped
    assert caplog.text.count("no new trace file can be made") == 1
    assert not profiler.stats.failures


def test_d5_a_change_of_the_current_folder_moves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    handler = JSONTraceHandler("p{part}.json", rotate_bytes=1)
    with Profiler(handler, rank=0, flush_interval=3600) as profiler:
        monkeypatch.chdir(tmp_path / "there")
        for _ in range(3):
            profiler.marker("i").instant()
            profiler.flush()
    assert handler.paths == ["p0.json", "p1.json", "p2.json"]
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == handler.paths
    assert list((tmp_path / "there").iterdir()) == []


HANGS = """
let_go, hanging, real_write = threading.Event(), threading.Event(), os.write

def write(descriptor, data):
    if len(data) > 300 and hanging.is_set():
        let_go.wait()
    return real_write(descriptor, data)

os.write = write
profiler = record(flush_interval=0.02, shutdown_timeout=1.0, max_buffered_events=10_000)
marker = profiler.marker("work")
with marker:
    pass
profiler.flush()
hanging.set()
for _ in range(60):
    for _ in range(500):
        with marker:
            pass
    profiler.step()
    time.sleep(0.002)
say("recorded")
profiler.stop()
say(f"dropped {sum(profiler.stats.dropped.values())}")
"""


def test_d6_nobody_waits_for_a_disk_that_hangs(tmp_path: Path) -> None:
    with Child(HANGS, tmp_path) as child:
        child.hear("recorded")  # a write would have hung for ever, and so would a stop that waits for it
        assert int(child.hear("dropped")) >= 5_000
        assert child.end() == 0
        assert "did not finish within 1 s" in child.errors or "are left behind" in child.errors


def test_d6_a_slow_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = os.write

    def write(descriptor: int, data: Any) -> int:
        time.sleep(0.02)
        return real_write(descriptor, data)

    with recording(tmp_path / "t.json") as (profiler, burst), monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        for _ in range(20):
            burst(50)
            profiler.step()
    assert read_trace(tmp_path / "t.json").count("XE", "work") == 1000
    assert profiler.stats.dropped == {}


def test_d7_without_descriptors_the_open_file_is_written_on(tmp_path: Path, engine: Engine) -> None:
    program = """
    import logging, resource
    from tracekit import JSONTraceHandler, Profiler
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    before = len(os.listdir("/proc/self/fd"))
    profiler = Profiler(
        JSONTraceHandler("p{part}.json.gz", rotate_bytes=1), rank=0, record_batches=False, flush_interval=3600
    )
    profiler.start()
    say(f"descriptors {len(os.listdir('/proc/self/fd')) - before}")
    def burst():
        for _ in range(100):
            with profiler.marker("work"):
                pass
        profiler.flush()
    burst()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for _ in range(3):
        burst()
    try:
        Profiler(JSONTraceHandler("other.json"), rank=0).start()
    except Exception as error:
        say(f"refused {type(error).__name__} {error}")
    for descriptor in taken:
        os.close(descriptor)
    burst()
    burst()
    profiler.stop()
    say(f"dropped {profiler.stats.dropped} {dict(profiler.stats.failures)}")
    """
    with Child(program, tmp_path) as child:
        # The file, and two for the byte in memory that tells children what is recorded.
        assert int(child.hear("descriptors")) == 3
        assert child.hear("refused").startswith("StorageError other.json: cannot be written: Too many open files")
        assert child.hear("dropped") == "{} {}"
        assert child.end() == 0
        assert child.errors.count("the old one is written on") == 1
    parts = [read_trace(path) for path in sorted(tmp_path.glob("p*.json.gz"))]
    assert [part.count("X") for part in parts] == [400, 100, 100]
    for part in parts:
        opens(engine, part)
