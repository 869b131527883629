"""A remote storage that is down, slow, mad or somebody else's (rows R1 to R9): training goes on, and nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from tests.faults import Child, wait_until
from tests.faults.object_store import BUCKET, FaultProxy, ObjectStore, free_port
from tests.faults.processes import ROOT
from tracekit.outbox import upload
from tracekit.outbox.finish import finish_spool, report_lines
from tracekit.outbox.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.perfetto import Engine

# The beginning of every program: a profiler that writes to the storage, a segment each 20 kB. It is patient by default.
RECORDER = """
import logging, time
from tests.faults.writers import impatient, make_remote_writer
from tests.faults.child import WRITER
from tracekit import Profiler

def recorder(times={}, options={}, **how):
    impatient(**times)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    options = {"rotate_bytes": 20_000, "rotate_seconds": 0.2, "spool": "spool", **options}
    handler = make_remote_writer(WRITER, "s3://bucket/{run_id}/rank0.json", **options)
    how = {"rank": 0, "run_id": "run", "record_batches": False, "flush_interval": 0.05, "shutdown_timeout": 100, **how}
    return handler, Profiler(handler, **how)

def work(profiler, events):
    for _ in range(events):
        with profiler.marker("work"):
            pass

def bursts(profiler, count, events=100, pause_s=0.0):
    for _ in range(count):
        work(profiler, events)
        assert profiler.flush(3600.0), "nothing is delivered any more"  # it would wait for the storage for an hour
        time.sleep(pause_s)

def wait_for_fault():
    say("started")
    hear()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    server = ObjectStore()
    yield server
    server.stop()


@pytest.fixture
def store(server: ObjectStore) -> Iterator[ObjectStore]:
    yield server
    server.forget()


def recording(program: str, folder: Path, store: ObjectStore, port: int | None = None) -> Child:
    return Child(RECORDER + textwrap.dedent(program), folder, environment=store.environment(port))


@contextlib.contextmanager
def behind_proxy(program: str, folder: Path, store: ObjectStore) -> Iterator[tuple[FaultProxy, Child]]:
    """Record through a proxy, up to the moment of the fault."""
    with FaultProxy(store.port) as proxy, recording(program, folder, store, port=proxy.port) as child:
        child.hear("started")
        yield proxy, child


