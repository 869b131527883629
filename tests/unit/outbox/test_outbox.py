"""The outbox: packing, the spool and its journal, the index, uploads that are tried again, calls that hang."""

from __future__ import annotations

import errno
import gzip
import json
import os
import stat
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.processes import wait_until
from tracekit import ConfigError, FlightRecorder, JSONTraceHandler, Profiler, StorageError, merge_traces, storage
from tracekit.check.schemas import SEGMENT_INDEX, compile_schema
from tracekit.formats.rank_trace import Segment, index_document, index_name, listed_segments
from tracekit.notices import Notices
from tracekit.outbox import upload
from tracekit.outbox.finish import finish_spool
from tracekit.outbox.outbox import Outbox, pack
from tracekit.outbox.spool import JOURNAL, Spool, default_root, default_spools
from tracekit.outbox.upload import Uploader, UploadingOutbox
from tracekit.storage import AlreadyThereError, RefusedError, TooSlowError, UnconfirmedError

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = {"run_id": "run/../7", "rank": 3, "attempt": 0, "pid": 4711, "index": "memory://b/run/t.index.json"}
IMPATIENT = {"WARM_UP_S": 60.0, "ANSWER_S": 60.0, "FIRST_PAUSE_S": 0.01, "MAX_PAUSE_S": 0.05, "INDEX_S": 0.01}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in IMPATIENT.items():
        monkeypatch.setattr(upload, name, seconds)


@pytest.fixture
def memory() -> Iterator[Any]:
    import fsspec

    memory = fsspec.filesystem("memory")
    yield memory
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


def test_the_same_content_packs_to_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 3_000_000)
        (tmp_path / name).chmod(0o600)
        assert pack(tmp_path / name, tmp_path / f"{name}.gz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gz", "b.gz"]
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"x" * 3_000_000
    assert stat.S_IMODE((tmp_path / "a.gz").stat().st_mode) == 0o600


def test_packing_that_is_stopped_or_fails_leaves_the_plain_file_alone_and_brings_none_back(tmp_path: Path) -> None:
    plain = tmp_path / "a"
    with pytest.raises(FileNotFoundError):
        pack(plain, tmp_path / "a.gz")
    plain.write_bytes(b"x")
    with pytest.raises(FileNotFoundError):  # it is removed while it is packed
        pack(plain, tmp_path / "a.gz", lambda: bool(plain.unlink()))
    assert list(tmp_path.iterdir()) == []
    plain.write_bytes(b"x")
    assert not pack(plain, tmp_path / "a.gz", lambda: True)
    (tmp_path / "a.gz").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        pack(plain, tmp_path / "a.gz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.gz"]
    assert (tmp_path / "a.gz").read_bytes() == b"precious"


def test_delivery_does_not_wait_for_packing_and_the_plain_file_stays_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, real_pack = threading.Event(), pack

    def slow(*args: Any) -> bool:
        assert go_on.wait(60)
        return real_pack(*args)

    monkeypatch.setattr("tracekit.outbox.outbox.pack", slow)
    handler = JSONTraceHandler(tmp_path / "p{part}.json.gz", rotate_bytes=1)
    with Profiler(handler, rank=0, flush_interval=3600) as profiler:
        for _ in range(3):
            profiler.marker("i").instant()
            assert profiler.flush(60)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["p0.json", "p1.json", "p2.json"]
        assert json.loads((tmp_path / "p0.json").read_bytes())[0]["name"] == "tracekit_metadata"
        go_on.set()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p0.json.gz", "p1.json.gz", "p2.json.gz"]
    assert handler.kept == []


def test_what_there_is_no_time_to_pack_stays_plain_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def endless(plain: Path, packed: Path, stopped: Any) -> bool:
        wait_until(stopped)
        return pack(plain, packed, stopped)

    monkeypatch.setattr("tracekit.outbox.outbox.pack", endless)
    handler = JSONTraceHandler(tmp_path / "t.json.gz")
    with Profiler(handler, rank=0, shutdown_timeout=0.3):
        pass
    # The profiler waits for the handler until then, which has a tenth of that to say what is left.
    wait_until(lambda: not any(thread.name.startswith("tracekit-writer") for thread in threading.enumerate()))
    assert handler.kept == [str(tmp_path / "t.json")]
    assert "no time to pack" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    wait_until(lambda: not any(thread.name == "tracekit-outbox" for thread in threading.enumerate()))


