"""Archives of a merge: inputs as they are where that is possible, a manifest that places them, the same bytes every time."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.merge_inputs import BASE_NS, event, meta, torch_trace, write
from tests.merge_inputs import rank_trace as rank_trace_of
from tracekit.check.schemas import MERGE_REPORT, PERFETTO_MANIFEST, compile_schema
from tracekit.check.validation.archive import manifest_problems
from tracekit.errors import MergeError, StorageError
from tracekit.formats import archive_file
from tracekit.formats.archive_file import write_tar, write_zip
from tracekit.merge import Selection, merge_traces

if TYPE_CHECKING:
    from tracekit.merge import MergeReport


def rank_trace(rank: int, *events: dict[str, Any], pid: int | None = None, **own: Any) -> bytes:
    pid = 100 + rank if pid is None else pid
    lines = rank_trace_of(*(events or [event(f"on {rank}", pid=pid)]), rank=rank, pid=pid, **own)
    return b"[\n" + b",\n".join(json.dumps(line).encode() for line in lines) + b"\n]\n"


def torch(rank: int, *events: dict[str, Any], **header: Any) -> bytes:
    return json.dumps(torch_trace(*events, distributedInfo={"rank": rank}, **header)).encode()


def members(path: Path) -> dict[str, bytes]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as opened:
            return {name: opened.read(name) for name in opened.namelist()}
    with tarfile.open(path) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]


class Archived:
    """An archive and the report of its merge."""

    def __init__(self, path: Path, report: MergeReport) -> None:
        self.report = report
        self.members = members(path)
        assert next(iter(self.members)) == "perfetto_manifest.json"
        text = self.members.pop("perfetto_manifest.json")
        assert text.startswith(b'{"perfetto_manifest"')
        assert compile_schema(PERFETTO_MANIFEST)(json.loads(text)) is None
        assert manifest_problems(json.loads(text), self.members) == []
        assert compile_schema(MERGE_REPORT)(json.loads(json.dumps(report.to_json()))) is None
        self.manifest = json.loads(text)["perfetto_manifest"]
        files = {entry["path"]: entry for entry in self.manifest["files"]}
        self.machines = {name: entry["machine"]["name"] for name, entry in files.items()}
        self.offsets = {name: entry.get("clocks", {}).get("offset_ns") for name, entry in files.items()}
        self.rewritten = {Path(path).name: why for path, why in (report.rewritten or {}).items()}

    def pids(self, name: str) -> set[int | str]:
        document = json.loads(self.members[name])
        events = document["traceEvents"] if isinstance(document, dict) else document
        return {found["pid"] for found in events}


@pytest.fixture(params=["tar", "zip"])
def archive(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Write files by name, and merge them into an archive."""

    def _archive(files: dict[str, bytes], **options: Any) -> Archived:
        output = tmp_path / f"merged.{request.param}"
        return Archived(output, merge_traces(str(output), write(tmp_path / "run", files), overwrite=True, **options))

    return _archive


def test_inputs_that_can_stand_together_are_copied_and_unpacked(archive: Any) -> None:
    files = {"rank0.json": rank_trace(0), "rank1.json.gz": rank_trace(1)}
    found = archive(files)
    assert found.members == {"rank0.json": files["rank0.json"], "rank1.json": files["rank1.json.gz"]}
    assert found.machines == {"rank0.json": "rank 0", "rank1.json": "rank 1"}
    assert found.offsets == {"rank0.json": None, "rank1.json": 0}
    assert (found.rewritten, found.report.complete) == ({}, True)
    assert found.report.events_out == found.report.events_in
    assert "archive: 2 inputs as they are, 0 rewritten" in found.report.lines()
    assert found.manifest["attributes"]["tracekit.base_time_ns"] == BASE_NS


def test_the_manifest_moves_a_file_of_another_base_later(archive: Any) -> None:
    found = archive({"rank0.json": rank_trace(0, baseTimeNanoseconds=BASE_NS + 10**9), "rank1.json": rank_trace(1)})
    assert found.manifest["files"][0]["clocks"] == {"sync_to": {"file": "rank1.json"}, "offset_ns": 10**9}
    assert found.offsets == {"rank0.json": 10**9, "rank1.json": None}
    assert found.rewritten == {}