def command(folder: Path, store: ObjectStore, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tracekit", *arguments],
        cwd=folder,
        env={**os.environ, **store.environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def upload_the_rest(folder: Path, store: ObjectStore) -> None:
    """Finish the only spool that was left, as the log says to."""
    done = command(folder, store, "upload", str(only_spool(folder).parent))
    assert done.returncode == 0, done.stderr


def spools(folder: Path) -> list[Path]:
    return sorted((folder / "spool").glob("*/spool.jsonl"))


def only_spool(folder: Path) -> Path:
    """Return the journal of the only spool."""
    found = spools(folder)
    assert len(found) == 1, f"there should be one spool, not {found}"
    return found[0]


def slices(events: list[dict[str, Any]]) -> int:
    """Count the slices that end in a segment: one that was open at a flush is a B and an E."""
    return sum(event["ph"] in "XE" for event in events)


def whole_slices(segments: Iterable[list[dict[str, Any]]]) -> int:
    """Count the slices in segments, one that is cut in two by the end of a segment once."""
    events = [event for segment in segments for event in segment]
    begins = {(event["tid"], event["ts"]) for event in events if event["ph"] == "B"}
    continued = sum(event["ph"] == "E" and (event["tid"], event["ts"]) in begins for event in events)
    return slices(events) - continued


def in_store(store: ObjectStore) -> int:
    """Count the slices in all segments."""
    return whole_slices(store.segments().values())


def load(engine: Engine, store: ObjectStore, folder: Path) -> None:
    """Assert that the engine loads every segment as it is, and finds every slice."""
    segments = store.segments()
    assert segments, "there is no segment"
    for key, events in segments.items():
        path = folder / "downloaded" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(key))
        with engine.load(path) as trace:
            assert trace.errors() == []
            assert trace.scalar("select count(*) from slice where dur >= 0") == slices(events)


def test_segments_are_uploaded_while_the_recording_goes_on(tmp_path: Path, store: ObjectStore, engine: Engine) -> None:
    program = """
    handler, profiler = recorder()
    with profiler:
        bursts(profiler, 1, 1000)
        say("first")
        hear()
        work(profiler, 10)
    say("end")
    """
    with recording(program, tmp_path, store) as child:
        child.hear("first")
        wait_until(lambda: in_store(store) == 1000)
        load(engine, store, tmp_path)
        child.tell()
        child.hear("end")
        assert in_store(store) == 1010
        index = store.index()
        assert index["complete"] is True
        assert [f"run/{segment['name']}" for segment in index["segments"]] == list(store.segments())
        assert sum(segment["events"] for segment in index["segments"]) == 1010
        assert all(segment["state"] == "uploaded" and segment["sha256"] for segment in index["segments"])
        assert child.end() == 0
        assert spools(tmp_path) == []
        assert child.errors == ""
    merged = command(tmp_path, store, "merge", "-o", "merged.json", "s3://bucket/run/")
    assert (merged.returncode, merged.stderr) == (0, "")
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name = 'work'") == 1010


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_uploads_segments_of_its_own_beside_its_parent(tmp_path: Path, store: ObjectStore) -> None:
    program = """
    handler, profiler = recorder()
    with profiler:
        bursts(profiler, 4)
        child = os.fork()
        if child == 0:
            with profiler.child_recording("decoder"):
                work(profiler, 100)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        work(profiler, 30)
    say(f"end {child}")
    """
    with recording(program, tmp_path, store) as child:
        pid = child.hear("end")
        assert child.end() == 0
        assert "tracekit:" not in child.errors
        segments = store.segments()
        own = [events for key, events in segments.items() if f"-decoder-{pid}" in key]
        parents = [events for key, events in segments.items() if f"-decoder-{pid}" not in key]
        assert (whole_slices(parents), whole_slices(own)) == (430, 100)
        assert spools(tmp_path) == []


def test_r1_a_storage_that_is_down_at_the_start_is_reported_soon_and_training_runs(
    tmp_path: Path, store: ObjectStore, engine: Engine
) -> None:
    program = """
    handler, profiler = recorder({"WARM_UP_S": 1.0, "FIRST_PAUSE_S": 0.5}, shutdown_timeout=2.0)
    profiler.start()
    work(profiler, 1000)
    profiler.stop()
    assert not profiler.stats.failures, profiler.stats
    say(f"kept {len(handler.kept)}")
    """
    with recording(program, tmp_path, store, port=free_port()) as child:
        assert int(child.hear("kept")) == 1  # and hangs nowhere
        assert child.end() == 0
        assert "cannot be reached" in child.errors or "an upload failed" in child.errors
        assert store.keys() == []
        done = command(
            tmp_path, store, *child.errors.strip().rpartition("to finish it: tracekit ")[2].split(), "--json"
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["spools"][0]["complete"] is True
        assert in_store(store) == 1000
        load(engine, store, tmp_path)


def test_r2_a_storage_that_dies_and_comes_back_gets_everything(
    tmp_path: Path, store: ObjectStore, engine: Engine
) -> None:
    program = """
    handler, profiler = recorder({"ANSWER_S": 1.0})
    with profiler:
        bursts(profiler, 1)
        say("begun")
        hear()
        bursts(profiler, 5, 300)
        say("recorded while it was down")
        hear()
    say(f"failures {sum(profiler.stats.failures.values())}")
    """
    with recording(program, tmp_path, store) as child:
        child.hear("begun")
        store.stop()
        try:
            child.tell()
            child.hear("recorded")
        finally:
            store.start()
        child.tell()
        assert int(child.hear("failures")) == 0
        assert in_store(store) == 1600
        assert store.index()["complete"] is True
        assert spools(tmp_path) == []
        assert child.errors.count("an upload failed") <= 1
        load(engine, store, tmp_path)


def test_r3_nobody_waits_for_a_storage_that_takes_everything_and_says_nothing(
    tmp_path: Path, store: ObjectStore
) -> None:
    program = """
    handler, profiler = recorder({"ANSWER_S": 0.5}, {"rotate_seconds": 0.05}, shutdown_timeout=2.0)
    profiler.start()
    wait_for_fault()
    bursts(profiler, 10, pause_s=0.06)
    say(f"hanging {sum(thread.name == 'tracekit-upload' for thread in threading.enumerate())}")
    hear()
    profiler.stop()
    say("stopped")
    """
    with behind_proxy(program, tmp_path, store) as (proxy, child):
        proxy.fault, before = "black hole", proxy.connections
        child.tell()
        assert int(child.hear("hanging")) <= 2
        wait_until(lambda: proxy.connections > before + 1)  # it is tried again
        child.tell()
        child.hear("stopped")  # the storage says nothing for good
        assert child.end() == 0
        upload_the_rest(tmp_path, store)
        assert in_store(store) == 1000


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"delay_s": 0.3}, id="far away"),
        pytest.param({"bytes_per_s": 100_000}, id="thin", marks=pytest.mark.slow),
        pytest.param({"fault": "reset", "refusals": 4}, id="RST", marks=pytest.mark.slow),
        pytest.param({"fault": "refuse", "refusals": 4, "status": 503, "code": "SlowDown"}, id="503"),
    ],
)
def test_r4_a_bad_network_delays_and_loses_nothing(
    tmp_path: Path, store: ObjectStore, settings: dict[str, Any]
) -> None:
    program = """
    handler, profiler = recorder({"ANSWER_S": 2.0})
    with profiler:
        wait_for_fault()
        work(profiler, 1000)
    """
    with behind_proxy(program, tmp_path, store) as (proxy, child):
        for name, value in settings.items():
            setattr(proxy, name, value)
        child.tell()
        assert child.end() == 0
        assert in_store(store) == 1000
        assert store.index()["complete"] is True
        assert child.errors.count("tracekit: ") <= 1, child.errors  # further messages of aiohttp are not ours