def test_what_cannot_be_packed_stays_plain_and_the_next_is_packed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(tmp_path, packs=True)
    outbox.start()
    for name in ("a", "b"):
        path = outbox.place(f"{name}.json.gz")
        path.write_text("[]")
        if name == "a":
            (tmp_path / "a.json.gz").write_text("precious")
        assert outbox.send(path, f"{name}.json.gz", events=0, start_ns=0, end_ns=0) is None
    outbox.close(10)
    assert outbox.arrived() == [(tmp_path / "a.json", "a.json.gz"), (tmp_path / "b.json.gz", "b.json.gz")]
    assert outbox.kept == [tmp_path / "a.json"]
    assert "a.json cannot be packed (File exists); kept plain" in caplog.text


def test_a_call_that_hangs_is_given_up_and_another_thread_takes_its_place(tmp_path: Path) -> None:
    uploader, let_go = Uploader(Spool.create(tmp_path, HEADER)), threading.Event()

    def call(function: Any, timeout_s: float = 10) -> Any:
        uploader._timeout_s = timeout_s
        return uploader._call(lambda timeout_s: function())

    assert call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        call(lambda: 1 // 0)
    for _ in range(8):
        with pytest.raises(TooSlowError, match=r"no answer within 0\.01 s"):
            call(let_go.wait, 0.01)
    with pytest.raises(TooSlowError, match="8 calls have not returned"):
        call(lambda: 7)
    let_go.set()
    wait_until(lambda: sum(thread.name == "tracekit-upload" for thread in threading.enumerate()) == 0)
    assert call(lambda: 8) == 8
    uploader.close()
    wait_until(lambda: sum(thread.name == "tracekit-upload" for thread in threading.enumerate()) == 0)


def test_pauses_grow_to_a_limit_and_answers_get_more_time_when_they_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool.create(tmp_path, HEADER)
    uploader, errors = Uploader(spool), [TooSlowError("slow")] * 2 + [StorageError("down")] * 8

    def call(*_: Any, **__: Any) -> None:
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr(uploader, "_call", call)
    for number in range(10):
        assert uploader.upload(None) is not None
        longest_s = min(60, 2**number)
        assert longest_s / 2 <= uploader.pause_s <= longest_s
    assert uploader._answer_s == 120
    assert uploader.upload(None) is None
    spool.note("closed")  # the index changes
    errors += [StorageError("down")]
    assert uploader.upload(None) is not None
    assert uploader.pause_s <= 1
    errors += [TooSlowError("slow")] * 20
    while errors:
        uploader.upload(None)
    assert uploader._answer_s == 600


def test_a_notice_of_each_kind_is_logged_at_most_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_ns = 0
    notices = Notices(lambda: now_ns)
    for second in range(0, 130, 10):
        now_ns = second * 10**9
        notices.warn("a", "a at %d", second)
    notices.warn("b", "b at %d", 1)
    assert caplog.messages == ["a at 0", "a at 60", "a at 120", "b at 1"]


def test_a_spool_is_private_named_after_its_recording_and_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spool = Spool.create(Path("root"), HEADER)
    monkeypatch.chdir("/")
    assert stat.S_IMODE(spool.folder.stat().st_mode) == stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o700
    assert spool.folder.name.startswith("run_.._7-rank3-attempt0-4711-")
    files = [spool.begin(f"memory://b/run/p{number}.json.gz") for number in range(4)]
    for segment in files[:3]:
        (spool.folder / segment.file).write_text("[]")
        spool.finish(segment, 5, 100, 200)
    spool.delivered(files[0], "memory://b/run/p0-2.json.gz", 2, "abc")
    spool.drop(files[1])
    assert [segment.size_bytes for segment in spool.waiting] == [2, 0]
    with (spool.folder / JOURNAL).open("a") as journal:
        journal.write(
            'not json\n{"begin":9,"file":"../../etc/passwd","url":"memory://b/x"}\n{"finish":77}\n[1]\n'
            '{"begin":8,"file":"a","url":7}\n{"finish":3,"events":"many"}\n{"deliver":3'
        )
    spool.close()
    again = Spool.load(spool.folder)
    assert again.header == spool.header
    assert [(one.state, one.url, one.events) for one in again.segments.values()] == [
        ("delivered", "memory://b/run/p0-2.json.gz", 5),
        ("dropped", "memory://b/run/p1.json.gz", 5),
        ("waiting", "memory://b/run/p2.json.gz", 5),
        ("open", "memory://b/run/p3.json.gz", 0),
    ]
    assert not again.closed
    again.close()


def test_a_spool_is_not_made_where_somebody_else_could_play_tricks(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(StorageError, match="cannot be made: it is not a folder; name another folder with spool="):
            Spool.create(tmp_path / name, HEADER)
    with pytest.raises(StorageError, match="no spool of tracekit"):
        Spool.load(tmp_path)
    for head in (
        '{"tracekit_spool":99,"id":"x","index":"y"}',
        '{"tracekit_spool":1,"id":"x"}',
        '{"tracekit_spool":1,"id":"x","index":5}',
    ):
        (tmp_path / JOURNAL).write_text(f"{head}\n")
        with pytest.raises(StorageError, match="not one that this tracekit"):
            Spool.load(tmp_path)


@pytest.mark.parametrize("kind", ["another user's", "open to others", "link", "file"])
def test_a_default_spool_folder_that_somebody_prepared_is_not_used_and_training_starts(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    monkeypatch.delenv("TRACEKIT_SPOOL", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    owner = os.geteuid()
    if kind == "another user's":
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    root = default_root()
    if kind == "link":
        (tmp_path / "target").mkdir(mode=0o700)
        root.symlink_to(tmp_path / "target")
    elif kind == "file":
        root.write_text("")
    else:
        root.mkdir(mode=0o700)
        root.chmod(0o777 if kind == "open to others" else 0o700)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(storage, "put", unreachable)
    with Profiler(JSONTraceHandler("memory://b/run/t.json"), rank=0) as profiler:
        profiler.marker("a").instant()
    (folder,) = (path for path in tmp_path.glob(f"{root.name}-*-rank0-attempt0-*") if path.is_dir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(path for path in tmp_path.rglob("*") if folder not in (path, path.parent)) == before
    assert f"they wait in {folder}" in caplog.text
    assert f"tracekit upload {folder}" in caplog.text
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TRACEKIT_SPOOL", raising=False)
    if kind != "another user's":
        assert default_spools() == [folder]


def unreachable(*_: Any, **__: Any) -> None:
    raise RefusedError("no route")  # is not tried again, so that nothing depends on a timeout


def test_spools_in_a_default_folder_of_somebody_else_are_not_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal could name any file and any address."""
    assert default_root({"TRACEKIT_SPOOL": "/x"}) == Path("/x")
    monkeypatch.delenv("TRACEKIT_SPOOL", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = Spool.create(None, HEADER)
    spool.close()
    assert spool.folder.parent == default_root() == tmp_path / f"tracekit-spool-{os.geteuid()}"
    assert default_spools() == [spool.folder]
    default_root().chmod(0o777)
    assert default_spools() == []


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("s3://b/{run_id}/rank{rank}-part{part:04d}.json.gz", "s3://b/{run_id}/rank{rank}.index.json"),
        ("s3://b/rank{rank}-attempt{attempt}-dump{dump:03d}.json", "s3://b/rank{rank}-attempt{attempt}.index.json"),
        ("s3://b/{part}.json", "s3://b/trace.index.json"),
        ("s3://b/epoch{epoch}/{batch}/rank{rank}_{part}.json", "s3://b/rank{rank}.index.json"),
        ("memory://b/d{batch}.json", "memory://b/d.index.json"),
    ],
)
def test_the_index_has_the_name_of_the_segments_without_what_varies(name: str, index: str) -> None:
    assert index_name(name) == index


def test_an_index_lists_what_was_finished_and_a_reader_finds_it(tmp_path: Path) -> None:
    segments = [
        Segment(0, "0-a", "s3://b/run/a.json", "delivered", 5, 1, 2, 30, "abc"),
        Segment(1, "1-b", "s3://b/run/epoch1/b.json", "waiting", 6, 3, 4),
        Segment(2, "2-c", "s3://b/run/c.json", "open"),
    ]
    document = index_document({"id": "x", "rank": 3}, segments, "s3://b/run/t.index.json", complete=False)
    assert [(one["name"], one["state"]) for one in document["segments"]] == [
        ("a.json", "uploaded"),
        ("epoch1/b.json", "waiting"),
    ]
    document["segments"] += [{"name": "../../secret", "state": "uploaded"}, 7]
    assert listed_segments(document, "/tmp/t.index.json") == [
        ("/tmp/a.json", "uploaded"),
        ("/tmp/epoch1/b.json", "waiting"),
    ]
    assert listed_segments({"traceEvents": []}, "x") is None


def outbox_in(tmp_path: Path) -> UploadingOutbox:
    outbox = UploadingOutbox(tmp_path / "spool", HEADER, spool_bytes=1 << 30)
    outbox.start()
    return outbox


def send(outbox: UploadingOutbox, name: str, text: str = "[]") -> Path:
    path = outbox.place(f"memory://b/run/{name}")
    path.write_text(text)
    outbox.send(path, f"memory://b/run/{name}", events=1, start_ns=1, end_ns=2)
    return path


@pytest.mark.usefixtures("impatient")
def test_failures_are_tried_again_in_order_until_they_work(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real_put, tried = storage.put, []

    def put(local: str, url: str, **options: Any) -> None:
        tried.append(url)
        if len(tried) in (2, 3, 4, 6):
            raise [StorageError("down"), OSError(errno.EIO, "odd"), TooSlowError("slow")][len(tried) % 3]
        real_put(local, url, **options)

    monkeypatch.setattr("tracekit.storage.put", put)
    outbox = outbox_in(tmp_path)
    for number in range(3):
        send(outbox, f"p{number}.json")
    outbox.close(20)
    assert outbox.kept == []
    wanted = ["/b/run/p0.json", "/b/run/p1.json", "/b/run/p2.json", "/b/run/t.index.json"]
    assert sorted(memory.ls("/b/run", detail=False)) == wanted
    assert [url for url in dict.fromkeys(tried) if "index" not in url] == [f"memory:/{path}" for path in wanted[:3]]
    document = json.loads(memory.cat_file("/b/run/t.index.json"))
    assert document["complete"] is True
    assert compile_schema(SEGMENT_INDEX)(document) is None
    assert list((tmp_path / "spool").iterdir()) == []
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


@pytest.mark.usefixtures("impatient")
def test_a_name_that_another_recording_has_is_refused_at_the_start(tmp_path: Path, memory: Any) -> None:
    memory.pipe_file("/b/run/t.index.json", b'{"id": "of somebody else"}')
    with pytest.raises(ConfigError, match=r"t\.index\.json: exists already, and tracekit never overwrites"):
        outbox_in(tmp_path)
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.usefixtures("impatient")
def test_a_file_that_somebody_takes_out_of_the_spool_is_counted(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, real_put = threading.Event(), storage.put

    def put(local: str, url: str, **options: Any) -> None:
        if url.endswith("p0.json"):
            assert go_on.wait(60)
        real_put(local, url, **options)

    monkeypatch.setattr("tracekit.storage.put", put)
    monkeypatch.setattr(upload, "INDEX_S", 30.0)
    outbox = outbox_in(tmp_path)
    send(outbox, "p0.json")
    send(outbox, "p1.json").unlink()
    send(outbox, "p2.json")
    go_on.set()
    outbox.close(20)
    assert outbox.lost == {"events of files that were removed": 1}
    assert sorted(memory.ls("/b/run", detail=False))[:2] == ["/b/run/p0.json", "/b/run/p2.json"]


@pytest.mark.usefixtures("impatient")
def test_a_spool_without_its_files_says_so(tmp_path: Path, memory: Any) -> None:
    spool = Spool.create(tmp_path, HEADER)
    segment = spool.begin("memory://b/run/p0.json")
    spool.finish(segment, 1, 1, 2)
    spool.begin("memory://b/run/p1.json")
    spool.close()
    report = finish_spool(spool.folder)
    assert not report["complete"]
    assert report["lost"] == [str(spool.folder / segment.file)]
    assert report["index"]["uploaded"] is True


@pytest.mark.usefixtures("memory")
def test_put_makes_an_object_once_and_says_when_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    storage.put(str(tmp_path / "a"), "memory://b/a")
    with pytest.raises(AlreadyThereError):
        storage.put(str(tmp_path / "a"), "memory://b/a")
    (tmp_path / "a").write_text("2")
    storage.put(str(tmp_path / "a"), "memory://b/a", replace=True)
    assert storage.read("memory://b/a") == b"2"
    assert storage.read("memory://b/nothing") is None


@pytest.mark.parametrize("found", [None, b"<html>"])
@pytest.mark.parametrize("function", [storage.put, storage.upload])
def test_an_object_that_is_not_there_as_it_was_sent_is_an_error(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, function: Any, found: bytes | None
) -> None:
    def put_file(_: Any, __: str, inner: str, *, mode: str = "overwrite") -> None:
        if found is not None:
            memory.pipe_file(inner, found)

    monkeypatch.setattr(type(memory), "put_file", put_file)
    (tmp_path / "a").write_bytes(b"12345")
    with pytest.raises(UnconfirmedError, match=r"memory://b/a: the storage accepted 5 bytes, and then it"):
        function(str(tmp_path / "a"), "memory://b/a")


def test_a_protocol_that_nothing_here_knows_is_refused_before_training(tmp_path: Path) -> None:
    for handler in (JSONTraceHandler("nope://b/t.json", spool=tmp_path), FlightRecorder("nope://b/{dump}.json")):
        with pytest.raises(StorageError, match="Protocol not known: nope"):
            Profiler(handler, rank=0).start()
    assert list(tmp_path.iterdir()) == []


def test_merge_tells_of_segments_that_are_listed_and_not_there(tmp_path: Path, memory: Any) -> None:
    handler = JSONTraceHandler("memory://b/{run_id}/rank{rank}.json", rotate_bytes=1)
    with Profiler(handler, rank=0, run_id="run", flush_interval=3600, record_batches=False) as profiler:
        for _ in range(3):
            profiler.marker("i").instant()
            profiler.flush()
    whole = merge_traces(str(tmp_path / "whole.json"), ["memory://b/run/"])
    assert [omission.path for omission in whole.omitted] == []
    memory.rm("/b/run/rank0-part0001.json")
    document = json.loads(memory.cat_file("/b/run/rank0.index.json"))
    document["segments"] += [{"name": "rank0-part0009.json", "state": state} for state in ("waiting", "dropped")]
    memory.pipe_file("/b/run/rank0.index.json", json.dumps(document).encode())
    partly = merge_traces(str(tmp_path / "partly.json"), ["memory://b/run/"])
    assert [(omission.path.rpartition("/")[2], omission.harmless) for omission in partly.omitted] == [
        ("rank0-part0001.json", False), ("rank0-part0009.json", False), ("rank0-part0009.json", False),
    ]  # fmt: skip
    assert "tracekit upload" in partly.omitted[1].reason
    assert "the spool was full" in partly.omitted[2].reason
    # A damaged index is only a file that is not a trace.
    memory.pipe_file("/b/run/rank0.index.json", b'{"tracekit_index": ')
    damaged = merge_traces(str(tmp_path / "damaged.json"), ["memory://b/run/"])
    assert [omission.path.rpartition("/")[2] for omission in damaged.omitted] == ["rank0.index.json"]