def test_epoch_times_are_the_reference_for_relative_ones(archive: Any) -> None:
    epoch = torch(1, event("a", BASE_NS // 1000, pid=4711), baseTimeNanoseconds=0)
    found = archive({"rank0.json": rank_trace(0), "rank1.json": epoch})
    assert found.offsets == {"rank0.json": BASE_NS, "rank1.json": None}
    assert found.manifest["attributes"]["tracekit.base_time_ns"] == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch(0, event("a", pid=0)), torch(1, event("b", pid=0))),
        (torch(0, event("a", pid="Spans")), torch(1, event("b", pid="Spans"))),
        (rank_trace(0, pid=7, host="g"), rank_trace(1, pid=7)),
        # A pid that no process can have is 0 for Perfetto.
        (torch(0, event("a", pid=-1)), torch(1, event("b", pid=0))),
        # A name for what another rank uses.
        (torch(0, event("a", pid=3)), torch(1, event("b", pid=4), meta("process_name", 3, name="gpu"))),
    ],
    ids=["number", "text", "hosts", "negative", "declared"],
)
def test_what_older_viewers_would_take_for_one_process_is_rewritten(archive: Any, first: bytes, second: bytes) -> None:
    files = {"a.json": first, "b.json": second}
    found = archive(files)
    assert found.rewritten == dict.fromkeys(files, "another process has its pid")
    assert found.pids("a.json").isdisjoint(found.pids("b.json"))
    assert found.machines == {"a.json": "rank 0", "b.json": "rank 1"}


def test_a_process_is_not_split_when_only_one_of_its_files_must_be_rewritten(archive: Any) -> None:
    files = {
        "own0.json": rank_trace(0, pid=500),
        "torch0.json": torch(0, event("op", pid=500), event("kernel", pid=0)),
        "torch1.json": torch(1, event("op", pid=600), event("kernel", pid=0)),
        # Its pid is what a process of rank 1 is called once that is rewritten.
        "own2.json": rank_trace(2, pid=100_001),
        "own3.json": rank_trace(3, pid=503),
    }
    found = archive(files)
    assert found.rewritten == {
        "own0.json": "a process of it is in another input that is rewritten",
        "torch0.json": "another process has its pid",
        "torch1.json": "another process has its pid",
        "own2.json": "another process has its pid",
    }
    assert found.pids("own0.json") < found.pids("torch0.json")
    assert found.machines["own0.json"] == found.machines["torch0.json"] == "rank 0"
    assert found.members["own3.json"] == files["own3.json"]


COUNTER: dict[str, Any] = {"ph": "C", "pid": 5}


@pytest.mark.parametrize(
    ("data", "copied"),
    [
        (rank_trace(0)[:-3], True),
        (rank_trace(0)[:-6], True),
        (rank_trace(0)[:-3] + b",\n", True),
        (rank_trace(0).replace(b'"on 0"', b'"on "0""'), False),
        (rank_trace(0).replace(b'"on 0"', b'"\xff"'), False),
        (torch(0, event("a", pid=5))[:-1], False),
        (torch(0), False),
        (b"\xef\xbb\xbf" + rank_trace(0), False),
        (json.dumps([event("a", pid=5), {}]).encode(), True),
        (json.dumps([event("a", pid=5), event("c", **COUNTER, args={"v": True})]).encode(), True),
        (json.dumps([event("a", pid=5), event("c", **COUNTER, args={"v": "x", "w": 1})]).encode(), False),
        (json.dumps([event("a", pid=5), event("b", dur=None, pid=5)]).encode(), False),
    ],
)
def test_what_perfetto_would_refuse_is_repaired(archive: Any, data: bytes, copied: bool) -> None:
    found = archive({"trace.json": data})
    assert found.rewritten == ({} if copied else {"trace.json": "it needs repair"})
    if copied:
        assert found.members["trace.json"] == data
    else:
        json.loads(found.members["trace.json"])