def test_r4_a_connection_that_is_cut_leaves_nothing_half(tmp_path: Path, store: ObjectStore) -> None:
    program = """
    handler, profiler = recorder(shutdown_timeout=1.5)
    with profiler:
        wait_for_fault()
        work(profiler, 3000)
    say(f"failures {sum(profiler.stats.failures.values())}")
    """
    with behind_proxy(program, tmp_path, store) as (proxy, child):
        proxy.cut_after = 30_000
        child.tell()
        assert int(child.hear("failures")) == 0
        assert child.end() == 0
        assert store.segments() == {}
        upload_the_rest(tmp_path, store)
        assert in_store(store) == 3000


def test_r4_a_refusal_is_reported_once_and_not_tried_for_ever(tmp_path: Path, store: ObjectStore) -> None:
    program = """
    handler, profiler = recorder({"FIRST_PAUSE_S": 0.01}, {"rotate_seconds": 0.05})
    with profiler:
        wait_for_fault()
        bursts(profiler, 10, pause_s=0.06)
    """
    with behind_proxy(program, tmp_path, store) as (proxy, child):
        proxy.fault, proxy.status, proxy.code = "refuse", 403, "ExpiredToken"
        child.tell()
        assert child.end() == 0
        assert proxy.connections < 10
        assert child.errors.count("the storage refuses") == 1
        upload_the_rest(tmp_path, store)
        assert in_store(store) == 1000


@pytest.mark.parametrize(("fault", "status"), [("portal", 200), ("error page", 418)])
def test_r4_an_answer_from_what_is_no_object_store_deletes_nothing(
    tmp_path: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, fault: str, status: int
) -> None:
    for name, value in store.environment().items():
        monkeypatch.setenv(name, value)
    url = "s3://bucket/run/t"
    spool = Spool.create(tmp_path, {"run_id": "run", "rank": 0, "attempt": 0, "pid": 1, "index": f"{url}.index.json"})
    segment = spool.begin(f"{url}-part0000.json")
    path = spool.folder / segment.file
    path.write_text('[\n{"ph":"i"}\n]\n')
    spool.finish(segment, 1, 1, 2)
    spool.note("closed")
    spool.close()
    with FaultProxy(store.port) as proxy:
        proxy.fault, proxy.status = fault, status
        monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": f"http://127.0.0.1:{proxy.port}"})
        monkeypatch.setattr(upload, "ANSWER_S", 60.0)
        monkeypatch.setattr(upload, "MAX_PAUSE_S", 0.02)
        report = finish_spool(spool.folder, tries=2)
    assert not report["complete"]
    assert [one["file"] for one in report["left"]] == [str(path)]
    assert path.exists()
    if fault == "portal":
        assert "is this an object store, or a proxy or login page in front of it?" in report["left"][0]["reason"]
    assert all(line.isprintable() and len(line) < 1000 for line in report_lines(report)), report
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": f"http://127.0.0.1:{store.port}"})
    assert finish_spool(spool.folder)["complete"]
    assert list(store.segments().values()) == [[{"ph": "i"}]]
    assert not path.exists()


def test_r4_a_full_spool_drops_the_newest_segments_and_counts(tmp_path: Path, store: ObjectStore) -> None:
    program = """
    handler, profiler = recorder({"WARM_UP_S": 0.5}, {"spool_bytes": 60_000, "rotate_seconds": 0.01}, shutdown_timeout=1.0)
    with profiler:
        bursts(profiler, 20, pause_s=0.02)
    dropped = profiler.stats.dropped
    assert list(dropped) == ["events of files beyond the size of the spool"], dropped
    say(f"dropped {sum(dropped.values())}")
    """
    with recording(program, tmp_path, store, port=free_port()) as child:
        dropped = int(child.hear("dropped"))
        assert child.end() == 0
        assert child.errors.count("spool_bytes (60000)") == 1
        assert sum(path.stat().st_size for path in only_spool(tmp_path).parent.glob("0*.json")) <= 60_000
        upload_the_rest(tmp_path, store)
        assert dropped > 0
        index = store.index()
        # One that the end of an uploaded segment cuts may have its rest in one that is missing.
        assert 0 <= in_store(store) - (2000 - dropped) <= len(index["segments"])
        assert index["dropped"]["events"] == dropped
        assert index["complete"] is False
        # The newest are those that are missing; a small one may have fitted in.
        states = [segment["state"] for segment in index["segments"]]
        first = states.index("dropped")
        assert first >= 3
        assert states[:first] == ["uploaded"] * first


def uploaded_rounds(store: ObjectStore) -> int:
    return sum(event["ph"] == "C" for events in store.segments().values() for event in events)


def test_r5_what_was_uploaded_survives_the_node(tmp_path: Path, store: ObjectStore, engine: Engine) -> None:
    program = """
    handler, profiler = recorder()
    profiler.start()
    for number in range(100_000):
        work(profiler, 10)
        profiler.marker("n").counter({"n": number})
        say(f"n {number}")
        time.sleep(0.01)
    """
    with recording(program, tmp_path, store) as child:
        child.hear("n 20")
        wait_until(lambda: len(store.segments()) >= 3 and uploaded_rounds(store) >= 20)
        child.kill()
        shutil.rmtree(tmp_path / "spool")
        segments = store.segments()
        load(engine, store, tmp_path)
        seen = [event["args"]["n"] for events in segments.values() for event in events if event["ph"] == "C"]
        assert seen == list(range(len(seen)))
        assert len(seen) >= 20
        assert store.index()["complete"] is False