def test_a_selection_is_rewritten_and_counted(archive: Any) -> None:
    files = {
        "rank0.json": rank_trace(0, event("a"), event("b", cat="x")),
        "rank1.json": rank_trace(1),
    }
    found = archive(files, select=Selection(ranks={0}, categories=["x"]))
    assert list(found.members) == ["rank0.json"]
    assert found.rewritten == {"rank0.json": "something is selected"}
    assert b'"b"' in found.members["rank0.json"]
    assert b'"a"' not in found.members["rank0.json"]
    assert [(item.reason, item.count) for item in found.report.left_out] == [("rank", None), ("category", 1)]
    assert archive(files, select=Selection(ranks={0})).members == {"rank0.json": files["rank0.json"]}


NAMES = {
    "a/trace.json": "rank0-trace.json",
    "b/trace.json.gz": "rank1-trace.json",
    "c/rank0-trace.json": "rank2-rank0-trace.json",
    "d/perfetto_manifest.json": "rank3-perfetto_manifest.json",
    ".hidden ütf.json.tmp": "hidden_tf.json",
    f"{'x' * 150}.json": f"{'x' * 75}.json",
    f"{'y' * 150}.json": f"rank6-{'y' * 75}.json",
    f"y{'y' * 150}.json": f"rank7-{'y' * 75}.json",
    "noending": "noending.json",
    "x/twice.json": "rank9-twice.json",
    "y/twice.json": "10-rank9-twice.json",
}


def test_names_are_what_every_reader_takes_and_each_is_there_once(archive: Any) -> None:
    files = {name: rank_trace(rank) for rank, name in enumerate(NAMES)}
    found = archive(files | {"y/twice.json": rank_trace(9, event("later", 9, pid=109))})
    assert list(found.members) == list(NAMES.values())
    assert max(map(len, found.members)) < 100


def test_a_merged_file_of_several_ranks_is_a_machine_of_its_own(archive: Any, merge: Any) -> None:
    merged, _ = merge({f"rank{rank}.json": rank_trace(rank) for rank in range(2)})
    found = archive({"merged.json": json.dumps(merged).encode(), "rank2.json": rank_trace(2)})
    assert found.machines == {"merged.json": "ranks 0-1", "rank2.json": "rank 2"}
    assert found.rewritten == {}


def test_an_archive_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, output = tmp_path / "rank0.json", tmp_path / "merged.tar"
    path.write_bytes(rank_trace(0))

    def cut(file: Any, members: Any) -> None:
        path.write_bytes(rank_trace(0)[:20])
        write_tar(file, members)

    with monkeypatch.context() as patch:
        patch.setattr("tracekit.merge.write.archive.write_tar", cut)
        with pytest.raises(MergeError, match="changed while it was merged"):
            merge_traces(str(output), [str(path)])
    assert [found.name for found in tmp_path.iterdir()] == ["rank0.json"]
    path.write_bytes(rank_trace(0))
    output.write_bytes(b"mine")
    with pytest.raises(StorageError, match="already exists"):
        merge_traces(str(output), [str(path)])
    assert output.read_bytes() == b"mine"


def test_a_file_that_grows_is_in_the_archive_as_it_was_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, output = tmp_path / "rank0.json", tmp_path / "merged.tar"
    live = rank_trace(0)[:-3] + b",\n"
    path.write_bytes(live)

    def grow(file: Any, members: Any) -> None:
        path.write_bytes(live * 2)
        write_tar(file, members)

    monkeypatch.setattr("tracekit.merge.write.archive.write_tar", grow)
    merge_traces(str(output), [str(path)])
    assert members(output)["rank0.json"] == live


@pytest.mark.parametrize(("write", "limit"), [(write_tar, "_TAR_LIMIT_BYTES"), (write_zip, "_ZIP_LIMIT_BYTES")])
def test_what_is_too_large_for_the_form_is_refused(monkeypatch: pytest.MonkeyPatch, write: Any, limit: str) -> None:
    monkeypatch.setattr(archive_file, limit, 1000)
    write(io.BytesIO(), [("fits.json", [b"x" * 400, b"x" * 500])])
    with pytest.raises(MergeError, match=r"large\.json"):
        write(io.BytesIO(), [("large.json", [b"x" * 1001])])