def test_r6_upload_finishes_what_a_killed_process_left(tmp_path: Path, store: ObjectStore, engine: Engine) -> None:
    program = """
    handler, profiler = recorder({"WARM_UP_S": 0.3}, {"rotate_bytes": 5_000, "rotate_seconds": 60})
    profiler.start()
    bursts(profiler, 5)
    say("flushed")
    hear()
    """
    with recording(program, tmp_path, store, port=free_port()) as child:
        child.hear("flushed")
        journal = only_spool(tmp_path)
        busy = command(tmp_path, store, "upload", str(journal.parent))
        assert busy.returncode == 3
        assert "another process uses this spool" in busy.stderr
        child.kill()
        # Several at once do not get into each other's way: each finishes it, finds it finished, or finds it busy.
        racing = [
            subprocess.Popen(
                [sys.executable, "-m", "tracekit", "upload", str(journal.parent)],
                env={**os.environ, **store.environment(), "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            for _ in range(3)
        ]  # fmt: skip
        results = [(one.communicate()[0], one.returncode) for one in racing]
        assert {code for _, code in results} <= {0, 3}, results
        assert 0 in {code for _, code in results}
        assert in_store(store) == 500
        load(engine, store, tmp_path)
        before = {key: store.get(key) for key in store.keys("")}
        upload_the_rest(tmp_path, store)
        assert {key: store.get(key) for key in store.keys("")} == before
        # As if the journal had not been written at the very end: what is there is recognised, and not uploaded anew.
        lines = journal.read_text().splitlines(keepends=True)
        for segment, (key, data) in zip(range(2), before.items(), strict=False):
            (journal.parent / f"{segment:06d}-{Path(key).name}").write_bytes(data)
        journal.write_text("".join(line for line in lines if '"deliver":0,' not in line and '"index":true' not in line))
        upload_the_rest(tmp_path, store)
        assert {key: store.get(key) for key in store.keys("")} == before


def test_r7_a_process_that_ends_with_much_to_upload_does_it_or_says_how(tmp_path: Path, store: ObjectStore) -> None:
    program = """
    handler, profiler = recorder({"WARM_UP_S": 60.0}, {"rotate_bytes": 500, "rotate_seconds": 60}, shutdown_timeout=3.0)
    profiler.start()
    bursts(profiler, 20, 50)
    say("recorded")
    """  # nobody stops it: the end of the interpreter does
    with FaultProxy(store.port) as proxy:
        proxy.delay_s = 0.2
        with recording(program, tmp_path, store, port=proxy.port) as child:
            child.hear("recorded")
            assert child.end() == 0
            assert "Traceback" not in child.errors
            assert "thread" not in child.errors
            if left := spools(tmp_path):
                assert f"tracekit upload {left[0].parent}" in child.errors
                upload_the_rest(tmp_path, store)
    assert in_store(store) == 1000


def test_r8_a_kill_during_an_upload_leaves_no_part_of_an_object(tmp_path: Path, store: ObjectStore) -> None:
    program = """
    handler, profiler = recorder(options={"rotate_bytes": 5_000, "rotate_seconds": 60})
    profiler.start()
    wait_for_fault()
    bursts(profiler, 1, 100_000)  # larger than what s3fs sends in one piece otherwise
    bursts(profiler, 1, 1)
    say("recorded")
    hear()
    """
    with behind_proxy(program, tmp_path, store) as (proxy, child):
        proxy.bytes_per_s = 1_000_000
        connections = proxy.connections
        child.tell()
        child.hear("recorded")
        wait_until(lambda: proxy.connections > connections or proxy.passed > 1_000_000)
        child.kill()
        # Of a slow machine, a first and small one may be there; all that are there are whole.
        assert sum(event["ph"] == "X" for events in store.segments().values() for event in events) < 100_000
        assert store.unfinished() == []


def test_r9_two_that_want_the_same_names_never_overwrite_each_other(tmp_path: Path, store: ObjectStore) -> None:
    program = """
    handler, profiler = recorder(options={"spool": f"spool{os.getpid()}"})
    say("ready")
    hear()
    try:
        with profiler:
            bursts(profiler, 1)
            say("recording")
            hear()
        say("end")
    except Exception as error:
        say(f"refused: {error}")
    """
    with (
        recording(program, tmp_path, store) as first,
        recording(program, tmp_path, store) as second,
    ):
        for child in (first, second):
            child.hear("ready")
        first.tell()
        first.hear("recording")
        second.tell()
        assert "exists already" in second.hear("re")
        first.tell()
        first.hear("end")
    assert in_store(store) == 100


def test_r9_a_segment_whose_name_was_taken_meanwhile_takes_the_next(tmp_path: Path, store: ObjectStore) -> None:
    foreign = b'[\n{"ph":"M","name":"tracekit_metadata","pid":1,"args":{}}\n]\n'
    store.client.put_object(Bucket=BUCKET, Key="run/rank0-part0000.json", Body=foreign)
    program = """
    handler, profiler = recorder()
    with profiler:
        work(profiler, 100)
    say(f"kept {handler.kept}")
    """
    with recording(program, tmp_path, store) as child:
        assert child.hear("kept") == "[]"
    assert store.get("run/rank0-part0000.json") == foreign
    assert slices(store.segments()["run/rank0-part0000-2.json"]) == 100
    assert [segment["name"] for segment in store.index()["segments"]] == ["rank0-part0000-2.json"]
